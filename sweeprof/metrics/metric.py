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

import inspect
import itertools
import re
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any

from sweeprof.passes.registry import parameters
from sweeprof.results.measurement import Better, MetricInfo, Number
from sweeprof.results.record import Failure, PassName, Warning
from sweeprof.text import stored

FAMILIES = ("compute", "latency", "generation", "command", "memory", "quality", "compat")
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
    """The reason why a metric has no value."""

    reason: str
    failure: Failure | None = None
    """The error in the metric's function; None where nothing is wrong with it, as for a dataset without labels."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", stored(self.reason))


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value computed from samples, with its estimator, and its interval if there is one."""

    value: Number
    estimator: str
    interval: tuple[float, float] | None = None
    detail: Mapping[str, object] = field(default_factory=dict)
    rounds: tuple[float, ...] = ()
    warnings: tuple[Warning, ...] = ()
    round_numbers: tuple[int, ...] = ()
    paired: tuple[float, ...] = ()
    failure: Failure | None = None
    """As of :class:`~sweeprof.results.measurement.Measurement`."""
    unit: str | None = None
    """Base unit of this value, where it is not the metric's: ``tokens/s`` of a metric in ``units/s``."""
    better: Better = None
    """The direction of improvement, where the metric itself does not tell."""


Result = Number | Estimate | Missing
MetricFunction = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Metric:
    """A registered metric function."""

    info: MetricInfo
    function: MetricFunction
    reads: tuple[str, ...]
    """Parameters to resolve: each in :func:`known_parameters`, or another metric."""
    options: tuple[str, ...]
    """Parameters with a default, which a metric set may set."""
    part: str | None = None
    """Key of this metric in what the function returns, where it returns several."""
    once: bool = False
    """True if the value is measured in a single process, although the results that it reads are otherwise exact."""

    @property
    def passes(self) -> frozenset[PassName]:
        """The passes this metric needs, and those of the metrics it reads."""
        needed = set()
        for metric in self.readings(declared()):
            for name in metric.reads:
                if name in parameters():
                    provider, _ = parameters()[name]
                    needed.add(provider.name)
        return frozenset(needed)

    def readings(self, known: Mapping[str, Metric]) -> list[Metric]:
        """Return this metric and all that it reads, by their names as parameters; those may read each other."""
        found: list[Metric] = []
        queue = deque([self])
        while queue:
            metric = queue.popleft()
            if metric not in found:
                found.append(metric)
                queue.extend(known[name] for name in metric.reads if is_metric(name))
        return found

    @property
    def is_live(self) -> bool:
        """True if it reads the model or its data, and so is computed while they exist."""
        return any(is_object(name) for name in self.reads)

    def __call__(self, values: Mapping[str, object], **options: object) -> Any:
        """The metric of ``values``, which holds everything in :attr:`reads`."""
        return self.part_of(self.function(**{name: values[name] for name in self.reads}, **options))

    def part_of(self, result: object) -> Any:
        """This metric's share of what the function returned."""
        if self.part is None:
            return result
        if not isinstance(result, Mapping):
            return wrong_result(f"the function returned a {type(result).__name__}, not a mapping with {self.part!r}")
        return result.get(self.part, wrong_result(f"the function returned no {self.part!r}"))


@dataclass(frozen=True, slots=True)
class Selected:
    """A metric and the options that the metric set gives it."""

    metric: Metric
    options: dict[str, object] = field(default_factory=dict)

    @property
    def options_key(self) -> str:
        """The options as text, to be compared."""
        return repr(sorted(self.options.items()))


def wrong_result(reason: str) -> Missing:
    """Return the reason of a missing value whose function returned something of the wrong type or name."""
    return Missing(reason, Failure("", reason))


@cache
def builtin_metrics() -> dict[str, Metric]:
    """Return the metrics that sweeprof ships, by name."""
    metrics = {}
    for family in FAMILIES:
        for value in vars(import_module(f"sweeprof.metrics.{family}")).values():
            if isinstance(value, Metric):
                metrics[value.info.name] = value
    return metrics


_DECLARED: dict[str, Metric] = {}


