"""Saved views in MLflow: a table and charts of each sweep, and the history, as the experiment tags from which MLflow reads them.

The format is MLflow's own and undocumented (found by experiments with MLflow 3.17): if a later MLflow does not understand a view,
only the view is lost.
"""

from __future__ import annotations

import base64
import json
import re
import uuid
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from sweeprof.tracking.retry import dispensable

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

_COST = ("latency/per_sample", "latency/iteration", "latency/forward")
"""The x axis of a scatter chart: the first of these that the sweep has."""
_AGAINST_COST = ("quality/accuracy", "compute/macs_per_sample")
_TRADE = ("latency/forward", "throughput/samples_per_s")
_FOLDED = "Other metrics"
_MOST_RUNS = 100
"""Runs in one chart; a page of MLflow has no more."""


def charts(keys: Mapping[str, str], headlines: Sequence[str], axes: Sequence[str]) -> dict[str, object]:
    """Return the sections of the charts: a bar chart per metric, trade-offs, and parallel coordinates over all axes.

    Args:
        keys: tracked key by metric name.
        headlines: names of the metrics that get a large bar chart; the others' are folded.
        axes: parameter keys.
    """
    rest = [name for name in keys if name not in headlines]
    # The last line of parallel coordinates gives the colour, so the first of the headlines comes last.
    metrics = [keys[name] for name in reversed(headlines)]
    parallel = [_chart("PARALLEL", "all", selectedParams=list(axes), selectedMetrics=metrics)]
    return _sections(
        {
            "Compare": [_bars(keys[name]) for name in headlines],
            "Trade-offs": [_scatter(keys[x], keys[y]) for x, y in _pairs(keys)],
            "All axes": parallel,
            # MLflow would add a section for every metric without a chart; these are folded instead.
            _FOLDED: [_bars(keys[name]) for name in rest],
        }
    )


def trends(keys: Mapping[str, str], headlines: Sequence[str]) -> dict[str, object]:
    """Return the sections of the history: a line over time for each headline metric."""
    rest = [keys[name] for name in keys if name not in headlines]
    return _sections({"History": [_line(keys[name]) for name in headlines], _FOLDED: [_line(key) for key in rest]})


def _pairs(keys: Mapping[str, str]) -> list[tuple[str, str]]:
    cost = next((name for name in _COST if name in keys), None)
    found = [(cost, name) for name in _AGAINST_COST if name in keys] if cost else []
    return [*found, _TRADE] if keys.keys() >= set(_TRADE) else found


def _bars(key: str) -> dict[str, object]:
    return _chart("BAR", key, metricKey=key)


def _scatter(x: str, y: str) -> dict[str, object]:
    return _chart("SCATTER", f"{x} {y}", xaxis={"key": x, "type": "METRIC"}, yaxis={"key": y, "type": "METRIC"})


def _line(key: str) -> dict[str, object]:
    # Over time, not steps: these are seconds, in which nobody can read a date.
    axis = {"xAxisKey": "time", "useGlobalXaxisKey": False, "xAxisScaleType": "linear", "scaleType": "linear"}
    drawn = {"lineSmoothness": 0, "useGlobalLineSmoothing": False, "displayPoints": True, "ignoreOutliers": False}
    what = {"metricKey": key, "selectedMetricKeys": [key], "selectedXAxisMetricKey": "", "yAxisKey": "metric"}
    return _chart("LINE", key, yAxisExpressions=[], range={}, **axis, **drawn, **what)


def _chart(kind: str, seed: str, **content: object) -> dict[str, object]:
    fixed = {"uuid": _uuid(f"{kind} {seed}"), "type": kind, "deleted": False, "isGenerated": False}
    return {**fixed, "runsCountToCompare": _MOST_RUNS, **content}


def _sections(groups: Mapping[str, Sequence[Mapping[str, object]]]) -> dict[str, object]:
    filled = {name: charts for name, charts in groups.items() if charts}
    return {
        "compareRunCharts": [
            {**chart, "metricSectionId": _uuid(name)} for name, charts in filled.items() for chart in charts
        ],
        "compareRunSections": [_section(name) for name in filled],
        "isAccordionReordered": True,
    }


def _section(name: str) -> dict[str, object]:
    fixed = {"isReordered": True, "deleted": False, "isGenerated": False, "cardHeight": 420}
    columns = {"All axes": 1, _FOLDED: 3}.get(name, 2)
    return {"uuid": _uuid(name), "name": name, "display": name != _FOLDED, "columns": columns, **fixed}


def _uuid(seed: str) -> str:
    # Derived, so that writing a view again changes nothing.
    return uuid.uuid5(uuid.NAMESPACE_URL, f"sweeprof {seed}").hex


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

HEADLINES = {
    "latency/iteration": "s",
    "latency/forward": "s",
    "throughput/samples_per_s": "samples/s",
    "memory/rss_peak_bytes": "B",
    "quality/accuracy": "ratio",
}
"""Metrics that a view shows if the sweep has them, with their units."""
PLACE_TAG = "sweeprof.place"
"""Run tag by which a view is sorted."""

_MOST_OWN = 4
_LONG_STATE = 2_000
"""Longer states are compressed: MLflow's page loads the views of all sweeps whenever it shows one."""


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
    mode = "TABLE" if kind == TABLE else "CHART"
    query = {"viewStateShareKey": view_key(sweep_id, kind), "compareRunsMode": mode, "workflowType": "machine_learning"}
    return f"{base.rstrip('/')}{'/' if base else ''}#/experiments/{experiment_id}/runs?{urlencode(query)}"


