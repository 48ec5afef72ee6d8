"""A model whose error is long, and whose text would control a terminal, a page or a spreadsheet."""

from __future__ import annotations

from typing import Any, NoReturn

ESCAPES = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202egnp.exe\udcff"
LENGTH = 5_000_000


def model(**_: Any) -> NoReturn:
    """Fail as a library may that quotes its whole input."""
    raise ValueError(f"{ESCAPES} begins {'A' * LENGTH} ends\n=1+1")
