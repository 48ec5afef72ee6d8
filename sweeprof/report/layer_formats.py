"""A layer table as text: the module tree, like ``repr(model)`` or as an indented table, and an overview of a model.

The overview has totals, the module tree, and the largest sums at every depth.
"""

from __future__ import annotations

import importlib.util
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sweeprof.errors import UserError, choice_problem
from sweeprof.numbers import MISSING, scaled
from sweeprof.report import layer_table
from sweeprof.report.csv import csv_lines
from sweeprof.report.latex import escaped
from sweeprof.report.layer_table import (
    Figures,
    TreeNode,
    level,
    missing_lines,
    nodes,
    remarks_on,
    summary_lines,
    timing_lines,
)
from sweeprof.report.markdown import escaped as markdown_escaped
from sweeprof.report.view import StringTable, aligned, render, with_rule
from sweeprof.results import layers
from sweeprof.results.layer_times import OUTSIDE, ROOT
from sweeprof.results.layers import FRAME_COLUMNS, FUNCTIONAL, LayerRow, LayerTable
from sweeprof.results.layers import TIMES as PHASE_TIMES
from sweeprof.results.measurement import Number
from sweeprof.text import listed, one_line

STYLES = ("table", "repr")
ROWS = ("type", "name", "path", "depth", "call", "arguments")
REPR_COLUMNS = "params params_share macs macs_share flops act_bytes".split()


def tree(
    table: LayerTable,
    depth: int | None = None,
    columns: str | Sequence[str] | None = None,
    unit: str | None = None,
    style: str = "table",
    rows: str | Sequence[str] = ("type", "name"),
) -> str:
    """One line per call of a module with the figures of it and of all within it.

    Args:
        table: where it does not tell which call was made in which, the figures are each row's own, and the last line says so.
        depth: the deepest level that is drawn; 0 is the model alone, None and -1 draw all. Figures and totals do not change by it.
        columns: of :mod:`sweeprof.report.layer_table`, e.g. ``("params", "macs_share", "forward_s")``; by default the usual
            ones and the times where the table has any.
        unit: SI prefix of all counts, e.g. ``"M"``; by default each has the one that suits it, and so do times always.
        style: ``table``, aligned columns with totals below, or ``repr``, the brackets of ``repr(model)``.
        rows: what a row is called by: any of ``type``, ``name``, ``path``, ``depth``, ``call``, ``arguments``. ``call`` numbers the
            calls of a module that is called again; that it is, ``(recursive)``, is always said. ``arguments`` are those of the
            constructor, and the row reads as in ``repr(model)``.

    Raises:
        UserError: a column, a style or a row annotation does not exist, or the depth is below -1.
        ValueError: there is no such prefix.
    """
    if style not in STYLES:
        raise UserError([choice_problem("style", style, "style of a tree", STYLES)])
    rows = listed(rows)
    if unknown := [name for name in rows if name not in ROWS]:
        raise UserError([choice_problem("rows", name, "row annotation", ROWS) for name in unknown])
    table, reason = layer_table.with_figures(table)
    chosen = layer_table.selected_columns(columns, layer_table.SHOWN if style == "table" else REPR_COLUMNS, table)
    depth = level(table, depth)
    shown = [node for node in nodes(table) if depth is None or node.depth <= depth]
    draw = _table if style == "table" else _brackets
    lines = draw(Figures(table), shown, chosen, unit, rows)
    return "\n".join([*lines, *remarks_on(table, chosen), *([reason] if reason else [])])


def _table(
    figures: Figures, shown: list[TreeNode], columns: list[str], unit: str | None, rows: Sequence[str]
) -> list[str]:
    header = ["layer", *(layer_table.column_title(column) for column in columns)]
    lines = [
        [branch + called_as(node, rows), *(figures.text(node.row, column, unit) for column in columns)]
        for branch, node in zip(_branches(shown), shown, strict=True)
    ]
    table_lines = with_rule([header, *lines], [place > 0 for place in range(len(header))])
    return [*table_lines, table_lines[1], *_tree_totals(figures, unit)]


