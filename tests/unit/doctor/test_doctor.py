"""What the doctor says: of machines that are given as trees of files, of noise, backends, disks and accelerators."""

from __future__ import annotations

import math
import sys
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest

from support import simulated_nvml
from support.simulated_nvml import H100
from sweeprof import doctor
from sweeprof.cli.run import run_command
from sweeprof.doctor import Finding, Noise, device
from sweeprof.profiling import conformance
from sweeprof.results.record import Protocol
from sweeprof.results.statistics import ratio_interval

# Machines


CPU, NODE = "sys/devices/system/cpu", "sys/devices/system/node"
LAPTOP = {
    f"{CPU}/cpu0/cpufreq/scaling_governor": "powersave",
    f"{CPU}/intel_pstate/no_turbo": "0",
    f"{CPU}/smt/active": "1",
    f"{NODE}/node0/cpulist": "0",
    f"{NODE}/node1/cpulist": "1",
}
SERVER = {
    f"{CPU}/cpu0/cpufreq/scaling_governor": "performance",
    f"{CPU}/cpufreq/boost": "0",
    f"{CPU}/smt/active": "0",
    "proc/driver/nvidia/gpus/0000:17:00.0/information": "Model: \t NVIDIA H100\nGPU UUID: \t GPU-aa\n",
}


def machine(root: Path, files: dict[str, str]) -> dict[str, Finding]:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return {found.name: found for found in (*doctor.processor(root), *doctor.limits(root), *doctor.gpus(root))}


def test_a_laptop_as_it_comes(tmp_path: Path) -> None:
    found = machine(tmp_path, LAPTOP)
    assert {name for name, finding in found.items() if finding.distorts} == {"frequency governor", "turbo"}
    commands = {name: finding.advice.command for name, finding in found.items() if finding.advice}
    assert commands["frequency governor"] == "sudo cpupower frequency-set --governor performance"
    assert commands["turbo"] == "echo 1 | sudo tee /sys/devices/system/cpu/intel_pstate/no_turbo"
    assert commands["two threads a core (SMT)"] == "echo off | sudo tee /sys/devices/system/cpu/smt/control"
    assert commands["memory nodes (NUMA)"].startswith("numactl --cpunodebind=0")


def test_a_tuned_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    simulated_nvml.put(monkeypatch, tmp_path / "gpus.json", GPU_aa=H100)
    found = machine(tmp_path, SERVER)
    assert not any(finding.distorts for finding in found.values())
    assert (found["turbo"].value, found["two threads a core (SMT)"].value) == ("no", "no")
    assert {name for name, finding in found.items() if finding.advice} == {"threads"}
    assert found["0"].value == "NVIDIA H100 (GPU-aa)"
    assert found["0: management library"].value == "driver 580.65.06, 700.0 W, up to 1980 MHz"


def test_a_container_with_a_quota(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/\n",
        "sys/fs/cgroup/cpu.max": "50000 100000\n",
        "sys/fs/cgroup/memory.max": f"{1 << 30}\n",
    }
    found = machine(tmp_path, files)
    assert found["CPU quota of the container"].distorts
    assert found["memory limit of the container"].value == "1.0 GiB"
    assert found["threads"].value == "at most 1"
    for name in ("model", "frequency governor", "turbo", "two threads a core (SMT)", "NVIDIA"):
        assert found[name].value is None
        assert found[name].reason


# Noise


PROTOCOLS = {"quick": Protocol(rounds=1), "default": Protocol(rounds=5, threshold=0.05)}


def test_what_rounds_settle_is_the_middle_width_of_intervals_of_noise_alone() -> None:
    draws = np.random.default_rng(0)
    halves = []
    for _ in range(400):
        own, base = (np.exp(draws.normal(0, 0.02, 5)) for _ in range(2))
        low, high = ratio_interval(list(own), list(base))
        halves.append(math.log(high / low) / 2)
    assert math.log1p(doctor.settled(5, 0.02)) == pytest.approx(float(np.sqrt(np.mean(np.square(halves)))), rel=0.05)


def test_a_quiet_and_a_loud_machine() -> None:
    quiet = {f.name: f for f in doctor.meaning(Noise([1.0, 1.01, 1.0, 0.99], [0.01, 0.02, 0.03, 0.02]), PROTOCOLS)}
    assert quiet["within a process"].value == "2.0% (interquartile range over median)"
    assert quiet["between processes"].value == "0.8% (standard deviation of 4 processes' medians)"
    assert not quiet["between processes"].distorts
    assert quiet["protocol=quick"].value == "1 round settles nothing: it does not compare processes"
    assert quiet["protocol=default"].value == (
        "5 rounds settle 1.4%; called better or worse from 6.4%, with its threshold of 5%"
    )
    loud = {f.name: f for f in doctor.meaning(Noise([1.0, 1.2, 1.1, 0.9], [0.1] * 4), PROTOCOLS, "cuda")}
    assert loud["between processes"].distorts
    assert {finding.section for finding in loud.values()} == {"Noise of cuda"}
    (advice,) = [finding.advice for finding in loud.values() if finding.advice]
    assert advice.command == "sudo nvidia-smi --lock-gpu-clocks=MHZ"


