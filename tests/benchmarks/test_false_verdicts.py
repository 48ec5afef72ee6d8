"""How often verdicts are wrong, with the real noise of processes on this machine: equal sides, and a slowdown that is there.

Three environment variables lengthen or shorten it: ``VERDICT_PAIRS`` (equal pairs, 40), ``VERDICT_SWEEPS`` (sweeps with a slowdown,
20) and ``VERDICT_S`` (seconds of samples per round, 0.3; the protocols themselves have 2 and 5). And rounds until the verdict is
decided, beside a fixed number of rounds: measuring time and verdicts of the quickstart, ``DECIDE_REPEATS`` (1) times each.
"""

from __future__ import annotations

import math
import os
import statistics
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest
from benchmarks.measured import swept

from support.plans import read_records
from sweeprof.results.compared_rows import Comparison, Row
from sweeprof.results.differences import Cell
from sweeprof.results.statistics import rounds_to_settle
from sweeprof.results.verdicts import compare_cell

PAIRS = int(os.environ.get("VERDICT_PAIRS", "40"))
SWEEPS = int(os.environ.get("VERDICT_SWEEPS", "20"))
SECONDS = float(os.environ.get("VERDICT_S", "0.3"))
MODELS = ("lenet5", "mlp")
WRONG_AT_MOST = 2
"""Of 40 equal pairs that may be called changed; of another number the same share."""
FOUND_AT_LEAST = 0.9
PLAIN, SLOWER = 40, 44
"""Blocks of the model, and of the one that does 10 % more of the same work."""
METRIC = "latency/forward"
LIMIT_S = 3600

TIMING = (
    f"protocol.min_s={SECONDS}",
    f"protocol.warmup_s={SECONDS / 2}",
    f"metrics.select=[{METRIC}]",
    "tracking=none",
)


def compared(folder: Path, *arguments: str) -> Comparison:
    """The comparison of a sweep."""
    return Comparison.read(swept(folder, *arguments, *TIMING).folder("adhoc"))


def candidates(comparison: Comparison) -> list[tuple[Row, Cell]]:
    """The rows that are compared with another, and their cells."""
    return [(row, row.cells[METRIC]) for row in comparison.rows if not row.is_baseline]


def equal_pairs(folder: Path, interleave: str) -> list[Comparison]:
    """A sweep per model: two names for each of so many batch sizes."""
    sizes = ",".join(map(str, range(1, math.ceil(PAIRS / len(MODELS)) + 1)))
    names = ("model.torch.name=a,b", "compare.baseline={model.torch.name: a}", f"batch_size={sizes}")
    protocol = ("protocol=default", f"protocol.interleave={interleave}")
    return [
        compared(folder / model, f"model.torch._target_=support.nets.{model}_named", *names, *protocol)
        for model in MODELS
    ]


@pytest.mark.timeout(LIMIT_S)
@pytest.mark.parametrize("interleave", ["rounds", "samples"])
def test_equal_sides_are_seldom_called_changed(tmp_path: Path, interleave: str) -> None:
    """The same combination under two names, protocol=default."""
    comparisons = equal_pairs(tmp_path, interleave)
    cells = [cell for comparison in comparisons for _, cell in candidates(comparison)]
    verdicts = Counter(cell.verdict for cell in cells)
    changed = verdicts["better"] + verdicts["worse"]
    print(f"\n{len(cells)} equal pairs, interleave={interleave}: {changed} called changed; {dict(verdicts)}")
    _print_spread(comparisons)
    assert len(cells) >= PAIRS
    assert {cell.used for cell in cells} == {"paired" if interleave == "samples" else "rounds"}
    assert changed <= WRONG_AT_MOST * max(1.0, len(cells) / 40)


def _print_spread(comparisons: list[Comparison]) -> None:
    """The spread between processes, that of the ratios, and what rounds and thresholds it asks for."""
    measured = [row.cells[METRIC].measurement for comparison in comparisons for row in comparison.rows]
    between = [statistics.stdev(map(math.log, m.rounds)) for m in measured]
    print(f"between processes (CV of per-round medians): {_quartiles(between)}")
    ratios: list[float] = []
    needed: dict[float, list[int]] = {0.02: [], 0.05: [], 0.10: []}
    settled: dict[tuple[int, float], int] = {}
    for comparison in comparisons:
        bases = {row.combination_id: row.cells[METRIC].measurement for row in comparison.rows}
        for row, cell in candidates(comparison):
            base, own = bases[str(row.baseline_id)], cell.measurement
            sides = list(zip(own.paired or own.rounds, base.rounds, strict=True))
            ratios.append(statistics.stdev(math.log(a / b) for a, b in sides))
            for threshold, wanted in needed.items():
                found = rounds_to_settle([a for a, _ in sides], [b for _, b in sides], threshold)
                wanted.append(found or 1001)
                called = compare_cell(own, base, threshold).verdict
                settled[len(sides), threshold] = settled.get((len(sides), threshold), 0) + (called != "unclear")
    print(f"of the ratios, paired by round:              {_quartiles(ratios)}")
    for (rounds, threshold), count in sorted(settled.items()):
        middle = statistics.median(needed[threshold])
        print(
            f"threshold {100 * threshold:3.0f} %: {rounds} rounds settle {count} of {len(ratios)} pairs;"
            f" the median pair needs {middle:g}"
        )


