"""Evaluation by a function of the user's: one main value, and others from the same call."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, cast

from sweeprof.metrics.metric import Metric, metric_group, wrong_result
from sweeprof.results.measurement import Better, MetricInfo
from sweeprof.text import listed


class Data(Protocol):
    """The data of a profiler, or the dataset of a sweep."""

    def split(self, name: str) -> object:
        """Return the batches, or the samples, of a split."""


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
    """Metrics of what ``function(model, batches)`` returns: a number, or a mapping from names to numbers.

    Args:
        function: called once with the live model and the batches of ``split``. Its further parameters are options of the metrics,
            such as ``threshold`` in ``profiler.compute("quality/eval", threshold=0.9)``; each needs a default.
        key: which entry of the mapping is the metric ``name``; a mapping of one entry needs none.
        secondary: further entries that are metrics of their own: names, which become ``quality/NAME`` with the same unit and
            direction, or a mapping from entries to what they are. Entries that are not named here are left out.

    Raises:
        TypeError: a further parameter of the function has no default, or is called ``model`` or ``data``.
    """
    read = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in ("model", "data")]
    parameters = [*read, *_options_of(function)]
    definition = (function.__doc__ or f"What {getattr(function, '__name__', 'the function')} returns").strip()
    main = MetricInfo(name, unit, better, definition.partition("\n")[0])
    if isinstance(secondary, Mapping):
        others = dict(secondary)
    else:
        others = {
            entry: MetricInfo(f"quality/{entry}", unit, better, f"{entry!r}, beside {name}.")
            for entry in listed(secondary)
        }

    def evaluated(model: object, data: object, **options: object) -> Mapping[str, object]:
        returned = function(model, cast("Data", data).split(split), **options)
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

    evaluated.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # its options, by name
    return metric_group(main, *others.values())(evaluated)


def _options_of(function: Callable[..., object]) -> list[inspect.Parameter]:
    """Return the parameters of an evaluation function after the model and the batches."""
    try:
        _, _, *further = inspect.signature(function).parameters.values()
    except ValueError:  # a function of C that tells no signature, or one with ``*args`` in place of the first two
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
