"""The process's memory against psutil, after really taking some."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import psutil
import pytest

from sweeprof.errors import Unsupported
from sweeprof.measuring import process_memory
from sweeprof.measuring.process_memory import ProcessMemory
from sweeprof.passes.memory import Memory

MB = 1 << 20
SIZE = 64 * MB
SLACK = 4 * MB
"""The kernel keeps its counters per processor and adds them up late."""

PROGRAM = f"""
import json, psutil
from sweeprof.measuring.process_memory import ProcessMemory
meter = ProcessMemory()
seen = [(meter.rss(), psutil.Process().memory_info().rss)]
meter.reset_peak()
at_reset = meter.rss_peak()
block = bytearray({SIZE})
block[::4096] = b"x" * len(block[::4096])
seen.append((meter.rss(), psutil.Process().memory_info().rss))
del block
seen.append((meter.rss(), psutil.Process().memory_info().rss))
peak = meter.rss_peak()
meter.reset_peak()
print(json.dumps([seen, at_reset, peak, meter.rss_peak()]))
"""


@pytest.fixture(scope="module")
def observed() -> list[object]:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    found: list[object] = json.loads(done.stdout)
    return found


def test_resident_bytes_are_those_psutil_sees(observed: list[list[tuple[int, int]]]) -> None:
    for own, psutils in observed[0]:
        assert own == pytest.approx(psutils, abs=SLACK)


def test_resident_bytes_grow_by_what_is_touched(observed: list[list[tuple[int, int]]]) -> None:
    (before, _), (during, _), (after, _) = observed[0]
    assert during - before == pytest.approx(SIZE, abs=SLACK)
    assert after == pytest.approx(before, abs=SLACK)


def test_the_peak_outlives_what_made_it(observed: list[object]) -> None:
    seen, at_reset, peak, reset_again = observed
    assert isinstance(seen, list)
    (before, _), (during, _), (after, _) = seen
    assert at_reset == pytest.approx(before, abs=SLACK)
    assert peak == pytest.approx(during, abs=SLACK)
    assert reset_again == pytest.approx(after, abs=SLACK)


def test_this_process() -> None:
    assert ProcessMemory().rss() == pytest.approx(psutil.Process().memory_info().rss, rel=0.1)
    assert ProcessMemory().rss_peak() >= 0.9 * ProcessMemory().rss()


def test_a_system_without_proc_is_unsupported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_memory, "PROC", tmp_path / "absent")
    with pytest.raises(Unsupported, match="this system has no"):
        ProcessMemory().rss()
    with pytest.raises(Unsupported, match="does not let a process reset"):
        ProcessMemory().reset_peak()


def test_a_system_without_high_water_marks_is_unsupported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "status").write_text("Name:\tpython\nVmRSS:\t    1024 kB\n")
    monkeypatch.setattr(process_memory, "PROC", tmp_path)
    assert ProcessMemory().rss() == 1024 * 1024
    with pytest.raises(Unsupported, match="has no VmHWM"):
        ProcessMemory().rss_peak()


def test_observations_are_plain_data() -> None:
    for seen in (Memory(1, 2, 3, 5), Memory(1, 2, 4, 5, 3)):
        assert Memory.from_dict(json.loads(json.dumps(asdict(seen)))) == seen


def test_a_record_of_before_stepping_was_measured_apart() -> None:
    earlier = {"rss_baseline_bytes": 1, "rss_loaded_bytes": 2, "rss_peak_bytes": 3, "steps": 5}
    assert Memory.from_dict(earlier).rss_stepping_bytes is None


STEPPING = f"""
import json
from dataclasses import asdict
from sweeprof.backends.fake import FakeBackend, FakeModel
from sweeprof.datasets.synthetic import Synthetic
from sweeprof.measuring.process_memory import ProcessMemory
from sweeprof.profiling.session import BuiltSession

class Backend(FakeBackend):
    def memory_meter(self):
        return ProcessMemory()

    def load(self, build, device, channel_axis):
        while_loading = touched({3 * SIZE})  # taken while the model is made, and given back
        del while_loading
        loaded = super().load(build, device, channel_axis)
        return Loaded(loaded, touched({SIZE}))

class Loaded:
    def __init__(self, loaded, block):
        self.loaded, self.block = loaded, block

    def __getattr__(self, name):
        return getattr(self.loaded, name)

    def stepping(self, batch):
        from contextlib import nullcontext
        return nullcontext(lambda: touched({2 * SIZE}) and None)

def touched(size):
    block = bytearray(size)
    block[::4096] = b"x" * len(block[::4096])
    return block

session = BuiltSession(backend=Backend(), build=FakeModel, dataset=Synthetic([4]), batch_size=2)
print(json.dumps(asdict(session.run("memory"))))
"""


def test_the_peak_of_stepping_is_apart_from_that_of_loading() -> None:
    done = subprocess.run([sys.executable, "-c", STEPPING], capture_output=True, text=True, check=True)
    seen = Memory.from_dict(json.loads(done.stdout))
    assert seen.rss_stepping_bytes is not None
    assert seen.rss_stepping_bytes - seen.rss_loaded_bytes == pytest.approx(2 * SIZE, abs=SLACK)
    assert seen.rss_loaded_bytes - seen.rss_baseline_bytes == pytest.approx(SIZE, abs=SLACK)
    assert seen.rss_peak_bytes >= seen.rss_stepping_bytes
    assert seen.rss_peak_bytes - seen.rss_baseline_bytes == pytest.approx(3 * SIZE, abs=2 * SLACK)
