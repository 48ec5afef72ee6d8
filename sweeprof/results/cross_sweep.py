"""Comparison of two sweeps: matches their combinations and lists what else changed. Pure functions."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence

from sweeprof.results.compare import (
    THREADS,
    ComparedSweep,
    Comparison,
    Row,
    ValuePair,
    changed,
    compared_row,
    distinct,
    key_of,
)
from sweeprof.results.measurement import Measurement, MetricInfo
from sweeprof.results.record import Json

QUALITY = "quality/"
"""Begins the names of metrics of what a model answers to the test data."""
_IGNORED = ("preload", "preload_for")
"""Settings that change how soon a process starts and nothing that is measured, as for a combination's id."""


def set_against(sweep: Comparison, base: Comparison, label: str) -> Comparison:
    """Return ``sweep`` with every row compared with its counterpart in ``base``: the same combination, else one with the same axes.

    The thresholds are those of ``sweep``, or of ``base`` where it has none: one for all of ``sweep`` holds for all metrics.
    """
    partners = _partners(sweep, base)
    threshold = sweep.threshold if sweep.threshold is not None else base.threshold
    thresholds = sweep.thresholds if sweep.threshold is not None else {**base.thresholds, **sweep.thresholds}
    rows = []
    for row in sweep.rows:
        partner = partners.get(row.combination_id)
        named = dataclasses.replace(
            row,
            baseline_id=f"{base.sweep_id}/{partner.combination_id}" if partner else None,
            environment=_environment(sweep, row),
        )
        theirs = dataclasses.replace(partner, environment=_environment(base, partner)) if partner else None
        measured = _measured(theirs) if theirs else {}
        compared = compared_row(named, _measured(row), theirs, measured, threshold, thresholds, is_interleaved=False)
        rows.append(_without_verdicts_on_quality(compared) if theirs and _have_other_data(row, theirs) else compared)
    matched = {partner.combination_id for partner in partners.values()}
    against = ComparedSweep(
        label=label,
        sweep_id=base.sweep_id,
        name=base.name,
        created=base.created,
        software=changed(sweep.environment, base.environment),
        settings=_settings(sweep, base, partners),
        absent=tuple(row.axes for row in base.rows if row.combination_id not in matched),
        absent_metrics=_absent_metrics(sweep, base, partners),
    )
    return dataclasses.replace(sweep, rows=tuple(rows), against=against, threshold=threshold, thresholds=thresholds)


def _have_other_data(row: Row, partner: Row) -> bool:
    """True if two rows were evaluated on different samples; False if that is unknown, as of records of an earlier version."""
    return None not in (row.test_data, partner.test_data) and row.test_data != partner.test_data


def _without_verdicts_on_quality(row: Row) -> Row:
    """Return a row whose quality is not comparable, because its counterpart was evaluated on other samples."""
    cells = {
        name: dataclasses.replace(cell, verdict="not_comparable", verdict_reason="different_data")
        if name.startswith(QUALITY) and cell.base is not None and cell.measurement.value is not None
        else cell
        for name, cell in row.cells.items()
    }
    return dataclasses.replace(row, cells=cells)


def _measured(row: Row) -> dict[str, Measurement]:
    return {name: cell.measurement for name, cell in row.cells.items()}


def _environment(comparison: Comparison, row: Row) -> Json:
    """The comparable key of a row, threads included; of a sweep that did not keep it by row, the whole sweep's."""
    key = row.environment or (key_of([comparison.environment]) if comparison.environment else {})
    threads = setting(comparison, row, THREADS)
    return key if threads is None else {**key, "threads": threads}


def setting(comparison: Comparison, row: Row, key: str) -> object:
    """Return the value of a dotted key in the config of a row; None if the comparison does not contain it."""
    return row.axes.get(key, row.settings.get(key, comparison.settings.get(key)))


def _partners(sweep: Comparison, base: Comparison) -> dict[str, Row]:
    """The rows of ``base`` by the ids of their counterparts; none has two."""
    theirs = {row.combination_id: row for row in base.rows}
    partners = {row.combination_id: theirs[row.combination_id] for row in sweep.rows if row.combination_id in theirs}
    axes = sorted({*sweep.axes, *base.axes})
    unmatched: dict[str, Row] = {}
    for row in base.rows:
        if row.combination_id not in partners:
            unmatched.setdefault(_place(base, row, axes), row)
    for row in sweep.rows:
        partner = None if row.combination_id in partners else unmatched.pop(_place(sweep, row, axes), None)
        if partner is not None:
            partners[row.combination_id] = partner
    return partners


def _place(comparison: Comparison, row: Row, axes: Sequence[str]) -> str:
    """Values of the axes of either sweep; what is no axis here has the config's value."""
    return json.dumps([setting(comparison, row, axis) for axis in axes], sort_keys=True, default=str)


def _absent_metrics(sweep: Comparison, base: Comparison, partners: Mapping[str, Row]) -> tuple[MetricInfo, ...]:
    """Return the metrics that ``sweep`` does not measure, and of which a counterpart of its rows has a value."""
    known = {info.name for info in sweep.metrics}
    measured = {
        name
        for row in partners.values()
        for name, cell in row.cells.items()
        if cell.measurement.value is not None and row.has_values
    }
    return tuple(info for info in base.metrics if info.name in measured - known)


def _settings(sweep: Comparison, base: Comparison, partners: Mapping[str, Row]) -> dict[str, tuple[ValuePair, ...]]:
    """Return what differs in the test data and in the configs of combinations that were matched, by dotted key."""
    changes: list[tuple[str, ValuePair]] = [
        ("test data", (partners[row.combination_id].test_data, row.test_data))
        for row in sweep.rows
        if row.combination_id in partners and _have_other_data(row, partners[row.combination_id])
    ]
    if not sweep.settings or not base.settings:  # of a version that kept none
        return {key: tuple(pairs) for key, pairs in distinct(changes).items()}
    known = {*sweep.settings, *base.settings}
    for row in (*sweep.rows, *base.rows):
        known.update(row.settings)
    keys = [key for key in sorted(known) if set(key.split(".")).isdisjoint(_IGNORED)]
    for row in sweep.rows:
        partner = partners.get(row.combination_id)
        if partner is not None and partner.combination_id != row.combination_id:  # one id, one config
            for key in keys:
                before, now = _configured(base, partner, key), _configured(sweep, row, key)
                if before != now:
                    changes.append((key, (before, now)))
    return {key: tuple(pairs) for key, pairs in distinct(changes).items()}


def _configured(comparison: Comparison, row: Row, key: str) -> object:
    return row.settings.get(key, comparison.settings.get(key))
