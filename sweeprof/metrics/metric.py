"""What a metric is: a function whose parameters name what it reads.

    @metric(name="throughput/samples_per_s", unit="samples/s", better="higher")
    def throughput(timing: Rounds, batch_size: int) -> Estimate: ...

The parameters are resolved like fixtures: ``layers`` and the names of the other passes (``training``, ``timing`` …) are what
these saw, ``weights`` is the same table as ``layers``, also where the forward could not be counted and the table has parameters
and buffers only, ``baseline_quality`` is what the baseline's quality pass saw, ``batch_size`` comes from the config, ``model`` and
``data`` are the live objects, and the name of another metric, its slashes as underscores (``compute_macs``), is its value. A
parameter with a default is an option. A metric that cannot be computed returns :class:`Missing`.

A function that returns a plain number does not state how certain it is: that follows from what it reads
(:data:`sweeprof.results.record.PASS_KINDS`). A number from deterministic passes is exact. ``timing`` is measured in rounds: the
function is called once per round, with a sequence of that round alone, and the rounds give the value, its interval and its verdict.
A function that returns an :class:`Estimate` is called once with all rounds, and the estimate is used as it is.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sweeprof.results.measurement import Better, MetricInfo, Number
from sweeprof.results.record import Failure, PassName, Warning
from sweeprof.text import stored

SOURCES: dict[str, PassName | None] = {
    "layers": "analysis",
    "weights": "analysis",
    "training": "training",
    "own_counts": "own_counts",
    "artifact": "artifact",
    "peaks": "peaks",
    "timing": "timing",
    "layer_times": "layer_times",
    "operators": "operators",
    "memory": "memory",
    "allocations": "allocations",
    "lines": "lines",
    "quality": "quality",
    "baseline_quality": "quality",
    "batch_size": None,
    "model": "live",
    "data": "live",
}
"""What a parameter may be called, and the pass that provides it."""


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
    """Parameters to resolve: each in :data:`SOURCES`, or another metric."""
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
            found.extend(known[name] for name in metric.reads if name not in SOURCES and known[name] not in found)
        return found

    @property
    def is_live(self) -> bool:
        """Whether it asks for the model or its data, and so is computed while they are there."""
        return "model" in self.reads or "data" in self.reads

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
    sources = (SOURCES.get(name) for metric in metrics for name in metric.reads)
    return frozenset(source for source in sources if source is not None)


_DECLARED: dict[str, Metric] = {}


def declared() -> Mapping[str, Metric]:
    """Every metric that can be read by another one, by its name as a parameter.

    Of one name it is the newest, but a built-in metric stays: who wants to replace it for its readers selects or registers another.
    """
    return _DECLARED


def parameter_name(name: str) -> str:
    """How a metric is called as a parameter: ``compute_macs`` for ``compute/macs``."""
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
    live = {name for name in reads if name in ("model", "data")}
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
    """Whether both are one function of a user's, defined again, as in a notebook."""
    return _origin(function) == _origin(other)


def _is_builtin(function: Function) -> bool:
    """Whether it is a metric of sweeprof's own; :func:`sweeprof.evaluation` wraps functions of the user's."""
    module, _ = _origin(function)
    return module.startswith("sweeprof.metrics.") and module != "sweeprof.metrics.evaluation"


def _origin(function: Function) -> tuple[str, str]:
    """Module and qualified name; a callable object may have neither."""
    return str(getattr(function, "__module__", "")), str(getattr(function, "__qualname__", id(function)))


def _parameters(name: str, function: Function) -> tuple[tuple[str, ...], tuple[str, ...]]:
    reads, options = [], []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise TypeError(f"metric {name!r} takes *{parameter.name}: name each thing it reads ({', '.join(SOURCES)})")
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise TypeError(
                f"metric {name!r} takes {parameter.name!r} by position: parameters are passed by their names"
            )
        if parameter.default is not parameter.empty:
            options.append(parameter.name)
        elif parameter.name in SOURCES or parameter.name in _readable(function):
            reads.append(parameter.name)
        else:
            raise TypeError(
                f"metric {name!r} reads {parameter.name!r}, which nothing provides. Known: {', '.join(SOURCES)}, "
                "and metrics such as compute_macs; an option needs a default"
            )
    return tuple(reads), tuple(options)


def _readable(function: Function) -> Mapping[str, Metric]:
    """The metrics declared so far; the built-in ones too, for a function that is not one of them."""
    if not _is_builtin(function):
        from sweeprof.metrics.select import builtin_metrics

        builtin_metrics()
    return _DECLARED
