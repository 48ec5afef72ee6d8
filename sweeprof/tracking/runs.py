"""The content of a tracker's runs for a combination and its sweep, as plain data within the tracker's limits."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sweeprof.credentials import without_credentials
from sweeprof.numbers import MISSING, fixed_key, fixed_value
from sweeprof.report.answer import STEPS, answer, main_metric, metric_of
from sweeprof.report.columns import (
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
from sweeprof.results.comparison import Comparison, Row, reason_of, value_of
from sweeprof.results.environment import user_name
from sweeprof.results.layer_times import ROOT
from sweeprof.results.measurement import MetricInfo
from sweeprof.results.record import Record
from sweeprof.text import axis_number, axis_text, one_line, printable, shortened
from sweeprof.tracking import SweepInfo, SweepOutcome
from sweeprof.tracking.views import (
    HEADLINES,
    HISTORY,
    NOTE,
    PLACE_TAG,
    TREND,
    VERDICT_TAG,
    ViewOf,
    newest_view,
    run_address,
    view_address,
    view_tags,
)
from sweeprof.tracking.views import links as view_links

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
    """``text`` fit for a tag: without credentials, its middle left out where it is too long."""
    return shortened(printable(without_credentials(text)), TAG_LIMIT)


def links_to(parent_id: str, experiment_id: str) -> str:
    """Links from a combination to its sweep."""
    sweep, report = run_address("", experiment_id, parent_id), run_address("", experiment_id, parent_id, "report.html")
    return f"[sweep]({sweep}) · [report]({report})"


def outcome_text(row: Row, titles: Mapping[str, str], links: str) -> str:
    """Return the outcome of a combination; ``titles`` are those of the metrics in the tables, by name."""
    reason = shortened(one_line(row.reason or ""), TAG_LIMIT // 4).replace("`", "'")
    outcome = f"**{row.status}**: `{reason}`" if reason else f"**{row.status}**"
    head = f"{outcome}, the baseline of others · {links}" if row.is_baseline else f"{outcome} · {links}"
    command = _code(shortened(row.command, TAG_LIMIT // 2)) if row.command else ""
    return capped("\n\n".join(part for part in (head, "\n".join(_figures(row, titles)), command) if part))


def _figures(row: Row, titles: Mapping[str, str]) -> Iterator[str]:
    known = [name for name in titles if value_of(row, name) is not None]
    for name in known[:_MOST_FIGURES]:
        cell = row.cells[name]
        ratio = "" if row.is_baseline or cell.verdict is None else f", {ratio_text(cell)}"
        yield f"- {escaped(titles[name])}: **{value_text(cell.measurement)}**{escaped(ratio)}"


def description(markdown: str, links: str, baselines: Iterable[str] = ()) -> str:
    """A report of any length as a description: its headline, ``links``, ``baselines``, and as many whole lines as fit."""
    wrapped = _BLOCK.sub(lambda block: _code(block[2]), without_credentials(markdown))
    head, _, rest = wrapped.strip().partition("\n\n")
    # Links on a line of their own would lie below the veil that MLflow draws over a folded description.
    text = printable(with_baselines(f"{head} {links}\n\n{rest}".strip(), baselines))
    if len(text) <= TAG_LIMIT:
        return text
    ending = "\n\n… the rest is in the artifact comparison.md"
    kept = text[: TAG_LIMIT - len(ending)]
    return (kept.rpartition("\n")[0] or kept) + ending


def _code(command: str) -> str:
    """A command as inline code: a block is not wrapped, and a long line would push half of MLflow's page out of the window."""
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", command)), default=0))
    return f"{fence} {one_line(command)} {fence}"


def with_baselines(text: str, names: Iterable[str]) -> str:
    """A sweep's description that says after its first paragraph which baselines the sweep is, and no others."""
    head, *rest = text.split("\n\n")
    rest = [part for part in rest if not part.startswith(_BASELINE)]
    message = _BASELINE + ", ".join(f"**{escaped(name)}**" for name in sorted(names))
    return "\n\n".join([head, *([message] if message != _BASELINE else []), *rest])


