"""One text about a model: totals, the module tree with what was counted and measured, the largest sums at every depth."""

from __future__ import annotations

from sweeprof.report.aggregate import level, summary_lines
from sweeprof.report.cells import MISSING
from sweeprof.report.layers import cells
from sweeprof.report.layers.figures import Figures
from sweeprof.report.times.notes import timing_lines
from sweeprof.report.tree import tree
from sweeprof.results.layers import LayerTable


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
    parts = [_totals(shown)]
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


def _totals(table: LayerTable) -> list[str]:
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
    width = max(len(name) for name, _ in lines)
    return [f"{name:<{width}}  {text}" for name, text in lines]


def _rate(flops_per_s: float) -> str:
    return cells.text_of(flops_per_s, "flops_per_s")


def _time_text(figures: Figures, column: str) -> str:
    if figures.total(column) is None:
        return f"{MISSING} (not measured)"
    return figures.total_text(column)
