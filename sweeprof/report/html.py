"""A comparison as one self-contained HTML file, which asks nothing of the network."""

from __future__ import annotations

import base64
import gzip
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any

from sweeprof.report import layer_formats as layer_pages
from sweeprof.report.answer import answer, best_of_all
from sweeprof.report.display import MEMORY_NOTE, memory_table, operators_table, tensors_table
from sweeprof.report.explore import NO_SAMPLES, SampleLists, charts, embedded, page_data
from sweeprof.report.operators import time_column
from sweeprof.report.pictures import (
    Figure,
    icicle,
    macs_icicle,
    memory_over_time,
    roofline,
    time_icicle,
    timed_channels,
    top_operators,
)
from sweeprof.report.summary import (
    conditions,
    environment_items,
    failures,
    footnotes,
    headline,
    protocol_text,
    sections,
)
from sweeprof.report.table import whole_table
from sweeprof.report.view import ViewCell, ViewTable, compile_templates, render, script_json
from sweeprof.results.compared_rows import Comparison
from sweeprof.results.environment import Peaks
from sweeprof.results.layers import LayerTable, Training
from sweeprof.results.measurement import Number
from sweeprof.results.observations import Allocations, Operators
from sweeprof.text import one_line, shortened

_MOST_NAMED = 20
"""Combinations that failed for one reason that the header names."""
MOST_WRITTEN = 200
"""Combinations whose table the page shows without its scripts."""
MOST_FIGURES = 2000
"""Values of all metrics together up to which rows have their further figures and tracebacks."""
_NO_LAYERS: Mapping[str, LayerTable] = {}
_NO_DETAILS: Mapping[str, object] = {}


def html(
    comparison: Comparison,
    plotted: bool = True,
    layers: Mapping[str, LayerTable] = _NO_LAYERS,
    details: Mapping[str, object] = _NO_DETAILS,
    left_out: int = 0,
    samples: SampleLists = NO_SAMPLES,
    saved: Sequence[Comparison] = (),
) -> str:
    """The report: about 2 MB where anything is drawn, as it carries the library that draws.

    Args:
        comparison: what was measured.
        plotted: whether there are charts.
        layers: the layer table of every combination that has one, by what the reader is to choose it by.
        details: what :func:`sweeprof.report.html.details` gives.
        left_out: how many further combinations have their layers and details in files alone.
        samples: raw samples by combination id, see :func:`sweeprof.report.explore.thinned_samples`.
        saved: the same sweep compared with others, which the reader can choose as baselines.
    """
    is_detailed = bool(details.get("combinations"))
    count = len(comparison.rows)
    is_whole = count <= MOST_WRITTEN and count * len(comparison.metrics) <= MOST_FIGURES
    data = page_data(comparison, samples, is_whole, saved)
    shown = charts(data, comparison.pareto) if plotted else {"figures": {}}
    return render(
        "report.html.j2",
        comparison=comparison,
        created=_readable(comparison.created),
        answer=data["baselines"][0],
        headline=headline(comparison),
        protocol=protocol_text(comparison),
        sections=sections(comparison),
        conditions=conditions(comparison),
        best=answer(comparison).best,
        repeated=best_of_all(comparison),
        failures=failures(comparison),
        most_named=_MOST_NAMED,
        table=whole_table(comparison) if 0 < count <= MOST_WRITTEN else None,
        footnotes=footnotes(comparison),
        environment=environment_items(comparison),
        charts=shown,
        plotly=_plotly() if shown["figures"] or is_detailed else "",
        layers=script_json(layer_pages.embedded(layers)) if layers else "",
        left_out=left_out,
        data=script_json(embedded(data)),
        details=script_json(details) if is_detailed else "",
    )


def _readable(created: str) -> str:
    """``2026-11-21 00:30 UTC``; text that is no date is shown as it is."""
    try:
        moment = datetime.fromisoformat(created)
    except ValueError:
        return one_line(created)
    return f"{moment:%Y-%m-%d %H:%M} {moment.tzname() or ''}".strip()


def prepare_html() -> None:
    """Load what the first page would wait for: the templates, and the library that draws."""
    compile_templates()
    _plotly()


@cache  # which takes a tenth of a second, and a sweep that runs writes its page more than once
def _plotly() -> str:
    """Plotly's own file as the page carries it: two fifths of its size; ``drawing.js`` unpacks it."""
    from plotly.offline import get_plotlyjs

    # Level 9 takes twice as long and saves 1%. No time of making: the same records give the same page.
    return base64.b64encode(gzip.compress(get_plotlyjs().encode(), compresslevel=5, mtime=0)).decode()


# The details of one combination in the page: its pictures, its longest rows, and links to its files


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
    """Icicles of time and MACs, roofline, memory over time, operators: those that can be drawn.

    If nothing was measured, pictures that shapes alone would give are omitted.
    """
    if not seen.is_detailed:
        return []
    found: list[Figure | None] = []
    if seen.layers is not None:
        channels = timed_channels(seen.layers)
        nested = (time_icicle(seen.layers, channels), macs_icicle(seen.layers))
        found += [icicle(picture) for picture in nested if picture is not None]
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
        column = time_column(seen.operators.rows)
        rows = sorted(seen.operators.rows, key=lambda row: -(getattr(row, column) or 0.0))
        whole = sum(getattr(row, column) or 0.0 for row in rows)
        tables.append(_table("Operators", operators_table(rows, whole)))
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
    rows = [list(map(_cell, row.cells)) for row in shown.rows[:MOST_ROWS]]
    if len(shown.rows) > MOST_ROWS:
        note = f"{note} The first {len(rows)} of {len(shown.rows)} rows; the file has all.".lstrip()
    columns = [heading.title for heading in shown.headings]
    return {"title": title, "columns": columns, "rows": rows, "note": note}


def _cell(cell: ViewCell) -> str | list[Number | str]:
    if cell.value is None:
        return shortened(one_line(cell.text), _TEXT_LIMIT)
    return [cell.text, cell.value]
