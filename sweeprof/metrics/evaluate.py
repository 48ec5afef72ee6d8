"""From what the passes saw to measurements."""

from __future__ import annotations

import dataclasses
import math
import numbers
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from sweeprof.errors import Unsupported
from sweeprof.metrics.certainty import (
    ESTIMATORS,
    Argument,
    argument_of,
    certainty_of,
    common_rounds,
    over_rounds,
    stated,
    warnings_of,
    watching,
)
from sweeprof.metrics.metric import SOURCES, Estimate, Metric, Missing, declared, parameter_name, wrong_result
from sweeprof.metrics.select import Selected
from sweeprof.profiling.observations import READERS
from sweeprof.profiling.timing import Timing
from sweeprof.results.layers import LayerTable
from sweeprof.results.measurement import Measurement
from sweeprof.results.record import PASS_KINDS, Failure, PassKind, PassName, Record, Warning
from sweeprof.results.verdicts import ALL_ROUNDS
from sweeprof.tracebacks import definition_of, described, formatted, location_of

METRIC_S = 60.0
"""Seconds that a metric's function may take when a sweep's records are evaluated."""


def evaluate(
    selected: Sequence[Selected], records: Sequence[Record], baseline: Sequence[Record] | None, batch_size: int
) -> dict[str, Measurement]:
    """Every selected metric of one combination; what cannot be had is a measurement with a reason.

    Args:
        records: of the combination.
        baseline: of the combination it is compared with; its own records for a baseline, None where there is none.
    """
    return measured(selected, _values(records, baseline, batch_size), limit_s=METRIC_S)


def measured(
    selected: Sequence[Selected],
    values: Mapping[str, Any],
    known: Mapping[str, Metric] | None = None,
    limit_s: float | None = None,
) -> dict[str, Measurement]:
    """Every selected metric of ``values``: what each source is, or :class:`Missing`; live results are under ``live``.

    Args:
        known: the metrics that others may read, by their names as parameters; None for those selected and all that are declared.
        limit_s: seconds that a function may take; one that took longer is not called again. None: no limit.
    """
    if known is None:
        known = {**declared(), **{parameter_name(s.metric.info.name): s.metric for s in selected}}
    reading = _Reading(selected, values, known, limit_s)
    return {s.metric.info.name: reading.measurement(s) for s in selected}


def counted(table: Any) -> Any:
    """The table for metrics that read what the forward does, or why there is none."""
    if isinstance(table, LayerTable) and table.uncounted is not None:
        return Missing(f"analysis: unsupported: {table.uncounted}")
    return table


def _values(records: Sequence[Record], baseline: Sequence[Record] | None, batch_size: int) -> dict[str, Any]:
    table = _single(records, "analysis")
    return {
        "layers": counted(table),
        "weights": table,
        "training": _single(records, "training"),
        "timing": _rounds(records, baseline),
        "baseline_quality": _baseline_quality(baseline),
        "batch_size": batch_size,
        **{name: _single(records, name) for name in READERS if name not in ("analysis", "training", "timing")},
    }


def _single(records: Sequence[Record], pass_name: PassName) -> Any:
    record = next((r for r in records if r.pass_name == pass_name), None)
    if record is None:
        return Missing(f"{pass_name}: not run")
    if record.status != "ok" or record.observations is None:
        return Missing(f"{pass_name}: {record.status}: {record.reason}")
    return READERS[pass_name](record.observations)


def _rounds(records: Sequence[Record], baseline: Sequence[Record] | None) -> Any:
    done = _timings(records)
    if not done:
        return _single(records, "timing")
    rivals = _rivals(records, baseline) if any(one.duel for one in done) else {}
    return tuple(dataclasses.replace(one, rival=rivals.get(one.duel.id)) if one.duel else one for one in done)


def _timings(records: Sequence[Record]) -> list[Timing]:
    done = [r for r in records if r.pass_name == "timing" and r.status == "ok"]
    return [Timing.from_dict(r.observations or {}, r.round) for r in sorted(done, key=lambda record: record.round)]


def _rivals(records: Sequence[Record], baseline: Sequence[Record] | None) -> dict[str, Timing]:
    """The baseline's timings by the duel; none for the baseline itself."""
    if not baseline or baseline[0].combination_id == records[0].combination_id:
        return {}
    return {timing.duel.id: timing for timing in _timings(baseline) if timing.duel}


def _baseline_quality(baseline: Sequence[Record] | None) -> Any:
    if baseline is None:
        return Missing("the sweep has no baseline for this combination")
    found = _single(baseline, "quality")
    return Missing(f"of the baseline, {found.reason}") if isinstance(found, Missing) else found


