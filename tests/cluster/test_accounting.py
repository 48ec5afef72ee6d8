"""Accounting tells what became of jobs that ended, as long as there is any; Slurm's controller forgets them."""

from __future__ import annotations

import pytest

from support.clustered import Clustered

pytestmark = pytest.mark.slow

LAB = {"ACCT": 1, "MIN_JOB_AGE": 10}
HELD = 3


def test_collected_long_after_the_jobs_were_cancelled(sweep: Clustered) -> None:
    sweep.more = ("cluster.parallel=2",)
    sweep.touch("hold-0", f"hold-{HELD}")
    sweep.leave()
    sweep.until(lambda: sweep.begun(0) and sweep.begun(HELD), "two of three tasks to be held")
    job = sweep.task_of(0).partition("_")[0]
    sweep.lab.scancel(job)
    sweep.until(lambda: not sweep.tasks(), "squeue to forget the job", 90)
    assert sweep.collect().code == 2
    reasons = sweep.table()["reason"]
    assert sweep.statuses() == {0: "lost", 1: "skipped", 2: "ok", 3: "lost", 4: "skipped", 5: "skipped"}
    assert f"job {job}_0 on n" in reasons[0]
    assert "was cancelled while it was measured" in reasons[HELD]
    assert "was cancelled" in reasons[5]  # while it waited: accounting need not have a line for it
    sweep.resume_without("hold-0", f"hold-{HELD}")


def test_a_sweep_outlives_what_squeue_remembers(sweep: Clustered) -> None:
    sweep.touch(f"hold-{HELD}")
    head = sweep.start()
    sweep.until(lambda: sweep.begun(HELD), "one task to be held")
    sweep.until(lambda: len(sweep.tasks()) < 3, "squeue to forget one of the others", 90)
    sweep.remove(f"hold-{HELD}")
    assert head.wait(60) == 0
    assert sweep.flaws() == []
    assert len(sweep.jobs.all()) == 1
