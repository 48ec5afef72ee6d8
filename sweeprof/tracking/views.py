"""Saved views in MLflow: a table and charts of each sweep, and the history, as the experiment tags from which MLflow reads them.

The format is MLflow's own and undocumented (found by experiments with MLflow 3.17): if a later MLflow does not understand a view,
only the view is lost.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Container, Mapping, Sequence
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
_MODES = {TABLE: "TABLE", CHARTS: "CHART", TREND: "CHART"}
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
    """Return the key of a sweep's view, as in the address that opens it."""
    return f"sweeprof-{re.sub(r'[^A-Za-z0-9_-]', '-', sweep_id)[:100]}-{kind}"


def view_address(base: str, experiment_id: str, sweep_id: str, kind: str) -> str:
    """Return the address that opens a view; ``base`` is the server's, or empty for a link within its pages."""
    query = {"viewStateShareKey": view_key(sweep_id, kind), "compareRunsMode": _MODES[kind]}
    return _address(base, f"experiments/{experiment_id}/runs", query)


def runs_address(base: str, experiment_id: str, parent_id: str, kind: str) -> str:
    """Return the address of a sweep's runs without a saved view: in their order, with MLflow's own columns and charts."""
    query = {**_rows(parent_id), "orderByAsc": "true", "compareRunsMode": _MODES[kind]}
    return _address(base, f"experiments/{experiment_id}/runs", query)


def _rows(parent_id: str) -> dict[str, str]:
    """Return filter and order of a sweep's runs.

    The order by place puts beside each other what is compared; and only with another order than by creation does the page show the
    runs at all, instead of folding them below their parent.
    """
    return {"searchFilter": f'tags.mlflow.parentRunId = "{parent_id}"', "orderByKey": f"tags.`{PLACE_TAG}`"}


def run_address(base: str, experiment_id: str, run_id: str, artifact: str = "") -> str:
    """Return the address of a run, or of one of its artifacts; ``base`` as in :func:`view_address`."""
    path = f"experiments/{experiment_id}/runs/{run_id}"
    if artifact:
        path += f"/artifacts/{quote(artifact)}"
    return _address(base, path, {})


def _address(base: str, path: str, query: Mapping[str, str]) -> str:
    if base:
        base = base.rstrip("/") + "/"
    return f"{base}#/{path}?{urlencode({**query, **_TRAINING})}"


def view_links(experiment_id: str, of: ViewOf) -> list[str]:
    """Return Markdown links to the sweep's views and its report within MLflow's pages."""
    found = addresses("", experiment_id, of.sweep_id, of.parent_id, view_tags(of))
    found["report"] = run_address("", experiment_id, of.parent_id, "report.html")
    return [f"[{label}]({address})" for label, address in found.items()]


def addresses(base: str, experiment_id: str, sweep_id: str, parent_id: str, tags: Container[str]) -> dict[str, str]:
    """Return the addresses of a sweep's runs by kind: of a view if it is among the ``tags`` of the experiment."""
    found = {}
    for kind in KINDS:
        if TAG_PREFIX + view_key(sweep_id, kind) in tags:
            found[kind] = view_address(base, experiment_id, sweep_id, kind)
        else:
            found[kind] = runs_address(base, experiment_id, parent_id, kind)
    return found


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
    rows = {"runsHiddenMode": "SHOW_ALL", "orderByKey": "tags.`mlflow.runName`", "orderByAsc": True}
    columns: dict[str, int] = {}
    charts = []
    for name in of.headlines:
        key = of.keys[name]
        columns[f"metrics.`{key}`"] = _width(len(key))
        # Over time, not steps: these are seconds, in which nobody can read a date.
        axis = {"xAxisKey": "time", "useGlobalXaxisKey": False, "xAxisScaleType": "linear", "scaleType": "linear"}
        drawn = {"lineSmoothness": 0, "useGlobalLineSmoothing": False, "displayPoints": True, "ignoreOutliers": False}
        what = {"metricKey": key, "selectedMetricKeys": [key], "selectedXAxisMetricKey": "", "yAxisKey": "metric"}
        charts.append(_chart("LINE", key, yAxisExpressions=[], range={}, **axis, **drawn, **what))
    return _tag(of, TREND, of.title, of.created_ms, rows | _columns(columns, of) | _sections({"History": charts}))


def _tag(of: ViewOf, kind: str, name: str, at: int, content: Mapping[str, object]) -> dict[str, str]:
    state = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    value = json.dumps({"name": name, "createdAt": at, "updatedAt": at, "state": state}, ensure_ascii=False)
    if len(value) > TAG_LIMIT:
        return {}
    return {TAG_PREFIX + view_key(of.sweep_id, kind): value}


