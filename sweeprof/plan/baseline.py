"""The baseline of a config, and the problems of ``compare.*``, before anything is measured."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sweeprof.config.schema import KEYS
from sweeprof.config.validation import baseline_problems
from sweeprof.errors import Problem, UserError, choice_problem
from sweeprof.plan.plan import Combination, OtherSweep
from sweeprof.report.selection import conditions, metric_names
from sweeprof.results.measurement import MetricInfo
from sweeprof.results.record import Json

KEY = "compare.baseline"
DEFAULT_BASELINE = {
    "backend": "torch",
    "backend.precision": "fp32",
    "backend.precision_method": "convert",
    "backend.channels_last": False,
}
"""The plainest value of each axis."""
FindSweep = Callable[[str, str], Path]
"""Returns the folder or the ``comparison.json`` of another sweep, by its reference and the name of this sweep.

Raises a :class:`UserError` if there is none that can be read.
"""
_ID = re.compile(r"c[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class Named:
    """A baseline that was named by a text."""

    axes: Json | None
    """All axes of one of the sweep's own combinations; None for another sweep."""
    against: OtherSweep | None
    """None for one of the sweep's own combinations."""


def named_baseline(text: str, combinations: Sequence[Combination], find_sweep: FindSweep, name: str) -> Named:
    """The combination, or the other sweep, that ``compare.baseline=text`` means.

    Raises:
        UserError: it means neither.
    """
    if _ID.fullmatch(text):
        found = next((c for c in combinations if c.id == text), None)
        if found is None:
            raise UserError(
                [choice_problem(KEY, text, "id of a combination of this sweep", [c.id for c in combinations])]
            )
        return Named(dict(found.axes), None)
    return Named(None, OtherSweep(text, str(find_sweep(text, name))))


@dataclass(frozen=True, slots=True)
class Chosen:
    """The baseline that ``compare.baseline`` chose."""

    axes: Json
    against: OtherSweep | None = None
    problems: Sequence[Problem] = ()


def chosen_baseline(
    given: object,
    default: Json,
    combinations: Sequence[Combination],
    axes: Mapping[str, list[object]],
    find_sweep: FindSweep,
    name: str,
) -> Chosen:
    """The baseline that a config gives, as axis values or as a text; beside another sweep the sweep keeps its default one."""
    if not isinstance(given, str):
        problems = list(baseline_problems(given, axes))
        return Chosen(given if isinstance(given, dict) and not problems else {}, None, problems)
    try:
        named = named_baseline(given, combinations, find_sweep, name)
    except UserError as error:
        return Chosen({}, None, error.problems)
    return Chosen(named.axes or default, named.against)


def compare_problems(compare: Json, metrics: Sequence[MetricInfo], axes: Sequence[str]) -> Iterator[Problem]:
    """Return the problems of ``thresholds``, ``pareto`` and ``constraints``, given what the sweep measures.

    A sweep that measures no metric of the default front has no front, and that is not a problem.

    :mod:`sweeprof.config.validation` reports values that are not even a mapping or a list.
    """
    names = metric_names(metrics)
    thresholds, front, constraints = (compare.get(key) or () for key in ("thresholds", "pareto", "constraints"))
    for name in thresholds if isinstance(thresholds, Mapping) else ():
        if name not in names:
            yield choice_problem("compare.thresholds", name, "metric of this sweep", names)
    if isinstance(front, list) and front != KEYS["compare.pareto"].default:
        yield from _front_problems(front, metrics, names)
    for constraint in constraints if isinstance(constraints, list) else ():
        try:
            parts = conditions([str(constraint)], [*names, *axes])
        except ValueError as error:
            yield Problem("compare.constraints", constraint, f"{error}.")
            continue
        for part in parts:
            if part.expression.names <= names.keys() and part.is_number:
                message = f"has '{part.expression.text}', which is not a condition: compare it with a value."
                yield Problem("compare.constraints", constraint, message)


def _front_problems(front: Sequence[str], metrics: Sequence[MetricInfo], names: Mapping[str, str]) -> Iterator[Problem]:
    infos = {info.name: info for info in metrics}
    for name in front:
        if name not in names:
            yield choice_problem("compare.pareto", name, "metric of this sweep", names)
        elif infos[names[name]].better is None:
            yield Problem("compare.pareto", name, "has no better direction, so it cannot be on a front.")
    if len(front) == 1:
        yield Problem("compare.pareto", front, "is one metric; a Pareto front needs at least two.")
