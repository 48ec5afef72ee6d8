"""Tables that MLflow shows, and lays side by side over runs: its ``log_table`` format, written without pandas.

In the view of artifacts MLflow takes the first table of the runs, matches rows by the first column and shows the second
of every run; so the first column names a row, and the second is what one compares.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sweeprof.numbers import MISSING, fixed_key, fixed_value
from sweeprof.report.cells import ratio_text
from sweeprof.report.columns import shown_metrics
from sweeprof.report.csv import axis_columns
from sweeprof.report.table import sorted_rows
from sweeprof.results.comparison import Comparison, Row, value_of
from sweeprof.results.layer_times import ROOT
from sweeprof.results.measurement import MetricInfo
from sweeprof.text import axis_number, axis_text, one_line, shortened

KEY_LIMIT = 250
"""Characters in a metric's key; MLflow raises on a longer key and on characters that ``_REFUSED`` matches."""
_REFUSED = re.compile(r"[^/\w.\- ]")

MOST_TRACKED = 13
"""Metrics of a run beside those that the tables show: a page of charts is soon full, and the comparison has all of them."""
INTERVAL_OF = "latency/forward"
"""The one metric whose interval is tracked too; those of all would triple the columns."""
INTERVAL_ENDS = (f"{INTERVAL_OF}_low", f"{INTERVAL_OF}_high")


def safe_key(name: str) -> str:
    """``name`` as a key that the tracker accepts."""
    parts = [part for part in _REFUSED.sub("_", name).split("/") if part.strip(". ")]
    return shortened("/".join(parts), KEY_LIMIT).replace("…", "_") or "_"


def tracked_metrics(comparison: Comparison) -> list[MetricInfo]:
    """Return the metrics of the tables, in their order, then others as long as there are few."""
    shown = shown_metrics(comparison)
    rest = [info for info in comparison.metrics if info not in shown]
    return [*shown, *rest[: max(0, MOST_TRACKED - len(shown))]]


def tracked_keys(comparison: Comparison) -> dict[str, str]:
    """The tracked key by the name of each tracked metric, in their order; an interval's ends come last."""
    # Made from all metrics, so that a key does not depend on which others are tracked.
    keys = metric_keys(comparison.metrics)
    names = [info.name for info in tracked_metrics(comparison)]
    return {name: keys[name] for name in (*names, *INTERVAL_ENDS) if name in keys}


def metric_keys(metrics: Sequence[MetricInfo]) -> dict[str, str]:
    """The key by the name of each metric, ends of an interval included; two names never share one."""
    units = {info.name: info.unit for info in metrics}
    units |= {name: units[INTERVAL_OF] for name in INTERVAL_ENDS if INTERVAL_OF in units}
    return unique_keys({name: fixed_key(name, unit) for name, unit in units.items()})


def unique_keys(wanted: Mapping[str, str]) -> dict[str, str]:
    """A key that the tracker accepts for each wanted one, by the same names; two names never share one."""
    found: dict[str, str] = {}
    for name, text in wanted.items():
        key = plain = safe_key(text)
        number = 2
        while key in found.values():
            key = f"{plain[: KEY_LIMIT - 4]}_{number}"
            number += 1
        found[name] = key
    return found


LAYERS, OPERATORS, COMPARISON = "tables/layers.json", "tables/operators.json", "tables/comparison.json"
PATHS = (LAYERS, OPERATORS, COMPARISON)
"""In the order in which MLflow offers them."""
TAG = "mlflow.loggedArtifacts"
"""Run tag by which MLflow knows that an artifact is such a table."""

MOST_ROWS = 2000
_TEXT_LIMIT = 200
_DIGITS = 4

_LAYER = {
    "forward_self_s": "s",
    "forward_s": "s",
    "backward_self_s": "s",
    "macs": "MAC",
    "params": "params",
    "act_bytes": "B",
}
_WORDS = ("type", "output_shapes", "time_reason")
_OPERATOR = {"self_s": "s", "device_self_s": "s", "flops": "FLOP", "allocated_bytes": "B"}

ArtifactTable = dict[str, Any]
"""``{"columns": [name], "data": [[value]]}``."""


def tag_of(folder: Path) -> dict[str, str]:
    """The tag that names the tables below ``folder``; empty where there are none."""
    found = [{"path": path, "type": "table"} for path in PATHS if (folder / path).is_file()]
    return {TAG: json.dumps(found)} if found else {}


