"""Whether jobs of a sweep are at work, with and without a Slurm to ask."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.scripted import ScriptedSlurm
from sweeprof.cluster import slurm as commands
from sweeprof.cluster.job_tracker import JobTracker, follow, job_tracker, launch, live_jobs, may_be_at_work
from sweeprof.errors import UserError
from sweeprof.storage import Folder, Jobs, Note


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host without Slurm."""
    monkeypatch.setenv("PATH", str(tmp_path))


def ended(folder: Folder) -> None:
    """Every task of every submission has told its end."""
    jobs = Jobs(folder.path)
    for submission in jobs.all():
        for number in range(len(submission.shards)):
            jobs.write_note(submission.token, number, Note("1", "n1", 0, 0, 2.0))


def submit_elsewhere(folder: Folder) -> None:
    jobs = Jobs(folder.path)
    jobs.keep(jobs.new("test", [0, 1, 2], {}), "#!/bin/bash\n")


def test_jobs_at_work(slurm: ScriptedSlurm, folder: Folder) -> None:
    assert live_jobs(folder) == []
    tracker = job_tracker(folder)
    tracker.submit(tracker.unattended())
    first, _ = Jobs(folder.path).all()
    slurm.queue(first, "RUNNING", "PENDING", job=1)
    assert live_jobs(folder) == ["1"]
    assert may_be_at_work(folder)
    slurm.queue(first)
    assert not may_be_at_work(folder)


@pytest.mark.usefixtures("nowhere")
def test_a_host_without_slurm_need_not_ask_of_tasks_that_told_their_end(folder: Folder) -> None:
    submit_elsewhere(folder)
    assert may_be_at_work(folder)
    with pytest.raises(UserError, match="this host does not have"):
        live_jobs(folder)
    ended(folder)
    assert live_jobs(folder) == []
    assert not may_be_at_work(folder)
    follow(folder.path, wait=True)


@pytest.mark.usefixtures("nowhere")
def test_a_task_that_another_took_the_place_of_has_nothing_to_tell(folder: Folder) -> None:
    submit_elsewhere(folder)  # killed without a word
    submit_elsewhere(folder)
    newest = Jobs(folder.path).all()[-1]
    for number in range(3):
        Jobs(folder.path).write_note(newest.token, number, Note("2", "n1", 0, 0, 2.0))
    assert not may_be_at_work(folder)


def test_a_plan_that_cannot_be_read_is_not_asked(slurm: ScriptedSlurm, folder: Folder) -> None:
    submit_elsewhere(folder)
    folder.plan.write_text("{")
    assert may_be_at_work(folder)


def test_ctrl_c_is_one_also_where_slurm_does_not_answer(
    slurm: ScriptedSlurm, folder: Folder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def interrupted(*_: object) -> None:
        slurm.go_away()
        raise KeyboardInterrupt

    monkeypatch.setattr(JobTracker, "follow", interrupted)
    with pytest.raises(KeyboardInterrupt):
        launch(folder.path)
    assert slurm.told("scancel") == ["1 2"]
    assert "scancel 1 2" in caplog.text


def test_an_sbatch_that_is_interrupted_is_cancelled_if_it_was_heard(
    slurm: ScriptedSlurm, folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> str:
        (submission,) = Jobs(folder.path).all()
        slurm.queue(submission, "PENDING", "PENDING", job=5)
        raise KeyboardInterrupt

    monkeypatch.setattr(commands, "submit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        launch(folder.path)
    assert slurm.told("scancel") == ["5"]
    assert all(submission.revoked for submission in Jobs(folder.path).all())
    assert job_tracker(folder).live == {}
