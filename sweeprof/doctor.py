"""Checks of this machine: its hardware, what disturbs measurements on it, which differences can be measured, what is installed."""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, TypedDict, cast

import numpy as np
import psutil
import yaml
from scipy import special

from sweeprof.backends import missing_package
from sweeprof.config.validation import FRAMEWORK_EXTRAS, Extra
from sweeprof.errors import UserError, WorkerError, choice_problem, nearest
from sweeprof.measuring import nvml
from sweeprof.paths import conf_folder
from sweeprof.plan.plan import environment as environment_of
from sweeprof.processes import NoAnswer, call, child_environment
from sweeprof.results import environment
from sweeprof.results.record import Protocol
from sweeprof.results.statistics import CONFIDENCE, spread
from sweeprof.targets import instantiate


@dataclass(frozen=True, slots=True)
class Advice:
    """What to change, and how."""

    text: str
    command: str
    """For a shell."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A row of the output of ``sweeprof doctor``."""

    section: str
    name: str
    value: str | None
    """None if it is not known."""
    reason: str | None = None
    """Why it is not known."""
    advice: Advice | None = None
    distorts: bool = False
    """Whether it makes small differences untrustworthy, or measurements on the named device impossible."""


def known(section: str, name: str, value: object | None, reason: str = "the system does not report it") -> Finding:
    """A finding without advice; ``reason`` counts where there is no value."""
    if value is None:
        return Finding(section, name, None, reason)
    if isinstance(value, bool):
        return Finding(section, name, "yes" if value else "no")
    return Finding(section, name, str(value))


GOOD_CLOCKS = ("tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page")
"""Clocks that are read without a call into the kernel."""
LOOK_S = 0.5


def processor(root: Path = environment.ROOT) -> Iterator[Finding]:
    """Yield the processors and how their speed changes."""
    section = "Processor"
    yield known(section, "model", environment.cpu_model(root))
    yield known(section, "cores", psutil.cpu_count(logical=False))
    yield known(section, "logical processors", psutil.cpu_count())
    yield known(section, "usable by this process", len(os.sched_getaffinity(0)))
    most = usable_threads(root)
    text = "threads of a trial, times shards, should be no more than the cores"
    yield Finding(section, "threads", f"at most {most}", advice=Advice(text, f"backend.threads={most}"))
    governor = known(section, "frequency governor", environment.governor(root))
    if governor.value not in (None, "performance"):
        advice = Advice("let processors keep one speed", "sudo cpupower frequency-set --governor performance")
        governor = dataclasses.replace(governor, advice=advice, distorts=True)
    yield governor
    turbo = known(section, "turbo", environment.turbo(root))
    if turbo.value == "yes":
        value, file = "0", "cpufreq/boost"
        if (root / "sys/devices/system/cpu/intel_pstate/no_turbo").exists():
            value, file = "1", "intel_pstate/no_turbo"
        command = f"echo {value} | sudo tee /sys/devices/system/cpu/{file}"
        advice = Advice("the speed depends on heat and on neighbours", command)
        turbo = dataclasses.replace(turbo, advice=advice, distorts=True)
    yield turbo
    smt = known(section, "two threads a core (SMT)", environment.smt(root))
    if smt.value == "yes":
        command = "echo off | sudo tee /sys/devices/system/cpu/smt/control"
        smt = dataclasses.replace(smt, advice=Advice("what runs on a core's other half slows it down", command))
    yield smt
    nodes = environment.numa_nodes(root)
    numa = known(section, "memory nodes (NUMA)", nodes)
    if nodes and nodes > 1:
        advice = Advice("keep a measurement on one node", "numactl --cpunodebind=0 --membind=0 python -m sweeprof …")
        numa = dataclasses.replace(numa, advice=advice)
    yield numa
    virtual = known(section, "virtual machine", environment.is_virtual(root))
    if virtual.value == "yes":
        text = "its host may lend the processors to others: interleave the samples"
        virtual = dataclasses.replace(virtual, advice=Advice(text, "protocol.interleave=samples"))
    yield virtual


