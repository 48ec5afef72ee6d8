"""Operators, live tensors and source lines as text: CSV with exact values, the cells of a table, and annotated code."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial

from sweeprof.numbers import rounded, significant
from sweeprof.report.csv import csv_lines
from sweeprof.report.fitting import aligned
from sweeprof.report.view import counted
from sweeprof.results.observations import (
    FRAME_COLUMNS,
    FunctionLines,
    Line,
    Lines,
    OperatorRow,
    Operators,
    TensorRow,
    bytes_by_kind,
)
from sweeprof.text import one_line

ON_HOST = "path operator phase calls self share total flops allocated shapes".split()
ON_DEVICE = "path operator phase calls device share self total flops allocated shapes".split()
TITLES = {
    "path": "module",
    "device": "accelerator time",
    "self": "self time",
    "total": "total time",
    "flops": "FLOPs",
    "shapes": "input shapes",
}
"""Titles of columns in tables to read; others are their names."""


def operators_csv(operators: Operators) -> str:
    """One header line, then one line per row, in the columns of ``Operators.to_frame``.

    Seconds and bytes are of one step, shapes JSON. A cell is empty where there is no value.
    """
    lines: list[list[object]] = [[*FRAME_COLUMNS]]
    for row in operators.rows:
        values = [getattr(row, name) for name in FRAME_COLUMNS]
        lines.append([json.dumps(value) if isinstance(value, tuple) else value for value in values])
    return csv_lines(lines)


def time_column(rows: Sequence[OperatorRow]) -> str:
    """Return the column of own seconds: on the accelerator where there is one; operators on the host alone have none there."""
    return "device_self_s" if any(row.device_self_s is not None for row in rows) else "self_s"


def calls_text(calls: float) -> str:
    """Return a mean number of calls; one that is whole without decimals."""
    return significant(calls) if calls % 1 else str(int(calls))


# Live tensors

COLUMNS = ("names", "kind", "shape", "dtype", "device", "bytes")


def tensors_csv(rows: Sequence[TensorRow]) -> str:
    """One header line, then one line per storage; names and shape are JSON, bytes exact."""
    lines = [[json.dumps(r.names), r.kind, json.dumps(r.shape), r.dtype, r.device, r.bytes] for r in rows]
    return csv_lines([COLUMNS, *lines])


def tensor_cells(row: TensorRow) -> tuple[str, ...]:
    """Return the texts of :data:`COLUMNS`."""
    names = one_line(" = ".join(row.names)) or "–"
    shape = "×".join(map(str, row.shape)) or ("scalar" if row.dtype else "")  # several share a row without a type
    return names, row.kind, shape, row.dtype, row.device, rounded(row.bytes, "B")


def sums_text(rows: Sequence[TensorRow]) -> str:
    """Return the bytes in total and by kind."""
    found = bytes_by_kind(rows)
    text = f"in total {rounded(sum(found.values()), 'B')}"
    parts = ", ".join(f"{kind} {rounded(size, 'B')}" for kind, size in found.items())
    return f"{text}: {parts}" if parts else text


# Time and memory by source line as texts to be read beside the code.


LineRow = tuple[str, ...]


def reports(lines: Lines) -> dict[str, bytes]:
    """Both texts by the names of their files."""
    return {"lines_time.txt": time_report(lines).encode(), "lines_memory.txt": memory_report(lines).encode()}


def time_report(lines: Lines) -> str:
    """Hits, time, time per hit and share of the function for every line."""
    is_metered = lines.span != "step" and (lines.has_usage or lines.device != "cpu")
    method = "together with memory" if is_metered else "by line_profiler"
    meter = "measuring" if is_metered else "line_profiler"
    intro = [
        f"Time by line over {spans(lines)}, measured {method}.",
        f"time: of the line and all that it calls; what {meter} itself costs for each hit is in it.",
        "share: of the time of its function.",
    ]
    if lines.device != "cpu":
        intro.append(
            f"It is the host's time: {lines.device} may still be at work on what a line asked for when the next begins."
        )
    for function in lines.functions:
        total = f"{rounded(function.seconds, 's')} in total"
        if lines.span != "run":
            total += f", {rounded(function.seconds / max(1, lines.steps), 's')} per {lines.span}"
        header = ("line", "hits", "time", "per hit", "share")
        intro += _function(function, header, [total], partial(times_of, function))
    return "\n".join(intro) + "\n"


def memory_report(lines: Lines) -> str:
    """Bytes allocated and bytes at the peak for every line."""
    if lines.memory_reason is not None and not lines.has_usage:
        return f"There is no memory by line: {lines.memory_reason}\n"
    where, whole = spans(lines), "a call"
    if lines.span == "step":
        where, whole = "one step", "the step"
    allocated = "allocated: by the line and all that it calls, released or not."
    if lines.device != "cpu":
        intro = [f"Memory of {lines.device} by line in {where}, read from its allocator."]
        if lines.has_usage:
            intro.append(
                "usage: memory in use when the line had ended; increment: its change, negative where memory was released."
            )
        intro.append(allocated)
        intro.append("at peak: how far memory rose above where it was when the line began, in the worst of its runs.")
    else:
        intro = [f"Memory by line in {where}."]
        if lines.memory_reason is None:
            intro = [
                f"Memory by line in {where}, measured by memray: tensors, Python's objects and all else in the process."
            ]
        if lines.has_usage:
            intro += [
                "usage: of the process when the line had ended, without pages of files.",
                "increment: how much that rose while the line ran, over all its runs; negative where the line released memory.",
            ]
        if lines.memory_reason is None:
            intro.append(allocated)
            intro.append(f"at peak: what of it was alive when the allocations of {whole} were at their highest.")
        else:
            intro.append(f"There is nothing about allocations: {lines.memory_reason}")

    def figures(line: Line) -> LineRow:
        texts = ["" if size is None else rounded(size, "B") for size in memory_of(lines, line)]
        return (str(line.number), *texts)

    for function in lines.functions:
        intro += _function(function, ("line", *memory_columns(lines)), [], figures)
    return "\n".join(intro) + "\n"


def memory_columns(lines: Lines) -> list[str]:
    """Return the names of the columns of memory."""
    names = ["usage", "increment"] if lines.has_usage else []
    return [*names, "allocated", "at peak"] if lines.memory_reason is None else names


def _function(
    function: FunctionLines, header: LineRow, summary: Sequence[str], figures: Callable[[Line], LineRow]
) -> list[str]:
    """Return the lines about a function: its name and place, a summary, and a table of its source lines."""
    top = ["", "", function.name, f"{function.file}:{function.first_line}"]
    if not function.is_called:
        return [*top, "It was not called."]
    rows = [(*figures(line), line.source) for line in function.lines]
    return [*top, *summary, "", *aligned([(*header, "source"), *rows], [True] * len(header) + [False])]


def spans(lines: Lines) -> str:
    """Return how many steps, calls or runs were measured, e.g. ``3 calls``."""
    return counted(lines.steps, lines.span)


def times_of(function: FunctionLines, line: Line) -> LineRow:
    """Return the texts of number, hits, time, time per hit and share; empty for a line that did not run."""
    if not line.hits:
        return (str(line.number), "", "", "", "")
    share = line.seconds / function.seconds if function.seconds else 0.0
    return (
        str(line.number),
        f"{line.hits:,}",
        rounded(line.seconds, "s"),
        rounded(line.seconds / line.hits, "s"),
        rounded(share, "share"),
    )


def memory_of(lines: Lines, line: Line) -> list[int | None]:
    """Return the bytes of a line in the order of :func:`memory_columns`; None where it did not run."""
    if not line.hits and not line.allocated_bytes and line.usage_bytes is None:
        return [None for _ in memory_columns(lines)]
    usage = [line.usage_bytes, line.increment_bytes] if lines.has_usage else []
    return [*usage, line.allocated_bytes, line.peak_bytes] if lines.memory_reason is None else usage
