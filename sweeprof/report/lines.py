"""Time and memory by source line as texts to be read beside the code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from sweeprof.numbers import rounded
from sweeprof.report.view import aligned
from sweeprof.results.observations import FunctionLines, Line, Lines

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
    return _text(intro, lines, ("line", "hits", "time", "per hit", "share"), times_of, lambda f: _spent(f, lines))


def memory_report(lines: Lines) -> str:
    """Bytes allocated and bytes at the peak for every line."""
    if lines.memory_reason is not None and not lines.has_usage:
        return f"There is no memory by line: {lines.memory_reason}\n"
    whole = "the step" if lines.span == "step" else "a call"
    where = "one step" if lines.span == "step" else spans(lines)
    if lines.device == "cpu":
        allocations = [
            "allocated: by the line and all that it calls, released or not.",
            f"at peak: what of it was alive when the allocations of {whole} were at their highest.",
        ]
        if lines.memory_reason is None:
            intro = [
                f"Memory by line in {where}, measured by memray: tensors, Python's objects and all else in the process.",
            ]
        else:
            intro = [f"Memory by line in {where}."]
            allocations = [f"There is nothing about allocations: {lines.memory_reason}"]
        if lines.has_usage:
            intro += [
                "usage: of the process when the line had ended, without pages of files.",
                "increment: how much that rose while the line ran, over all its runs; negative where the line released memory.",
            ]
        intro += allocations
    else:
        usage = []
        if lines.has_usage:
            usage = [
                "usage: memory in use when the line had ended; increment: its change, negative where memory was released."
            ]
        intro = [
            f"Memory of {lines.device} by line in {where}, read from its allocator.",
            *usage,
            "allocated: by the line and all that it calls, released or not.",
            "at peak: how far memory rose above where it was when the line began, in the worst of its runs.",
        ]
    return _text(intro, lines, ("line", *memory_columns(lines)), partial(bytes_of, lines), lambda _: ())


def memory_columns(lines: Lines) -> list[str]:
    """Return the names of the columns of memory."""
    names = ["usage", "increment"] if lines.has_usage else []
    return [*names, "allocated", "at peak"] if lines.memory_reason is None else names


def _text(
    intro: Sequence[str],
    lines: Lines,
    header: LineRow,
    figures: Callable[[FunctionLines, Line], LineRow],
    summary: Callable[[FunctionLines], Sequence[str]],
) -> str:
    parts = list(intro)
    for function in lines.functions:
        parts += ["", "", function.name, f"{function.file}:{function.first_line}"]
        if not function.is_called:
            parts += ["It was not called."]
            continue
        parts += [*summary(function), ""]
        rows = [(*figures(function, line), line.source) for line in function.lines]
        parts += aligned([(*header, "source"), *rows], [True] * len(header) + [False])
    return "\n".join(parts) + "\n"


def spans(lines: Lines) -> str:
    """Return how many steps, calls or runs were measured, e.g. ``3 calls``."""
    return f"{lines.steps} {lines.span}{'' if lines.steps == 1 else 's'}"


def _spent(function: FunctionLines, lines: Lines) -> list[str]:
    each = "" if lines.span == "run" else f", {rounded(function.seconds / max(1, lines.steps), 's')} per {lines.span}"
    return [f"{rounded(function.seconds, 's')} in total{each}"]


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
        f"{share:.1%}",
    )


def memory_of(lines: Lines, line: Line) -> list[int | None]:
    """Return the bytes of a line in the order of :func:`memory_columns`; None where it did not run."""
    figures = {
        "usage": line.usage_bytes,
        "increment": line.increment_bytes,
        "allocated": line.allocated_bytes,
        "at peak": line.peak_bytes,
    }
    if not line.hits and not line.allocated_bytes and line.usage_bytes is None:
        return [None for _ in memory_columns(lines)]
    return [figures[name] for name in memory_columns(lines)]


def bytes_of(lines: Lines, _: FunctionLines, line: Line) -> LineRow:
    """Return the texts of the number of a line and of its memory."""
    texts = ["" if size is None else rounded(size, "B") for size in memory_of(lines, line)]
    return (str(line.number), *texts)
