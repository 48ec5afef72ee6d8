"""What Slurm 22.05 printed on the laboratory's cluster, as data."""

from __future__ import annotations

import pytest

from sweeprof.cluster.scheduler import TaskState
from sweeprof.cluster.slurm import is_limit, parsed_largest_array, states_in_sacct, states_in_squeue

SQUEUE = """\
night-ab|3|12|PENDING|JobArrayTaskLimit|
night-ab|0|12|RUNNING|None|n1
night-ab|1|12|TIMEOUT|TimeLimit|n2
night-ab|2|12|OUT_OF_MEMORY|OutOfMemory|n3
wrap|N/A|13|RUNNING|None|n2
"""
SACCT = """\
night-ab|12_0|CANCELLED by 0|n1
night-ab|12_1|NODE_FAIL|n2
night-ab|12_1|COMPLETED|n3
night-ab|12_[1-3,7%2]|CANCELLED by 0|None assigned
night-ab|12_5|PENDING|None assigned
"""


def test_squeue() -> None:
    found = states_in_squeue(SQUEUE)
    assert found["night-ab", 3] == TaskState("12_3", "PENDING", "JobArrayTaskLimit", "")
    assert found["night-ab", 0] == TaskState("12_0", "RUNNING", "", "n1")
    assert len(found) == 4
    assert [number for (_, number), state in found.items() if state.is_live] == [3, 0]


def test_sacct() -> None:
    found = states_in_sacct(SACCT)
    assert found["night-ab", 0] == TaskState("12_0", "CANCELLED", "", "n1")
    assert found["night-ab", 1] == TaskState("12_1", "COMPLETED", "", "n3")  # it was started again
    assert found["night-ab", 7] == TaskState("12_7", "CANCELLED")
    assert found["night-ab", 5].node == ""
    assert len(found) == 6


def test_the_largest_array() -> None:
    assert parsed_largest_array("MaxArraySize            = 1001\n") == 1001
    assert parsed_largest_array("MaxArraySize            = 0\n") == 1
    assert parsed_largest_array("") == 1001


def test_what_passes_and_what_does_not() -> None:
    assert is_limit(
        "sbatch: error: AssocMaxSubmitJobLimit sbatch: error: Batch job submission failed: Job violates accounting/QOS"
    )
    assert is_limit("Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)")
    assert not is_limit("sbatch: error: invalid partition specified: gpu")


@pytest.mark.parametrize(
    ("said", "passes"),
    [
        ("sbatch: error: Batch job submission failed: Socket timed out on send/recv operation", True),
        ("sbatch: timed out after 60 s", True),
        ("sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)", True),
        ("sbatch: error: AssocMaxSubmitJobLimit … (job submit limit, user's size and/or time limits)", True),
        ("sbatch: error: invalid partition specified: gpus", False),
    ],
)
def test_what_passes(said: str, passes: bool) -> None:
    assert is_limit(said) == passes
