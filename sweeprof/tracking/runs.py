"""MLflow's runs for a sweep and its combinations: their tags, metrics, parameters, tables and inputs, within MLflow's limits.

Most of it is plain data, made from a comparison; the functions with a ``client`` find, create and replace runs.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from sweeprof.credentials import redacted_message, without_credentials
from sweeprof.numbers import MISSING, fixed_key, fixed_value
from sweeprof.report.answer import answer, main_metric, metric_of
from sweeprof.report.columns import (
    STEPS,
    baseline_text,
    called_metrics,
    metric_title,
    ratio_text,
    shown_metrics,
    value_text,
    verdict_note,
)
from sweeprof.report.csv import axis_columns
from sweeprof.report.markdown import escaped
from sweeprof.report.pictures import backend_colours
from sweeprof.report.table import sorted_rows
from sweeprof.results.compared_rows import Comparison, Row, best_row, reason_of, value_of
from sweeprof.results.environment import user_name
from sweeprof.results.layer_times import ROOT
from sweeprof.results.measurement import MetricInfo
from sweeprof.results.record import Record
from sweeprof.text import axis_number, axis_text, log_as_a_program, one_line, printable, shortened
from sweeprof.tracking import SweepInfo, SweepOutcome, views

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient


TAG_LIMIT = 8000
"""Characters; MLflow truncates longer values at the end, where a reason or a path is most informative."""
BASELINE_TAG = "baseline."
"""Begins the key of the tag of a sweep that is the baseline of a name."""

_MOST_FIGURES = 6
"""Of a description: the page has all metrics beside it."""
_BASELINE = "Baseline "
_BLOCK = re.compile(r"^(`{3,})sh\n(.*?)\n\1$", re.MULTILINE | re.DOTALL)
"""A command in Markdown."""


def capped(text: str) -> str:
    """Return ``text`` as a tag: without credentials, and without its middle if it is too long."""
    return shortened(printable(without_credentials(text)), TAG_LIMIT)


def outcome_text(row: Row, titles: Mapping[str, str], links: str) -> str:
    """Return the outcome of a combination; ``titles`` are those of the metrics in the tables, by name."""
    reason = shortened(one_line(row.reason or ""), TAG_LIMIT // 4).replace("`", "'")
    head = f"**{row.status}**"
    if reason:
        head += f": `{reason}`"
    if row.is_baseline:
        head += ", the baseline of others"
    parts = [f"{head} · {links}"]
    figures: list[str] = []
    for name, title in titles.items():
        if value_of(row, name) is None or len(figures) == _MOST_FIGURES:
            continue
        cell = row.cells[name]
        figure = f"- {escaped(title)}: **{value_text(cell.measurement)}**"
        if cell.verdict is not None and not row.is_baseline:
            figure += escaped(f", {ratio_text(cell)}")
        figures.append(figure)
    if figures:
        parts.append("\n".join(figures))
    if row.command:
        parts.append(_code(shortened(row.command, TAG_LIMIT // 2)))
    return capped("\n\n".join(parts))


def description(markdown: str, links: str, baselines: Iterable[str] = ()) -> str:
    """Return a report of any length as a description: its headline, links, baselines, and as many whole lines as fit."""
    wrapped = _BLOCK.sub(lambda block: _code(block[2]), without_credentials(markdown))
    head, _, rest = wrapped.strip().partition("\n\n")
    # Links on a line of their own would lie below the veil that MLflow draws over a folded description.
    text = printable(with_baselines(f"{head} {links}\n\n{rest}".strip(), baselines))
    if len(text) <= TAG_LIMIT:
        return text
    ending = "\n\n… the rest is in the artifact comparison.md"
    kept = text[: TAG_LIMIT - len(ending)]
    kept = kept.rpartition("\n")[0] or kept
    if kept.count("<details>") > kept.count("</details>"):  # what follows would be folded, too
        kept = kept[: kept.rindex("<details>")].rstrip()
    return kept + ending


def _code(command: str) -> str:
    """Return a command as inline code: a block is not wrapped, and a long line would push half of the page out of sight."""
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", command)), default=0))
    return f"{fence} {one_line(command)} {fence}"


def with_baselines(text: str, names: Iterable[str]) -> str:
    """Return a sweep's description, which names the baselines that the sweep is, and no others, after its first paragraph."""
    head, *rest = text.split("\n\n")
    parts = [head]
    message = ", ".join(f"**{escaped(name)}**" for name in sorted(names))
    if message:
        parts.append(_BASELINE + message)
    parts += [part for part in rest if not part.startswith(_BASELINE)]
    return "\n\n".join(parts)


def baseline_names(tags: Mapping[str, str]) -> list[str]:
    """Return the names of the baselines that a run is, by its tags."""
    return [key.removeprefix(BASELINE_TAG) for key in tags if key.startswith(BASELINE_TAG)]


# Keys of metrics.


KEY_LIMIT = 250
"""Characters in a metric's key; MLflow raises on a longer key and on characters that ``_REFUSED`` matches."""
_REFUSED = re.compile(r"[^/\w.\- ]")

