"""The log of a shard's trials."""

from __future__ import annotations

from pathlib import Path

from sweeprof.plan.plan import Trial
from sweeprof.storage.events import EventLog, events_of

FIRST, SECOND = Trial("c000000000001", "timing"), Trial("c000000000002", "timing")


def test_an_event_after_a_line_that_was_cut_is_read(tmp_path: Path) -> None:
    path = tmp_path / "shard-0.jsonl"
    with EventLog(path) as events:
        events.write("begin", FIRST)
    path.write_bytes(path.read_bytes() + b'{"event": "end", "comb')  # of a process that was killed
    with EventLog(path) as events:
        events.write("begin", SECOND)
    assert [event.combination_id for event in events_of(tmp_path)] == [FIRST.combination_id, SECOND.combination_id]
