"""What a metric is: a function whose parameters name what it reads.

    @metric(name="throughput/samples_per_s", unit="samples/s", better="higher")
    def throughput(timing: Rounds, batch_size: int) -> Estimate: ...

The parameters are resolved like fixtures: ``layers``, ``timing``, ``memory`` and ``quality`` are what the passes saw,
``baseline_quality`` is what the baseline's quality pass saw, ``batch_size`` comes from the config. A parameter with a default
is an option. A metric that cannot be computed returns :class:`Missing`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sweeprof.results.measurement import Better, MetricInfo, Number
from sweeprof.results.record import PassName, Warning

SOURCES: dict[str, PassName | None] = {
    "layers": "analysis",
    "timing": "timing",
    "memory": "memory",
    "quality": "quality",
    "baseline_quality": "quality",
    "batch_size": None,
}
"""What a parameter may be called, and the pass that provides it."""


@dataclass(frozen=True, slots=True)
class Missing:
    """There is no value, and why."""

    reason: str


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


Result = Number | Estimate | Missing


@dataclass(frozen=True, slots=True)
class Metric:
    """A registered metric function."""

    info: MetricInfo
    function: Callable[..., Result]
    reads: tuple[str, ...]
    """Parameters to resolve, all of them in :data:`SOURCES`."""
    options: tuple[str, ...]
    """Parameters with a default, which a metric set may set."""

    @property
    def passes(self) -> frozenset[PassName]:
        """The passes this metric needs."""
        return frozenset(p for name in self.reads if (p := SOURCES[name]) is not None)

    def __call__(self, values: Mapping[str, Any], **options: Any) -> Result:
        """The metric of ``values``, which holds everything in :attr:`reads`."""
        return self.function(**{name: values[name] for name in self.reads}, **options)


def metric(*, name: str, unit: str, better: Better) -> Callable[[Callable[..., Result]], Metric]:
    """Register a function as the metric ``name``; the first line of its docstring is its definition.

    Raises:
        TypeError: it takes ``*args``, ``**kwargs`` or a positional-only parameter, or a parameter without a default that is
            not in :data:`SOURCES`.
    """

    def register(function: Callable[..., Result]) -> Metric:
        reads, options = [], []
        for parameter in inspect.signature(function).parameters.values():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                raise TypeError(
                    f"metric {name!r} takes *{parameter.name}: name each thing it reads ({', '.join(SOURCES)})"
                )
            if parameter.kind is parameter.POSITIONAL_ONLY:
                raise TypeError(
                    f"metric {name!r} takes {parameter.name!r} by position: parameters are passed by their names"
                )
            if parameter.default is not parameter.empty:
                options.append(parameter.name)
            elif parameter.name in SOURCES:
                reads.append(parameter.name)
            else:
                raise TypeError(
                    f"metric {name!r} reads {parameter.name!r}, which nothing provides. Known: {', '.join(SOURCES)}; "
                    "an option needs a default"
                )
        definition = (inspect.getdoc(function) or "").partition("\n")[0]
        return Metric(MetricInfo(name, unit, better, definition), function, tuple(reads), tuple(options))

    return register
