"""The details of one combination in the page: its pictures, its longest rows, and links to its files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sweeprof.report.display import MEMORY_NOTE, memory_table, operators_table, tensors_table
from sweeprof.report.figure import Figure
from sweeprof.report.pages import script_json
from sweeprof.report.pictures.layers import (
    columns,
    icicle,
    is_on_device,
    macs_icicle,
    memory_over_time,
    own_seconds,
    time_by_depth,
    time_icicle,
    timed_channels,
    top_operators,
)
from sweeprof.report.pictures.roofline import roofline
from sweeprof.report.view import ViewCell, ViewTable
from sweeprof.results.environment import Peaks
from sweeprof.results.layers import LayerTable, Training
from sweeprof.results.measurement import Number
from sweeprof.results.memory import Allocations
from sweeprof.results.operators import Operators
from sweeprof.text import one_line, shortened


@dataclass(frozen=True, slots=True)
class Observed:
    """Results of the passes; None where a pass was not run or failed."""

    layers: LayerTable | None = None
    """With times where they were measured."""
    operators: Operators | None = None
    allocations: Allocations | None = None
    peaks: Peaks | None = None
    training: Training | None = None
    files: tuple[str, ...] = ()
    """Names of the files that the passes left."""

    @property
    def is_detailed(self) -> bool:
        """True if there is more than shapes provide."""
        return bool(self.files or self.operators or self.allocations or (self.layers and timed_channels(self.layers)))

    @property
    def estimate_bytes(self) -> int | None:
        """The peak of live tensors as the analysis has it, of the mode in which the allocations were seen."""
        is_training = self.allocations is not None and self.allocations.mode == "training"
        counted = self.training if is_training else self.layers
        return None if counted is None or counted.liveness is None else counted.liveness.peak_bytes


def pictures(seen: Observed) -> list[Figure]:
    """Time by depth, icicles of time and MACs, roofline, memory over time, operators: those that can be drawn.

    If nothing was measured, pictures that shapes alone would give are omitted.
    """
    if not seen.is_detailed:
        return []
    found: list[Figure | None] = []
    if seen.layers is not None:
        channels = timed_channels(seen.layers)
        depths = [time_by_depth(seen.layers, (channel,)) for channel in channels]
        found += [columns(picture) for picture in depths if picture is not None]
        for nested in (time_icicle(seen.layers, channels), macs_icicle(seen.layers)):
            found.append(None if nested is None else icicle(nested))
        if seen.peaks is not None:
            found.append(roofline(seen.layers, seen.peaks))
    if seen.allocations is not None:
        found.append(memory_over_time(seen.allocations, seen.estimate_bytes))
    if seen.operators is not None:
        found.append(top_operators(seen.operators))
    return [picture for picture in found if picture is not None]


MOST_ROWS = 30
MOST_CHARACTERS = 1_200_000
"""Of all combinations together in one page."""
_TEXT_LIMIT = 56

_FILES = {
    "trace.json.gz": "every operator on a time line; open it at https://ui.perfetto.dev",
    "lines_time.txt": "time by source line",
    "lines_memory.txt": "memory by source line",
    "layers.html": "every layer, as a page with a sortable table",
    "layers.csv": "every layer, for a spreadsheet",
    "operators.csv": "every operator by module and shapes",
    "memory/timeline.csv": "allocated memory over time",
    "memory/layers.csv": "memory by layer",
    "memory/tensors.csv": "live tensors after the last step",
}


def details(observed: Mapping[str, Observed], links: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    """Return the data that ``templates/details.js`` reads: combinations up to :data:`MOST_CHARACTERS`, and the names of the rest.

    Args:
        observed: what was seen, by what the reader is to choose a combination by.
        links: address of each file relative to the page, by the same and by the name of the file.
    """
    found: list[dict[str, Any]] = []
    left_out: list[str] = []
    room = MOST_CHARACTERS
    for label, seen in observed.items():
        if not seen.is_detailed:
            continue
        one = {"label": one_line(label), **_of(seen, links.get(label, {}))}
        room -= len(script_json(one))
        if room >= 0 or not found:
            found.append(one)
        else:
            left_out.append(one["label"])
    return {"combinations": found, "left_out": left_out}


def _of(seen: Observed, links: Mapping[str, str]) -> dict[str, Any]:
    tables = []
    if seen.operators is not None:
        on_device = is_on_device(seen.operators)
        rows = sorted(seen.operators.rows, key=lambda row: -own_seconds(row, on_device))
        tables.append(_table("Operators", operators_table(rows, sum(own_seconds(row, on_device) for row in rows))))
    if seen.allocations is not None:
        by_peak = sorted(seen.allocations.by_layer, key=lambda row: -row.peak_bytes)
        tables.append(_table("Memory by layer", memory_table(by_peak), MEMORY_NOTE))
        tables.append(_table("Live tensors after the last step", tensors_table(seen.allocations.tensors)))
    known = list(_FILES)
    names = sorted(links, key=lambda name: known.index(name) if name in _FILES else len(known))
    files = [{"href": links[name], "name": name, "hint": _FILES.get(name, "")} for name in names]
    return {"figures": pictures(seen), "tables": tables, "files": files}


def _table(title: str, shown: ViewTable, note: str = "") -> dict[str, Any]:
    """Return a table as the page reads it: a cell is a text, or for a number a list of its text and the number."""
    rows = [[_cell(cell) for cell in row.cells] for row in shown.rows[:MOST_ROWS]]
    left_out = (
        f"The first {len(rows)} of {len(shown.rows)} rows; the file has all." if len(shown.rows) > MOST_ROWS else ""
    )
    columns = [heading.title for heading in shown.headings]
    return {"title": title, "columns": columns, "rows": rows, "note": " ".join(filter(None, (note, left_out)))}


def _cell(cell: ViewCell) -> str | list[Number | str]:
    return shortened(one_line(cell.text), _TEXT_LIMIT) if cell.value is None else [cell.text, cell.value]
