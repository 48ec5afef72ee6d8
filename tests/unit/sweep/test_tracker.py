"""What the process that talks to a tracker gives it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from support.plans import fake_plan, sweep_folder
from sweeprof.results.compare import Comparison
from sweeprof.results.record import Record
from sweeprof.sweep import tracker
from sweeprof.tracking import Ending, Links, SweepInfo


class Seen:
    """A tracker that keeps what it is given."""

    def open(self, sweep: SweepInfo) -> Links:
        return Links(None, "")

    def close(self, comparison: Comparison, records: Sequence[Record], folder: Path, ending: Ending) -> None:
        self.records = list(records)


def test_a_tracker_is_given_every_record_and_not_what_fills_the_memory(tmp_path: Path) -> None:
    plan = fake_plan({"a": {}, "b": {}})
    folder = sweep_folder(tmp_path, plan)
    for id in ("ca", "cb", "gone"):
        record = Record("s1", id, "analysis", "failed", "why", observations={"rows": [1]}, environment={"host": "h"})
        record.write(folder.records)
    seen = Seen()
    tracker._close(seen, folder, "failed", "it was not measured")
    assert [(r.combination_id, r.status, r.reason) for r in seen.records] == [
        ("ca", "failed", "why"),
        ("cb", "failed", "why"),
    ]
    assert [(r.observations, r.environment) for r in seen.records] == [(None, {})] * 2
    configs = {c.id: c.config for c in folder.read_plan().combinations}
    assert all(r.config == configs[r.combination_id] for r in seen.records)
