"""Data in real sweeps: when and how often they are decoded, and the data loader alone."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.command import call_command, values_of
from support.planning import planned
from support.plans import read_records
from sweeprof.measuring.inputs import Inputs
from sweeprof.passes.timing import Loading
from sweeprof.profiling.profiler import Profiler
from sweeprof.run.shard import prepare_data

LOGGED = """
import os, time
import numpy as np
from pathlib import Path

class Logged:
    def __init__(self, log, split):
        self.split = split
        Path(log, f'{os.getpid()}.{split}').write_text(str(time.time()))
    def __len__(self): return 8
    def __getitem__(self, at): return np.full(10, at, np.float32), at
"""


@pytest.mark.slow
def test_data_are_decoded_once_and_before_the_first_trial(tmp_path: Path) -> None:
    """The log has a file per process that made the dataset."""
    (tmp_path / "logged_data.py").write_text(LOGGED)
    (tmp_path / "log").mkdir()
    source = f"_target_: logged_data.Logged, log: '{tmp_path / 'log'}', split: test"
    data = ("dataset=torch", f"dataset.source={{{source}}}", "batch_size=1,2")
    select = "metrics.select=[quality/accuracy,latency/forward]"
    ran = call_command(tmp_path, "model=fake", "backend=fake", "tracking=none", *data, select)
    assert ran.code == 0, (ran.out, ran.err)
    (made,) = (tmp_path / "log").iterdir()
    records = read_records(ran.folder("adhoc") / "records")
    assert {(record.pass_name, record.status) for record in records} == {("timing", "ok"), ("quality", "ok")}
    assert all(record.environment["ran"][0] > float(made.read_text()) for record in records)


@pytest.mark.slow
def test_data_of_a_host_that_did_not_plan_are_decoded_before_any_clock_runs(tmp_path: Path) -> None:
    """As on a cluster: by the shard, in a process of its own; and by a trial before its pass begins, where that was removed."""

    np.savez(tmp_path / "a.npz", x=np.zeros((4, 3)), y=np.zeros(4, np.int64))
    folders = {"path": str(tmp_path / "a.npz"), "cache": str(tmp_path / "cache")}
    node = {"_target_": "sweeprof.datasets.arrays.Npz", "prepare": True, **folders}
    prepare_data([{"dataset": node, "backend": {"precision": "int8"}}], tmp_path / "logs")
    assert len(list((tmp_path / "cache" / "entries").iterdir())) == 2  # int8 takes ranges from the training split
    prepare_data([{"dataset": {**node, "path": "nowhere.npz"}, "backend": {}}], tmp_path / "logs")  # left to the trial
    shutil.rmtree(tmp_path / "cache")
    (combination,) = planned(["model=fake", "backend=fake", "tracking=none"]).combinations
    profiler = Profiler.from_config({**combination.config, "dataset": node})
    profiler.session.prepare()
    assert len(list((tmp_path / "cache" / "entries").iterdir())) == 1


def test_a_mapping_is_keyword_arguments_and_a_tuple_positional_ones() -> None:
    for batch, args, kwargs in (({"a": 1, "b": 2}, (), {"a": 1, "b": 2}), ((1, 2), (1, 2), {}), (3, (3,), {})):
        found = Inputs.from_batch(batch)
        assert (found.args, found.kwargs) == (args, kwargs)


# mode=loading


SLEEPING = """
import time
import numpy as np


class Slow:
    def __init__(self, number=10, sleep_s=0.002):
        self.number, self.sleep_s = number, sleep_s

    def __len__(self):
        return self.number

    def __getitem__(self, at):
        time.sleep(self.sleep_s)
        return np.full(10, at, np.float32), at % 10
"""
FAKE = ("model=fake", "backend=fake", "tracking=none", "metrics=loading")


def loaded(node: dict[str, Any], tmp_path: Path, batch_size: int = 4, min_s: float = 0.1) -> Loading:
    (combination,) = planned([*FAKE, f"batch_size={batch_size}", f"protocol.min_s={min_s}"]).combinations
    if node:
        node = {"cache": str(tmp_path / "cache"), **node}
    profiler = Profiler.from_config({**combination.config, "dataset": node or combination.config["dataset"]})
    result = profiler.run("loading")
    assert isinstance(result, Loading)
    return result


def test_every_sample_of_complete_passes_is_counted(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((10, 3)), y=np.zeros(10, np.int64))
    for node in ({}, {"_target_": "sweeprof.datasets.arrays.Npz", "path": str(tmp_path / "a.npz"), "limit": 10}):
        found = loaded(node, tmp_path, min_s=0.02)
        passes, size = len(found.first_batch_s), 10 if node else 360
        assert found.samples == passes * size
        assert found.batches == passes * -(-size // 4)
        assert found.seconds >= 0.02
        assert sum(found.first_batch_s) <= found.seconds


def test_a_loader_of_torch_delivers_no_more_than_its_dataset_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slow_loading.py").write_text(SLEEPING, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    node = {
        "_target_": "sweeprof.datasets.torch_dataset.TorchDataset",
        "_recursive_": False,
        "source": {"_target_": "slow_loading.Slow"},
        "limit": 6,
    }
    found = loaded(node, tmp_path)
    passes = len(found.first_batch_s)
    assert (found.samples, found.batches) == (passes * 6, passes * 2)
    assert found.seconds >= found.samples * 0.002
    assert min(found.first_batch_s) >= 4 * 0.002


@pytest.mark.thorough
@pytest.mark.usefixtures("measured_in_forks")
def test_a_sweep_over_the_number_of_workers(tmp_path: Path) -> None:
    (tmp_path / "slow_loading.py").write_text(SLEEPING, encoding="utf-8")
    source = ("dataset=torch", "dataset.source._target_=slow_loading.Slow", "dataset.source.number=80")
    arguments = ("model=fake", "backend=fake", "tracking=none", "metrics=loading", "batch_size=4", *source)
    ran = call_command(tmp_path, *arguments, "dataset.source.sleep_s=0.02", "dataset.workers=0,4")
    rates = [values_of(row)["loading/samples_per_s"] for row in ran.rows()]
    assert rates[0] <= 1 / 0.02
    assert rates[0] < rates[1] <= 4 / 0.02