MOST_TRACKED = 13
"""Metrics of a run beside those that the tables show: a page of charts is soon full, and the comparison has all of them."""
INTERVAL_OF = "latency/forward"
"""The one metric whose interval is tracked too; those of all would triple the columns."""
INTERVAL_ENDS = (f"{INTERVAL_OF}_low", f"{INTERVAL_OF}_high")


def safe_key(name: str) -> str:
    """Return ``name`` as a key that the tracker accepts."""
    parts = [part for part in _REFUSED.sub("_", name).split("/") if part.strip(". ")]
    return shortened("/".join(parts), KEY_LIMIT).replace("…", "_") or "_"


def tracked_metrics(comparison: Comparison) -> list[MetricInfo]:
    """Return the metrics of the tables, in their order, then others that have a value, as long as there are few."""
    shown = shown_metrics(comparison)
    names = {name for row in comparison.rows for name in row.cells if value_of(row, name) is not None}
    rest = [info for info in comparison.metrics if info.name in names and info not in shown]
    return [*shown, *rest[: max(0, MOST_TRACKED - len(shown))]]


def tracked_keys(comparison: Comparison) -> dict[str, str]:
    """Return the key of each tracked metric by its name, in their order; an interval's ends come last.

    Two names never share a key, and a key does not depend on which other metrics are tracked.
    """
    units = {info.name: info.unit for info in comparison.metrics}
    if INTERVAL_OF in units:
        units |= dict.fromkeys(INTERVAL_ENDS, units[INTERVAL_OF])
    keys = unique_keys({name: fixed_key(name, unit) for name, unit in units.items()})
    found = {info.name: keys[info.name] for info in tracked_metrics(comparison)}
    if INTERVAL_OF in units:
        found |= {name: keys[name] for name in INTERVAL_ENDS}
    return found


def unique_keys(wanted: Mapping[str, str]) -> dict[str, str]:
    """Return a key that the tracker accepts for each wanted one, by the same names; two names never share one."""
    found: dict[str, str] = {}
    for name, text in wanted.items():
        key = plain = safe_key(text)
        number = 2
        while key in found.values():
            key = f"{plain[: KEY_LIMIT - 4]}_{number}"
            number += 1
        found[name] = key
    return found


# Tables that MLflow shows, and lays side by side over runs: its ``log_table`` format.


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
    """Return the tag that names the tables below ``folder``; empty if there are none."""
    found = [{"path": path, "type": "table"} for path in PATHS if (folder / path).is_file()]
    if not found:
        return {}
    return {TAG: json.dumps(found)}


def layers(text: str) -> ArtifactTable:
    """Return a row per call of a layer from the CSV of a layer table."""
    rows = list(csv.DictReader(io.StringIO(text)))
    names = []
    for row in rows:
        name = "(model)" if row["path"] == ROOT else row["path"]
        if row["call"] not in ("0", "-1"):
            name += f" #{int(row['call']) + 1}"
        names.append(_text(name))
    columns: dict[str, list[Any]] = {"layer": names, **_figures_of_table(rows, _LAYER)}
    for word in _WORDS:
        texts = [row.get(word) or "" for row in rows]
        is_shown = any(texts)
        if word == "time_reason" and len(set(texts)) == 1:
            is_shown = False  # the reason for a column of times that no row has
        if is_shown:
            columns[word] = list(map(_text, texts))
    return _table(columns, "layers.csv")


def operators(text: str) -> ArtifactTable:
    """Return a row per operator and phase, all its uses together, from the CSV of operators, the slowest first."""
    sums: dict[str, dict[str, Any]] = {}
    for row in csv.DictReader(io.StringIO(text)):
        name = f"{row['operator']} ({row['phase']})"
        summed = sums.setdefault(name, {"operator": _text(name)})
        for column in ("calls", *_OPERATOR):
            if row[column]:
                summed[column] = summed.get(column, 0) + float(row[column])
    rows = sorted(sums.values(), key=lambda row: row.get("self_s", 0), reverse=True)
    columns: dict[str, list[Any]] = {
        "operator": [row["operator"] for row in rows],
        **_figures_of_table(rows, _OPERATOR),
    }
    columns["calls"] = [row["calls"] for row in rows]
    return _table(columns, "operators.csv")


def combinations(comparison: Comparison) -> ArtifactTable:
    """Return a row per combination: axes, tracked metrics with their ratios to the baseline, status and reason."""
    rows = sorted_rows(comparison)
    figures: dict[str, list[Any]] = {}
    for info in tracked_metrics(comparison):
        cells = [row.cells.get(info.name) for row in rows]
        figures[fixed_key(info.name, info.unit)] = [_rounded(value_of(row, info.name), info.unit) for row in rows]
        if any(cell is not None and cell.verdict for cell in cells):
            figures[f"{info.name} vs baseline"] = [ratio_text(cell) if cell else "" for cell in cells]
    figures["status"] = [row.status for row in rows]
    figures["reason"] = [_text(row.reason or "") for row in rows]
    figures["combination"] = [row.combination_id for row in rows]
    columns: dict[str, list[Any]] = {}
    for axis, name in axis_columns(comparison.axes, figures).items():
        columns[name] = []
        for row in rows:
            value = row.axes.get(axis)
            if axis in row.axes and axis_number(value) is None:
                value = _text(axis_text(value))
            columns[name].append(value)
    return _table(columns | figures, "comparison.csv")


