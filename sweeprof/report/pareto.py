"""The points that no other point beats: a pure function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

Direction = Literal["lower", "higher"]


def pareto_front(
    points: Sequence[tuple[float, float]], better: tuple[Direction, Direction] = ("lower", "higher")
) -> list[int]:
    """Indices of the points that no other is at least as good as in both directions and better in one, from best first.

    Points that are equal do not beat each other: all or none of them are on the front.
    """
    signs = [1.0 if direction == "lower" else -1.0 for direction in better]
    costs = [(x * signs[0], y * signs[1]) for x, y in points]
    front: list[int] = []
    # By rising first cost every point has its only possible dominators before it: those of lower second cost.
    for index in sorted(range(len(costs)), key=costs.__getitem__):
        if not front or costs[index][1] < costs[front[-1]][1] or costs[index] == costs[front[-1]]:
            front.append(index)
    return front


def dominant(points: Sequence[Sequence[float]], better: Sequence[Direction]) -> list[int]:
    """Indices of the points of any number of directions that no other dominates, in their order.

    One dominates another by being at least as good in every direction and better in one.
    """
    signs = np.array([1.0 if direction == "lower" else -1.0 for direction in better])
    costs = np.array([tuple(point) for point in points], dtype=float).reshape(len(points), len(signs)) * signs
    return [i for i, cost in enumerate(costs) if not ((costs <= cost).all(axis=1) & (costs < cost).any(axis=1)).any()]
