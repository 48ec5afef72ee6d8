"""Memory on the real Slurm, whose partitions give 256 MiB per processor: what is requested, and what stops a sweep."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from support.command import run_command
from support.processes import left_after
from support.slurm import Lab
from sweeprof.storage import Jobs

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


@pytest.mark.slow
def test_the_rows_of_a_server_are_in_one_task(slurm: Lab, tmp_path: Path) -> None:
    for folder in "ab":
        (tmp_path / folder).mkdir()
    ran = run_command(
        tmp_path,
        *("backend=command", "tracking=none", "protocol=short", "protocol.rounds=1", "protocol.min_samples=1"),
        "backend.command=['{python}', -c, 'import urllib.request as u; u.urlopen(\"http://localhost:{port}\")', '{args.n}']",
        "backend.server={command: ['{python}', -m, http.server, '{port}', -d, '{args.folder}'], ready: {port: '{port}'}}",
        *("args.n=1,2", f"args.folder={tmp_path}/a,{tmp_path}/b", "compare.baseline={}"),
        *("cluster=slurm", "cluster.poll_s=0.5", "shards=2"),
    )
    assert [row["status"] for row in ran.rows()] == ["ok"] * 4
    plan = json.loads((ran.folder("adhoc") / "plan.json").read_text())
    served = {combination["id"]: combination["axes"]["args.folder"] for combination in plan["combinations"]}
    assert sorted(sorted({served[id] for id in shard}) for shard in plan["shards"]) == [
        [f"{tmp_path}/a"],
        [f"{tmp_path}/b"],
    ]
    assert left_after(tmp_path, 15) == []
