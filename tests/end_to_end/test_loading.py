"""mode=loading measures the data loader alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.command import call_command
from support.planning import planned
from sweeprof.errors import UserError
from sweeprof.passes.timing import Loading
from sweeprof.profiling.profiler import Profiler

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


@pytest.mark.parametrize("limit", [None, 6])
def test_a_loader_of_torch_delivers_no_more_than_its_dataset_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int | None
) -> None:
    (tmp_path / "slow_loading.py").write_text(SLEEPING, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    node = {
        "_target_": "sweeprof.datasets.torch_dataset.TorchDataset",
        "_recursive_": False,
        "source": {"_target_": "slow_loading.Slow"},
        "limit": limit,
    }
    found = loaded(node, tmp_path)
    passes = len(found.first_batch_s)
    assert found.samples == passes * (limit or 10)
    assert found.batches == passes * (2 if limit else 3)
    assert found.seconds >= found.samples * 0.002
    assert min(found.first_batch_s) >= 4 * 0.002


def test_other_metrics_need_a_model() -> None:
    with pytest.raises(
        UserError, match=r"mode: 'loading' measures the data loader alone, without .*: add metrics=loading"
    ):
        planned(["model=fake", "backend=fake", "tracking=none", "mode=loading"])
    (combination,) = planned(FAKE).combinations
    assert combination.config["mode"] == "loading"


@pytest.mark.slow
@pytest.mark.usefixtures("measured_in_forks")
def test_a_sweep_over_the_number_of_workers(tmp_path: Path) -> None:
    (tmp_path / "slow_loading.py").write_text(SLEEPING, encoding="utf-8")
    source = ("dataset=torch", "dataset.source._target_=slow_loading.Slow", "dataset.source.number=160")
    arguments = ("model=fake", "backend=fake", "tracking=none", "metrics=loading", "batch_size=4", *source)
    ran = call_command(tmp_path, *arguments, "dataset.source.sleep_s=0.02", "dataset.workers=0,4")
    assert ran.code == 0, (ran.out, ran.err)
    rows = json.loads((ran.folder("adhoc") / "comparison.json").read_text())["rows"]
    rates = [row["cells"]["loading/samples_per_s"]["measurement"]["value"] for row in rows]
    assert rates[0] <= 1 / 0.02
    assert rates[0] < rates[1] <= 4 / 0.02
