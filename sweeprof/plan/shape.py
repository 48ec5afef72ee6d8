"""The shape of a sweep: the points that its files and its command line define, and the rules that exclude points.

axes × tied axes × variants of every grid ──▶ points ──exclude──▶ + include

Pure: data in, data out.
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
    typed: tuple[Point, ...] = ()
    """Points that the command line includes: what it gives the axes does not choose from them."""

    @property
    def tied_keys(self) -> list[str]:
        """The axes of all entries of ``zip``."""
        return [*itertools.chain(*self.tied)]

    @property
    def size(self) -> int:
        """Number of points of the product."""
        size = math.prod(map(len, self.axes.values()))
        for entry in self.tied:
            size *= len(next(iter(entry.values())))
        return size

    def values(self) -> Axes:
        """Values per axis, in the order in which they are named."""
        found: Axes = {key: list(values) for key, values in self.axes.items()}
        for entry in self.tied:
            for key, values in entry.items():
                if values:  # none are left where the command line gives others
                    found.setdefault(key, []).extend(values)
        for point in (*self.include, *self.typed):
            for key, value in point.items():
                found.setdefault(key, []).append(value)
        return {key: distinct(values) for key, values in found.items()}

    def product(self) -> Iterator[Point]:
        """The points of the axes and the tied axes, the last varying fastest."""
        factors = [[{key: value} for value in values] for key, values in self.axes.items()]
        for entry in self.tied:
            rows = zip(*entry.values(), strict=True)
            factors.append([dict(zip(entry, row, strict=True)) for row in rows])
        for parts in itertools.product(*factors):
            point: Point = {}
            for part in parts:
                point.update(part)
            yield point

    def narrowed_size(self, given: Mapping[str, Sequence[object]]) -> tuple[int, str]:
        """Return the number of points of :meth:`narrowed` and its factors by axis, without expanding them."""
        grid = self._with_chosen(given)
        factors = {key: len(values) for key, values in grid.axes.items()}
        for entry in grid.tied:
            factors["+".join(entry)] = len(next(iter(entry.values())))
        included = 0
        for point in self._chosen_points(given):
            included += math.prod(len(values) for key, values in given.items() if key not in point)
        text = " × ".join(f"{count:,} {name}" for name, count in factors.items() if count != 1) or "1"
        if included:
            text += f" + {included:,} of include"
        return math.prod(factors.values()) + included, text

    def narrowed(self, given: Mapping[str, Sequence[object]]) -> Grid:
        """The grid with what the command line says: values of an axis are replaced, tied and included ones chosen from.

        An included point is there once for every combination of the values that are given for other axes than its own.
        """
        include: list[Point] = []
        for point in self._chosen_points(given):
            others = {key: values for key, values in given.items() if key not in point}
            rows = itertools.product(*others.values())
            include += [point | dict(zip(others, row, strict=True)) for row in rows]
        return replace(self._with_chosen(given), include=tuple(include), typed=())

    def _chosen_points(self, given: Mapping[str, Sequence[object]]) -> list[Point]:
        """The included points of files that have given values, and those of the command line."""
        return [*(point for point in self.include if _agrees(point, given)), *self.typed]

    def _with_chosen(self, given: Mapping[str, Sequence[object]]) -> Grid:
        """The grid with the given values of its axes, and the rows of tied axes that have given values."""
        tied = []
        for entry in self.tied:
            rows = zip(*entry.values(), strict=True)
            kept = [row for row in rows if _agrees(dict(zip(entry, row, strict=True)), given)]
            tied.append({key: [row[place] for row in kept] for place, key in enumerate(entry)})
        untied = {key: list(values) for key, values in given.items() if key not in self.tied_keys}
        return replace(self, axes={**self.axes, **untied}, tied=tuple(tied))


@dataclass(frozen=True, slots=True)
class SweepShape:
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

    def tied_values(self, key: str) -> list[object]:
        """Return the values that tied rows and included points have for a key; none if it is not tied in every grid."""
        if not all(key in grid.tied_keys for grid in self.grids):
            return []
        return distinct(itertools.chain.from_iterable(grid.values()[key] for grid in self.grids))

    def variant_keys(self) -> set[str]:
        """The config keys that variants set."""
        found: set[str] = set()
        for names in self.variants.values():
            found.update(*names.values())
        return found

    def settings(self, point: Point) -> Point:
        """The config keys that ``point`` sets, with what its variants stand for; its own value for a key takes precedence."""
        found: Point = {}
        for key, value in point.items():
            if key in self.variants:
                of_variant = self.variants[key][str(value)]
                found.update({name: setting for name, setting in of_variant.items() if name not in point})
            else:
                found[key] = value
        return found

    def narrowed(self, given: Mapping[str, Sequence[object]]) -> SweepShape:
        """Return the shape, narrowed by the command line."""
        return replace(self, grids=tuple(grid.narrowed(given) for grid in self.grids))


def _agrees(point: Point, given: Mapping[str, Sequence[object]]) -> bool:
    """True if a point has one of the values that are given for each of its axes."""
    return all(key not in given or is_among(value, given[key]) for key, value in point.items())


def distinct(values: Iterable[T]) -> list[T]:
    """The values without repeats, in their order."""
    found: dict[Hashable, T] = {}
    for value in values:
        found.setdefault(frozen(value), value)
    return list(found.values())


# ----------------------------------------------------------------------------------------------------------------------
# The shape that a config describes


def read_shape(
    config: Mapping[str, object], expand: Expand, typed: Collection[str] = ()
) -> tuple[SweepShape, list[Problem]]:
    """Return the shape that a config describes, without invalid parts, and the problems; ``typed``: keys of the command line."""
    reader = _Reader(expand)
    variants = reader.variants(config.get("variants") or {})
    whole = reader.grid(config, "", "include" in typed)
    named: Axes = {axis: list(names) for axis, names in variants.items() if axis not in whole.tied_keys}
    whole = replace(whole, axes={**named, **whole.axes})
    grids = []
    for i, part in enumerate(reader.listed("grids", config.get("grids"))):
        if not isinstance(part, Mapping):
            reader.report(f"grids[{i}]", part, f"is not a mapping of {', '.join(GRID_KEYS)}.")
            grids.append(whole)
            continue
        for key in part:
            if key not in GRID_KEYS:
                reader.problems.append(choice_problem(f"grids[{i}]", key, "key of a grid", GRID_KEYS))
        own = reader.grid(part, f"grids[{i}].", "grids" in typed)
        # The keys beside `grids` apply to each of them, unless it has an axis of that name.
        grids.append(
            Grid(
                {**{key: values for key, values in whole.axes.items() if key not in own.tied_keys}, **own.axes},
                (*(entry for entry in whole.tied if entry.keys().isdisjoint(own.axes)), *own.tied),
                (*whole.include, *own.include),
                (*whole.exclude, *own.exclude),
                (*whole.typed, *own.typed),
            )
        )
    shape = SweepShape(tuple(grids) or (whole,), variants)
    problems = [*reader.problems, *_conflicts(shape)]
    for axis, values in shape.values().items():
        if axis in variants:
            unknown = [value for value in values if value not in variants[axis]]
            problems += [choice_problem(axis, value, f"name in variants.{axis}", variants[axis]) for value in unknown]
    return shape, problems


class _Reader:
    """Reads the parts of a shape, and collects what is wrong with them."""

    def __init__(self, expand: Expand) -> None:
        self.problems: list[Problem] = []
        self._expand = expand

    def report(self, key: str, value: object, message: str) -> None:
        self.problems.append(Problem(key, value, message))

    def listed(self, key: str, given: object) -> list[object]:
        if not given or isinstance(given, list):
            return given or []  # type: ignore[return-value]
        self.report(key, given, "is not a list.")
        return []

    def grid(self, config: Mapping[str, object], where: str, is_typed: bool) -> Grid:
        axes = config.get("axes") or {}
        if not isinstance(axes, Mapping):
            self.report(f"{where}axes", axes, "is not {axis: [values]}.")
            axes = {}
        tied = []
        for i, entry in enumerate(self.listed("zip", config.get("zip"))):
            place = f"{where}zip[{i}]"
            if not isinstance(entry, Mapping) or not entry:
                self.report(place, entry, "is not {axis: [values]} of the axes to tie.")
                continue
            found = self._values(entry, place)
            if len(set(map(len, found.values()))) == 1:
                tied.append(found)
            else:
                counts = ", ".join(f"{key} has {len(values)}" for key, values in found.items())
                self.report(place, entry, f"ties axes with different numbers of values: {counts}.")
        include = []
        for i, point in enumerate(self.listed("include", config.get("include"))):
            if isinstance(point, Mapping) and point:
                include.append({str(key): value for key, value in point.items()})
            else:
                self.report(f"{where}include[{i}]", point, "is not {axis: value}.")
        rules = config.get("exclude") or []
        if not isinstance(rules, list):
            self.report(f"{where}exclude", rules, "is not a list of {axis: value or [values]} or conditions.")
            rules = []
        grid = Grid(self._values(axes, f"{where}axes"), tuple(tied), tuple(include), tuple(rules))
        return replace(grid, include=(), typed=grid.include) if is_typed else grid

    def _values(self, axes: Mapping[object, object], where: str) -> Axes:
        found: Axes = {}
        for key, given in axes.items():
            try:
                found[str(key)] = self._expand(str(key), given)
            except ValueError as error:
                found[str(key)] = []
                self.report(f"{where}.{key}", given, str(error))
            else:
                if not found[str(key)]:
                    self.report(f"{where}.{key}", given, "has no values.")
        return found

    def variants(self, given: object) -> dict[str, dict[str, Point]]:
        found: dict[str, dict[str, Point]] = {}
        if not isinstance(given, Mapping):
            self.report("variants", given, "is not {axis: {name: {key: value}}}.")
            return found
        for axis, names in given.items():
            if not isinstance(names, Mapping) or not names:
                self.report(f"variants.{axis}", names, "is not {name: {key: value}}.")
                continue
            found[str(axis)] = {}
            for name, settings in names.items():
                if isinstance(settings, Mapping):
                    found[str(axis)][str(name)] = dict(settings)
                else:
                    self.report(f"variants.{axis}.{name}", settings, "is not {key: value}.")
        return found


def _conflicts(shape: SweepShape) -> Iterator[Problem]:
    """Return the problems of keys that a point would get twice."""
    for grid in shape.grids:
        for key in dict.fromkeys(grid.tied_keys):
            if key in grid.axes or grid.tied_keys.count(key) > 1:
                yield Problem("zip", key, "is tied here and also an axis elsewhere; name it only once.")
    owners: dict[str, list[str]] = {key: ["an axis of its own"] for key in shape.values() if key not in shape.variants}
    for axis, names in shape.variants.items():
        for key in dict.fromkeys(itertools.chain(*names.values())):
            owners.setdefault(key, []).append(f"variants.{axis}")
    for key, who in owners.items():
        if len(who) > 1:
            yield Problem("variants", key, f"is set twice: {' and '.join(who)}.")


# ----------------------------------------------------------------------------------------------------------------------
# Rules that exclude points


@dataclass(frozen=True, slots=True)
class ExcludeRule:
    """One entry of ``exclude``: values of axes, or a condition."""

    text: str
    """The rule as text for the user."""
    names: frozenset[str]
    """The axes that it reads; it does not apply to a point that lacks one of them."""
    test: Mapping[str, object] | Expression

    def matches(self, point: Mapping[str, object]) -> bool:
        """True if ``point`` is excluded; raises ``ValueError`` if the condition cannot be evaluated."""
        if not all(name in point for name in self.names):
            return False
        if isinstance(self.test, Mapping):
            return all(is_among(point[key], _several(value)) for key, value in self.test.items())
        found = self.test.value(point)
        if not isinstance(found, bool):
            raise ValueError(f"is {found!r}, which is not a condition: compare it with a value")
        return found


def read_rules(
    entries: Sequence[object],
    axes: Mapping[str, Sequence[object]],
    others: Collection[str],
    narrowed: Collection[str],
) -> tuple[list[ExcludeRule], list[Problem]]:
    """Return the rules of ``exclude``, and their problems; a rule that cannot match anything is a mistake.

    Args:
        axes: values per axis.
        others: keys that are not axes and that a rule may read, such as those that variants set.
        narrowed: axes that may have lost, on the command line, the values that a sweep file excludes.
    """
    rules: list[ExcludeRule] = []
    problems: list[Problem] = []
    for entry in entries:
        if isinstance(entry, str):
            try:
                condition = parse(entry, {*axes, *others})
            except ValueError as error:
                problems.append(Problem("exclude", entry, f"{error}."))
            else:
                rules.append(ExcludeRule(entry, condition.names, condition))
        elif isinstance(entry, Mapping) and entry:
            found = list(_value_problems(entry, axes, others, narrowed))
            problems += found
            if not found:
                text = ", ".join(f"{key}={value}" for key, value in entry.items())
                rules.append(ExcludeRule(text, frozenset(map(str, entry)), entry))
        else:
            example = "'batch_size * model.torch.width > 4096'"
            message = f"is neither {{axis: value or [values]}} nor a condition such as {example}."
            problems.append(Problem("exclude", entry, message))
    return rules, problems


def _value_problems(
    entry: Mapping[str, object],
    axes: Mapping[str, Sequence[object]],
    others: Collection[str],
    narrowed: Collection[str],
) -> Iterator[Problem]:
    for key, value in entry.items():
        if key in others:
            continue
        if key not in axes:
            yield choice_problem("exclude", key, "axis of this sweep", axes)
            continue
        for one in _several(value):
            if is_among(one, axes[key]) or key in narrowed:
                continue
            known = [str(v) for v in axes[key]]
            if isinstance(one, str) and any(sign in one for sign in "<>=*"):
                hint = f"is not a value of that axis; write a condition as a string: '{key} {one}'."
                yield Problem(f"exclude {key}", one, hint, nearest(one, known))
            else:
                yield choice_problem(f"exclude {key}", one, "value of that axis", known)


def _several(value: object) -> Sequence[object]:
    return value if isinstance(value, list | tuple) else [value]
