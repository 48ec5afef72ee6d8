"""What else ran: a real process that is busy, and counters that have grown."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from sweeprof.results import environment
from sweeprof.results.environment import (
    Look,
    Process,
    between,
    bytes_on_gpu,
    governor_warnings,
    gpu_processes,
    gpu_warnings,
    look,
    warnings_of,
)

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


def test_others_on_a_gpu() -> None:
    class NVMLError(Exception):
        """As the library has it."""

    running = [SimpleNamespace(pid=os.getpid(), usedGpuMemory=1), SimpleNamespace(pid=1, usedGpuMemory=5)]
    library = SimpleNamespace(
        NVMLError=NVMLError,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetHandleByUUID=lambda uuid: uuid,
        nvmlDeviceGetComputeRunningProcesses=lambda handle: running if handle == "GPU-aa" else [],
    )
    seen = gpu_processes("GPU-aa", library)
    assert seen == {"processes": [{"pid": 1, "bytes": 5}]}
    assert bytes_on_gpu("GPU-aa", library) == {os.getpid(): 1, 1: 5}
    assert [warning.code for warning in gpu_warnings(seen)] == ["gpu_shared"]
    assert gpu_warnings(gpu_processes("GPU-bb", library)) == []

    def no_driver() -> None:
        raise NVMLError("driver not loaded")

    library.nvmlInit = no_driver
    unknown = gpu_processes("GPU-aa", library)
    assert unknown == {"processes": None, "reason": "NVML: driver not loaded"}
    assert gpu_warnings(unknown) == []


def test_two_looks_take_less_than_a_trial_may_be_kept_waiting() -> None:
    """Measured against the smallest thing that a trial does anyway: a process is started."""
    looks, starts = [], []
    for _ in range(5):
        begin = time.process_time()
        look(), look()
        looks.append(time.process_time() - begin)
        begin = time.monotonic()
        subprocess.run([sys.executable, "-S", "-c", ""], check=True)
        starts.append(time.monotonic() - begin)
    assert min(looks) < min(starts)