def _branches(shown: list[TreeNode]) -> list[str]:
    """The lines in front of every node; a node of :func:`nodes` keeps its position when deeper ones are left out."""
    branches, trunks = [], [""]
    for node in shown:
        trunk = trunks[node.depth]
        branches.append("" if node.depth == 0 else f"{trunk}{'└─' if node.is_last else '├─'}")
        del trunks[node.depth + 1 :]
        trunks.append("" if node.depth == 0 else f"{trunk}{'  ' if node.is_last else '│ '}")
    return branches


def called_as(node: TreeNode, rows: Sequence[str]) -> str:
    """Return the name of a row: ``Conv2d (conv1)``, or with its arguments ``(conv1): Conv2d(1, 6, kernel_size=(5, 5))``."""
    row = node.row
    kind = one_line(row.type) if "type" in rows and row.type != FUNCTIONAL else ""
    place = one_line(row.path) if "path" in rows else node.label if "name" in rows else ""
    if "arguments" in rows:
        kind += f"({one_line(row.arguments)})" if row.arguments else ""
        parts = [f"({place}): {kind}" if kind and place else kind or place or one_line(row.path)]
    else:
        parts = [f"{kind} ({place})" if kind and place else kind or place or one_line(row.path)]
    if "depth" in rows:
        parts.append(f"depth {node.depth}")
    if "call" in rows and row.call >= 0:
        parts.append(f"call {row.call}")
    return " ".join([*parts, layer_table.call_text(row, node.holds_calls)]).rstrip()


def total_pairs(figures: Figures, unit: str | None) -> list[tuple[str, str]]:
    """Return names and values of the sums of the rows, and of amounts that belong to no row."""
    table = figures.table
    live = table.liveness
    where = f" at {one_line(live.peak_at)}" if live else ""
    lines = [
        ("params", scaled(table.params, "params", unit)),
        ("trainable", scaled(table.trainable, "params", unit)),
        ("frozen", scaled(table.params - table.trainable, "params", unit)),
        *([("pruned", scaled(table.pruned, "params", unit))] if table.pruned != 0 else []),
        ("MACs", scaled(figures.total("macs"), "MACs", unit)),
        ("FLOPs", scaled(table.flops, "FLOPs", unit)),
        ("params size", scaled(table.params_bytes, "B")),
        ("input size", scaled(live.input_bytes if live else None, "B")),
        ("activations", scaled(table.act_bytes, "B")),
        ("peak live", scaled(live.peak_bytes if live else None, "B") + where),
    ]
    lines += [
        (layer_table.column_title(column), figures.total_text(column))
        for column in layer_table.timed(table, ("forward_s", "backward_s", "flops_per_s"))
    ]
    return lines


def _tree_totals(figures: Figures, unit: str | None) -> list[str]:
    """Return the totals as lines, and what is missing in them."""
    table = figures.table
    text = aligned(total_pairs(figures, unit), (False, False))
    if table.uncounted is not None:
        text.append(f"Not counted: {one_line(table.uncounted)}.")
    if table.uncovered:
        missing = ", ".join(f"{calls} × {one_line(name)}" for name, calls in table.uncovered.items())
        text.append(f"Not counted, because there is no formula: {missing}.")
    return text


def _brackets(
    figures: Figures, shown: list[TreeNode], columns: list[str], unit: str | None, rows: Sequence[str]
) -> list[str]:
    """Every node with something below opens a bracket, which closes before the next node that is no deeper."""
    lines: list[str] = []
    depth = -1
    for place, node in enumerate(shown):
        lines += _closing(depth, node.depth)
        indent = "  " * node.depth
        inside = ", ".join(_annotations(figures, node, columns, unit, rows))
        opening = (
            f"{indent}{f'({node.label}): ' if node.label else ''}{one_line(node.row.type) or one_line(node.row.path)}("
        )
        is_open = place + 1 < len(shown) and shown[place + 1].depth > node.depth
        lines += [opening, f"{indent}  {inside}"] if is_open else [f"{opening}{inside})"]
        depth = node.depth
    return lines + _closing(depth, 0)


