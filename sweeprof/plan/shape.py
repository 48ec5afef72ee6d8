"""The shape of a sweep: the points that its files and its command line define. Pure: data in, data out.

axes × tied axes × variants of every grid ──▶ points ──exclude──▶ + include
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from sweeprof.config.override_syntax import frozen, is_among
from sweeprof.errors import Problem, choice_problem, nearest
from sweeprof.plan.plan import Axes, Point
from sweeprof.results.constraints import Expression, parse

GRID_KEYS = ("axes", "zip", "include", "exclude")
"""The keys of one of several grids."""

T = TypeVar("T")
Expand = Callable[[str, object], list[object]]
"""Key and what is given for it, to its values: ``range(1,4)`` to 1, 2, 3. Raises ``ValueError``."""


@dataclass(frozen=True, slots=True)
class Grid:
    """One product of axes, with tied axes, and included and excluded points."""

    axes: Axes = field(default_factory=dict)
    tied: tuple[Axes, ...] = ()
    """Each an entry of ``zip``: axes with equally many values, taken together."""
    include: tuple[Point, ...] = ()
    exclude: tuple[object, ...] = ()

    @property
    def size(self) -> int:
        """Number of points of the product."""
        return math.prod([*map(len, self.axes.values()), *(len(next(iter(entry.values()))) for entry in self.tied)])

    def values(self) -> Axes:
        """Values per axis, in the order in which they are named."""
        found: Axes = {key: list(values) for key, values in self.axes.items()}
        named = [(key, value) for entry in self.tied for key, values in entry.items() for value in values]
        for key, value in [*named, *(item for point in self.include for item in point.items())]:
            found.setdefault(key, []).append(value)
        return {key: distinct(values) for key, values in found.items()}

    def product(self) -> Iterator[Point]:
        """The points of the axes and the tied axes, the last varying fastest."""
        rows = [
            [dict(zip(entry, row, strict=True)) for row in zip(*entry.values(), strict=True)] for entry in self.tied
        ]
        singles = [[{key: value} for value in values] for key, values in self.axes.items()]
        for parts in itertools.product(*singles, *rows):
            yield {key: value for part in parts for key, value in part.items()}

    def narrowed_size(self, given: Mapping[str, Sequence[object]]) -> tuple[int, str]:
        """Return the number of points of :meth:`narrowed` and its factors by axis, without expanding them."""
        counts = [len(next(iter(_chosen(entry, given).values()))) for entry in self.tied]
        names = ["+".join(entry) for entry in self.tied]
        axes = {**self.axes, **{key: v for key, v in given.items() if not any(key in entry for entry in self.tied)}}
        factors = {**{key: len(values) for key, values in axes.items()}, **dict(zip(names, counts, strict=True))}
        included = 0
        for point in self.include:
            if _agrees(point, given):
                included += math.prod(len(values) for key, values in given.items() if key not in point)
        text = " × ".join(f"{count:,} {name}" for name, count in factors.items() if count != 1) or "1"
        return math.prod(factors.values()) + included, text + (f" + {included:,} of include" if included else "")

    def narrowed(self, given: Mapping[str, Sequence[object]]) -> Grid:
        """The grid with what the command line says: values of an axis are replaced, tied and included ones chosen from."""
        tied = tuple(_chosen(entry, given) for entry in self.tied)
        untied = {key: list(values) for key, values in given.items() if not any(key in entry for entry in tied)}
        include = tuple(point for one in self.include for point in _completed(one, given))
        return replace(self, axes={**self.axes, **untied}, tied=tied, include=include)


@dataclass(frozen=True, slots=True)
class Shape:
    """The points that one sweep file, or none, defines."""

    grids: tuple[Grid, ...] = (Grid(),)
    variants: dict[str, dict[str, Point]] = field(default_factory=dict)
    """The keys that each value of a named axis sets."""

    @property
    def is_product(self) -> bool:
        """True if it is one product of config keys, so that a value for each of its axes is one of its points."""
        return len(self.grids) == 1 and not (self.variants or self.grids[0].tied or self.grids[0].include)

    def values(self) -> Axes:
        """Values per axis over all grids."""
        found: Axes = {}
        for grid in self.grids:
            for key, values in grid.values().items():
                found.setdefault(key, []).extend(values)
        return {key: distinct(values) for key, values in found.items()}

    def variant_keys(self) -> set[str]:
        """The config keys that variants set."""
        return {key for names in self.variants.values() for settings in names.values() for key in settings}

    def settings(self, point: Point) -> Point:
        """The config keys that ``point`` sets, with what its variants stand for."""
        if not self.variants:
            return point
        found: Point = {}
        for key, value in point.items():
            found.update(self.variants[key][str(value)] if key in self.variants else {key: value})
        return found

    def narrowed(self, given: Mapping[str, Sequence[object]]) -> Shape:
        """Return the shape, narrowed by the command line."""
        return replace(self, grids=tuple(grid.narrowed(given) for grid in self.grids))


def _chosen(entry: Mapping[str, Sequence[object]], given: Mapping[str, Sequence[object]]) -> Axes:
    """The rows of tied axes that have the values given for some of them."""
    rows = [row for row in zip(*entry.values(), strict=True) if _agrees(dict(zip(entry, row, strict=True)), given)]
    return {key: [row[place] for row in rows] for place, key in enumerate(entry)}


def _agrees(point: Point, given: Mapping[str, Sequence[object]]) -> bool:
    """True if a point has one of the values that are given for each of its axes."""
    return all(key not in given or is_among(value, given[key]) for key, value in point.items())


def _completed(point: Point, given: Mapping[str, Sequence[object]]) -> Iterator[Point]:
    """A point once for every combination of what is given beside it; never, where something else is given for its axes."""
    if _agrees(point, given):
        beside = {key: values for key, values in given.items() if key not in point}
        for values in itertools.product(*beside.values()):
            yield {**point, **dict(zip(beside, values, strict=True))}


def read_shape(config: Mapping[str, object], expand: Expand) -> tuple[Shape, list[Problem]]:
    """Return the shape that a config describes, without invalid parts, and the problems."""
    problems: list[Problem] = []
    variants = _read_variants(config.get("variants") or {}, problems)
    named: Axes = {axis: list(names) for axis, names in variants.items()}
    whole = _read_grid(config, "", expand, problems)
    tied = {key for entry in whole.tied for key in entry}
    whole = replace(whole, axes={**{key: n for key, n in named.items() if key not in tied}, **whole.axes})
    grids = [_read_part(part, f"grids[{i}]", expand, problems) for i, part in _listed(config, "grids", problems)]
    parts = tuple(_joined(whole, grid) for grid in grids) or (whole,)
    shape = Shape(parts, variants)
    problems += [*_conflicts(shape), *_unknown_variants(shape)]
    return shape, problems


def _joined(whole: Grid, part: Grid) -> Grid:
    """Return one of several grids, with the keys that apply to all of them."""
    own = {key for entry in part.tied for key in entry}
    axes = {key: values for key, values in whole.axes.items() if key not in own}
    return Grid(
        {**axes, **part.axes},
        (*(entry for entry in whole.tied if not set(entry) & set(part.axes)), *part.tied),
        (*whole.include, *part.include),
        (*whole.exclude, *part.exclude),
    )


def _listed(config: Mapping[str, object], key: str, problems: list[Problem]) -> list[tuple[int, object]]:
    found = config.get(key) or []
    if isinstance(found, list):
        return list(enumerate(found))
    problems.append(Problem(key, found, "is not a list."))
    return []


def _read_part(part: object, where: str, expand: Expand, problems: list[Problem]) -> Grid:
    if not isinstance(part, Mapping):
        problems.append(Problem(where, part, f"is not a mapping of {', '.join(GRID_KEYS)}."))
        return Grid()
    problems += [choice_problem(where, key, "key of a grid", GRID_KEYS) for key in part if key not in GRID_KEYS]
    return _read_grid(part, f"{where}.", expand, problems)


def _read_grid(config: Mapping[str, object], where: str, expand: Expand, problems: list[Problem]) -> Grid:
    axes = config.get("axes") or {}
    if not isinstance(axes, Mapping):
        problems.append(Problem(f"{where}axes", axes, "is not {axis: [values]}."))
        axes = {}
    tied = []
    for i, entry in _listed({"zip": config.get("zip")}, "zip", problems):
        found = _read_tied(entry, f"{where}zip[{i}]", expand, problems)
        tied += [found] if found else []
    include = []
    for i, point in _listed({"include": config.get("include")}, "include", problems):
        if not isinstance(point, Mapping) or not point:
            problems.append(Problem(f"{where}include[{i}]", point, "is not {axis: value}."))
            continue
        include.append({str(key): value for key, value in point.items()})
    rules = config.get("exclude") or []
    if not isinstance(rules, list):
        problems.append(Problem(f"{where}exclude", rules, "is not a list of {axis: value or [values]} or conditions."))
        rules = []
    values = {str(key): _expanded(f"{where}axes.{key}", str(key), v, expand, problems) for key, v in axes.items()}
    return Grid(values, tuple(tied), tuple(include), tuple(rules))


def _read_tied(entry: object, where: str, expand: Expand, problems: list[Problem]) -> Axes | None:
    if not isinstance(entry, Mapping) or not entry:
        problems.append(Problem(where, entry, "is not {axis: [values]} of the axes to tie."))
        return None
    found = {str(key): _expanded(f"{where}.{key}", str(key), v, expand, problems) for key, v in entry.items()}
    if len({len(values) for values in found.values()}) > 1:
        counts = ", ".join(f"{key} has {len(values)}" for key, values in found.items())
        problems.append(Problem(where, entry, f"ties axes with different numbers of values: {counts}."))
        return None
    return found


def _expanded(where: str, key: str, given: object, expand: Expand, problems: list[Problem]) -> list[object]:
    try:
        values = expand(key, given)
    except ValueError as error:
        problems.append(Problem(where, given, str(error)))
        return []
    if not values:
        problems.append(Problem(where, given, "has no values."))
    return values


def _read_variants(variants: object, problems: list[Problem]) -> dict[str, dict[str, Point]]:
    if not isinstance(variants, Mapping):
        problems.append(Problem("variants", variants, "is not {axis: {name: {key: value}}}."))
        return {}
    found: dict[str, dict[str, Point]] = {}
    for axis, names in variants.items():
        if not isinstance(names, Mapping) or not names:
            problems.append(Problem(f"variants.{axis}", names, "is not {name: {key: value}}."))
            continue
        wrong = [name for name, settings in names.items() if not isinstance(settings, Mapping)]
        problems += [Problem(f"variants.{axis}.{name}", names[name], "is not {key: value}.") for name in wrong]
        found[str(axis)] = {str(name): dict(names[name]) for name in names if name not in wrong}
    return found


def _conflicts(shape: Shape) -> Iterator[Problem]:
    """Return the problems of keys that a point would get twice."""
    for grid in shape.grids:
        tied = [key for entry in grid.tied for key in entry]
        for key in distinct(tied):
            if key in grid.axes or tied.count(key) > 1:
                yield Problem("zip", key, "is tied here and also an axis elsewhere; name it only once.")
    owners: dict[str, list[str]] = {key: ["an axis of its own"] for key in shape.values() if key not in shape.variants}
    for axis, names in shape.variants.items():
        for key in distinct([key for settings in names.values() for key in settings]):
            owners.setdefault(key, []).append(f"variants.{axis}")
    for key, who in owners.items():
        if len(who) > 1:
            yield Problem("variants", key, f"is set twice: {' and '.join(who)}.")


def _unknown_variants(shape: Shape) -> Iterator[Problem]:
    for axis, values in shape.values().items():
        if axis in shape.variants:
            names = shape.variants[axis]
            yield from (choice_problem(axis, v, f"name in variants.{axis}", names) for v in values if v not in names)


def distinct(values: Iterable[T]) -> list[T]:
    """The values without repeats, in their order."""
    found: dict[Hashable, T] = {}
    for value in values:
        found.setdefault(frozen(value), value)
    return list(found.values())


ALLOWED = "is neither {axis: value or [values]} nor a condition such as 'batch_size * model.torch.width > 4096'."


@dataclass(frozen=True, slots=True)
class Rule:
    """One entry of ``exclude``."""

    text: str
    """The rule as text for the user."""
    names: frozenset[str]
    """The axes that it reads; it does not apply to a point that lacks one of them."""
    values: Mapping[str, object] | None = None
    condition: Expression | None = None

    def matches(self, point: Mapping[str, object]) -> bool:
        """True if ``point`` is excluded; raises ``ValueError`` if the condition cannot be evaluated."""
        if not all(name in point for name in self.names):
            return False
        if self.values is not None:
            return all(is_among(point[key], _several(value)) for key, value in self.values.items())
        assert self.condition is not None
        found = self.condition.value(point)
        if not isinstance(found, bool):
            raise ValueError(f"is {found!r}, which is not a condition: compare it with a value")
        return found


def read_rules(
    entries: Sequence[object],
    axes: Mapping[str, Sequence[object]],
    others: Collection[str],
    narrowed: Collection[str],
    given: str = "exclude",
) -> tuple[list[Rule], list[Problem]]:
    """Return the rules of ``exclude``, and their problems; a rule that cannot match anything is a mistake.

    Args:
        axes: values per axis.
        others: keys that are not axes and that a rule may read, such as those that variants set.
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
    entry: Mapping[str, object],
    axes: Mapping[str, Sequence[object]],
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
            if is_among(one, axes[key]) or key in narrowed:
                continue
            known = [str(v) for v in axes[key]]
            if isinstance(one, str) and any(sign in one for sign in "<>=*"):
                hint = f"is not a value of that axis; write a condition as a string: '{key} {one}'."
                yield Problem(f"{given} {key}", one, hint, nearest(one, known))
            else:
                yield choice_problem(f"{given} {key}", one, "value of that axis", known)


def _several(value: object) -> list[object] | tuple[object, ...]:
    return value if isinstance(value, list | tuple) else [value]
