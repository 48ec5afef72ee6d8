"""Names and reasons as GitHub shows them, and does nothing else with them; and parts of a comment within its limit."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from sweeprof.report.cells import shortened
from sweeprof.report.markdown import escaped

MOST_BYTES = 65_000
"""GitHub refuses a comment of more than 65,536 characters; of bytes there are never fewer."""
_SPACE = "&#8203;"
"""As wide as nothing: GitHub looks for mentions and references behind Markdown, where a backslash no longer counts."""
_REFERENCE = re.compile(r"(?<=[Gg][Hh])(?=-\d)|(?<=:)(?=//)|(?<=www)(?=\.)|(?<=:)(?=[\w+-]+:)")
_NAME_LIMIT = 120


def inert(text: str, limit: int = _NAME_LIMIT) -> str:
    """``text`` on one line without any meaning: no Markdown, HTML, formula, mention, reference, link or emoji."""
    kept = escaped(shortened(text, limit)).replace(r"\@", f"@{_SPACE}").replace(r"\#", f"#{_SPACE}")
    return _REFERENCE.sub(_SPACE, kept).replace("$", "&#36;")


class Comment:
    """Parts of a comment, as many as there is room for; ``rest`` says where everything is."""

    def __init__(self, rest: str = "`comparison.csv`", room: int = MOST_BYTES) -> None:
        self._parts: list[str] = []
        self._rest = rest
        self._room = room

    def add(self, text: str) -> bool:
        """Add a paragraph if it fits; returns whether it did."""
        size = len(text.encode()) + 2
        if not text or size > self._room:
            return False
        self._room -= size
        self._parts.append(text)
        return True

    def table(
        self,
        title: str,
        head: Sequence[tuple[str, bool]],
        rows: Sequence[Sequence[str]],
        most: int | None = None,
        fold: bool = True,
    ) -> bool:
        """Add a table of the first ``most`` rows, fewer where they do not fit; returns whether all are there.

        Args:
            title: a line of Markdown without meaning to HTML.
            head: title of each column, and whether it has figures, which are aligned on the right.
            rows: cells as Markdown.
            most: rows at most; None: as many as fit.
            fold: whether the reader has to open it.
        """
        if not rows:
            return True
        top = [_line(name for name, _ in head), _line("--:" if is_numeric else ":--" for _, is_numeric in head)]
        before, after = (
            ([f"<details><summary>{title}</summary>", ""], ["", "</details>"]) if fold else ([f"**{title}**", ""], [])
        )
        room = self._room - _size([*before, *top, *after]) - 100  # for the line that says how many are left out
        lines = list(_fitting(map(_line, rows[:most]), room))
        left = len(rows) - len(lines)
        more = ["", f"… and {left:,} more in {self._rest}."] if left else []
        return bool(lines) and self.add("\n".join([*before, *top, *lines, *more, *after])) and not left

    def text(self) -> str:
        """The comment; it ends with a line break."""
        return "\n\n".join(self._parts) + "\n"


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _size(lines: Iterable[str]) -> int:
    return sum(len(line.encode()) + 1 for line in lines)


def _fitting(lines: Iterable[str], room: int) -> Iterable[str]:
    for line in lines:
        room -= len(line.encode()) + 1
        if room < 0:
            return
        yield line
