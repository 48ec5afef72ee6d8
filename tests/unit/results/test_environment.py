"""The environment: real machines as trees of files, this one as other programs see it, and what else ran."""

from __future__ import annotations

import json
import os
import platform
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil
import pytest

from sweeprof.results import environment
from sweeprof.results.environment import Gpu, Look, Process, between, capture, governor_warnings, look, warnings_of

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


@pytest.mark.parametrize(
    ("files", "limits"),
    [
        (LAPTOP, (None, None, None, 8)),
        (CONTAINER, (1.5, 1 << 31, 7, 2)),
        (NESTED, (0.5, 1 << 20, None, 1)),  # the tightest of all groups above
        (VERSION_1, (3.0, 1 << 22, 0, 3)),
    ],
    ids=["laptop", "container", "nested", "version 1"],
)
def test_limits(files: dict[str, str], limits: object, tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tree(files)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    quota, memory = environment.cpu_quota(root), environment.memory_limit(root)
    assert (quota, memory, environment.throttled_periods(root), environment.usable_processors(root)) == limits


def test_processors(tree: Tree) -> None:
    root = tree(LAPTOP)
    assert environment.cpu_model(root) == "Intel(R) Core(TM) i7"
    assert environment.governor(root) == "performance,powersave"
    assert (environment.turbo(root), environment.smt(root), environment.is_virtual(root)) == (True, True, False)
    assert (environment.numa_nodes(root), environment.overheated(root)) == (1, 7)
    assert environment.is_virtual(tree(CONTAINER))


def test_gpus_are_in_the_order_of_the_bus(tree: Tree) -> None:
    assert environment.gpus(tree(GPUS)) == [Gpu("GPU-aa", "NVIDIA H100"), Gpu("GPU-bb", "NVIDIA A100")]


def test_what_is_not_told_is_none(tmp_path: Path) -> None:
    readers = (
        environment.cpu_model, environment.governor, environment.turbo, environment.smt, environment.numa_nodes,
        environment.cpu_quota, environment.memory_limit, environment.throttled_periods, environment.overheated,
    )  # fmt: skip
    assert [reader(tmp_path) for reader in readers] == [None] * len(readers)
    assert environment.gpus(tmp_path) == []


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), "-c", "user.name=T", "-c", "user.email=t@example.org", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    git(tmp_path, "init", "-q")
    (tmp_path / "model.py").write_text("x = 1\n")
    git(tmp_path, "add", "model.py")
    git(tmp_path, "commit", "-q", "-m", "first", "--no-gpg-sign")
    return tmp_path


def test_this_host_is_described_as_other_programs_see_it() -> None:
    found = capture()
    assert json.loads(json.dumps(found)) == found
    assert found["host"] == socket.gethostname()
    assert found["os"] == f"{platform.system()} {platform.release()}"
    assert found["python"] == platform.python_version()
    assert found["user"] == psutil.Process().username()
    for name in ("numpy", "hydra-core", "torch", "tensorflow", "keras"):
        assert found["versions"][name] == metadata.version(name)


def test_processors_and_memory() -> None:
    found = capture()
    cpu = found["cpu"]
    assert cpu["logical"] == psutil.cpu_count()
    assert cpu["physical"] == psutil.cpu_count(logical=False)
    assert cpu["available"] == len(psutil.Process().cpu_affinity() or ())
    assert cpu["architecture"] == platform.machine()
    assert cpu["model"] in Path("/proc/cpuinfo").read_text() or cpu["model"] == platform.processor()
    assert found["memory_bytes"] == psutil.virtual_memory().total