def _closing(depth: int, next_depth: int) -> list[str]:
    return ["  " * level + ")" for level in range(depth - 1, next_depth - 1, -1)]


def _annotations(
    figures: Figures, node: TreeNode, columns: list[str], unit: str | None, rows: Sequence[str]
) -> list[str]:
    row = node.row
    message = [one_line(row.arguments)] if "arguments" in rows and row.arguments else []
    message += [one_line(row.path)] if "path" in rows and node.depth else []
    message += [f"depth {node.depth}"] if "depth" in rows else []
    message += [f"call {row.call}"] if "call" in rows and row.call >= 0 else []
    shown = [c for c in columns if row.call >= 0 or not layer_table.why_missing(figures.table, row, c)]
    message += [_figure(c, text) for c in shown if (text := figures.text(row, c, unit)) != layer_table.RECURSIVE]
    return [text for text in (*message, layer_table.call_text(row, node.holds_calls).strip("()")) if text]


def _figure(column: str, text: str) -> str:
    """``61.71 k params``, ``100 % MACs``, ``416.52 KMACs``, ``output shape [1, 10]``."""
    title = layer_table.column_title(column).removesuffix(" %")
    if not layer_table.is_numeric(column) or column == "trainable":
        return f"{title} {text}"
    return text if text.endswith(title) else f"{text} {title}"


def overview(table: LayerTable, depth: int | None = None, top: int | None = 3, detailed: bool = True) -> str:
    """Totals, the largest sums by class name at every depth, and the annotated tree.

    Args:
        table: with times or without; leave modules out by ``table.where(…)``.
        depth: the deepest level of the tree and of the sums; None and -1 are all of them, the innermost included.
        top: how many classes are named per depth and figure; None names all.
        detailed: whether the tree is in it.
    """
    depth = level(table, depth)
    shown, reason = layer_table.with_figures(table)
    parts = [_overview_totals(shown)]
    if reason is None:
        deepest = max((row.depth for row in table.rows), default=-1)
        last = deepest if depth is None else min(depth, deepest)
        parts += [[f"depth {level}:", *_indented(summary_lines(table, level, top))] for level in range(last + 1)]
    else:
        parts.append(["every depth:", *_indented(summary_lines(table, None, top))])
    if detailed:
        parts.append([tree(table, depth, style="repr")])  # with what is to be said of the times
    else:
        parts.append([*timing_lines(table), *([reason] if reason else [])])
    return "\n\n".join("\n".join(part) for part in parts if part)


def _indented(lines: list[str]) -> list[str]:
    return [f"  {line}" for line in lines]


def _overview_totals(table: LayerTable) -> list[str]:
    figures = Figures(table)
    lines = [
        ("params", figures.total_text("params")),
        ("forward MACs", figures.total_text("macs")),
        ("forward FLOPs", figures.total_text("flops")),
        ("forward time", _time_text(figures, "forward_s")),
        ("forward FLOP/s", figures.total_text("flops_per_s")),
    ]
    forward, backward, flops = figures.total("forward_s"), figures.total("backward_s"), table.flops
    if forward and backward and flops is not None:
        # The usual estimate: a backward does each multiplication twice, once for the inputs, once for the weights.
        lines += [
            ("backward time", _time_text(figures, "backward_s")),
            ("backward FLOP/s", f"{_rate(2 * flops / backward)}, if it does twice the forward's FLOPs"),
            ("both FLOP/s", f"{_rate(3 * flops / (forward + backward))}, likewise"),
        ]
    elif backward:
        lines.append(("backward time", _time_text(figures, "backward_s")))
    return aligned(lines, (False, False))


def _rate(flops_per_s: float) -> str:
    return layer_table.text_of(flops_per_s, "flops_per_s")


def _time_text(figures: Figures, column: str) -> str:
    if figures.total(column) is None:
        return f"{MISSING} (not measured)"
    return figures.total_text(column)


# Layer tables in HTML: one as a self-contained page, and many in one page.


