"""How often verdicts are wrong, with the real noise of processes on this machine: equal sides, and a slowdown that is there.

Three environment variables lengthen or shorten it: ``VERDICT_PAIRS`` (equal pairs, 40), ``VERDICT_SWEEPS`` (sweeps with a slowdown,
20) and ``VERDICT_S`` (seconds of samples per round, 0.3; the protocols themselves have 2 and 5).
"""

from __future__ import annotations

import json
import math
import os
import statistics
from collections import Counter
from pathlib import Path

import pytest

from support.command import run_command
from sweeprof.results.compared_rows import Comparison, Row, comparison_from
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


def swept(folder: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Comparison:
    """The comparison of a sweep through the real command, in a folder of its own."""
    folder.mkdir(parents=True)
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    )
    ran = run_command(folder, *arguments, *TIMING, timeout=LIMIT_S)
    assert ran.code == 0, ran.err
    return comparison_from(json.loads((ran.folder("adhoc") / "comparison.json").read_text()))


def candidates(comparison: Comparison) -> list[tuple[Row, Cell]]:
    """The rows that are compared with another, and their cells."""
    return [(row, row.cells[METRIC]) for row in comparison.rows if not row.is_baseline]


def equal_pairs(folder: Path, monkeypatch: pytest.MonkeyPatch, interleave: str) -> list[Comparison]:
    """A sweep per model: two names for each of so many batch sizes."""
    found = []
    for model in MODELS:
        sizes = range(1, math.ceil(PAIRS / len(MODELS)) + 1)
        found.append(
            swept(
                folder / interleave / model,
                monkeypatch,
                f"model.torch._target_=support.twins.{model}",
                "model.torch.name=a,b",
                f"batch_size={','.join(map(str, sizes))}",
                "compare.baseline={model.torch.name: a}",
                "protocol=default",
                f"protocol.interleave={interleave}",
            )
        )
    return found


@pytest.mark.timeout(LIMIT_S)
@pytest.mark.parametrize("interleave", ["rounds", "samples"])
def test_equal_sides_are_seldom_called_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interleave: str
) -> None:
    """The same combination under two names, protocol=default."""
    comparisons = equal_pairs(tmp_path, monkeypatch, interleave)
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
def test_a_slowdown_of_a_tenth_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interleave: str) -> None:
    """44 blocks instead of 40 with protocol=rigorous, which is interleaved; by rounds it is printed what those would have found."""
    cells = []
    for number in range(SWEEPS):
        comparison = swept(
            tmp_path / str(number),
            monkeypatch,
            "model.torch._target_=support.twins.Stack",
            f"model.torch.blocks={PLAIN},{SLOWER}",
            f"compare.baseline={{model.torch.blocks: {PLAIN}}}",
            "batch_size=16",
            "protocol=rigorous",
            f"protocol.interleave={interleave}",
            "protocol.min_samples=20",
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
