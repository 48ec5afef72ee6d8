"""The content of a tracker's runs for a combination and its sweep, as plain data within the tracker's limits; does no I/O."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from sweeprof.report.cells import (
    axis_number,
    axis_text,
    one_line,
    ratio_text,
    reason_of,
    shortened,
    value_of,
    verdict_note,
)
from sweeprof.report.columns import metric_title, shown_metrics
from sweeprof.report.figure import backend_colours
from sweeprof.report.units import fixed_value
from sweeprof.results.compare import Comparison, Row
from sweeprof.results.record import Record
from sweeprof.tracking import SweepOutcome
from sweeprof.tracking.descriptions import capped, links_to, outcome_text
from sweeprof.tracking.inputs import Input, dataset_inputs
from sweeprof.tracking.ratios import Ratios
from sweeprof.tracking.tables import INTERVAL_ENDS, INTERVAL_OF, safe_key, tracked_keys
from sweeprof.tracking.views import PLACE_TAG

RunStatus = Literal["FINISHED", "FAILED", "KILLED"]

# MLflow's limits: it truncates longer values at the end, where a reason or a path is most informative.
NAME_LIMIT = 250
PARAM_LIMIT = 6000

METRICS_TAG = "sweeprof.metrics"
"""The keys of a combination's metrics, one a line: others that its run has are somebody else's."""
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
    status: RunStatus
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
                    **_tags(comparison, row, titles, metrics),
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


def _tags(comparison: Comparison, row: Row, judged: Iterable[str], metrics: Iterable[str]) -> dict[str, str]:
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