def baseline_names(tags: Mapping[str, str]) -> list[str]:
    """The names of the baselines that a run is, by its tags."""
    return [key.removeprefix(BASELINE_TAG) for key in tags if key.startswith(BASELINE_TAG)]


# Tables that MLflow shows, and lays side by side over runs: its ``log_table`` format, written without pandas.


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
    columns: dict[str, list[Any]] = {"layer": [_layer(row) for row in rows], **_figures_of_table(rows, _LAYER)}
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
    columns: dict[str, list[Any]] = {
        "operator": [_text(row["operator"]) for row in rows],
        **_figures_of_table(rows, _OPERATOR),
    }
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


def _figures_of_table(rows: Sequence[Mapping[str, str]], units: Mapping[str, str]) -> dict[str, list[Any]]:
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


# The content of a tracker's runs for a combination and its sweep, as plain data within the tracker's limits.


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
        key = self._keys[self._main.name] if self._main else ""
        return key if any(key in self.metrics(row) for row in rows if not row.is_baseline) else ""

    def metrics(self, row: Row) -> dict[str, float]:
        """Return the row's ratios by key, those that it has."""
        found = {}
        for name, key in self._of(row).items():
            ratio = row.cells[name].ratio if row.baseline_has_values else None
            if row.is_baseline and value_of(row, name):
                ratio = 1.0
            if ratio is not None and math.isfinite(ratio) and row.has_values:
                found[key] = fixed_value(ratio, "ratio")
        return found

    def tags(self, row: Row) -> dict[str, str]:
        """Return the row's verdicts; without one on the main metric, the reason in one word."""
        main = metric_of(row, self._main) if self._main else ""
        cells = {name: row.cells[name] for name in self._of(row)} if row.has_values else {}
        tags = {
            f"{VERDICT_TAG}.{key.removeprefix(RATIOS)}": str(cells[name].verdict)
            for name, key in self._of(row).items()
            if name != main and name in cells and cells[name].verdict
        }
        if not row.has_values:
            verdict: str = row.status
        elif row.is_baseline:
            verdict = "baseline"
        elif main in cells and cells[main].verdict:
            verdict = str(cells[main].verdict)
        else:
            verdict = "not_measured" if row.baseline_has_values else "no_baseline"
        return {VERDICT_TAG: verdict, **tags}

    def _of(self, row: Row) -> dict[str, str]:
        """The key of each metric that the row has, by name; the step of the row takes the key of the main metric."""
        keys = {name: key for name, key in self._keys.items() if name in row.cells}
        if self._main:
            step = metric_of(row, self._main)
            if step != self._main.name:
                keys.pop(self._main.name, None)
            if step in row.cells:
                keys[step] = self._keys[self._main.name]
        return keys


# The content of a tracker's runs for a combination and its sweep, as plain data within the tracker's limits.


RunStatus = Literal["FINISHED", "FAILED", "KILLED"]

# MLflow's limits: it truncates longer values at the end, where a reason or a path is most informative.
NAME_LIMIT = 250
PARAM_LIMIT = 6000

