"""What a stranger sees after ``python -m sweeprof +sweep=quickstart``."""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from support import hand_counts
from support.browser import needs_browser
from support.command import Ran
from support.mlflow_pages import FIRST_VISIT, WAIT_MS, mlflow_page, opened, opened_view
from support.processes import started

POINTS = set(itertools.product(("lenet5", "mlp", "digits_resnet"), ("torch", "tensorflow"), ("cpu",), (1, 64)))
"""Those of this test; the smallest and the largest of its three batch sizes."""
METRICS = """
latency/forward latency/per_sample latency/first_step throughput/samples_per_s memory/added_bytes memory/process_peak_bytes
quality/accuracy quality/agreement compute/macs compute/macs_per_sample params/total params/trainable params/frozen
size/params_bytes
""".split()

pytestmark = [pytest.mark.slow, pytest.mark.timeout(500)]


@pytest.fixture(scope="module")
def folder(quickstart: Ran) -> Path:
    assert quickstart.code == 0, quickstart.err
    return quickstart.folder("quickstart")


@pytest.fixture(scope="module")
def table(folder: Path) -> pd.DataFrame:
    return pd.read_csv(folder / "comparison.csv")


@pytest.fixture(scope="module")
def rows(quickstart: Ran) -> list[dict[str, Any]]:
    return quickstart.rows("quickstart")


@pytest.fixture(scope="module")
def records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in folder.glob("records/*/*.json")]


def test_every_combination_is_measured(table: pd.DataFrame) -> None:
    assert {tuple(row) for row in table[["model", "backend", "device", "batch_size"]].itertuples(index=False)} == POINTS
    assert list(table["status"]) == ["ok"] * 12
    assert table["reason"].isna().all()


def test_the_columns_are_axes_status_reason_and_metrics(table: pd.DataFrame) -> None:
    first, last = ["model", "backend", "device", "batch_size", "status", "reason"], ["pareto"]
    assert list(table.columns) == [*first, *METRICS, *last]
    assert table[METRICS].notna().all().all()


def test_counts_equal_the_hand_calculation_in_both_frameworks(table: pd.DataFrame) -> None:
    assert hand_counts.MACS["lenet5"] == 416_520
    assert hand_counts.PARAMS["lenet5"] == 61_706
    for row in table.to_dict("records"):
        assert row["compute/macs_per_sample"] == hand_counts.MACS[row["model"]]
        assert row["compute/macs"] == hand_counts.MACS[row["model"]] * row["batch_size"]
        assert row["params/total"] == row["params/trainable"] == hand_counts.PARAMS[row["model"]]
        assert row["params/frozen"] == 0
        assert row["size/params_bytes"] == 4 * hand_counts.PARAMS[row["model"]]


def test_both_frameworks_answer_alike_and_well(table: pd.DataFrame) -> None:
    for model, group in table.groupby("model"):
        assert group["quality/accuracy"].nunique() == 1
        assert group["quality/accuracy"].iloc[0] >= (0.95 if model == "mlp" else 0.97)
    assert (table["quality/agreement"] <= 1e-4).all()
    assert (table.loc[table["backend"] == "torch", "quality/agreement"] == 0).all()
    assert (table.loc[table["backend"] == "tensorflow", "quality/agreement"] > 0).all()


def test_the_memory_of_a_model_is_beside_that_of_the_whole_process(table: pd.DataFrame) -> None:
    assert (table["memory/process_peak_bytes"] > 50 * 2**20).all()
    assert (table["memory/added_bytes"] > table["size/params_bytes"]).all()
    assert (table["memory/added_bytes"] < 0.1 * table["memory/process_peak_bytes"]).all()


def test_every_time_has_a_verdict_from_three_rounds(rows: list[dict[str, Any]]) -> None:
    cells = [row["cells"]["latency/forward"] for row in rows if row["axes"]["backend"] == "tensorflow"]
    reasons = {"interval_within_threshold", "interval_beyond_threshold", "interval_crosses_threshold"}
    assert {cell["verdict_reason"] for cell in cells} <= reasons
    assert all(cell["ratio_interval"] for cell in cells)


