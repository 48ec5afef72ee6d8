"""Names and reasons as GitHub shows them, and does nothing else with them; and parts of a comment within its limit."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from sweeprof.report.cells import shortened
from sweeprof.report.markdown import escaped

MOST_BYTES = 65_000
"""GitHub refuses a comment of more than 65,536 characters; of bytes there are never fewer."""
_KEPT, _COUNTED = 200, 100
"""Room for the last line of a comment, and for the line of a table that says how many rows are left out."""
_SPACE = "&#8203;"
"""As wide as nothing: GitHub looks for mentions and references behind Markdown, where a backslash no longer counts."""
_REFERENCE = re.compile(r"(?<=[Gg][Hh])(?=-\d)|(?<=:)(?=//)|(?<=www)(?=\.)|(?<=:)(?=[\w+-]+:)")
_NAME_LIMIT = 120


def sanitised(text: str, limit: int = _NAME_LIMIT) -> str:
    """``text`` on one line without any meaning: no Markdown, HTML, formula, mention, reference, link or emoji."""
    kept = escaped(shortened(text, limit)).replace(r"\@", f"@{_SPACE}").replace(r"\#", f"#{_SPACE}")
    return _REFERENCE.sub(_SPACE, kept).replace("$", "&#36;")


class Comment:
    """Parts of a comment, as many as there is room for; ``rest`` says where everything is."""

    def __init__(self, rest: str = "`comparison.csv`", room: int = MOST_BYTES - _KEPT) -> None:
        self._parts: list[str] = []
        self._rest = rest
        self._room = room

    def add(self, text: str, is_last: bool = False) -> bool:
        """Add a paragraph if it fits; returns whether it did. For the last one some room has been kept."""
        size = len(text.encode()) + 2
        if not text or size > self._room + is_last * _KEPT:
            return False
        self._room -= size
        self._parts.append(text)
        return True

    def table(
        self,
        title: str,
        head: Sequence[tuple[str, bool]],
        rows: Iterable[Sequence[str]],
        count: int,
        most: int | None = None,
        fold: bool = True,
        share: float = 1.0,
    ) -> bool:
        """Add a table of the first ``most`` rows, fewer where they do not fit; returns whether all are there.

        Args:
            title: a line of Markdown without meaning to HTML.
            head: title of each column, and whether it has figures, which are aligned on the right.
            rows: cells as Markdown; no more are asked for than fit.
            count: how many rows there are.
            most: rows at most; None: as many as fit.
            fold: whether the reader has to open it.
            share: how much of the room it may take.
        """
        if not count:
            return True
        top = [_line(name for name, _ in head), _line("--:" if is_numeric else ":--" for _, is_numeric in head)]
        before, after = [f"**{title}**", ""], [""]
        if fold:
            before, after = [f"<details><summary>{title}</summary>", ""], ["", "</details>"]
        room = int(share * self._room) - _size([*before, *top, *after]) - _COUNTED
        lines = list(_fitting(map(_line, islice(rows, most)), room))
        left = count - len(lines)
        more = ["", f"… and {left:,} more in {self._rest}."] if left else []
        return bool(lines) and self.add("\n".join([*before, *top, *lines, *more, *after]).rstrip()) and not left

    def text(self) -> str:
        """The comment; it ends with a line break."""
        return "\n\n".join(self._parts) + "\n"


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _size(lines: Iterable[str]) -> int:
    return sum(len(line.encode()) + 1 for line in lines)


def _fitting(lines: Iterable[str], room: int) -> Iterator[str]:
    for line in lines:
        room -= len(line.encode()) + 1
        if room < 0:
            return
        yield line