PAGE_COLUMNS = (
    "input_shapes output_shapes params params_share trainable macs macs_share flops ops act_bytes params_bytes buffers dtypes"
).split()
PAGE_TIMES = "forward_s forward_self_s forward_share flops_per_s backward_s backward_self_s".split()


def to_html(
    table: LayerTable, columns: str | Sequence[str] | None = None, inclusive: bool = False, title: str = "Layers"
) -> str:
    """The module tree as a page: a click on a header sorts, one on a row's arrow collapses what is within.

    Args:
        table: the layers.
        columns: of :mod:`sweeprof.report.layer_table`; by default the usual ones and the times where the table has any.
        inclusive: whether figures include the rows within; else they are each row's own.
        title: headline of the page, e.g. the name of the model.

    Raises:
        UserError: a column does not exist.
        ValueError: inclusive figures are asked of a table that does not tell which call was made in which.
    """
    figures = Figures(table.inclusive() if inclusive else table)
    chosen = layer_table.selected_columns(columns, PAGE_COLUMNS, figures.table, PAGE_TIMES)
    rows = [
        {
            "node": node,
            "path": one_line(node.row.path),
            "type": one_line(node.row.type),
            "mark": layer_table.call_text(node.row, node.holds_calls),
            "cells": [_cell(figures, node.row, column) for column in chosen],
        }
        for node in nodes(figures.table)
    ]
    return render(
        "layer_table.html.j2",
        title=one_line(title),
        table=figures.table,
        columns=[(layer_table.column_title(column), layer_table.is_numeric(column)) for column in chosen],
        rows=rows,
        totals=[figures.total_text(column) for column in chosen],
        timing=timing_lines(figures.table),
        peak=layer_table.text_of(table.liveness.peak_bytes, "act_bytes") if table.liveness else "",
    )


def _cell(figures: Figures, row: LayerRow, column: str) -> dict[str, object]:
    numeric = layer_table.is_numeric(column)
    return {
        "text": figures.text(row, column),
        "numeric": numeric,
        "value": figures.number(row, column) if numeric else None,
        "reason": layer_table.why_missing(figures.table, row, column),
    }


EMBEDDED_COLUMNS = ("macs", "flops", "params", "act_bytes")
EMBEDDED_TIMES = ("forward_s", "forward_self_s", "flops_per_s", "backward_s", "backward_self_s")
"""Shown where any of the tables has them."""


_NO_AXES: Mapping[str, Mapping[str, object]] = {}
_SIDES = ("backend", "model")
"""Axes whose values are compared first."""


def embedded(tables: Mapping[str, LayerTable], axes: Mapping[str, Mapping[str, object]] = _NO_AXES) -> dict[str, Any]:
    """Return the data that ``templates/layers.js`` reads.

    ``tables`` has for each combination its label, its totals, a note or null, and positions in ``vectors``: the label, type,
    depth, call and output shape of every node in the order of the tree, then the figures of ``columns``. Labels, types and
    shapes are positions in ``strings``. A vector is a list of numbers, null where there is none. ``reasons`` is the position
    of a vector with the string that says why a row lacks times, or null; ``timing`` the lines that are to be said of the times.
    ``first`` has the positions of the left and the right table and of the column that are shown at first.

    Args:
        tables: by the name of the combination.
        axes: of each combination, by the same names.
    """
    columns = _columns(tables.values())
    strings, vectors = StringTable(), StringTable()
    found = []
    for label, table in tables.items():
        shown, reason = layer_table.with_figures(table)
        figures, drawn = Figures(shown), nodes(shown)
        lists: list[list[Number | None]] = [
            [strings.place(node.label) for node in drawn],
            [strings.place(one_line(node.row.type)) for node in drawn],
            [node.depth for node in drawn],
            [node.row.call for node in drawn],
            [strings.place(layer_table.shape_text(node.row.output_shapes)) for node in drawn],
            *([_short(figures.number(node.row, column)) for node in drawn] for column in columns),
        ]
        found.append(
            {
                "label": one_line(label),
                "vectors": [vectors.place(tuple(values)) for values in lists],
                "totals": [_short(figures.total(column)) for column in columns],
                "note": reason,
                "reasons": vectors.place(tuple(_reasons(table, drawn, strings))) if table.timing else None,
                "timing": timing_lines(table),
            }
        )
    named = [
        {
            "title": layer_table.column_title(column),
            "unit": layer_table.FIGURES[column][1].replace("MACs", "MAC").replace("FLOPs", "FLOP"),
            "isTime": layer_table.time_column(column) is not None,
        }
        for column in columns
    ]
    first = _first(found, [axes.get(label, {}) for label in tables], [bool(column["isTime"]) for column in named])
    return {"columns": named, "strings": strings.values, "vectors": vectors.values, "tables": found, "first": first}


