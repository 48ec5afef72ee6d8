"""A layer table as text (the module tree, an overview of a model), as pages, and as CSV, Markdown and LaTeX."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from sweeprof.errors import UserError, choice_problem
from sweeprof.numbers import MISSING, rounded, scaled
from sweeprof.report import layer_table
from sweeprof.report.csv import csv_lines
from sweeprof.report.fitting import aligned, fitted_lines, left_out, natural_width, with_rule, wrapped
from sweeprof.report.latex import escaped
from sweeprof.report.layer_table import Figures, TreeNode, nodes, remarks_on
from sweeprof.report.markdown import escaped as markdown_escaped
from sweeprof.report.markdown import head_lines, table_line
from sweeprof.report.view import StringTable, render
from sweeprof.results import layers
from sweeprof.results.layer_times import OUTSIDE, ROOT
from sweeprof.results.layers import FRAME_COLUMNS, FUNCTIONAL, LayerTable
from sweeprof.results.measurement import Number
from sweeprof.text import listed, one_line

STYLES = ("table", "repr")
ROWS = ("type", "name", "path", "depth", "call", "arguments")
REPR_COLUMNS = (
    "params params_share macs macs_share flops act_bytes forward_s forward_share flops_per_s backward_s"
).split()


def tree(
    table: LayerTable,
    depth: int | None = None,
    columns: str | Sequence[str] | None = None,
    unit: str | None = None,
    style: str = "table",
    rows: str | Sequence[str] = ("type", "name"),
    width: int | None = None,
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
        width: characters of a line of a table. Where it is too wide, it has no arguments, then not the last columns, and the last
            line names what is not shown. None: as wide as it is.

    Raises:
        UserError: a column, a style, a row annotation or a prefix does not exist, or the depth is below -1.
    """
    if style not in STYLES:
        raise UserError([choice_problem("style", style, "style of a tree", STYLES)])
    rows = listed(rows)
    unknown = [name for name in rows if name not in ROWS]
    if unknown:
        raise UserError([choice_problem("rows", name, "row annotation", ROWS) for name in unknown])
    table, reason = layer_table.with_figures(table)
    chosen = layer_table.selected_columns(columns, layer_table.SHOWN if style == "table" else REPR_COLUMNS, table)
    depth = layer_table.level(table, depth)
    shown = [node for node in nodes(table) if depth is None or node.depth <= depth]
    notes = remarks_on(table, chosen)
    if reason:
        notes.append(reason)
    if style == "table":
        lines, further = _table(Figures(table), shown, chosen, unit, rows, width)
        notes = [*further, *notes]
    else:
        lines = _brackets(Figures(table), shown, chosen, unit, rows)
    for note in notes:
        lines += wrapped(note, width)
    return "\n".join(lines)


def _table(  # the options of a tree
    figures: Figures,
    shown: list[TreeNode],
    columns: list[str],
    unit: str | None,
    rows: Sequence[str],
    width: int | None,
) -> tuple[list[str], list[str]]:
    """Return the lines of the table and of its totals, and notes."""
    cells = _cells(figures, shown, columns, unit, rows)
    natural = natural_width(cells)
    hidden = []
    if width is not None and natural > width:
        if "arguments" in rows:
            cells = _cells(figures, shown, columns, unit, [name for name in rows if name != "arguments"])
            hidden.append("arguments")
        _, cells = fitted_lines(cells, [False] + [True] * len(columns), width)
        hidden += [layer_table.column_title(column) for column in columns[len(cells[0]) - 1 :]]
    lines = with_rule(cells, [False] + [True] * (len(cells[0]) - 1))
    lines += [lines[1], *aligned(total_pairs(figures, unit), (False, False))]
    notes = layer_table.uncounted_lines(figures.table)
    if width is not None and natural > width:
        notes.insert(0, left_out(hidden, width, natural))
    return lines, notes


