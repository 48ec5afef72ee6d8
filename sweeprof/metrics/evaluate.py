"""Measurements from the results of passes, and metrics from evaluation functions of the user."""

from __future__ import annotations

import dataclasses
import inspect
import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, cast, get_args

from sweeprof.errors import Damaged, Unsupported, definition_of, described, formatted, location_of
from sweeprof.metrics.metric import (
    BATCH_SIZE,
    Estimate,
    Metric,
    Missing,
    Selected,
    declared,
    is_metric,
    metric_group,
    parameter_name,
    wrong_result,
)
from sweeprof.passes.registry import Pass, PassResult, parameters
from sweeprof.passes.shapes import ModelMetrics
from sweeprof.results.measurement import Better, Measurement, MetricInfo, Number
from sweeprof.results.record import Failure, Json, Record, Warning
from sweeprof.results.statistics import mean_over_rounds
from sweeprof.results.verdicts import ALL_ROUNDS, DETERMINISTIC, INCOMPLETE, NO_BASELINE
from sweeprof.text import listed

Certainty = Literal["exact", "estimated", "incomplete", "once"]
"""Certainty of a value that has no rounds, the most certain first."""
_CERTAINTIES: tuple[Certainty, ...] = get_args(Certainty)
_ESTIMATORS: dict[Certainty, str] = {
    "exact": "exact",
    "estimated": "estimated",
    "incomplete": INCOMPLETE[1],
    "once": "single",
}


def evaluate(
    selected: Sequence[Selected], records: Sequence[Record], baseline: Sequence[Record] | None, batch_size: int
) -> dict[str, Measurement]:
    """Return every selected metric of one combination; one that cannot be computed is a measurement with a reason.

    Args:
        records: of the combination.
        baseline: of the combination it is compared with; its own records for a baseline, None where there is none.
    """
    results: dict[str, object] = {}
    values: dict[str, object] = {BATCH_SIZE: batch_size}
    for name, (provider, parameter) in parameters().items():
        if provider.name not in results:
            rounds = _read_rounds(provider, records) if provider.kind == "rounds" else ()
            if rounds and provider.pair and baseline and baseline[0].combination_id != records[0].combination_id:
                rounds = provider.pair(rounds, partial(_read_rounds, provider, baseline))
            results[provider.name] = rounds or _single(provider, records)
        if parameter.source == "object":
            values[name] = results[provider.name]
        elif parameter.source == "result":
            found = results[provider.name]
            if isinstance(found, Missing) and not parameter.needs_success:
                found = _partial(provider, records) or found
            values[name] = argument_from(name, found)
        elif baseline is None:
            values[name] = Missing(NO_BASELINE)
        else:
            value = argument_from(name, _single(provider, baseline))
            if isinstance(value, Missing):
                value = Missing(f"of the baseline, {value.reason}")
            values[name] = value
    return measured(selected, values)


def _single(provider: Pass[PassResult], records: Sequence[Record]) -> PassResult | Missing:
    for record in records:
        if record.pass_name == provider.name:
            if record.status == "ok" and record.observations is not None:
                return provider.read(record.observations)
            return Missing(f"{provider.name}: {record.status}: {record.reason}")
    return Missing(f"{provider.name}: not run")


def _partial(provider: Pass[PassResult], records: Sequence[Record]) -> PassResult | None:
    """Return the part of its result that a pass had before it raised; None if its record has none that can be read."""
    for record in records:
        if record.pass_name == provider.name and record.observations is not None:
            with suppress(Damaged):  # only the observations of a pass that ended well are checked when a folder is read
                return provider.read(record.observations)
            return None
    return None


def _read_rounds(provider: Pass[PassResult], records: Sequence[Record]) -> tuple[PassResult, ...]:
    """Return the results of the rounds that ended well, in their order."""
    done = [record for record in records if record.pass_name == provider.name and record.status == "ok"]
    done.sort(key=lambda record: record.round)
    return tuple(dataclasses.replace(provider.read(record.observations or {}), round=record.round) for record in done)


