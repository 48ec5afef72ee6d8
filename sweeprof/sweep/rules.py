"""What is left out of a sweep: mappings of axes to values, and conditions over axes. Pure: data in, data out."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sweeprof.errors import Problem, choice_problem, nearest
from sweeprof.expression import Expression, parse

ALLOWED = "is neither {axis: value or [values]} nor a condition such as 'batch_size * model.torch.width > 4096'."


@dataclass(frozen=True, slots=True)
class Rule:
    """One entry of ``exclude``."""

    text: str
    """As it is told to the user."""
    names: frozenset[str]
    """The axes that it speaks of; it says nothing of a point that lacks one of them."""
    values: Mapping[str, Any] | None = None
    condition: Expression | None = None

    def matches(self, point: Mapping[str, Any]) -> bool:
        """Whether ``point`` is to be left out; raises ``ValueError`` where the condition has no answer."""
        if not all(name in point for name in self.names):
            return False
        if self.values is not None:
            return all(point[key] in _several(value) for key, value in self.values.items())
        assert self.condition is not None
        found = self.condition.value(point)
        if not isinstance(found, bool):
            raise ValueError(f"is {found!r}, which is no condition: compare it with something")
        return found


def read_rules(
    entries: Sequence[Any],
    axes: Mapping[str, list[Any]],
    others: Collection[str],
    narrowed: Collection[str],
    given: str = "exclude",
) -> tuple[list[Rule], list[Problem]]:
    """The rules of ``exclude``, and what is wrong with them; a rule that can match nothing is a mistake.

    Args:
        axes: values per axis.
        others: keys that are no axes and that a rule may speak of, as those that variants set.
        narrowed: axes that may have lost, on the command line, the values that a sweep file excludes.
        given: the config key where the entries stand.
    """
    rules: list[Rule] = []
    problems: list[Problem] = []
    for entry in entries:
        if isinstance(entry, str):
            try:
                condition = parse(entry, {*axes, *others})
            except ValueError as error:
                problems.append(Problem(given, entry, f"{error}."))
                continue
            rules.append(Rule(entry, condition.names, condition=condition))
        elif isinstance(entry, Mapping) and entry:
            found = list(_value_problems(entry, axes, others, narrowed, given))
            problems += found
            spelled = ", ".join(f"{key}={value}" for key, value in entry.items())
            rules += [] if found else [Rule(spelled, frozenset(map(str, entry)), values=entry)]
        else:
            problems.append(Problem(given, entry, ALLOWED))
    return rules, problems


def _value_problems(
    entry: Mapping[Any, Any],
    axes: Mapping[str, list[Any]],
    others: Collection[str],
    narrowed: Collection[str],
    given: str,
) -> Iterator[Problem]:
    for key, value in entry.items():
        if key in others:
            continue
        if key not in axes:
            yield choice_problem(given, key, "axis of this sweep", axes)
            continue
        for one in _several(value):
            if one in axes[key] or key in narrowed:
                continue
            known = [str(v) for v in axes[key]]
            if isinstance(one, str) and any(sign in one for sign in "<>=*"):
                hint = f"is no value of that axis; a condition is a text of its own: '{key} {one}'."
                yield Problem(f"{given} {key}", one, hint, nearest(one, known))
            else:
                yield choice_problem(f"{given} {key}", one, "value of that axis", known)


def _several(value: Any) -> list[Any] | tuple[Any, ...]:
    return value if isinstance(value, list | tuple) else [value]