def test_the_revision_of_a_repository(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clean, with a tag, from a folder within it, and with a changed file."""
    revision = git(repository, "rev-parse", "HEAD")
    assert capture()["git"] == {"revision": revision, "dirty": False}
    git(repository, "tag", "-a", "v1", "-m", "v1")
    (repository / "inner").mkdir()
    monkeypatch.chdir(repository / "inner")
    assert capture()["git"] == {"revision": revision, "dirty": False}
    (repository / "model.py").write_text("x = 2\n")
    assert capture()["git"] == {"revision": revision, "dirty": True}


def test_no_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.chdir(tmp_path)
    assert capture()["git"] is None


def test_no_git(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert capture()["git"] is None


def test_the_age_of_a_process() -> None:
    began = time.monotonic()
    program = "import time; from sweeprof.results.environment import process_age; time.sleep(0.2); print(process_age())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert 0.2 <= float(done.stdout) <= time.monotonic() - began + 0.02  # a tick is a hundredth of a second


SPIN = "import time; end = time.process_time() + 0.4\nwhile time.process_time() < end: pass"
SPIN_AND_STAY = f"{SPIN}\nprint('done', flush=True); input()"
PLAIN = Look(0.0, 0.0, 0.0, {1: Process(0, 0.0, 0.0)}, 0.5, 3, None)


def test_a_busy_process_is_seen_and_the_familys_own_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "NAMED", 100)  # others, such as other tests, may be busier
    before = look()
    command = [sys.executable, "-c", SPIN_AND_STAY]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(max(0.0, 0.3 - (time.monotonic() - before.time)))
        after = look()
        stranger = between(before, after, family=-1)
        relative = between(before, after, family=os.getpid())
        process.communicate("\n")
    assert process.pid in [one["pid"] for one in stranger["top"]]
    assert process.pid not in [one["pid"] for one in relative["top"]]
    assert (stranger["busy"] - relative["busy"]) * stranger["seconds"] >= 0.35
    assert len(stranger["load"]) == 2


def test_what_a_member_that_has_ended_took_counts_as_the_familys() -> None:
    before = look()
    subprocess.run([sys.executable, "-c", SPIN], check=True)
    after = look()
    seen = [between(before, after, family)["busy"] for family in (-1, os.getpid())]
    assert (seen[0] - seen[1]) * (after.time - before.time) >= 0.35


def test_a_family_is_all_that_descends() -> None:
    processes = {1: (0, 1.0), 10: (1, 2.0), 11: (10, 3.0), 12: (11, 4.0), 20: (1, 8.0)}
    after = {pid: Process(parent, seconds, seconds) for pid, (parent, seconds) in processes.items()}
    seen = between(PLAIN, Look(10.0, 20.0, 0.0, after, 0.5, 3, None), family=10, root=Path("/nowhere"))
    assert seen["busy"] == pytest.approx((20 - 9) / 10)
    assert [(one["pid"], one["name"], one["busy"]) for one in seen["top"]] == [(20, "ended", 0.8), (1, "ended", 0.1)]


def test_where_there_are_too_many_processes_the_own_time_is_subtracted() -> None:
    before = replace(PLAIN, processes=None)
    after = replace(before, time=2.0, busy_s=3.0, own_s=1.0)
    seen = between(before, after, family=1)
    assert (seen["busy"], seen["top"]) == (1.0, [])


def test_of_a_moment_nothing_can_be_said() -> None:
    seen = between(PLAIN, replace(PLAIN, time=0.01, busy_s=0.01), family=1)
    assert (seen["busy"], seen["top"]) == (None, [])
    assert warnings_of(seen) == []


def test_warnings() -> None:
    processors = psutil.cpu_count() or 1
    quiet: dict[str, Any] = {"busy": 0.25 * processors, "top": [], "throttled": 0, "overheated": None}
    assert warnings_of(quiet) == []
    top = [{"pid": 7, "name": "make", "busy": 1.5}]
    loud = warnings_of({"busy": 0.25 * processors + 0.1, "top": top, "throttled": 4, "overheated": 2})
    assert [warning.code for warning in loud] == ["load_high", "throttled", "throttled"]
    assert loud[0].text.endswith("CPUs during the trial: make 1.5")
    assert "in 4 periods" in loud[1].text


def test_a_governor_that_saves_power_deserves_a_warning(tmp_path: Path) -> None:
    assert governor_warnings(tmp_path) == []
    file = tmp_path / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"
    file.parent.mkdir(parents=True)
    for value, codes in (("performance", []), ("ondemand", ["governor"])):
        file.write_text(value)
        assert [warning.code for warning in governor_warnings(tmp_path)] == codes