def argument_from(name: str, result: object) -> object:
    """Return the value of a parameter from the result of its pass, or why there is none; ``result`` is :class:`Missing` if the pass
    has none.
    """
    provider, parameter = parameters()[name]
    if isinstance(result, Missing) or parameter.take is None:
        return result
    try:
        return parameter.take(result)
    except Unsupported as error:
        return Missing(f"{provider.name}: unsupported: {error}")


def measured(
    selected: Sequence[Selected], values: Mapping[str, object], known: Mapping[str, Metric] | None = None
) -> dict[str, Measurement]:
    """Return every selected metric.

    Args:
        values: of each parameter that is not a metric, or :class:`Missing`; of the model and its data, the results of their pass.
        known: the metrics that others may read, by their names as parameters; None for those selected and all that are declared.
    """
    if known is None:
        known = {**declared(), **{parameter_name(entry.metric.info.name): entry.metric for entry in selected}}
    evaluation = _Evaluation(selected, values, known)
    return {entry.metric.info.name: evaluation.measurement(entry) for entry in selected}


@dataclass(frozen=True, slots=True)
class _Argument:
    """The argument of a metric function for one of its parameters."""

    value: object
    """With all rounds, where there are any."""
    certainty: Certainty = "exact"
    """Of a value without rounds."""
    by_round: Mapping[int, object] | None = None
    """The argument for a single round, by its number; None for a value without rounds."""
    warnings: tuple[Warning, ...] = ()


