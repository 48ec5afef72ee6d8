"""The views of a sweep that MLflow's interface offers, as the experiment tags that it reads.

The format is MLflow's own and undocumented (MLFLOW.md 4.1 says what was measured with 3.17): a view that
a later MLflow does not understand must cost nothing but the view.
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

from sweeprof.tracking.cards import charts, trends

TAG_PREFIX = "mlflow.sharedViewState."
OURS = f"{TAG_PREFIX}sweeprof-"
TAG_LIMIT = 20_000
"""Characters of an experiment's tag; MLflow raises on more."""

# MLflow lets users save no further view once an experiment has 40: ours are at most 10 x 2 + 2 x 5.
KEPT_SWEEPS = 10
"""Sweeps of one experiment whose table and charts are kept: the menu lists them all."""
KEPT_WHOLE = 2
"""The newest of them, which have all their views."""
MOST_GROUPED = 4
"""Views by an axis."""

TABLE, CHARTS, LAYERS, TREND = "table", "charts", "layers", "trend"
KINDS = (TABLE, CHARTS)
"""The kinds of view that every sweep has."""
HISTORY = "history"
"""Stands for a sweep in the key of the view that draws all of them."""
_MODES = {TABLE: "TABLE", LAYERS: "ARTIFACT"}

HEADLINES = {
    "latency/iteration": "s",
    "latency/forward": "s",
    "throughput/samples_per_s": "samples/s",
    "memory/rss_peak_bytes": "B",
    "quality/accuracy": "ratio",
}
"""Metrics that a view shows where the sweep has them, with their units."""
PLACE_TAG = "sweeprof.place"
"""Run tag by which a view is sorted."""

_MOST_OWN = 4
_LONG_STATE = 2_000
"""Characters from which on a state is compressed: the page asks for the views of all sweeps whenever it shows one."""


@dataclass(frozen=True, slots=True)
class ViewOf:
    """What the views of a sweep are made from."""

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
    """Whether a combination has a reason to show."""
    grouped: tuple[str, ...] = ()
    """Parameter keys of the axes that have a view each, in which the runs of a value are one."""
    layers: bool = False
    """Whether the runs have tables of layers."""

    @property
    def headlines(self) -> list[str]:
        """The metrics that the views are about; of a sweep without any of those that most have, the first of its own."""
        return [name for name in HEADLINES if name in self.keys] or list(self.keys)[:_MOST_OWN]


def view_key(sweep_id: str, kind: str) -> str:
    """The key of a sweep's view, as in the address that opens it."""
    return f"sweeprof-{re.sub(r'[^A-Za-z0-9_-]', '-', sweep_id)[:100]}-{kind}"


def view_address(base: str, experiment_id: str, sweep_id: str, kind: str) -> str:
    """The address that opens a view; ``base`` is the server's, or empty for a link within its pages."""
    mode = _MODES.get(kind, "CHART")
    query = {"viewStateShareKey": view_key(sweep_id, kind), "compareRunsMode": mode, "workflowType": "machine_learning"}
    return f"{base.rstrip('/')}{'/' if base else ''}#/experiments/{experiment_id}/runs?{urlencode(query)}"


def run_address(experiment_id: str, run_id: str, artifact: str = "") -> str:
    """The address of a run, or of one of its artifacts, within MLflow's pages."""
    path = f"/artifacts/{artifact}" if artifact else ""
    return f"#/experiments/{experiment_id}/runs/{run_id}{path}?workflowType=machine_learning"


def kinds(of: ViewOf) -> dict[str, str]:
    """What the menu calls each view of a sweep, by its kind, in the order of the menu."""
    grouped = {f"by{place}": f"by {axis}" for place, axis in enumerate(of.grouped[:MOST_GROUPED])}
    return {TABLE: "table", CHARTS: "charts", **grouped, **({LAYERS: "layers"} if of.layers else {})}


def view_tags(of: ViewOf) -> dict[str, str]:
    """The experiment tags that hold the views; a view that would be too long is left out."""
    tags, made = {}, f"{datetime.fromtimestamp(of.created_ms / 1000, UTC):%Y-%m-%d %H:%M}"
    for place, (kind, label) in enumerate(kinds(of).items()):
        # The menu has the latest first.
        at = of.created_ms - place
        tags[f"{TAG_PREFIX}{view_key(of.sweep_id, kind)}"] = _tag(f"{label} {made}", at, _state(of, kind))
    return {key: value for key, value in tags.items() if len(value) <= TAG_LIMIT}


