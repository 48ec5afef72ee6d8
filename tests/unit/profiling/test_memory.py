"""The process's memory against psutil, after really taking some."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeprof.errors import Unsupported
from sweeprof.measuring import process_memory
from sweeprof.measuring.process_memory import MOMENTS, Change, ProcessMemory, course, thinned_levels
from sweeprof.passes.memory import Memory
from sweeprof.results.layer_times import OUTSIDE, ROOT
from sweeprof.results.observations import LayerMemory, Moment

MB = 1 << 20
SIZE = 64 * MB
SLACK = 4 * MB
"""The kernel keeps its counters per processor and adds them up late."""

SESSIONS = """
import functools, json, os
from sweeprof.backends.fake import FakeBackend, FakeModel
from sweeprof.datasets.arrays import Synthetic
from sweeprof.profiling.session import BuiltSession
"""
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


def test_resident_bytes_grow_by_what_is_touched_and_the_peak_outlives_it() -> None:
    seen, at_reset, peak, reset_again = printed(PROGRAM)
    for own, psutils in seen:
        assert own == pytest.approx(psutils, abs=SLACK)
    (before, _), (during, _), (after, _) = seen
    assert during - before == pytest.approx(SIZE, abs=SLACK)
    assert after == pytest.approx(before, abs=SLACK)
    assert at_reset == pytest.approx(before, abs=SLACK)
    assert peak == pytest.approx(during, abs=SLACK)
    assert reset_again == pytest.approx(after, abs=SLACK)


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


STEPPING = f"""
from contextlib import nullcontext
from dataclasses import asdict
from sweeprof.measuring.process_memory import ProcessMemory

class Backend(FakeBackend):
    def memory_meter(self):
        return ProcessMemory()

    def load(self, build, device, channel_axis):
        touched({3 * SIZE})  # taken while the model is made, and given back
        loaded = super().load(build, device, channel_axis)
        loaded.block = touched({SIZE})
        loaded.stepping = lambda batch: nullcontext(lambda: touched({2 * SIZE}) and None)
        return loaded

def touched(size):
    block = bytearray(size)
    block[::4096] = b"x" * len(block[::4096])
    return block

session = BuiltSession(backend=Backend(), build=FakeModel, dataset=Synthetic([4]), batch_size=2)
print(json.dumps(asdict(session.run("memory"))))
"""


@pytest.mark.slow
def test_the_peak_of_stepping_is_apart_from_that_of_loading() -> None:
    """What is added is the block that the model keeps and the two of a step; the three while it is loaded are gone by then."""
    seen = Memory.from_dict(printed(SESSIONS + STEPPING))
    assert seen.rss_stepping_bytes is not None
    assert seen.rss_stepping_bytes - seen.rss_loaded_bytes == pytest.approx(2 * SIZE, abs=SLACK)
    assert seen.rss_loaded_bytes - seen.rss_baseline_bytes == pytest.approx(SIZE, abs=SLACK)
    assert seen.rss_peak_bytes - seen.rss_baseline_bytes == pytest.approx(3 * SIZE, abs=2 * SLACK)
    assert seen.added_bytes == pytest.approx(3 * SIZE, abs=SLACK)
    assert seen.not_added is None


# What the model and its step add


def printed(program: str, **environment: str) -> Any:
    """Return the last line that ``program`` prints in a process of one thread, as the fork server's trials are."""
    env = os.environ | {"OPENBLAS_NUM_THREADS": "1"} | environment
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


