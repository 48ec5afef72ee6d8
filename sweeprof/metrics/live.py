"""Metrics that ask for the model or its data, computed while they are there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sweeprof.metrics.evaluate import checked, raised
from sweeprof.metrics.metric import SOURCES, Metric, Missing, declared
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
            returned = raised(error)
        return {s.metric.info.name: _result(s, returned) for s in self.selected}


def live_functions(selected: Sequence[Selected], known: Mapping[str, Metric] | None = None) -> list[LiveFunction]:
    """The functions behind the selected metrics, and those they read, that ask for live objects: each once per set of options.

    Args:
        known: the metrics that others may read, by their names as parameters; None for all that are declared.
    """
    groups: dict[tuple[int, str], list[Selected]] = {}
    for one in _with_what_they_read(selected, declared() if known is None else known):
        if one.metric.is_live:
            key = (id(one.metric.function), repr(sorted(one.options.items())))
            groups.setdefault(key, []).append(one)
    return [LiveFunction(tuple(group)) for group in groups.values()]


def _with_what_they_read(selected: Sequence[Selected], known: Mapping[str, Metric]) -> list[Selected]:
    found = list(selected)
    for one in found:  # which grows on the way
        others = (known[name] for name in one.metric.reads if name not in SOURCES)
        found.extend(Selected(other) for other in others if all(other is not s.metric for s in found))
    return found


def _result(selected: Selected, returned: Any) -> dict[str, Any]:
    result = checked(returned if isinstance(returned, Missing) else selected.metric.part_of(returned))
    if isinstance(result, Missing):
        failure = {} if result.failure is None else {"failure": asdict(result.failure)}
        return {"reason": result.reason, **failure}
    return {"value": result.value, "estimator": result.estimator, "detail": result.detail}
