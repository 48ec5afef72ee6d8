"""A layer table as a LaTeX table for a paper."""

from __future__ import annotations

from collections.abc import Sequence

from sweeprof.report.layers import cells
from sweeprof.report.layers.flat import flat
from sweeprof.report.times.notes import missing_lines
from sweeprof.results.layers import LayerTable

COLUMNS = ("output_shapes", "params", "params_share", "macs", "macs_share")
TIMES = ("forward_s", "forward_share", "backward_s")

_SPECIAL = {
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
    "–": "--",
    "×": r"$\times$",
    "µ": r"$\mu$",
    # Two in a row would become a dash, quotation marks, or with one before them a Spanish one.
    "-": "{-}",
    "'": "{'}",
    "`": "{`}",
    # At the beginning of a cell a bracket may be read as the argument of the line break before it.
    "[": "{[}",
    "]": "{]}",
}


def to_latex(
    table: LayerTable,
    columns: Sequence[str] | None = None,
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
    chosen = cells.chosen(columns, COLUMNS, table, TIMES)
    header, *rows, total = (" & ".join(map(escaped, line)) + r" \\" for line in flat(table, chosen))
    align = "".join("r" if cells.is_numeric(column) else "l" for column in chosen)
    lines = [rf"\begin{{tabular}}{{ll{align}}}", r"\toprule", header, r"\midrule", *rows, r"\midrule", total]
    notes = [rf"\par\noindent\footnotesize {escaped(note)}" for note in missing_lines(table, chosen)]
    text = "\n".join([*lines, r"\bottomrule", r"\end{tabular}", *notes, ""])
    return _document(text) if standalone else text


def escaped(text: str) -> str:
    """``text`` without any meaning to LaTeX; what is beyond ASCII, which a font may lack, as its code point."""
    return "".join(_SPECIAL.get(c, c if " " <= c <= "~" else f"U+{ord(c):04X}") for c in text)


def _document(body: str) -> str:
    head = [r"\documentclass{article}", r"\usepackage{booktabs}", r"\begin{document}", r"\noindent"]
    return "\n".join([*head, body + r"\end{document}", ""])
