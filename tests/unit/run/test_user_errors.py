"""Errors in a user's builder, model, dataset and metrics, from the sweep to its reports."""

from __future__ import annotations

import importlib
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from support.plans import fake_plan
from sweeprof.plan.plan import Plan
from sweeprof.results.compared_rows import Comparison, comparison_from
from sweeprof.results.files import read_json
from sweeprof.results.record import PassName
from sweeprof.run import driver
from sweeprof.run.comparison import comparison_of
from sweeprof.run.resume import count_trials, retry_statuses
from sweeprof.run.shard import run_shard
from sweeprof.storage import Folder, sweeps

MODULE = """
import sweeprof
from sweeprof.backends.fake import FakeModel
from sweeprof.datasets import Split

class Data:
    sample_shape, channel_axis = (2, 3), None

    def split(self, name):
        return Split(self.read(name), None)

    def read(self, name):
        raise FileNotFoundError(f"no file for {name}")


def build(depth):
    raise ValueError(f"depth {depth} is too large\\nby far")

LUCK = False

def lucky():
    if not LUCK:
        raise ArithmeticError("no luck")
    return 5

@sweeprof.metric(name="mine/read", unit="x", better="lower")
def read(timing):
    "Reads what a pass measured."
    return lucky()

@sweeprof.metric(name="mine/live", unit="x", better="lower")
def live(model):
    "Reads the model."
    return lucky()

@sweeprof.metric(name="mine/fine", unit="x", better="lower")
def fine(model):
    "Reads the model, too."
    return 3

class Spoilt(Data):
    def read(self, name):
        import numpy
        return numpy.full((8, 2, 3), numpy.nan)
"""
METRICS = ("latency/forward", *({"_target_": f"failing_user.{name}"} for name in ("read", "live", "fine")))


@pytest.fixture(autouse=True)
def module(tmp_path: Path, write_module: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch) -> Any:
    write_module("failing_user", MODULE)
    monkeypatch.chdir(tmp_path)
    return importlib.import_module("failing_user")


def plan_of(
    model: Mapping[str, Any], passes: Sequence[PassName], metrics: Sequence[Any], dataset: str | None = None
) -> Plan:
    plan = fake_plan({"a": model}, passes, metrics=metrics)
    for combination in plan.combinations:
        if dataset is not None:
            combination.config["dataset"] = {"_target_": dataset}
        combination.config["metrics"] = {"select": list(metrics), "strict": "warn", "functions": []}
    return plan


def swept(plan: Plan) -> tuple[int, Folder, str]:
    """Exit code, folder and what was printed."""

    def launch(folder: Folder, plan: Plan, shards: Sequence[int]) -> None:
        for shard in shards:
            run_shard(folder, shard)

    printed = io.StringIO()
    out = Console(file=printed, width=100)
    output = Path("outputs").absolute()
    code = driver.run(plan, output, {"_target_": None}, launch, out, out)
    return code, next(sweeps(output)), printed.getvalue()


def read_back(folder: Folder) -> Comparison:
    return comparison_from(read_json(folder.path / "comparison.json"))


BUILDER: dict[str, Any] = {"_target_": "failing_user.build", "depth": 7}


@pytest.mark.parametrize(
    ("model", "dataset", "message"),
    [
        (BUILDER, None, "ValueError: depth 7 is too large (failing_user.py:17 in build)"),
        ({}, "failing_user.Data", "FileNotFoundError: no file for test (failing_user.py:13 in read)"),
    ],
    ids=["builder", "dataset"],
)
def test_an_error_of_the_user_has_its_line_and_log(model: dict[str, Any], dataset: str | None, message: str) -> None:
    code, folder, printed = swept(plan_of(model, ["quality", "timing"], ["latency/forward"], dataset))
    assert code == 2
    (row,) = read_back(folder).rows
    said = f"quality, timing: {message}"
    assert (row.status, row.reason) == ("failed", f"quality: {message}")
    (failure,) = row.failures
    assert failure.log is not None
    assert "Traceback (most recent call last)" in (folder.path / failure.log).read_text()
    assert f"– {said}" in " ".join(printed.split())
    assert " ".join(printed.split()).count(f": failed: {message}; log: ") == 1  # of the pass that failed first
    page = (folder.path / "report.html").read_text()
    assert "failing_user.py&#34;, line" in page
    assert f'<a href="{failure.log}">log</a>' in page
    assert f"([log]({failure.log}))" in (folder.path / "comparison.md").read_text()


def test_a_metric_that_raises_leaves_the_combination_incomplete(module: Any) -> None:
    plan = plan_of({"step_s": 0.5}, ["timing", "live"], METRICS, "failing_user.Spoilt")
    code, folder, printed = swept(plan)
    assert code == 2
    (row,) = read_back(folder).rows
    spoilt = "8 of the 8 samples of split('test') have inputs that are NaN or infinite"
    assert spoilt in [warning.text for warning in row.warnings]
    values = {name: cell.measurement.value for name, cell in row.cells.items()}
    assert values == {"latency/forward": 0.5, "mine/read": None, "mine/live": None, "mine/fine": 3}
    said = "metrics mine/read, mine/live: ArithmeticError: no luck (failing_user.py:23 in lucky)"
    assert (row.status, row.reason) == ("ok", said)
    assert "1 of 1 combination measured, 1 of them incompletely" in printed
    _, folder, _ = swept(replace(plan, fail_fast=True))
    assert folder.stopped() == f"fail_fast: live failed: metric mine/live: {said.partition(': ')[2]}"
    assert f"– {said}" in " ".join(printed.split())
    assert "raise ArithmeticError" in (folder.path / "report.html").read_text()


def test_a_metric_that_was_mended_is_computed_when_the_sweep_is_resumed(module: Any) -> None:
    """From what the passes measured; only the pass that has the model is run again."""
    plan = plan_of({"step_s": 0.5}, ["timing", "live"], METRICS)
    _, folder, _ = swept(plan)
    timing = next(folder.records.glob("*/timing-r0.json")).read_bytes()
    module.LUCK = True
    again = count_trials(folder, plan, retry_statuses([]), move=True)
    assert (again.kept, again.again) == (1, {"failed": 1})
    run_shard(folder, 0)
    (row,) = comparison_of(folder, trust=True).rows
    values = {name: cell.measurement.value for name, cell in row.cells.items()}
    assert values == {"latency/forward": 0.5, "mine/read": 5, "mine/live": 5, "mine/fine": 3}
    assert row.is_fully_measured
    assert next(folder.records.glob("*/timing-r0.json")).read_bytes() == timing
