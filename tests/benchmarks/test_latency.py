"""Is the reported latency the one that torch.utils.benchmark finds, and is it found as soon? In turns, printed as ratios."""

from __future__ import annotations

import gc
import json
import math
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path

import pytest
import torch
from benchmarks.measured import lasting
from benchmarks.models import TIMED, Made
from torch.utils.benchmark import Timer

from support.planning import composed_of
from support.torchs_timer import over_torchs_timer
from sweeprof.backends.torch.adapter import TorchBackend
from sweeprof.datasets import first_batch
from sweeprof.datasets.arrays import Digits
from sweeprof.measuring.inputs import Inputs, TensorSpec
from sweeprof.measuring.timing import Timing
from sweeprof.metrics.latency import forward
from sweeprof.metrics.metric import Estimate
from sweeprof.plan.plan import preload
from sweeprof.results.record import Protocol, Record
from sweeprof.results.statistics import median_interval
from sweeprof.run.fork_server import ForkServer
from sweeprof.run.interleave import Request
from sweeprof.targets import instantiate

PAIRS = 300
RUNS = 3
ALLOWED = 0.02
THROUGH_A_TRIAL = 0.05
PRECISION = 0.02
BATCH = 64
SHORT = Protocol(warmup_s=0.02, min_s=0.1)
ONE = Protocol(sample_s=0.005, min_samples=1)
"""A single sample; what disturbs the machine then meets both alike."""
BUDGET_S = 3.3
"""At most, on samples of one model by one of the two."""


@pytest.fixture(scope="module", autouse=True)
def _quick_collections() -> Iterator[None]:
    """Every turn begins with a collection, which looks through all that has been imported unless that is frozen."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def repeated(step: Callable[[], object], loops: int) -> None:
    for _ in range(loops):
        step()


def calibrated(step: Callable[[], object], sample_s: float) -> int:
    """Loops of a sample, as :func:`sweeprof.measuring.timing.measure` finds them."""
    loops = 1
    while lasting(partial(repeated, step, loops)) < sample_s:
        loops *= 2
    return loops


@contextmanager
def both(made: Made) -> Iterator[tuple[Callable[[], object], Timer]]:
    """The same call on the same inputs with one thread, ours and theirs."""
    backend = TorchBackend(threads=1)
    backend.configure(seed=0)
    loaded = backend.load(made.make, "cpu", 1)
    batch = loaded.put(Inputs((TensorSpec(made.shape),)))
    with loaded.stepping(batch) as step:
        given = {"model": loaded.native, "batch": batch.args[0]}
        step()
        yield step, Timer("model(batch)", globals=given, num_threads=1)


@pytest.mark.timeout(600)
def test_the_median_is_that_of_torchs_timer() -> None:
    """A sample of ours and a block of theirs that lasts as long, in turns; the median of the paired ratios counts."""
    print(f"\nlatency/forward over torch.utils.benchmark's median, {PAIRS} pairs")
    off = {}
    for made in TIMED:
        with both(made) as (step, timer):
            ratio = over_torchs_timer(step, timer, ONE, calibrated(step, ONE.sample_s), PAIRS)
        print(f"{made.name:<24}{ratio:>8.3f}", flush=True)
        if abs(ratio - 1) > ALLOWED:
            off[made.name] = ratio
    assert off == {}


@pytest.mark.timeout(600)
def test_a_narrow_interval_takes_no_longer_than_with_torchs_timer() -> None:
    """Samples of ours and blocks of theirs alternate, in the same minutes; counted is what each would have spent alone."""
    protocol = Protocol(**composed_of("protocol=default")["protocol"])
    print(f"\nseconds of samples until the interval of the median is within ±{PRECISION:.0%}, ours over torch's")
    ratios = []
    for made in TIMED:
        with both(made) as (step, timer):
            ours, theirs = zip(*(race(step, timer, protocol) for _ in range(RUNS)), strict=True)
        ratios.append(statistics.median(ours) / statistics.median(theirs))
        print(f"{made.name:<24}{ratios[-1]:>8.2f}", flush=True)
    print(f"{'geometric mean':<24}{statistics.geometric_mean(ratios):>8.2f}")
    assert statistics.geometric_mean(ratios) <= 1.1  # the same to what a busy machine lets tell


def race(step: Callable[[], object], timer: Timer, protocol: Protocol) -> list[float]:
    """Seconds that each needs, finding the number of loops included; all that it may spend where it does not get there."""
    step()
    begin = time.perf_counter()
    our_loops = calibrated(step, protocol.sample_s)
    middle = time.perf_counter()
    their_loops = timer._estimate_block_size(min_run_time=0.2)  # as ``Timer.blocked_autorange`` does
    spent = [middle - begin, time.perf_counter() - middle]
    loops = [our_loops, their_loops]
    samples: list[list[float]] = [[], []]
    needed: list[float | None] = [None, None]
    runs = (lambda: lasting(partial(repeated, step, our_loops)), lambda: timer._timeit(their_loops))
    while None in needed and min(spent) < BUDGET_S:
        which = spent.index(min(spent))
        seconds = runs[which]()
        spent[which] += seconds
        taken = samples[which]
        taken.append(seconds / loops[which])
        low, high = median_interval(taken) or (0.0, math.inf)
        if needed[which] is None and high - low <= 2 * PRECISION * statistics.median(taken):
            needed[which] = spent[which]
    return [BUDGET_S if seconds is None else seconds for seconds in needed]


@pytest.mark.timeout(600)
def test_through_a_whole_trial(tmp_path: Path) -> None:
    """As a sweep reports it, from a forked process and its record; torch's timer runs between the trials."""
    config = {**composed_of("model=lenet5", f"batch_size={BATCH}"), "protocol": asdict(SHORT)}
    torch.set_num_threads(1)
    module = instantiate(config["model"]["torch"]).eval()
    inputs = torch.from_numpy(first_batch(Digits().split("test"), BATCH)[0])
    timer = Timer("model(batch)", globals={"model": module, "batch": inputs}, num_threads=1)
    server = ForkServer(preload(config, "timing"), {}, tmp_path / "fork-server.log")
    ratios = []
    try:
        for pair in range(30):
            with torch.inference_mode():
                theirs = timer.blocked_autorange(min_run_time=0.1).median
            blank = Record("s", "c", "timing", "crashed", round=pair, config=config)
            asked = time.monotonic()
            server.run(Request(blank.to_dict(), str(tmp_path), str(tmp_path / "log"), 60, None, asked))
            record = Record.from_dict(json.loads((tmp_path / blank.file_name).read_text()))
            assert record.status == "ok", record.reason
            estimate = forward({"timing": (Timing.from_dict(record.observations or {}),)})
            assert isinstance(estimate, Estimate)
            ratios.append(float(estimate.value) / theirs)
    finally:
        server.close()
    ratio = statistics.median(ratios)
    print(f"\nlatency/forward of lenet5 at batch {BATCH}, from whole trials, over torch's median: {ratio:.3f}")
    assert abs(ratio - 1) < THROUGH_A_TRIAL