class _Reading:
    """Metrics of one set of values; functions are called the same number of times however many metrics they return."""

    def __init__(
        self,
        selected: Sequence[Selected],
        values: Mapping[str, Any],
        known: Mapping[str, Metric],
        limit_s: float | None,
    ) -> None:
        self._values, self._known, self._limit_s = values, known, limit_s
        self._selected = {id(s.metric): s for s in selected}
        self._results: dict[tuple[int, str, int | None], Any] = {}
        self._arguments: dict[tuple[int, str], dict[str, Argument]] = {}
        self._asked: list[str] = []

    def measurement(self, selected: Selected) -> Measurement:
        """The measurement of a metric."""
        info, result = selected.metric.info, self._estimate(selected)
        failure = result.failure
        if failure is not None:
            location = failure.location or definition_of(selected.metric.function)
            failure = dataclasses.replace(failure, source=f"metric {info.name}", location=location)
        if isinstance(result, Missing):
            return Measurement(info.name, info.unit, info.better, None, result.reason, failure=failure)
        return Measurement(
            name=info.name,
            unit=info.unit,
            better=info.better,
            value=result.value,
            estimator=result.estimator,
            interval=result.interval,
            detail=result.detail,
            rounds=result.rounds,
            round_numbers=result.round_numbers,
            warnings=result.warnings,
            paired=result.paired,
            calibrated=result.calibrated,
            failure=failure,
        )

    def _estimate(self, selected: Selected) -> Estimate | Missing:
        metric = selected.metric
        if metric.is_live:
            return self._found_live(metric)
        arguments = self._arguments_of(selected)
        if isinstance(arguments, Missing):
            return arguments
        result = self._part(selected, arguments, None)
        numbers = common_rounds(arguments)
        if (
            isinstance(result, Missing) and result.failure is not None and numbers
        ):  # perhaps it can be computed of one round alone
            return self._derived(selected, arguments, result, numbers)
        if isinstance(result, Estimate | Missing):
            return checked(result)
        return self._derived(selected, arguments, result, numbers)

    def _part(self, selected: Selected, arguments: Mapping[str, Argument], number: int | None) -> Any:
        """What the metric's function returns for one round, or for all of them where ``number`` is None."""
        metric = selected.metric
        key = (id(metric.function), repr(sorted(selected.options.items())), number)
        if key not in self._results:
            values = {
                name: argument.value if number is None or argument.by_round is None else argument.by_round[number]
                for name, argument in arguments.items()
            }
            self._results[key] = _called(metric, {**values, **selected.options}, self._limit_s)
        returned = self._results[key]
        return returned if isinstance(returned, Missing) else metric.part_of(returned)

    def _derived(
        self, selected: Selected, arguments: Mapping[str, Argument], whole: Any, numbers: Sequence[int] | None
    ) -> Estimate | Missing:
        """The estimate of a function that returns plain numbers; its certainty follows from what the function reads.

        Args:
            whole: what it returned for all rounds together, or the exception.
            numbers: of the rounds that it may be called for; None if it reads nothing that has rounds.
        """
        found = checked(whole)
        if numbers is None:
            return stated(found, ESTIMATORS[certainty_of(arguments)], warnings_of(arguments))
        estimates = {number: checked(self._part(selected, arguments, number)) for number in numbers}
        values = {number: one.value for number, one in estimates.items() if isinstance(one, Estimate)}
        if not values:
            return stated(found, ALL_ROUNDS, warnings_of(arguments))
        failed = [
            Warning(
                "round_without_value",
                f"{selected.metric.info.name} has no value in round {number}: {one.reason}",
                "correct the metric's function and make the reports again",
            )
            for number, one in estimates.items()
            if isinstance(one, Missing)
        ]
        estimate = over_rounds(values, certainty_of(arguments), (*warnings_of(arguments), *failed))
        failure = next((one.failure for one in estimates.values() if one.failure is not None), None)
        return dataclasses.replace(estimate, failure=failure)

    def _arguments_of(self, selected: Selected) -> dict[str, Argument] | Missing:
        """What the metric's function is called with; the same objects for all metrics of one function."""
        key = (id(selected.metric.function), repr(sorted(selected.options.items())))
        if key not in self._arguments:
            arguments: dict[str, Argument] = {}
            for name in selected.metric.reads:
                found = self._from_pass(name) if name in SOURCES else self._from_metric(name)
                if isinstance(found, Missing):
                    return found
                arguments[name] = found
            self._arguments[key] = arguments
        return self._arguments[key]

    def _from_pass(self, name: str) -> Argument | Missing:
        """The result of a pass, or the batch size."""
        value, pass_name = self._values[name], SOURCES[name]
        if isinstance(value, Missing):
            return value
        kind = PASS_KINDS[pass_name] if pass_name else PassKind("exact")
        if kind.certainty == "rounds":
            warnings = tuple(warning for one in value for warning in one.warnings)
            return Argument(value, by_round={one.round: (one,) for one in value}, warnings=warnings)
        if kind.certainty == "once":
            return Argument(value, "once")
        if kind.measured_fields:
            watched, was_read = watching(value, kind.measured_fields)
            return Argument(watched, was_measured=was_read)
        return Argument(value)

    def _from_metric(self, name: str) -> Argument | Missing:
        """The value of another metric, with that one's rounds and certainty."""
        if name in self._asked:
            return Missing(f"the metrics {', '.join([*self._asked, name])} read each other")
        other = self._known[name]
        self._asked.append(name)
        try:
            result = self._estimate(self._selected.get(id(other), Selected(other)))
        finally:
            self._asked.pop()
        if isinstance(result, Missing):
            return Missing(f"{other.info.name}: {result.reason}", result.failure)
        return argument_of(result)

    def _found_live(self, metric: Metric) -> Estimate | Missing:
        live = self._values["live"]
        if isinstance(live, Missing):
            return live
        found = live.results.get(metric.info.name, {"reason": "live: it was not computed"})
        return missing_live(found) if "reason" in found else Estimate(**found)


