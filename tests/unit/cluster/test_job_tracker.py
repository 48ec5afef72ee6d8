"""Tasks that are submitted and followed, with a Slurm that answers as it is told."""

from __future__ import annotations

import time

import pytest

from support.records import read_records
from support.scripted import ScriptedSlurm
from sweeprof.cluster.job_tracker import JobTracker, job_tracker
from sweeprof.cluster.scheduler import ClusterError
from sweeprof.plan.plan import Trial
from sweeprof.results.record import Record
from sweeprof.storage import EventLog, Folder, Note, Submission


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
    tracker.jobs.write_note(submission.token, number, Note(f"1_{number}", "n0", 0, earlier))


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


@pytest.mark.parametrize("step_s", [-7200.0, 0.0, 7200.0])
def test_only_what_this_task_was_measuring_is_blamed(
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
    assert {shard: task.state.name for shard, task in tracker._tasks.items()} == {
        0: "VANISHED",
        1: "TIMEOUT",
        2: "VANISHED",
    }


def test_an_sbatch_that_was_not_heard_yet_is_revoked(slurm: ScriptedSlurm, folder: Folder) -> None:
    """The head was killed while sbatch tried to reach the controller, which it may do yet."""
    killed = job_tracker(folder)
    unheard = killed.jobs.new("test", [0, 1, 2], killed.plan.cluster["resources"][0])
    killed.jobs.keep(unheard, "#!/bin/bash\n")
    tracker = job_tracker(folder)
    tracker.update()
    tracker.submit(tracker.unattended())
    assert [s.shards for s in tracker.jobs.all() if not s.revoked] == [(0, 1), (2,)]


def test_an_sbatch_that_was_heard_is_found_again(slurm: ScriptedSlurm, folder: Folder) -> None:
    killed = job_tracker(folder)
    heard = killed.jobs.new("test", [0, 1, 2], killed.plan.cluster["resources"][0])
    killed.jobs.keep(heard, "#!/bin/bash\n")
    slurm.queue(heard, "RUNNING", "", "PENDING", job=77)
    tracker = job_tracker(folder)
    tracker.update()
    tracker.submit(tracker.unattended())
    assert tracker.numbers() == ["1", "77"]
    assert not tracker.jobs.read(heard.token).revoked  # type: ignore[union-attr]


def test_jobs_are_cancelled_also_where_the_queue_is_not_told(slurm: ScriptedSlurm, folder: Folder) -> None:
    tracker, _, _ = submitted(folder)
    slurm.go_away()
    with pytest.raises(ClusterError):  # whether they have ended is not known
        tracker.cancel()
    assert slurm.told("scancel") == ["1 2"]
    assert all(submission.revoked for submission in tracker.jobs.all())


def test_the_user_s_view_of_the_queue_hides_nothing(
    slurm: ScriptedSlurm, folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SQUEUE_PARTITION", "mine")
    tracker, _, _ = submitted(folder)
    tracker.update()
    assert (slurm.path / "squeue.env").read_text() == ""
    assert all("--all" in asked for asked in slurm.told("squeue"))


def test_tasks_that_fail_for_one_cause_before_anything_is_measured_stop_the_sweep(
    slurm: ScriptedSlurm, folder: Folder
) -> None:
    tracker, first, second = submitted(folder)
    for place, id in enumerate(("ca", "cc")):
        began(tracker, first, place)
        begin(folder, place, id)
    slurm.queue(first, "OUT_OF_MEMORY", "OUT_OF_MEMORY")
    began(tracker, second, 0)
    begin(folder, 2, "ce")
    with (slurm.path / "squeue").open("a") as file:
        file.write(f"{second.name}|0|2|OUT_OF_MEMORY|None|n0\n")
    with pytest.raises(
        ClusterError, match=r"3 tasks in a row ran out of memory .* such as cluster.memory=\dGiB, and resume"
    ):
        tracker.follow()
    assert len(slurm.told("sbatch")) == 2  # nothing was submitted again
    assert [outcome.status for _, outcome in sorted(tracker.jobs.outcomes().items())] == ["oom", "oom", "oom"]


def test_tasks_that_measure_something_meanwhile_do_not(slurm: ScriptedSlurm, folder: Folder) -> None:
    tracker, first, second = submitted(folder)
    for place, id in enumerate(("ca", "cc")):
        began(tracker, first, place)
        begin(folder, place, id)
    began(tracker, second, 0)
    slurm.queue(first, "OUT_OF_MEMORY", "OUT_OF_MEMORY")
    with (slurm.path / "squeue").open("a") as file:
        file.write(f"{second.name}|0|2|RUNNING|None|n0\n")
    assert tracker.settle() == [0, 1]
    measure(folder, "ce")
    begin(folder, 2, "cf")
    (slurm.path / "squeue").write_text(f"{second.name}|0|2|OUT_OF_MEMORY|None|n0\n")
    assert tracker.settle() == [2] or tracker.settle() == []
    assert tracker._failures.count == 1
