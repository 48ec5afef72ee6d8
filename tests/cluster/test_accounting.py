"""Accounting tells what became of jobs that ended, as long as there is any; Slurm's controller forgets them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from support.clustered import Clustered
from support.slurm import Lab, clean_environment

pytestmark = pytest.mark.slow

LAB = {"ACCT": 1, "MIN_JOB_AGE": 10}
HELD = 3


def accounted(job: str) -> dict[str, str]:
    """The state of every task."""
    words = [
        "sacct",
        "--jobs",
        job,
        "--allocations",
        "--noheader",
        "--parsable2",
        "--format=JobID,State",
    ]
    lines = subprocess.run(
        words, env=clean_environment(), capture_output=True, text=True, check=True
    ).stdout.splitlines()
    return {task: told for task, _, told in (line.partition("|") for line in lines)}


def test_sacct_tells_how_tasks_ended(slurm: Lab, tmp_path: Path) -> None:
    job = slurm.sbatch(
        '[ "$SLURM_ARRAY_TASK_ID" != 0 ] || exec sleep 600; exit $SLURM_ARRAY_TASK_ID', "--array=0-3%2", cwd=tmp_path
    )
    slurm.wait_until(lambda: slurm.states(job).get(f"{job}_3") == "FAILED", 20, "the last fails")
    slurm.scancel(f"{job}_0")
    slurm.wait_for(f"{job}_0", "CANCELLED")
    expected = {
        f"{job}_0": "CANCELLED by 0",
        f"{job}_1": "FAILED",
        f"{job}_2": "FAILED",
        f"{job}_3": "FAILED",
    }
    slurm.wait_until(lambda: accounted(job) == expected, 20, f"sacct says {expected}")


def test_sacct_remembers_what_squeue_forgets(slurm: Lab, tmp_path: Path) -> None:
    job = slurm.sbatch("true", cwd=tmp_path)
    slurm.wait_for(job, "COMPLETED")
    slurm.wait_until(lambda: not slurm.states(job), 45, "forgotten after MinJobAge")
    assert accounted(job) == {job: "COMPLETED"}


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
