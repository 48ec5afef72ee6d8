"""What the process that talks to a tracker gives it, and what becomes of its troubles."""

from __future__ import annotations

import dataclasses
import io
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import psutil
import pytest
from rich.console import Console

from support.plans import fake_plan, read_records, sweep_folder
from sweeprof.config.schema import LimitSettings
from sweeprof.plan.plan import Plan
from sweeprof.results.files import read_json, write_json
from sweeprof.results.record import Json, Record
from sweeprof.run import driver, tracker_process
from sweeprof.run.comparison import comparison_of
from sweeprof.run.locks import driver_lock
from sweeprof.run.reports import write_reports
from sweeprof.run.shard import run_shard
from sweeprof.run.tracker_process import (
    StoredTracker,
    TrackerProcess,
    keep_config,
    note_ending,
    note_sent,
    noted_ending,
    sending_command,
    unsent,
    viewing_command,
)
from sweeprof.storage import Folder
from sweeprof.tracking import MLFLOW, Links

SCRIPTED = """
import os, signal, sys, time
from sweeprof.tracking import MLFLOW, Links, Tracker
class Scripted(Tracker):
    def __init__(self, on_open, on_close, output):
        self.on_open, self.on_close = on_open, on_close
    def open(self, sweep):
        exec(self.on_open)
        return Links(False, "opened")
    def close(self, comparison, records, folder, ending):
        exec(self.on_close)
        return Links(False, f"closed with {len(comparison.rows)}, {ending}")
"""


Make = Callable[..., TrackerProcess]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """A sweep that was not measured, with its reports."""
    found = sweep_folder(tmp_path / "outputs" / "name" / "sweep", fake_plan({"a": {}, "b": {}}))
    write_reports(found, comparison_of(found))
    return found


@pytest.fixture
def make(folder: Folder, write_module: Callable[[str, str], None]) -> Make:
    """A real process with a tracker that runs the given lines when it is opened and closed."""
    write_module("scripted", SCRIPTED)

    def made(on_open: str = "pass", on_close: str = "pass") -> TrackerProcess:
        config = {"_target_": "scripted.Scripted", "on_open": on_open, "on_close": on_close}
        keep_config(folder, config)
        return TrackerProcess(StoredTracker(config, confined=False), folder, trust=True)

    return made


def stored(folder: Folder) -> dict[str, Any]:
    found: dict[str, Any] = read_json(folder.tracking)
    return found


def running() -> list[psutil.Process]:
    """The processes that talk to trackers."""
    children = psutil.Process().children()
    return [child for child in children if "sweeprof.run.tracker_process" in " ".join(child.cmdline())]


def test_a_tracker_is_given_every_record_and_not_what_fills_the_memory(make: Make, folder: Folder) -> None:
    for id in ("ca", "cb", "gone"):
        record = Record("s1", id, "analysis", "failed", "why", observations={"rows": [1]}, environment={"host": "h"})
        record.write(folder.records)
    given = "[(r.combination_id, r.status, r.reason, r.observations, r.environment) for r in records]"
    expected: list[Any] = [("ca", "failed", "why", None, {}), ("cb", "failed", "why", None, {})]
    with make(on_close=f"assert {given} == {expected}, {given}") as process:
        assert process.close("finished") is not None, process.trouble


def test_what_was_away_at_first_gets_everything_at_the_end(make: Make, folder: Folder) -> None:
    told: list[str] = []
    with make(on_open="raise ConnectionError('away')") as process:
        process.open(folder.read_plan(), told.append)
        assert process.opened(60) is None
        assert told == ["ConnectionError: away"]
        assert stored(folder)["sent"] is None
        assert process.close("finished") == Links(False, "closed with 2, finished")
        assert process.trouble is None
    assert stored(folder)["sent"]


@pytest.mark.slow
def test_a_process_that_was_killed_is_replaced_before_it_is_needed(make: Make, folder: Folder) -> None:
    with make() as process:
        process.open(folder.read_plan())
        assert process.opened(60) == Links(False, "opened")
        (child,) = running()
        child.kill()
        child.wait(10)
        assert process.close("finished") == Links(False, "closed with 2, finished")
        assert process.trouble is None