def _cells(
    figures: Figures, shown: list[TreeNode], columns: list[str], unit: str | None, rows: Sequence[str]
) -> list[list[str]]:
    """Return the header and a line per node."""
    cells = [["layer", *map(layer_table.column_title, columns)]]
    trunks = [""]
    """By depth, the lines in front of the nodes below."""
    for node in shown:
        branch = trunk = ""
        if node.depth:
            branch = trunks[node.depth] + ("└─" if node.is_last else "├─")
            trunk = trunks[node.depth] + ("  " if node.is_last else "│ ")
        trunks[node.depth + 1 :] = [trunk]
        cells.append([branch + called_as(node, rows)])
        cells[-1] += [figures.text(node.row, column, unit) for column in columns]
    return cells


def called_as(node: TreeNode, rows: Sequence[str]) -> str:
    """Return the name of a row: ``Conv2d (conv1)``, or with its arguments ``(conv1): Conv2d(1, 6, kernel_size=(5, 5))``."""
    row = node.row
    kind = one_line(row.type) if "type" in rows and row.type != FUNCTIONAL else ""
    place = node.label if "name" in rows else ""
    if "path" in rows:
        place = one_line(row.path)
    if "arguments" in rows and row.arguments:
        kind += f"({one_line(row.arguments)})"
    parts = [kind or place or one_line(row.path)]
    if kind and place:
        parts = [f"({place}): {kind}" if "arguments" in rows else f"{kind} ({place})"]
    if "depth" in rows:
        parts.append(f"depth {node.depth}")
    if "call" in rows and row.call >= 0:
        parts.append(f"call {row.call}")
    return " ".join([*parts, layer_table.call_text(row, node.holds_calls)]).rstrip()


def total_pairs(figures: Figures, unit: str | None) -> list[tuple[str, str]]:
    """Return names and values of the sums of the rows, and of amounts that belong to no row."""
    table = figures.table
    pairs = [
        ("params", scaled(table.params, "params", unit)),
        ("trainable", scaled(table.trainable, "params", unit)),
        ("frozen", scaled(table.params - table.trainable, "params", unit)),
    ]
    if table.pruned != 0:
        pairs.append(("pruned", scaled(table.pruned, "params", unit)))
    input_size = peak = MISSING
    if table.liveness:
        input_size = scaled(table.liveness.input_bytes, "B")
        peak = f"{scaled(table.liveness.peak_bytes, 'B')} at {one_line(table.liveness.peak_at)}"
    pairs += [
        ("MACs", scaled(figures.total("macs"), "MAC", unit)),
        ("FLOPs", scaled(table.flops, "FLOP", unit)),
        ("params size", scaled(table.params_bytes, "B")),
        ("input size", input_size),
        ("activations", scaled(table.act_bytes, "B")),
        ("peak live", peak),
    ]
    for column in layer_table.timed(table, ("forward_s", "backward_s", "flops_per_s")):
        pairs.append((layer_table.column_title(column), figures.total_text(column)))
    return pairs


def _brackets(
    figures: Figures, shown: list[TreeNode], columns: list[str], unit: str | None, rows: Sequence[str]
) -> list[str]:
    """Every node with something below opens a bracket, which closes before the next node that is no deeper."""
    lines: list[str] = []
    open_levels: list[int] = []

    def close(down_to: int) -> None:
        while open_levels and open_levels[-1] >= down_to:
            lines.append("  " * open_levels.pop() + ")")

    for position, node in enumerate(shown):
        close(node.depth)
        row = node.row
        facts = []
        if "arguments" in rows:
            facts.append(one_line(row.arguments))
        if "path" in rows and node.depth:
            facts.append(one_line(row.path))
        if "depth" in rows:
            facts.append(f"depth {node.depth}")
        if "call" in rows and row.call >= 0:
            facts.append(f"call {row.call}")
        for column in columns:
            text = figures.text(row, column, unit)
            is_untimed = row.call < 0 and layer_table.why_missing(figures.table, row, column)
            if text != layer_table.RECURSIVE and not is_untimed:
                facts.append(_figure(column, text))
        facts.append(layer_table.call_text(row, node.holds_calls).strip("()"))
        inside = ", ".join(filter(None, facts))
        indent = "  " * node.depth
        label = f"({node.label}): " if node.label else ""
        opening = f"{indent}{label}{one_line(row.type) or one_line(row.path)}("
        if position + 1 < len(shown) and shown[position + 1].depth > node.depth:
            lines += [opening, f"{indent}  {inside}"]
            open_levels.append(node.depth)
        else:
            lines.append(f"{opening}{inside})")
    close(0)
    return lines


