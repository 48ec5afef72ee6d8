"""How much does the estimated ratio of two models vary from one attempt to the next, by how their samples are interleaved?

Every attempt (repeat) uses every method on every pair, with the same seconds of samples for each side, so that whatever the
machine does meets all methods alike. Torch's timer is used as a script uses it: in a new process, one model after the other. The
other methods have the same seconds in several short rounds. Both can be set: ``INTERLEAVING_REPEATS=4 INTERLEAVING_SECONDS=0.2``.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import asdict, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from torch.utils.benchmark import Timer

from support.planning import composed_of
from support.plans import fake_plan, sweep_folder
from sweeprof.config.schema import IDENTITY
from sweeprof.metrics.evaluate import evaluate
from sweeprof.metrics.select import select
from sweeprof.plan.plan import Combination, Plan, in_shards
from sweeprof.profiling.profiler import Profiler
from sweeprof.results.files import write_json
from sweeprof.results.measurement import Measurement
from sweeprof.results.record import Protocol
from sweeprof.run import shard
from sweeprof.run.fork_server import WorkerPool
from sweeprof.run.shard import run_shard
from sweeprof.storage import Folder

REPEATS = int(os.environ.get("INTERLEAVING_REPEATS", "10"))
SECONDS = float(os.environ.get("INTERLEAVING_SECONDS", "0.4"))
"""Of samples, for each side of a pair in each repeat."""
ROUNDS = 4
"""Fresh processes of each side in a repeat; torch's timer has one."""
OF_A_ROUND = SECONDS / ROUNDS
SHORT = Protocol(warmup_s=0.1, sample_s=0.01, min_samples=1, min_s=OF_A_ROUND, max_s=10 * OF_A_ROUND)
METHODS = {"rounds": SHORT, "samples": replace(SHORT, interleave="samples")}
TORCH = "torch's timer"
ALLOWED = 0.5
"""The spread of interleaved runs over that of torch's timer on one model after the other."""


class Pair(NamedTuple):
    """Two configs, by what they override; ``config`` is put into both."""

    name: str
    base: tuple[str, ...]
    candidate: tuple[str, ...]
    config: Mapping[str, Any] = {}

    def configs(self) -> dict[str, dict[str, Any]]:
        """By side."""
        sides = {"base": self.base, "candidate": self.candidate}
        return {side: {**composed_of("tracking=none", *keys), **self.config} for side, keys in sides.items()}


RESNET = {
    "model": {"torch": {"_target_": "support.peer_models.ResNet18C100"}},
    "dataset": {"_target_": "sweeprof.datasets.arrays.Synthetic", "shape": [3, 32, 32], "samples": 8},
}
PAIRS = (
    Pair("digits_resnet / lenet5", ("model=lenet5", "batch_size=8"), ("model=digits_resnet", "batch_size=8")),
    Pair("resnet18 / itself", (), (), RESNET),
    Pair("resnet18, channels last / first", (), ("backend.channels_last=true",), RESNET),
)


def _plan(repeats: int) -> Plan:
    """Every pair by every method, as many rounds as there are repeats: a plan of more rounds continues one of fewer."""
    combinations = []
    for pair in PAIRS:
        for method, protocol in METHODS.items():
            for side, config in pair.configs().items():
                own = {**{key: config[key] for key in IDENTITY}, "protocol": {**asdict(protocol), "rounds": repeats}}
                axes = {"pair": pair.name, "method": method, "side": side}
                combinations.append(Combination(_id(**axes), axes, own, ""))
    baseline = {"side": "base"}
    shards = in_shards(combinations, baseline, 1)
    empty = fake_plan({}, ["timing"], "fork")
    return replace(empty, baseline=baseline, combinations=tuple(combinations), shards=shards)


def _id(pair: str, method: str, side: str) -> str:
    return "c" + "".join(filter(str.isalnum, pair + method + side))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Folder]:
    """Of a sweep whose processes find the models of the tests, and whose fork servers are kept from one repeat to the next."""
    tests, given = str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([tests, given]))
    with WorkerPool("fork", tmp_path / "logs") as seats:
        monkeypatch.setattr(shard, "WorkerPool", lambda *_: nullcontext(seats))
        yield sweep_folder(tmp_path, _plan(1))