def usable_threads(root: Path = environment.ROOT) -> int:
    """Return how many threads can run at once without sharing a core: by cores, affinity and quota."""
    cores = min(psutil.cpu_count(logical=False) or 1, len(os.sched_getaffinity(0)))
    quota = environment.cpu_quota(root)
    if quota:
        cores = min(cores, int(quota))
    return max(1, cores)


def limits(root: Path = environment.ROOT) -> Iterator[Finding]:
    """Yield the limits of the container, the memory and the disk."""
    section = "Limits"
    quota = environment.cpu_quota(root)
    cpu = known(section, "CPU quota of the container", quota, "no limit")
    if quota is not None:
        text = "a quota stops all threads in turns: give whole processors instead"
        cpu = dataclasses.replace(cpu, advice=Advice(text, "docker run --cpuset-cpus=0-1 …"), distorts=True)
    yield cpu
    yield known(section, "periods throttled so far", environment.throttled_periods(root))
    memory = psutil.virtual_memory()
    sizes = {
        "memory limit of the container": environment.memory_limit(root),
        "memory": memory.total,
        "memory available": memory.available,
        "disk free here": shutil.disk_usage(Path.cwd()).free,
    }
    for name, size in sizes.items():
        yield known(section, name, f"{size / 2**30:.1f} GiB" if size is not None else None, "no limit")


def gpus(root: Path = environment.ROOT) -> Iterator[Finding]:
    """Yield the GPUs that a driver lists."""
    gpus = environment.gpus(root)
    for number, gpu in enumerate(gpus):
        yield known("GPUs", f"{number}", f"{gpu.model} ({gpu.uuid})")
        state = nvml.state_of(gpu.uuid)
        text = None
        if state.reason is None:
            text = f"driver {state.driver}, {state.power_limit_w} W, up to {state.most_sm_mhz} MHz"
        yield known("GPUs", f"{number}: management library", text, state.reason or "")
    if not gpus:
        yield known("GPUs", "NVIDIA", None, "no driver lists any")


def interference(seconds: float = LOOK_S) -> Iterator[Finding]:
    """Yield the load by other processes, over ``seconds``."""
    section = "Load"
    yield known(section, "averages over 1, 5, 15 minutes", ", ".join(f"{value:.2f}" for value in os.getloadavg()))
    before = environment.look()
    time.sleep(seconds)
    seen = environment.between(before, environment.look(), os.getpid())
    disturbed = environment.warnings_of(seen)
    busy = Finding(section, "processors busy with other things", f"{seen['busy']:.2f} of {psutil.cpu_count()}")
    if disturbed:
        advice = Advice("close other programs", "ps -eo pid,pcpu,comm --sort=-pcpu | head")
        busy = dataclasses.replace(busy, advice=advice, distorts=True)
    yield busy
    for process in seen["top"]:
        yield known(section, f"process {process['pid']}", f"{process['name']} {process['busy']:.2f}")


# ----------------------------------------------------------------------------------------------------------------------
# The clock, and how much the time of the same work varies: within a process, and from one process to the next

SIZE, DEVICE_SIZE = 192, 2048
"""Of the square matrices that are multiplied: about a millisecond's work on one thread, and on an accelerator."""
COARSE_S = 1e-6
NOISY = 0.05
"""Between processes: the threshold of the default protocol."""
CHILD_S = 60.0


@dataclass(frozen=True, slots=True)
class Noise:
    """Medians of the kernel's seconds, process by process, and their spread within."""

    medians: Sequence[float]
    spreads: Sequence[float]

    @property
    def between(self) -> float:
        """Standard deviation of the logarithms of the medians, so about the relative one."""
        return statistics.stdev(map(math.log, self.medians))

    @property
    def within(self) -> float:
        """Interquartile range over median, of the processes' middle."""
        return statistics.median(self.spreads)


