"""Saved views in MLflow: a table and charts of each sweep, and the history, as the experiment tags from which MLflow reads them.

The format is MLflow's own and undocumented (found by experiments with MLflow 3.17): if a later MLflow does not understand a view,
only the view is lost.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode

from sweeprof.tracking.connection import dispensable

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

TAG_PREFIX = "mlflow.sharedViewState."
OURS = f"{TAG_PREFIX}sweeprof-"
TAG_LIMIT = 20_000
"""Characters of an experiment's tag; MLflow raises on more."""
KEPT_SWEEPS = 10
"""Sweeps of one experiment whose views are kept: users can save no view of their own once an experiment has 40."""
TABLE, CHARTS, TREND = "table", "charts", "trend"
KINDS = (TABLE, CHARTS)
"""The kinds of view that every sweep has."""
HISTORY = "history"
"""Takes the place of the sweep's id in the key of the history's view."""
NOTE = "mlflow.note.content"
"""The tag with the description of a run or an experiment."""
PLACE_TAG, VERDICT_TAG = "sweeprof.place", "verdict"
"""Run tags: by which a view is sorted, and with the verdict on the main metric; ``verdict.NAME`` has that on another."""

HEADLINES = {
    "latency/iteration": "s",
    "latency/forward": "s",
    "memory/added_bytes": "B",
    "throughput/samples_per_s": "samples/s",
    "quality/accuracy": "ratio",
}
"""Metrics that a view shows if the sweep has them, with their units."""
_MOST_OWN = 4
_COST = ("latency/per_sample", "latency/iteration", "latency/forward")
"""The x axis of a scatter chart: the first of these that the sweep has."""
_AGAINST_COST = ("quality/accuracy", "compute/macs_per_sample")
_MOST_RUNS = 100
"""Runs in one chart; a page of MLflow has no more."""
_TRAINING = {"workflowType": "machine_learning"}
"""Part of each address: MLflow opens its pages for language models otherwise."""
_NAME_WIDTHS = (180, 260)
"""Pixels: the least and the most, with which a table of 1440 pixels beside MLflow's assistant still shows ratio and verdict."""


@dataclass(frozen=True, slots=True)
class ViewOf:
    """The data from which the views of a sweep are made."""

    sweep_id: str
    title: str
    """E.g. ``quickstart 2026-11-21 00:30``."""
    parent_id: str
    """Id of the sweep's own run."""
    created_ms: int
    axes: Mapping[str, int]
    """Length of the longest value by the parameter key of an axis, for the axes to show."""
    keys: Mapping[str, str]
    """Tracked key by metric name, what the tables show first."""
    ratio: str = ""
    """Tracked key of the main metric's ratio to the baseline; empty if nothing is compared."""
    longest_name: int = 0
    """Characters of the longest name of a run."""
    failures: bool = False
    """True if a combination has a reason to show."""

    @property
    def headlines(self) -> list[str]:
        """The metrics that the views show first; if the sweep has none of :data:`HEADLINES`, the first of its own."""
        return [name for name in HEADLINES if name in self.keys] or list(self.keys)[:_MOST_OWN]


def view_key(sweep_id: str, kind: str) -> str:
    """The key of a sweep's view, as in the address that opens it."""
    return f"sweeprof-{re.sub(r'[^A-Za-z0-9_-]', '-', sweep_id)[:100]}-{kind}"


def view_address(base: str, experiment_id: str, sweep_id: str, kind: str) -> str:
    """The address that opens a view; ``base`` is the server's, or empty for a link within its pages."""
    query = {"viewStateShareKey": view_key(sweep_id, kind), "compareRunsMode": _mode(kind)}
    return _address(base, f"experiments/{experiment_id}/runs", query)


def runs_address(base: str, experiment_id: str, parent_id: str, kind: str) -> str:
    """Return the address of a sweep's runs without a saved view: in their order, with MLflow's own columns and charts."""
    query = {**_rows(parent_id), "orderByAsc": "true", "compareRunsMode": _mode(kind)}
    return _address(base, f"experiments/{experiment_id}/runs", query)


def _rows(parent_id: str) -> dict[str, str]:
    """Return filter and order of a sweep's runs.

    The order by place puts beside each other what is compared; and only with another order than by creation does the page show the
    runs at all, instead of folding them below their parent.
    """
    return {"searchFilter": f'tags.mlflow.parentRunId = "{parent_id}"', "orderByKey": f"tags.`{PLACE_TAG}`"}


def _mode(kind: str) -> str:
    return "TABLE" if kind == TABLE else "CHART"


def run_address(base: str, experiment_id: str, run_id: str, artifact: str = "") -> str:
    """The address of a run, or of one of its artifacts; ``base`` as in :func:`view_address`."""
    path = f"/artifacts/{quote(artifact)}" if artifact else ""
    return _address(base, f"experiments/{experiment_id}/runs/{run_id}{path}", {})


