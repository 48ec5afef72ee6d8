"""Sanitised text from models, configs, folders and servers, for display and storage."""

from __future__ import annotations

import re
from collections.abc import Iterable

from sweeprof.credentials import redacted_message

CONTROL = "\x00-\x1f\x7f-\x9f\u2028\u2029\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff"
"""For a character class of a regular expression: control characters, line separators, direction marks and overrides, surrogates."""
LONGEST_MESSAGE = 2_000
"""Characters of a reason or a warning that are kept."""
LONGEST_TRACEBACK = 20_000

_UNPRINTABLE = re.compile(f"(?![\n\t])[{CONTROL}]")


def listed(names: str | Iterable[str]) -> list[str]:
    """Return one name that is given as text, or several, as a list."""
    return [names] if isinstance(names, str) else list(names)


def printable(text: str) -> str:
    r"""Return ``text`` without control characters: escapes, overrides and surrogates are written as ``\u001b``.

    Line breaks and tabs stay. The spelling is the one of JSON, so that JSON remains valid and keeps its meaning.
    """
    if text.isprintable():  # which most are, and takes a tenth of the time
        return text
    return _UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def limited(text: str, limit: int) -> str:
    """``text`` if it has at most ``limit`` characters, else its beginning and its end with the number of omitted characters."""
    if len(text) <= limit:
        return text
    kept = limit // 2
    return f"{text[:kept]} … [{len(text) - 2 * kept:,} characters left out] … {text[-kept:]}"


def stored(text: str, limit: int = LONGEST_MESSAGE) -> str:
    """``text`` as a record keeps it: without secrets, limited and printable."""
    return printable(limited(redacted_message(text), limit))
