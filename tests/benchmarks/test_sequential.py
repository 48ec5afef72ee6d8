"""Rounds until the verdict is decided, beside a fixed number of rounds: measuring time and verdicts of the quickstart, in one run.

``DECIDE_REPEATS`` (default 1) repeats both, one after the other.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.command import run_command
from support.records import read_records
from sweeprof.results.compared_rows import Comparison

REPEATS = int(os.environ.get("DECIDE_REPEATS", "1"))
METRIC = "latency/forward"
LIMIT_S = 3600
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


def swept(folder: Path, protocol: str) -> Sweep:
    folder.mkdir(parents=True)
    ran = run_command(
        folder,
        "+sweep=quickstart",
        f"protocol={protocol}",
        f"metrics.select=[{METRIC}]",
        "tracking=none",
        timeout=LIMIT_S,
    )
    assert ran.code == 0, ran.err
    output = ran.folder("quickstart")
    records = [record for record in read_records(output / "records") if record.pass_name == "timing"]
    return Sweep(Comparison.read(output), sum(record.wall_s for record in records))


@pytest.mark.timeout(LIMIT_S)
def test_the_quickstarts_verdicts_in_a_third_of_the_time(tmp_path: Path) -> None:
    contradictions = 0
    ratios = []
    for repeat in range(REPEATS):
        decide, default = (swept(tmp_path / f"{protocol}{repeat}", protocol) for protocol in ("decide", "default"))
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