def _address(base: str, path: str, query: Mapping[str, str]) -> str:
    return f"{base.rstrip('/')}{'/' if base else ''}#/{path}?{urlencode({**query, **_TRAINING})}"


def links(experiment_id: str, of: ViewOf) -> list[str]:
    """Return Markdown links to the sweep's views and its report within MLflow's pages."""
    found = addresses("", experiment_id, of.sweep_id, of.parent_id, view_tags(of))
    found["report"] = run_address("", experiment_id, of.parent_id, "report.html")
    return [f"[{label}]({address})" for label, address in found.items()]


def addresses(base: str, experiment_id: str, sweep_id: str, parent_id: str, tags: Container[str]) -> dict[str, str]:
    """Return the addresses of a sweep's runs by kind: of a view if it is among the ``tags`` of the experiment."""
    return {
        kind: view_address(base, experiment_id, sweep_id, kind)
        if f"{TAG_PREFIX}{view_key(sweep_id, kind)}" in tags
        else runs_address(base, experiment_id, parent_id, kind)
        for kind in KINDS
    }


def view_tags(of: ViewOf) -> dict[str, str]:
    """Return the experiment tags that hold the sweep's views; a view that would be too long is left out."""
    created = f"{datetime.fromtimestamp(of.created_ms / 1000, UTC):%Y-%m-%d %H:%M}"
    shown = {"orderByAsc": True, "runsHiddenMode": "SHOW_ALL", "useGroupedValuesInCharts": False}
    rows = {**_rows(of.parent_id), **shown}
    # MLflow lists the latest view first.
    return {
        **_tag(of, TABLE, f"{TABLE} {created}", of.created_ms, rows | _table(of)),
        **_tag(of, CHARTS, f"{CHARTS} {created}", of.created_ms - 1, rows | _charts(of)),
    }


def trend_tag(of: ViewOf) -> dict[str, str]:
    """Return the experiment tag of the view that draws the headline metrics over time."""
    keys = [of.keys[name] for name in of.headlines]
    rows = {"runsHiddenMode": "SHOW_ALL", "orderByKey": "tags.`mlflow.runName`", "orderByAsc": True}
    columns = _columns({f"metrics.`{key}`": _width(len(key)) for key in keys}, of)
    return _tag(of, TREND, of.title, of.created_ms, rows | columns | _sections({"History": map(_line, keys)}))


def _tag(of: ViewOf, kind: str, name: str, at: int, content: Mapping[str, object]) -> dict[str, str]:
    state = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    value = json.dumps({"name": name, "createdAt": at, "updatedAt": at, "state": state}, ensure_ascii=False)
    return {f"{TAG_PREFIX}{view_key(of.sweep_id, kind)}": value} if len(value) <= TAG_LIMIT else {}


def _table(of: ViewOf) -> dict[str, object]:
    """The columns: the main metric, its ratio and its verdict, then further metrics and the axes, which a run's name has, too."""
    first, *others = [of.keys[name] for name in of.headlines] or [""]
    columns = {f"metrics.`{key}`": _width(len(key)) for key in (first, of.ratio) if key}
    if of.ratio:
        columns[f"tags.`{VERDICT_TAG}`"] = 120
    columns |= {f"metrics.`{key}`": _width(len(key)) for key in others}
    if of.failures:
        columns["tags.`sweeprof.reason`"] = 260
    columns |= {f"params.`{axis}`": _width(max(len(axis), length)) for axis, length in of.axes.items()}
    return _columns(columns, of)


def _columns(columns: Mapping[str, int], of: ViewOf) -> dict[str, object]:
    # MLflow's own columns cannot be hidden; of the second, the date, only the icon of the status has room.
    least, most = _NAME_WIDTHS
    name = min(max(least, 60 + 7 * of.longest_name), most)
    widths = {"attributes.`Run Name`": name, "runDateAndNestInfo": 45, **columns, "duration": 80}
    return {"selectedColumns": list(columns), "columnOrder": list(widths), "columnWidths": widths}


def _width(letters: int) -> int:
    """Pixels of a column that shows so many bold letters."""
    return min(max(80, 28 + 7 * letters), 210)


