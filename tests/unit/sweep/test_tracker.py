"""What the process that talks to a tracker gives it, and what becomes of its troubles."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from support.plans import fake_plan, sweep_folder
from sweeprof.results.compare import Comparison
from sweeprof.results.files import read_json
from sweeprof.results.record import Record
from sweeprof.sweep import tracker
from sweeprof.sweep.folder import Folder
from sweeprof.sweep.queued import StoredTracker, keep_config
from sweeprof.sweep.tracker import TrackerProcess
from sweeprof.tracking import Ending, Links, SweepInfo

SCRIPTED = """
import os, signal, sys, time
from sweeprof.tracking import Links
class Scripted:
    def __init__(self, on_open, on_close, output):
        self.on_open, self.on_close = on_open, on_close
    def open(self, sweep):
        exec(self.on_open)
        return Links(False, "opened")
    def close(self, comparison, records, folder, ending):
        exec(self.on_close)
        return Links(False, f"closed with {len(comparison.rows)}, {ending}")
"""


class Seen:
    """A tracker that keeps what it is given."""

    def open(self, sweep: SweepInfo) -> Links:
        return Links(False, "")

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


Make = Callable[..., TrackerProcess]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return sweep_folder(tmp_path / "outputs" / "name" / "sweep", fake_plan({"a": {}, "b": {}}))


@pytest.fixture
def make(folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """A real process with a tracker that runs the given lines when it is opened and closed."""
    (tmp_path / "scripted.py").write_text(SCRIPTED)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))

    def made(on_open: str = "pass", on_close: str = "pass") -> TrackerProcess:
        config = {"_target_": "scripted.Scripted", "on_open": on_open, "on_close": on_close}
        keep_config(folder, config)
        return TrackerProcess(StoredTracker(config, confined=False), folder, trust=True)

    return made


def stored(folder: Folder) -> dict[str, Any]:
    found: dict[str, Any] = read_json(folder.tracking)
    return found


def test_what_was_away_at_first_gets_everything_at_the_end(make: Make, folder: Folder) -> None:
    with make(on_open="raise ConnectionError('away')") as process:
        assert process.open(folder.read_plan()) is None
        assert process.trouble == "ConnectionError: away"
        assert stored(folder)["sent"] is None
        assert process.close("finished", "it was not measured", 2) == Links(False, "closed with 2, finished")
        assert process.trouble is None
    assert stored(folder)["sent"]


@pytest.mark.slow
def test_a_tracker_that_is_not_installed_is_told(folder: Folder) -> None:
    with TrackerProcess(
        StoredTracker({"_target_": "not_installed.Tracker"}, confined=False), folder, trust=True
    ) as process:
        assert process.open(folder.read_plan()) is None
        assert "not_installed" in str(process.trouble)


def test_a_process_that_was_killed_is_replaced_before_it_is_needed(make: Make, folder: Folder) -> None:
    with make() as process:
        assert process.open(folder.read_plan()) == Links(False, "opened")
        (child,) = (c for c in psutil.Process().children() if "sweeprof.sweep.tracker" in " ".join(c.cmdline()))
        child.kill()
        child.wait(10)
        assert process.close("finished", "", 2) == Links(False, "closed with 2, finished")
        assert process.trouble is None


def test_an_answer_that_comes_too_late_is_not_taken_for_another(
    make: Make, folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracker, "OPEN_S", 0.1)
    with make(on_open="time.sleep(0.5)") as process:
        assert process.open(folder.read_plan()) is None
        assert "did not answer within" in str(process.trouble)
        assert process.close("finished", "", 2) == Links(False, "closed with 2, finished")


def test_what_is_not_sent_is_noted_with_its_reason(make: Make, folder: Folder) -> None:
    with make(on_close="os.kill(os.getpid(), signal.SIGKILL)") as process:
        assert process.close("finished", "", 2) is None
        assert process.trouble == "its tracker process was killed by SIGKILL (signal 9)"
    assert (stored(folder)["sent"], stored(folder)["trouble"]) == (None, process.trouble)


def test_no_password_is_told_or_logged(make: Make, folder: Folder) -> None:
    said = "'at http://me:secret@host'"
    with make(on_open=f"print({said}, file=sys.stderr, flush=True); raise OSError({said})") as process:
        process.open(folder.read_plan())
        assert process.trouble == "OSError: at http://host"
    assert (folder.logs / "tracker.log").read_text() == "at http://host\n"


def test_without_a_tracker_nothing_is_started(folder: Folder) -> None:
    keep_config(folder, {"_target_": None})
    with TrackerProcess(StoredTracker({"_target_": None}, confined=False), folder) as process:
        assert process.open(folder.read_plan()) is None
        assert process.close("finished", "", 2) is None
        assert process.trouble is None
    assert stored(folder)["sent"] is None