IN_TORCH = """
THREADS = 2
import torch
from torch import nn
from sweeprof.backends.torch.adapter import TorchBackend as Backend

def build():
    return nn.Sequential(nn.Linear(64, 16384), nn.ReLU(), nn.Linear(16384, 64))

def peak_of_its_allocator():
    model, batch = build(), torch.ones(512, 64)
    with torch.no_grad():
        model(batch)
        with torch.profiler.profile(profile_memory=True) as profiled:
            model(batch)
    now = peak = 0
    for event in profiled.profiler.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            peak = max(peak, now)
    return sum(p.nbytes for p in model.parameters()) + batch.nbytes + peak
"""
IN_TENSORFLOW = """
THREADS = 1  # of several, Eigen packs parts of the matrices for each
import keras
from sweeprof.backends.tensorflow.adapter import TensorflowBackend as Backend

def build():
    layers = [keras.layers.Dense(65536, activation="relu"), keras.layers.Dense(64)]
    return keras.Sequential([keras.Input((64,)), *layers])

def peak_of_its_allocator():  # by hand: weights, the batch, and the product, whose bias and activation are made in place
    return 4 * (64 * 65536 + 65536 + 65536 * 64 + 64 + 512 * 64 + 512 * 65536)
"""
ADDED = """
session = BuiltSession(backend=Backend(threads=THREADS), build=build, dataset=Synthetic([64], samples=512), batch_size=512)
if os.fork() == 0:  # as a trial, with a single thread
    seen = session.run("memory")
    print(json.dumps([seen.added_bytes, seen.not_added, peak_of_its_allocator()]), flush=True)
    os._exit(0)
os.wait()
"""


@pytest.mark.slow(rows=1)
@pytest.mark.parametrize("framework", [IN_TORCH, IN_TENSORFLOW], ids=["torch", "tensorflow"])
def test_what_is_added_is_what_the_allocator_gave(framework: str) -> None:
    added, reason, allocated = printed(framework + SESSIONS + ADDED)
    assert reason is None
    assert added == pytest.approx(allocated, rel=0.02)


BUILDERS = """
class Model(FakeModel):
    pass

found = []
for build in (Model, functools.cache(Model)):
    seen = BuiltSession(backend=FakeBackend(), build=build, dataset=Synthetic([4]), batch_size=2).run("memory")
    found.append([seen.added_bytes, seen.not_added])
print(json.dumps(found))
"""
KEPT = "the weights stay in memory when the model is released"


def test_a_builder_that_keeps_its_model_has_a_reason_instead_of_what_is_added() -> None:
    making, keeping = printed(SESSIONS + BUILDERS)
    assert making[0] > MB
    assert making[1] is None
    assert keeping[0] is None
    assert keeping[1].startswith(KEPT)


SHARED = """
kept = functools.cache(build)
session = BuiltSession(backend=Backend(threads=THREADS), build=lambda: nn.Sequential(kept(), nn.ReLU()), dataset=Synthetic([64]))
if os.fork() == 0:
    print(json.dumps(session.run("memory").not_added), flush=True)
    os._exit(0)
os.wait()
"""


@pytest.mark.slow
def test_so_has_a_builder_that_keeps_a_part_of_its_model() -> None:
    assert str(printed(IN_TORCH + SESSIONS + SHARED)).startswith(KEPT)


MAPPED = f"""
import json, mmap, os
from pathlib import Path
from sweeprof.measuring import timing
from sweeprof.measuring.process_memory import ProcessMemory
from tempfile import TemporaryDirectory

def mapped(path, rights):
    with open(path, "r+b") as file:
        view = mmap.mmap(file.fileno(), 0, prot=rights)
    sum(view[::4096])
    return view

meter = ProcessMemory()
with TemporaryDirectory() as folder:
    paths = [Path(folder, os.fsdecode(name)) for name in (b"before", b"program", b"data\\xff\\xe4")]
    for path in paths:
        path.write_bytes(bytes({SIZE}))
    kept = [mapped(paths[0], mmap.PROT_READ)]
    seen = [meter.own()]
    kept.append(mapped(paths[1], mmap.PROT_READ | mmap.PROT_EXEC))
    seen.append(meter.own())
    kept.append(mapped(paths[2], mmap.PROT_READ))
    seen.append(meter.own())
    meter.reset_peak()
    block = bytearray({SIZE})
    block[::4096] = b"x" * len(block[::4096])
    del block
    seen.append(meter.own_peak())
    timing.remember()  # as a fork server does
print(json.dumps(seen))
"""


def test_programs_are_not_a_models_and_the_files_that_it_maps_are() -> None:
    """So that it does not matter which pages of the libraries were in the page cache. Their names may be any bytes."""
    before, with_program, with_data, peak = printed(MAPPED)
    assert with_program == pytest.approx(before, abs=SLACK)
    assert with_data == pytest.approx(before + SIZE, abs=SLACK)
    assert peak == pytest.approx(before + 2 * SIZE, abs=SLACK)