@pytest.mark.slow
def test_a_tracker_that_hangs_at_first_is_replaced(make: Make, folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracker_process, "OPEN_S", 0.5)
    with make(on_open="time.sleep(600)") as process:
        process.open(folder.read_plan())
        assert process.opened(0) is None  # measuring begins
        assert process.close("finished") == Links(False, "closed with 2, finished")
        assert process.trouble is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("on_close", "limits", "trouble"),
    [
        ("os.kill(os.getpid(), signal.SIGSTOP)", (0.5, 600), "the tracker made no progress for 0.5 s"),
        ("while True: time.sleep(0.05); self.on_progress()", (30, 1), "the tracker did not finish within 1 s"),
        ("os.kill(os.getpid(), signal.SIGKILL)", (30, 600), "its tracker process was killed by SIGKILL (signal 9)"),
    ],
)
def test_the_end_of_a_sweep_takes_limited_time_and_what_is_not_sent_has_its_reason(
    make: Make, folder: Folder, monkeypatch: pytest.MonkeyPatch, on_close: str, limits: tuple[float, int], trouble: str
) -> None:
    idle_s, limit_s = limits
    monkeypatch.setattr(tracker_process, "IDLE_S", idle_s)
    with make(on_close=on_close) as process:
        process.open(folder.read_plan())  # how long the process takes to start is not what is tested here
        opened = process.opened(60)
        assert process.close("finished", limit_s) == opened
        assert process.trouble == trouble
        assert running() == []
    assert (stored(folder)["sent"], stored(folder)["trouble"]) == (None, trouble)


@pytest.mark.slow
def test_a_slow_tracker_with_progress_may_finish(make: Make, folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracker_process, "IDLE_S", 2.0)
    with make(on_close="for _ in range(10): time.sleep(0.25); self.on_progress()") as process:
        process.open(folder.read_plan())
        process.opened(60)
        assert process.close("finished", 600) == Links(False, "closed with 2, finished")
        assert process.trouble is None