def _figures_of_table(rows: Sequence[Mapping[str, Any]], units: Mapping[str, str]) -> dict[str, list[Any]]:
    """Return the columns that have any value, in their fixed units."""
    columns = {}
    for name, unit in units.items():
        if any(row.get(name) not in (None, "") for row in rows):
            values = [row.get(name) for row in rows]
            columns[fixed_key(name.removesuffix("_s"), unit)] = [_rounded(value, unit) for value in values]
    return columns


def _rounded(value: float | str | None, unit: str) -> float | None:
    if value is None or value == "":
        return None
    if isinstance(value, str):
        value = float(value)
    return fixed_value(value, unit, _DIGITS)


def _text(text: str) -> str:
    return shortened(one_line(text), _TEXT_LIMIT)


def _table(columns: Mapping[str, Sequence[Any]], whole: str) -> ArtifactTable:
    """Return the columns as rows; a table that is too long ends with a row that says where the rest is."""
    data: list[list[Any]] = []
    for row in zip(*columns.values(), strict=True):
        if len(data) < MOST_ROWS:
            data.append([MISSING if cell is None else cell for cell in row])  # MLflow would write a null as the word
    left = len(next(iter(columns.values()))) - MOST_ROWS
    if left > 0:
        data.append([f"… {left:,} more rows in {whole}", *[MISSING] * (len(columns) - 1)])
    return {"columns": list(columns), "data": data}


# Ratios and verdicts.


RATIOS = "vs_baseline/"
"""Begins the key of a ratio: the value over the baseline's, whatever is better; 1 for a baseline itself."""


class Ratios:
    """The ratios and verdicts of a comparison; the time of a step is ``latency``, in inference and in training.

    Args:
        comparison: whose metrics with a better direction are compared.
    """

    def __init__(self, comparison: Comparison) -> None:
        self._main = main_metric(comparison)
        infos: list[MetricInfo] = [self._main] if self._main else []
        infos += [info for info in called_metrics(comparison) if info not in infos and info.better is not None]
        names = {info.name: info.name.removesuffix("_bytes").replace("/", "_") for info in infos}
        if self._main and self._main.name in STEPS:
            names[self._main.name] = "latency"
        self._keys = unique_keys({name: RATIOS + short for name, short in names.items()})

    def main_key(self, rows: tuple[Row, ...]) -> str:
        """Return the key of the main metric's ratio; empty if no row is compared."""
        if self._main is not None:
            key = self._keys[self._main.name]
            if any(key in self.metrics(row) for row in rows if not row.is_baseline):
                return key
        return ""

    def metrics(self, row: Row) -> dict[str, float]:
        """Return the row's ratios by key, those that it has."""
        found: dict[str, float] = {}
        if not row.has_values:
            return found
        for name, key in self._of(row).items():
            ratio = row.cells[name].ratio if row.baseline_has_values else None
            if row.is_baseline and value_of(row, name):
                ratio = 1.0
            if ratio is not None and math.isfinite(ratio):
                found[key] = fixed_value(ratio, "ratio")
        return found

    def tags(self, row: Row) -> dict[str, str]:
        """Return the row's verdicts; without one on the main metric, the reason in one word."""
        if not row.has_values:
            return {views.VERDICT_TAG: row.status}
        main = None if self._main is None else metric_of(row, self._main)
        tags = {views.VERDICT_TAG: "not_measured" if row.baseline_has_values else "no_baseline"}
        for name, key in self._of(row).items():
            verdict = row.cells[name].verdict
            if verdict and name == main:
                tags[views.VERDICT_TAG] = str(verdict)
            elif verdict:
                tags[f"{views.VERDICT_TAG}.{key.removeprefix(RATIOS)}"] = str(verdict)
        if row.is_baseline:
            tags[views.VERDICT_TAG] = "baseline"
        return tags

    def _of(self, row: Row) -> dict[str, str]:
        """Return the key of each metric that the row has, by name; the step of the row takes the key of the main metric."""
        keys = {name: key for name, key in self._keys.items() if name in row.cells}
        if self._main:
            step = metric_of(row, self._main)
            if step != self._main.name:
                keys.pop(self._main.name, None)
            if step in row.cells:
                keys[step] = self._keys[self._main.name]
        return keys


# The run of a combination.


RunStatus = Literal["FINISHED", "FAILED", "KILLED"]

# MLflow's limits: it truncates longer values at the end, where a reason or a path is most informative.
NAME_LIMIT = 250
PARAM_LIMIT = 6000

PARENT_TAG = "mlflow.parentRunId"
METRICS_TAG, PARAMS_TAG = "sweeprof.metrics", "sweeprof.params"
"""The keys of the metrics and parameters that sweeprof has logged, one a line: others that a run has are somebody else's."""
OWN_TAGS = ("sweeprof.", views.VERDICT_TAG, "answer", "confidence")
"""Beginnings of the keys of tags that are deleted where they no longer apply."""
_SEARCHED = ("backend", "dataset", "inputs", "mode", "model", "protocol", "seed")
"""Beginnings of the keys of settings that are parameters of a combination."""
_NOT_SEARCHED = {"_target_", "preload", "preload_for", "environment", "framework", "prepare"}
"""Parts of such keys that only say how the combination is run."""
MOST_PARAMS = 100
"""MLflow takes no more at once."""
_PART_LIMIT = 40
"""Of one axis in a run's name; the column that shows it is narrower still."""
_SHORT = {"batch_size": "b"}