IN_CHILD = """
import atexit, json, os, signal, tempfile, threading
from sweeprof.passes.memory import in_child

folder = tempfile.TemporaryDirectory()  # removed when this process ends, and not when its children do
file = os.path.join(folder.name, "file")

def makes_a_file():
    with open(file, "w"):
        atexit.register(os.unlink, file)
    return os.path.exists(file)

assert in_child(makes_a_file) == (True, None)
assert os.listdir(folder.name) == []
found = [in_child(lambda: 7), in_child(lambda: 1 // 0), in_child(lambda: os.kill(os.getpid(), signal.SIGSEGV))]
found.append(in_child(lambda: os._exit(3)))
found.append(in_child(lambda: os.kill(os.getpid(), signal.SIGRTMIN + 1)))
waits = threading.Event()
threading.Thread(target=waits.wait).start()
found.append(in_child(lambda: 7))
waits.set()
print(json.dumps(found))
"""


RESTORED = f"""
import ctypes, json, mmap, tempfile, psutil
from sweeprof.measuring import timing

rss = lambda: psutil.Process().memory_info().rss
file = tempfile.TemporaryFile()
file.write(bytes({SIZE}))
file.flush()
mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
assert not any(mapped[::mmap.PAGESIZE])
timing.remember()
seen = [rss()]
mapped.madvise(mmap.MADV_DONTNEED)
seen.append(rss())
timing.restore()
seen.append(rss())
mapped.close()
seen.append(rss())
timing.restore()
seen.append(rss())
print(json.dumps(seen))
"""


def test_remembered_pages_are_brought_back_unless_they_are_no_longer_mapped() -> None:
    before, dropped, restored, unmapped, after = printed(RESTORED)
    assert before - dropped == pytest.approx(SIZE, abs=SLACK)
    assert restored == pytest.approx(before, abs=SLACK)
    assert after == pytest.approx(unmapped, abs=SLACK)


def test_a_child_that_cannot_measure_gives_a_reason() -> None:
    assert printed(IN_CHILD) == [
        [7, None],
        [None, "ZeroDivisionError: integer division or modulo by zero"],
        [None, "the process that measured it was ended by SIGSEGV"],
        [None, "the process that measured it exited with 3"],
        [None, "the process that measured it was ended by a real-time signal"],
        [
            None,
            "this process has several threads already, and cannot have a child that measures; a trial with isolation=fork can",
        ],
    ]


# Levels, peaks and shares of allocations written by hand


A, B = (ROOT, "a"), (ROOT, "b")
CHANGES = [
    Change(1_000, 0, 0, ()),  # the first step begins
    Change(1_001, 100, 1, A),
    Change(1_002, 40, 2, B),
    Change(1_003, -100, 1, B),
    Change(1_004, 30, 3, ()),
    Change(2_000, 0, 0, ()),  # the second
    Change(2_001, 60, 1, A),  # at an address that is free again
    Change(2_002, -60, 1, A),
    Change(2_003, 0, 0, B),
    Change(2_004, -40, 2, ("c",)),  # which had not run before
]
BEGINS, ENDS = (1_000, 2_000), (1_010, 2_010)


def test_the_peak_and_who_ran() -> None:
    seen = course(CHANGES, BEGINS, ENDS)
    assert (seen.peak_bytes, seen.peak_at) == (140, "b")
    assert seen.step_peaks_bytes == (140, 130)
    assert seen.allocated_per_step_bytes == 60


def test_what_each_module_did() -> None:
    by_layer = {layer.path: layer for layer in course(CHANGES, BEGINS, ENDS).by_layer}
    assert by_layer == {
        OUTSIDE: LayerMemory(OUTSIDE, 70, 0, 30, 0),
        ROOT: LayerMemory(ROOT, 140, 0, 0, 0),
        "a": LayerMemory("a", 130, 60, 0, 100),
        "b": LayerMemory("b", 140, 0, 0, 40),
        "c": LayerMemory("c", 70, 0, 0, 0),
    }


def test_the_timeline_begins_with_the_first_step() -> None:
    moments = course(CHANGES, BEGINS, ENDS).timeline
    assert moments[0] == Moment(1e-9, 100, "a")
    assert [moment.bytes for moment in moments] == [100, 140, 40, 70, 130, 70, 30]
    assert moments[-1] == Moment(14e-9, 30, "c")  # 4 ns into the second step, after the 10 of the first


