"""Random sweeps with everything that decides a verdict: missing rounds, interleaved runs, other hosts, interruptions."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Mapping
from typing import Any

from sweeprof.results.compared_rows import DEVIATION, Comparison, Row, compare_rows, find_baselines
from sweeprof.results.measurement import Measurement, MetricInfo

METRICS = (
    MetricInfo("latency/forward", "s", "lower", "Wall time of a forward."),
    MetricInfo("throughput/samples_per_s", "samples/s", "higher", "Samples per second."),
    MetricInfo("mine/jitter", "s", None, "Neither direction is better."),
    MetricInfo("params/total", "params", "lower", "Parameters."),
    MetricInfo("quality/accuracy", "ratio", "higher", "Accuracy."),
    MetricInfo("memory/rss_peak_bytes", "B", "lower", "Peak."),
)
PLANNED = {"backend": "b0"}
THRESHOLD, THRESHOLDS = 0.05, {"throughput/samples_per_s": 0.2}


@dataclasses.dataclass(frozen=True)
class Drawn:
    """A sweep of which any baseline can be chosen."""

    rows: tuple[Row, ...]
    measured: Mapping[str, Mapping[str, Measurement]]

    def against(self, baseline: Mapping[str, Any]) -> tuple[Row, ...]:
        """What Python makes of it with this baseline."""
        axes = {row.combination_id: row.axes for row in self.rows}
        planned, bases = find_baselines(PLANNED, axes), find_baselines(baseline, axes)
        rows = [dataclasses.replace(row, baseline_id=bases[row.combination_id]) for row in self.rows]
        # The pairs of an interleaved run are with the planned baseline alone.
        kept = {
            id: {
                name: one if bases[id] == planned[id] else dataclasses.replace(one, paired=())
                for name, one in own.items()
            }
            for id, own in self.measured.items()
        }
        return compare_rows(rows, kept, THRESHOLD, THRESHOLDS)

    def comparison(self) -> Comparison:
        """As it was swept."""
        return Comparison(
            *("s1", "drawn", "2026-11-22T00:00:00+00:00", "", ("model", "backend", "batch_size"), METRICS, PLANNED),
            self.against(PLANNED),
            threshold=THRESHOLD,
            thresholds=THRESHOLDS,
        )


def drawn(seed: int, models: int = 2, sizes: int = 3) -> Drawn:
    """A sweep of nearly all of models × 3 backends × sizes; of seeds every third is interleaved, every fourth was interrupted, and
    every fourth moved to other hosts. Half of what failed has its values all the same."""
    chance = random.Random(seed)
    points = [
        {"model": f"m{m}", "backend": f"b{b}", "batch_size": 8**n}
        for m, b, n in itertools.product(range(models), range(3), range(sizes))
        if chance.random() < 0.9 or models > 2
    ]
    rows, measured = [], {}
    for number, point in enumerate(points):
        id = f"c{number}"
        is_ok = chance.random() < 0.9
        numbers = tuple(sorted(chance.sample(range(6), chance.choice([2, 3, 4, 5, 6, 6]))))
        measured[id] = {info.name: _measured(info, numbers, is_ok, seed, chance) for info in METRICS}
        if not is_ok and number % 2:  # a pass that failed leaves what the others measured
            apart = random.Random(f"{seed} {number}")
            measured[id] = {info.name: _measured(info, numbers, True, seed, apart) for info in METRICS}
        host = {"host": chance.choice(["h0", "h0", "h1"]), "governor": "powersave"} if seed % 4 == 1 else {}
        if random.Random(f"settings {seed} {number}").random() < 0.05:
            host = {**host, DEVIATION: "threads 2 instead of 1"}
        sessions = tuple(chance.choice(["s0", "s0", "s1"]) if n in numbers else None for n in range(6))
        row = Row(
            *(id, point, "ok" if is_ok else "failed", None if is_ok else "no\nluck", {}, None),
            command="python -m sweeprof " + " ".join(f"{axis}={value}" for axis, value in point.items()),
            environment=host,
        )
        rows.append(dataclasses.replace(row, sessions=sessions) if seed % 4 == 2 else row)
    return Drawn(tuple(rows), measured)


def _measured(info: MetricInfo, numbers: tuple[int, ...], is_ok: bool, seed: int, chance: random.Random) -> Measurement:
    if not is_ok:
        return Measurement(info.name, info.unit, info.better, None, "no luck")
    if info.name == "params/total":
        counted = chance.choice([61_706_123, 61_706_124, 0])
        estimator = "lower bound" if counted == 61_706_124 else "exact"
        return Measurement(info.name, info.unit, info.better, counted, estimator=estimator)
    if info.name == "quality/accuracy":
        return Measurement(info.name, info.unit, info.better, chance.choice([0.9889, 0.9889, 0.97]))
    if info.name == "memory/rss_peak_bytes":
        return Measurement(info.name, info.unit, info.better, chance.randrange(10**8, 10**9), estimator="max")
    centre = chance.choice([1e-3, 1.02e-3, 1.2e-3, 3e-3])
    spread = chance.choice([0.001, 0.01, 0.1])
    rounds = tuple(centre * chance.lognormvariate(0, spread) for _ in numbers)
    if chance.random() < 0.05:
        rounds = (0.0, *rounds[1:])
    has_pairs = seed % 3 == 0 and info.unit == "s"
    value = sorted(rounds)[len(rounds) // 2]
    return Measurement(
        *(info.name, info.unit, info.better, value),
        estimator="median",
        interval=(value * 0.99, value * 1.01),
        rounds=rounds,
        round_numbers=numbers,
        paired=tuple(one * chance.lognormvariate(0, 0.002) for one in rounds) if has_pairs else (),
    )
