"""How certain the value of a metric is whose function returns a plain number: it follows from what the function reads."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from sweeprof.metrics.metric import Estimate, Missing
from sweeprof.results.measurement import Number
from sweeprof.results.record import Warning
from sweeprof.results.stats import mean_interval, rounds_interval
from sweeprof.results.verdicts import DETERMINISTIC, INCOMPLETE

Certainty = Literal["exact", "estimated", "incomplete", "once"]
"""How certain a value is that has no rounds, the most certain first."""
_CERTAINTIES: tuple[Certainty, ...] = get_args(Certainty)
ESTIMATORS: dict[Certainty, str] = {
    "exact": "exact",
    "estimated": "estimated",
    "incomplete": INCOMPLETE[1],
    "once": "single",
}


@dataclass(frozen=True, slots=True)
class Argument:
    """What a metric function is called with for one of its parameters."""

    value: Any
    """With all rounds, where there are any."""
    certainty: Certainty = "exact"
    """Of a value without rounds."""
    by_round: Mapping[int, Any] | None = None
    """What the function is called with for a single round, by its number; None for a value without rounds."""
    warnings: tuple[Warning, ...] = ()
    was_measured: Callable[[], bool] = bool
    """Whether the function has read a measured field of an otherwise exact result."""


def argument_of(estimate: Estimate) -> Argument:
    """The value of another metric as an argument, with that metric's rounds or certainty."""
    if estimate.rounds:
        by_round = dict(zip(estimate.round_numbers or range(len(estimate.rounds)), estimate.rounds, strict=True))
        return Argument(estimate.value, by_round=by_round, warnings=estimate.warnings)
    certainty: Certainty = "once"
    if estimate.estimator in DETERMINISTIC:
        certainty = "exact" if estimate.estimator == "exact" else "estimated"
    elif estimate.estimator in INCOMPLETE:
        certainty = "incomplete"
    return Argument(estimate.value, certainty, warnings=estimate.warnings)


def stated(found: Estimate | Missing, estimator: str, warnings: tuple[Warning, ...]) -> Estimate | Missing:
    """The estimate with this estimator and these warnings."""
    if isinstance(found, Missing):
        return found
    return dataclasses.replace(found, estimator=estimator, warnings=warnings)


def common_rounds(arguments: Mapping[str, Argument]) -> list[int] | None:
    """Numbers of the rounds that all arguments with rounds have; None if no argument has rounds."""
    rounds = [set(argument.by_round) for argument in arguments.values() if argument.by_round is not None]
    return sorted(set.intersection(*rounds)) if rounds else None


def certainty_of(arguments: Mapping[str, Argument]) -> Certainty:
    """The certainty of the least certain argument without rounds."""
    found = ["once" if argument.was_measured() else argument.certainty for argument in arguments.values()]
    return max(found, key=_CERTAINTIES.index, default="exact")


def warnings_of(arguments: Mapping[str, Argument]) -> tuple[Warning, ...]:
    """The warnings of all arguments, each once."""
    return tuple(dict.fromkeys(warning for argument in arguments.values() for warning in argument.warnings))


def over_rounds(values: Mapping[int, Number], certainty: Certainty, warnings: tuple[Warning, ...]) -> Estimate:
    """The estimate of one value per round: their geometric mean, or their mean if one is not positive.

    Args:
        certainty: of what else the values depend on. Where that is not known exactly, the spread of the rounds does not contain its
            error: there is a value, but neither an interval nor rounds to compare.
    """
    estimates = tuple(map(float, values.values()))
    is_positive = min(estimates) > 0
    value: Number = next(iter(values.values()))
    if len(set(estimates)) > 1:
        value = statistics.geometric_mean(estimates) if is_positive else statistics.fmean(estimates)
    if certainty in ("incomplete", "once"):
        return Estimate(value, ESTIMATORS[certainty], warnings=warnings)
    mean = "geometric mean" if is_positive else "mean"
    return Estimate(
        value,
        "single" if len(values) == 1 else f"{mean} of {len(values)} rounds",
        rounds_interval(estimates) if is_positive else mean_interval(estimates),
        rounds=estimates,
        round_numbers=tuple(values),
        warnings=warnings,
    )


def watching(result: Any, fields: frozenset[str]) -> tuple[Any, Callable[[], bool]]:
    """A copy of a pass's result, and a function that returns whether one of ``fields`` of the copy has been read."""
    kind = _watching_type(type(result), fields)
    copy = object.__new__(kind)
    for spec in dataclasses.fields(result):
        object.__setattr__(copy, spec.name, getattr(result, spec.name))
    read: list[str] = []
    object.__setattr__(copy, "_fields_read", read)
    return copy, lambda: bool(read)


def _watching_type(kind: type[object], fields: frozenset[str]) -> type[object]:
    """A subclass of ``kind`` that appends to ``_fields_read`` which of ``fields`` are read."""

    def read(self: Any, name: str) -> Any:
        if name in fields:
            object.__getattribute__(self, "_fields_read").append(name)
        return object.__getattribute__(self, name)

    members = {"__slots__": ("_fields_read",), "__getattribute__": read, "__module__": kind.__module__}
    return type(kind.__name__, (kind,), members)
