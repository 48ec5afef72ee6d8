"""What the doctor says of machines that are given as trees of files."""

from __future__ import annotations

from pathlib import Path

import pytest

from sweeprof import doctor
from sweeprof.doctor import Finding


def machine(root: Path, files: dict[str, str]) -> dict[str, Finding]:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return {found.name: found for found in (*doctor.processor(root), *doctor.limits(root), *doctor.gpus(root))}


def test_a_laptop_as_it_comes(tmp_path: Path) -> None:
    found = machine(
        tmp_path,
        {
            "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "powersave",
            "sys/devices/system/cpu/intel_pstate/no_turbo": "0",
            "sys/devices/system/cpu/smt/active": "1",
            "sys/devices/system/node/node0/cpulist": "0",
            "sys/devices/system/node/node1/cpulist": "1",
        },
    )
    distorting = {name for name, finding in found.items() if finding.distorts}
    assert distorting == {"frequency governor", "turbo"}
    commands = {name: finding.advice.command for name, finding in found.items() if finding.advice}
    assert commands["frequency governor"] == "sudo cpupower frequency-set --governor performance"
    assert commands["turbo"] == "echo 1 | sudo tee /sys/devices/system/cpu/intel_pstate/no_turbo"
    assert commands["two threads a core (SMT)"] == "echo off | sudo tee /sys/devices/system/cpu/smt/control"
    assert commands["memory nodes (NUMA)"].startswith("numactl --cpunodebind=0")


def test_a_tuned_server(tmp_path: Path) -> None:
    found = machine(
        tmp_path,
        {
            "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "performance",
            "sys/devices/system/cpu/cpufreq/boost": "0",
            "sys/devices/system/cpu/smt/active": "0",
            "proc/driver/nvidia/gpus/0000:17:00.0/information": "Model: \t NVIDIA H100\nGPU UUID: \t GPU-aa\n",
        },
    )
    assert not any(finding.distorts for finding in found.values())
    assert (found["turbo"].value, found["two threads a core (SMT)"].value) == ("no", "no")
    assert {name for name, finding in found.items() if finding.advice} == {"threads"}
    assert found["0"].value == "NVIDIA H100 (GPU-aa)"


@pytest.mark.parametrize(("quota", "threads"), [("50000", 1), ("100000", 1)])
def test_a_container_with_a_quota(tmp_path: Path, quota: str, threads: int) -> None:
    files = {
        "proc/self/cgroup": "0::/\n",
        "sys/fs/cgroup/cpu.max": f"{quota} 100000\n",
        "sys/fs/cgroup/memory.max": f"{1 << 30}\n",
    }
    found = machine(tmp_path, files)
    assert found["CPU quota of the container"].distorts
    assert found["memory limit of the container"].value == "1.0 GiB"
    assert found["threads"].value == f"at most {threads}"


def test_what_is_not_told_has_a_reason(tmp_path: Path) -> None:
    found = machine(tmp_path, {})
    for name in ("model", "frequency governor", "turbo", "two threads a core (SMT)", "NVIDIA"):
        assert found[name].value is None
        assert found[name].reason
