"""The laboratory with accounting: what `sacct` says of tasks that ended."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from support.slurm import Lab, clean_environment

pytestmark = pytest.mark.slow

LAB = {"ACCT": 1, "MIN_JOB_AGE": 10}


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