def clock(root: Path = environment.ROOT) -> Iterator[Finding]:
    """Yield the resolution of the clock, and the cost of reading it."""
    readings = [time.perf_counter() for _ in range(20_000)]
    steps = [b - a for a, b in itertools.pairwise(readings) if b > a]
    resolution, cost = min(steps), (readings[-1] - readings[0]) / len(readings)
    fine = known("Clock", "resolution", f"{resolution * 1e9:.0f} ns")
    if resolution > COARSE_S:
        advice = Advice("take longer samples", f"protocol.sample_s={resolution * 1e4:.2g}")
        fine = dataclasses.replace(fine, advice=advice, distorts=True)
    yield fine
    yield known("Clock", "cost of a reading", f"{cost * 1e9:.0f} ns")
    source = known("Clock", "source", environment.clock_source(root))
    if source.value is not None and source.value not in GOOD_CLOCKS:
        command = "echo tsc | sudo tee /sys/devices/system/clocksource/clocksource0/current_clocksource"
        source = dataclasses.replace(source, advice=Advice("every reading is a call into the kernel", command))
    yield source


def measured(processes: int, seconds: float, device: str = "cpu") -> Noise:
    """Return the noise of ``processes`` fresh processes one after the other, each of which works for ``seconds`` on a device."""
    question = {"seconds": seconds, "device": device, "size": SIZE if device == "cpu" else DEVICE_SIZE}
    results = [call("sweeprof.doctor:kernel_times", question, child_environment({}), CHILD_S) for _ in range(processes)]
    return Noise([result["median"] for result in results], [result["spread"] for result in results])


def noise(processes: int, seconds: float, protocols: Mapping[str, Protocol], device: str = "cpu") -> Iterator[Finding]:
    """Measure the noise of this machine, or of one of its accelerators; yield it and what it means."""
    try:
        seen = measured(processes, seconds, device)
    except (OSError, WorkerError) as error:
        yield known(_noise_of(device), "between processes", None, f"a process of the measurement failed: {error}")
        return
    yield from meaning(seen, protocols, device)


def _noise_of(device: str) -> str:
    return "Noise" if device == "cpu" else f"Noise of {device}"


def meaning(seen: Noise, protocols: Mapping[str, Protocol], device: str = "cpu") -> Iterator[Finding]:
    """Yield the differences that each protocol can resolve with the measured noise."""
    count, section = len(seen.medians), _noise_of(device)
    yield known(section, "within a process", f"{seen.within:.1%} (interquartile range over median)")
    text = f"{seen.between:.1%} (standard deviation of {count} processes' medians)"
    between = known(section, "between processes", text)
    if seen.between > NOISY:
        advice = Advice("see Load and Processor; or interleave the samples", "protocol.interleave=samples")
        if device.partition(":")[0] in nvml.CUDA_DEVICES:
            advice = Advice("fix the GPU's clock, at one that it can keep", "sudo nvidia-smi --lock-gpu-clocks=MHZ")
        between = dataclasses.replace(between, advice=advice, distorts=True)
    yield between
    for name, protocol in protocols.items():
        rounds, threshold = protocol.rounds, protocol.threshold
        if rounds < 2:
            yield known(section, f"protocol={name}", "1 round settles nothing: it does not compare processes")
            continue
        half = settled(rounds, seen.between)
        text = f"{rounds} rounds settle {half:.1%}"
        if threshold is not None:
            text += f"; called better or worse from {threshold + half:.1%}, with its threshold of {threshold:.0%}"
        yield known(section, f"protocol={name}", text)


def settled(rounds: int, between: float) -> float:
    """Return half the relative width of the interval of a ratio of two combinations after ``rounds``.

    Both have the spread ``between`` processes; what their pairing by round saves comes off it.
    """
    t = float(special.stdtrit(rounds - 1, (1 + CONFIDENCE) / 2))
    return math.expm1(t * between * math.sqrt(2 / rounds))


def protocols() -> dict[str, Protocol]:
    """Return the protocols of the package, the shortest first."""
    found: dict[str, Protocol] = {}
    for file in (conf_folder() / "protocol").glob("*.yaml"):
        settings = yaml.safe_load(file.read_text(encoding="utf-8"))
        if "rounds" in settings:
            found[file.stem] = Protocol(**settings)
    return dict(sorted(found.items(), key=lambda item: (item[1].rounds, item[0])))


