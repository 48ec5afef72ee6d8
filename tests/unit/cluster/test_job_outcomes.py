"""What it means that a task has ended."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sweeprof.cluster.job_tracker import JobOutcome, job_outcome
from sweeprof.cluster.scheduler import TaskState
from sweeprof.storage import HELD, Note

BEGAN = Note("12_3", "n2", 0, 0)


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


def test_a_time_limit_that_is_too_short_for_one_trial_is_that_trials() -> None:
    found = judged("TIMEOUT", progressed=False)
    assert (found.shard.status, found.caused_by_trial) == ("timeout", True)


@pytest.mark.parametrize("word", ["FAILED", "CANCELLED"])
def test_memory_is_told_by_the_output_where_there_are_no_cgroups(word: str) -> None:
    output = "slurmstepd: error: Job 12 exceeded memory limit (181403648 > 104857600), being killed\n"
    assert judged(word, output=output).shard.status == "oom"


def test_a_trial_that_was_killed_for_memory_is_told_of_at_the_end_of_its_task_whatever_ended_that() -> None:
    killed = "slurmstepd: error: Detected 1 oom_kill event in StepId=12.batch."
    assert judged("FAILED", output=killed).shard.status == "oom"
    assert judged("CANCELLED", output=killed).shard.status == "lost"
    assert not judged("CANCELLED", output=killed).resubmit  # somebody did not want it
    assert judged("TIMEOUT", output=killed).shard.status == "timeout"


def test_what_completed_did_not_run_out_of_memory() -> None:
    assert judged("COMPLETED", output="oom_kill of a trial, which has its record").shard.status == "lost"


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
