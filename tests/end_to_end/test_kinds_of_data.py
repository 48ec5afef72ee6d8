"""The same samples in six forms give the same accuracy on two frameworks; mistakes in data are one sentence."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml

from support.command import call_command
from support.kinds_of_data import write_digits
from support.planning import planned
from support.records import read_records
from sweeprof.profiling.profiler import Profiler
from sweeprof.run.shard import prepare_data


@pytest.mark.slow
@pytest.mark.usefixtures("measured_in_forks")
def test_six_kinds_of_data_give_the_same_accuracy_on_torch_and_tensorflow(tmp_path: Path) -> None:
    kinds = write_digits(tmp_path)
    (tmp_path / "mine" / "sweep").mkdir(parents=True)
    sweep = {
        "variants": {"data": kinds},
        "axes": {"backend": ["torch", "tensorflow"], "data": list(kinds)},
        "metrics": {"select": ["quality/accuracy", "quality/agreement"]},
        "batch_size": 64,
    }
    header = "# @package _global_\n"
    (tmp_path / "mine" / "sweep" / "forms.yaml").write_text(header + yaml.safe_dump(sweep), encoding="utf-8")
    ran = call_command(tmp_path, "--config-dir", "mine", "+sweep=forms", "tracking=none", "isolation=fork")
    assert ran.code == 0, (ran.out, ran.err)
    rows = json.loads((ran.folder("forms") / "comparison.json").read_text())["rows"]
    assert len(rows) == 12
    cells = [row["cells"]["quality/accuracy"]["measurement"] for row in rows]
    assert {row["status"] for row in rows} == {"ok"}, [row["reason"] for row in rows]
    assert len({cell["value"] for cell in cells}) == 1
    assert cells[0]["value"] > 0.9


def test_data_are_decoded_once_and_before_the_first_trial(tmp_path: Path) -> None:
    """The log has a file per process that made the dataset."""
    (tmp_path / "logged_data.py").write_text(
        "import os, time\nimport numpy as np\nfrom pathlib import Path\n"
        "class Logged:\n"
        "    def __init__(self, log, split):\n"
        "        self.split = split\n"
        "        Path(log, f'{os.getpid()}.{split}').write_text(str(time.time()))\n"
        "    def __len__(self): return 8\n"
        "    def __getitem__(self, at): return np.full(10, at, np.float32), at\n",
        encoding="utf-8",
    )
    (tmp_path / "log").mkdir()
    source = (
        "dataset.source._target_=logged_data.Logged",
        f"dataset.source.log={tmp_path / 'log'}",
        "dataset.source.split=test",
    )
    select = "metrics.select=[quality/accuracy,latency/forward]"
    ran = call_command(
        tmp_path, *("model=fake", "backend=fake", "dataset=torch", *source), "batch_size=1,2", select, "tracking=none"
    )
    assert ran.code == 0, (ran.out, ran.err)
    (made,) = (tmp_path / "log").iterdir()
    records = read_records(ran.folder("adhoc") / "records")
    assert {(record.pass_name, record.status) for record in records} == {("timing", "ok"), ("quality", "ok")}
    assert all(record.environment["ran"][0] > float(made.read_text()) for record in records)


def test_data_of_a_host_that_did_not_plan_are_decoded_before_any_clock_runs(tmp_path: Path) -> None:
    """As on a cluster: by the shard, in a process of its own; and by a trial before its pass begins, where that was removed."""

    np.savez(tmp_path / "a.npz", x=np.zeros((4, 3)), y=np.zeros(4, np.int64))
    node = {
        "_target_": "sweeprof.datasets.arrays.Npz",
        "prepare": True,
        "path": str(tmp_path / "a.npz"),
        "cache": str(tmp_path / "cache"),
    }
    prepare_data([{"dataset": node, "backend": {"precision": "int8"}}], tmp_path / "logs")
    assert len(list((tmp_path / "cache" / "entries").iterdir())) == 2  # int8 takes ranges from the training split
    prepare_data([{"dataset": {**node, "path": "nowhere.npz"}, "backend": {}}], tmp_path / "logs")  # left to the trial
    shutil.rmtree(tmp_path / "cache")
    (combination,) = planned(["model=fake", "backend=fake", "tracking=none"]).combinations
    profiler = Profiler.from_config({**combination.config, "dataset": node})
    profiler.session.prepare()
    assert len(list((tmp_path / "cache" / "entries").iterdir())) == 1
