"""Metrics: functions whose parameters name the values that they read.

    @metric(name="throughput/samples_per_s", unit="samples/s", better="higher")
    def throughput(timing: Rounds, batch_size: int) -> Estimate: ...

The parameters are resolved like fixtures: ``layers`` and the names of the other passes (``training``, ``timing`` …) are what
these saw, ``weights`` is the same table as ``layers``, also where the forward could not be counted and the table has parameters
and buffers only, ``baseline_quality`` is what the baseline's quality pass saw, ``batch_size`` comes from the config, ``model`` and
``data`` are the live objects, and the name of another metric, its slashes as underscores (``compute_macs``), is its value. A
parameter with a default is an option. A metric that cannot be computed returns :class:`Missing`.

A function that returns a plain number does not state how certain it is: that follows from what it reads
(:data:`sweeprof.passes.registry.PassKind`). A number from deterministic passes is exact. ``timing`` is measured in rounds: the
function is called once per round, with a sequence of that round alone, and the rounds give the value, its interval and its verdict.
A function that returns an :class:`Estimate` is called once with all rounds, and the estimate is used as it is.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any, Literal, get_args

from sweeprof.passes.registry import parameters
from sweeprof.results.measurement import Better, MetricInfo, Number
from sweeprof.results.record import Failure, PassName, Warning
from sweeprof.results.statistics import mean_interval, rounds_interval
from sweeprof.results.verdicts import DETERMINISTIC, INCOMPLETE
from sweeprof.text import stored

FAMILIES = ("compute", "latency", "memory", "quality", "compat")
"""Modules of this package with the metrics that sweeprof ships."""

BATCH_SIZE = "batch_size"
"""The parameter that comes from the config, not from a pass."""


@cache
def known_parameters() -> tuple[str, ...]:
    """Return the names that a parameter of a metric function may have, besides those of other metrics."""
    return *parameters(), BATCH_SIZE


def is_object(parameter: str) -> bool:
    """True if a parameter of a metric function is the model or its data."""
    return parameter in parameters() and parameters()[parameter][1].source == "object"


def is_metric(parameter: str) -> bool:
    """True if a parameter of a metric function is the value of another metric."""
    return parameter != BATCH_SIZE and parameter not in parameters()


@dataclass(frozen=True, slots=True)
class Missing:
    """There is no value, and why."""

    reason: str
    failure: Failure | None = None
    """The error in the metric's function; None where nothing is wrong with it, as for a dataset without labels."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", stored(self.reason))


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value made from samples."""

    value: Number
    estimator: str
    interval: tuple[float, float] | None = None
    detail: dict[str, Any] = field(default_factory=dict)
    rounds: tuple[float, ...] = ()
    warnings: tuple[Warning, ...] = ()
    round_numbers: tuple[int, ...] = ()
    paired: tuple[float, ...] = ()
    calibrated: tuple[float, ...] = ()
    failure: Failure | None = None
    """As of :class:`~sweeprof.results.measurement.Measurement`."""


Result = Number | Estimate | Missing
Function = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Metric:
    """A registered metric function."""

    info: MetricInfo
    function: Function
    reads: tuple[str, ...]
    """Parameters to resolve: each in :func:`known_parameters`, or another metric."""
    options: tuple[str, ...]
    """Parameters with a default, which a metric set may set."""
    part: str | None = None
    """Key of this metric in what the function returns, where it returns several."""

    @property
    def passes(self) -> frozenset[PassName]:
        """The passes this metric needs, and those of the metrics it reads."""
        return passes_of(self.readings(declared()))

    def readings(self, known: Mapping[str, Metric]) -> list[Metric]:
        """This metric and all that it reads, by their names as parameters; those may read each other."""
        found = [self]
        for metric in found:  # which grows on the way
            found.extend(known[name] for name in metric.reads if is_metric(name) and known[name] not in found)
        return found

    @property
    def is_live(self) -> bool:
        """True if it reads the model or its data, and so is computed while they exist."""
        return any(is_object(name) for name in self.reads)

    def __call__(self, values: Mapping[str, Any], **options: Any) -> Any:
        """The metric of ``values``, which holds everything in :attr:`reads`."""
        return self.part_of(self.function(**{name: values[name] for name in self.reads}, **options))

    def part_of(self, result: Any) -> Any:
        """This metric's share of what the function returned."""
        if self.part is None:
            return result
        if not isinstance(result, Mapping):
            return wrong_result(f"the function returned a {type(result).__name__}, not a mapping with {self.part!r}")
        return result.get(self.part, wrong_result(f"the function returned no {self.part!r}"))


def wrong_result(reason: str) -> Missing:
    """No value, because a metric's function returned something else than it should."""
    return Missing(reason, Failure("", reason))


def passes_of(metrics: Iterable[Metric]) -> frozenset[PassName]:
    """The passes that provide what the metrics read."""
    names = {name for metric in metrics for name in metric.reads}
    return frozenset(parameters()[name][0].name for name in names if name in parameters())


@cache
def builtin_metrics() -> dict[str, Metric]:
    """Return the metrics that sweeprof ships, by name."""
    modules = [import_module(f"sweeprof.metrics.{family}") for family in FAMILIES]
    found = [value for module in modules for value in vars(module).values() if isinstance(value, Metric)]
    return {metric.info.name: metric for metric in found}