def layers(text: str) -> ArtifactTable:
    """A row per call of a layer, own figures, of the CSV of a layer table."""
    rows = list(csv.DictReader(io.StringIO(text)))
    columns: dict[str, list[Any]] = {"layer": [_layer(row) for row in rows], **_figures(rows, _LAYER)}
    words = [name for name in _WORDS if any(row.get(name) for row in rows)]
    if len({row.get("time_reason") for row in rows}) == 1 and "time_reason" in words:
        words.remove("time_reason")  # of a column of times that no row has
    columns |= {name: [_text(row[name]) for row in rows] for name in words}
    return _table(columns, "layers.csv")


def operators(text: str) -> ArtifactTable:
    """A row per operator and phase, all its uses together, of the CSV of operators, the slowest first."""
    found: dict[str, list[dict[str, str]]] = {}
    for row in csv.DictReader(io.StringIO(text)):
        found.setdefault(f"{row['operator']} ({row['phase']})", []).append(row)
    rows = [{"operator": name, **_summed(own, ("calls", *_OPERATOR))} for name, own in found.items()]
    rows.sort(key=lambda row: -float(row["self_s"] or 0))
    columns: dict[str, list[Any]] = {"operator": [_text(row["operator"]) for row in rows], **_figures(rows, _OPERATOR)}
    columns["calls"] = [float(row["calls"]) for row in rows]
    return _table(columns, "operators.csv")


def combinations(comparison: Comparison) -> ArtifactTable:
    """A row per combination: axes, tracked metrics with their ratios to the baseline, status and reason."""
    rows = sorted_rows(comparison)
    columns: dict[str, list[Any]] = {}
    for info in tracked_metrics(comparison):
        values = [value_of(row, info.name) for row in rows]
        columns[fixed_key(info.name, info.unit)] = [_rounded(value, info.unit) for value in values]
        if any(row.cells[info.name].verdict for row in rows if info.name in row.cells):
            columns[f"{info.name} vs baseline"] = [_ratio(row, info.name) for row in rows]
    columns |= {"status": [row.status for row in rows], "reason": [_text(row.reason or "") for row in rows]}
    columns["combination"] = [row.combination_id for row in rows]
    axes = {name: [_axis(row, axis) for row in rows] for axis, name in axis_columns(comparison.axes, columns).items()}
    return _table({**axes, **columns}, "comparison.csv")


def _layer(row: Mapping[str, str]) -> str:
    name = "(model)" if row["path"] == ROOT else row["path"]
    return _text(name if row["call"] in ("0", "-1") else f"{name} #{int(row['call']) + 1}")


def _figures(rows: Sequence[Mapping[str, str]], units: Mapping[str, str]) -> dict[str, list[Any]]:
    """The columns that have any value, in their fixed units."""
    columns = {}
    for name, unit in units.items():
        values = [_rounded(float(row[name]), unit) if row.get(name) else None for row in rows]
        if any(value is not None for value in values):
            columns[fixed_key(name.removesuffix("_s"), unit)] = values
    return columns


def _summed(rows: Iterable[Mapping[str, str]], names: Iterable[str]) -> dict[str, str]:
    """The sums of what is known; empty where nothing is."""
    rows, sums = list(rows), {}
    for name in names:
        known = [float(row[name]) for row in rows if row[name]]
        sums[name] = repr(sum(known)) if known else ""
    return sums


def _rounded(value: float | None, unit: str) -> float | None:
    return None if value is None else fixed_value(value, unit, _DIGITS)


def _axis(row: Row, axis: str) -> str | int | float | None:
    value = row.axes.get(axis)
    return value if axis_number(value) is not None else _text(axis_text(value)) if axis in row.axes else None


def _ratio(row: Row, metric: str) -> str:
    return ratio_text(row.cells[metric]) if metric in row.cells else ""


def _text(text: str) -> str:
    return shortened(one_line(text), _TEXT_LIMIT)


def _table(columns: Mapping[str, Sequence[Any]], whole: str) -> ArtifactTable:
    """The columns as rows; a table that is too long ends with a row that says where the rest is."""
    rows = [list(row) for row in zip(*columns.values(), strict=True)]
    if len(rows) > MOST_ROWS:
        note = f"… {len(rows) - MOST_ROWS:,} more rows in {whole}"
        rows = [*rows[:MOST_ROWS], [note, *[None] * (len(columns) - 1)]]
    # MLflow would write a null as the word.
    return {"columns": list(columns), "data": [[MISSING if cell is None else cell for cell in row] for row in rows]}
