"""What a trial's process leaves behind when something raises, and when a model changes its settings."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from support.planning import composed_of
from support.plans import QUICK, fake_plan, sweep_folder
from sweeprof.errors import Problem, UserError
from sweeprof.metrics.evaluate import evaluate
from sweeprof.metrics.select import select
from sweeprof.passes.registry import checked_record
from sweeprof.results.files import read_json
from sweeprof.results.record import PassName, Record
from sweeprof.run.comparison import comparison_of
from sweeprof.run.interleave import Request
from sweeprof.run.shard import run_shard
from sweeprof.run.worker import run_trial


def recorded(path: Path, blank: Record) -> Record:
    """The record of a trial that runs in this process."""
    run_trial(Request(blank.to_dict(), str(path / "records"), str(path / "log"), None, None, time.monotonic()))
    return Record.from_dict(read_json(path / "records" / blank.file_name))


def mistaken() -> None:
    raise UserError([Problem("training.loss", "mse", "needs as many targets as outputs.")])


def test_a_mistake_is_told_in_its_own_words(tmp_path: Path) -> None:
    combination = fake_plan({"x": {"_target_": f"{__name__}.mistaken"}}).combinations[0]
    record = recorded(tmp_path, Record("s", combination.id, "quality", "crashed", config=combination.config))
    assert (record.status, record.reason) == ("failed", "training.loss: 'mse' needs as many targets as outputs.")
    assert record.traceback is not None


class NewDefaults(nn.Module):
    """Changes what everything else in the process does as well, as some models do to be quick."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch.set_num_threads(2)
        torch.backends.cudnn.benchmark = True
        torch.set_float32_matmul_precision("medium")
        y: torch.Tensor = self.linear(x)
        return y


class Raising(NewDefaults):
    """Has parameters, and a forward with a mistake."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise KeyError("mine")


class TooLarge(NewDefaults):
    """Can be described, and not be built: its forward asks for values, for which there is no memory."""

    def __init__(self) -> None:
        super().__init__()
        if not self.linear.weight.is_meta:
            raise MemoryError("no memory")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else -x


def config_of(model: str) -> dict[str, Any]:
    """Of a combination with a model of this module."""
    config = composed_of("model=lenet5", "backend=torch", "protocol=quick")
    config["model"] = {"torch": {"_target_": f"{__name__}.{model}"}}
    config["dataset"] = {"_target_": "sweeprof.datasets.arrays.Synthetic", "shape": [3], "samples": 4}
    config["protocol"] |= QUICK
    return config


@pytest.mark.parametrize(
    ("model", "status", "reason"),
    [("Raising", "failed", "KeyError: 'mine'"), ("TooLarge", "oom", "MemoryError: no memory")],
)
def test_parameters_are_there_if_the_forward_is_uncounted(tmp_path: Path, model: str, status: str, reason: str) -> None:
    record = recorded(tmp_path, Record("s", "c1", "analysis", "crashed", config=config_of(model)))
    assert record.status == status
    assert str(record.reason).startswith(reason)
    assert checked_record(tmp_path / "records" / record.file_name) == record
    found = evaluate(select(["params/total", "size/params_bytes", "compute/macs"]), [record], None, 1)
    values = {name: measurement.value for name, measurement in found.items()}
    assert values == {"params/total": 8, "size/params_bytes": 32, "compute/macs": None}
    assert found["compute/macs"].reason == f"analysis: {status}: {record.reason}"


@pytest.fixture
def settings_restored() -> Iterator[None]:
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    yield
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision(precision)
    torch.backends.cudnn.benchmark = False


@pytest.mark.usefixtures("settings_restored")
@pytest.mark.parametrize("pass_name", ["timing", "quality"])
def test_a_record_has_the_settings_as_they_were_while_the_model_ran(tmp_path: Path, pass_name: PassName) -> None:
    record = recorded(tmp_path, Record("s", "c1", pass_name, "crashed", config=config_of("NewDefaults")))
    assert (record.status, record.reason) == ("ok", None)
    deviations = record.environment["deviations"]
    assert (deviations["threads"], deviations["cudnn.benchmark"]) == ([1, 2], [False, True])
    assert deviations["float32 matmul precision"] == ["highest", "medium"]
    assert record.environment["threads"] == record.environment["settings"]["threads"] == 2
    texts = [warning.text for warning in record.warnings if warning.code == "settings_differ"]
    assert len(texts) == len(deviations) == 3
    assert any(text.startswith("threads was ") for text in texts)


def test_a_model_that_changes_nothing_has_its_settings_and_no_warning(tmp_path: Path) -> None:
    combination = fake_plan({"x": {}}).combinations[0]
    record = recorded(tmp_path, Record("s", combination.id, "timing", "crashed", config=combination.config))
    assert (record.environment["threads"], record.environment["settings"]) == (1, {"threads": 1})
    assert "deviations" not in record.environment
    assert not [warning for warning in record.warnings if warning.code == "settings_differ"]


def test_a_row_whose_model_changes_threads_is_not_comparable_and_says_why(tmp_path: Path) -> None:
    models: dict[str, dict[str, Any]] = {"calm": {}, "changes": {"changes": {"threads": 2}}, "slow": {"step_s": 0.5}}
    folder = sweep_folder(tmp_path, fake_plan(models, ["timing"], metrics=["latency/forward"]))
    run_shard(folder, 0)
    rows = {row.combination_id: row for row in comparison_of(folder).rows}
    cell = rows["cchanges"].cells["latency/forward"]
    assert (cell.verdict, cell.verdict_reason) == ("not_comparable", "different_environment")
    assert rows["cchanges"].differs == {"settings in effect": ("as requested", "threads 2 instead of 1")}
    assert [w.text for w in rows["cchanges"].warnings if w.code == "settings_differ"] == [
        "threads was 2 while the model ran, and 1 was requested: not comparable"
    ]
    assert rows["cslow"].cells["latency/forward"].verdict_reason == "too_few_rounds"