def kernel_times(question: Mapping[str, Any]) -> dict[str, float]:
    """Time a product of matrices of some ``size`` on a ``device`` in this process for ``seconds``; return median and spread."""
    size = question["size"]
    if question["device"] == "cpu":
        matrix = np.random.default_rng(0).standard_normal((size, size))
        kernel: Callable[[], object] = partial(np.matmul, matrix, matrix)
    else:
        from sweeprof.profiling.conformance import matrix_product  # with the profiler, which the command starts without

        kernel = matrix_product(question["device"], size)
    for _ in range(20):
        kernel()
    samples = []
    end = time.perf_counter() + question["seconds"]
    while time.perf_counter() < end:
        begin = time.perf_counter()
        kernel()
        samples.append(time.perf_counter() - begin)
    return {"median": statistics.median(samples), "spread": spread(samples)}


# ----------------------------------------------------------------------------------------------------------------------
# The checks of an accelerator in :mod:`sweeprof.profiling.conformance`, in a process of their own

KINDS = ("cpu", "cuda", "hpu", "mps", "mtia", "xpu")
"""Kinds of devices of PyTorch; a package may bring others."""
LIMIT_S = 600.0


def device(name: str) -> Iterator[Finding]:
    """Yield what each check found on an accelerator, and where to send it.

    Raises:
        UserError: PyTorch has no such kind of device on any host.
    """
    section = f"Device {name}"
    try:
        answer = call("sweeprof.profiling.conformance:answered", {"device": name}, child_environment({}), LIMIT_S)
    except WorkerError as error:
        answer = {"trouble": str(error)}
    if "trouble" in answer:
        yield Finding(section, "torch", None, f"cannot be used: {answer['trouble']}", distorts=True)
        return
    answers: dict[str, tuple[str, str]] = answer["answers"]
    if not answers:
        problem = choice_problem("device", name, "kind of device", KINDS)
        raise UserError([dataclasses.replace(problem, nearest=nearest(name.partition(":")[0], KINDS))])
    for title, (outcome, text) in answers.items():
        if outcome == "not possible":
            yield known(section, title, None, text)
        else:
            yield Finding(section, title, f"{outcome}: {text}", distorts=outcome == "failed")
    counts = Counter(outcome for outcome, _ in answers.values())
    text = ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
    report = f"sweeprof doctor device={name} --json > report.json"
    advice = Advice("send this report, so that the page on hardware can list the device", report)
    yield Finding(section, "result", text, advice=advice)


# ----------------------------------------------------------------------------------------------------------------------
# What is installed: backends, each tested in a process of its own, versions, and the disk of the results

PROBE_S = 120.0
SLOW_DISK_S = 0.05
SYNCS = 8
PACKAGES = ("sweeprof", "hydra-core", "omegaconf", "numpy", "mlflow")
LAUNCHERS = ("hydra-joblib-launcher", "hydra-submitit-launcher", "hydra-ray-launcher")
"""Packages that are listed only if they are installed."""


class BackendProbe(TypedDict, total=False):
    """The result of the test of a backend."""

    devices: list[str]
    seconds: float
    """To import the framework."""
    trouble: str
    """Why the backend cannot be used."""


def backends(quick: bool) -> Iterator[Finding]:
    """Yield every backend of the package but that for tests: its version and its devices, or what is missing.

    ``quick``: nothing is imported.
    """
    files = sorted((conf_folder() / "backend").glob("*.yaml"))
    configs = {file.stem: yaml.safe_load(file.read_text(encoding="utf-8")) for file in files}
    configs = {name: config for name, config in configs.items() if config.get("framework") in FRAMEWORK_EXTRAS}
    absent = {name: missing(name, config) for name, config in configs.items()}
    able: dict[str, Any] = {}  # by class: several configs have the same one
    for name, config in configs.items():
        if absent[name] is None and not quick:
            able[config["_target_"]] = config
    with ThreadPoolExecutor(max(1, len(able))) as pool:
        answers = dict(zip(able, pool.map(probed, able.values()), strict=True))
    for name, config in configs.items():
        yield absent[name] or _row(name, config, answers.get(config["_target_"]))


