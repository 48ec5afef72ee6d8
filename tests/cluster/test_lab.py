"""The laboratory itself: what later tests take for granted of Slurm, and what is not as one would think."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.slurm import Lab

pytestmark = pytest.mark.slow

SLEEP = "exec sleep 600"
TWICE = f'echo "again=$SLURM_RESTART_COUNT on $(hostname)" >>lives; [ -n "$SLURM_RESTART_COUNT" ] || {SLEEP}'
"""A job that waits in its first life and ends in its second."""
TOO_MUCH = "exec python3 -c 'import time; held = b\"x\" * 300_000_000; time.sleep(600)'"


def test_nodes_have_hostnames_of_their_own(slurm: Lab, tmp_path: Path) -> None:
    job = slurm.sbatch("srun hostname", "--nodes=3", cwd=tmp_path)
    slurm.wait_for(job, "COMPLETED")
    assert set((tmp_path / f"{job}.out").read_text().split()) == set(slurm.nodes) == {"n1", "n2", "n3"}


def test_an_array_runs_some_at_a_time(slurm: Lab, tmp_path: Path) -> None:
    job = slurm.sbatch("sleep 2; echo $SLURM_ARRAY_TASK_ID", "--array=0-3%2", "--job-name=trial", cwd=tmp_path)
    slurm.wait_until(
        lambda: sorted(slurm.states(job).values()) == ["PENDING"] * 2 + ["RUNNING"] * 2, 10, "two at a time"
    )
    slurm.wait_until(lambda: set(slurm.states(job).values()) == {"COMPLETED"}, 20, "all complete")
    assert slurm.jobs("tri") == {f"{job}_{task}": "COMPLETED" for task in range(4)}  # finished ones are still known
    assert [(tmp_path / f"{job}_{task}.out").read_text() for task in range(4)] == ["0\n", "1\n", "2\n", "3\n"]


def test_one_element_is_cancelled(slurm: Lab, tmp_path: Path) -> None:
    job = slurm.sbatch(SLEEP, "--array=0-2%2", cwd=tmp_path)
    slurm.wait_for(f"{job}_1", "RUNNING")
    slurm.scancel(f"{job}_1")
    slurm.wait_for(f"{job}_1", "CANCELLED")
    slurm.wait_until(
        lambda: set(slurm.states(job).values()) == {"RUNNING", "CANCELLED"}, 10, "the third takes its place"
    )


def test_an_element_that_is_cancelled_while_it_waits_leaves_no_trace(slurm: Lab, tmp_path: Path) -> None:
    job = slurm.sbatch(SLEEP, "--array=0-3%1", cwd=tmp_path)
    slurm.wait_for(f"{job}_0", "RUNNING")
    slurm.scancel(f"{job}_2")
    slurm.wait_until(lambda: f"{job}_2" not in slurm.states(job), 10, "it is gone, and no state CANCELLED remains")
    assert slurm.states(job) == {f"{job}_0": "RUNNING", f"{job}_1": "PENDING", f"{job}_3": "PENDING"}


def test_a_requeued_job_starts_again_under_its_id(slurm: Lab, tmp_path: Path) -> None:
    job = slurm.sbatch(TWICE, "--array=0", cwd=tmp_path)
    slurm.wait_until((tmp_path / "lives").exists, 10, "its first life")
    slurm.scontrol("requeue", f"{job}_0")
    slurm.wait_until(lambda: slurm.details(f"{job}_0")["Reason"] == "BeginTime", 10, "it is held for 6 s")
    slurm.start_now(f"{job}_0")
    slurm.wait_for(f"{job}_0", "COMPLETED", 5)
    assert [line.split()[0] for line in (tmp_path / "lives").read_text().splitlines()] == ["again=", "again=1"]


def test_a_dead_node_is_noticed_and_its_job_starts_on_another(slurm: Lab, tmp_path: Path) -> None:
    kept = slurm.sbatch(TWICE, cwd=tmp_path)
    slurm.wait_until((tmp_path / "lives").exists, 10, "its first life")
    node = slurm.details(kept)["BatchHost"]
    lost = slurm.sbatch(SLEEP, "--no-requeue", f"--nodelist={node}", cwd=tmp_path)
    slurm.wait_for(lost, "RUNNING")
    slurm.kill_node(node)
    slurm.wait_for(lost, "NODE_FAIL", 60)
    assert slurm.node_states()[node].startswith("down")
    slurm.wait_for(kept, "COMPLETED")
    first, second = (tmp_path / "lives").read_text().splitlines()
    assert first == f"again= on {node}"
    assert second.startswith("again=1 on ")
    assert not second.endswith(node)


# Without cgroups there is no state OUT_OF_MEMORY: squeue says FAILED for the reason JobLaunchFailure, sacct FAILED with exit
# code 0:9, as for any job that a signal ended. Only the output of the job says `exceeded memory limit`.
def test_a_job_that_takes_too_much_memory_is_ended(slurm: Lab, tmp_path: Path) -> None:
    job = slurm.sbatch(TOO_MUCH, "--mem=100M", cwd=tmp_path)
    slurm.wait_for(job, "FAILED")
    told = slurm.details(job)
    assert (told["Reason"], told["ExitCode"]) == ("JobLaunchFailure", "0:9")
    assert "exceeded memory limit" in (tmp_path / f"{job}.out").read_text()


def test_a_better_partition_preempts(slurm: Lab, tmp_path: Path) -> None:
    low = slurm.sbatch(TWICE, "--nodelist=n2", "--exclusive", cwd=tmp_path)
    slurm.wait_until((tmp_path / "lives").exists, 10, "its first life")
    high = slurm.sbatch("sleep 1", "--partition=high", "--nodelist=n2", cwd=tmp_path)
    slurm.wait_for(high, ("RUNNING", "COMPLETED"))
    assert slurm.states(low)[low] == "PENDING"
    slurm.wait_for(low, "COMPLETED")
    assert slurm.details(low)["Restarts"] == "1"


def test_the_cluster_says_how_large_an_array_may_be(slurm: Lab, tmp_path: Path) -> None:
    told = dict(line.split(" = ") for line in slurm.scontrol("show", "config").splitlines() if line.count(" = ") == 1)
    largest = {key.strip(): value for key, value in told.items()}["MaxArraySize"]
    assert largest == "1001"
    job = slurm.sbatch("true", "--hold", f"--array={int(largest) - 1}", cwd=tmp_path)
    assert slurm.states(job) == {f"{job}_1000": "PENDING"}


def test_a_node_boots_anew_with_nothing_of_its_former_life(slurm: Lab, tmp_path: Path) -> None:
    slurm.sbatch("sleep 601", "--no-requeue", "--nodelist=n3", "--exclusive", cwd=tmp_path)
    slurm.wait_until(lambda: slurm.node_states()["n3"] == "allocated", 10, "a job on n3")
    slurm.kill_node("n3")
    slurm.idle()
    job = slurm.sbatch("pgrep -f 'sleep [6]01'; hostname", "--nodelist=n3", cwd=tmp_path)
    slurm.wait_for(job, "COMPLETED")
    assert (tmp_path / f"{job}.out").read_text() == "n3\n"