def test_a_sweep_is_measured_while_a_tracker_hangs(folder: Folder, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that the tracker does delays the first measurement, and what follows the last one has its limit."""
    measured: list[float] = []

    def launch(folder: Folder, plan: Plan, shards: Sequence[int]) -> None:
        (child,) = running()
        run_shard(folder, 0)
        measured.append(time.monotonic())
        assert child.is_running()

    make(on_open="time.sleep(600)", on_close="time.sleep(600)")
    monkeypatch.setattr(driver, "SENDING_S", 0.5)
    plan = dataclasses.replace(folder.read_plan(), limits=LimitSettings(timeout_s=None, memory=None))
    write_json(folder.plan, plan.to_dict())
    out, live = Console(file=io.StringIO(), width=200), Console(file=io.StringIO(), width=200)
    with driver_lock(folder.path):
        tracking = StoredTracker(dict(stored(folder)["config"]), confined=False)
        driver.measure_missing(folder, plan, tracking, launch, out, live)
    assert time.monotonic() - measured[0] >= 0.5
    assert {record.status for record in read_records(folder.records)} == {"ok"}
    said = "the tracker did not finish within 0.5 s; send it with: sweeprof sync"
    assert said in cast("io.StringIO", out.file).getvalue()
    assert stored(folder)["sent"] is None


def test_no_password_is_told_or_logged(make: Make, folder: Folder) -> None:
    said = "'at http://me:secret@host'"
    with make(on_open=f"print({said}, file=sys.stderr, flush=True); raise OSError({said})") as process:
        process.open(folder.read_plan())
        process.opened(60)
        assert process.trouble == "OSError: at http://host"
    assert (folder.logs / "tracker.log").read_text() == "at http://host\n"


def test_its_process_ends_as_a_program_does(make: Make, folder: Folder) -> None:
    """What a tracker leaves to the end of its program is done: threads, exit functions, output that is not yet written."""
    lines = """
import atexit, threading
def later():
    time.sleep(0.2)
    sys.stdout.write("thread ")
threading.Thread(target=later).start()
atexit.register(sys.stdout.write, "exit function")
"""
    with make(on_close=lines) as process:
        assert process.close("finished") is not None
    assert (folder.logs / "tracker.log").read_text() == "thread exit function"


LOCAL: Json = {"_target_": MLFLOW, "uri": None}


def sweep(output: Path, stamp: str = "2026-11-22_10-00-00Z", name: str = "a") -> Folder:
    (output / name / stamp).mkdir(parents=True)
    return sweep_folder(output / name / stamp, fake_plan({"a": {}}))


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("http://me:secret@host:5000", "http://***@host:5000"),
        ("postgresql://host/db?user=me&password=secret", "postgresql://host/db?user=me&password=***"),
    ],
)
def test_a_password_is_left_to_the_user(uri: str, shown: str, tmp_path: Path) -> None:
    folder = sweep(tmp_path)
    keep_config(folder, {**LOCAL, "uri": uri})
    assert "secret" not in folder.tracking.read_text()
    assert read_json(folder.tracking)["complete"] is False
    assert sending_command(folder) == f"sweeprof sync {folder.path} 'uri={shown}'"


def test_what_was_sent_once_stays_sent_until_it_is_measured_anew(tmp_path: Path) -> None:
    folder = sweep(tmp_path)
    keep_config(folder, LOCAL)
    note_sent(folder, None)
    sent = stored(folder)["sent"]
    assert sent
    note_sent(folder, "another server is away")
    assert (stored(folder)["sent"], stored(folder)["trouble"]) == (sent, "another server is away")
    keep_config(folder, {"_target_": None})
    assert (stored(folder)["config"], stored(folder)["sent"]) == (LOCAL, None)


def test_the_commands_that_send_and_that_open_mlflow(tmp_path: Path) -> None:
    folder = sweep(tmp_path / "with space")
    keep_config(folder, LOCAL)
    assert sending_command(folder) == f"sweeprof sync '{folder.path}'"
    shown = f"sweeprof ui '{folder.path}'"
    assert viewing_command(folder) == shown
    assert viewing_command(folder, "sqlite:///other.db") == "mlflow server --backend-store-uri sqlite:///other.db"
    elsewhere = f"sqlite:///{tmp_path}/elsewhere.db"
    keep_config(folder, {**LOCAL, "uri": elsewhere})
    assert viewing_command(folder) == f"MLFLOW_TRACKING_URI={elsewhere} {shown}"
    assert sending_command(folder) == f"sweeprof sync '{folder.path}' uri={elsewhere}"
    keep_config(folder, {**LOCAL, "uri": "postgresql://me:secret@host/db"})
    assert viewing_command(folder) == f"MLFLOW_TRACKING_URI='postgresql://***@host/db' {shown}"


def test_how_measuring_ended_is_noted_until_it_goes_on(tmp_path: Path) -> None:
    folder = sweep(tmp_path)
    for config in (LOCAL, {"_target_": None}):
        keep_config(folder, config)
        assert noted_ending(folder) is None
        note_ending(folder, "interrupted", "why")
        note_sent(folder, "away")
        assert noted_ending(folder) == ("interrupted", "why")


def test_what_is_still_to_be_sent(tmp_path: Path) -> None:
    sent, old, untracked, new, measured, broken = (
        sweep(tmp_path, f"2026-11-22_10-00-0{number}Z", "ab"[number % 2]) for number in range(6)
    )
    for folder in (sent, old, new, measured):
        keep_config(folder, LOCAL)
    keep_config(untracked, {"_target_": None})
    note_sent(sent, None)
    note_sent(old, "away")
    write_json(broken.tracking, {"config": LOCAL, "complete": True})  # as earlier versions did
    with driver_lock(measured.path):
        assert unsent(tmp_path) == [old, new]
