"""Whole sweeps on the real Slurm: the same rows as without it, many combinations, more tasks than an array may have."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pandas as pd
import pytest

from support.command import run_command, start_command
from support.slurm import Lab
from sweeprof.storage import Jobs

LAB = {"MAX_ARRAY": 1001, "GPUS": 2}
CLUSTER = ("cluster=slurm", "cluster.poll_s=1", "cluster.memory=1500MiB")
ROOM = ("shards=9", "cluster.memory=3500MiB")
"""A node at a time: without cgroups Slurm counts what the fork servers of two frameworks and their forks share over and over."""
STATIC = ("metrics=static", "tracking=none", "dataset=synthetic")
EXACT = ["model", "backend", "device", "batch_size", "status", "compute/macs", "params/total", "quality/accuracy"]


def sorted_table(folder: Path, columns: list[str]) -> pd.DataFrame:
    table = pd.read_csv(folder / "comparison.csv")[columns]
    return table.sort_values(columns[:4]).reset_index(drop=True)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_quickstart_over_three_nodes_has_the_rows_of_this_host(
    slurm: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    here = run_command(tmp_path / "here", "+sweep=quickstart", "tracking=none", timeout=400)
    there = run_command(tmp_path / "there", "+sweep=quickstart", "tracking=none", *CLUSTER, *ROOM, timeout=600)
    assert (here.code, there.code) == (0, 0), there.out + there.err
    pd.testing.assert_frame_equal(
        sorted_table(here.folder("quickstart"), EXACT), sorted_table(there.folder("quickstart"), EXACT)
    )
    records = [json.loads(path.read_text()) for path in there.folder("quickstart").glob("records/*/timing-*.json")]
    nodes = {record["combination_id"]: record["environment"]["scheduler"]["node"] for record in records}
    rows = json.loads((there.folder("quickstart") / "comparison.json").read_text())["rows"]
    for row in rows:  # what is compared was measured on one node, so that it can be
        assert nodes[row["combination_id"]] == nodes[row["baseline_id"]]
        assert row["cells"]["latency/forward"]["verdict"] != "not_comparable"
    with capsys.disabled():
        print(f"\nquickstart: {len(records)} combinations on {', '.join(sorted(set(nodes.values())))}")


def submitted(slurm: Lab, cwd: Path, *arguments: str) -> Path:
    """Start a sweep whose jobs are held, and kill the driver once everything is submitted; returns the sweep's folder."""
    driver = start_command(cwd, *arguments)

    def is_submitted() -> bool:
        folders = list(cwd.glob("outputs/adhoc/*"))
        return bool(folders) and bool(Jobs(folders[0]).queue())  # which is written after the last submission

    slurm.wait_until(is_submitted, 280, "everything to be submitted")
    driver.kill()
    driver.communicate()
    (folder,) = cwd.glob("outputs/adhoc/*")
    return folder


def test_ten_thousand_combinations_are_submitted(
    slurm: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    began = time.monotonic()
    folder = submitted(
        *(slurm, tmp_path, "model=fake", "backend=fake", "batch_size=range(1,10001)", *STATIC, *CLUSTER),
        *("cluster.minutes=0.1", "cluster.options={hold: true}"),
    )
    took = time.monotonic() - began
    submissions = Jobs(folder).all()
    tasks = [shard for submission in submissions for shard in submission.shards]
    assert [len(submission.shards) for submission in submissions] == [1001, len(tasks) - 1001]
    assert sorted(tasks) == list(range(len(tasks)))
    assert sum(len(slurm.jobs(submission.name)) for submission in submissions) == len(tasks)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    assert size < 100e6
    assert not list(folder.rglob("*.pkl"))
    with capsys.disabled():
        said = f"{len(tasks)} tasks in {len(submissions)} arrays, {size / 1e6:.1f} MB, no pickle"
        print(f"\n10,000 combinations: {said}; planned and submitted in {took:.0f} s")


def test_tasks_get_the_requested_resources(slurm: Lab, tmp_path: Path) -> None:
    folder = submitted(
        *(slurm, tmp_path, "model=fake", "backend=fake", "batch_size=1,2", *STATIC, *CLUSTER),
        *("cluster.partition=high", "cluster.time=1h", "cluster.cpus=2", "cluster.gpus=1", "cluster.memory=700MiB"),
        "cluster.options={hold: true, comment: two}",
    )
    (submission,) = Jobs(folder).all()
    details = slurm.details(f"{submission.job}_0")
    expected = {
        "Partition": "high",
        "TimeLimit": "01:00:00",
        "CPUs/Task": "2",
        "TresPerNode": "gres:gpu:1",
        "MinMemoryNode": "700M",
        "Comment": "two",
        "Requeue": "1",
    }
    assert {key: details[key] for key in expected} == expected


def test_a_task_with_a_gpu_sees_that_one(slurm: Lab, tmp_path: Path) -> None:
    (tmp_path / "seen.py").write_text(
        "import os\nfrom sweeprof.backends.fake import FakeModel\ndef model(step_s=0):\n"
        "    open('seen', 'a').write(os.environ.get('CUDA_VISIBLE_DEVICES', 'none') + '\\n')\n    return FakeModel()\n"
    )
    ran = run_command(
        *(tmp_path, "model=fake", "backend=fake", *STATIC, *CLUSTER, "model.fake._target_=seen.model", "cluster.gpus=1")
    )
    assert ran.code == 0, ran.out + ran.err
    assert (tmp_path / "seen").read_text().split() == ["0"]


def test_configs_of_ones_own_travel(slurm: Lab, tmp_path: Path) -> None:
    """A sweep file and a site's cluster in a folder of one's own, a model beside them."""
    (tmp_path / "mine" / "sweep").mkdir(parents=True)
    (tmp_path / "mine" / "cluster").mkdir()
    (tmp_path / "mine" / "cluster" / "lab.yaml").write_text(
        "defaults: [slurm]\npartition: high\npoll_s: 1\nmemory: 300MiB\n"
    )
    (tmp_path / "mine" / "sweep" / "night.yaml").write_text(
        "# @package _global_\ndefaults:\n  - override /cluster: lab\n  - override /model: fake\n  - override /backend: fake\n"
        "  - override /dataset: synthetic\n  - override /metrics: static\n  - override /tracking: none\n"
        "axes:\n  batch_size: [1, 2, 3]\nmodel:\n  fake: {_target_: own_model.model}\n"
    )
    (tmp_path / "own_model.py").write_text(
        "from sweeprof.backends.fake import FakeModel\ndef model(step_s=0):\n    return FakeModel(params=4321)\n"
    )
    ran = run_command(tmp_path, "+sweep=night", "--config-dir", "mine")
    assert ran.code == 0, ran.out + ran.err
    table = pd.read_csv(ran.folder("night") / "comparison.csv")
    assert list(table["params/total"]) == [4321] * 3
    record = json.loads(next(iter(ran.folder("night").glob("records/*/*.json"))).read_text())
    assert record["environment"]["scheduler"]["partition"] == "high"