def _first(
    tables: Sequence[Mapping[str, Any]], axes: Sequence[Mapping[str, object]], are_times: Sequence[bool]
) -> tuple[int, int, int]:
    """Left, right and column: a measured time if two have one; of those that have it two backends, or else two models."""
    by_time = sorted(range(len(are_times)), key=lambda column: not are_times[column])
    known = {c: [at for at, table in enumerate(tables) if table["totals"][c] is not None] for c in by_time}
    column = next((c for c in by_time if len(known[c]) >= min(2, len(tables))), 0)
    places = list(dict.fromkeys([*known[column], *range(len(tables))]))
    for axis in _SIDES:
        rest: dict[str, int] = {}
        for place in known[column]:
            if axis in axes[place]:
                same = json.dumps({**axes[place], axis: None}, sort_keys=True, default=str)
                if same in rest:
                    return rest[same], place, column
                rest[same] = place
    return places[0], places[1] if len(places) > 1 else places[0], column


def _columns(tables: Iterable[LayerTable]) -> list[str]:
    measured = {column for table in tables for column in EMBEDDED_TIMES if layer_table.timed(table, (column,))}
    return [*EMBEDDED_COLUMNS, *(column for column in EMBEDDED_TIMES if column in measured)]


def _reasons(table: LayerTable, drawn: Sequence[TreeNode], strings: StringTable) -> list[Number | None]:
    reasons = [layer_table.why_missing(table, node.row, "backward_s") for node in drawn]
    return [None if reason is None else strings.place(reason) for reason in reasons]


def _short(value: Number | None) -> Number | None:
    """Measured values to six significant digits, more than any clock is good for; sixteen would make the page larger."""
    return float(f"{value:.6g}") if isinstance(value, float) else value


# A layer table as lines of texts, for formats that are tables and no more.


def flat(table: LayerTable, columns: Sequence[str]) -> list[list[str]]:
    """A header, one line per row in the order of the tree, and the totals; path and type come first."""
    figures = Figures(table)
    lines = [["path", "type", *(layer_table.column_title(column) for column in columns)]]
    for node in nodes(table):
        row = node.row
        name = {ROOT: "(model)", OUTSIDE: "(outside any module)"}.get(row.path, one_line(row.path))
        place = f"{name} {layer_table.call_text(row, node.holds_calls)}".rstrip()
        lines.append([place, one_line(row.type), *(figures.text(row, column) for column in columns)])
    return [*lines, ["total", "", *(figures.total_text(column) for column in columns)]]


def to_csv(table: LayerTable, inclusive: bool = False) -> str:
    """One header line, then one line per row, in the columns of ``LayerTable.to_frame``.

    Shapes and data types are JSON, bytes and counts whole numbers, times seconds, shares 0..1. A cell is empty where there is
    no value; ``time_reason`` says why where a time is missing.

    Raises:
        ValueError: inclusive figures are asked of a table that does not tell which call was made in which.
    """
    return csv_lines([FRAME_COLUMNS, *(row.values() for row in records(table, inclusive))])


def records(table: LayerTable, inclusive: bool = False) -> list[dict[str, object]]:
    """One dictionary per row, in the columns of ``LayerTable.to_frame``; shapes and data types as JSON text."""
    found = layers.records(table.inclusive() if inclusive else table)
    return [{name: _plain(value) for name, value in record.items()} for record in found]


def _plain(value: object) -> Any:
    return value if value is None or isinstance(value, str | int | float) else json.dumps(value, default=dict)


