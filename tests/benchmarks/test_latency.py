"""Is the reported latency the one that torch.utils.benchmark finds, and is it found as soon? In turns, printed as ratios."""

from __future__ import annotations

import gc
import itertools
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import pytest
import torch
from benchmarks.measured import lasting
from benchmarks.models import TIMED
from torch import nn
from torch.utils.benchmark import Timer

from support.planning import composed_of
from sweeprof.backends.torch.adapter import TorchBackend
from sweeprof.datasets import first_batch
from sweeprof.datasets.arrays import Digits
from sweeprof.measuring.inputs import Inputs, TensorSpec
from sweeprof.measuring.timing import Timing, WallClock, sampled
from sweeprof.metrics.latency import forward
from sweeprof.metrics.metric import Estimate
from sweeprof.plan.plan import preload
from sweeprof.results.record import Protocol, Record
from sweeprof.results.statistics import median_interval
from sweeprof.run.fork_server import ForkServer
from sweeprof.run.interleave import Request
from sweeprof.targets import instantiate

PAIRS = 100
RUNS = 3
ALLOWED = 0.02
THROUGH_A_TRIAL = 0.05
PRECISION = 0.02
BATCH = 64
SHORT = Protocol(warmup_s=0.02, min_s=0.1)
ONE = Protocol(sample_s=0.005, min_samples=1)
"""A single sample; what disturbs the machine then meets both alike."""
SPENT_S = 20.0
"""At most, on samples of one model; each of the two gets half."""


