"""Tasks that are submitted, followed and run on their node, with a Slurm that answers as it is told."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from support.plans import fake_plan, read_records, sweep_folder
from support.scripted import ScriptedSlurm
from sweeprof.cluster import slurm as commands
from sweeprof.cluster.job_tracker import (
    JobOutcome,
    JobTracker,
    follow,
    job_outcome,
    job_tracker,
    launch,
    live_jobs,
    may_be_at_work,
)
from sweeprof.cluster.scheduler import ClusterError, TaskState
from sweeprof.config.schema import RESOURCES
from sweeprof.errors import UserError
from sweeprof.paths import conf_folder
from sweeprof.plan.plan import SearchPlan, Trial
from sweeprof.results.compared_rows import SearchGoal
from sweeprof.results.files import read_json, write_json
from sweeprof.results.record import Json, Record
from sweeprof.run import cluster_task
from sweeprof.run.locks import locked
from sweeprof.storage import HELD, EventLog, Folder, Jobs, Note, Submission

SHARDS = (("ca", "cb"), ("cc", "cd"), ("ce", "cf"))


def _cluster() -> Json:
    settings = yaml.safe_load((conf_folder() / "cluster" / "slurm.yaml").read_text()) | {"poll_s": 0.1}
    asked = {key: settings[key] for key in RESOURCES} | {"cpus": 1, "gpus": 0}
    return {"settings": settings, "resources": [asked, asked, {**asked, "partition": "other"}]}


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ScriptedSlurm:
    return ScriptedSlurm(tmp_path / "slurm", monkeypatch)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    plan = fake_plan({name: {} for name in "abcdef"}, passes=("analysis",))
    return sweep_folder(tmp_path / "out" / "test" / "1", dataclasses.replace(plan, shards=SHARDS, cluster=_cluster()))


def submitted(folder: Folder) -> tuple[JobTracker, Submission, Submission]:
    """The first two shards are one array, the third asks for something else."""
    tracker = job_tracker(folder)
    tracker.submit([0, 1, 2])
    first, second = tracker.jobs.all()
    return tracker, first, second


def measure(folder: Folder, *ids: str) -> None:
    for id in ids:
        Record("s1", id, "analysis", "ok").write(folder.records)


def begin(folder: Folder, shard: int, id: str) -> None:
    with EventLog(folder.events / f"shard-{shard}.jsonl") as events:
        events.write("begin", Trial(id, "analysis"))


def began(tracker: JobTracker, submission: Submission, number: int) -> None:
    """Let a task write its note, as :mod:`sweeprof.run.cluster_task` does."""
    events = tracker.folder.events / f"shard-{submission.shards[number]}.jsonl"
    earlier = events.stat().st_size if events.exists() else 0
    tracker.jobs.write_note(submission.token, number, Note(f"1_{number}", "n0", earlier))


def test_what_asks_for_the_same_is_one_array(slurm: ScriptedSlurm, folder: Folder) -> None:
    tracker, first, second = submitted(folder)
    assert (first.shards, second.shards) == ((0, 1), (2,))
    assert (first.job, second.job) == ("1", "2")
    assert tracker.numbers() == ["1", "2"]


def test_what_slurm_refuses_for_good_does_not_leave_the_rest_alone(slurm: ScriptedSlurm, folder: Folder) -> None:
    slurm.refuse("--partition=other", "sbatch: error: invalid partition specified: other")
    tracker = job_tracker(folder)
    tracker.submit([0, 1, 2])
    assert sorted(tracker.live) == [0, 1]
    assert "invalid partition specified: other" in tracker.jobs.queue()
    assert tracker.jobs.outcomes()[2].missing.startswith("its shard was not submitted: sbatch: sbatch: error: invalid")
    measure(folder, "ca", "cb", "cc", "cd")
    tracker.follow()  # neither submitted again nor waited for
    assert len(slurm.told("sbatch")) == 2


def test_what_slurm_refuses_altogether(slurm: ScriptedSlurm, folder: Folder) -> None:
    slurm.refuse("parsable", "sbatch: error: Job violates accounting/QOS policy (job submit limit …)")
    tracker = job_tracker(folder)
    with pytest.raises(ClusterError, match="submit limit"):
        tracker.submit([0, 1, 2])
    assert all(submission.revoked for submission in tracker.jobs.all())  # it may have been heard
    assert set(tracker.jobs.outcomes()) == {0, 1, 2}


def test_what_is_refused_for_now_is_submitted_as_tasks_end(slurm: ScriptedSlurm, folder: Folder) -> None:
    slurm.refuse("--partition=other", "sbatch: error: Batch job submission failed: Socket timed out")
    tracker = job_tracker(folder)
    tracker.submit([0, 1, 2])
    assert "1 not accepted yet" in tracker.jobs.queue()
    (slurm.path / "refuse").unlink()
    measure(folder, "ca", "cb", "cc", "cd", "ce", "cf")
    tracker.follow()
    assert [s.shards for s in tracker.jobs.all() if not s.revoked] == [(0, 1), (2,)]
    assert tracker.jobs.outcomes() == {}


@pytest.mark.parametrize("step_s", [-7200.0, 7200.0])
def test_only_its_own_trial_is_blamed(
    slurm: ScriptedSlurm, folder: Folder, monkeypatch: pytest.MonkeyPatch, step_s: float
) -> None:
    """Whatever the clock of its node was set to meanwhile, or that of another node shows."""
    begin(folder, 0, "cb")  # by an earlier task that was lost with its node
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + step_s)
    tracker, first, _ = submitted(folder)
    began(tracker, first, 0)
    begin(folder, 0, "ca")
    slurm.queue(first, "OUT_OF_MEMORY", "RUNNING")
    assert tracker.settle() == [0]
    assert [(r.combination_id, r.status) for r in read_records(folder.records)] == [("ca", "oom")]


def test_whoever_saw_a_task_end_knows_better_than_who_comes_later(slurm: ScriptedSlurm, folder: Folder) -> None:
    tracker, first, _ = submitted(folder)
    began(tracker, first, 0)
    slurm.queue(first, "CANCELLED", "RUNNING")
    assert tracker.settle() == []
    slurm.queue(first)  # forgotten by now
    later = job_tracker(folder)
    later.settle()
    assert "was cancelled" in later.jobs.outcomes()[0].missing


def test_a_job_that_only_accounting_holds_for_alive_is_not_waited_for(slurm: ScriptedSlurm, folder: Folder) -> None:
    tracker, first, _ = submitted(folder)
    slurm.account(first, "RUNNING", "TIMEOUT")
    assert sorted(tracker.update()) == [0, 1, 2]
    names = [tracker._tasks[shard].state.name for shard in range(3)]
    assert names == ["VANISHED", "TIMEOUT", "VANISHED"]


def keep_unheard(folder: Folder) -> Submission:
    """What is left of a head that was killed amid sbatch."""
    killed = job_tracker(folder)
    kept = killed.jobs.new("test", [0, 1, 2], killed.plan.cluster["resources"][0])
    killed.jobs.keep(kept, "#!/bin/bash\n")
    return kept


def test_an_sbatch_that_was_not_heard_yet_is_revoked(slurm: ScriptedSlurm, folder: Folder) -> None:
    """The head was killed while sbatch tried to reach the controller, which it may do yet."""
    keep_unheard(folder)
    tracker = job_tracker(folder)
    tracker.update()
    tracker.submit(tracker.unattended())
    assert [s.shards for s in tracker.jobs.all() if not s.revoked] == [(0, 1), (2,)]


def test_an_sbatch_that_was_heard_is_found_again(slurm: ScriptedSlurm, folder: Folder) -> None:
    heard = keep_unheard(folder)
    slurm.queue(heard, "RUNNING", "", "PENDING", job=77)
    tracker = job_tracker(folder)
    tracker.update()
    tracker.submit(tracker.unattended())
    assert tracker.numbers() == ["1", "77"]
    assert not tracker.jobs.read(heard.token).revoked  # type: ignore[union-attr]


def test_the_user_s_view_hides_nothing(slurm: ScriptedSlurm, folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SQUEUE_PARTITION", "mine")
    tracker, _, _ = submitted(folder)
    tracker.update()
    assert (slurm.path / "squeue.env").read_text() == ""
    assert all("--all" in asked for asked in slurm.told("squeue"))


def two_out_of_memory(slurm: ScriptedSlurm, tracker: JobTracker, first: Submission) -> None:
    """Let the tasks of the first submission end in their first trials."""
    for place, id in enumerate(("ca", "cc")):
        began(tracker, first, place)
        begin(tracker.folder, place, id)
    slurm.queue(first, "OUT_OF_MEMORY", "OUT_OF_MEMORY")


def test_tasks_that_fail_for_one_cause_at_first_stop_the_sweep(slurm: ScriptedSlurm, folder: Folder) -> None:
    tracker, first, second = submitted(folder)
    two_out_of_memory(slurm, tracker, first)
    began(tracker, second, 0)
    begin(folder, 2, "ce")
    with (slurm.path / "squeue").open("a") as file:
        file.write(f"{second.name}|0|2|OUT_OF_MEMORY|None|n0\n")
    said = r"3 tasks in a row ran out of memory .* such as cluster.memory=\dGiB, and resume"
    with pytest.raises(ClusterError, match=said):
        tracker.follow()
    assert len(slurm.told("sbatch")) == 2  # nothing was submitted again
    assert [outcome.status for _, outcome in sorted(tracker.jobs.outcomes().items())] == ["oom", "oom", "oom"]


def test_tasks_that_measure_something_meanwhile_do_not(slurm: ScriptedSlurm, folder: Folder) -> None:
    tracker, first, second = submitted(folder)
    two_out_of_memory(slurm, tracker, first)
    began(tracker, second, 0)
    with (slurm.path / "squeue").open("a") as file:
        file.write(f"{second.name}|0|2|RUNNING|None|n0\n")
    assert tracker.settle() == [0, 1]
    measure(folder, "ce")
    begin(folder, 2, "cf")
    (slurm.path / "squeue").write_text(f"{second.name}|0|2|OUT_OF_MEMORY|None|n0\n")
    assert tracker.settle() == [2] or tracker.settle() == []
    assert tracker._failures.count == 1


def test_a_search_may_measure_less_than_was_planned(slurm: ScriptedSlurm, folder: Folder) -> None:
    goals = (SearchGoal("latency/forward", "minimize"),)
    plan = replace(folder.read_plan(), search=SearchPlan(goals, 1, "RandomSampler", 0))
    write_json(folder.plan, plan.to_dict())
    tracker, first, _ = submitted(folder)
    measure(folder, "ca")
    tracker.jobs.write_note(first.token, 0, Note("1_0", "n0", 0, ended=2.0))
    (slurm.path / "squeue").write_text(f"{first.name}|0|1|COMPLETED|None|n0\n")
    assert 0 not in tracker.settle()
    assert 0 not in tracker.jobs.outcomes()


BEGAN = Note("12_3", "n2", 0)


def judged(word: str, note: Note | None = BEGAN, output: str = "", progressed: bool = True) -> JobOutcome:
    return job_outcome(TaskState("12_3", word, "", "n2"), note, output, progressed)


@pytest.mark.parametrize(
    ("word", "status", "said", "caused_by_trial", "resubmit"),
    [
        ("OUT_OF_MEMORY", "oom", "ran out of memory", True, True),
        ("TIMEOUT", "timeout", "reached its time limit", False, True),
        ("CANCELLED", "lost", "was cancelled", False, False),
        ("PREEMPTED", "lost", "was preempted", False, True),
        ("NODE_FAIL", "lost", "lost its node", False, True),
        ("FAILED", "lost", "failed", True, True),
        ("UNKNOWN", "lost", "is no longer known to the scheduler", False, True),
        ("COMPLETED", "lost", "ended", False, True),
        ("VANISHED", "lost", "was cancelled while it waited", False, False),
        ("REVOKED", "lost", "ended as REVOKED", False, False),
    ],
)
def test_every_state(word: str, status: str, said: str, caused_by_trial: bool, resubmit: bool) -> None:
    found = judged(word)
    assert (found.shard.status, found.caused_by_trial, found.resubmit) == (status, caused_by_trial, resubmit)
    assert found.shard.missing == f"its job 12_3 on n2 {said} before it was measured"
    assert found.shard.reason == f"job 12_3 on n2 {said} while it was measured"


LIMIT = "slurmstepd: error: Job 12 exceeded memory limit (181403648 > 104857600), being killed\n"
KILLED = "slurmstepd: error: Detected 1 oom_kill event in StepId=12.batch."


@pytest.mark.parametrize(
    ("word", "output", "status"),
    [
        ("CANCELLED", LIMIT, "oom"),  # told by the output where there are no cgroups
        ("FAILED", KILLED, "oom"),  # told at the end of a task, whatever ended that
        ("CANCELLED", KILLED, "lost"),
        ("TIMEOUT", KILLED, "timeout"),
        ("COMPLETED", "oom_kill of a trial, which has its record", "lost"),
    ],
)
def test_what_the_output_says_of_memory(word: str, output: str, status: str) -> None:
    found = judged(word, output=output)
    assert found.shard.status == status
    assert (word, status) != ("CANCELLED", "lost") or not found.resubmit  # somebody did not want it


def test_a_time_limit_that_is_too_short_for_one_trial_is_that_trials() -> None:
    found = judged("TIMEOUT", progressed=False)
    assert (found.shard.status, found.caused_by_trial) == ("timeout", True)


def test_a_task_that_says_itself_why_it_failed_is_not_started_again() -> None:
    found = judged("FAILED", replace(BEGAN, ended=120.0, error="the disk is full"))
    assert "failed: the disk is full" in found.shard.missing
    assert not found.resubmit


def test_a_task_that_another_process_kept_out_is_followed_by_one_that_may_get_in() -> None:
    found = judged("FAILED", replace(BEGAN, ended=120.0, error=HELD))
    assert (found.caused_by_trial, found.resubmit) == (False, True)


def test_a_task_that_never_began_fails_for_what_was_printed() -> None:
    found = judged("FAILED", None, "/var/spool/slurmd/job12/slurm_script: line 5: module: command not found\n\n")
    assert found.shard.missing.startswith("its job 12_3 on n2 failed: /var/spool")
    assert found.shard.missing.endswith("command not found before it was measured")
    assert not found.resubmit


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host without Slurm."""
    monkeypatch.setenv("PATH", str(tmp_path))


