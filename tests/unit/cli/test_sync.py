"""``sweeprof sync`` and ``sweeprof collect``: what the tracker is given, and what keeps a sweep or its jobs from being sent."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import pytest

from support.command import subcommand
from support.plans import fake_plan, sweep_folder
from support.scripted import ScriptedSlurm
from sweeprof.errors import ExitCode
from sweeprof.plan.plan import SearchPlan
from sweeprof.results.compared_rows import SearchGoal
from sweeprof.results.files import read_json, write_json
from sweeprof.results.record import Record
from sweeprof.run.locks import driver_lock
from sweeprof.run.tracker_process import keep_config, note_ending
from sweeprof.storage import Folder, Jobs, Submission

NOTING = """
import json
from sweeprof.tracking import Links
class Noting:
    def __init__(self, uri, output):
        self.uri = uri
    def close(self, comparison, records, folder, ending):
        (folder / "got.json").write_text(json.dumps([self.uri, ending, [row.reason for row in comparison.rows]]))
        return Links(False, self.uri)
"""
LAB = "http://lab:5000"


@pytest.fixture(autouse=True)
def _noting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tracker that notes what it is given, for real processes; no login in the environment."""
    (tmp_path / "noting.py").write_text(NOTING)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    for name in ("USERNAME", "PASSWORD", "TOKEN"):
        monkeypatch.delenv(f"MLFLOW_TRACKING_{name}", raising=False)


collect = subcommand("collect")


def main(words: list[str]) -> int:
    """The command for folders that are trusted: their tracker is none of sweeprof's."""
    return subcommand("sync")([*words, "--trust"])


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ScriptedSlurm:
    return ScriptedSlurm(tmp_path / "slurm", monkeypatch)


def sweep(tmp_path: Path, name: str, uri: str) -> Folder:
    """A sweep of which nothing was measured, for the address ``uri``; in the order of their names they were begun."""
    path = tmp_path / "outputs" / name / f"2026-11-22_10-00-0{ord(name) - ord('a')}Z"
    path.mkdir(parents=True)
    folder = sweep_folder(path, fake_plan({"a": {}}))
    (path / "report.html").touch()
    keep_config(folder, {"_target_": "noting.Noting", "uri": uri})
    return folder


def got(folder: Folder) -> list[Any] | None:
    """Address, ending and reasons that the tracker was given."""
    path = folder.path / "got.json"
    return read_json(path) if path.exists() else None


def address(folder: Folder) -> str | None:
    """Where the sweep was sent."""
    found = got(folder)
    return str(found[0]) if found else None


@pytest.mark.slow
def test_an_interrupted_sweep_is_sent_as_one(tmp_path: Path) -> None:
    folder = sweep(tmp_path, "a", LAB)
    note_ending(folder, "interrupted", "interrupted before it was measured")
    assert main([str(folder.path)]) == 0
    assert got(folder) == [LAB, "interrupted", ["timing: interrupted before it was measured"]]


@pytest.mark.slow
def test_a_search_in_which_memory_ran_out_has_ended_well(tmp_path: Path) -> None:
    folder = sweep(tmp_path, "a", LAB)
    goals = (SearchGoal("latency/forward", "minimize"),)
    plan = dataclasses.replace(folder.read_plan(), search=SearchPlan(goals, 1, "random", 0))
    write_json(folder.plan, plan.to_dict())
    for name in plan.passes:
        Record(plan.sweep_id, "ca", name, "oom", "MemoryError").write(folder.records)
    assert main([str(folder.path)]) == 0
    assert got(folder) == [LAB, "finished", ["analysis: MemoryError"]]


