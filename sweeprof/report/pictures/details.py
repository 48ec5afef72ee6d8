"""The details of one combination in the page: its pictures, its longest rows, and links to its files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from sweeprof.report.cells import MISSING, one_line, shortened
from sweeprof.report.figure import Picture
from sweeprof.report.pages import script_json
from sweeprof.report.pictures.interactive import interactive
from sweeprof.report.pictures.layers import macs_icicle, time_by_depth, time_icicle, timed_channels
from sweeprof.report.pictures.memory import memory_over_time, place_text
from sweeprof.report.pictures.operators import is_on_device, own_seconds, top_operators
from sweeprof.report.pictures.roofline import roofline
from sweeprof.report.units import scaled
from sweeprof.results.layers import LayerTable, Training
from sweeprof.results.measurement import Number
from sweeprof.results.memory import Allocations, LayerMemory, TensorRow
from sweeprof.results.operators import OperatorRow, Operators
from sweeprof.results.peaks import Peaks


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


def pictures(seen: Observed) -> list[Picture]:
    """Time by depth, icicles of time and MACs, roofline, memory over time, operators: those that can be drawn.

    There is none of what shapes alone tell where nothing was measured.
    """
    if not seen.is_detailed:
        return []
    found: list[Picture | None] = []
    if seen.layers is not None:
        channels = timed_channels(seen.layers)
        found += [time_by_depth(seen.layers, (channel,)) for channel in channels]
        found += [time_icicle(seen.layers, channels), macs_icicle(seen.layers)]
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

_LAYER_MEMORY_NOTE = (
    "Most alive: of whatever, while the module or one within it ran. The others are what it allocated itself; "
    "at the peak they add up to the peak."
)

DetailCell = tuple[str, Number | None]
"""What is read, and what it is sorted by: None for a text."""
_Row = TypeVar("_Row")

_FILES = {
    "trace.json.gz": "every operator on a time line; open it at https://ui.perfetto.dev, which reads it in the browser",
    "lines_time.txt": "time by source line",
    "lines_memory.txt": "memory by source line",
    "layers.html": "every layer, a table that sorts and folds",
    "layers.csv": "every layer, for a spreadsheet",
    "operators.csv": "every operator by module and shapes",
    "memory/timeline.csv": "every moment of the memory",
    "memory/layers.csv": "memory by layer",
    "memory/tensors.csv": "tensors alive after the last step",
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
        tables.append(_operators(seen.operators))
    if seen.allocations is not None:
        by_peak = sorted(seen.allocations.by_layer, key=lambda row: -row.peak_bytes)
        headers = "module most,alive,while,it,ran at,the,peak allocated kept".split()
        tables.append(_table("Memory by layer", headers, by_peak, _layer_memory, _LAYER_MEMORY_NOTE))
        headers = "tensor kind shape type device size".split()
        tables.append(_table("Live tensors after the last step", headers, seen.allocations.tensors, _tensor))
    known = list(_FILES)
    names = sorted(links, key=lambda name: known.index(name) if name in _FILES else len(known))
    files = [{"href": links[name], "name": name, "hint": _FILES.get(name, "")} for name in names]
    return {"figures": [interactive(picture) for picture in pictures(seen)], "tables": tables, "files": files}


def _table(
    title: str,
    headers: Sequence[str],
    rows: Sequence[_Row],
    cells: Callable[[_Row], Sequence[DetailCell]],
    note: str = "",
) -> dict[str, Any]:
    """``rows`` has a text or, for a number, a text and the number; ``note`` says what the columns mean."""
    shown = [[text if number is None else [text, number] for text, number in cells(row)] for row in rows[:MOST_ROWS]]
    more = len(rows) - len(shown)
    left_out = f"The first {len(shown)} of {len(rows)} rows; the others are in the file." if more else ""
    columns = [name.replace(",", " ") for name in headers]
    return {"title": title, "columns": columns, "rows": shown, "note": " ".join(filter(None, (note, left_out)))}


def _operators(operators: Operators) -> dict[str, Any]:
    on_device = is_on_device(operators)
    whole = sum(own_seconds(row, on_device) for row in operators.rows)
    rows = sorted(operators.rows, key=lambda row: -own_seconds(row, on_device))
    headers = "module operator phase calls self,time share total,time FLOPs allocated input,shapes".split()
    if on_device:
        headers = [*headers[:4], "accelerator", *headers[4:]]
    return _table("Operators", headers, rows, lambda row: _operator(row, whole, on_device))


def _operator(row: OperatorRow, whole: float, on_device: bool) -> Sequence[DetailCell]:
    share = own_seconds(row, on_device) / whole if whole else 0.0
    return (
        _text(place_text(row.path)),
        _text(row.operator),
        (row.phase, None),
        (f"{row.calls:,.4g}", row.calls),
        *([(MISSING, None) if row.device_self_s is None else _seconds(row.device_self_s)] if on_device else []),
        _seconds(row.self_s),
        (f"{share:.1%}", share),
        _seconds(row.total_s),
        (MISSING, None) if row.flops is None else (scaled(row.flops, "FLOP"), row.flops),
        _bytes(row.allocated_bytes),
        _text(_shapes(row.input_shapes)),
    )


def _layer_memory(row: LayerMemory) -> Sequence[DetailCell]:
    figures = (row.peak_bytes, row.at_peak_bytes, row.allocated_bytes, row.kept_bytes)
    return (_text(place_text(row.path)), *map(_bytes, figures))


def _tensor(row: TensorRow) -> Sequence[DetailCell]:
    name = _text(" = ".join(row.names) or "(no name)")
    return (
        name,
        (row.kind, None),
        (_shapes((row.shape,)), None),
        _text(row.dtype),
        _text(row.device),
        _bytes(row.bytes),
    )


def _text(text: str) -> DetailCell:
    return shortened(one_line(text), _TEXT_LIMIT), None


def _shapes(shapes: Sequence[tuple[int, ...]]) -> str:
    """``8×16×5×5 16``; a number alone has no dimensions."""
    return " ".join("×".join(map(str, shape)) or "·" for shape in shapes)


def _seconds(value: float) -> DetailCell:
    return scaled(value, "s"), value


def _bytes(value: int | None) -> DetailCell:
    return (MISSING, None) if value is None else (scaled(value, "B"), value)