def declared() -> Mapping[str, Metric]:
    """Every metric that can be read by another one, by its name as a parameter.

    Of one name it is the newest, but a built-in metric stays: who wants to replace it for its readers selects or registers another.
    """
    return _DECLARED


@cache  # of every metric that is known, for each profile
def parameter_name(name: str) -> str:
    """Return the name of a metric as a parameter: ``compute_macs`` for ``compute/macs``."""
    return re.sub(r"\W", "_", name)


def metric(*, name: str, unit: str, better: Better, once: bool = False) -> Callable[[Callable[..., Result]], Metric]:
    """Register a function as the metric ``name``; the first line of its docstring is its definition.

    Args:
        name: with slashes between its parts.
        unit: base unit of the values.
        better: the direction of improvement; None: neither.
        once: the value is measured in a single process, although the results that it reads are otherwise exact, such as
            ``quality.seconds``. It then has no verdict better or worse.

    Raises:
        TypeError: it takes ``*args``, ``**kwargs`` or a positional-only parameter, a parameter without a default that nothing
            provides, or the model or data together with results of passes.
        ValueError: as a parameter it would have the same name as another metric.
    """

    def register(function: Callable[..., Result]) -> Metric:
        definition = (inspect.getdoc(function) or "").partition("\n")[0]
        return _made(MetricInfo(name, unit, better, definition), function, None, once)

    return register


def metric_group(*infos: MetricInfo) -> Callable[[Callable[..., Mapping[str, object]]], tuple[Metric, ...]]:
    """Register a function that returns several metrics, as a mapping from their names; it is called once for all of them.

    Raises:
        TypeError, ValueError: as :func:`metric`.
    """

    def register(function: Callable[..., Mapping[str, object]]) -> tuple[Metric, ...]:
        return tuple(_made(info, function, info.name) for info in infos)

    return register


def _made(info: MetricInfo, function: MetricFunction, part: str | None, once: bool = False) -> Metric:
    """Return a metric, which other metrics can read from now on; raise as :func:`metric`."""
    reads, options = [], []
    if not _is_builtin(function):
        builtin_metrics()  # they can be read by all others
    readable = dict(_DECLARED)
    known = ", ".join(known_parameters())
    start = f"metric {info.name!r}"
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise TypeError(f"{start} takes *{parameter.name}: name each thing it reads ({known})")
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise TypeError(f"{start} takes {parameter.name!r} by position: parameters are passed by their names")
        if parameter.default is not parameter.empty:
            options.append(parameter.name)
        elif parameter.name in known_parameters() or parameter.name in readable:
            reads.append(parameter.name)
        else:
            raise TypeError(
                f"{start} reads {parameter.name!r}, which nothing provides. Known: {known}, "
                "and metrics such as compute_macs; an option needs a default"
            )
    live = sorted(filter(is_object, reads))
    others = ", ".join(itertools.filterfalse(is_object, reads))
    if live and others:
        raise TypeError(f"{start} reads {', '.join(live)}, which are not there when {others} can be read")
    made = Metric(info, function, tuple(reads), tuple(options), part, once)
    key = parameter_name(info.name)
    other = readable.get(key)
    # The same user function, defined again as in a notebook, replaces the metric.
    if other is not None and other.info.name != info.name and _origin(function) != _origin(other.function):
        raise ValueError(
            f"a metric cannot be called {info.name!r}: as a parameter both it and the metric {other.info.name!r} would be "
            f"{key}. Choose another name"
        )
    if other is None or _is_builtin(function) or not _is_builtin(other.function):
        _DECLARED[key] = made
    return made


def _is_builtin(function: MetricFunction) -> bool:
    """Return True if sweeprof ships the metric; :func:`sweeprof.evaluation` wraps functions of the user."""
    module, _ = _origin(function)
    return module.startswith("sweeprof.metrics.") and module != "sweeprof.metrics.evaluate"


def _origin(function: MetricFunction) -> tuple[str, str]:
    """Return module and qualified name; a callable object may have neither."""
    return str(getattr(function, "__module__", "")), str(getattr(function, "__qualname__", id(function)))