class _Evaluation:
    """Metrics of one set of values; functions are called the same number of times however many metrics they return."""

    def __init__(self, selected: Sequence[Selected], values: Mapping[str, object], known: Mapping[str, Metric]) -> None:
        self._values, self._known = values, known
        self._selected = {id(entry.metric): entry for entry in selected}
        self._returned: dict[tuple[int, str, int | None], object] = {}
        """By function, options and round; None instead of a round for all rounds together."""
        self._arguments: dict[tuple[int, str], dict[str, _Argument]] = {}
        self._reading: list[str] = []
        """Names of the metrics that are being read, to find those that read each other."""

    def measurement(self, selected: Selected) -> Measurement:
        """Return the measurement of a metric."""
        info, result = selected.metric.info, self._estimate(selected)
        failure = result.failure
        if failure is not None:
            location = failure.location or definition_of(selected.metric.function)
            failure = dataclasses.replace(failure, source=f"metric {info.name}", location=location)
        if isinstance(result, Missing):
            return Measurement(info.name, info.unit, info.better, None, result.reason, failure=failure)
        return Measurement(
            info.name,
            result.unit or info.unit,
            info.better or result.better,
            result.value,
            estimator=result.estimator,
            interval=result.interval,
            detail=result.detail,
            rounds=result.rounds,
            warnings=result.warnings,
            round_numbers=result.round_numbers,
            paired=result.paired,
            failure=failure,
        )

    def _estimate(self, selected: Selected) -> Estimate | Missing:
        metric = selected.metric
        if metric.is_live:  # the function was called while the model and its data existed
            computed = self._values[metric.reads[0]]
            if not isinstance(computed, ModelMetrics):
                return cast("Missing", computed)
            stored = computed.results.get(metric.info.name, {"reason": "live: it was not computed"})
            if "reason" not in stored:
                return Estimate(**stored)
            failure = stored.get("failure")
            return Missing(stored["reason"], None if failure is None else Failure(**failure))
        arguments = self._arguments_of(selected)
        if isinstance(arguments, Missing):
            return arguments
        result = self._part(selected, arguments, None)
        rounds = [set(argument.by_round) for argument in arguments.values() if argument.by_round is not None]
        numbers = sorted(set.intersection(*rounds)) if rounds else None
        # A function that raised for all rounds together may have a value for a single round.
        may_have_rounds = isinstance(result, Missing) and result.failure is not None and bool(numbers)
        if isinstance(result, Estimate | Missing) and not may_have_rounds:
            return checked(result)
        return self._derived(selected, arguments, checked(result), numbers)

    def _part(self, selected: Selected, arguments: Mapping[str, _Argument], number: int | None) -> object:
        """Return the metric's value for one round, or for all of them if ``number`` is None."""
        function = selected.metric.function
        key = (id(function), selected.options_key, number)
        if key not in self._returned:
            values = dict(selected.options)
            for name, argument in arguments.items():
                values[name] = argument.value
                if number is not None and argument.by_round is not None:
                    values[name] = argument.by_round[number]
            try:
                self._returned[key] = function(**values)
            except (Exception, SystemExit) as error:  # a user's metric must not end the sweep without a report
                self._returned[key] = raised(error)
        returned = self._returned[key]
        if isinstance(returned, Missing):
            return returned
        return selected.metric.part_of(returned)

    def _derived(
        self,
        selected: Selected,
        arguments: Mapping[str, _Argument],
        whole: Estimate | Missing,
        numbers: Sequence[int] | None,
    ) -> Estimate | Missing:
        """Return the estimate of a function that returns plain numbers; its certainty follows from what the function reads.

        Args:
            whole: the value for all rounds together.
            numbers: of the rounds that it may be called for; None if it reads nothing that has rounds.
        """
        warnings: dict[Warning, None] = {}
        certainty: Certainty = "once" if selected.metric.once else "exact"
        for argument in arguments.values():
            warnings.update(dict.fromkeys(argument.warnings))
            certainty = max(certainty, argument.certainty, key=_CERTAINTIES.index)
        values: dict[int, Number] = {}
        without_value = []
        failure = None
        for number in numbers or ():
            estimate = checked(self._part(selected, arguments, number))
            failure = failure or estimate.failure
            if isinstance(estimate, Estimate):
                values[number] = estimate.value
            else:
                text = f"{selected.metric.info.name} has no value in round {number}: {estimate.reason}"
                advice = "correct the metric's function and make the reports again"
                without_value.append(Warning("round_without_value", text, advice))
        if values:
            estimate = _over_rounds(values, certainty)
            return dataclasses.replace(estimate, warnings=(*warnings, *without_value), failure=failure)
        if isinstance(whole, Missing):
            return whole
        estimator = _ESTIMATORS[certainty] if numbers is None else ALL_ROUNDS
        return dataclasses.replace(whole, estimator=estimator, warnings=tuple(warnings))

    def _arguments_of(self, selected: Selected) -> dict[str, _Argument] | Missing:
        """Return the arguments of the metric's function; the same objects for all metrics of one function."""
        key = (id(selected.metric.function), selected.options_key)
        if key not in self._arguments:
            arguments: dict[str, _Argument] = {}
            for name in selected.metric.reads:
                argument = self._from_metric(name) if is_metric(name) else self._from_pass(name)
                if isinstance(argument, Missing):
                    return argument
                arguments[name] = argument
            self._arguments[key] = arguments
        return self._arguments[key]

    def _from_pass(self, name: str) -> _Argument | Missing:
        """Return the result of a pass, or the batch size."""
        value: Any = self._values[name]
        if isinstance(value, Missing):
            return value
        if name == BATCH_SIZE:
            return _Argument(value)
        provider, _ = parameters()[name]
        if provider.kind == "rounds":
            warnings: list[Warning] = []
            for result in value:
                warnings += result.warnings
            by_round = {result.round: (result,) for result in value}
            return _Argument(value, by_round=by_round, warnings=tuple(warnings))
        return _Argument(value, "once" if provider.kind == "once" else "exact")

    def _from_metric(self, name: str) -> _Argument | Missing:
        """Return the value of another metric, with that one's rounds or certainty."""
        if name in self._reading:
            return Missing(f"the metrics {', '.join([*self._reading, name])} read each other")
        other = self._known[name]
        self._reading.append(name)
        try:
            result = self._estimate(self._selected.get(id(other), Selected(other)))
        finally:
            self._reading.pop()
        if isinstance(result, Missing):
            return Missing(f"{other.info.name}: {result.reason}", result.failure)
        if result.rounds:
            by_round = dict(zip(result.round_numbers or range(len(result.rounds)), result.rounds, strict=True))
            return _Argument(result.value, by_round=by_round, warnings=result.warnings)
        certainty: Certainty = "once"
        if result.estimator == "exact":
            certainty = "exact"
        elif result.estimator in DETERMINISTIC:
            certainty = "estimated"
        elif result.estimator in INCOMPLETE:
            certainty = "incomplete"
        return _Argument(result.value, certainty, warnings=result.warnings)


