"""Metrics that ask for the model or its data, computed while they are there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sweeprof.metrics.evaluate import checked
from sweeprof.metrics.metric import Missing
from sweeprof.metrics.select import Selected


@dataclass(frozen=True, slots=True)
class LiveFunction:
    """One function, and every selected metric that is made of what it returns."""

    selected: tuple[Selected, ...]

    def live_results(self, model: Any, data: Any) -> Mapping[str, Mapping[str, Any]]:
        """By metric name, its value or the reason why there is none."""
        first = self.selected[0]
        there = {"model": model, "data": data}
        try:
            returned = first.metric.function(**{name: there[name] for name in first.metric.reads}, **first.options)
        except Exception as error:  # a user's metric must not take the others with it
            returned = Missing(f"the metric raised {type(error).__name__}: {error}")
        return {s.metric.info.name: _result(s, returned) for s in self.selected}


def live_functions(selected: Sequence[Selected]) -> list[LiveFunction]:
    """The functions behind the selected metrics that ask for live objects, each once per set of options."""
    groups: dict[tuple[int, str], list[Selected]] = {}
    for one in selected:
        if one.metric.is_live:
            key = (id(one.metric.function), repr(sorted(one.options.items())))
            groups.setdefault(key, []).append(one)
    return [LiveFunction(tuple(group)) for group in groups.values()]


def _result(selected: Selected, returned: Any) -> dict[str, Any]:
    result = checked(returned if isinstance(returned, Missing) else selected.metric.part_of(returned))
    if isinstance(result, Missing):
        return {"reason": result.reason}
    return {"value": result.value, "estimator": result.estimator, "detail": result.detail}
