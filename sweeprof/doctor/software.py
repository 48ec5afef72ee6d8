"""Checks of what is installed: backends, each tested in a process of its own, versions, and the disk of the results."""

from __future__ import annotations

import dataclasses
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import TypedDict, cast

import yaml

from sweeprof.backends import missing_package
from sweeprof.config.validation import FRAMEWORK_EXTRAS, Extra
from sweeprof.doctor.host import Advice, Finding, known
from sweeprof.errors import WorkerError
from sweeprof.paths import conf_folder
from sweeprof.plan.plan import environment
from sweeprof.processes import NoAnswer, call, child_environment
from sweeprof.targets import instantiate

PROBE_S = 120.0
SLOW_DISK_S = 0.05
SYNCS = 8
PACKAGES = (
    "sweeprof",
    "hydra-core",
    "omegaconf",
    "mlflow",
    "numpy",
    "hydra-joblib-launcher",
    "hydra-submitit-launcher",
    "hydra-ray-launcher",
)
EXTRAS = {
    "mlflow": "mlflow",
    "hydra-joblib-launcher": "joblib",
    "hydra-submitit-launcher": "submitit",
    "hydra-ray-launcher": "ray",
}


class BackendProbe(TypedDict, total=False):
    """The result of the test of a backend."""

    devices: list[str]
    seconds: float
    """To import the framework."""
    trouble: str
    """Why the backend cannot be used."""


def backends(quick: bool) -> Iterator[Finding]:
    """Yield every backend of the package: its version and its devices, or what is missing.

    ``quick``: nothing is imported.
    """
    files = sorted((conf_folder() / "backend").glob("*.yaml"))
    configs = {file.stem: yaml.safe_load(file.read_text(encoding="utf-8")) for file in files}
    configs = {name: config for name, config in configs.items() if "_target_" in config}
    absent = {name: missing(name, config) for name, config in configs.items()}
    able = [config for name, config in configs.items() if absent[name] is None and not quick]
    with ThreadPoolExecutor(max(1, len(able))) as pool:
        answers = dict(zip([config["_target_"] for config in able], pool.map(probed, able), strict=True))
    for name, config in configs.items():
        yield absent[name] or _row(name, config, answers.get(config["_target_"]))


def missing(name: str, config: Mapping[str, object]) -> Finding | None:
    """Return what a backend lacks, as far as it is known without importing it."""
    extra = _extra(config)
    lacking = missing_package(extra.packages)
    if lacking is not None:
        advice = Advice(f"install {extra.name}", f"pip install 'sweeprof[{extra.name}]'")
        return Finding("Backends", name, None, f"{lacking} is not installed", advice)
    if config.get("compile") and shutil.which("g++") is None and shutil.which("clang++") is None:
        advice = Advice("it writes C++ and compiles it", "sudo apt-get install g++")
        reason = f"{_framework(config)} is installed, a C++ compiler is not"
        return Finding("Backends", name, None, reason, advice)
    return None


def probed(config: Mapping[str, object]) -> BackendProbe:
    """Test a backend in a process of its own; returns ``devices`` and ``seconds`` to import, or ``trouble``."""
    variables = child_environment(environment({"backend": config}))
    try:
        return cast("BackendProbe", call("sweeprof.doctor.software:offered", config, variables, PROBE_S))
    except NoAnswer:
        return {"trouble": f"did not answer within {PROBE_S:g} s"}
    except WorkerError as error:
        return {"trouble": f"cannot be used: {error}"}


def _extra(config: Mapping[str, object]) -> Extra:
    """Return the package that a backend's framework needs."""
    framework = str(config["framework"])
    if framework == "fake":
        return Extra(("sweeprof",), "all")
    return FRAMEWORK_EXTRAS.get(framework, Extra((framework,), framework))


def _framework(config: Mapping[str, object]) -> str:
    """Return the name and the version of a backend's framework."""
    return f"{config['framework']} {_version(_extra(config).packages[0]) or 'of an unknown version'}"


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
        if found.value is None and package in EXTRAS:
            advice = Advice(f"install {package}", f"pip install 'sweeprof[{EXTRAS[package]}]'")
            found = dataclasses.replace(found, advice=advice)
        yield found


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