@dataclass(frozen=True, slots=True)
class RunContent:
    """A run of the tracker."""

    name: str
    start_ms: int
    end_ms: int
    """Milliseconds since 1970, UTC, as when the combination was measured; also the time of its metrics."""
    status: RunStatus | None
    """None while the run is not complete."""
    tags: dict[str, str]
    params: dict[str, str]
    metrics: dict[str, float]
    config: Mapping[str, object] | None = None
    """The resolved config; None for a combination that left no record."""
    inputs: tuple[Input, ...] = ()


def milliseconds(iso: str) -> int:
    """Return an ISO 8601 time in milliseconds since 1970; it is UTC if it names no zone."""
    time = datetime.fromisoformat(iso)
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    return round(time.timestamp() * 1000)


def time_span(comparison: Comparison, records: Sequence[Record]) -> tuple[int, int]:
    """Return when the records were measured, from and until, in milliseconds; the sweep's beginning if there are none."""
    starts, ends = [], []
    for record in records:
        if record.started:
            start = milliseconds(record.started)
            starts.append(start)
            ends.append(start + round(record.wall_s * 1000))
    first = min(starts, default=milliseconds(comparison.created))
    return first, max(ends, default=first)


def run_contents(
    comparison: Comparison,
    records: Sequence[Record],
    ending: SweepOutcome | None,
    parent_id: str,
    experiment_id: str = "0",
) -> Iterator[tuple[str, RunContent]]:
    """Yield id and run of every combination; ``parent_id`` is the run of the sweep.

    Args:
        ending: of the sweep; None while others are measured: nothing is compared yet.
    """
    by_id: dict[str, list[Record]] = {}
    for record in records:
        by_id.setdefault(record.combination_id, []).append(record)
    places, colours, keys = _places(comparison), _colours(comparison), tracked_keys(comparison)
    titles = {info.name: metric_title(info, comparison.rows) for info in shown_metrics(comparison)}
    sweep, report = (views.run_address("", experiment_id, parent_id, artifact) for artifact in ("", "report.html"))
    ratios = Ratios(comparison)
    for row in comparison.rows:
        own = by_id.get(row.combination_id, [])
        start, end = time_span(comparison, own)
        params = all_params(comparison, row)
        metrics = metric_values(row, keys)
        if ending is not None:
            metrics |= ratios.metrics(row)
        tags = {
            **_tags(comparison, row, titles, metrics, params),
            views.NOTE: outcome_text(row, titles, f"[sweep]({sweep}) · [report]({report})"),
            views.PLACE_TAG: f"{places[row.combination_id]:05d}",
            PARENT_TAG: parent_id,
            "mlflow.runColor": colours[row.combination_id],
        }
        if ending is not None:
            tags |= ratios.tags(row)
        status: RunStatus = "FINISHED"
        if row.status != "ok":
            is_unmeasured = not own or row.status in ("skipped", "lost")
            status = "KILLED" if ending == "interrupted" and is_unmeasured else "FAILED"
        config = own[-1].config if own else None
        name, inputs = run_name(comparison, row), dataset_inputs([config])
        yield row.combination_id, RunContent(name, start, end, status, tags, params, metrics, config, inputs)


def _places(comparison: Comparison) -> dict[str, int]:
    """Return the rows' order by combination id; those that differ only in the baseline's axes are next to each other."""
    axes = sorted(comparison.axes, key=lambda axis: axis in comparison.baseline)
    ranks: dict[str, list[str]] = {}
    for axis in axes:
        values = [row.axes.get(axis) for row in comparison.rows]
        if all(axis_number(value) is not None for value in values):
            values.sort()
        ranks[axis] = list(dict.fromkeys(map(axis_text, values)))
    ordered = sorted(
        comparison.rows, key=lambda row: [ranks[axis].index(axis_text(row.axes.get(axis))) for axis in axes]
    )
    return {row.combination_id: place for place, row in enumerate(ordered, 1)}


def run_name(comparison: Comparison, row: Row) -> str:
    """Return the values of the varying axes, e.g. ``lenet5/torch/b8``: what is alike in all runs is not repeated in each."""
    axes = comparison.varying_axes() or [axis for axis in ("model", "backend") if axis in comparison.axes]
    return name_of(comparison, row, axes)


def name_of(comparison: Comparison, row: Row, axes: Iterable[str]) -> str:
    """Return the values of the given axes as the name of a run."""
    parts = []
    for axis in axes:
        value = row.axes.get(axis)
        text = shortened(axis_text(value), _PART_LIMIT)
        if axis in _SHORT and not isinstance(value, str):
            text = _SHORT[axis] + text
        elif not isinstance(value, str):
            text = f"{axis.rpartition('.')[2]}={text}"
        parts.append(text)
    return shortened("/".join(parts) or one_line(comparison.name), NAME_LIMIT)


