"""A plot as plain data, whatever draws it."""

from __future__ import annotations

from dataclasses import dataclass

from sweeprof.report.palette import Dash, Marker


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis of a plot."""

    title: str
    log: bool
    ticks: tuple[float, ...] = ()
    """Where to label it; empty leaves that to the drawing."""


@dataclass(frozen=True, slots=True)
class Series:
    """One line or cloud of a plot; all tuples are of one length."""

    name: str
    colour: str
    dash: Dash
    marker: Marker
    x: tuple[float, ...]
    y: tuple[float | None, ...]
    """None where a row is missing: the line has a gap there."""
    low: tuple[float | None, ...]
    """Lower end of the 95 % interval; None where there is none."""
    high: tuple[float | None, ...]
    labels: tuple[str, ...]
    """What pointing at a point shows."""
    lines: bool = True
    points: bool = True
    steps: bool = False
    """Whether the line keeps its height up to the next point, and then jumps."""


@dataclass(frozen=True, slots=True)
class Plot:
    """One picture."""

    key: str
    """Stable, fit for a file name, e.g. ``latency``."""
    title: str
    x: Axis
    y: Axis
    series: tuple[Series, ...]