@pytest.mark.timeout(1200)
def test_interleaving_halves_the_spread_of_the_ratio(folder: Folder) -> None:
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    spent: dict[str, float] = defaultdict(float)
    for repeat in range(REPEATS):
        for pair in PAIRS:
            with ProcessPoolExecutor(1, get_context("fork")) as fresh:
                ratio, seconds = fresh.submit(_timed_by_torch, pair).result()
            spent[TORCH] += seconds
            found[pair.name, TORCH].append(ratio)
        write_json(folder.plan, _plan((repeat + 1) * ROUNDS).to_dict())
        run_shard(folder, 0)
    for pair in PAIRS:
        for method in METHODS:
            found[pair.name, method] = list(_ratios(folder, pair.name, method))
            spent[method] += sum(_worked(folder, pair.name, method))
    spreads = {key: statistics.stdev(map(math.log, ratios)) for key, ratios in found.items()}
    _show(found, spreads, spent)
    shares = [spreads[pair.name, "samples"] / spreads[pair.name, TORCH] for pair in PAIRS]
    assert statistics.geometric_mean(shares) <= ALLOWED


def _timed_by_torch(pair: Pair) -> tuple[float, float]:
    """The ratio of the medians that torch's timer finds for one side after the other, and the seconds that it took."""
    timers = [_timer(config) for config in pair.configs().values()]
    begin = time.perf_counter()
    base, candidate = (timer.blocked_autorange(min_run_time=SECONDS).median for timer in timers)
    return candidate / base, time.perf_counter() - begin


def _timer(config: dict[str, Any]) -> Timer:
    session = Profiler.from_config(config).session
    session.prepare()
    with session.loaded() as loaded:
        batch = loaded.put(session.inputs())
    setup = "import torch; mode = torch.inference_mode(); mode.__enter__()"
    return Timer("model(batch)", setup, globals={"model": loaded.native, "batch": batch.args[0]}, num_threads=1)


def _measured(folder: Folder, pair: str, method: str) -> tuple[Measurement, Measurement]:
    """``latency/forward`` of the base and of the candidate."""
    base, candidate = (folder.records_of(_id(pair, method, side)) for side in ("base", "candidate"))
    assert {record.status for record in (*base, *candidate)} == {"ok"}, [r.reason for r in (*base, *candidate)]
    selected = select(["latency/forward"])
    (of_base,), (of_candidate,) = (evaluate(selected, own, base, 1).values() for own in (base, candidate))
    return of_base, of_candidate


def _ratios(folder: Folder, pair: str, method: str) -> Iterator[float]:
    """One estimate per repeat."""
    base, candidate = _measured(folder, pair, method)
    values = candidate.paired if method == "samples" else candidate.rounds
    ratios = [theirs / own for own, theirs in zip(base.rounds, values, strict=True)]
    for first in range(0, len(ratios), ROUNDS):
        yield statistics.geometric_mean(ratios[first : first + ROUNDS])


def _worked(folder: Folder, pair: str, method: str) -> Iterator[float]:
    """Seconds of the ``timing`` passes themselves, the waiting for others not counted."""
    for side in ("base", "candidate"):
        yield from (record.costs["measure"] for record in folder.records_of(_id(pair, method, side)))


def _show(
    found: Mapping[tuple[str, str], list[float]], spreads: Mapping[tuple[str, str], float], spent: Mapping[str, float]
) -> None:
    methods = [TORCH, *METHODS]
    print(
        f"\nspread of the estimated ratio over {REPEATS} repeats of {SECONDS:g} s a side (standard deviation of its log);"
        f" {ROUNDS} rounds each, torch's timer 1"
    )
    print(f"{'pair':<34}" + "".join(f"{method:>18}" for method in methods))
    for pair in PAIRS:
        shown = [f"{spreads[pair.name, m]:.1%} ({statistics.median(found[pair.name, m]):.3f})" for m in methods]
        print(f"{pair.name:<34}" + "".join(f"{text:>18}" for text in shown))
    shares = [
        statistics.geometric_mean([spreads[pair.name, method] / spreads[pair.name, TORCH] for pair in PAIRS])
        for method in methods
    ]
    print(f"{f'over {TORCH}, geometric mean':<34}" + "".join(f"{share:>18.2f}" for share in shares))
    print(f"{'seconds of work a repeat':<34}" + "".join(f"{spent[method] / REPEATS:>18.1f}" for method in methods))