METRICS_TAG, PARAMS_TAG = "sweeprof.metrics", "sweeprof.params"
"""The keys of the metrics and parameters that sweeprof has logged, one a line: others that a run has are somebody else's."""
OWN_TAGS = ("sweeprof.", VERDICT_TAG, "answer", "confidence")
"""Beginnings of the keys of tags that are deleted where they no longer apply."""
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
    """An ISO 8601 time in milliseconds since 1970; UTC where it names no zone."""
    time = datetime.fromisoformat(iso)
    return round((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000)


def time_span(comparison: Comparison, records: Sequence[Record]) -> tuple[int, int]:
    """From when until when the records were measured, in milliseconds; the sweep's beginning where there are none."""
    timed = [record for record in records if record.started]
    start = min((milliseconds(r.started) for r in timed), default=milliseconds(comparison.created))
    return start, max((milliseconds(r.started) + round(r.wall_s * 1000) for r in timed), default=start)


def run_contents(
    comparison: Comparison,
    records: Sequence[Record],
    ending: SweepOutcome | None,
    parent_id: str,
    experiment_id: str = "0",
) -> Iterator[tuple[str, RunContent]]:
    """Id and run of every combination; ``parent_id`` is the run of the sweep.

    Args:
        ending: of the sweep; None while others are measured: nothing is compared yet.
    """
    by_id: dict[str, list[Record]] = {}
    for record in records:
        by_id.setdefault(record.combination_id, []).append(record)
    places, colours, keys = _places(comparison), _colours(comparison), tracked_keys(comparison)
    titles = {info.name: metric_title(info, comparison.rows) for info in shown_metrics(comparison)}
    links = links_to(parent_id, experiment_id)
    ratios = Ratios(comparison)
    for row in comparison.rows:
        own = by_id.get(row.combination_id, [])
        start, end = time_span(comparison, own)
        params = axis_params(row, comparison.axes)
        metrics, verdicts = metric_values(row, keys), {}
        if ending is not None:
            metrics, verdicts = metrics | ratios.metrics(row), ratios.tags(row)
        place = {
            PLACE_TAG: f"{places[row.combination_id]:05d}",
            "mlflow.parentRunId": parent_id,
            "mlflow.runColor": colours[row.combination_id],
        }
        yield (
            row.combination_id,
            RunContent(
                name=run_name(comparison, row),
                start_ms=start,
                end_ms=end,
                status=_status(row, own, ending),
                tags={
                    **_tags(comparison, row, titles, metrics, params),
                    "mlflow.note.content": outcome_text(row, titles, links),
                    **place,
                    **verdicts,
                },
                params=params,
                metrics=metrics,
                config=own[-1].config if own else None,
                inputs=dataset_inputs(record.config for record in own[-1:]),
            ),
        )


def _places(comparison: Comparison) -> dict[str, int]:
    """The rows' order by combination id; those that differ in the baseline's axes alone stand beside each other."""
    axes = sorted(comparison.axes, key=lambda axis: axis in comparison.baseline)
    ranks: dict[str, dict[str, int]] = {}
    for axis in axes:
        values = [row.axes.get(axis) for row in comparison.rows]
        if all(axis_number(value) is not None for value in values):
            values.sort()
        ranks[axis] = {text: rank for rank, text in enumerate(dict.fromkeys(map(axis_text, values)))}
    ordered = sorted(comparison.rows, key=lambda row: [ranks[axis][axis_text(row.axes.get(axis))] for axis in axes])
    return {row.combination_id: place for place, row in enumerate(ordered, 1)}


def run_name(comparison: Comparison, row: Row) -> str:
    """The values of the varying axes, e.g. ``lenet5/torch/b8``: what is alike in all runs is not repeated in each."""
    axes = comparison.varying_axes() or tuple(a for a in ("model", "backend") if a in comparison.axes)
    return name_of(comparison, row, axes)


def name_of(comparison: Comparison, row: Row, axes: Iterable[str]) -> str:
    """The values of the given axes as the name of a run."""
    return shortened("/".join(_name_part(a, row.axes.get(a)) for a in axes) or one_line(comparison.name), NAME_LIMIT)


def _status(row: Row, records: Sequence[Record], ending: SweepOutcome | None) -> RunStatus:
    if row.status == "ok":
        return "FINISHED"
    unmeasured = not records or row.status in ("skipped", "lost")
    return "KILLED" if ending == "interrupted" and unmeasured else "FAILED"


def _name_part(axis: str, value: object) -> str:
    text = shortened(axis_text(value), _PART_LIMIT)
    if isinstance(value, str):
        return text
    return f"{_SHORT[axis]}{text}" if axis in _SHORT else f"{axis.rpartition('.')[2]}={text}"


def axis_params(row: Row, axes: Iterable[str]) -> dict[str, str]:
    """The row's values of these axes as parameters."""
    return {safe_key(axis): shortened(axis_text(row.axes[axis]), PARAM_LIMIT) for axis in axes if axis in row.axes}


def metric_values(row: Row, keys: Mapping[str, str]) -> dict[str, float]:
    """The row's values by tracked key; ``keys`` has that of each metric, and of the ends of an interval, to track."""
    found = {}
    for name, key in keys.items():
        value = value_of(row, name)
        if value is not None:
            found[key] = fixed_value(value, row.cells[name].measurement.unit)
    interval = row.cells[INTERVAL_OF].measurement.interval if keys.get(INTERVAL_OF) in found else None
    if interval is not None:
        ends = zip(INTERVAL_ENDS, interval, strict=True)
        unit = row.cells[INTERVAL_OF].measurement.unit
        found |= {keys[name]: fixed_value(end, unit) for name, end in ends if name in keys and math.isfinite(end)}
    return found


def _tags(
    comparison: Comparison, row: Row, judged: Iterable[str], metrics: Iterable[str], params: Iterable[str]
) -> dict[str, str]:
    missing = [f"{i.name}: {reason_of(row, i.name)}" for i in comparison.metrics if value_of(row, i.name) is None]
    tags = {
        "sweeprof.kind": "combination",
        "sweeprof.sweep_id": comparison.sweep_id,
        "sweeprof.combination_id": row.combination_id,
        "sweeprof.status": row.status,
        "sweeprof.reason": one_line(row.reason or ""),
        "sweeprof.missing": "\n".join(missing),
        "sweeprof.baseline": "" if row.baseline_id is None else row.baseline_id,
        "sweeprof.verdicts": "\n".join(_verdicts(row, judged)),
        "sweeprof.misses": "\n".join(row.misses),
        "sweeprof.pareto": "yes" if row.on_front else "",
        METRICS_TAG: "\n".join(metrics),
        PARAMS_TAG: "\n".join(params),
        "mlflow.source.name": row.command,
        "mlflow.source.type": "LOCAL",
        "mlflow.source.git.commit": str((comparison.environment.get("git") or {}).get("revision") or ""),
    }
    return {key: capped(text) for key, text in tags.items() if text}


def _verdicts(row: Row, judged: Iterable[str]) -> Iterator[str]:
    """Return the lines of a run's description about verdicts: the baseline, then one line per metric with a verdict."""
    for name in judged:
        cell = row.cells.get(name)
        if cell is not None and cell.verdict is not None:
            yield f"{name}: {ratio_text(cell)} ({cell.verdict}: {verdict_note(cell)})"


def _colours(comparison: Comparison) -> dict[str, str]:
    """The runs' colours by combination id."""
    # A single backend's colour would say nothing: then the models, or what else varies, take the colours.
    varying = comparison.varying_axes()
    axis = next((a for a in ("backend", "model", *varying) if a in varying), "backend")
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
    """The dataset that a combination's resolved config names; None where it names none."""
    dataset = (config or {}).get("dataset")
    if not isinstance(dataset, Mapping) or not dataset:
        return None
    content = {key: value for key, value in dataset.items() if key not in _NOT_CONTENT}
    source = without_credentials(json.dumps(content, sort_keys=True, default=str))
    name = str(content.get("_target_", "dataset")).rpartition(".")[2]
    return Input(
        name=shortened(one_line(name), _NAME_LIMIT) or "dataset",
        digest=hashlib.sha256(source.encode()).hexdigest()[:12],
        source=shortened(source, _SOURCE_LIMIT),
        context=str((config or {}).get("mode", "inference")),
    )


def dataset_inputs(configs: Iterable[Mapping[str, object] | None]) -> tuple[Input, ...]:
    """Return the inputs of several combinations, each once."""
    found = dict.fromkeys(made for config in configs if (made := dataset_input(config)) is not None)
    return tuple(found)[:MOST_INPUTS]


def log_inputs(client: MlflowClient, run_id: str, inputs: Sequence[Input]) -> None:
    """Add the inputs to a run; one that it has already is not added again.

    Raises:
        mlflow.exceptions.MlflowException: the server does not take them.
    """
    from mlflow.entities import Dataset, DatasetInput, InputTag
    from mlflow.exceptions import MlflowException

    made = [
        DatasetInput(
            Dataset(one.name, one.digest, "sweeprof", one.source), [InputTag("mlflow.data.context", one.context)]
        )
        for one in inputs
    ]
    if made:
        try:
            client.log_inputs(run_id, datasets=made)
        except MlflowException:
            # MLflow refuses one of two sweeps that bring the same dataset at one moment; now it is there for both.
            client.log_inputs(run_id, datasets=made)


# The runs that MLflow already has.


PAGE = 500
"""Runs per request: a server takes up to 11 ms for each (measured with MLflow 3.17), and must answer within the time limit."""


def all_runs(client: MlflowClient, experiment: str, condition: str) -> list[Run]:
    """All runs for which ``condition``, in MLflow's language, holds, the oldest first."""
    runs: list[Run] = []
    token: str | None = ""
    while token is not None:
        page = client.search_runs([experiment], condition, max_results=PAGE, page_token=token or None)
        runs += page
        token = page.token or None
    return sorted(runs, key=lambda run: (run.info.start_time, run.info.run_id))


def runs_of_sweep(client: MlflowClient, experiment: str, sweep_id: str, kind: str) -> list[Run]:
    """The runs of a sweep, of the kind ``sweep`` or ``combination``.

    There is more than one for the same thing if a request was repeated whose response was lost.
    """
    condition = f"tags.`sweeprof.sweep_id` = '{sweep_id}' and tags.`sweeprof.kind` = '{kind}'"
    found = all_runs(client, experiment, condition)
    return sorted(found, key=lambda run: run.info.status == "RUNNING")  # those that nobody completed come last


def sweep_run(client: MlflowClient, experiment: str, sweep: SweepInfo) -> Run:
    """The run of the sweep, created if there is none."""
    found = runs_of_sweep(client, experiment, sweep.sweep_id, "sweep")
    if found:
        return found[0]
    content = opened(sweep)
    return client.create_run(experiment, content.start_ms, dict(content.tags), content.name)


def must_replace(run: Run, content: RunContent) -> bool:
    """True if MLflow cannot change the run to ``content``: it changes no parameter and no start, and removes no metric."""
    there = run.data
    for key, text in content.params.items():
        if there.params.get(key, text) != text:
            return True
    own_params = set(there.tags.get(PARAMS_TAG, "").split("\n"))
    own_metrics = set(there.tags.get(METRICS_TAG, "").split("\n"))
    if own_params & (there.params.keys() - content.params.keys()):
        return True
    if own_metrics & (there.metrics.keys() - content.metrics.keys()):
        return True
    # Of a combination that was not measured the start is the sweep's.
    return run.info.start_time != content.start_ms and not there.metrics


def replaced(client: MlflowClient, run: Run, content: RunContent) -> Run:
    """Delete a run, and create one that has what others have logged to it, apart from artifacts."""
    from mlflow.entities import Metric, Param

    there = run.data
    foreign_tags = {key: text for key, text in there.tags.items() if not key.startswith((*OWN_TAGS, "mlflow."))}
    own_params = {*there.tags.get(PARAMS_TAG, "").split("\n"), *content.params}
    own_metrics = {*there.tags.get(METRICS_TAG, "").split("\n"), *content.metrics}
    tags = {**foreign_tags, **content.tags}
    new = client.create_run(run.info.experiment_id, content.start_ms, tags, content.name)
    client.log_batch(
        new.info.run_id,
        [Metric(key, value, content.start_ms, 0) for key, value in there.metrics.items() if key not in own_metrics],
        [Param(key, text) for key, text in there.params.items() if key not in own_params],
        synchronous=True,
    )
    client.delete_run(run.info.run_id)
    return client.get_run(new.info.run_id)


# The content of a tracker's run for a whole sweep, as plain data; reads nothing but the sweep's ``comparison.md``.


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
    """The experiment that takes all sweeps of a name; an empty name would be refused."""
    return shortened(one_line(sweep_name), NAME_LIMIT) or "sweeprof"


def run_title(sweep: SweepInfo) -> str:
    """Name of the sweep's run, e.g. ``quickstart 2026-11-21 00:30``."""
    return f"{shortened(experiment_name(sweep.name), NAME_LIMIT - 20)} {sweep.created[:16].replace('T', ' ')}"


def opened(sweep: SweepInfo) -> RunContent:
    """The sweep's run before anything is measured."""
    tags = {
        "sweeprof.kind": "sweep",
        "sweeprof.sweep_id": sweep.sweep_id,
        "mlflow.user": user_name() or "",
        "mlflow.source.name": capped(sweep.command),
        "mlflow.source.type": "LOCAL",
        NOTE: f"{sweep.combinations} combinations are being measured.",
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
    """The sweep's run with what came out.

    Args:
        ending: of the sweep; None while it is measured.
        folder: of ``comparison.md``.
        parent: the sweep's run.
        history_id: of the experiment with the history of its combinations.
    """
    before, found = opened(sweep_info(comparison)), answer(comparison)
    report = folder / "comparison.md"
    markdown = report.read_text(encoding="utf-8") if report.is_file() else f"**{found}**"
    links = view_links(experiment_id, final_view(comparison, parent.info.run_id))
    if history_id is not None:
        links.append(f"[history]({view_address('', history_id, HISTORY, TREND)})")
    note = description(markdown, f"Compare as {' · '.join(links)}", baseline_names(parent.data.tags))
    params = sweep_params(comparison)
    tags = {**before.tags, NOTE: note, "answer": capped(str(found))}
    tags |= {"sweeprof.baseline": capped(baseline_text(comparison)), PARAMS_TAG: capped("\n".join(params))}
    if found.confidence:
        tags["confidence"] = found.confidence
    revision = (comparison.environment.get("git") or {}).get("revision")
    if revision:
        tags["mlflow.source.git.commit"] = capped(str(revision))
    counts = {"combinations_ok": float(comparison.counts()["ok"]), "combinations_total": float(len(comparison.rows))}
    _, end = time_span(comparison, records)
    inputs = dataset_inputs(record.config for record in records)
    status = None if ending is None else _STATUS[ending]
    return RunContent(before.name, before.start_ms, end, status, tags, params, counts, None, inputs)


def sweep_params(comparison: Comparison) -> dict[str, str]:
    """The parameters of the sweep's run: each axis with its values, and settings that all combinations have in common."""
    params = {}
    for axis in comparison.axes:
        values = dict.fromkeys(axis_text(row.axes[axis]) for row in comparison.rows if axis in row.axes)
        params[safe_key(axis)] = shortened(", ".join(values), PARAM_LIMIT)
    for key, value in comparison.settings.items():
        if key.partition(".")[0] in _SETTINGS and value not in (None, "", {}, []):
            params.setdefault(safe_key(key), shortened(without_credentials(axis_text(value)), PARAM_LIMIT))
    return params


def experiment_tags(of: ViewOf, experiment_id: str, there: Mapping[str, str]) -> dict[str, str]:
    """The tags of the experiment: the views of a sweep and, unless ``there`` are those of a newer one, what it says of itself."""
    tags = view_tags(of)
    if of.created_ms < newest_view(there):
        return tags
    if of.headlines:
        tags["mlflow.experiment.primaryMetric.name"] = of.keys[of.headlines[0]]
    if there.get(NOTE, _EXPERIMENT_NOTE).startswith(_EXPERIMENT_NOTE):
        sweep, links = run_address("", experiment_id, of.parent_id), " · ".join(view_links(experiment_id, of))
        # One line: the page shows no more unless it is asked.
        tags[NOTE] = f"{_EXPERIMENT_NOTE}; the newest is [{escaped(of.title)}]({sweep}): {links}"
    return tags


def first_view(sweep: SweepInfo, parent_id: str) -> ViewOf:
    """The view before it is known which metrics there will be."""
    keys = {name: fixed_key(name, HEADLINES[name]) for name in _EXPECTED}
    axes = {safe_key(axis): 0 for axis in sweep.axes}
    created = milliseconds(sweep.created)
    return ViewOf(sweep.sweep_id, run_title(sweep), parent_id, created, axes, keys, f"{RATIOS}latency")


def final_view(comparison: Comparison, parent_id: str) -> ViewOf:
    """The view of what was measured: an axis with one value needs no column."""
    sweep = sweep_info(comparison)
    axes = {
        safe_key(axis): max((len(axis_text(row.axes.get(axis))) for row in comparison.rows), default=0)
        for axis in comparison.varying_axes() or comparison.axes
    }
    return ViewOf(
        sweep.sweep_id,
        run_title(sweep),
        parent_id,
        milliseconds(sweep.created),
        axes,
        tracked_keys(comparison),
        Ratios(comparison).main_key(comparison.rows),
        max((len(run_name(comparison, row)) for row in comparison.rows), default=0),
        failures=any(row.status != "ok" for row in comparison.rows),
    )