@pytest.fixture(scope="module", autouse=True)
def _quick_collections() -> Iterator[None]:
    """Every turn begins with a collection, which looks through all that has been imported unless that is frozen."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def _reported(timing: Timing) -> float:
    """``latency/forward`` as a sweep reports it."""
    estimate = forward({"timing": (timing,)})
    assert isinstance(estimate, Estimate)
    return float(estimate.value)


@dataclass
class Pair:
    """The same call, ours and theirs."""

    step: Callable[[], object]
    timer: Timer
    loops: int
    """Steps of one block of theirs, which lasts as long as one sample of ours."""

    def ratio(self, is_ours_first: bool) -> float:
        """A sample of ours over a block of theirs, taken one after the other."""
        takes = [lambda: self.timer.timeit(self.loops).median, lambda: sampled(self.step, ONE, WallClock())[0]]
        if is_ours_first:
            ours, theirs = takes[1](), takes[0]()
        else:
            theirs, ours = takes[0](), takes[1]()
        return ours / theirs


def _pair(build: Callable[[], nn.Module], shape: tuple[int, ...]) -> Iterator[Pair]:
    backend = TorchBackend(threads=1)
    backend.configure(seed=0)
    loaded = backend.load(build, "cpu", 1)
    batch = loaded.put(Inputs((TensorSpec(shape),)))
    with loaded.stepping(batch) as step:
        given = {"model": loaded.native, "batch": batch.args[0]}
        step()
        loops = _our_loops(lambda loops: [step() for _ in range(loops)], ONE.sample_s)[0]
        yield Pair(step, Timer("model(batch)", globals=given, num_threads=1), loops)


@pytest.mark.timeout(600)
def test_the_median_is_that_of_torchs_timer() -> None:
    """Both time the same call on the same inputs with one thread, in turns; the median of the paired ratios counts."""
    print(f"\nlatency/forward over torch.utils.benchmark's median, {RUNS} runs of {PAIRS} pairs")
    print(f"{'model':<24}{'ratio':>8}{'interval':>18}{'runs from':>12}{'to':>8}")
    found = {}
    for made in TIMED:
        for pair in _pair(made.make, made.shape):
            runs = [[pair.ratio(turn % 2 == 0) for turn in range(PAIRS)] for _ in range(RUNS)]
        pooled = [ratio for run in runs for ratio in run]
        medians = sorted(map(statistics.median, runs))
        found[made.name] = statistics.median(pooled)
        low, high = median_interval(pooled) or (0.0, 0.0)
        print(
            f"{made.name:<24}{found[made.name]:>8.3f}{f'{low:.3f} to {high:.3f}':>18}{medians[0]:>12.3f}{medians[-1]:>8.3f}"
        )
    assert {name: ratio for name, ratio in found.items() if abs(ratio - 1) > ALLOWED} == {}


def _seconds_to_precision(spent: float, samples: Sequence[tuple[float, int]]) -> float | None:
    """Seconds, ``spent`` on finding the number of loops included, until the interval of the median is narrow enough.

    Args:
        samples: seconds per step and steps of each sample, in the order taken.
    """
    taken: list[float] = []
    for seconds, loops in samples:
        taken.append(seconds)
        spent += seconds * loops
        interval = median_interval(taken)
        if interval is not None and interval[1] - interval[0] <= 2 * PRECISION * statistics.median(taken):
            return spent
    return None


def _our_loops(call: Callable[[int], object], sample_s: float) -> tuple[int, float]:
    """As :func:`sweeprof.measuring.timing.measure` finds them, and the seconds that took."""
    spent = 0.0
    for loops in (2**power for power in itertools.count()):
        lasted = lasting(partial(call, loops))
        spent += lasted
        if lasted >= sample_s:
            return loops, spent
    raise AssertionError("unreachable")


def _their_loops(timer: Timer) -> tuple[int, float]:
    """As ``Timer.blocked_autorange`` finds them for its least time of 0.2 s, and the seconds that took."""
    begin = time.perf_counter()
    loops = timer._estimate_block_size(min_run_time=0.2)
    return loops, time.perf_counter() - begin


@pytest.mark.timeout(600)
def test_a_narrow_interval_takes_no_longer_than_with_torchs_timer() -> None:
    """Samples of ours and blocks of theirs alternate, in the same minutes; counted is what each would have spent alone."""
    protocol = Protocol(**composed_of("protocol=default")["protocol"])
    print(
        f"\nseconds of samples until the interval of the median is within ±{PRECISION:.0%}, of {RUNS} runs the median"
    )
    print(f"{'model':<24}{'sweeprof':>10}{'torch':>10}{'ratio':>8}")
    ratios = []
    for made in TIMED:
        for pair in _pair(made.make, made.shape):
            ours, theirs = zip(*(_race(pair, protocol) for _ in range(RUNS)), strict=True)
        shown = [statistics.median(seconds) for seconds in (ours, theirs)]
        ratios.append(shown[0] / shown[1])
        print(f"{made.name:<24}{shown[0]:>10.2f}{shown[1]:>10.2f}{ratios[-1]:>8.2f}")
    print(f"{'geometric mean':<24}{statistics.geometric_mean(ratios):>28.2f}")
    assert statistics.geometric_mean(ratios) <= 1.1  # the same to what a busy machine lets tell


def _race(pair: Pair, protocol: Protocol) -> tuple[float, float]:
    """Seconds that each needs; all that it was given where it does not get there."""
    budget = SPENT_S / RUNS / 2

    def call(loops: int) -> None:
        for _ in range(loops):
            pair.step()

    pair.step()
    kinds = [_our_loops(call, protocol.sample_s), _their_loops(pair.timer)]
    samples: list[list[tuple[float, int]]] = [[], []]
    given = [spent for _, spent in kinds]
    while min(given) < budget:
        which = 0 if given[0] <= given[1] else 1
        loops = kinds[which][0]
        lasted = lasting(partial(call, loops)) if which == 0 else pair.timer._timeit(loops)
        samples[which].append((lasted / loops, loops))
        given[which] += lasted
    found = [_seconds_to_precision(spent, taken) for (_, spent), taken in zip(kinds, samples, strict=True)]
    ours, theirs = (budget if seconds is None else seconds for seconds in found)
    return ours, theirs


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
            ratios.append(_reported(Timing.from_dict(record.observations or {})) / theirs)
    finally:
        server.close()
    ratio = statistics.median(ratios)
    print(f"\nlatency/forward of lenet5 at batch {BATCH}, from whole trials, over torch's median: ", end="")
    print(f"{ratio:.3f} (from {min(ratios):.3f} to {max(ratios):.3f})")
    assert abs(ratio - 1) < THROUGH_A_TRIAL