def all_params(comparison: Comparison, row: Row) -> dict[str, str]:
    """Return the row's axes and the settings in which other sweeps of the name may differ, as parameters.

    So a search over all sweeps finds a precision or a number of threads, whether it was an axis or not.
    """
    params = axis_params(row, comparison.axes)
    for key, value in {**comparison.settings, **row.settings}.items():
        words = key.split(".")
        is_wanted = words[0] in _SEARCHED or (words[0] == "training" and row.axes.get("mode") == "training")
        if is_wanted and _NOT_SEARCHED.isdisjoint(words) and value not in (None, "", {}, []):
            text = shortened(without_credentials(axis_text(value)), PARAM_LIMIT)
            if len(params) < MOST_PARAMS:
                params.setdefault(safe_key(key), text)
    return params


def axis_params(row: Row, axes: Iterable[str]) -> dict[str, str]:
    """Return the row's values of these axes as parameters."""
    return {safe_key(axis): shortened(axis_text(row.axes[axis]), PARAM_LIMIT) for axis in axes if axis in row.axes}


def metric_values(row: Row, keys: Mapping[str, str]) -> dict[str, float]:
    """Return the row's values by tracked key; ``keys`` has that of each metric, and of the ends of an interval, to track."""
    found = {}
    for name, key in keys.items():
        value = value_of(row, name)
        if value is not None:
            found[key] = fixed_value(value, row.cells[name].measurement.unit)
    if keys.get(INTERVAL_OF) in found:
        measurement = row.cells[INTERVAL_OF].measurement
        for name, end in zip(INTERVAL_ENDS, measurement.interval or (), strict=False):
            if name in keys and math.isfinite(end):
                found[keys[name]] = fixed_value(end, measurement.unit)
    return found


def _tags(
    comparison: Comparison, row: Row, judged: Iterable[str], metrics: Iterable[str], params: Iterable[str]
) -> dict[str, str]:
    unknown = [info.name for info in comparison.metrics if value_of(row, info.name) is None]
    verdicts = []
    for name in judged:
        cell = row.cells.get(name)
        if cell is not None and cell.verdict is not None:
            verdicts.append(f"{name}: {ratio_text(cell)} ({cell.verdict}: {verdict_note(cell)})")
    tags = {
        "sweeprof.kind": "combination",
        "sweeprof.sweep_id": comparison.sweep_id,
        "sweeprof.combination_id": row.combination_id,
        "sweeprof.status": row.status,
        "sweeprof.reason": one_line(row.reason or ""),
        "sweeprof.missing": "\n".join(f"{name}: {reason_of(row, name)}" for name in unknown),
        "sweeprof.baseline": row.baseline_id or "",
        "sweeprof.verdicts": "\n".join(verdicts),
        "sweeprof.misses": "\n".join(row.misses),
        "sweeprof.pareto": "yes" if row.on_front else "",
        METRICS_TAG: "\n".join(metrics),
        PARAMS_TAG: "\n".join(params),
        "mlflow.source.name": row.command,
        "mlflow.source.type": "LOCAL",
        "mlflow.source.git.commit": str((comparison.environment.get("git") or {}).get("revision") or ""),
    }
    return {key: capped(text) for key, text in tags.items() if text}


def _colours(comparison: Comparison) -> dict[str, str]:
    """Return the runs' colours by combination id."""
    # A single backend's colour would say nothing: then the models, or what else varies, take the colours.
    varying = comparison.varying_axes()
    axis = next((axis for axis in ("backend", "model", *varying) if axis in varying), "backend")
    names = {row.combination_id: axis_text(row.axes.get(axis)) for row in comparison.rows}
    colours = backend_colours(names.values())
    return {id: colours[name] for id, name in names.items()}


# Datasets as inputs of runs, so that MLflow shows and searches them.


# MLflow refuses more (its validation.py).
_NAME_LIMIT, _SOURCE_LIMIT = 500, 65_535
MOST_INPUTS = 100
"""Of one run."""
_NOT_CONTENT = ("preload", "preload_for")


@dataclass(frozen=True, slots=True)
class Input:
    """A dataset of a run."""

    name: str
    digest: str
    """Of its settings: two combinations with equal ones saw the same samples."""
    source: str
    """Its settings as JSON."""
    context: str
    """The use of the data: ``inference`` or ``training``."""


def dataset_input(config: Mapping[str, object] | None) -> Input | None:
    """Return the dataset that a combination's resolved config names; None if it names none."""
    if config is None or not isinstance(config.get("dataset"), Mapping) or not config["dataset"]:
        return None
    content = dict(cast("Mapping[str, object]", config["dataset"]))
    for key in _NOT_CONTENT:
        content.pop(key, None)
    source = without_credentials(json.dumps(content, sort_keys=True, default=str))
    name = str(content.get("_target_", "dataset")).rpartition(".")[2]
    return Input(
        name=shortened(one_line(name), _NAME_LIMIT) or "dataset",
        digest=hashlib.sha256(source.encode()).hexdigest()[:12],
        source=shortened(source, _SOURCE_LIMIT),
        context=str(config.get("mode", "inference")),
    )


