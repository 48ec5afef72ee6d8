"""The saved views as JSON, apart from any MLflow."""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any

from sweeprof.tracking.views import TAG_LIMIT, ViewOf, outdated_views, view_address, view_tags

KEYS = {
    "latency/forward": "latency/forward_ms",
    "latency/per_sample": "latency/per_sample_ms",
    "quality/accuracy": "quality/accuracy",
    "params/total": "params/total_k",
}


def view(**changes: Any) -> ViewOf:
    fields = {"axes": {"model": 6, "batch_size": 2}, "keys": KEYS, "failures": False, **changes}
    return ViewOf("s1", "quickstart", "parent", 1000, **fields)


def state(of: ViewOf, kind: str) -> dict[str, Any]:
    text = json.loads(view_tags(of)[f"mlflow.sharedViewState.sweeprof-s1-{kind}"])["state"]
    if text.startswith("deflate;"):
        text = zlib.decompress(base64.b64decode(text.removeprefix("deflate;"))).decode()
    found: dict[str, Any] = json.loads(text)
    return found


def test_both_views_list_all_runs_of_the_sweep_flat() -> None:
    for kind in ("table", "charts"):
        found = state(view(), kind)
        assert found["searchFilter"] == 'tags.mlflow.parentRunId = "parent"'
        assert found["orderByKey"] == "tags.`sweeprof.place`"
        assert found["runsHiddenMode"] == "SHOW_ALL"


def test_the_table_has_headline_metrics_then_axes() -> None:
    columns = ["metrics.`latency/forward_ms`", "metrics.`quality/accuracy`", "params.`model`", "params.`batch_size`"]
    found = state(view(), "table")
    assert found["selectedColumns"] == columns
    assert set(found["columnWidths"]) == set(found["columnOrder"])
    with_failures = state(view(failures=True), "table")
    assert "tags.`sweeprof.reason`" in with_failures["selectedColumns"]


def test_every_metric_has_one_bar_chart_and_sections_are_never_empty() -> None:
    found = state(view(), "charts")
    bars = [card["metricKey"] for card in found["compareRunCharts"] if card["type"] == "BAR"]
    assert sorted(bars) == sorted(KEYS.values())
    assert {card["metricSectionId"] for card in found["compareRunCharts"]} == {
        section["uuid"] for section in found["compareRunSections"]
    }
    assert all(card["runsCountToCompare"] == 100 for card in found["compareRunCharts"])


def test_a_sweep_without_any_headline_shows_what_it_has() -> None:
    assert "metrics.`mine`" in state(view(keys={"mine": "mine"}), "table")["selectedColumns"]
    assert state(view(keys={}, axes={}), "table")["selectedColumns"] == []
    own = state(view(keys={f"operators/{i}": f"operators/{i}" for i in range(6)}), "charts")
    assert [section["name"] for section in own["compareRunSections"]] == ["Compare", "All axes", "Other metrics"]


def test_many_metrics_are_compressed_and_too_many_left_out() -> None:
    keys = {f"m/{i}": f"m/{i}" for i in range(150)}
    tags = view_tags(view(keys=keys))
    assert len(tags) == 2
    assert all(len(value) <= TAG_LIMIT for value in tags.values())
    assert len(state(view(keys=keys), "charts")["compareRunCharts"]) == 151
    assert [key.rpartition("-")[2] for key in view_tags(view(keys={f"m/{i}": f"m/{i}" for i in range(3000)}))] == [
        "table"
    ]


def test_writing_again_is_the_same() -> None:
    assert view_tags(view()) == view_tags(view())


def test_old_views_are_outdated_and_those_of_others_never() -> None:
    tags = {
        f"mlflow.sharedViewState.sweeprof-s{i}-{kind}": json.dumps({"createdAt": i + 1})
        for i in range(3)
        for kind in "ab"
    }
    tags |= {"mlflow.sharedViewState.mine": "{}", "mlflow.note.content": "x"}
    assert outdated_views(tags, keep=2) == [
        "mlflow.sharedViewState.sweeprof-s0-b",
        "mlflow.sharedViewState.sweeprof-s0-a",
    ]
    broken = {"mlflow.sharedViewState.sweeprof-x-table": "not json"}
    assert outdated_views(tags | broken, keep=3) == list(broken)


def test_an_address_is_quoted() -> None:
    assert view_address("http://h:1/", "7", "a b/é", "charts") == (
        "http://h:1/#/experiments/7/runs?viewStateShareKey=sweeprof-a-b---charts&compareRunsMode=CHART&workflowType=machine_learning"
    )
