"""Memory on the real Slurm, whose partitions give 256 MiB per processor: what is requested, what stops a sweep, the doctor."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from support.command import run_command
from support.slurm import Lab
from sweeprof.cli.run import run_command as run_here
from sweeprof.storage.jobs import Jobs

SWEEP = ("model=mlp", "batch_size=1,2,3,4,5,6", "metrics=static", "tracking=none", "dataset=synthetic", "cluster=slurm")
TASKS = ("shards=6", "compare.baseline={}", "cluster.poll_s=0.5")


def test_tasks_get_the_memory_that_their_framework_needs(slurm: Lab, tmp_path: Path) -> None:
    ran = run_command(tmp_path, *SWEEP, "cluster.poll_s=0.5", "batch_size=1")
    assert ran.code == 0, ran.out + ran.err
    (submission,) = Jobs(ran.folder("adhoc")).all()
    assert slurm.details(f"{submission.job}_0")["MinMemoryNode"] == "1.50G"


@pytest.mark.slow
def test_too_little_memory_stops_the_sweep_with_the_key(slurm: Lab, tmp_path: Path) -> None:
    ran = run_command(tmp_path, *SWEEP, *TASKS, "cluster.memory=150MiB", "cluster.parallel=1")
    assert ran.code == 2, ran.out + ran.err
    folder = ran.folder("adhoc")
    assert "3 tasks in a row ran out of memory before they measured anything" in ran.err
    assert "such as cluster.memory=1GiB, and resume" in ran.err
    table = pd.read_csv(folder / "comparison.csv")
    assert set(table["status"]) <= {"oom", "skipped"}
    assert table["reason"].str.contains("ran out of memory").all()
    assert len(Jobs(folder).all()) <= 3  # not a task for each trial
    again = run_command(tmp_path, "resume=last", "cluster=slurm", "cluster.memory=1GiB", "cluster.poll_s=0.5")
    assert again.code == 0, again.out + again.err


def test_the_doctor_reports_what_a_task_gets(
    slurm: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_here(["doctor", "cluster=slurm", "cluster.time=1h", "cluster.poll_s=0.5", "--json"]) == 0
    found = {finding["name"]: finding for finding in json.loads(capsys.readouterr().out)}
    assert found["memory limit"]["value"] == "1.50 GiB"
    assert found["time limit"]["value"] == "01:00:00"
    assert found["partition"]["value"] == "debug"
    assert found["node"]["value"].partition(" ")[0] in slurm.nodes
    assert found["sweep folder"]["value"] == "visible here and on the node"
    assert "1 requested" in found["processors"]["value"]
    assert run_here(["doctor", "cluster=slurm", "cluster.memory=300MiB", "cluster.poll_s=0.5", "--strict"]) == 2
    assert "cluster.memory=1.5GiB" in capsys.readouterr().out
    assert run_here(["doctor", "cluster=slurm", "cluster.setup=['echo no such module; exit 3']", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)[-1]
    assert "no such module" in result["reason"]