def _figure(column: str, text: str) -> str:
    """``61.7 k params``, ``100% MACs``, ``417 kMAC``, ``output shape [1, 10]``."""
    title = layer_table.column_title(column).removesuffix(" %")
    if not layer_table.is_numeric(column) or column == "trainable":
        return f"{title} {text}"
    has_noun = text != MISSING and layer_table.FIGURES.get(column, ("", ""))[1] in ("MAC", "FLOP", "op", "FLOP/s")
    return text if has_noun else f"{text} {title}"


def overview(table: LayerTable, depth: int | None = None, top: int | None = 3, detailed: bool = True) -> str:
    """Totals, the largest sums by class name at every depth, and the annotated tree.

    Args:
        table: with times or without; leave modules out by ``table.where(…)``.
        depth: the deepest level of the tree and of the sums; None and -1 are all of them, the innermost included.
        top: how many classes are named per depth and figure; None names all.
        detailed: whether the tree is in it.
    """
    depth = layer_table.level(table, depth)
    shown, reason = layer_table.with_figures(table)
    parts = [_overview_totals(shown)]
    sums = {}
    if reason is None:
        deepest = max((row.depth for row in table.rows), default=-1)
        last = deepest if depth is None else min(depth, deepest)
        for one in range(last + 1):
            sums[f"depth {one}:"] = layer_table.summary_lines(table, one, top)
    else:
        sums["every depth:"] = layer_table.summary_lines(table, None, top)
    parts += ["\n  ".join([title, *lines]) for title, lines in sums.items()]
    if detailed:
        parts.append(tree(table, depth, style="repr"))  # with the remarks on the times
    else:
        parts.append("\n".join(filter(None, (*layer_table.timing_lines(table), reason))))
    return "\n\n".join(filter(None, parts))


def _overview_totals(table: LayerTable) -> str:
    figures = Figures(table)
    forward, backward, flops = figures.total("forward_s"), figures.total("backward_s"), table.flops
    lines = [
        ("params", figures.total_text("params")),
        ("forward MACs", figures.total_text("macs")),
        ("forward FLOPs", figures.total_text("flops")),
        ("forward time", f"{MISSING} (not measured)" if forward is None else figures.total_text("forward_s")),
        ("forward FLOP/s", figures.total_text("flops_per_s")),
    ]
    if backward:
        lines.append(("backward time", figures.total_text("backward_s")))
    if forward and backward and flops is not None:
        # The usual estimate: a backward does each multiplication twice, once for the inputs, once for the weights.
        rate = layer_table.text_of(2 * flops / backward, "flops_per_s")
        both = layer_table.text_of(3 * flops / (forward + backward), "flops_per_s")
        lines.append(("backward FLOP/s", f"{rate}, if it does twice the forward's FLOPs"))
        lines.append(("both FLOP/s", f"{both}, likewise"))
    return "\n".join(aligned(lines, (False, False)))


# Layer tables in HTML: one as a self-contained page, and many in one page.


