"""Evaluation by a function of the user's: one main value, and others from the same call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from sweeprof.metrics.metric import Metric, metric_group, wrong_result
from sweeprof.results.measurement import Better, MetricInfo


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
    secondary: Sequence[str] | Mapping[str, MetricInfo] = (),
) -> tuple[Metric, ...]:
    """Metrics of what ``function(model, batches)`` returns: a number, or a mapping from names to numbers.

    Args:
        function: called once with the live model and the batches of ``split``.
        key: which entry of the mapping is the metric ``name``; a mapping of one entry needs none.
        secondary: further entries that are metrics of their own: names, which become ``quality/NAME`` with the same unit and
            direction, or a mapping from entries to what they are. Entries that are not named here are left out.
    """
    definition = (function.__doc__ or f"What {getattr(function, '__name__', 'the function')} returns").strip()
    main = MetricInfo(name, unit, better, definition.partition("\n")[0])
    if isinstance(secondary, Mapping):
        others = dict(secondary)
    else:
        others = {
            entry: MetricInfo(f"quality/{entry}", unit, better, f"{entry!r}, beside {name}.") for entry in secondary
        }

    @metric_group(main, *others.values())
    def evaluated(model: object, data: Data) -> Mapping[str, object]:
        returned = function(model, data.split(split))
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

    return evaluated
