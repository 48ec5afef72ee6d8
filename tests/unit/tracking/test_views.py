"""The saved views as JSON, apart from any MLflow."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qs

import pytest

from sweeprof.tracking.views import (
    KINDS,
    TAG_LIMIT,
    ViewOf,
    addresses,
    newest_view,
    outdated_views,
    runs_address,
    view_address,
    view_tags,
)

KEYS = {
    "latency/forward": "latency/forward_ms",
    "latency/per_sample": "latency/per_sample_ms",
    "quality/accuracy": "quality/accuracy",
    "compute/macs_per_sample": "compute/macs_per_sample_m",
    "params/total": "params/total_k",
}


def view(**changes: Any) -> ViewOf:
    fields: dict[str, Any] = {"sweep_id": "s1", "title": "quickstart", "parent_id": "parent", "created_ms": 1000}
    return ViewOf(**{**fields, "axes": {"model": 6, "batch_size": 2}, "keys": KEYS, **changes})


def state(of: ViewOf, kind: str) -> dict[str, Any]:
    return unpacked(view_tags(of)[f"mlflow.sharedViewState.sweeprof-s1-{kind}"])


def unpacked(tag: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.loads(tag)["state"])
    return found


def cards(of: ViewOf, kind: str, type: str) -> list[dict[str, Any]]:
    return [card for card in state(of, kind)["compareRunCharts"] if card["type"] == type]


@pytest.mark.parametrize("kind", KINDS)
def test_every_view_lists_all_runs_of_the_sweep_flat(kind: str) -> None:
    found = state(view(), kind)
    assert found["searchFilter"] == 'tags.mlflow.parentRunId = "parent"'
    assert found["orderByKey"] == "tags.`sweeprof.place`"
    assert found["runsHiddenMode"] == "SHOW_ALL"


def test_trade_offs_are_accuracy_and_work_against_time() -> None:
    pairs = [(card["xaxis"]["key"], card["yaxis"]["key"]) for card in cards(view(), "charts", "SCATTER")]
    assert pairs == [
        ("latency/per_sample_ms", "quality/accuracy"),
        ("latency/per_sample_ms", "compute/macs_per_sample_m"),
    ]
    assert cards(view(keys={"quality/accuracy": "quality/accuracy"}), "charts", "SCATTER") == []


def test_the_table_has_the_main_metric_its_ratio_and_verdict_then_the_rest() -> None:
    first, rest = (
        "metrics.`latency/forward_ms`",
        ["metrics.`quality/accuracy`", "params.`model`", "params.`batch_size`"],
    )
    found = state(view(), "table")
    assert found["selectedColumns"] == [first, *rest]
    compared = state(view(ratio="vs_baseline/latency"), "table")
    assert compared["selectedColumns"] == [first, "metrics.`vs_baseline/latency`", "tags.`verdict`", *rest]
    assert set(found["columnWidths"]) == set(found["columnOrder"])
    with_failures = state(view(failures=True), "table")
    assert "tags.`sweeprof.reason`" in with_failures["selectedColumns"]


def test_the_ratio_and_each_headline_have_a_bar_chart_and_sections_are_never_empty() -> None:
    found = state(view(ratio="vs_baseline/latency"), "charts")
    bars = [card["metricKey"] for card in found["compareRunCharts"] if card["type"] == "BAR"]
    assert bars == ["vs_baseline/latency", "latency/forward_ms", "quality/accuracy"]
    assert {card["metricSectionId"] for card in found["compareRunCharts"]} == {
        section["uuid"] for section in found["compareRunSections"]
    }
    assert all(card["runsCountToCompare"] == 100 for card in found["compareRunCharts"])


def test_a_sweep_without_any_headline_shows_what_it_has() -> None:
    assert "metrics.`mine`" in state(view(keys={"mine": "mine"}), "table")["selectedColumns"]
    assert state(view(keys={}, axes={}), "table")["selectedColumns"] == []
    own = state(view(keys={f"operators/{i}": f"operators/{i}" for i in range(6)}), "charts")
    assert [section["name"] for section in own["compareRunSections"]] == ["Compare", "All axes"]


def test_a_view_that_is_too_long_is_left_out() -> None:
    tags = view_tags(view(axes={f"axis{i}": 2 for i in range(400)}))
    assert [key.rpartition("-")[2] for key in tags] == ["charts"]
    assert all(len(value) <= TAG_LIMIT for value in tags.values())


def test_old_views_are_outdated_and_those_of_others_never() -> None:
    views = {
        f"mlflow.sharedViewState.sweeprof-s{i}-{kind}": json.dumps({"createdAt": i + 1})
        for i in range(3)
        for kind in ("table", "charts")
    }
    tags = {**views, "mlflow.sharedViewState.mine": "{}", "mlflow.note.content": "x"}
    assert outdated_views(tags, keep=2) == [
        "mlflow.sharedViewState.sweeprof-s0-charts",
        "mlflow.sharedViewState.sweeprof-s0-table",
    ]
    broken = {"mlflow.sharedViewState.sweeprof-x-table": "not json"}
    assert outdated_views(tags | broken, keep=3) == list(broken)
    assert newest_view(tags | broken) == 3


def test_a_sweep_without_a_view_is_shown_by_a_filter() -> None:
    there = {"mlflow.sharedViewState.sweeprof-s1-table"}
    found = addresses("http://h:1", "7", "s1", "parent", there)
    assert found["table"] == view_address("http://h:1", "7", "s1", "table")
    assert found["charts"] == runs_address("http://h:1", "7", "parent", "charts")
    path, _, query = found["charts"].partition("?")
    assert path == "http://h:1/#/experiments/7/runs"
    assert parse_qs(query) == {
        "searchFilter": ['tags.mlflow.parentRunId = "parent"'],
        "orderByKey": ["tags.`sweeprof.place`"],
        "orderByAsc": ["true"],
        "compareRunsMode": ["CHART"],
        "workflowType": ["machine_learning"],
    }


def test_an_address_is_quoted() -> None:
    assert view_address("http://h:1/", "7", "a b/é", "charts") == (
        "http://h:1/#/experiments/7/runs?viewStateShareKey=sweeprof-a-b---charts&compareRunsMode=CHART&workflowType=machine_learning"
    )