def test_records_are_complete(records: list[dict[str, Any]], rows: list[dict[str, Any]]) -> None:
    assert Counter(r["pass"] for r in records) == {"analysis": 12, "memory": 12, "quality": 12, "timing": 36}
    commands = {row["combination_id"]: row["command"] for row in rows}
    for record in records:
        assert record["schema_version"] == 2
        assert record["status"] == "ok"
        assert {"host", "cpu", "memory_bytes", "threads", "load", "versions"} <= set(record["environment"])
        assert record["command"] == commands[record["combination_id"]]


def test_the_folder_holds_what_was_promised(folder: Path) -> None:
    files = "plan.json environment.json comparison.md comparison.csv comparison.json comparison-tables.tex".split()
    assert [name for name in (*files, "report.html", "sweeprof.log") if not (folder / name).is_file()] == []


def test_the_terminal_shows_tables_and_then_two_lines(quickstart: Ran, folder: Path) -> None:
    answer, counts = quickstart.out.replace("\n", " ").split(" 12 of 12 combinations measured. Confidence: ")
    side = "(torch|tensorflow)"
    uncertain = "No certain difference between torch and tensorflow in all 6 cases"
    assert re.match(rf"{side} is \S+( to \S+)? faster than {side} in (all|\d of) 6 cases|{uncertain}", answer)
    assert re.match(r"(high|medium|low)[. ]", counts), counts
    assert "round" not in counts.partition(".")[0]
    assert "no threshold" not in counts
    for model in ("lenet5", "mlp", "digits_resnet"):
        assert f"\n{model}\n" in quickstart.out
    last = quickstart.out.strip().splitlines()[-2:]
    assert last[0].split() == ["Report", str(folder / "report.html")]
    assert last[1] == f"MLflow UI  sweeprof ui {folder}"
    assert "http://" not in quickstart.out  # no server listens yet
    assert re.search(r"\[\d+/72\] \w+, \w+, batch_size \d+, \w+ \(about .* left\)", quickstart.err)


def test_mlflow_holds_the_sweep(quickstart: Ran, folder: Path, table: pd.DataFrame) -> None:
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{quickstart.cwd}/outputs/mlflow.db")
    experiment = client.get_experiment_by_name("quickstart")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id], max_results=100)
    parent = next(run for run in runs if run.data.tags["sweeprof.kind"] == "sweep")
    children = [run for run in runs if run.data.tags.get("mlflow.parentRunId") == parent.info.run_id]
    assert len(children) == len(runs) - 1 == 12
    assert {run.info.status for run in runs} == {"FINISHED"}
    assert "12 of 12" in parent.data.tags["mlflow.note.content"]
    exact = table.set_index(["model", "backend", "batch_size"])["latency/forward"]
    for child in children:
        point = (child.data.params["model"], child.data.params["backend"], int(child.data.params["batch_size"]))
        assert child.data.metrics["latency/forward_ms"] == pytest.approx(1e3 * exact[point], rel=5e-5)
        assert child.data.tags["sweeprof.status"] == "ok"


@needs_browser
@pytest.mark.system
def test_every_link_opens_what_it_promises(quickstart: Ran, folder: Path) -> None:
    with started("sweeprof", "ui", str(folder), "--port", "0", cwd=quickstart.cwd) as ui, mlflow_page() as page:
        links = {name: ui.line(f"{name:<11}") for name in ("Table", "Charts", "Sweep", "Report")}

        opened(page, (folder / "report.html").as_uri(), FIRST_VISIT)
        page.get_by_text("12 of 12 combinations measured").first.wait_for(timeout=WAIT_MS)

        # What views show is among the tests of MLflow's pages.
        opened_view(page, links["Table"], 12)
        table, charts = "-table&compareRunsMode=TABLE", "-charts&compareRunsMode=CHART"
        assert links["Charts"] == links["Table"].replace(table, charts)

        opened(page, links["Report"], FIRST_VISIT)
        page.frame_locator("iframe").get_by_text("12 of 12 combinations measured").first.wait_for(timeout=WAIT_MS)

        opened(page, links["Sweep"], FIRST_VISIT)
        page.get_by_text("12 of 12 combinations measured").first.wait_for(timeout=WAIT_MS)