PAGE_COLUMNS = (
    "input_shapes output_shapes params params_share trainable macs macs_share flops ops act_bytes params_bytes buffers dtypes "
    "forward_s forward_self_s forward_share flops_per_s backward_s backward_self_s"
).split()


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
    chosen = layer_table.selected_columns(columns, PAGE_COLUMNS, figures.table)
    rows = []
    for node in nodes(figures.table):
        cells = []
        for column in chosen:
            numeric = layer_table.is_numeric(column)
            cells.append(
                {
                    "text": figures.text(node.row, column),
                    "numeric": numeric,
                    "value": figures.number(node.row, column) if numeric else None,
                    "reason": layer_table.why_missing(figures.table, node.row, column),
                }
            )
        path, kind = one_line(node.row.path), one_line(node.row.type)
        mark = layer_table.call_text(node.row, node.holds_calls)
        rows.append({"node": node, "path": path, "type": kind, "mark": mark, "cells": cells})
    return render(
        "layer_table.html.j2",
        title=one_line(title),
        table=figures.table,
        columns=[(layer_table.column_title(column), layer_table.is_numeric(column)) for column in chosen],
        rows=rows,
        totals=[figures.total_text(column) for column in chosen],
        timing=layer_table.timing_lines(figures.table),
        peak=layer_table.text_of(table.liveness.peak_bytes, "act_bytes") if table.liveness else "",
    )


EMBEDDED_COLUMNS = ("macs", "flops", "params", "act_bytes")
_PHASES = ("forward_self_s", "backward_self_s")


def embedded(tables: Mapping[str, LayerTable]) -> dict[str, Any]:
    """Return the data that ``templates/layers.js`` reads.

    ``tables`` has for each combination its label, its totals, and positions in ``vectors``: the path, type, depth, call and
    output shape of every node in the order of the tree, then its own figures by ``columns``: ``time``, or ``forward`` and
    ``backward`` if any table has both, and counts. Paths, types and shapes are positions in ``strings``. A vector is a list of
    numbers, null where there is none. ``step_s`` is the seconds of a step without probes, or null; ``told`` a sentence that
    compares it with the layers; ``remarks`` are on how times were measured, and why some are missing.
    """
    measured = [name for name in _PHASES if any(layer_table.timed(table, (name,)) for table in tables.values())]
    phases = _PHASES if "backward_self_s" in measured else measured
    columns = [*phases, *EMBEDDED_COLUMNS]
    strings, vectors = StringTable(), StringTable()
    found = []
    for label, table in tables.items():
        figures, drawn = Figures(table), nodes(table)
        lists: list[list[Number | None]] = [
            [strings.place(_path_text(node.row.path)) for node in drawn],
            [strings.place(one_line(node.row.type)) for node in drawn],
            [node.depth for node in drawn],
            [node.row.call for node in drawn],
            [strings.place(layer_table.shape_text(node.row.output_shapes)) for node in drawn],
        ]
        lists += [[_short(figures.number(node.row, column)) for node in drawn] for column in columns]
        step, told = _step(table)
        found.append(
            {
                "label": one_line(label),
                "vectors": [vectors.place(tuple(values)) for values in lists],
                "totals": [_short(figures.total(column)) for column in columns],
                "step_s": _short(step),
                "told": told,
                "remarks": remarks_on(table, layer_table.timed(table, _PHASES)),
            }
        )
    named = []
    for column in columns:
        unit = layer_table.FIGURES[column][1]
        title = "time" if [column] == phases else layer_table.column_title(column).removesuffix(" self")
        named.append({"title": title, "unit": unit, "isTime": column in phases})
    return {"columns": named, "strings": strings.values, "vectors": vectors.values, "tables": found}


