"""Interleaved samples through the real command, on scripted clocks: every figure is exact."""

from __future__ import annotations

import json
from typing import Any

import pytest

from support.command import Command
from support.records import read_records
from sweeprof.measuring.timing import Timing

FAKE = ("model=fake", "backend=fake", "dataset=synthetic", "tracking=none", "protocol.rounds=3")


@pytest.mark.slow
def test_interleaved_samples(sweeprof: Command) -> None:
    """Batch sizes 1 and 2, each with a baseline and two slower ones: two trial groups a round; steps of the two kinds alternate."""
    ran = sweeprof(
        *FAKE,
        "name=d",
        "protocol=interleaved",
        "metrics=latency",
        "model.fake.step_s=0.001",
        "batch_size=1,2",
        "backend.slowdown=1,2,4",
        "compare.baseline={backend.slowdown: 1}",
    )
    assert ran.code == 0, ran.err
    folder = ran.folder("d")
    records = read_records(folder / "records")
    assert {record.status for record in records} == {"ok"}
    assert len(records) == 2 * 3 * 3
    timings = {r.combination_id: [] for r in records}  # type: dict[str, list[Timing]]
    for record in records:
        timings[record.combination_id].append(Timing.from_dict(record.observations or {}, record.round))
    runs: dict[str, list[Timing]] = {}
    for timing in (one for several in timings.values() for one in several):
        assert timing.interleaved_run is not None
        runs.setdefault(timing.interleaved_run.id, []).append(timing)
    assert len(runs) == 2 * 3
    assert {len(members) for members in runs.values()} == {3}
    assert all(
        len({timing.interleaved_run.turns for timing in members if timing.interleaved_run}) == 1
        for members in runs.values()
    )
    rows = json.loads((folder / "comparison.json").read_text(encoding="utf-8"))["rows"]
    for row in rows:
        slowdown = row["axes"]["backend.slowdown"]
        cell: dict[str, Any] = row["cells"]["latency/forward"]
        assert cell["measurement"]["paired"] == ([] if slowdown == 1 else cell["measurement"]["rounds"])
        if slowdown > 1:
            assert (round(cell["ratio"], 9), cell["verdict"]) == (slowdown, "worse")
