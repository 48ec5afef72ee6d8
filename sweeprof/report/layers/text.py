"""A layer table as text: the module tree, like ``repr(model)`` or as an indented table, and an overview of a model.

The overview has totals, the module tree, and the largest sums at every depth.
"""

from __future__ import annotations

from collections.abc import Sequence

from sweeprof.errors import UserError, choice_problem
from sweeprof.numbers import MISSING, scaled
from sweeprof.report.layers import cells
from sweeprof.report.layers.aggregate import level, summary_lines
from sweeprof.report.layers.cells import Figures, TreeNode, nodes, remarks_on, timing_lines
from sweeprof.report.view import aligned, with_rule
from sweeprof.results.layers import FUNCTIONAL, LayerTable
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
        columns: of :mod:`sweeprof.report.layers.cells`, e.g. ``("params", "macs_share", "forward_s")``; by default the usual
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
    table, reason = cells.with_figures(table)
    chosen = cells.selected_columns(columns, cells.SHOWN if style == "table" else REPR_COLUMNS, table)
    depth = level(table, depth)
    shown = [node for node in nodes(table) if depth is None or node.depth <= depth]
    draw = _table if style == "table" else _brackets
    lines = draw(Figures(table), shown, chosen, unit, rows)
    return "\n".join([*lines, *remarks_on(table, chosen), *([reason] if reason else [])])


def _table(
    figures: Figures, shown: list[TreeNode], columns: list[str], unit: str | None, rows: Sequence[str]
) -> list[str]:
    header = ["layer", *(cells.title(column) for column in columns)]
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
    return " ".join([*parts, cells.call_text(row, node.holds_calls)]).rstrip()


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
        (cells.title(column), figures.total_text(column))
        for column in cells.timed(table, ("forward_s", "backward_s", "flops_per_s"))
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
    shown = [c for c in columns if row.call >= 0 or not cells.why_missing(figures.table, row, c)]
    message += [_figure(c, text) for c in shown if (text := figures.text(row, c, unit)) != cells.RECURSIVE]
    return [text for text in (*message, cells.call_text(row, node.holds_calls).strip("()")) if text]


def _figure(column: str, text: str) -> str:
    """``61.71 k params``, ``100 % MACs``, ``416.52 KMACs``, ``output shape [1, 10]``."""
    title = cells.title(column).removesuffix(" %")
    if not cells.is_numeric(column) or column == "trainable":
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
    shown, reason = cells.with_figures(table)
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
    return cells.text_of(flops_per_s, "flops_per_s")


def _time_text(figures: Figures, column: str) -> str:
    if figures.total(column) is None:
        return f"{MISSING} (not measured)"
    return figures.total_text(column)