def run_address(experiment_id: str, run_id: str, artifact: str = "") -> str:
    """The address of a run, or of one of its artifacts, within MLflow's pages."""
    path = f"/artifacts/{artifact}" if artifact else ""
    return f"#/experiments/{experiment_id}/runs/{run_id}{path}?workflowType=machine_learning"


def view_tags(of: ViewOf) -> dict[str, str]:
    """Return the experiment tags that hold the sweep's views; a view that would be too long is left out."""
    created = f"{datetime.fromtimestamp(of.created_ms / 1000, UTC):%Y-%m-%d %H:%M}"
    columns, sections = _table(of), charts(of.keys, of.headlines, list(of.axes))
    tags = {
        # MLflow lists the latest view first.
        _tag_key(of, TABLE): _tag(f"{TABLE} {created}", of.created_ms, _rows(of) | columns),
        _tag_key(of, CHARTS): _tag(f"{CHARTS} {created}", of.created_ms - 1, _rows(of) | sections),
    }
    return {key: value for key, value in tags.items() if len(value) <= TAG_LIMIT}


def _tag_key(of: ViewOf, kind: str) -> str:
    return f"{TAG_PREFIX}{view_key(of.sweep_id, kind)}"


def trend_tag(of: ViewOf) -> dict[str, str]:
    """Return the experiment tag of the view that draws the headline metrics over time."""
    columns = {f"metrics.`{of.keys[name]}`": _width(len(of.keys[name])) for name in of.headlines}
    rows = {"runsHiddenMode": "SHOW_ALL", "orderByKey": "tags.`mlflow.runName`", "orderByAsc": True}
    state = rows | _columns(columns) | trends(of.keys, of.headlines)
    return {_tag_key(of, TREND): _tag(of.title, of.created_ms, state)}


def outdated_views(tags: Mapping[str, str], keep: int = KEPT_SWEEPS) -> list[str]:
    """Return the keys of views to delete: sweeprof's views of all but the newest ``keep`` sweeps, and kinds of view that earlier
    versions wrote.
    """
    sweeps: dict[str, list[tuple[int, str]]] = {}
    for key, value in tags.items():
        if key.startswith(OURS):
            sweeps.setdefault(key.rpartition("-")[0], []).append((_created(value), key))
    newest = sorted(sweeps.items(), key=lambda item: (max(item[1]), item[0]), reverse=True)
    return [
        key
        for place, (_, views) in enumerate(newest)
        for _, key in sorted(views)
        if place >= keep or key.rpartition("-")[2] not in (*KINDS, TREND)
    ]


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
            client.delete_experiment_tag(experiment_id, key)


def newest_view(tags: Mapping[str, str]) -> int:
    """Return the time of creation of sweeprof's newest view, in milliseconds; 0 if there is none."""
    return max((_created(value) for key, value in tags.items() if key.startswith(OURS)), default=0)


def _created(value: str) -> int:
    try:
        return int(json.loads(value)["createdAt"])
    except (ValueError, KeyError, TypeError):
        return 0


def _tag(name: str, at: int, content: Mapping[str, object]) -> str:
    state = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    if len(state) > _LONG_STATE:
        state = f"deflate;{base64.b64encode(zlib.compress(state.encode())).decode()}"
    return json.dumps({"name": name, "createdAt": at, "updatedAt": at, "state": state}, ensure_ascii=False)


def _rows(of: ViewOf) -> dict[str, object]:
    # The order by place puts beside each other what is compared; and only with another order than by creation does the
    # page show the runs at all, instead of folding them below their parent.
    return {
        "searchFilter": f'tags.mlflow.parentRunId = "{of.parent_id}"',
        "orderByKey": f"tags.`{PLACE_TAG}`",
        "orderByAsc": True,
        "runsHiddenMode": "SHOW_ALL",
        "useGroupedValuesInCharts": False,
    }


def _table(of: ViewOf) -> dict[str, object]:
    shown = [of.keys[name] for name in of.headlines]
    # Metrics before axes, as the name of a run has its axes in it, and a page is soon full.
    columns = {f"metrics.`{key}`": _width(len(key)) for key in shown}
    if of.failures:
        columns["tags.`sweeprof.reason`"] = 260
    columns |= {f"params.`{axis}`": _width(max(len(axis), length)) for axis, length in of.axes.items()}
    return _columns(columns)


def _columns(columns: Mapping[str, int]) -> dict[str, object]:
    # MLflow's own columns cannot be hidden; of the second, the date, only the icon of the status has room.
    widths = {"attributes.`Run Name`": 215, "runDateAndNestInfo": 45, **columns, "duration": 80}
    return {"selectedColumns": list(columns), "columnOrder": list(widths), "columnWidths": widths}


def _width(letters: int) -> int:
    """Pixels of a column that shows so many bold letters."""
    return min(max(80, 28 + 15 * letters // 2), 210)


def links(experiment_id: str, of: ViewOf) -> list[str]:
    """Return Markdown links to the sweep's views and its report within MLflow's pages."""
    found = {kind: view_address("", experiment_id, of.sweep_id, kind) for kind in KINDS}
    found["report"] = run_address(experiment_id, of.parent_id, "report.html")
    return [f"[{label}]({address})" for label, address in found.items()]
