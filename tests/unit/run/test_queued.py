"""What a folder says of its tracker."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.plans import fake_plan, sweep_folder
from sweeprof.results.files import read_json, write_json
from sweeprof.results.record import Json
from sweeprof.run.locks import driver_lock, sending_lock
from sweeprof.run.tracker_process import (
    keep_config,
    note_ending,
    note_sent,
    noted_ending,
    reachable,
    sending_command,
    unsent,
    viewing_command,
)
from sweeprof.storage import Folder

MLFLOW: Json = {"_target_": "sweeprof.tracking.mlflow.MlflowTracker", "uri": None}


def sweep(output: Path, stamp: str = "2026-11-22_10-00-00Z", name: str = "a") -> Folder:
    (output / name / stamp).mkdir(parents=True)
    return sweep_folder(output / name / stamp, fake_plan({"a": {}}))


def test_the_command_that_sends(tmp_path: Path) -> None:
    folder = sweep(tmp_path / "with space")
    keep_config(folder, MLFLOW)
    assert sending_command(folder) == f"sweeprof sync '{folder.path}'"


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("http://me:secret@host:5000", "http://***@host:5000"),
        ("postgresql://host/db?user=me&password=secret", "postgresql://host/db?user=me&password=***"),
    ],
)
def test_a_password_is_left_to_the_user(uri: str, shown: str, tmp_path: Path) -> None:
    folder = sweep(tmp_path)
    keep_config(folder, {**MLFLOW, "uri": uri})
    assert "secret" not in folder.tracking.read_text()
    assert read_json(folder.tracking)["complete"] is False
    assert sending_command(folder) == f"sweeprof sync {folder.path} 'uri={shown}'"


def test_what_is_measured_anew_is_to_be_sent_anew(tmp_path: Path) -> None:
    folder = sweep(tmp_path)
    keep_config(folder, MLFLOW)
    note_sent(folder, None)
    assert read_json(folder.tracking)["sent"]
    keep_config(folder, {"_target_": None})
    stored = read_json(folder.tracking)
    assert (stored["config"], stored["sent"]) == (MLFLOW, None)


def test_the_command_that_opens_mlflow(tmp_path: Path) -> None:
    folder = sweep(tmp_path / "with space")
    keep_config(folder, MLFLOW)
    shown = f"sweeprof ui '{folder.path}'"
    assert viewing_command(folder) == shown
    assert viewing_command(folder, "sqlite:///other.db") == "mlflow server --backend-store-uri sqlite:///other.db"
    elsewhere = f"sqlite:///{tmp_path}/elsewhere.db"
    keep_config(folder, {**MLFLOW, "uri": elsewhere})
    assert viewing_command(folder) == f"MLFLOW_TRACKING_URI={elsewhere} {shown}"
    assert sending_command(folder) == f"sweeprof sync '{folder.path}' uri={elsewhere}"
    keep_config(folder, {**MLFLOW, "uri": "postgresql://me:secret@host/db"})
    assert viewing_command(folder) == f"MLFLOW_TRACKING_URI='postgresql://***@host/db' {shown}"


@pytest.mark.parametrize(
    ("uri", "known"),
    [
        ("sqlite:///a.db", "sqlite:///a.db"),
        ("http://me:secret@host:5000", "http://host:5000"),
        ("postgresql://me:secret@host/db", None),
    ],
)
def test_a_login_that_is_not_stored_may_be_in_the_environment(
    uri: str, known: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("USERNAME", "PASSWORD", "TOKEN"):
        monkeypatch.delenv(f"MLFLOW_TRACKING_{name}", raising=False)
    folder = sweep(tmp_path)
    keep_config(folder, {**MLFLOW, "uri": uri})
    stored = read_json(folder.tracking)
    assert (reachable(stored) is None) == ("secret" in uri)
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "me")
    found = reachable(stored)
    assert (found and found["uri"]) == known


@pytest.mark.parametrize("again", [MLFLOW, {"_target_": None}])
def test_how_measuring_ended_is_noted_until_it_goes_on(again: Json, tmp_path: Path) -> None:
    folder = sweep(tmp_path)
    assert noted_ending(folder) is None
    keep_config(folder, MLFLOW)
    assert noted_ending(folder) is None
    note_ending(folder, "interrupted", "why")
    note_sent(folder, "away")
    assert noted_ending(folder) == ("interrupted", "why")
    keep_config(folder, again)
    assert noted_ending(folder) is None


def test_what_was_sent_once_stays_sent(tmp_path: Path) -> None:
    folder = sweep(tmp_path)
    keep_config(folder, MLFLOW)
    note_sent(folder, None)
    sent = read_json(folder.tracking)["sent"]
    note_sent(folder, "another server is away")
    stored = read_json(folder.tracking)
    assert (stored["sent"], stored["trouble"]) == (sent, "another server is away")


def test_a_sweep_is_sent_by_one_process_at_a_time(tmp_path: Path) -> None:
    with (
        sending_lock(tmp_path, 0),
        pytest.raises(TimeoutError, match="another process is sending"),
        sending_lock(tmp_path, 0),
    ):
        pass
    with sending_lock(tmp_path, 0):
        pass


def test_what_is_still_to_be_sent(tmp_path: Path) -> None:
    sent, old, untracked, new, measured, broken = (
        sweep(tmp_path, f"2026-11-22_10-00-0{number}Z", "ab"[number % 2]) for number in range(6)
    )
    for folder in (sent, old, new, measured):
        keep_config(folder, MLFLOW)
    keep_config(untracked, {"_target_": None})
    note_sent(sent, None)
    note_sent(old, "away")
    write_json(broken.tracking, {"config": MLFLOW, "complete": True})  # as earlier versions did
    with driver_lock(measured.path):
        assert unsent(tmp_path) == [old, new]