def test_processes_that_fail_are_a_row_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    (found,) = doctor.noise(2, 0.01, PROTOCOLS)
    assert found.value is None
    assert found.reason is not None
    assert found.reason.startswith("a process of the measurement failed: ")


@pytest.mark.parametrize(("source", "advised"), [("tsc", False), ("hpet", True), (None, False)])
def test_a_clock_that_asks_the_kernel(tmp_path: Path, source: str | None, advised: bool) -> None:
    files = {"sys/devices/system/clocksource/clocksource0/current_clocksource": source} if source else {}
    machine(tmp_path, files)
    found = {finding.name: finding for finding in doctor.clock(tmp_path)}
    assert (found["source"].advice is not None) == advised
    assert (found["source"].reason is None) == (source is not None)


# Backends and disks


TORCH = {"_target_": "sweeprof.backends.fake.FakeBackend", "framework": "torch"}


def test_a_backend_names_the_package_that_it_lacks_beside_its_framework(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "keras", None)
    found = doctor.missing("jax", {**TORCH, "framework": "jax"})
    assert found is not None
    assert found.reason == "keras is not installed"
    assert found.advice == doctor.Advice("install keras", "pip install 'sweeprof[jax]'")
    assert doctor.missing("onnx", {**TORCH, "framework": "onnx"}) is None


def test_backends_have_the_versions_of_their_packages() -> None:
    found = {finding.name: str(finding.value) for finding in doctor.backends(quick=True)}
    onnx = [f"{package} {metadata.version(package)}" for package in ("onnxruntime", "onnx")]
    assert found["onnxruntime"] == f"{', '.join(onnx)} (not imported: --quick)"
    assert "fake" not in found


def test_a_compiled_backend_needs_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.missing("torch", TORCH) is None
    monkeypatch.setenv("PATH", "")
    found = doctor.missing("torch_compile", {**TORCH, "compile": True})
    assert found is not None
    assert str(found.reason).endswith("is installed, a C++ compiler is not")


@pytest.mark.slow
def test_a_backend_that_cannot_be_used_says_why() -> None:
    broken = {**TORCH, "_target_": "sweeprof.backends.absent.Backend"}
    found = doctor._row("torch", broken, doctor.probed(broken))
    assert found.value is None
    assert found.reason is not None
    assert "cannot be used: " in found.reason
    assert "absent" in found.reason


@pytest.mark.slow
def test_a_backend_that_works_and_one_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.probed(TORCH)["devices"] == ["cpu"]
    monkeypatch.setattr(doctor, "PROBE_S", 0.01)
    assert doctor.probed(TORCH) == {"trouble": "did not answer within 0.01 s"}


def test_a_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = doctor.disk(tmp_path / "not" / "there" / "yet")
    assert found.name == f"writing a record in {tmp_path}"
    assert str(found.value).endswith(" ms")
    monkeypatch.setattr(doctor, "SLOW_DISK_S", 0.0)
    (slow,) = doctor.disk(tmp_path)
    assert slow.advice is not None
    (refused,) = doctor.disk(Path("/proc"))
    assert str(refused.reason).startswith("cannot be written: ")


# Accelerators


@pytest.mark.slow
def test_a_device_that_is_not_there() -> None:
    (finding,) = device("xpu")
    assert (finding.section, finding.value) == ("Device xpu", None)
    assert finding.reason == "cannot be used: torch has no device 'xpu' here. Known: cpu"
    assert finding.distorts


@pytest.mark.parametrize("argument", ["cuda", "device=", "devise=cuda"])
def test_mistakes(argument: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["doctor", argument]) == 1
    message = capsys.readouterr().err
    assert f"doctor: '{argument}' is not an argument: device=NAME" in message
    assert ("Did you mean 'device=cuda'?" in message) == (argument == "devise=cuda")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "hint"), [("xup:1", " Did you mean 'xpu'?"), ("?", "")])
def test_what_is_a_device_on_no_host(name: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["doctor", "--quick", f"device={name}"]) == 1
    assert f"error: device: '{name}' is not a kind of device.{hint} Known: cpu, cuda, " in capsys.readouterr().err


def test_a_wrong_device_fails_the_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conformance, "OUTPUTS_APART", -1.0)
    checks = {name: conformance.CHECKS[name] for name in ("outputs", "gradients")}
    monkeypatch.setattr(conformance, "CHECKS", {**checks, "raises": lambda device: 1 / 0})
    found = conformance.answers("cpu")
    assert found["outputs"][0] == found["gradients"][0] == "failed"
    assert found["raises"] == ("failed", "ZeroDivisionError: division by zero")
