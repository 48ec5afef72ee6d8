"""The batch script and the command that submits it."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from support.command import FAKE
from support.planning import planned
from support.scripted import ScriptedSlurm
from sweeprof.cluster.ray import actor_options
from sweeprof.cluster.scheduler import TaskState, script
from sweeprof.cluster.slurm import (
    is_limit,
    parsed_default_memory,
    parsed_largest_array,
    requested_memory,
    sbatch,
    states_in_sacct,
    states_in_squeue,
)
from sweeprof.errors import UserError
from sweeprof.plan.plan import needed_memory
from sweeprof.storage import Submission


def submission(*arguments: str) -> tuple[Submission, dict[str, Any]]:
    cluster = planned(["cluster=slurm", *FAKE, *arguments]).cluster
    return Submission("ab12", "night-ab12", (0, 1, 2), cluster["resources"][0], 0.0), cluster["settings"]


def command(*arguments: str) -> list[str]:
    made, settings = submission(*arguments)
    script, log = Path("/sweeps/100%/jobs/ab12.sh"), Path("/sweeps/100%/logs/jobs/ab12-%a.log")
    return sbatch(made, settings, script, log, Path("/work"), requested_memory(made.resources))


def test_nothing_is_asked_for_that_nobody_wants() -> None:
    assert command() == [
        *("sbatch", "--parsable", "--job-name=night-ab12", "--array=0-2"),
        "--output=/sweeps/100%%/logs/jobs/ab12-%a.log",
        *("--open-mode=append", "--chdir=/work", "--nodes=1", "--ntasks=1", "--cpus-per-task=1", "--requeue"),
        "/sweeps/100%/jobs/ab12.sh",
    ]


def test_what_is_asked_for() -> None:
    words = command(
        *("cluster.time=1.5h", "cluster.memory=1.5GiB", "cluster.gpus=a100:1", "cluster.cpus=4"),
        *("cluster.partition=gpu", "cluster.options={account: lab, exclusive: true}", "cluster.parallel=8"),
    )
    expected = "--time=90 --mem=1536M --gres=gpu:a100:1 --cpus-per-task=4 --exclusive --partition=gpu --account=lab"
    assert {*expected.split(), "--array=0-2%8"} <= set(words)


def test_options_of_sbatch_pass_through() -> None:
    words = command("cluster.options={nice: 100, no-requeue: true, hold: false, ntasks: 2, nodes: null}")
    assert {"--nice=100", "--no-requeue", "--ntasks=2"} <= set(words)
    assert not {"--requeue", "--hold", "--hold=False", "--nodes=None"} & set(words)


def test_the_script_needs_nothing_of_the_environment(tmp_path: Path) -> None:
    fake = tmp_path / "the python"
    fake.write_text('#!/bin/sh\nprintf "%s|" "$A" "$PYTHONPATH" "$LOADED" "$@"')
    fake.chmod(0o755)
    made, settings = submission("cluster.setup=['LOADED=yes; export LOADED']")
    text = script(made, settings, tmp_path / "a folder", str(fake), {"A": "it's $x", "PYTHONPATH": "/a:/b c"})
    done = subprocess.run(["/bin/bash"], input=text, env={}, capture_output=True, text=True, check=True)
    words = ["it's $x", "/a:/b c", "yes", "-m", "sweeprof.run.cluster_task", str(tmp_path / "a folder"), "ab12", ""]
    assert done.stdout.split("|") == words
    assert shlex.split(text.splitlines()[-1])[0] == "exec"


PARTITIONS = """\
PartitionName=debug AllowGroups=ALL Default=YES DefMemPerCPU=256 MaxMemPerNode=UNLIMITED
PartitionName=large AllowGroups=ALL Default=NO DefMemPerNode=65536 MaxMemPerNode=UNLIMITED
PartitionName=whole AllowGroups=ALL Default=NO DefMemPerNode=UNLIMITED MaxMemPerNode=UNLIMITED
"""


CONFIG = "DebugFlags              = (null)\nDefMemPerCPU            = 1000\nMaxArraySize            = 1001\n"


def test_the_default_memory_of_a_partition() -> None:
    assert parsed_default_memory(PARTITIONS, CONFIG, None, 2) == 512 * 2**20
    assert parsed_default_memory(PARTITIONS, CONFIG, "large", 2) == 65536 * 2**20
    assert parsed_default_memory(PARTITIONS, "", "whole", 2) is None
    assert parsed_default_memory(PARTITIONS, CONFIG, "whole", 2) == 2000 * 2**20
    assert parsed_default_memory(PARTITIONS, "", "missing", 2) is None


def test_a_partition_is_asked_for_what_frameworks_need(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = ScriptedSlurm(tmp_path, monkeypatch)
    (slurm.path / "partitions").write_text(PARTITIONS)
    need: dict[str, Any] = {"memory": None, "needed_memory": 3 * 2**30, "partition": None, "cpus": 1, "options": {}}
    assert requested_memory(need) == 3 * 2**30
    assert requested_memory({**need, "cpus": 16}) is None  # 4 GiB by default
    assert requested_memory({**need, "partition": "large"}) is None
    assert requested_memory({**need, "partition": "whole"}) is None
    assert requested_memory({**need, "memory": "1GiB", "partition": "large"}) == 2**30
    assert requested_memory({**need, "options": {"mem-per-cpu": "200M"}}) is None
    assert requested_memory({**need, "options": {"exclusive": True}}) is None
    monkeypatch.setenv("SBATCH_MEM_PER_CPU", "4G")
    assert requested_memory(need) is None


def test_the_needed_memory_is_that_of_all_frameworks_of_a_pair() -> None:
    words = ["cluster=slurm", "model=mlp", "tracking=none"]
    pair = ["backend=torch,tensorflow", "compare.baseline={backend: torch}"]
    (both,) = planned([*words, *pair]).cluster["resources"]
    (alone,) = planned([*words, "backend=torch"]).cluster["resources"]
    assert both["needed_memory"] == needed_memory(["torch", "tensorflow"])
    assert alone["needed_memory"] < both["needed_memory"] < 4000 * 2**20


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


@pytest.mark.parametrize(
    ("said", "is_for_now"),
    [
        ("sbatch: timed out after 60 s", True),
        ("sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)", True),
        ("sbatch: error: AssocMaxSubmitJobLimit … (job submit limit, user's size and/or time limits)", True),
        ("sbatch: error: invalid partition specified: gpus", False),
    ],
)
def test_what_is_refused_for_now(said: str, is_for_now: bool) -> None:
    assert is_limit(said) == is_for_now


def resources(*arguments: str) -> dict[str, object]:
    (found,) = planned(["cluster=ray", *FAKE, *arguments]).cluster["resources"]
    return actor_options(found)


def test_options() -> None:
    assert resources() == {"num_cpus": 1}
    assert resources("backend.threads=4", "device=cuda", "cluster.memory=2GiB") == {
        "num_cpus": 4,
        "num_gpus": 1,
        "memory": 2 << 30,
    }
    labels = "cluster.options={label_selector: {zone: a}, resources: {fast_disk: 1}}"
    assert resources("cluster.gpus=A100:2", labels) == {
        "num_cpus": 1,
        "num_gpus": 2,
        "accelerator_type": "A100",
        "label_selector": {"zone": "a"},
        "resources": {"fast_disk": 1},
    }


def test_an_option_by_which_tasks_are_found_is_refused() -> None:
    with pytest.raises(UserError, match=r"cluster\.options\.name: 'x' is set by sweeprof"):
        planned(["cluster=ray", *FAKE, "cluster.options={name: x}"])


@pytest.mark.system
def test_why_an_actor_waits() -> None:
    pytest.importorskip("ray", reason="ray is not installed: make ray")
    from sweeprof.cluster.ray_process import why_it_waits

    node = {"Resources": {"CPU": 4.0, "memory": 1e9, "fast_disk": 1.0}, "Labels": {"zone": "a"}}
    assert why_it_waits({"num_cpus": 4, "resources": {"fast_disk": 1}, "label_selector": {"zone": "a"}}, [node]) == ""
    assert why_it_waits({"num_cpus": 8}, [node]) == "no node has CPU=8"
    assert why_it_waits({"num_cpus": 1, "num_gpus": 2, "label_selector": {"zone": "b"}}, [node]) == (
        "no node has CPU=1, GPU=2, zone=b"
    )