def to_markdown(table: LayerTable, columns: str | Sequence[str] | None = None, inclusive: bool = False) -> str:
    """One line per row, then the totals, and below the table what is to be known of the times where it has any.

    Path and type come first; ``columns`` are those of the tree.

    Raises:
        UserError: a column does not exist.
        ValueError: inclusive figures are asked of a table that does not tell which call was made in which.
    """
    table = table.inclusive() if inclusive else table
    chosen = layer_table.selected_columns(columns, layer_table.SHOWN, table)
    lines = flat(table, chosen)
    marks = [":--", ":--", *("--:" if layer_table.is_numeric(column) else ":--" for column in chosen)]
    body = [[markdown_escaped(text) for text in line] for line in lines]
    body[-1] = [f"**{text}**" if text else "" for text in body[-1]]
    drawn = [f"| {' | '.join(line)} |" for line in (body[0], marks, *body[1:])]
    notes = [markdown_escaped(note) for note in remarks_on(table, chosen)]
    return "\n".join([*drawn, *([""] if notes else []), *notes]) + "\n"


_WHOLE = "depth call params trainable frozen pruned groups macs flops ops buffers".split()
_NUMBERS = (
    *PHASE_TIMES,
    *"act_bytes params_bytes buffers_bytes params_share macs_share forward_share flops_per_s".split(),
)


def to_parquet(table: LayerTable, inclusive: bool = False) -> bytes:
    """The file's content, in the columns of ``LayerTable.to_frame``: counts are nullable int64, bytes, times and shares float64.

    Shapes and data types are JSON text.

    Raises:
        UserError: pyarrow is not installed.
        ValueError: inclusive figures are asked of a table that does not tell which call was made in which.
    """
    # Asked beforehand: pandas' own complaint names other packages, which would not do.
    if importlib.util.find_spec("pyarrow") is None:
        raise UserError("Parquet files need pyarrow: pip install pyarrow")
    import pandas

    frame = pandas.DataFrame(records(table, inclusive), columns=FRAME_COLUMNS)
    # A column without any value has no type of its own.
    kinds = {**dict.fromkeys(_WHOLE, "Int64"), **dict.fromkeys(_NUMBERS, "float64")}
    frame = frame.astype({name: kinds.get(name, "string") for name in FRAME_COLUMNS})
    content = io.BytesIO()
    frame.to_parquet(content, engine="pyarrow", index=False)
    return content.getvalue()


LATEX_COLUMNS = ("output_shapes", "params", "params_share", "macs", "macs_share")
LATEX_TIMES = ("forward_s", "forward_share", "backward_s")


def to_latex(
    table: LayerTable,
    columns: str | Sequence[str] | None = None,
    inclusive: bool = False,
    standalone: bool = False,
) -> str:
    r"""A ``tabular`` with the rules of the package booktabs, totals last; below it, which times are missing and why.

    ``\input`` it in a document that has ``\usepackage{booktabs}``; with ``standalone`` it is such a document itself.

    Raises:
        UserError: a column does not exist.
        ValueError: inclusive figures are asked of a table that does not tell which call was made in which.
    """
    table = table.inclusive() if inclusive else table
    chosen = layer_table.selected_columns(columns, LATEX_COLUMNS, table, LATEX_TIMES)
    header, *rows, total = (" & ".join(map(escaped, line)) + r" \\" for line in flat(table, chosen))
    align = "".join("r" if layer_table.is_numeric(column) else "l" for column in chosen)
    lines = [rf"\begin{{tabular}}{{ll{align}}}", r"\toprule", header, r"\midrule", *rows, r"\midrule", total]
    notes = [rf"\par\noindent\footnotesize {escaped(note)}" for note in missing_lines(table, chosen)]
    text = "\n".join([*lines, r"\bottomrule", r"\end{tabular}", *notes, ""])
    return _document(text) if standalone else text


def _document(body: str) -> str:
    head = [r"\documentclass{article}", r"\usepackage{booktabs}", r"\begin{document}", r"\noindent"]
    return "\n".join([*head, body + r"\end{document}", ""])