def dataset_inputs(configs: Iterable[Mapping[str, object] | None]) -> tuple[Input, ...]:
    """Return the inputs of several combinations, each once."""
    found = dict.fromkeys(map(dataset_input, configs))
    return tuple(filter(None, found))[:MOST_INPUTS]


def log_inputs(client: MlflowClient, run_id: str, inputs: Sequence[Input]) -> None:
    """Add the inputs to a run; one that it has already is not added again.

    Raises:
        mlflow.exceptions.MlflowException: the server does not take them.
    """
    from mlflow.entities import Dataset, DatasetInput, InputTag
    from mlflow.exceptions import MlflowException

    made = []
    for one in inputs:
        dataset = Dataset(one.name, one.digest, "sweeprof", one.source)
        made.append(DatasetInput(dataset, [InputTag("mlflow.data.context", one.context)]))
    if made:
        try:
            client.log_inputs(run_id, datasets=made)
        except MlflowException:
            # MLflow refuses one of two sweeps that bring the same dataset at one moment; now it is there for both.
            client.log_inputs(run_id, datasets=made)


# Runs that MLflow already has.


PAGE = 500
"""Runs per request: a server takes up to 11 ms for each (measured with MLflow 3.17), and must answer within the time limit."""


def all_runs(client: MlflowClient, experiment: str, condition: str) -> list[Run]:
    """Return all runs for which ``condition``, in MLflow's language, holds, the oldest first."""
    runs: list[Run] = []
    token: str | None = ""
    while token is not None:
        page = client.search_runs([experiment], condition, max_results=PAGE, page_token=token or None)
        runs += page
        token = page.token or None
    return sorted(runs, key=lambda run: (run.info.start_time, run.info.run_id))


def runs_of_sweep(client: MlflowClient, experiment: str, sweep_id: str, kind: str) -> list[Run]:
    """Return the runs of a sweep, of the kind ``sweep`` or ``combination``.

    There is more than one for the same thing if a request was repeated whose response was lost.
    """
    condition = f"tags.`sweeprof.sweep_id` = '{sweep_id}' and tags.`sweeprof.kind` = '{kind}'"
    found = all_runs(client, experiment, condition)
    return sorted(found, key=lambda run: run.info.status == "RUNNING")  # those that nobody completed come last


def sweep_run(client: MlflowClient, experiment: str, sweep: SweepInfo, parent_run: str | None = None) -> Run:
    """Return the run of the sweep, which is created if there is none; below the run ``parent_run``, if that is given."""
    content = opened(sweep)
    if parent_run is not None:
        content.tags[PARENT_TAG] = parent_run
    for run in runs_of_sweep(client, experiment, sweep.sweep_id, "sweep"):
        if parent_run is not None and run.data.tags.get(PARENT_TAG) != parent_run:
            client.set_tag(run.info.run_id, PARENT_TAG, parent_run)
            return client.get_run(run.info.run_id)
        return run
    return client.create_run(experiment, content.start_ms, dict(content.tags), content.name)


def must_replace(run: Run, content: RunContent) -> bool:
    """Return whether MLflow cannot change the run to ``content``: it changes no parameter and no start, and removes no metric."""
    there = run.data
    if any(there.params.get(key, text) != text for key, text in content.params.items()):
        return True
    own_params, own_metrics = _own_keys(run)
    if own_params & (there.params.keys() - content.params.keys()):
        return True
    if own_metrics & (there.metrics.keys() - content.metrics.keys()):
        return True
    # Of a combination that was not measured the start is the sweep's.
    return run.info.start_time != content.start_ms and not there.metrics


def _own_keys(run: Run) -> tuple[set[str], set[str]]:
    """Return the keys of the parameters and metrics that sweeprof has logged to a run."""
    params, metrics = run.data.tags.get(PARAMS_TAG, ""), run.data.tags.get(METRICS_TAG, "")
    return set(params.split("\n")), set(metrics.split("\n"))


def replaced(client: MlflowClient, run: Run, content: RunContent) -> Run:
    """Delete a run, and create one that has what others have logged to it, apart from artifacts."""
    from mlflow.entities import Metric, Param

    own_params, own_metrics = _own_keys(run)
    tags, metrics, params = dict(content.tags), [], []
    for key, text in run.data.tags.items():
        if not key.startswith((*OWN_TAGS, "mlflow.")):
            tags.setdefault(key, text)
    for key, value in run.data.metrics.items():
        if key not in own_metrics and key not in content.metrics:
            metrics.append(Metric(key, value, content.start_ms, 0))
    for key, text in run.data.params.items():
        if key not in own_params and key not in content.params:
            params.append(Param(key, text))
    new = client.create_run(run.info.experiment_id, content.start_ms, tags, content.name)
    client.log_batch(new.info.run_id, metrics, params, synchronous=True)
    client.delete_run(run.info.run_id)
    return client.get_run(new.info.run_id)


# The run of a sweep, and its views.


_EXPERIMENT_NOTE = "Sweeps measured by sweeprof"
"""Begins the description of an experiment; one that somebody has written begins otherwise, and stays."""
_EXPECTED = ("latency/forward", "memory/added_bytes", "throughput/samples_per_s", "quality/accuracy")
"""What most sweeps measure."""
_SETTINGS = ("mode", "inputs", "dataset", "protocol", "seed")
"""Beginnings of the keys of settings that are parameters of a sweep."""
_STATUS: dict[SweepOutcome, RunStatus] = {"finished": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}


