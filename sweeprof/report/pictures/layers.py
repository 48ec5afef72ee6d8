"""Pictures of a layer table: time by depth as stacked bars, and icicles of self time and of MACs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

from sweeprof.errors import Problem, UserError, choice_problem
from sweeprof.report.figure import BarDirection, Block, Blocks
from sweeprof.report.pictures.blocks import SMALLEST, Own, blocks, carried, legend
from sweeprof.report.png import drawn
from sweeprof.report.units import scaled
from sweeprof.results.layers import LayerRow, LayerTable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Channel = Literal["forward", "backward"]
CHANNELS: tuple[Channel, ...] = ("forward", "backward")
_DIRECTIONS: tuple[BarDirection, ...] = ("vertical", "horizontal")


def stacked(
    table: LayerTable,
    channels: Sequence[str] = ("forward",),
    direction: str = "vertical",
    path: Path | str | None = None,
    figsize: tuple[float, float] | None = None,
) -> tuple[Figure, Axes]:
    """Stacked bars of the time by depth, one column (``vertical``) or row (``horizontal``) per depth.

    Args:
        table: with times, e.g. of ``LayerTable.with_times``.
        channels: ``forward``, ``backward``, or both, which are summed.
        direction: of the bars.
        path: where to save the picture; its ending says in which format.
        figsize: width and height in inches; None for what the depths need.

    Raises:
        UserError: a channel or direction does not exist, or the table has no times of the channels.
    """
    problems = [choice_problem("channels", name, "channel", CHANNELS) for name in channels if name not in CHANNELS]
    if direction not in _DIRECTIONS:
        problems.append(choice_problem("direction", direction, "direction", _DIRECTIONS))
    chosen = cast("tuple[Channel, ...]", tuple(dict.fromkeys(channels)))
    picture = None if problems else time_by_depth(table, chosen, cast("BarDirection", direction))
    if not problems and picture is None:
        problems.append(Problem("channels", list(channels), "were not measured: no row of the table has such a time."))
    if picture is None:
        raise UserError(problems)
    figure, axes = drawn(picture, figsize)
    if path is not None:
        figure.savefig(path, bbox_inches="tight", pad_inches=0.15)
    return figure, axes


def time_by_depth(
    table: LayerTable, channels: Sequence[Channel] = ("forward",), direction: BarDirection = "vertical"
) -> Blocks | None:
    """The picture of :func:`stacked`, its axis in percent of the whole; None where nothing was timed."""
    own = _seconds(channels)
    whole = _whole(table, own)
    if not whole:
        return None
    found = carried(blocks(table, own, lambda seconds: scaled(seconds, "s")))
    noun = " and ".join(channels)
    return Blocks(
        key=f"stacked_{'_'.join(channels)}",
        title=f"Time by depth: {noun}, {scaled(whole, 's')} in all",
        axis=noun,
        blocks=tuple(found),
        direction=direction,
        legend=legend(table, found),
        caption=_caption(found, table, channels),
    )


def time_icicle(table: LayerTable, channels: Sequence[Channel] = ("forward",)) -> Blocks | None:
    """An icicle of self time; None where nothing was timed."""
    own = _seconds(channels)
    whole, noun = _whole(table, own), " and ".join(channels)
    if not whole:
        return None
    found = blocks(table, own, lambda seconds: scaled(seconds, "s"))
    title = f"Self time of the layers: {noun}, {scaled(whole, 's')} in all"
    names, caption = legend(table, found), _caption(found, table, channels)
    return Blocks("icicle_time", title, noun, tuple(found), "horizontal", names, True, caption)


def macs_icicle(table: LayerTable) -> Blocks | None:
    """An icicle of multiply-accumulates; None where there are none.

    Raises:
        ValueError: the table is inclusive, so that no row has its own.
    """
    if table.is_inclusive:
        raise ValueError("an icicle needs each row's own MACs: give it the table that is not inclusive")
    if table.uncounted is not None or not table.macs:
        return None
    found = blocks(table, _macs, lambda macs: scaled(macs, "MAC"))
    title = f"Multiply-accumulates of the layers: {scaled(table.macs, 'MAC')} in all"
    names, caption = legend(table, found), _caption(found, table, ())
    return Blocks("icicle_macs", title, "MACs", tuple(found), "horizontal", names, True, caption)


def timed_channels(table: LayerTable) -> tuple[Channel, ...]:
    """The channels of which the table has times."""
    return tuple(channel for channel in CHANNELS if _whole(table, _seconds((channel,))))


def _macs(row: LayerRow) -> float | None:
    return row.macs


def _seconds(channels: Sequence[Channel]) -> Own:
    """Return a function that gives a call's own time in all channels together, as far as it is known."""

    def own(row: LayerRow) -> float | None:
        known = [row.forward_self_s if channel == "forward" else row.backward_self_s for channel in channels]
        return sum(max(0.0, s) for s in known if s is not None) if any(s is not None for s in known) else None

    return own


def _whole(table: LayerTable, own: Own) -> float:
    return sum(own(row) or 0.0 for row in table.rows)


def _caption(found: Sequence[Block], table: LayerTable, channels: Sequence[Channel]) -> str:
    """Return the caption: details that the picture itself does not show."""
    parts = []
    if any(block.kind == "carried" for block in found):
        parts.append("A layer without layers within it is repeated, paler, down to the deepest.")
    if any(block.kind == "small" for block in found):
        parts.append(f"Layers of less than {SMALLEST:.1%} of the whole are drawn together.")
    rows = [row for row in table.rows if row.call >= 0 and row.forward_s is not None and row.backward_self_s is None]
    if rows and "backward" in channels:
        why = next((f": {row.time_reason}" for row in rows if row.time_reason), "")
        parts.append(f"{len(rows)} {'call has' if len(rows) == 1 else 'calls have'} no time of the backward{why}.")
    return " ".join(parts)