@pytest.mark.slow
def test_one_sweep_that_cannot_be_sent_keeps_no_other_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    secret = sweep(tmp_path, "a", "http://me:pa55word@lab:5000")
    unreadable, locked, fine = sweep(tmp_path, "b", LAB), sweep(tmp_path, "c", LAB), sweep(tmp_path, "d", LAB)
    unreadable.plan.write_text("{}")
    (locked.path / "report.lock").mkdir()
    assert main(["unsent", "--output", str(tmp_path / "outputs")]) == 1
    err = capsys.readouterr().err
    assert all(str(folder.path) in err for folder in (secret, unreadable, locked))
    assert f"send it with: sweeprof sync {secret.path} 'uri=http://***@lab:5000'" in err
    assert [address(folder) for folder in (secret, unreadable, locked, fine)] == [None, None, None, LAB]


@pytest.mark.slow
def test_an_address_goes_to_the_sweeps_of_that_address_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = "http://me:pa55word@lab:5000"
    secret, other = sweep(tmp_path, "a", whole), sweep(tmp_path, "b", "http://other:5000")
    unsent = ["unsent", "--output", str(tmp_path / "outputs")]
    assert main([*unsent, "uri=http://me:pa55word@elsewhere"]) == 1
    err = capsys.readouterr().err
    assert "uri: 'http://***@elsewhere' is not the address of an unsent sweep" in err
    assert address(other) is None
    assert main([*unsent, f"uri={whole}"]) == 0
    assert [address(folder) for folder in (secret, other)] == [whole, "http://other:5000"]


@pytest.mark.slow
def test_a_login_in_the_environment_spares_the_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server, database = sweep(tmp_path, "a", "http://me:pa55word@lab:5000"), sweep(tmp_path, "b", "postgresql://u:p@h/d")
    assert main([str(server.path)]) == 1
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "me")
    assert main([str(database.path)]) == 1
    assert main([str(server.path)]) == 0
    assert address(server) == LAB


@pytest.mark.slow
def test_running_jobs_are_left_to_collect(
    tmp_path: Path, slurm: ScriptedSlurm, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = sweep(tmp_path, "a", LAB)
    cluster = {"settings": {"scheduler": "slurm"}, "resources": [{}]}
    write_json(folder.plan, dataclasses.replace(folder.read_plan(), cluster=cluster).to_dict())
    submission = Jobs(folder.path).new("a", [0], {})
    Jobs(folder.path).keep(submission)
    slurm.queue(submission, "RUNNING")
    assert main([str(folder.path)]) == 1
    assert f"is being measured by jobs; send it with: sweeprof collect {folder.path}" in capsys.readouterr().err
    assert main(["unsent", "--output", str(tmp_path / "outputs")]) == 0
    assert got(folder) is None
    slurm.queue(submission)
    assert main(["unsent", "--output", str(tmp_path / "outputs")]) == 0
    assert got(folder) is not None


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
    assert collect([str(folder.path)]) == ExitCode.RUNNING
    assert rows(folder) == [("ok", None), ("skipped", "analysis: it has not begun yet")]


def test_once_no_job_is_left(slurm: ScriptedSlurm, folder: Folder, submission: Submission) -> None:
    slurm.queue(submission, "COMPLETED", "CANCELLED", job=9)
    assert collect([str(folder.path), "--wait"]) == 2
    said = "analysis: its job 9_1 on n1 was cancelled before it was measured"
    assert rows(folder) == [("ok", None), ("skipped", said)]
    assert slurm.told("sbatch") == []  # who looks on submits nothing


def test_a_controller_that_does_not_answer(
    slurm: ScriptedSlurm, folder: Folder, submission: Submission, capsys: pytest.CaptureFixture[str]
) -> None:
    slurm.go_away()
    assert collect([str(folder.path)]) == ExitCode.RUNNING
    assert "Unable to contact slurm controller" in capsys.readouterr().out


def test_a_sweep_that_has_a_driver(slurm: ScriptedSlurm, folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    with driver_lock(folder.path):
        assert collect([str(folder.path)]) == 1
    assert "DIR" in (err := capsys.readouterr().err)
    assert "is in use by process" in err


def test_a_sweep_of_this_host(folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    sweep_folder(folder.path, fake_plan({"a": {}}))
    assert collect([str(folder.path)]) == 1
    assert "was not measured by jobs of a cluster" in capsys.readouterr().err