def _charts(of: ViewOf) -> dict[str, object]:
    """The sections of the charts: bars, trade-offs, and parallel coordinates over all axes. MLflow adds those of other metrics."""
    headlines = [of.keys[name] for name in of.headlines]
    cost = next((of.keys[name] for name in _COST if name in of.keys), None)
    pairs = [(cost, of.keys[name]) for name in _AGAINST_COST if cost and name in of.keys]
    # The last line of parallel coordinates gives the colour, so the first of the headlines comes last.
    parallel = _chart("PARALLEL", "all", selectedParams=list(of.axes), selectedMetrics=headlines[::-1])
    return _sections(
        {
            "Compare": [_chart("BAR", key, metricKey=key) for key in (of.ratio, *headlines) if key],
            "Trade-offs": [
                _chart("SCATTER", f"{x} {y}", xaxis={"key": x, "type": "METRIC"}, yaxis={"key": y, "type": "METRIC"})
                for x, y in pairs
            ],
            "All axes": [parallel],
        }
    )


def _line(key: str) -> dict[str, object]:
    # Over time, not steps: these are seconds, in which nobody can read a date.
    axis = {"xAxisKey": "time", "useGlobalXaxisKey": False, "xAxisScaleType": "linear", "scaleType": "linear"}
    drawn = {"lineSmoothness": 0, "useGlobalLineSmoothing": False, "displayPoints": True, "ignoreOutliers": False}
    what = {"metricKey": key, "selectedMetricKeys": [key], "selectedXAxisMetricKey": "", "yAxisKey": "metric"}
    return _chart("LINE", key, yAxisExpressions=[], range={}, **axis, **drawn, **what)


def _chart(kind: str, seed: str, **content: object) -> dict[str, object]:
    fixed = {"uuid": _uuid(f"{kind} {seed}"), "type": kind, "deleted": False, "isGenerated": False}
    return {**fixed, "runsCountToCompare": _MOST_RUNS, **content}


def _sections(groups: Mapping[str, Iterable[Mapping[str, object]]]) -> dict[str, object]:
    charts: list[dict[str, object]] = []
    sections: list[dict[str, object]] = []
    for name, group in groups.items():
        own = [{**chart, "metricSectionId": _uuid(name)} for chart in group]
        charts += own
        if own:
            fixed = {"display": True, "isReordered": True, "deleted": False, "isGenerated": False, "cardHeight": 420}
            sections.append({"uuid": _uuid(name), "name": name, "columns": 2 if len(own) > 1 else 1, **fixed})
    return {"compareRunCharts": charts, "compareRunSections": sections, "isAccordionReordered": True}


def _uuid(seed: str) -> str:
    # Derived, so that writing a view again changes nothing.
    return uuid.uuid5(uuid.NAMESPACE_URL, f"sweeprof {seed}").hex


def outdated_views(tags: Mapping[str, str], keep: int = KEPT_SWEEPS) -> list[str]:
    """Return the keys of views to delete: sweeprof's views of all but the newest ``keep`` sweeps."""
    sweeps: dict[str, list[tuple[int, str]]] = {}
    for key, value in tags.items():
        if key.startswith(OURS):
            sweeps.setdefault(key.rpartition("-")[0], []).append((_created(value), key))
    newest = sorted(sweeps.items(), key=lambda item: (max(item[1]), item[0]), reverse=True)
    return [key for _, views in newest[keep:] for _, key in sorted(views)]


def write_tags(
    client: MlflowClient, experiment_id: str, title: str, make: Callable[[Mapping[str, str]], Mapping[str, str]]
) -> None:
    """Set the experiment tags that ``make`` returns for the present ones and delete outdated views; warn if MLflow refuses."""
    with dispensable(f"saved view of {title}"):
        present = client.get_experiment(experiment_id).tags
        written = make(present)
        for key in sorted(key for key, value in written.items() if present.get(key) != value):
            client.set_experiment_tag(experiment_id, key, written[key])
        for key in outdated_views({**present, **written}):
            _replace_link(client, experiment_id, key)
            client.delete_experiment_tag(experiment_id, key)


def _replace_link(client: MlflowClient, experiment_id: str, key: str) -> None:
    """Replace the link to a view in the description of its sweep: MLflow shows another page for a view that does not exist."""
    sweep_id, _, kind = key.removeprefix(OURS).rpartition("-")
    condition = f"tags.`sweeprof.sweep_id` = '{sweep_id}' and tags.`sweeprof.kind` = 'sweep'"
    for run in client.search_runs([experiment_id], condition) if kind in KINDS else ():
        address = runs_address("", experiment_id, run.info.run_id, kind)
        note = run.data.tags.get(NOTE, "").replace(view_address("", experiment_id, sweep_id, kind), address)
        client.set_tag(run.info.run_id, NOTE, note)


def newest_view(tags: Mapping[str, str]) -> int:
    """Return the time of creation of sweeprof's newest view, in milliseconds; 0 if there is none."""
    return max((_created(value) for key, value in tags.items() if key.startswith(OURS)), default=0)


def _created(value: str) -> int:
    try:
        return int(json.loads(value)["createdAt"])
    except (ValueError, KeyError, TypeError):
        return 0
