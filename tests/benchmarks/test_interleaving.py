"""How much does the estimated ratio of two models vary from one attempt to the next, by how their samples are interleaved?

Every attempt (repeat) uses every method on every pair, with the same seconds of samples for each side, so that whatever the
machine does meets all methods alike. Torch's timer is used as a script uses it: in a new process, one model after the other. The
other methods have the same seconds in several short rounds. Both can be set: ``INTERLEAVING_REPEATS=4 INTERLEAVING_SECONDS=0.2``.
"""

from __future__ import annotations

import math
import os
import statistics
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import pytest
from benchmarks.measured import swept
from torch.utils.benchmark import Timer

from support.planning import composed_of
from sweeprof.profiling.profiler import Profiler
from sweeprof.results.compared_rows import Comparison

REPEATS = int(os.environ.get("INTERLEAVING_REPEATS", "10"))
SECONDS = float(os.environ.get("INTERLEAVING_SECONDS", "0.4"))
"""Of samples, for each side of a pair in each repeat."""
ROUNDS = 4
"""Fresh processes of each side in a repeat; torch's timer has one."""
SHORT = (
    *("protocol.warmup_s=0.1", "protocol.sample_s=0.01", "protocol.min_samples=1", f"protocol.rounds={ROUNDS}"),
    *(f"protocol.min_s={SECONDS / ROUNDS}", "metrics.select=[latency/forward]", "tracking=none"),
)
TORCH = "torch's timer"
ALLOWED = 0.5
"""The spread of interleaved runs over that of torch's timer on one model after the other."""


class Pair(NamedTuple):
    """Two configs that differ in a key."""

    name: str
    key: str
    base: str
    candidate: str
    both: tuple[str, ...]


RESNET = ("model.torch._target_=support.peer_models.ResNet18C100", "dataset=synthetic", "dataset.shape=[3,32,32]")
PAIRS = (
    Pair("digits_resnet / lenet5", "model", "lenet5", "digits_resnet", ("batch_size=8",)),
    Pair("resnet18 / itself", "seed.weights", "0", "1", RESNET),
    Pair("resnet18, channels last / first", "backend.channels_last", "false", "true", RESNET),
)


@pytest.mark.timeout(3600)
def test_interleaving_halves_the_spread_of_the_ratio(tmp_path: Path) -> None:
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for repeat in range(REPEATS):
        for number, pair in enumerate(PAIRS):
            with ProcessPoolExecutor(1, get_context("fork")) as fresh:
                found[pair.name, TORCH].append(fresh.submit(timed_by_torch, pair).result())
            sides = (f"{pair.key}={pair.base},{pair.candidate}", f"compare.baseline={{{pair.key}: {pair.base}}}")
            for method in ("rounds", "samples"):
                folder = tmp_path / f"{repeat}-{number}-{method}"
                ran = swept(folder, *pair.both, *sides, *SHORT, f"protocol.interleave={method}")
                rows = Comparison.read(ran.folder("adhoc")).rows
                (ratio,) = [row.cells["latency/forward"].ratio for row in rows if not row.is_baseline]
                assert ratio is not None
                found[pair.name, method].append(ratio)
    spreads = {key: statistics.stdev(map(math.log, ratios)) for key, ratios in found.items()}
    print(
        f"\nspread of the estimated ratio over {REPEATS} repeats of {SECONDS:g} s a side (standard deviation of its log)"
    )
    for (name, method), spread in spreads.items():
        print(f"{name:<34}{method:>18}{spread:>8.1%} ({statistics.median(found[name, method]):.3f})")
    shares = {}
    for method in ("rounds", "samples"):
        over = [spreads[pair.name, method] / spreads[pair.name, TORCH] for pair in PAIRS]
        shares[method] = statistics.geometric_mean(over)
    print(f"over that of {TORCH}, geometric mean: {shares}")
    assert shares["samples"] <= ALLOWED


def timed_by_torch(pair: Pair) -> float:
    """The ratio of the medians that torch's timer finds for one side after the other."""
    timers = []
    for value in (pair.base, pair.candidate):
        session = Profiler.from_config(composed_of("tracking=none", *pair.both, f"{pair.key}={value}")).session
        session.prepare()
        with session.loaded() as loaded:
            batch = loaded.put(session.inputs())
        setup = "import torch; mode = torch.inference_mode(); mode.__enter__()"
        names = {"model": loaded.native, "batch": batch.args[0]}
        timers.append(Timer("model(batch)", setup, globals=names, num_threads=1))
    base, candidate = (timer.blocked_autorange(min_run_time=SECONDS).median for timer in timers)
    return candidate / base