_DECLARED: dict[str, Metric] = {}


def declared() -> Mapping[str, Metric]:
    """Every metric that can be read by another one, by its name as a parameter.

    Of one name it is the newest, but a built-in metric stays: who wants to replace it for its readers selects or registers another.
    """
    return _DECLARED


def parameter_name(name: str) -> str:
    """Return the name of a metric as a parameter: ``compute_macs`` for ``compute/macs``."""
    return re.sub(r"\W", "_", name)


def metric(*, name: str, unit: str, better: Better) -> Callable[[Callable[..., Result]], Metric]:
    """Register a function as the metric ``name``; the first line of its docstring is its definition.

    Raises:
        TypeError: it takes ``*args``, ``**kwargs`` or a positional-only parameter, a parameter without a default that nothing
            provides, or a live object together with what a pass saw.
        ValueError: as a parameter it would be called like another metric.
    """

    def register(function: Callable[..., Result]) -> Metric:
        definition = (inspect.getdoc(function) or "").partition("\n")[0]
        return _made(MetricInfo(name, unit, better, definition), function, None)

    return register


def metric_group(*infos: MetricInfo) -> Callable[[Callable[..., Mapping[str, Result]]], tuple[Metric, ...]]:
    """Register a function that returns several metrics, as a mapping from their names; it is called once for all of them.

    Raises:
        TypeError, ValueError: as :func:`metric`.
    """

    def register(function: Callable[..., Mapping[str, Result]]) -> tuple[Metric, ...]:
        return tuple(_made(info, function, info.name) for info in infos)

    return register


def _made(info: MetricInfo, function: Function, part: str | None) -> Metric:
    reads, options = _parameters(info.name, function)
    made = Metric(info, function, reads, options, part)
    live = {name for name in reads if is_object(name)}
    if live and len(live) != len(reads):
        others = ", ".join(name for name in reads if name not in live)
        raise TypeError(
            f"metric {info.name!r} reads {', '.join(sorted(live))}, which are not there when {others} can be read"
        )
    _declare(made)
    return made


def _declare(made: Metric) -> None:
    """Let other metrics read this one by its name as a parameter.

    Raises:
        ValueError: another metric has that name.
    """
    readable, key = _readable(made.function), parameter_name(made.info.name)
    other = readable.get(key)
    if other is not None and other.info.name != made.info.name and not _is_newer(made.function, other.function):
        raise ValueError(
            f"a metric cannot be called {made.info.name!r}: as a parameter both it and the metric {other.info.name!r} would be "
            f"{key}. Choose another name"
        )
    if other is None or _is_builtin(made.function) or not _is_builtin(other.function):
        _DECLARED[key] = made


def _is_newer(function: Function, other: Function) -> bool:
    """True if both are the same user function, defined again, as in a notebook."""
    return _origin(function) == _origin(other)


def _is_builtin(function: Function) -> bool:
    """True if sweeprof ships the metric; :func:`sweeprof.evaluation` wraps functions of the user."""
    module, _ = _origin(function)
    return module.startswith("sweeprof.metrics.") and module != "sweeprof.metrics.evaluation"


def _origin(function: Function) -> tuple[str, str]:
    """Module and qualified name; a callable object may have neither."""
    return str(getattr(function, "__module__", "")), str(getattr(function, "__qualname__", id(function)))


def _parameters(name: str, function: Function) -> tuple[tuple[str, ...], tuple[str, ...]]:
    reads, options = [], []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise TypeError(
                f"metric {name!r} takes *{parameter.name}: name each thing it reads ({', '.join(known_parameters())})"
            )
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise TypeError(
                f"metric {name!r} takes {parameter.name!r} by position: parameters are passed by their names"
            )
        if parameter.default is not parameter.empty:
            options.append(parameter.name)
        elif parameter.name in known_parameters() or parameter.name in _readable(function):
            reads.append(parameter.name)
        else:
            raise TypeError(
                f"metric {name!r} reads {parameter.name!r}, which nothing provides. Known: {', '.join(known_parameters())}, "
                "and metrics such as compute_macs; an option needs a default"
            )
    return tuple(reads), tuple(options)


def _readable(function: Function) -> Mapping[str, Metric]:
    """The metrics declared so far; the built-in ones too, for a function that is not one of them."""
    if not _is_builtin(function):
        builtin_metrics()
    return _DECLARED


Certainty = Literal["exact", "estimated", "incomplete", "once"]
"""Certainty of a value that has no rounds, the most certain first."""
_CERTAINTIES: tuple[Certainty, ...] = get_args(Certainty)
ESTIMATORS: dict[Certainty, str] = {
    "exact": "exact",
    "estimated": "estimated",
    "incomplete": INCOMPLETE[1],
    "once": "single",
}


@dataclass(frozen=True, slots=True)
class Argument:
    """The argument of a metric function for one of its parameters."""

    value: Any
    """With all rounds, where there are any."""
    certainty: Certainty = "exact"
    """Of a value without rounds."""
    by_round: Mapping[int, Any] | None = None
    """The argument for a single round, by its number; None for a value without rounds."""
    warnings: tuple[Warning, ...] = ()
    was_measured: Callable[[], bool] = bool
    """Returns True if the function has read a measured field of an otherwise exact result."""


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