def _over_rounds(values: Mapping[int, Number], certainty: Certainty) -> Estimate:
    """Return the estimate of one value per round: their geometric mean, or their mean if one is not positive.

    Args:
        certainty: of what else the values depend on. If that is not known exactly, the spread of the rounds does not contain its
            error: there is a value, but neither an interval nor rounds to compare.
    """
    estimates = tuple(map(float, values.values()))
    value: Number
    mean, value, interval = mean_over_rounds(estimates)
    if len(set(estimates)) == 1:
        value = next(iter(values.values()))
    if certainty in ("incomplete", "once"):
        return Estimate(value, _ESTIMATORS[certainty])
    estimator = "single" if len(values) == 1 else f"{mean} of {len(values)} rounds"
    return Estimate(value, estimator, interval, rounds=estimates, round_numbers=tuple(values))


def raised(error: BaseException) -> Missing:
    """Return the reason of a metric without a value whose function raised."""
    if isinstance(error, Unsupported):
        return Missing(str(error))
    message = described(error)
    return Missing(f"the metric raised {message}", Failure("", message, location_of(error), formatted(error)))


def checked(result: object) -> Estimate | Missing:
    """Return the result of a metric's function as an estimate in Python's own numbers, or why it is not one.

    A metric may have computed in numpy's numbers, which JSON does not take.
    """
    if isinstance(result, Missing):
        return result
    estimate = result if isinstance(result, Estimate) else Estimate(cast("Number", result), "exact")
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
    interval = estimate.interval
    return dataclasses.replace(
        estimate,
        value=cast("Number", _plain(value)),
        interval=None if interval is None else (float(interval[0]), float(interval[1])),
        detail={key: _plain(figure) for key, figure in estimate.detail.items()},
        rounds=tuple(map(float, estimate.rounds)),
        paired=tuple(map(float, estimate.paired)),
    )


def _plain(value: object) -> object:
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    return value


@dataclass(frozen=True, slots=True)
class ModelFunction:
    """One function, and every selected metric that is made of what it returns."""

    selected: tuple[Selected, ...]

    def model_results(self, model: object, data: object) -> Mapping[str, Json]:
        """Return by metric name its value or the reason why there is none."""
        first = self.selected[0]
        arguments = {"model": model, "data": data}
        try:
            returned = first.metric.function(**{name: arguments[name] for name in first.metric.reads}, **first.options)
        except Exception as error:  # a user's metric must not take the others with it
            returned = raised(error)
        results: dict[str, Json] = {}
        for entry in self.selected:
            result = checked(returned if isinstance(returned, Missing) else entry.metric.part_of(returned))
            stored: Json = {}
            if isinstance(result, Estimate):
                stored.update(value=result.value, estimator=result.estimator, detail=result.detail)
                if result.unit is not None:
                    stored["unit"] = result.unit
            else:
                stored["reason"] = result.reason
                if result.failure is not None:
                    stored["failure"] = dataclasses.asdict(result.failure)
            results[entry.metric.info.name] = stored
        return results