class _TakesTooLong(BaseException):
    """Not an Exception, which a function in an endless loop might catch and go on."""


_TOO_SLOW: dict[Any, Missing] = {}
"""Functions that took too long in this process: a sweep of a thousand combinations must not wait for each of them again."""


def _called(metric: Metric, arguments: Mapping[str, Any], limit_s: float | None) -> Any:
    function = metric.function
    if limit_s is not None and function in _TOO_SLOW:
        return _TOO_SLOW[function]
    try:
        with _limited(limit_s):
            return function(**arguments)
    except (Exception, SystemExit) as error:  # a user's metric must not end the sweep without a report
        return raised(error)
    except _TakesTooLong as error:
        location = location_of(error) or definition_of(function)
        message = f"did not end within {limit_s:g} s ({location})"
        found = Missing(f"the metric {message}", Failure("", message, location, formatted(error)))
        _TOO_SLOW[function] = found
        return found


@contextmanager
def _limited(limit_s: float | None) -> Iterator[None]:
    """Raise :class:`_TakesTooLong` in what takes longer.

    Without effect in other threads than the main one, where Python delivers no signals, and where the alarm is somebody else's.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if limit_s is None or not is_main or signal.getsignal(signal.SIGALRM) is not signal.SIG_DFL:
        yield
        return

    is_running = True

    def end(*_: object) -> None:
        if is_running:
            raise _TakesTooLong

    signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, limit_s, 1.0)  # and again: an exception may get lost, as in a destructor
    try:
        yield
    finally:
        is_running = False  # first: an alarm that comes now must not interrupt what follows
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)


def raised(error: BaseException) -> Missing:
    """No value, because a metric's function raised."""
    if isinstance(error, Unsupported):
        return Missing(str(error))
    message = described(error)
    return Missing(f"the metric raised {message}", Failure("", message, location_of(error), formatted(error)))


def missing_live(found: Mapping[str, Any]) -> Missing:
    """Why the record of the live pass has no value of a metric."""
    failure = found.get("failure")
    return Missing(found["reason"], None if failure is None else Failure(**failure))


def checked(result: Any) -> Estimate | Missing:
    """What a metric's function gave, as an estimate in plain numbers, or why it is none."""
    if isinstance(result, Missing):
        return result
    estimate = result if isinstance(result, Estimate) else Estimate(result, "exact")
    value: Any = estimate.value  # a user's function may return anything
    if estimate.rounds and estimate.round_numbers and len(estimate.rounds) != len(estimate.round_numbers):
        return Missing(
            f"the metric gave {len(estimate.rounds)} rounds with {len(estimate.round_numbers)} round numbers: "
            "there must be one number for each round"
        )
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item") and not getattr(value, "is_meta", False):
        value = value.item()
    if not isinstance(value, numbers.Real):
        return wrong_result(f"the metric gave {value!r}, which is not a finite number")
    if not math.isfinite(value):
        return Missing(f"the metric gave {value!r}, which is not a finite number")
    return _plain(dataclasses.replace(estimate, value=_number(value)))


def _plain(estimate: Estimate) -> Estimate:
    """The estimate in Python's own numbers; a metric may have computed in numpy's, which JSON does not take."""
    return dataclasses.replace(
        estimate,
        interval=None if estimate.interval is None else (float(estimate.interval[0]), float(estimate.interval[1])),
        detail={key: _number(value) for key, value in estimate.detail.items()},
        rounds=tuple(map(float, estimate.rounds)),
        paired=tuple(map(float, estimate.paired)),
        calibrated=tuple(map(float, estimate.calibrated)),
    )


def _number(value: Any) -> Any:
    if isinstance(value, numbers.Integral):
        return int(value)
    return float(value) if isinstance(value, numbers.Real) else value


assert {p for p in SOURCES.values() if p} == set(READERS)
