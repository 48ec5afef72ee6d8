"""What was submitted, in the folder."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from sweeprof.storage import Jobs, Note, ShardOutcome, Submission


def test_submissions_are_found_among_the_notes_of_their_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = Jobs(tmp_path)
    one = jobs.new("night", [0, 1], {})
    jobs.keep(one, "#!/bin/bash\n")
    for number in range(2):
        jobs.write_note(one.token, number, Note("1", "n1", 0, 0))
    jobs.write_outcomes({1: ShardOutcome("x", "lost", "y")})
    read: list[str] = []
    original = Jobs.read

    def noted(self: Jobs, token: str) -> Submission | None:
        read.append(token)
        return original(self, token)

    monkeypatch.setattr(Jobs, "read", noted)
    assert jobs.all() == [one]
    assert read == [one.token]  # of thousands of notes none is read


def test_the_newest_is_the_last_whatever_the_clock_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = Jobs(tmp_path)
    one = jobs.new("night", [0], {})
    jobs.keep(one)
    monkeypatch.setattr(time, "time", lambda: one.submitted - 300)
    two = jobs.new("night", [0], {})
    jobs.keep(two)
    assert jobs.all() == [one, two]


def test_a_submission_that_was_cut_is_none(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path)
    jobs.keep(jobs.new("night", [0], {}))
    (path,) = jobs.path.glob("*.json")
    path.write_text(path.read_text()[:20])
    assert jobs.all() == []