def model_functions(selected: Sequence[Selected], known: Mapping[str, Metric] | None = None) -> list[ModelFunction]:
    """Return the functions of the selected metrics, and of those they read, that need live objects: each once per set of options.

    Args:
        known: the metrics that others may read, by their names as parameters; None for all that are declared.
    """
    needed = list(selected)
    for entry in selected:
        for metric in entry.metric.readings(declared() if known is None else known):
            if all(metric is not other.metric for other in needed):
                needed.append(Selected(metric))
    groups: dict[tuple[int, str], list[Selected]] = {}
    for entry in needed:
        if entry.metric.is_live:
            groups.setdefault((id(entry.metric.function), entry.options_key), []).append(entry)
    return [ModelFunction(tuple(group)) for group in groups.values()]


# Evaluation by a function of the user's: one main value, and others from the same call.


def evaluation(
    function: Callable[..., object],
    *,
    name: str = "quality/eval",
    unit: str = "",
    better: Better = "higher",
    key: str | None = None,
    split: str = "test",
    secondary: str | Sequence[str] | Mapping[str, MetricInfo] = (),
) -> tuple[Metric, ...]:
    """Return metrics of what ``function(model, batches)`` returns: a number, or a mapping from names to numbers.

    Args:
        function: called once with the live model and the batches of ``split``. Its further parameters are options of the metrics,
            such as ``threshold`` in ``profiler.compute("quality/eval", threshold=0.9)``; each needs a default.
        key: which entry of the mapping is the metric ``name``; a mapping of one entry needs none.
        secondary: further entries that are metrics of their own: names, which become ``quality/NAME`` with the same unit and
            direction, or a mapping from entries to what they are. Entries that are not named here are left out.

    Raises:
        TypeError: a further parameter of the function has no default, or is called ``model`` or ``data``.
    """
    definition = (function.__doc__ or f"What {getattr(function, '__name__', 'the function')} returns").strip()
    main = MetricInfo(name, unit, better, definition.partition("\n")[0])
    others: dict[str, MetricInfo] = {}
    if isinstance(secondary, Mapping):
        others.update(secondary)
    else:
        for entry in listed(secondary):
            others[entry] = MetricInfo(f"quality/{entry}", unit, better, f"{entry!r}, beside {name}.")

    def evaluated(model: object, data: Any, **options: object) -> Mapping[str, object]:
        returned = function(model, data.split(split), **options)
        values = returned if isinstance(returned, Mapping) else {key or name: returned}
        if key is None and len(values) == 1:
            (value,) = values.values()
        elif not values:
            value = wrong_result("the function returned an empty mapping")
        elif key is None:
            value = wrong_result(f"the function returned {', '.join(map(repr, values))}: say which one by `key=`")
        else:
            value = values.get(key, wrong_result(f"the function returned no {key!r}"))
        results = {name: value}
        for entry, info in others.items():
            results[info.name] = values.get(entry, wrong_result(f"the function returned no {entry!r}"))
        return results

    read = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in ("model", "data")]
    signature = inspect.Signature([*read, *_options_of(function)])
    evaluated.__signature__ = signature  # type: ignore[attr-defined]  # its options, by name
    return metric_group(main, *others.values())(evaluated)


def _options_of(function: Callable[..., object]) -> list[inspect.Parameter]:
    """Return the parameters of an evaluation function after the model and the batches."""
    try:
        _, _, *further = inspect.signature(function).parameters.values()
    except ValueError:  # a function of C without a signature, or one with ``*args`` in place of the first two
        return []
    options = []
    name = getattr(function, "__name__", repr(function))
    for parameter in further:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            continue
        if parameter.default is parameter.empty:
            raise TypeError(
                f"{name} takes {parameter.name!r}: an option, which follows the model and the batches, needs a default"
            )
        if parameter.name in ("model", "data"):
            raise TypeError(f"{name} takes {parameter.name!r}, which no option can be called")
        options.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
    return options
