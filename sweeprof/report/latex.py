"""A comparison as LaTeX tables for a paper: one unit per column, values with their intervals, the best in bold."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise

from sweeprof.numbers import MISSING, column_scale, significant, text_unit
from sweeprof.report.columns import Column, is_throughput, measured_of
from sweeprof.report.summary import IntervalKind, interval_kind, protocol_text
from sweeprof.report.table import ReportTable, TableRow, tables
from sweeprof.results.compared_rows import Comparison, value_of
from sweeprof.results.measurement import MetricInfo, Number
from sweeprof.text import one_line, shortened

# Text for LaTeX: no character has a meaning, and all of them are in the fonts that ``pdflatex`` has without any package

_WRITTEN = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    # A language may have made it a command.
    '"': r"{\char34}",
    # Two in a row would become a dash, quotation marks, or with one before them a Spanish one.
    "-": "{-}",
    "'": "{'}",
    "`": "{`}",
    # After the end of a line of a table they would belong to its command.
    "[": "{[}",
    "]": "{]}",
    "*": "{*}",
    "–": "--",
    "…": r"\ldots{}",
    "×": r"$\times$",
    "·": r"$\cdot$",
    "µ": r"$\mu$",
    "\u2044": "/",  # what a fraction is decomposed into
    "−": "$-$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "→": r"$\rightarrow$",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "✓": "yes",
    "✗": "no",
    "²": "$^2$",
    "³": "$^3$",
}
_ACCENTS = "\u0300\u0301\u0302\u0303\u0304\u0306\u0307\u0308\u030a\u030b\u030c\u0327"
"""Combining characters: LaTeX has known Latin letters with one of them as they are since 2018."""
_LETTERS = "ßæÆœŒøØłŁı"
"""It knows these, too."""


def escaped(text: str) -> str:
    """Return ``text`` without any meaning to LaTeX; of a character that its fonts lack there is the number, in brackets."""
    return "".join(map(_written, unicodedata.normalize("NFC", text)))


@cache
def _written(character: str) -> str:
    if character in _WRITTEN or " " <= character <= "~":
        return _WRITTEN.get(character, character)
    category = unicodedata.category(character)
    if category in ("Cc", "Zs", "Zl", "Zp"):
        return " "
    if category in ("Cf", "Mn", "Me"):  # direction marks, joiners, and what changes the character before it
        return ""
    parts = unicodedata.normalize("NFKD", character)
    if character in _LETTERS or ("À" <= character <= "ž" and len(parts) == 2 and parts[1] in _ACCENTS):
        return character
    if parts != character:  # a ligature, a full-width letter, a letter with another mark
        return "".join(map(_written, parts))
    return f"{{[}}U+{ord(character):04X}{{]}}"


# The tables

TABLES = "comparison-tables"
"""Name of the file of :func:`latex`."""
LONGEST = 40
"""Lines of a table that stays on one page."""
MOST_LINES = 400
"""Lines of one table; a paper has no room for more."""
MOST_WAITING = 10
"""Tables that LaTeX has to find a place for at once; of a hundred without any text between them it finds none."""
_NAME_LIMIT, _REASON_LIMIT = 48, 80
_DIGITS = 5
"""Significant digits that a value has at most, however narrow its interval."""
_ARROW = {"↓": r"$\downarrow$", "↑": r"$\uparrow$"}
_STRETCHED = r"\renewcommand{\arraystretch}{1.15}"
"""Or the intervals of two lines would touch."""
_PACKAGES = "booktabs longtable graphicx".split()


def latex(comparison: Comparison, made: Sequence[ReportTable] | None = None) -> str:
    r"""One table per model, to ``\input`` in a document with the packages booktabs, longtable and graphicx.

    Args:
        comparison: what was measured.
        made: its tables, where they are made already.
    """
    made = tables(comparison) if made is None else made
    packages = " ".join(rf"\usepackage{{{package}}}" for package in _PACKAGES)
    name = one_line(comparison.name).encode("ascii", "replace").decode()
    sweep_id = one_line(comparison.sweep_id).encode("ascii", "replace").decode()
    label = re.sub(r"[^a-z0-9]+", "-", comparison.name.lower()).strip("-")[:_NAME_LIMIT] or "sweep"
    lines = [f"% {name}, sweep {sweep_id}; needs {packages}"]
    for place, table in enumerate(made, 1):
        if place > 1 and place % MOST_WAITING == 1:
            lines.append(r"\clearpage")
        lines += _table(comparison, table, f"tab:{label}-{place}")
    return "\n".join([*lines, ""])


def _table(comparison: Comparison, table: ReportTable, label: str) -> list[str]:
    infos = {info.name: info for info in comparison.metrics}
    lines = table.lines[:MOST_LINES]
    factors: list[float] = []
    titles = []
    for column in table.columns:
        factor, unit = 1.0, ""
        if column.kind == "value":
            values = [value_of(line.row, column.key) for line in lines]
            known = [value for value in values if value is not None]
            factor, unit = column_scale(known, text_unit(column.key, infos[column.key].unit))
        factors.append(factor)
        title, arrow = column.title, ""
        if title.endswith(tuple(_ARROW)):
            title, arrow = title[:-1].rstrip(), f" {_ARROW[title[-1]]}"
        if f"({unit})" in title:  # a user's own unit
            unit = ""
        titles.append(_text(title, _NAME_LIMIT) + (f" ({escaped(unit)})" if unit else "") + arrow)
    head = " & ".join(titles) + r" \\"
    align = "".join("r" if column.numeric else "l" for column in table.columns)
    body = []
    for place, group in enumerate(_groups(lines)):
        if place and len(group) > 1:
            body.append(r"\addlinespace")
        bold = {column.key: _best(group, infos[column.key]) for column in table.columns if column.kind == "value"}
        for line in group:
            cells = _cells(table.columns, factors, line, bold)
            body.append(" & ".join(cells) + r" \\")
    caption = rf"\caption{{{_caption(comparison, table)}}}\label{{{label}}}"
    if len(lines) > LONGEST:
        return [
            r"{\small\setlength{\tabcolsep}{4pt}\setlength{\LTcapwidth}{\linewidth}" + _STRETCHED,
            rf"\begin{{longtable}}{{{align}}}",
            caption + r" \\",
            *(r"\toprule", head, r"\midrule", r"\endhead", r"\bottomrule", r"\endfoot"),
            *body,
            r"\end{longtable}}",
        ]
    return [
        *(r"\begin{table}[htbp]", r"\centering", caption, r"\small" + _STRETCHED),
        # No wider than the text, and as it is where it has room.
        r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
        *(rf"\begin{{tabular}}{{{align}}}", r"\toprule", head, r"\midrule"),
        *body,
        *(r"\bottomrule", r"\end{tabular}}", r"\end{table}"),
    ]


_ESTIMATES: dict[IntervalKind | None, str] = {
    None: "Medians",
    "rounds": "Means over the rounds with their 95% intervals",
    "process": "Medians with their 95% intervals within one process, which do not contain the differences between processes",
    "both": "Means over the rounds with their 95% intervals, where there is one round medians with those within one process",
}
"""What the figures of a table are, by what their intervals are."""


def _caption(comparison: Comparison, table: ReportTable) -> str:
    title = shortened(table.title, _REASON_LIMIT)
    if table.captions:
        title += ": " + ", ".join(f"{name} {shortened(value, _NAME_LIMIT)}" for name, value in table.captions)
    parts = [title, protocol_text(comparison, with_intervals=False)]
    if len(table.lines) > MOST_LINES:
        parts.append(f"The first {MOST_LINES} of {len(table.lines)} rows")
    kind = interval_kind(cell.measurement for line in table.lines for cell in line.row.cells.values())
    parts.append(f"{_ESTIMATES[kind]}; bold: the best of each group, and what the intervals do not tell from it")
    values = [column.key for column in table.columns if column.kind == "value"]
    label = measured_of([line.row for line in table.lines], values[:1])
    if label:
        parts.append(f"Bold is the best {label}")
    if any(entry.text.endswith("~") for line in table.lines[:MOST_LINES] for entry in line.entries):
        parts.append("~: undecided")
    return " ".join(f"{_text(part)}." for part in parts if part)


def _text(text: str, limit: int | None = None) -> str:
    return escaped(text if limit is None else shortened(text, limit)).replace(r"\textasciitilde{}", r"$\sim$")


def _groups(lines: Sequence[TableRow]) -> list[Sequence[TableRow]]:
    """Each baseline with its candidates; all rows together where nothing is compared with anything."""
    starts = [place for place, line in enumerate(lines) if line.starts_group]
    if len(starts) == len(lines):
        return [lines]
    return [lines[begin:end] for begin, end in pairwise([*starts, len(lines)])]


def _cells(
    columns: Sequence[Column], factors: Sequence[float], line: TableRow, bold: dict[str, set[str]]
) -> Iterator[str]:
    for place, (column, factor, entry) in enumerate(zip(columns, factors, line.entries, strict=True)):
        if column.kind != "axis" and line.failure is not None:
            span = len(columns) - place
            yield rf"\multicolumn{{{span}}}{{l}}{{\emph{{{_text(line.failure, _REASON_LIMIT)}}}}}"
            return
        if entry.text == MISSING:
            yield "--"
        elif column.kind != "value" or entry.number is None:
            yield _text(entry.text, _NAME_LIMIT)
        else:
            interval = None if is_throughput(column.key) else line.row.cells[column.key].measurement.interval
            yield _figure(entry.number, interval, factor, line.row.combination_id in bold[column.key])


def _best(lines: Sequence[TableRow], info: MetricInfo) -> set[str]:
    """Ids of the best of several rows, and of those whose interval overlaps its."""
    rows = [line.row for line in lines if line.failure is None and value_of(line.row, info.name) is not None]
    if info.better is None or len(rows) < 2:
        return set()
    sign = 1.0 if info.better == "lower" else -1.0
    # Lower is better from here on.
    values, lows, highs = {}, {}, {}
    for row in rows:
        own = row.cells[info.name].measurement
        value = own.value or 0
        low, high = sorted(sign * end for end in own.interval or (value, value))
        values[row.combination_id], lows[row.combination_id], highs[row.combination_id] = sign * value, low, high
    best = min(values, key=lambda row_id: values[row_id])
    found = {id for id, low in lows.items() if low <= highs[best]}
    return found if len(found) < len(rows) else set()


def _figure(value: Number, interval: tuple[float, float] | None, factor: float, is_best: bool) -> str:
    """A value in the column's unit, with the digits that its interval justifies."""
    shown = value if factor == 1 else value / factor
    down = up = 0.0
    if interval is not None and all(map(math.isfinite, interval)):
        down, up = max(0.0, shown - interval[0] / factor), max(0.0, interval[1] / factor - shown)
    around = ""
    if shown and (down or up):
        # Two digits of the interval say all that it knows, and the value has no more decimals.
        decimals = max(0, min(1 - _exponent(max(down, up)), _DIGITS - 1 - _exponent(shown)))
        text = _number(f"{shown:,.{decimals}f}")
        # Rounded up: an interval does not become narrower by being written down.
        below, above = (f"{math.ceil(width * 10**decimals - 1e-9) / 10**decimals:.{decimals}f}" for width in (down, up))
        around = rf" \pm {above}" if below == above else rf"\,^{{+{above}}}_{{-{below}}}"
    else:
        text = _number(significant(shown))
    return rf"$\mathbf{{{text}}}{around}$" if is_best else f"${text}{around}$"


def _exponent(value: float) -> int:
    return math.floor(math.log10(abs(value)))


def _number(text: str) -> str:
    digits, _, exponent = text.replace(",", "{,}").partition("e")
    return rf"{digits} \cdot 10^{{{int(exponent)}}}" if exponent else digits
