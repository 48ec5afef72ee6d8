"""Evaluation by a function of the user's: one main value, and others from the same call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sweeprof.metrics.metric import Metric, metric_group, wrong_result
from sweeprof.results.measurement import Better, MetricInfo


def evaluation(
    function: Callable[..., Any],
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
    def evaluated(model: Any, data: Any) -> Mapping[str, Any]:
        returned = function(model, data.split(split))
        values = returned if isinstance(returned, Mapping) else {key or name: returned}
        chosen = {name: _main(values, key)}
        for entry, info in others.items():
            chosen[info.name] = values.get(entry, wrong_result(f"the function returned no {entry!r}"))
        return chosen

    return evaluated


def _main(values: Mapping[str, Any], key: str | None) -> Any:
    if not values:
        return wrong_result("the function returned an empty mapping")
    if key is None:
        if len(values) == 1:
            return next(iter(values.values()))
        return wrong_result(f"the function returned {', '.join(map(repr, values))}: say which one by `key=`")
    return values.get(key, wrong_result(f"the function returned no {key!r}"))
