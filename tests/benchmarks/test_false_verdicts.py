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
from pathlib import Path

import pytest
from benchmarks.measured import swept

from support.plans import read_records
from sweeprof.results.compared_rows import Comparison, Row
from sweeprof.results.differences import Cell, Verdict
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


@pytest.mark.timeout(LIMIT_S)
@pytest.mark.parametrize("interleave", ["rounds", "samples"])
def test_equal_sides_are_seldom_called_changed(tmp_path: Path, interleave: str) -> None:
    """The same combination under two names, for so many batch sizes of two models; protocol=default."""
    sizes = ",".join(map(str, range(1, math.ceil(PAIRS / len(MODELS)) + 1)))
    names = ("model.torch.name=a,b", "compare.baseline={model.torch.name: a}", f"batch_size={sizes}")
    protocol = ("protocol=default", f"protocol.interleave={interleave}")
    cells = []
    settled = Counter[float]()
    for model in MODELS:
        target = f"model.torch._target_=support.nets.{model}_named"
        comparison = compared(tmp_path / model, target, *names, *protocol)
        bases = {row.combination_id: row.cells[METRIC].measurement for row in comparison.rows}
        for row, cell in candidates(comparison):
            cells.append(cell)
            for threshold in (0.02, 0.05, 0.10):
                called = compare_cell(cell.measurement, bases[str(row.baseline_id)], threshold).verdict
                settled[threshold] += called != "unclear"
    verdicts = Counter(cell.verdict for cell in cells)
    changed = verdicts["better"] + verdicts["worse"]
    print(f"\n{len(cells)} equal pairs, interleave={interleave}: {changed} called changed; {dict(verdicts)}")
    for threshold, count in settled.items():
        print(f"threshold {threshold:.0%}: five rounds settle {count} of {len(cells)} pairs")
    assert len(cells) >= PAIRS
    assert {cell.used for cell in cells} == {"paired" if interleave == "samples" else "rounds"}
    assert changed <= WRONG_AT_MOST * max(1.0, len(cells) / 40)


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


def decided(folder: Path, protocol: str) -> tuple[dict[str, Verdict | None], float]:
    """The verdicts of the quickstart's combinations, and the wall time of all trials of the timing pass."""
    ran = swept(folder, "+sweep=quickstart", f"protocol={protocol}", f"metrics.select=[{METRIC}]", "tracking=none")
    output = ran.folder("quickstart")
    records = [record for record in read_records(output / "records") if record.pass_name == "timing"]
    comparison = Comparison.read(output)
    verdicts = {str(sorted(row.axes.items())): cell.verdict for row, cell in candidates(comparison)}
    rounds = Counter(row.rounds_complete for row in comparison.rows)
    print(f"\n{protocol}: rounds {dict(rounds)}; verdicts {dict(Counter(verdicts.values()))}")
    return verdicts, math.fsum(record.wall_s for record in records)


@pytest.mark.timeout(LIMIT_S)
def test_the_quickstarts_verdicts_in_a_third_of_the_time(tmp_path: Path) -> None:
    ratios = []
    for repeat in range(REPEATS):
        decide, seconds = decided(tmp_path / f"decide{repeat}", "decide")
        default, of_default = decided(tmp_path / f"default{repeat}", "default")
        ratios.append(seconds / of_default)
        print(f"measuring time of decide over default: {ratios[-1]:.2f}")
        both = {(verdict, default[axes]) for axes, verdict in decide.items()}
        assert not both & {("better", "worse"), ("worse", "better"), ("same", "worse"), ("same", "better")}
        assert list(decide.values()).count("unclear") <= list(default.values()).count("unclear") + 1
    assert min(ratios) <= AT_MOST
