"""One combination as the scripts of the page read it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from os.path import commonprefix
from typing import Any

from sweeprof.report.cells import one_line, reason_of, rounds_text, shortened, value_of
from sweeprof.report.columns import is_optional
from sweeprof.report.string_table import StringTable
from sweeprof.report.units import fixed_factor
from sweeprof.results.compare import Cell, Comparison, Row, find_baselines
from sweeprof.results.measurement import Measurement, MetricInfo, Number
from sweeprof.results.record import Json
from sweeprof.results.verdicts import DETERMINISTIC, uncertainty

Samples = Mapping[str, Sequence[Sequence[float]]]
"""Milliseconds of single steps, one list per round, by combination id."""

_LONGEST = 400
"""Characters of a reason."""
_EXACT, _TESTED, _SHOWN = 15, 6, 5
"""Significant digits of what is the same each time, of what verdicts are called of, and of what is only shown."""


class Writer:
    """The rows of a comparison, and what they speak of by its position."""

    def __init__(
        self,
        comparison: Comparison,
        rows: Sequence[Row],
        metrics: Sequence[MetricInfo],
        samples: Samples,
        with_commands: bool,
    ) -> None:
        self.reasons, self.environments, self._sessions = StringTable(), StringTable(), StringTable()
        self.values: dict[str, list[Any]] = {}
        """The different values of every axis, in the order of the sweep."""
        self._at: dict[str, dict[str, int]] = {}
        for axis in comparison.axes:
            spelled = {_spelled(row.axes[axis]): row.axes[axis] for row in comparison.rows if axis in row.axes}
            self.values[axis] = list(spelled.values())
            self._at[axis] = {text: place for place, text in enumerate(spelled)}
        self._places = {row.combination_id: place for place, row in enumerate(rows)}
        self._metrics, self._samples, self._with_commands = metrics, samples, with_commands
        self.command_start = commonprefix([row.command for row in rows]) if with_commands else ""  # noqa: RUF071 – no paths
        self._bases = find_baselines(comparison.baseline, {row.combination_id: row.axes for row in rows})
        self._is_apart = comparison.against is not None
        self._has_sessions = len({name for row in rows for name in row.sessions if name is not None}) > 1

    def row(self, row: Row) -> Json:
        """One row.

        ``id``; ``at``: for every axis the position in its values, or -1; ``status``; ``reason``, a position in ``reasons``, or -1;
        ``base``: the position of the row that it was compared with, its own for a baseline, else -1. By the position of a metric,
        as text: ``values``, ``[value]`` or ``[value, low, high]`` with the 95 % interval; ``why``, of a metric without a value, a
        position in ``reasons``; ``rounds``, the estimate of each round by its number, null for one that failed and ``"?"`` for one
        that is not finite. ``samples``: one list per round of milliseconds of single steps, sorted; empty for a round that failed.

        Only where there is something to say: ``uncertain``, by metric the code of why a value without rounds is not exact;
        ``paired``, as ``rounds``, what the pairs of a duel with the row ``base`` give; ``calibrated``, by metric estimates in units
        of ``kernel``; ``env``, a position in ``environments``; ``sessions``, for each round which run of the sweep timed it, or
        null; ``alone``, whether its outputs are not its baseline's, so that it is compared with nothing; ``misses``, whether it
        misses a constraint, so that it is on no front; ``incomplete``, of a row whose ``status`` is not ``ok`` although it has
        complete rounds, the text ``2 of 3 rounds``; ``cells``, of a comparison with another sweep, by metric
        ``[ratio, low, high, verdict, reason, rounds needed]``; ``command``, what comes after ``command_start``, ``wall_s`` and
        ``warnings``, positions in ``reasons``, where the page does not have every row in full.
        """
        known: list[tuple[str, MetricInfo, Measurement]] = []
        why: dict[str, int] = {}
        for place, info in enumerate(self._metrics):
            if value_of(row, info.name) is not None:
                known.append((str(place), info, row.cells[info.name].measurement))
            elif not is_optional(info.name):
                why[str(place)] = self._reason(reason_of(row, info.name))
        return {
            "id": row.combination_id,
            "at": [self._at[axis][_spelled(row.axes[axis])] if axis in row.axes else -1 for axis in self.values],
            "status": row.status,
            "reason": -1 if row.status == "ok" else self._reason(row.reason or "no reason was given"),
            "base": self._places.get(row.baseline_id or "", -1),
            "values": {place: _value(measured) for place, _, measured in known},
            "why": why,
            "rounds": {p: _by_round(m.by_round(), m.unit) for p, _, m in known if m.rounds},
            "samples": [*self._samples.get(row.combination_id, ())],
            **{
                key: value
                for key, value in self._rare(row, known).items()
                if not (value is False or value in (None, [], {}))
            },
        }

    def _rare(self, row: Row, known: Sequence[tuple[str, MetricInfo, Measurement]]) -> Json:
        """Return the fields that most rows lack."""
        calibrated = {p: [_short(value, _TESTED) for value in m.calibrated] for p, _, m in known if m.calibrated}
        kernels = [m.detail.get("kernel") for _, _, m in known if m.calibrated]
        fields = tuple((field, _spelled(value)) for field, value in sorted(row.environment.items()))
        return {
            "uncertain": {place: code for place, _, m in known if (code := uncertainty(m)) is not None},
            "paired": {p: _by_round(m.by_round("paired"), m.unit) for p, _, m in known if m.paired},
            "calibrated": calibrated,
            "kernel": kernels[0] if kernels else None,
            "env": self.environments.place(fields) if fields else None,
            "sessions": [s if s is None else self._sessions.place(s) for s in row.sessions]
            if self._has_sessions
            else [],
            "alone": not self._is_apart and row.baseline_id is None and self._bases[row.combination_id] is not None,
            "misses": bool(row.misses),
            "incomplete": rounds_text(row) if row.is_incomplete else None,
            "cells": {p: _judged(row.cells[info.name]) for p, info, _ in known} if self._is_apart else {},
            **(self._told(row) if self._with_commands else {}),
        }

    def _told(self, row: Row) -> Json:
        warnings = [self._reason(f"{warning.text} → {warning.advice}") for warning in row.warnings]
        return {
            "command": row.command.removeprefix(self.command_start),
            "wall_s": _short(row.wall_s, _SHOWN),
            "warnings": warnings,
        }

    def _reason(self, text: str) -> int:
        return self.reasons.place(shortened(one_line(text), _LONGEST))


def _spelled(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _short(value: Number | None, digits: int) -> float | None:
    """Rounded to significant digits; a whole number where it is one, which is shorter as JSON."""
    if value is None or not math.isfinite(value):
        return None
    rounded = float(f"{value:.{digits - 1}e}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded


def _value(measured: Measurement) -> list[float | None]:
    factor = fixed_factor(measured.unit)
    digits = _EXACT if measured.estimator in DETERMINISTIC else _TESTED
    assert measured.value is not None
    return [_short(measured.value * factor, digits), *(_short(end * factor, _SHOWN) for end in measured.interval or ())]


def _by_round(estimates: Mapping[int, float], unit: str) -> list[float | str | None]:
    factor = fixed_factor(unit)
    shortened = {number: _short(value * factor, _TESTED) for number, value in estimates.items()}
    untold = {number: "?" if value is None else value for number, value in shortened.items()}
    return [untold.get(number) for number in range(max(untold) + 1)]


def _judged(cell: Cell) -> list[Any]:
    ends = cell.ratio_interval or (None, None)
    figures = [_short(number, _TESTED) for number in (cell.ratio, *ends)]
    return [*figures, cell.verdict, cell.verdict_reason, cell.rounds_needed]