def missing(name: str, config: Mapping[str, object]) -> Finding | None:
    """Return what a backend lacks, as far as it is known without importing it."""
    extra = _extra(config)
    lacking = missing_package(extra.packages)
    if lacking is not None:
        advice = Advice(f"install {lacking}", f"pip install 'sweeprof[{extra.name}]'")
        return Finding("Backends", name, None, f"{lacking} is not installed", advice)
    if config.get("compile") and shutil.which("g++") is None and shutil.which("clang++") is None:
        advice = Advice("it writes C++ and compiles it", "sudo apt-get install g++")
        reason = f"{_framework(config)} is installed, a C++ compiler is not"
        return Finding("Backends", name, None, reason, advice)
    return None


def probed(config: Mapping[str, object]) -> BackendProbe:
    """Test a backend in a process of its own; returns ``devices`` and ``seconds`` to import, or ``trouble``."""
    variables = child_environment(environment_of({"backend": config}))
    try:
        return cast("BackendProbe", call("sweeprof.doctor:offered", config, variables, PROBE_S))
    except NoAnswer:
        return {"trouble": f"did not answer within {PROBE_S:g} s"}
    except WorkerError as error:
        return {"trouble": f"cannot be used: {error}"}


def _extra(config: Mapping[str, object]) -> Extra:
    """Return the packages that a backend's framework needs."""
    framework = str(config["framework"])
    return FRAMEWORK_EXTRAS.get(framework, Extra((framework,), framework))


def _framework(config: Mapping[str, object]) -> str:
    """Return the packages of a backend's framework, each with its version."""
    packages = _extra(config).packages
    return ", ".join(f"{package} {_version(package) or 'of an unknown version'}" for package in packages)


def _row(name: str, config: Mapping[str, object], answer: BackendProbe | None) -> Finding:
    version = _framework(config)
    if answer is None:
        return known("Backends", name, f"{version} (not imported: --quick)")
    if "trouble" in answer:
        advice = Advice("reinstall it", f"pip install --force-reinstall 'sweeprof[{_extra(config).name}]'")
        return Finding("Backends", name, None, f"{version} {answer['trouble']}", advice)
    text = f"{version}; devices {', '.join(answer['devices'])}; {answer['seconds']:.1f} s to import"
    return known("Backends", name, text)


def versions() -> Iterator[Finding]:
    """Yield the versions of sweeprof's dependencies."""
    yield known("Versions", "python", sys.version.split()[0])
    for package in PACKAGES:
        found = known("Versions", package, _version(package), "not installed")
        if package == "mlflow" and found.value is None:
            advice = Advice("install MLflow", "pip install 'sweeprof[mlflow]'")
            found = dataclasses.replace(found, advice=advice)
        yield found
    for package in LAUNCHERS:
        if version := _version(package):
            yield known("Versions", package, version)


def _version(package: str) -> str | None:
    for name in (package, f"{package}-cpu"):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def disk(folder: Path) -> Iterator[Finding]:
    """Yield how long it takes to write a record to disk."""
    place = next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.is_dir())
    name = f"writing a record in {place}"
    times = []
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            for _ in range(SYNCS):
                begin = time.perf_counter()
                file.write(bytes(4096))
                file.flush()
                os.fsync(file.fileno())
                times.append(time.perf_counter() - begin)
    except OSError as error:
        advice = Advice("choose another folder", "output=PATH")
        yield Finding("Storage", name, None, f"cannot be written: {error.strerror}", advice)
        return
    seconds = statistics.median(times)
    slow = Advice("write to a disk of this host", "output=PATH") if seconds > SLOW_DISK_S else None
    yield Finding("Storage", name, f"{seconds * 1e3:.2f} ms", advice=slow)


def offered(config: Mapping[str, object]) -> BackendProbe:
    """Make the backend in this process; return its devices and how long its imports took."""
    began = time.monotonic()
    devices = instantiate(config).devices()
    return {"devices": devices, "seconds": time.monotonic() - began}