def trend_tag(of: ViewOf) -> dict[str, str]:
    """The experiment tag of the view that draws headlines over time."""
    columns = {f"metrics.`{of.keys[name]}`": _width(len(of.keys[name])) for name in of.headlines}
    rows = {"runsHiddenMode": "SHOW_ALL", "orderByKey": "tags.`mlflow.runName`", "orderByAsc": True}
    state = rows | _columns(columns) | trends(of.keys, of.headlines)
    return {f"{TAG_PREFIX}{view_key(of.sweep_id, TREND)}": _tag(of.title, of.created_ms, state)}


def outdated_views(tags: Mapping[str, str], keep: int = KEPT_SWEEPS, whole: int = KEPT_WHOLE) -> list[str]:
    """Keys of views written by sweeprof: those of no sweep among the newest ``keep``, of the others those that only the newest
    ``whole`` have.
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
        if place >= keep or (place >= whole and key.rpartition("-")[2] not in KINDS)
    ]


def newest_view(tags: Mapping[str, str]) -> int:
    """When the newest of the views written by sweeprof was created, in milliseconds; 0 where there is none."""
    return max((_created(value) for key, value in tags.items() if key.startswith(OURS)), default=0)


def _created(value: str) -> int:
    try:
        return int(json.loads(value)["createdAt"])
    except (ValueError, KeyError, TypeError):
        return 0


def _tag(name: str, at: int, content: Mapping[str, Any]) -> str:
    state = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    if len(state) > _LONG_STATE:
        state = f"deflate;{base64.b64encode(zlib.compress(state.encode())).decode()}"
    return json.dumps({"name": name, "createdAt": at, "updatedAt": at, "state": state}, ensure_ascii=False)


def _state(of: ViewOf, kind: str) -> dict[str, Any]:
    """The table and the charts of any view can be changed into each other, so each has the columns and the cards."""
    if kind == TABLE:
        return _rows(of) | _table(of)
    if kind == LAYERS:
        return _rows(of)
    by = of.grouped[int(kind.removeprefix("by"))] if kind != CHARTS else None
    grouped = {} if by is None else _grouping(by)
    return _rows(of) | grouped | (_table(of) if by else {}) | charts(of.keys, of.headlines, list(of.axes), by)


def _rows(of: ViewOf) -> dict[str, Any]:
    # The order by place puts beside each other what is compared; and only with another order than by creation does the
    # page show the runs at all, instead of folding them below their parent.
    return {
        "searchFilter": f'tags.mlflow.parentRunId = "{of.parent_id}"',
        "orderByKey": f"tags.`{PLACE_TAG}`",
        "orderByAsc": True,
        "runsHiddenMode": "SHOW_ALL",
        "useGroupedValuesInCharts": False,
    }


def _grouping(axis: str) -> dict[str, Any]:
    keys = [{"mode": "param", "groupByData": axis}]
    return {"groupBy": {"aggregateFunction": "average", "groupByKeys": keys}, "useGroupedValuesInCharts": True}


def _table(of: ViewOf) -> dict[str, Any]:
    shown = [of.keys[name] for name in of.headlines]
    # Metrics before axes, as the name of a run has its axes in it, and a page is soon full.
    columns = {f"metrics.`{key}`": _width(len(key)) for key in shown}
    if of.failures:
        columns["tags.`sweeprof.reason`"] = 260
    columns |= {f"params.`{axis}`": _width(max(len(axis), length)) for axis, length in of.axes.items()}
    return _columns(columns)


def _columns(columns: Mapping[str, int]) -> dict[str, Any]:
    # MLflow's own columns cannot be hidden; of the second, the date, only the icon of the status has room.
    widths = {"attributes.`Run Name`": 215, "runDateAndNestInfo": 45, **columns, "duration": 80}
    return {"selectedColumns": list(columns), "columnOrder": list(widths), "columnWidths": widths}


def _width(letters: int) -> int:
    """Pixels of a column that shows so many bold letters."""
    return min(max(80, 28 + 15 * letters // 2), 210)


def links(experiment_id: str, of: ViewOf) -> list[str]:
    """The sweep's views and its report as Markdown links within MLflow's pages."""
    found = {label: view_address("", experiment_id, of.sweep_id, kind) for kind, label in kinds(of).items()}
    found["report"] = run_address(experiment_id, of.parent_id, "report.html")
    return [f"[{label}]({address})" for label, address in found.items()]