def _table(of: ViewOf) -> dict[str, object]:
    """Return the columns: the main metric, its ratio and verdict, then further metrics and the axes, which runs are named by."""
    keys = [of.keys[name] for name in of.headlines]
    if of.ratio:
        keys.insert(1, of.ratio)
    columns = {}
    for key in keys:
        columns[f"metrics.`{key}`"] = _width(len(key))
        if key == of.ratio:
            columns[f"tags.`{VERDICT_TAG}`"] = 120
    if of.failures:
        columns["tags.`sweeprof.reason`"] = 260
    for axis, length in of.axes.items():
        columns[f"params.`{axis}`"] = _width(max(len(axis), length))
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
    """Return the sections of the charts: bars, trade-offs, and parallel coordinates over all axes; MLflow adds other metrics."""
    headlines = [of.keys[name] for name in of.headlines]
    bars = [_chart("BAR", key, metricKey=key) for key in (of.ratio, *headlines) if key]
    scatter = []
    cost = next((name for name in _COST if name in of.keys), None)
    for name in _AGAINST_COST:
        if cost is not None and name in of.keys:
            x, y = of.keys[cost], of.keys[name]
            axes = {"xaxis": {"key": x, "type": "METRIC"}, "yaxis": {"key": y, "type": "METRIC"}}
            scatter.append(_chart("SCATTER", f"{x} {y}", **axes))
    # The last line of parallel coordinates gives the colour, so the first of the headlines comes last.
    parallel = _chart("PARALLEL", "all", selectedParams=list(of.axes), selectedMetrics=headlines[::-1])
    return _sections({"Compare": bars, "Trade-offs": scatter, "All axes": [parallel]})


def _chart(kind: str, seed: str, **content: object) -> dict[str, object]:
    fixed = {"uuid": _uuid(f"{kind} {seed}"), "type": kind, "deleted": False, "isGenerated": False}
    return {**fixed, "runsCountToCompare": _MOST_RUNS, **content}


def _sections(groups: Mapping[str, Sequence[Mapping[str, object]]]) -> dict[str, object]:
    charts: list[dict[str, object]] = []
    sections: list[dict[str, object]] = []
    fixed = {"display": True, "isReordered": True, "deleted": False, "isGenerated": False, "cardHeight": 420}
    for name, group in groups.items():
        if group:
            charts += [{**chart, "metricSectionId": _uuid(name)} for chart in group]
            sections.append({"uuid": _uuid(name), "name": name, "columns": min(len(group), 2), **fixed})
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
    newest = sorted(sweeps, key=lambda sweep: (max(sweeps[sweep]), sweep), reverse=True)
    outdated: list[str] = []
    for sweep in newest[keep:]:
        outdated += [key for _, key in sorted(sweeps[sweep])]
    return outdated


def write_tags(
    client: MlflowClient, experiment_id: str, title: str, make: Callable[[Mapping[str, str]], Mapping[str, str]]
) -> None:
    """Set the experiment tags that ``make`` returns for the present ones and delete outdated views; warn if MLflow refuses."""
    with dispensable(f"saved view of {title}"):
        present = client.get_experiment(experiment_id).tags
        written = make(present)
        for key, value in sorted(written.items()):
            if present.get(key) != value:
                client.set_experiment_tag(experiment_id, key, value)
        for key in outdated_views({**present, **written}):
            sweep_id, _, kind = key.removeprefix(OURS).rpartition("-")
            # MLflow shows another page for a view that does not exist: the sweep's description has a link.
            if kind in KINDS:
                condition = f"tags.`sweeprof.sweep_id` = '{sweep_id}' and tags.`sweeprof.kind` = 'sweep'"
                for run in client.search_runs([experiment_id], condition):
                    old = view_address("", experiment_id, sweep_id, kind)
                    new = runs_address("", experiment_id, run.info.run_id, kind)
                    client.set_tag(run.info.run_id, NOTE, run.data.tags.get(NOTE, "").replace(old, new))
            client.delete_experiment_tag(experiment_id, key)


def newest_view(tags: Mapping[str, str]) -> int:
    """Return the time of creation of sweeprof's newest view, in milliseconds; 0 if there is none."""
    return max((_created(value) for key, value in tags.items() if key.startswith(OURS)), default=0)


def _created(value: str) -> int:
    try:
        return int(json.loads(value)["createdAt"])
    except (ValueError, KeyError, TypeError):
        return 0
