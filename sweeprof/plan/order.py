"""The order in which combinations are measured first: spread over the axes, so that the first results say something about each.

Values of an axis of numbers come from its ends to its middle; all values of other axes, such as models, come early.
Combinations that share a baseline are next to each other.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate


def pair_key(axes: Mapping[str, object], baseline: Mapping[str, object]) -> str:
    """Return the text that is equal for combinations that share a baseline."""
    return json.dumps({key: value for key, value in axes.items() if key not in baseline}, sort_keys=True, default=str)


def spread(points: Sequence[Mapping[str, object]], baseline: Mapping[str, object], seed: int) -> list[int]:
    """Return the positions of the points in the order in which they are measured first.

    Args:
        points: the axis values of each combination.
        baseline: the axis values that make a combination a baseline.
        seed: decides where the axes do not.
    """
    shuffler = random.Random(seed)
    axes = list(dict.fromkeys(axis for point in points for axis in point))
    places = {axis: _places([point.get(axis) for point in points], shuffler) for axis in axes}
    # If the baseline is one combination, it is that of all others.
    diagonal = [axis for axis in axes if axis not in baseline] or axes
    # The axis with most values is first: a step along it is then a step along all others.
    diagonal.sort(key=lambda axis: -len(set(places[axis])))

    def rank(position: int) -> tuple[int, ...]:
        level = sum(places[axis][position].level for axis in axes)
        steps = [places[axis][position] for axis in diagonal]
        first = steps[0].number if steps else 0
        return (level, *((step.number - first) % step.count for step in steps[1:]), first)

    order = list(range(len(points)))
    shuffler.shuffle(order)  # or a drift of the machine would always favour the same side of a comparison
    return sorted(order, key=rank)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a value is among the values of its axis."""

    number: int
    """From the ends to the middle, starting with 0."""
    level: int = 0
    """0 for an end, 1 for the middle between the ends, 2 for the middle of each half …; 0 for everything but numbers."""
    count: int = 1
    """How many values have this or a lower level."""


def _places(values: Sequence[object], shuffler: random.Random) -> list[_Place]:
    """Return the place of each value of one axis."""
    texts = list(map(repr, values))
    distinct = dict(zip(texts, values, strict=True))
    if all(type(value) in (int, float) for value in distinct.values()):
        ordered = sorted(distinct, key=lambda text: float(str(distinct[text])))
        levels = _levels(len(ordered))
    else:
        ordered = list(distinct)
        shuffler.shuffle(ordered)
        levels = dict.fromkeys(range(len(ordered)), 0)
    counts = list(accumulate(Counter(levels.values()).values()))  # levels ascend
    known = {
        ordered[index]: _Place(number, level, counts[level]) for number, (index, level) in enumerate(levels.items())
    }
    return [known[text] for text in texts]


def _levels(count: int) -> dict[int, int]:
    """Return the level of each of ``count`` positions, from the ends to the middle: each level halves what is between the last."""
    levels = dict.fromkeys((0, count - 1), 0)
    halves, level = [(0, count - 1)], 1
    while halves:
        divided = [(low, (low + high) // 2, high) for low, high in halves if high - low > 1]
        levels |= {middle: level for _, middle, _ in divided}
        halves = [half for low, middle, high in divided for half in ((low, middle), (middle, high))]
        level += 1
    return levels
