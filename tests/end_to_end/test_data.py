"""Data in real sweeps: the same samples in six forms, samples of several arrays, and the data loader alone."""

from __future__ import annotations

import shutil
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import pytest
import yaml

from support.command import call_command, values_of
from support.kinds_of_data import write_digits
from support.planning import planned, write_configs
from support.plans import read_records
from sweeprof.passes.timing import Loading
from sweeprof.profiling.profiler import Profiler
from sweeprof.run.shard import prepare_data

# Forms of data

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


@pytest.mark.thorough
@pytest.mark.usefixtures("measured_in_forks")
def test_six_kinds_of_data_give_the_same_accuracy(tmp_path: Path) -> None:
    kinds = write_digits(tmp_path)
    sweep = {
        "variants": {"data": kinds},
        "axes": {"data": list(kinds)},
        "metrics": {"select": ["quality/accuracy"]},
        "batch_size": 64,
    }
    write_configs(tmp_path / "mine", {"sweep/forms": f"# @package _global_\n{yaml.safe_dump(sweep)}"})
    ran = call_command(tmp_path, "--config-dir", "mine", "+sweep=forms", "tracking=none", "isolation=fork")
    rows = ran.rows("forms")
    assert len(rows) == 6
    accuracies = {values_of(row)["quality/accuracy"] for row in rows}
    assert {row["status"] for row in rows} == {"ok"}, [row["reason"] for row in rows]
    assert len(accuracies) == 1
    assert min(accuracies) > 0.9


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


# Samples of several arrays


PACKAGE = dedent(
    '''
    """A model of ids and an image, the same in two frameworks, and its data in several forms."""

    import numpy as np

    from sweeprof.datasets import Split

    random = np.random.default_rng(0)
    EMBEDDING, KERNEL, WEIGHT, BIAS = (
        random.standard_normal(shape).astype(np.float32) for shape in ((50, 16), (3, 3, 3, 8), (24, 5), (5,))
    )


    class Pairs:
        """Whole numbers and images, with classes."""

        channel_axis = 1

        def __init__(self, form: str = "mapping") -> None:
            self.form = form

        def split(self, name: str) -> Split:
            random = np.random.default_rng(name == "test")
            ids, image = random.integers(0, 50, (40, 12)), random.standard_normal((40, 3, 8, 8)).astype(np.float32)
            inputs = {"mapping": {"ids": ids, "image": image}, "tuple": (ids, image)}[self.form]
            return Split(inputs, random.integers(0, 5, 40))


    def torch_model():
        import torch

        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.table, self.conv, self.head = torch.nn.Embedding(50, 16), torch.nn.Conv2d(3, 8, 3), torch.nn.Linear(24, 5)
                torch.nn.init.zeros_(self.conv.bias)
                values = (EMBEDDING, KERNEL.transpose(3, 2, 0, 1).copy(), WEIGHT.T.copy(), BIAS)
                parameters = (self.table.weight, self.conv.weight, self.head.weight, self.head.bias)
                for parameter, value in zip(parameters, values):
                    parameter.data = torch.from_numpy(value).to(parameter.device)

            def forward(self, ids, image):
                features = self.conv(image).mean((2, 3))
                return {"features": features, "logits": self.head(torch.cat([self.table(ids).mean(1), features], 1))}

        return Net()


    def keras_model():
        import keras
        from keras import layers

        ids, image = keras.Input((12,), dtype="int32", name="ids"), keras.Input((8, 8, 3), name="image")
        words = layers.Embedding(50, 16)(ids)
        features = layers.GlobalAveragePooling2D()(layers.Conv2D(8, 3)(image))
        logits = layers.Dense(5)(layers.Concatenate()([layers.GlobalAveragePooling1D()(words), features]))
        model = keras.Model({"ids": ids, "image": image}, {"features": features, "logits": logits})
        values = {(50, 16): EMBEDDING, (3, 3, 3, 8): KERNEL, (24, 5): WEIGHT, (5,): BIAS, (8,): np.zeros(8)}
        model.set_weights([values[variable.shape] for variable in model.weights])
        return model
    '''
)

QUICKLY = ("tracking=none", "protocol.min_s=0.02", "protocol.warmup_s=0.02", "protocol.rounds=1", "batch_size=4")
COUNTS_AND_ANSWERS = "quality/agreement,quality/accuracy,params/total,compute/macs"


def rows_of(tmp_path: Path, *arguments: str) -> list[dict[str, Any]]:
    (tmp_path / "pairs.py").write_text(PACKAGE, encoding="utf-8")
    model = "torch: {_target_: pairs.torch_model}\ntensorflow: {_target_: pairs.keras_model}\n"
    dataset = "_target_: pairs.Pairs\nform: mapping\n"
    write_configs(tmp_path / "mine", {"model/pairs": model, "dataset/pairs": dataset})
    ran = call_command(tmp_path, "--config-dir", "mine", "model=pairs", "dataset=pairs", *QUICKLY, *arguments)
    rows = ran.rows()
    for row in rows:
        values = values_of(row)
        assert row["status"] == "ok", row["reason"]
        assert values["params/total"] == 50 * 16 + 8 * 27 + 8 + 24 * 5 + 5
        assert values["compute/macs"] == 4 * (8 * 27 * 36 + 24 * 5)
        assert values["quality/agreement"] < 1e-5
    assert len({values_of(row)["quality/accuracy"] for row in rows}) == 1
    return rows


@pytest.mark.thorough
@pytest.mark.usefixtures("measured_in_forks")
def test_a_mapping_is_keyword_arguments_and_a_tuple_positional_ones(tmp_path: Path) -> None:
    """A mapping on every kind of backend: the test of a training step has the others."""
    axes = ("dataset.form=mapping,tuple", "backend=torch,onnxruntime,litert")
    exclude = "exclude=[{dataset.form: tuple, backend: [onnxruntime, litert]}]"  # a conversion takes long
    rows = rows_of(tmp_path, *axes, exclude, f"metrics.select=[{COUNTS_AND_ANSWERS},latency/forward]")
    assert len(rows) == 4


@pytest.mark.thorough
@pytest.mark.usefixtures("measured_in_forks")
def test_a_training_step_and_ranges_of_eight_bits_have_them_too(tmp_path: Path) -> None:
    loss = ("metrics=training", "training.loss=cross_entropy")
    rows_of(tmp_path, *loss, "backend=torch,tensorflow,jax", f"metrics.select=[{COUNTS_AND_ANSWERS},latency/total]")


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