def submit_elsewhere(folder: Folder) -> Submission:
    jobs = Jobs(folder.path)
    submission = jobs.new("test", [0, 1, 2], {})
    jobs.keep(submission, "#!/bin/bash\n")
    return submission


def end(folder: Folder, submission: Submission) -> None:
    """Let every task tell its end."""
    for number in range(3):
        Jobs(folder.path).write_note(submission.token, number, Note("1", "n1", 0, 2.0))


@pytest.mark.usefixtures("nowhere")
def test_a_host_without_slurm_need_not_ask_of_tasks_that_told_their_end(folder: Folder) -> None:
    submission = submit_elsewhere(folder)
    assert may_be_at_work(folder)
    with pytest.raises(UserError, match="this host does not have"):
        live_jobs(folder)
    end(folder, submission)
    assert live_jobs(folder) == []
    assert not may_be_at_work(folder)
    follow(folder.path, wait=True)


@pytest.mark.usefixtures("nowhere")
def test_a_task_that_another_took_the_place_of_has_nothing_to_tell(folder: Folder) -> None:
    submit_elsewhere(folder)  # killed without a word
    end(folder, submit_elsewhere(folder))
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
    assert "scancel 1 2" in caplog.text  # whether they have ended is not known
    assert all(submission.revoked for submission in Jobs(folder.path).all())


def test_an_interrupted_sbatch_is_cancelled(
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


# What a task does on its node


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
