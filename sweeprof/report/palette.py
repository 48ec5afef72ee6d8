"""Colours, dashes and markers: one colour per backend, one dash and one marker per model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#f0e442")
"""Okabe and Ito's colours that people with a colour vision deficiency tell apart (https://jfly.uni-koeln.de/color/);
their black is left out, as it vanishes on a dark page."""
OTHER_COLOUR = "#8a8a8a"

Dash = Literal["solid", "dash", "dot", "dashdot"]
Marker = Literal["circle", "square", "diamond", "triangle-up", "x", "cross"]
DASHES: tuple[Dash, ...] = ("solid", "dash", "dot", "dashdot")
MARKERS: tuple[Marker, ...] = ("circle", "square", "diamond", "triangle-up", "x", "cross")


def backend_colour(name: str, names: Sequence[str]) -> str:
    """The colour of one backend among ``names``, as ``#rrggbb``; grey for others."""
    return backend_colours(names).get(name, OTHER_COLOUR)


def backend_colours(names: Iterable[str]) -> dict[str, str]:
    """The colour of every name, grey where colours have run out."""
    places = enumerate(dict.fromkeys(names))
    return {name: PALETTE[place] if place < len(PALETTE) else OTHER_COLOUR for place, name in places}


def model_look(name: str, names: Sequence[str]) -> tuple[Dash, Marker]:
    """The dash and the marker of one model among ``names``; they begin again where they run out."""
    place = list(names).index(name)
    return DASHES[place % len(DASHES)], MARKERS[place % len(MARKERS)]
