"""What a task of an array does on its node."""

from __future__ import annotations

import multiprocessing
import os
import socket
import subprocess
import sys

import pytest

from sweeprof.results.files import read_json, write_json
from sweeprof.run import cluster_task
from sweeprof.run.locks import locked
from sweeprof.storage import HELD, Folder, Jobs, Note, Submission


@pytest.fixture
def submission(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> Submission:
    told = {"SLURM_JOB_ID": "8", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "1", "SLURMD_NODENAME": "n2"}
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    jobs = Jobs(folder.path)
    made = jobs.new("test", [0, 2], {})
    jobs.keep(made)
    return made


def note_of(folder: Folder, submission: Submission) -> Note:
    note = Jobs(folder.path).note(submission.token, 1)
    assert note is not None
    return note


def test_it_measures_its_shard_and_tells_its_end(folder: Folder, submission: Submission) -> None:
    assert cluster_task.main([str(folder.path), submission.token]) == 0
    assert sorted(path.name for path in folder.records.iterdir()) == ["ce", "cf"]
    note = note_of(folder, submission)
    assert note.ended is not None
    assert (note.job, note.node, note.error) == ("7_1", "n2", None)
    assert read_json(folder.records / "ce" / "analysis-r0.json")["environment"]["scheduler"]["job"] == "7_1"


def test_it_does_not_end_with_the_driver(folder: Folder, submission: Submission) -> None:
    """Ray's processes may be of the session of the driver, which is gone where nothing waits for the jobs."""
    driver = subprocess.Popen([sys.executable, "-c", ""])
    driver.wait()
    told = {"pid": driver.pid, "host": socket.gethostname(), "user": None, "token": "x", "gpus": None}
    write_json(folder.path / "driver.json", {**told, "session": os.getsid(0)})
    task = multiprocessing.get_context("fork").Process(
        target=cluster_task.main, args=([str(folder.path), submission.token],)
    )
    task.start()
    task.join()
    assert task.exitcode == 0
    assert sorted(path.name for path in folder.records.iterdir()) == ["ce", "cf"]


def test_one_that_was_revoked_measures_nothing(folder: Folder, submission: Submission) -> None:
    Jobs(folder.path).revoke(submission)
    assert cluster_task.main([str(folder.path), submission.token]) == cluster_task.REVOKED
    assert not folder.records.exists()
    assert Jobs(folder.path).note(submission.token, 1) is None


def test_one_of_which_nothing_is_known_measures_nothing(folder: Folder, submission: Submission) -> None:
    assert cluster_task.main([str(folder.path), "0" * 10]) == cluster_task.REVOKED
    assert not folder.records.exists()


def test_two_do_not_measure_one_shard(folder: Folder, submission: Submission, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_task, "ENDING_S", 0.1)
    folder.events.mkdir(exist_ok=True)
    with locked(folder.events / "shard-2.jsonl") as other:
        assert other is None
        assert cluster_task.main([str(folder.path), submission.token]) == cluster_task.EXIT_HELD
    assert note_of(folder, submission).error == HELD
    assert not folder.records.exists()


def test_what_ends_it_is_told(folder: Folder, submission: Submission, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> bool:
        raise RuntimeError("no such device")

    monkeypatch.setattr(cluster_task, "run_shard", fails)
    with pytest.raises(RuntimeError):
        cluster_task.main([str(folder.path), submission.token])
    assert note_of(folder, submission).error == "RuntimeError: no such device"