def _step(table: LayerTable) -> tuple[float | None, str]:
    """Seconds of a forward, with its backward if it was measured, without probes, or None; and how they compare with the layers.

    ``A forward takes 213 µs: 197 µs (92.5%) in these layers, 16.0 µs outside them.``
    """
    inside = sum(filter(None, map(Figures(table).total, _PHASES)))
    if not inside:
        return None, "No times of layers were measured."
    phases = [] if table.timing is None else [table.timing.forward, table.timing.backward]
    plain = [phase.plain_s for phase in phases if phase is not None]
    step = sum(filter(None, plain))
    if not step or None in plain:
        return None, f"The layers take {rounded(inside, 's')}; the time of a step without probes was not measured."
    text = f"{rounded(inside, 's')} ({100 * inside / step:.1f}%)"
    start = f"A forward{' with its backward' if len(plain) > 1 else ''} takes {rounded(step, 's')}"
    if inside >= step:
        return step, f"{start}; the layers' times, measured with probes, add up to {text}."
    return step, f"{start}: {text} in these layers, {rounded(step - inside, 's')} outside them."


def _short(value: Number | None) -> Number | None:
    """Measured values to six significant digits, more than any clock is good for; sixteen would make the page larger."""
    return float(f"{value:.6g}") if isinstance(value, float) else value


# A layer table as lines of texts, for formats that are tables and no more.


def flat(table: LayerTable, columns: Sequence[str]) -> list[list[str]]:
    """A header, one line per row in the order of the tree, and the totals; path and type come first."""
    figures = Figures(table)
    lines = [["path", "type", *map(layer_table.column_title, columns)]]
    for node in nodes(table):
        row = node.row
        place = f"{_path_text(row.path)} {layer_table.call_text(row, node.holds_calls)}".rstrip()
        lines.append([place, one_line(row.type)])
        lines[-1] += [figures.text(row, column) for column in columns]
    return [*lines, ["total", "", *map(figures.total_text, columns)]]


def _path_text(path: str) -> str:
    return {ROOT: "(model)", OUTSIDE: "(outside any module)"}.get(path, one_line(path))


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
    for record in found:
        for name, value in record.items():
            if value is not None and not isinstance(value, str | int | float):
                record[name] = json.dumps(value, default=dict)
    return found


def to_markdown(table: LayerTable, columns: str | Sequence[str] | None = None, inclusive: bool = False) -> str:
    """One line per row, then the totals, and below the table what is to be known of the times where it has any.

    Path and type come first; ``columns`` are those of the tree.

    Raises:
        UserError: a column does not exist.
        ValueError: inclusive figures are asked of a table that does not tell which call was made in which.
    """
    table = table.inclusive() if inclusive else table
    chosen = layer_table.selected_columns(columns, layer_table.SHOWN, table)
    header, *body = [list(map(markdown_escaped, line)) for line in flat(table, chosen)]
    is_numeric = [False, False, *map(layer_table.is_numeric, chosen)]
    body[-1] = [f"**{text}**" if text else "" for text in body[-1]]
    lines = [*head_lines(list(zip(header, is_numeric, strict=True))), *map(table_line, body)]
    notes = list(map(markdown_escaped, remarks_on(table, chosen)))
    if notes:
        lines += ["", *notes]
    return "\n".join(lines) + "\n"


LATEX_COLUMNS = "output_shapes params params_share macs macs_share forward_s forward_share backward_s".split()


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
    chosen = layer_table.selected_columns(columns, LATEX_COLUMNS, table)
    header, *rows, total = [f"{' & '.join(map(escaped, line))} \\\\" for line in flat(table, chosen)]
    align = "".join("r" if layer_table.is_numeric(column) else "l" for column in chosen)
    lines = [rf"\begin{{tabular}}{{ll{align}}}", r"\toprule", header, r"\midrule", *rows, r"\midrule", total]
    lines += [r"\bottomrule", r"\end{tabular}"]
    lines += [rf"\par\noindent\footnotesize {escaped(note)}" for note in layer_table.missing_lines(table, chosen)]
    if standalone:
        start = [r"\documentclass{article}", r"\usepackage{booktabs}", r"\begin{document}", r"\noindent"]
        lines = [*start, *lines, r"\end{document}"]
    return "\n".join([*lines, ""])
