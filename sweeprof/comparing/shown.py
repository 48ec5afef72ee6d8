"""Changes between two sweeps on a terminal and as Markdown."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from sweeprof.comparing.changes import KINDS, Change, Changes
from sweeprof.report.inert import Comment, inert
from sweeprof.results.verdicts import REASONS

_TITLES = {
    "worse": "Worse",
    "missing": "Missing",
    "not_comparable": "Not comparable",
    "unclear": "Unclear",
    "better": "Better",
    "new": "New",
}
_STYLES = {"worse": "bold red", "missing": "bold red", "better": "bold green"}


def headline(changes: Changes) -> str:
    """E.g. ``3 worse, 1 better, 40 same``."""
    ordered = [*(kind for kind in KINDS if kind in changes.counts), "same"]
    return ", ".join(f"{changes.counts[kind]} {kind.replace('_', ' ')}" for kind in ordered)


def print_changes(changes: Changes, title: str, out: Console) -> None:
    """Print what changed, what is worse first."""
    out.print(Text(title, style="bold"), soft_wrap=True)
    for line in changes.lines:
        out.print(Text(line, style="dim"), soft_wrap=True)
    for kind in KINDS:
        found = changes.of([kind])
        if not found:
            continue
        out.print()
        out.print(Text(f"{_TITLES[kind]} ({len(found)})", style=_STYLES.get(kind, "bold")))
        table = Table(box=None, show_header=False, pad_edge=False)
        for _ in range(5):
            table.add_column(overflow="fold")
        for change in found:
            table.add_row(*map(Text, _cells(change)))
        out.print(table)
    out.print()
    for line in changes.remarks:
        out.print(Text(line, style="dim"), soft_wrap=True)
    out.print(Text(headline(changes), style="bold"))


def _cells(change: Change) -> tuple[str, ...]:
    why = REASONS.get(change.reason or "", "") if change.kind in ("unclear", "not_comparable") else ""
    return (change.axes, change.title, f"{change.before} → {change.now}", change.ratio, why)


def markdown(changes: Changes, title: str) -> str:
    """The same as GitHub Markdown, short enough for a comment or the summary of a job."""
    comment = Comment("the file of `--json`")
    comment.add(f"**{inert(title, 300)}: {headline(changes)}.**")
    comment.add("\n".join(f"- {inert(line, 300)}" for line in changes.lines))
    for line in changes.remarks:
        comment.add(inert(line, 1000))
    names = ("change", "combination", "metric", "before → now", "ratio", "why")
    rows = ((change.kind, *(inert(cell, 300) for cell in _cells(change))) for change in changes.changes)
    head = [(name, name == "ratio") for name in names]
    comment.table("What changed", head, rows, len(changes.changes), fold=False)
    return comment.text()
