"""Sanitised text from models, configs, folders and servers, for display and storage."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping

from sweeprof.credentials import redacted_message

CONTROL = "\x00-\x1f\x7f-\x9f\u2028\u2029\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff"
"""For a character class of a regular expression: control characters, line separators, direction marks and overrides, surrogates."""
LONGEST_MESSAGE = 2_000
"""Characters of a reason or a warning that are kept."""
LONGEST_TRACEBACK = 20_000

_CONTROL = re.compile(f"[{CONTROL}]+")
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


def one_line(text: str) -> str:
    """``text`` without line breaks, terminal escapes and direction overrides; runs of spaces become one."""
    return " ".join(_CONTROL.sub(" ", text).split())


def shortened(text: str, limit: int) -> str:
    """``text`` with its middle left out where it is longer than ``limit``: both ends tell names apart."""
    if len(text) <= limit:
        return text
    head = (limit - 1) // 2
    return f"{text[:head]}…{text[len(text) - (limit - 1 - head) :]}"


def axis_text(value: object) -> str:
    """The value of an axis as it would be written on the command line."""
    if isinstance(value, str):
        return one_line(value)
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)
    return one_line(json.dumps(value, ensure_ascii=False, default=str))


def axes_text(axes: Mapping[str, object]) -> str:
    """Several axes with their values, e.g. ``model=mlp, batch_size=512``."""
    return ", ".join(f"{one_line(axis)}={axis_text(value)}" for axis, value in axes.items())


def axis_number(value: object) -> int | float | None:
    """The value of an axis where it is a finite number; booleans are not."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return value


def limited(text: str, limit: int) -> str:
    """``text`` if it has at most ``limit`` characters, else its beginning and its end with the number of omitted characters."""
    if len(text) <= limit:
        return text
    kept = limit // 2
    return f"{text[:kept]} … [{len(text) - 2 * kept:,} characters left out] … {text[-kept:]}"


def stored(text: str, limit: int = LONGEST_MESSAGE) -> str:
    """``text`` as a record keeps it: without secrets, limited and printable."""
    return printable(limited(redacted_message(text), limit))
