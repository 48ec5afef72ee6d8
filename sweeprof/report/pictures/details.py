"""What the page shows of one combination: its pictures, its longest rows, and where its files are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from sweeprof.report.cells import MISSING, one_line, shortened
from sweeprof.report.pages import script_json
from sweeprof.report.pictures.combination import Observed, pictures
from sweeprof.report.pictures.interactive import interactive
from sweeprof.report.pictures.memory import place_text
from sweeprof.report.pictures.operators import is_on_device, own_seconds
from sweeprof.report.units import scaled
from sweeprof.results.allocations import LayerMemory
from sweeprof.results.measurement import Number
from sweeprof.results.operators import OperatorRow, Operators
from sweeprof.results.tensors import TensorRow

MOST_ROWS = 30
MOST_CHARACTERS = 1_200_000
"""Of all combinations together in one page."""
_TEXT_LIMIT = 56

_LAYER_MEMORY_NOTE = (
    "Most alive: of whatever, while the module or one within it ran. The others are what it allocated itself; "
    "at the peak they add up to the peak."
)

Cell = tuple[str, Number | None]
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
    """What ``templates/details.js`` reads: as many combinations as fit into :data:`MOST_CHARACTERS`, and the names of the rest.

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
    title: str, headers: Sequence[str], rows: Sequence[_Row], cells: Callable[[_Row], Sequence[Cell]], note: str = ""
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


def _operator(row: OperatorRow, whole: float, on_device: bool) -> Sequence[Cell]:
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


def _layer_memory(row: LayerMemory) -> Sequence[Cell]:
    figures = (row.peak_bytes, row.at_peak_bytes, row.allocated_bytes, row.kept_bytes)
    return (_text(place_text(row.path)), *map(_bytes, figures))


def _tensor(row: TensorRow) -> Sequence[Cell]:
    name = _text(" = ".join(row.names) or "(no name)")
    return (
        name,
        (row.kind, None),
        (_shapes((row.shape,)), None),
        _text(row.dtype),
        _text(row.device),
        _bytes(row.bytes),
    )


def _text(text: str) -> Cell:
    return shortened(one_line(text), _TEXT_LIMIT), None


def _shapes(shapes: Sequence[tuple[int, ...]]) -> str:
    """``8×16×5×5 16``; a number alone has no dimensions."""
    return " ".join("×".join(map(str, shape)) or "·" for shape in shapes)


def _seconds(value: float) -> Cell:
    return scaled(value, "s"), value


def _bytes(value: int | None) -> Cell:
    return (MISSING, None) if value is None else (scaled(value, "B"), value)