def sweep_info(comparison: Comparison) -> SweepInfo:
    """Return the properties of the sweep that were known when it began."""
    c = comparison
    return SweepInfo(c.sweep_id, c.name, c.command, c.created, c.axes, len(c.rows))


def experiment_name(sweep_name: str) -> str:
    """Return the name of the experiment that takes all sweeps of a name; an empty name would be refused."""
    return shortened(one_line(sweep_name), NAME_LIMIT) or "sweeprof"


def run_title(sweep: SweepInfo) -> str:
    """Return the name of the sweep's run, e.g. ``quickstart 2026-11-21 00:30``."""
    return f"{shortened(experiment_name(sweep.name), NAME_LIMIT - 20)} {sweep.created[:16].replace('T', ' ')}"


def opened(sweep: SweepInfo) -> RunContent:
    """Return the sweep's run before anything is measured."""
    tags = {
        "sweeprof.kind": "sweep",
        "sweeprof.sweep_id": sweep.sweep_id,
        "mlflow.user": user_name() or "",
        "mlflow.source.name": capped(sweep.command),
        "mlflow.source.type": "LOCAL",
        views.NOTE: f"{sweep.combinations} combinations are being measured.",
    }
    start = milliseconds(sweep.created)
    return RunContent(run_title(sweep), start, start, "FINISHED", {k: text for k, text in tags.items() if text}, {}, {})


def sweep_content(
    comparison: Comparison,
    records: Sequence[Record],
    folder: Path,
    ending: SweepOutcome | None,
    experiment_id: str,
    parent: Run,
    history_id: str | None = None,
) -> RunContent:
    """Return the sweep's run with its results.

    Args:
        ending: of the sweep; None while it is measured.
        folder: of ``comparison.md``.
        parent: the sweep's run.
        history_id: of the experiment with the history of its combinations.
    """
    content, found = opened(sweep_info(comparison)), answer(comparison)
    report = folder / "comparison.md"
    markdown = report.read_text(encoding="utf-8") if report.is_file() else f"**{found}**"
    links = views.view_links(experiment_id, final_view(comparison, parent.info.run_id))
    if history_id is not None:
        links.append(f"[history]({views.view_address('', history_id, views.HISTORY, views.TREND)})")
    params = sweep_params(comparison)
    metrics = {
        "combinations_ok": float(comparison.counts()["ok"]),
        "combinations_total": float(len(comparison.rows)),
    }
    if ending is not None:
        metrics |= best_values(comparison)
    tags = {
        **content.tags,
        views.NOTE: description(markdown, f"Compare as {' · '.join(links)}", baseline_names(parent.data.tags)),
        "answer": capped(str(found)),
        "sweeprof.baseline": capped(baseline_text(comparison)),
        PARAMS_TAG: capped("\n".join(params)),
        METRICS_TAG: "\n".join(metrics),
    }
    if PARENT_TAG in parent.data.tags:
        tags[PARENT_TAG] = parent.data.tags[PARENT_TAG]
    if found.confidence:
        tags["confidence"] = found.confidence
    revision = (comparison.environment.get("git") or {}).get("revision")
    if revision:
        tags["mlflow.source.git.commit"] = capped(str(revision))
    return replace(
        content,
        end_ms=time_span(comparison, records)[1],
        status=None if ending is None else _STATUS[ending],
        tags=tags,
        params=params,
        metrics=metrics,
        inputs=dataset_inputs(record.config for record in records),
    )


BEST = "best/"
"""Begins the key of the best value of a metric among the combinations of a sweep."""


def best_values(comparison: Comparison) -> dict[str, float]:
    """Return the best value of each metric of the tables among the combinations that fulfil the constraints, by tracked key."""
    found = {}
    keys = tracked_keys(comparison)
    rows = comparison.fulfilling()
    for info in shown_metrics(comparison):
        if info.better is None or info.name not in keys:
            continue
        best = best_row(rows, info.name, info.better)
        if best is not None:
            value = value_of(best, info.name)
            assert value is not None
            found[BEST + keys[info.name]] = fixed_value(value, info.unit)
    return found


def sweep_params(comparison: Comparison) -> dict[str, str]:
    """Return the parameters of the sweep's run: each axis with its values, and settings that all combinations have in common."""
    params = {}
    for axis in comparison.axes:
        values = [axis_text(row.axes[axis]) for row in comparison.rows if axis in row.axes]
        params[safe_key(axis)] = shortened(", ".join(dict.fromkeys(values)), PARAM_LIMIT)
    for key, value in comparison.settings.items():
        if key.partition(".")[0] in _SETTINGS and value not in (None, "", {}, []):
            params.setdefault(safe_key(key), shortened(without_credentials(axis_text(value)), PARAM_LIMIT))
    return params


