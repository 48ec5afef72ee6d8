"""The comparison of a sweep whose jobs were left to themselves."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from support.plans import fake_plan, sweep_folder
from support.scripted import ScriptedSlurm
from support.subcommands import subcommand
from sweeprof.errors import ExitCode
from sweeprof.results.files import read_json
from sweeprof.results.record import Record
from sweeprof.run.locks import driver_lock
from sweeprof.run.tracker_process import keep_config
from sweeprof.storage import Folder, Jobs, Submission
from sweeprof.tracking import MLFLOW

main = subcommand("collect")


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ScriptedSlurm:
    monkeypatch.delenv("MLFLOW_TRACKING_USERNAME", raising=False)
    monkeypatch.delenv("MLFLOW_TRACKING_TOKEN", raising=False)
    return ScriptedSlurm(tmp_path / "slurm", monkeypatch)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """Of two combinations in two tasks, one of them measured."""
    cluster = {"settings": {"scheduler": "slurm", "poll_s": 0.1}, "resources": [{}, {}]}
    plan = dataclasses.replace(fake_plan({"a": {}, "b": {}}, ["analysis"]), shards=(("ca",), ("cb",)), cluster=cluster)
    folder = sweep_folder(tmp_path / "out" / "test" / "1", plan)
    Record("s1", "ca", "analysis", "ok").write(folder.records)
    return folder


@pytest.fixture
def submission(folder: Folder) -> Submission:
    made = Jobs(folder.path).new("test", [0, 1], {})
    Jobs(folder.path).keep(made)
    return made


def rows(folder: Folder) -> list[tuple[str, str | None]]:
    return [(row["status"], row["reason"]) for row in read_json(folder.path / "comparison.json")["rows"]]


def test_while_jobs_run(slurm: ScriptedSlurm, folder: Folder, submission: Submission) -> None:
    slurm.queue(submission, "COMPLETED", "PENDING", job=9)
    assert main([str(folder.path)]) == ExitCode.RUNNING
    assert rows(folder) == [("ok", None), ("skipped", "analysis: it has not begun yet")]


def test_once_no_job_is_left(slurm: ScriptedSlurm, folder: Folder, submission: Submission) -> None:
    slurm.queue(submission, "COMPLETED", "CANCELLED", job=9)
    assert main([str(folder.path), "--wait"]) == 2
    said = "analysis: its job 9_1 on n1 was cancelled before it was measured"
    assert rows(folder) == [("ok", None), ("skipped", said)]
    assert slurm.told("sbatch") == []  # who looks on submits nothing


def test_a_controller_that_does_not_answer(
    slurm: ScriptedSlurm, folder: Folder, submission: Submission, capsys: pytest.CaptureFixture[str]
) -> None:
    slurm.go_away()
    assert main([str(folder.path)]) == ExitCode.RUNNING
    assert "Unable to contact slurm controller" in capsys.readouterr().out


def test_a_sweep_that_has_a_driver(slurm: ScriptedSlurm, folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    with driver_lock(folder.path):
        assert main([str(folder.path)]) == 1
    assert "DIR" in (err := capsys.readouterr().err)
    assert "is in use by process" in err


def test_a_sweep_of_this_host(slurm: ScriptedSlurm, folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    sweep_folder(folder.path, fake_plan({"a": {}}))
    assert main([str(folder.path)]) == 1
    assert "was not measured by jobs of a cluster" in capsys.readouterr().err


def test_a_tracker_whose_password_is_not_stored(
    slurm: ScriptedSlurm, folder: Folder, capsys: pytest.CaptureFixture[str]
) -> None:
    keep_config(folder, {"_target_": MLFLOW, "uri": "http://me:pa55@lab:5000"})
    assert main([str(folder.path)]) == 1
    err = capsys.readouterr().err
    assert "had a password, which is not stored" in err
    assert "pa55" not in err


def test_words_that_are_no_command_are_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["last", "--wiat"]) == 1
    assert capsys.readouterr().err.startswith("error: sweeprof collect: '--wiat' is not an option. Did you mean")
