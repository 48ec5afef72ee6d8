"""The views of a sweep that MLflow's interface offers: a table and charts, as the experiment tags that it reads.

The format is MLflow's own and undocumented (MLFLOW.md 4.1 says what was measured with 3.17): a view that
a later MLflow does not understand must cost nothing but the view.
"""

from __future__ import annotations

import base64
import json
import re
import uuid
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlencode

TAG_PREFIX = "mlflow.sharedViewState."
OURS = f"{TAG_PREFIX}sweeprof-"
TAG_LIMIT = 20_000
"""Characters of an experiment's tag; MLflow raises on more."""
KEPT_SWEEPS = 20
"""Sweeps of one experiment whose views are kept: the menu lists them all."""

Kind = Literal["table", "charts"]
KINDS: tuple[Kind, ...] = ("table", "charts")

HEADLINES = {
    "latency/forward": "s",
    "throughput/samples_per_s": "samples/s",
    "memory/rss_peak_bytes": "B",
    "quality/accuracy": "ratio",
}
"""Metrics that a view shows where the sweep has them, with their units."""
PLACE_TAG = "sweeprof.place"
"""Run tag by which a view is sorted."""

_MOST_OWN = 4
_PAIRS = (("latency/per_sample", "quality/accuracy"), ("latency/forward", "throughput/samples_per_s"))
_FOLDED = "Other metrics"
_LONG_STATE = 12_000
"""Characters from which on a state is compressed; escaped within the tag it grows by a fifth."""


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
    """Tracked key by metric name."""
    failures: bool = False
    """Whether a combination has a reason to show."""


def view_key(sweep_id: str, kind: Kind) -> str:
    """The key of a sweep's view, as in the address that opens it."""
    return f"sweeprof-{re.sub(r'[^A-Za-z0-9_-]', '-', sweep_id)[:100]}-{kind}"


def view_address(base: str, experiment_id: str, sweep_id: str, kind: Kind) -> str:
    """The address that opens a view; ``base`` is the server's, or empty for a link within its pages."""
    mode = {"table": "TABLE", "charts": "CHART"}[kind]
    query = {"viewStateShareKey": view_key(sweep_id, kind), "compareRunsMode": mode, "workflowType": "machine_learning"}
    return f"{base.rstrip('/')}{'/' if base else ''}#/experiments/{experiment_id}/runs?{urlencode(query)}"


def view_tags(of: ViewOf) -> dict[str, str]:
    """The experiment tags that hold the views; a view that would be too long is left out."""
    tags = {f"{TAG_PREFIX}{view_key(of.sweep_id, kind)}": _tag(of, kind) for kind in KINDS}
    return {key: value for key, value in tags.items() if len(value) <= TAG_LIMIT}


def outdated_views(tags: Mapping[str, str], keep: int = KEPT_SWEEPS) -> list[str]:
    """Keys of the views written by sweeprof that belong to none of the newest ``keep`` sweeps."""
    created: dict[str, int] = {}
    for key, value in tags.items():
        if key.startswith(OURS):
            created[key] = _created(value)
    newest = sorted(created, key=lambda key: (created[key], key), reverse=True)
    return newest[keep * len(KINDS) :]


def _created(value: str) -> int:
    try:
        return int(json.loads(value)["createdAt"])
    except (ValueError, KeyError, TypeError):
        return 0


def _tag(of: ViewOf, kind: Kind) -> str:
    state = json.dumps(_rows(of) | (_table(of) if kind == "table" else _charts(of)), ensure_ascii=False)
    if len(state) > _LONG_STATE:
        state = f"deflate;{base64.b64encode(zlib.compress(state.encode())).decode()}"
    name = f"{of.title}: {kind}"
    view = {"name": name, "createdAt": of.created_ms, "updatedAt": of.created_ms, "state": state}
    return json.dumps(view, ensure_ascii=False)


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


def _table(of: ViewOf) -> dict[str, Any]:
    shown = [of.keys[name] for name in _headlines(of)]
    # Metrics before axes, as the name of a run has its axes in it, and a page is soon full.
    columns = {f"metrics.`{key}`": _width(len(key)) for key in shown}
    if of.failures:
        columns["tags.`sweeprof.reason`"] = 260
    columns |= {f"params.`{axis}`": _width(max(len(axis), length)) for axis, length in of.axes.items()}
    # MLflow's own columns cannot be hidden; of the second, the date, only the icon of the status has room.
    widths = {"attributes.`Run Name`": 215, "runDateAndNestInfo": 45, **columns, "duration": 80}
    return {"selectedColumns": list(columns), "columnOrder": list(widths), "columnWidths": widths}


def _headlines(of: ViewOf) -> list[str]:
    """The metrics that a view is about; of a sweep without any of those that most have, the first of its own."""
    return [name for name in HEADLINES if name in of.keys] or list(of.keys)[:_MOST_OWN]


def _width(letters: int) -> int:
    """Pixels of a column that shows so many bold letters."""
    return min(max(80, 28 + 15 * letters // 2), 210)


def _charts(of: ViewOf) -> dict[str, Any]:
    key = of.keys
    bars = _headlines(of)
    pairs = [(x, y) for x, y in _PAIRS if x in key and y in key]
    rest = [name for name in key if name not in bars]
    # The last line of parallel coordinates gives the colour, so the first of the headlines comes last.
    metrics = [key[name] for name in reversed(bars)]
    groups: dict[str, list[dict[str, Any]]] = {
        "Compare": [_card(of, "BAR", name, metricKey=key[name]) for name in bars],
        "Trade-offs": [
            _card(of, "SCATTER", f"{x} {y}", xaxis=_metric_axis(key[x]), yaxis=_metric_axis(key[y])) for x, y in pairs
        ],
        "All axes": [_card(of, "PARALLEL", "parallel", selectedParams=list(of.axes), selectedMetrics=metrics)],
        # MLflow would add a section for every metric without a card; these are folded instead.
        _FOLDED: [_card(of, "BAR", name, metricKey=key[name]) for name in rest],
    }
    filled = {name: cards for name, cards in groups.items() if cards}
    return {
        "compareRunCharts": [
            {**card, "metricSectionId": _uuid(of, name)} for name, cards in filled.items() for card in cards
        ],
        "compareRunSections": [_section(of, name) for name in filled],
        "isAccordionReordered": True,
    }


def _section(of: ViewOf, name: str) -> dict[str, Any]:
    fixed = {"isReordered": True, "deleted": False, "isGenerated": False, "cardHeight": 420}
    columns = {"All axes": 1, _FOLDED: 3}.get(name, 2)
    return {"uuid": _uuid(of, name), "name": name, "display": name != _FOLDED, "columns": columns, **fixed}


def _card(of: ViewOf, kind: str, seed: str, **content: Any) -> dict[str, Any]:
    fixed = {"uuid": _uuid(of, f"{kind} {seed}"), "type": kind, "deleted": False, "isGenerated": False}
    return {**fixed, "runsCountToCompare": 100, **content}


def _metric_axis(key: str) -> dict[str, str]:
    return {"key": key, "type": "METRIC"}


def _uuid(of: ViewOf, seed: str) -> str:
    # Derived, so that writing a view again changes nothing.
    return uuid.uuid5(uuid.NAMESPACE_URL, f"sweeprof {of.sweep_id} {seed}").hex