def experiment_tags(
    of: views.ViewOf, experiment_id: str, there: Mapping[str, str], is_own: bool = True
) -> dict[str, str]:
    """Return the tags of the experiment: the views of a sweep, and its description unless a newer sweep is there.

    Args:
        is_own: whether the experiment is that of the sweep's name; another one gets only the views.
    """
    tags = views.view_tags(of)
    if not is_own or of.created_ms < views.newest_view(there):
        return tags
    if of.headlines:
        tags["mlflow.experiment.primaryMetric.name"] = of.keys[of.headlines[0]]
    if there.get(views.NOTE, _EXPERIMENT_NOTE).startswith(_EXPERIMENT_NOTE):
        newest = f"[{escaped(of.title)}]({views.run_address('', experiment_id, of.parent_id)})"
        links = " · ".join(views.view_links(experiment_id, of))
        # One line: the page shows no more unless it is asked.
        tags[views.NOTE] = f"{_EXPERIMENT_NOTE}; the newest is {newest}: {links}"
    return tags


def first_view(sweep: SweepInfo, parent_id: str) -> views.ViewOf:
    """Return the view of a sweep whose metrics are not yet known."""
    keys = {name: fixed_key(name, views.HEADLINES[name]) for name in _EXPECTED}
    axes = dict.fromkeys(map(safe_key, sweep.axes), 0)
    created = milliseconds(sweep.created)
    return views.ViewOf(sweep.sweep_id, run_title(sweep), parent_id, created, axes, keys, f"{RATIOS}latency")


def final_view(comparison: Comparison, parent_id: str) -> views.ViewOf:
    """Return the view of what was measured: an axis with one value needs no column."""
    sweep, rows = sweep_info(comparison), comparison.rows
    axes = {}
    for axis in comparison.varying_axes() or comparison.axes:
        axes[safe_key(axis)] = max((len(axis_text(row.axes.get(axis))) for row in rows), default=0)
    return views.ViewOf(
        sweep.sweep_id,
        run_title(sweep),
        parent_id,
        milliseconds(sweep.created),
        axes,
        tracked_keys(comparison),
        Ratios(comparison).main_key(rows),
        max((len(run_name(comparison, row)) for row in rows), default=0),
        failures=any(row.status != "ok" for row in rows),
    )


# Sweeps of MLflow as baselines: their comparison is downloaded, their run is tagged, by a process that imports MLflow.


FILE = "comparison.json"


def fetch(client: MlflowClient, wanted: str, target: Path) -> None:
    """Download the comparison of a sweep's run, given by its id, that of one of its combinations, or a tag.

    Raises:
        LookupError: there is no such run, or it has no comparison.
    """
    kind, _, name = wanted.partition(":")
    if kind == "tag":
        key = BASELINE_TAG + name
        found = _search(client, f"tags.`{key}` = 'true'")
        if not found:
            raise LookupError(f"no run has the tag {key}")
        run = found[0]
    else:
        run = client.get_run(wanted)
    id = run.info.run_id
    if run.data.tags.get("sweeprof.kind") == "combination":
        id = run.data.tags.get(PARENT_TAG) or id
    if all(item.path != FILE for item in client.list_artifacts(id)):
        raise LookupError(f"run {id} has no {FILE}: it is no sweep of sweeprof, or was not finished")
    # Beside the target: a file cannot be renamed to another file system, as that of temporary files may be.
    with tempfile.TemporaryDirectory(prefix=".sweeprof-", dir=target.parent) as folder:
        Path(client.download_artifacts(id, FILE, folder)).replace(target)


def set_tag(client: MlflowClient, name: str, sweep_id: str) -> None:
    """Tag the run of a sweep, and no other.

    Raises:
        LookupError: the sweep is not there.
    """
    found = _search(client, f"tags.`sweeprof.sweep_id` = '{sweep_id}' and tags.`sweeprof.kind` = 'sweep'")
    if not found:
        raise LookupError(f"there is no run of the sweep {sweep_id}")
    key = BASELINE_TAG + name  # not a key that a sweep sets itself
    for run in _search(client, f"tags.`{key}` = 'true'"):
        client.delete_tag(run.info.run_id, key)
        _name_baselines(client, run.info.run_id)
    client.set_tag(found[0].info.run_id, key, "true")
    _name_baselines(client, found[0].info.run_id)


def _name_baselines(client: MlflowClient, run_id: str) -> None:
    """Let the description of a sweep's run name the baselines that the sweep is."""
    tags = client.get_run(run_id).data.tags
    before = tags.get(views.NOTE, "")
    after = with_baselines(before, baseline_names(tags))
    if before and after != before and len(after) <= TAG_LIMIT:
        client.set_tag(run_id, views.NOTE, after)


def _search(client: MlflowClient, condition: str) -> list[Run]:
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    return list(client.search_runs(experiments, condition, order_by=["attributes.start_time DESC"]))


def answered(question: Mapping[str, str]) -> dict[str, str | None]:
    """Download a comparison, or tag a run, of the server in MLFLOW_TRACKING_URI; return the error, or None."""
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient

    log_as_a_program()
    try:
        client = MlflowClient(tracking_uri=os.environ["MLFLOW_TRACKING_URI"])
        if "run" in question:
            fetch(client, question["run"], Path(question["file"]))
        else:
            set_tag(client, question["tag"], question["sweep"])
    except (MlflowException, LookupError, OSError) as error:
        return {"error": redacted_message(" ".join(str(error).split()))}
    return {"error": None}