def test_the_timeline_leaves_out_what_lies_between_steps() -> None:
    between = [Change(1_500, -30, 3, ()), Change(2_900, -40, 2, ())]  # after the first step, and after the last
    moments = course([*CHANGES[:-1], *between], BEGINS, ENDS).timeline
    assert [round(1e9 * moment.s) for moment in moments] == [1, 2, 3, 4, 10, 11, 12, 20]
    assert [moment.bytes for moment in moments] == [100, 140, 40, 70, 40, 100, 40, 0]


def test_the_order_in_which_changes_are_given_does_not_matter() -> None:
    assert course(CHANGES[::-1], BEGINS, ENDS) == course(CHANGES, BEGINS, ENDS)


def test_memory_from_before_the_first_step_is_left_out() -> None:
    before = [Change(900, 1_000, 7, ()), Change(1_001, -1_000, 7, A), Change(1_001, -5_000, 8, B)]
    assert course([*before, *CHANGES], BEGINS, ENDS).timeline == course(CHANGES, BEGINS, ENDS).timeline
    only_releases = course([Change(1_000, 0, 0, ()), *before], (1_000,), (1_010,))
    assert (only_releases.peak_bytes, only_releases.timeline) == (0, ())


def test_the_peaks_of_steps_have_what_was_there_before() -> None:
    idle = course([*CHANGES, Change(3_000, 0, 0, ())], (*BEGINS, 3_000), (*ENDS, 3_010))
    assert idle.step_peaks_bytes == (140, 130, 30), "a step that allocates nothing"
    changes = [Change(1_001, 100, 1, A), Change(2_001, -100, 1, A), Change(2_002, 40, 2, B)]
    assert course(changes, BEGINS, ENDS).step_peaks_bytes == (100, 100), "a step that begins with a release"


def test_nothing_allocated() -> None:
    seen = course([Change(5, 0, 0, ())], (5,), (6,))
    assert (seen.peak_bytes, seen.peak_at, seen.step_peaks_bytes) == (0, OUTSIDE, (0,))
    assert (seen.allocated_per_step_bytes, seen.timeline) == (0, ())


@given(st.lists(st.integers(-1000, 1000), min_size=1, max_size=400), st.integers(4, 50))
def test_a_thinned_timeline_keeps_the_ends_and_the_peak(levels: list[int], most: int) -> None:
    kept = thinned_levels(levels, most)
    assert kept == sorted(set(kept))
    assert len(kept) <= max(most, 4)
    assert {0, len(levels) - 1} <= set(kept)
    assert max(levels[i] for i in kept) == max(levels)
    assert min(levels[i] for i in kept) == min(levels)
    if len(levels) <= most:
        assert kept == list(range(len(levels)))


def test_a_thinned_timeline_keeps_every_peak_that_stands_out() -> None:
    levels = [1000 if i % 1000 == 500 else i % 7 for i in range(100_000)]
    kept = thinned_levels(levels)
    assert len(kept) <= MOMENTS
    assert sum(levels[i] == 1000 for i in kept) == 100


@given(st.lists(st.tuples(st.integers(1, 100), st.sampled_from("abc")), max_size=60), st.data())
def test_the_shares_sum_up(blocks: list[tuple[int, str]], data: st.DataObject) -> None:
    changes, alive = [Change(0, 0, 0, ())], []
    for address, (size, path) in enumerate(blocks):
        changes.append(Change(len(changes), size, address, (ROOT, path)))
        alive.append((address, size))
        if data.draw(st.booleans()):
            gone, its_size = alive.pop(data.draw(st.integers(0, len(alive) - 1)))
            changes.append(Change(len(changes), -its_size, gone, (ROOT,)))
    seen = course(changes, (0,), (len(changes),))
    assert sum(layer.at_peak_bytes for layer in seen.by_layer) == seen.peak_bytes
    assert sum(layer.allocated_bytes for layer in seen.by_layer) == seen.allocated_per_step_bytes
    assert sum(layer.kept_bytes for layer in seen.by_layer) == sum(size for _, size in alive)
    assert max(layer.peak_bytes for layer in seen.by_layer) == seen.peak_bytes
