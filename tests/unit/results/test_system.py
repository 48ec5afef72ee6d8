"""Readers of /proc and /sys on trees of files as real machines have them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from sweeprof.results import environment
from sweeprof.results.environment import Gpu

LAPTOP = {
    "proc/cpuinfo": "processor\t: 0\nmodel name\t: Intel(R) Core(TM) i7\nflags\t\t: fpu vme\n",
    "proc/self/cgroup": "0::/user.slice\n",
    "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "powersave\n",
    "sys/devices/system/cpu/cpu1/cpufreq/scaling_governor": "performance\n",
    "sys/devices/system/cpu/cpu0/thermal_throttle/core_throttle_count": "3\n",
    "sys/devices/system/cpu/cpu1/thermal_throttle/core_throttle_count": "4\n",
    "sys/devices/system/cpu/intel_pstate/no_turbo": "0\n",
    "sys/devices/system/cpu/smt/active": "1\n",
    "sys/devices/system/node/node0/cpulist": "0-1\n",
    "sys/fs/cgroup/cpu.stat": "usage_usec 5\n",
}
CONTAINER = {  # control groups, version 2, in a container whose own group is the root that it sees
    "proc/cpuinfo": "model name\t: AMD EPYC\nflags\t\t: fpu hypervisor sse\n",
    "proc/self/cgroup": "0::/\n",
    "sys/devices/system/cpu/cpufreq/boost": "0\n",
    "sys/fs/cgroup/cpu.max": "150000 100000\n",
    "sys/fs/cgroup/cpu.stat": "usage_usec 9\nnr_periods 40\nnr_throttled 7\nthrottled_usec 12\n",
    "sys/fs/cgroup/memory.max": "2147483648\n",
}
NESTED = {  # the limit of a service above is the one that counts
    "proc/self/cgroup": "0::/a.slice/b.scope\n",
    "sys/fs/cgroup/a.slice/cpu.max": "50000 100000\n",
    "sys/fs/cgroup/a.slice/memory.max": "1048576\n",
    "sys/fs/cgroup/a.slice/b.scope/cpu.max": "max 100000\n",
    "sys/fs/cgroup/a.slice/b.scope/memory.max": "max\n",
}
VERSION_1 = {
    "proc/self/cgroup": "4:memory:/docker/x\n3:cpu,cpuacct:/docker/x\n0::/\n",
    "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
    "sys/fs/cgroup/cpu,cpuacct/docker/x/cpu.cfs_quota_us": "300000\n",
    "sys/fs/cgroup/cpu,cpuacct/docker/x/cpu.cfs_period_us": "100000\n",
    "sys/fs/cgroup/cpu,cpuacct/docker/x/cpu.stat": "nr_periods 0\nnr_throttled 0\n",
    "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
    "sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes": "4194304\n",
}
GPUS = {
    "proc/driver/nvidia/gpus/0000:65:00.0/information": "Model: \t\t NVIDIA A100\nIRQ:   \t\t 99\nGPU UUID: \t GPU-bb\n",
    "proc/driver/nvidia/gpus/0000:17:00.0/information": "Model: \t\t NVIDIA H100\nGPU UUID: \t GPU-aa\n",
}

Tree = Callable[[dict[str, str]], Path]


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    def made(files: dict[str, str]) -> Path:
        for name, content in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        return tmp_path

    return made


def test_a_laptop(tree: Tree) -> None:
    root = tree(LAPTOP)
    assert environment.cpu_model(root) == "Intel(R) Core(TM) i7"
    assert environment.governor(root) == "performance,powersave"
    assert environment.turbo(root) is True
    assert environment.smt(root) is True
    assert environment.numa_nodes(root) == 1
    assert not environment.is_virtual(root)
    assert environment.overheated(root) == 7
    assert (environment.cpu_quota(root), environment.memory_limit(root), environment.throttled_periods(root)) == (
        None,
        None,
        None,
    )


def test_a_container(tree: Tree) -> None:
    root = tree(CONTAINER)
    assert (environment.cpu_quota(root), environment.memory_limit(root), environment.throttled_periods(root)) == (
        1.5,
        1 << 31,
        7,
    )
    assert environment.turbo(root) is False
    assert environment.is_virtual(root)


@pytest.mark.parametrize(("files", "usable"), [(LAPTOP, 8), (CONTAINER, 2), (NESTED, 1), (VERSION_1, 3)])
def test_usable_processors(files: dict[str, str], usable: int, tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert environment.usable_processors(tree(files)) == usable


def test_the_tightest_limit_of_all_groups_above(tree: Tree) -> None:
    root = tree(NESTED)
    assert (environment.cpu_quota(root), environment.memory_limit(root)) == (0.5, 1 << 20)


def test_the_first_version_of_control_groups(tree: Tree) -> None:
    root = tree(VERSION_1)
    assert (environment.cpu_quota(root), environment.memory_limit(root), environment.throttled_periods(root)) == (
        3.0,
        1 << 22,
        0,
    )


def test_gpus_are_in_the_order_of_the_bus(tree: Tree) -> None:
    assert environment.gpus(tree(GPUS)) == [Gpu("GPU-aa", "NVIDIA H100"), Gpu("GPU-bb", "NVIDIA A100")]


def test_what_is_not_told_is_none(tmp_path: Path) -> None:
    readers = (
        environment.cpu_model, environment.governor, environment.turbo, environment.smt, environment.numa_nodes,
        environment.cpu_quota, environment.memory_limit, environment.throttled_periods, environment.overheated,
    )  # fmt: skip
    assert [reader(tmp_path) for reader in readers] == [None] * len(readers)
    assert environment.gpus(tmp_path) == []