def _quartiles(values: list[float]) -> str:
    low, middle, high = statistics.quantiles(values, n=4)
    return f"median {100 * middle:.1f} %, quartiles {100 * low:.1f} to {100 * high:.1f} %, largest {100 * max(values):.1f} %"


@pytest.mark.timeout(LIMIT_S)
@pytest.mark.parametrize("interleave", ["rounds", "samples"])
def test_a_slowdown_of_a_tenth_is_found(tmp_path: Path, interleave: str) -> None:
    """44 blocks instead of 40 with protocol=rigorous, which is interleaved; by rounds it is printed what those would have found."""
    cells = []
    for number in range(SWEEPS):
        comparison = compared(
            tmp_path / str(number),
            *("model.torch._target_=support.nets.Stack", f"model.torch.blocks={PLAIN},{SLOWER}", "batch_size=16"),
            f"compare.baseline={{model.torch.blocks: {PLAIN}}}",
            *("protocol=rigorous", f"protocol.interleave={interleave}", "protocol.min_samples=20"),
        )
        ((_, cell),) = candidates(comparison)
        cells.append(cell)
        low, high = cell.ratio_interval or (math.nan, math.nan)
        print(f"{interleave} {number}: {cell.verdict} {cell.ratio or math.nan:.3f} [{low:.3f}, {high:.3f}]", flush=True)
    ratios = sorted(cell.ratio or 0.0 for cell in cells)
    found = sum(cell.verdict == "worse" for cell in cells)
    print(
        f"\na tenth more work, interleave={interleave}: {found} of {len(cells)} sweeps called it slower;"
        f" ratio median {statistics.median(ratios):.3f},"
        f" {ratios[0]:.3f} to {ratios[-1]:.3f}; {dict(Counter(cell.verdict for cell in cells))}"
    )
    # The plant itself: more blocks take longer by about their share.
    assert 1.05 < statistics.median(ratios) < 1.2
    assert interleave == "rounds" or found >= FOUND_AT_LEAST * len(cells)


# Rounds until the verdict is decided

REPEATS = int(os.environ.get("DECIDE_REPEATS", "1"))
AT_MOST = 1 / 3


@dataclass(frozen=True)
class Sweep:
    """A sweep of the quickstart's combinations."""

    comparison: Comparison
    timing_s: float
    """Wall time of all trials of the timing pass."""

    @property
    def verdicts(self) -> dict[str, str | None]:
        return {
            str(sorted(row.axes.items())): row.cells[METRIC].verdict
            for row in self.comparison.rows
            if not row.is_baseline
        }

    @property
    def rounds(self) -> Counter[int]:
        return Counter(row.rounds_complete for row in self.comparison.rows)


def decided(folder: Path, protocol: str) -> Sweep:
    ran = swept(folder, "+sweep=quickstart", f"protocol={protocol}", f"metrics.select=[{METRIC}]", "tracking=none")
    output = ran.folder("quickstart")
    records = [record for record in read_records(output / "records") if record.pass_name == "timing"]
    return Sweep(Comparison.read(output), sum(record.wall_s for record in records))


@pytest.mark.timeout(LIMIT_S)
def test_the_quickstarts_verdicts_in_a_third_of_the_time(tmp_path: Path) -> None:
    contradictions = 0
    ratios = []
    for repeat in range(REPEATS):
        decide, default = (decided(tmp_path / f"{protocol}{repeat}", protocol) for protocol in ("decide", "default"))
        ratios.append(decide.timing_s / default.timing_s)
        both = {(verdict, default.verdicts[axes]) for axes, verdict in decide.verdicts.items()}
        contradictions += len(both & {("better", "worse"), ("worse", "better"), ("same", "worse"), ("same", "better")})
        print(
            f"\nmeasuring time of decide over default: {ratios[-1]:.2f}; rounds {dict(decide.rounds)}; "
            f"verdicts {dict(Counter(decide.verdicts.values()))}, of default {dict(Counter(default.verdicts.values()))}"
        )
        unclear = [sum(verdict == "unclear" for verdict in sweep.verdicts.values()) for sweep in (decide, default)]
        assert unclear[0] <= unclear[1] + 1
    assert contradictions == 0
    assert min(ratios) <= AT_MOST
