"""Computes measurements from the results of passes."""

from __future__ import annotations

import dataclasses
import math
import numbers
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from sweeprof.errors import Unsupported
from sweeprof.metrics.metric import (
    BATCH_SIZE,
    ESTIMATORS,
    Argument,
    Estimate,
    Metric,
    Missing,
    argument_of,
    certainty_of,
    common_rounds,
    declared,
    is_metric,
    over_rounds,
    parameter_name,
    stated,
    warnings_of,
    watching,
    wrong_result,
)
from sweeprof.metrics.select import Selected
from sweeprof.passes.registry import Pass, parameters
from sweeprof.results.measurement import Measurement
from sweeprof.results.record import Failure, Record, Warning
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
    """Return every selected metric.

    Args:
        values: of each parameter that is not a metric, or :class:`Missing`; of the model and its data, the results of their pass.
        known: the metrics that others may read, by their names as parameters; None for those selected and all that are declared.
        limit_s: seconds that a function may take; one that took longer is not called again. None: no limit.
    """
    if known is None:
        known = {**declared(), **{parameter_name(s.metric.info.name): s.metric for s in selected}}
    reading = _Reading(selected, values, known, limit_s)
    return {s.metric.info.name: reading.measurement(s) for s in selected}


def argument_from(name: str, result: Any) -> Any:
    """Return the value of a parameter from the result of its pass, or why there is none; ``result`` is :class:`Missing` if the pass
    has none.
    """
    one, parameter = parameters()[name]
    if isinstance(result, Missing) or parameter.take is None:
        return result
    try:
        return parameter.take(result)
    except Unsupported as error:
        return Missing(f"{one.name}: unsupported: {error}")


def _values(records: Sequence[Record], baseline: Sequence[Record] | None, batch_size: int) -> dict[str, Any]:
    """Return the value of every parameter that is not a metric, or why there is none."""
    results: dict[str, Any] = {}
    values: dict[str, Any] = {BATCH_SIZE: batch_size}
    for name, (one, parameter) in parameters().items():
        if one.name not in results:
            results[one.name] = _rounds(one, records, baseline) if one.kind == "rounds" else _single(one, records)
        if parameter.source == "object":
            values[name] = results[one.name]
        elif parameter.source == "result":
            values[name] = argument_from(name, results[one.name])
        elif baseline is None:
            values[name] = Missing("the sweep has no baseline for this combination")
        else:
            value = argument_from(name, _single(one, baseline))
            values[name] = Missing(f"of the baseline, {value.reason}") if isinstance(value, Missing) else value
    return values


def _single(one: Pass[Any], records: Sequence[Record]) -> Any:
    record = next((r for r in records if r.pass_name == one.name), None)
    if record is None:
        return Missing(f"{one.name}: not run")
    if record.status != "ok" or record.observations is None:
        return Missing(f"{one.name}: {record.status}: {record.reason}")
    return one.read(record.observations)


def _rounds(one: Pass[Any], records: Sequence[Record], baseline: Sequence[Record] | None) -> Any:
    rounds = _read_rounds(one, records)
    if not rounds:
        return _single(one, records)
    if one.pair is None or not baseline or baseline[0].combination_id == records[0].combination_id:
        return rounds
    return one.pair(rounds, lambda: _read_rounds(one, baseline))


def _read_rounds(one: Pass[Any], records: Sequence[Record]) -> tuple[Any, ...]:
    """Return the results of the rounds that ended well, in their order."""
    done = [record for record in records if record.pass_name == one.name and record.status == "ok"]
    done.sort(key=lambda record: record.round)
    return tuple(dataclasses.replace(one.read(record.observations or {}), round=record.round) for record in done)


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
            return self._of_model(metric)
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
        """Return the metric's value for one round, or for all of them if ``number`` is None."""
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
        """Return the arguments of the metric's function; the same objects for all metrics of one function."""
        key = (id(selected.metric.function), repr(sorted(selected.options.items())))
        if key not in self._arguments:
            arguments: dict[str, Argument] = {}
            for name in selected.metric.reads:
                found = self._from_metric(name) if is_metric(name) else self._from_pass(name)
                if isinstance(found, Missing):
                    return found
                arguments[name] = found
            self._arguments[key] = arguments
        return self._arguments[key]

    def _from_pass(self, name: str) -> Argument | Missing:
        """The result of a pass, or the batch size."""
        value = self._values[name]
        if isinstance(value, Missing):
            return value
        if name == BATCH_SIZE:
            return Argument(value)
        one, parameter = parameters()[name]
        if one.kind == "rounds":
            warnings = tuple(warning for result in value for warning in result.warnings)
            return Argument(value, by_round={result.round: (result,) for result in value}, warnings=warnings)
        if one.kind == "once" or (one.measured_fields and parameter.take is not None):
            return Argument(value, "once")
        if one.measured_fields:
            watched, was_read = watching(value, one.measured_fields)
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

    def _of_model(self, metric: Metric) -> Estimate | Missing:
        """Return the value that the metric's function returned while the model and its data existed."""
        computed = self._values[metric.reads[0]]
        if isinstance(computed, Missing):
            return computed
        result = computed.results.get(metric.info.name, {"reason": "live: it was not computed"})
        if "reason" not in result:
            return Estimate(**result)
        failure = result.get("failure")
        return Missing(result["reason"], None if failure is None else Failure(**failure))


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


def checked(result: Any) -> Estimate | Missing:
    """Return the result of a metric's function as an estimate in plain numbers, or why it is not one."""
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


@dataclass(frozen=True, slots=True)
class ModelFunction:
    """One function, and every selected metric that is made of what it returns."""

    selected: tuple[Selected, ...]

    def model_results(self, model: Any, data: Any) -> Mapping[str, Mapping[str, Any]]:
        """By metric name, its value or the reason why there is none."""
        first = self.selected[0]
        there = {"model": model, "data": data}
        try:
            returned = first.metric.function(**{name: there[name] for name in first.metric.reads}, **first.options)
        except Exception as error:  # a user's metric must not take the others with it
            returned = raised(error)
        return {s.metric.info.name: _result(s, returned) for s in self.selected}


def model_functions(selected: Sequence[Selected], known: Mapping[str, Metric] | None = None) -> list[ModelFunction]:
    """The functions behind the selected metrics, and those they read, that ask for live objects: each once per set of options.

    Args:
        known: the metrics that others may read, by their names as parameters; None for all that are declared.
    """
    groups: dict[tuple[int, str], list[Selected]] = {}
    for one in _with_what_they_read(selected, declared() if known is None else known):
        if one.metric.is_live:
            key = (id(one.metric.function), repr(sorted(one.options.items())))
            groups.setdefault(key, []).append(one)
    return [ModelFunction(tuple(group)) for group in groups.values()]


def _with_what_they_read(selected: Sequence[Selected], known: Mapping[str, Metric]) -> list[Selected]:
    found = list(selected)
    for one in found:  # which grows on the way
        others = (known[name] for name in one.metric.reads if is_metric(name))
        found.extend(Selected(other) for other in others if all(other is not s.metric for s in found))
    return found


def _result(selected: Selected, returned: Any) -> dict[str, Any]:
    result = checked(returned if isinstance(returned, Missing) else selected.metric.part_of(returned))
    if isinstance(result, Missing):
        failure = {} if result.failure is None else {"failure": asdict(result.failure)}
        return {"reason": result.reason, **failure}
    return {"value": result.value, "estimator": result.estimator, "detail": result.detail}
