"""The charts of MLflow's interface, as the cards and sections of a saved view (:mod:`sweeprof.tracking.views`)."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

_COST = ("latency/per_sample", "latency/iteration", "latency/forward")
"""What an axis of a scatter is, the first that there is."""
_AGAINST_COST = ("quality/accuracy", "compute/macs_per_sample")
_TRADE = ("latency/forward", "throughput/samples_per_s")
_FOLDED = "Other metrics"
_MOST_RUNS = 100
"""Of one chart; a page of MLflow has no more."""


def charts(keys: Mapping[str, str], headlines: Sequence[str], axes: Sequence[str], by: str | None) -> dict[str, Any]:
    """Bars, trade-offs and all axes at once, of every run or of the groups ``by`` an axis.

    Args:
        keys: tracked key by metric name.
        headlines: names of the metrics that get a large bar chart; the others' are folded.
        axes: parameter keys.
    """
    rest = [name for name in keys if name not in headlines]
    # The last line of parallel coordinates gives the colour, so the first of the headlines comes last.
    metrics = [keys[name] for name in reversed(headlines)]
    parallel = [] if by else [_card("PARALLEL", "all", selectedParams=list(axes), selectedMetrics=metrics)]
    return _sections(
        {
            "Compare": [_bars(keys[name]) for name in headlines],
            "Trade-offs": [_scatter(keys[x], keys[y]) for x, y in _pairs(keys)],
            "All axes": parallel,
            # MLflow would add a section for every metric without a card; these are folded instead.
            _FOLDED: [_bars(keys[name]) for name in rest],
        }
    )


def trends(keys: Mapping[str, str], headlines: Sequence[str]) -> dict[str, Any]:
    """A line over time per headline."""
    rest = [keys[name] for name in keys if name not in headlines]
    return _sections({"History": [_line(keys[name]) for name in headlines], _FOLDED: [_line(key) for key in rest]})


def _pairs(keys: Mapping[str, str]) -> list[tuple[str, str]]:
    cost = next((name for name in _COST if name in keys), None)
    found = [(cost, name) for name in _AGAINST_COST if name in keys] if cost else []
    return [*found, _TRADE] if keys.keys() >= set(_TRADE) else found


def _bars(key: str) -> dict[str, Any]:
    return _card("BAR", key, metricKey=key)


def _scatter(x: str, y: str) -> dict[str, Any]:
    return _card("SCATTER", f"{x} {y}", xaxis={"key": x, "type": "METRIC"}, yaxis={"key": y, "type": "METRIC"})


def _line(key: str) -> dict[str, Any]:
    # Over time, not steps: these are seconds, in which nobody can read a date.
    axis = {"xAxisKey": "time", "useGlobalXaxisKey": False, "xAxisScaleType": "linear", "scaleType": "linear"}
    drawn = {"lineSmoothness": 0, "useGlobalLineSmoothing": False, "displayPoints": True, "ignoreOutliers": False}
    what = {"metricKey": key, "selectedMetricKeys": [key], "selectedXAxisMetricKey": "", "yAxisKey": "metric"}
    return _card("LINE", key, yAxisExpressions=[], range={}, **axis, **drawn, **what)


def _card(kind: str, seed: str, **content: Any) -> dict[str, Any]:
    fixed = {"uuid": _uuid(f"{kind} {seed}"), "type": kind, "deleted": False, "isGenerated": False}
    return {**fixed, "runsCountToCompare": _MOST_RUNS, **content}


def _sections(groups: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    filled = {name: cards for name, cards in groups.items() if cards}
    return {
        "compareRunCharts": [
            {**card, "metricSectionId": _uuid(name)} for name, cards in filled.items() for card in cards
        ],
        "compareRunSections": [_section(name) for name in filled],
        "isAccordionReordered": True,
    }


def _section(name: str) -> dict[str, Any]:
    fixed = {"isReordered": True, "deleted": False, "isGenerated": False, "cardHeight": 420}
    columns = {"All axes": 1, _FOLDED: 3}.get(name, 2)
    return {"uuid": _uuid(name), "name": name, "display": name != _FOLDED, "columns": columns, **fixed}


def _uuid(seed: str) -> str:
    # Derived, so that writing a view again changes nothing.
    return uuid.uuid5(uuid.NAMESPACE_URL, f"sweeprof {seed}").hex
