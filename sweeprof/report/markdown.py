"""GitHub Markdown: names and reasons as GitHub shows them, and does nothing else with them; parts of a comment within its limit."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import islice

from sweeprof.text import one_line, printable, shortened

_SPECIAL = re.compile(r"([\\`*\[\]|~#!@])")
# Within a word GitHub reads an underscore as itself: escaping it would only spoil `batch_size` in the source.
_OUTER_UNDERSCORE = re.compile(r"(?<![^\W_])_|_(?![^\W_])")


def escaped(text: str) -> str:
    """``text`` on one line, without any meaning to Markdown or HTML."""
    text = one_line(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _OUTER_UNDERSCORE.sub(r"\_", _SPECIAL.sub(r"\\\1", text))


def code_block(command: str) -> str:
    """A shell command to copy."""
    command = printable(command)
    # A fence longer than any run of backticks inside cannot be closed by the command itself.
    longest = max((len(run) for run in re.findall("`+", command)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}sh\n{command}\n{fence}"


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
        most: int | None = None,
        fold: bool = True,
        share: float = 1.0,
        count: int | None = None,
    ) -> bool:
        """Add a table of the first ``most`` rows, fewer where they do not fit; returns whether all are there.

        Args:
            title: a line of Markdown without meaning to HTML.
            head: title of each column, and whether it has figures, which are aligned on the right.
            rows: cells as Markdown; no more are asked for than fit.
            most: rows at most; None: as many as fit.
            fold: whether the reader has to open it.
            share: how much of the room it may take.
            count: how many rows there are, if they are made as they are asked for.
        """
        if count is None:
            rows = list(rows)
            count = len(rows)
        if not count:
            return True
        top = head_lines(head)
        before, after = [f"**{title}**", ""], [""]
        if fold:
            before, after = [f"<details><summary>{title}</summary>", ""], ["", "</details>"]
        room = int(share * self._room) - _size([*before, *top, *after]) - _COUNTED
        lines = []
        for row in islice(rows, most):
            line = table_line(row)
            room -= _size([line])
            if room < 0:
                break
            lines.append(line)
        if not lines:
            return False
        left = count - len(lines)
        if left:
            after = ["", f"… and {left:,} more in {self._rest}.", *after]
        return self.add("\n".join([*before, *top, *lines, *after]).rstrip()) and not left

    def text(self) -> str:
        """The comment; it ends with a line break."""
        return "\n\n".join(self._parts) + "\n"


def head_lines(head: Sequence[tuple[str, bool]]) -> list[str]:
    """Return the first two lines of a table: titles, each with whether its column has figures, which are aligned on the right."""
    return [
        table_line(title for title, _ in head),
        table_line("--:" if is_numeric else ":--" for _, is_numeric in head),
    ]


def table_line(cells: Iterable[str]) -> str:
    """Return a row of a table; its cells are Markdown."""
    return f"| {' | '.join(cells)} |"


def _size(lines: Iterable[str]) -> int:
    return sum(len(line.encode()) + 1 for line in lines)
