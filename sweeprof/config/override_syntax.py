"""Overrides as text: in Hydra's grammar, as the user typed them, without secrets; and when two of their values are the same."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping

CONFIG_DIR = ("--config-dir", "-cd")
"""The flags that name a folder of the user's configs."""
SWEEP_GROUP = "sweep@_global_"
"""The group of sweep files, with the package that `cli/run.py` puts them into."""


def spelled(value: object) -> str:
    """Return ``value`` in Hydra's override grammar."""
    if isinstance(value, list):
        return f"[{','.join(spelled(v) for v in value)}]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{_spelled_key(key)}:{spelled(v)}" for key, v in value.items()) + "}"
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    return quoted(value) if isinstance(value, str) and not _reads_as_itself(value) else str(value)


def _spelled_key(key: object) -> str:
    """Return the key of a mapping; the grammar has no quotes for it, and no text at all for the string ``'1'``."""
    return key if isinstance(key, str) else spelled(key)


def is_spellable(value: object) -> bool:
    """True if Hydra's grammar can express a value: every string that is a key of a mapping must not read as something else."""
    if isinstance(value, list):
        return all(map(is_spellable, value))
    if isinstance(value, dict):
        return all(not isinstance(key, str) or _reads_as_itself(key) for key in value) and is_spellable(
            list(value.values())
        )
    return True


def _reads_as_itself(text: str) -> bool:
    keyword = text.lower() in ("true", "false", "null", "inf", "nan")
    return re.fullmatch(r"[A-Za-z_][A-Za-z0-9_./\-]*", text) is not None and not keyword


def quoted(text: str) -> str:
    """Return ``text`` in quotes; in Hydra's grammar a backslash is one, but for those before a quote."""
    escaped = re.sub(r"(\\+)(?='|\Z)", r"\1\1", text).replace("'", "\\'")
    return f"'{escaped}'"


_QUOTED_OR_WORDS = re.compile(r"""'[^']*'|"[^"]*"|[^'",\[\]{}()]+""")
_MAPPING_KEY = re.compile(r"\s*[\w.@/]+\s*:\s*")


def with_quotes(value: str) -> str:
    """Return the value of an override with quotes around words that Hydra's grammar does not allow without them.

    These have letters outside of ASCII, or a ``~`` that is not within a word. A value with a backslash or an interpolation stays as
    it is.
    """
    if "\\" in value or "${" in value:
        return value

    def replacement(found: re.Match[str]) -> str:
        words = found[0]
        key = _MAPPING_KEY.match(words) if value.startswith(("{", "[")) else None
        begin = key[0] if key else ""
        text = words.removeprefix(begin).strip()
        is_allowed = text.isascii() and not re.search(r"(?<!\w)~", text)
        return words if words[0] in "'\"" or is_allowed else begin + quoted(text)

    return _QUOTED_OR_WORDS.sub(replacement, value)


def as_typed(override: str) -> str:
    """Return an override as the user would type it; reverts the changes that `cli/run.py` makes for Hydra."""
    plain = override.removeprefix("++").replace(SWEEP_GROUP, "sweep")
    return re.sub(r"^(name|compare\.baseline)='([\w.\-~]+)'$", r"\1=\2", plain)


TOO_MANY_DIGITS = "is too large: a whole number must have at most 38 digits."
_LONG_NUMBER = re.compile(r"(?<![\w.])[+-]?\d[\d_]{1000,}(?![\w.])")


def long_number(text: str) -> str | None:
    """Return the first whole number in a text with more digits than Python converts; None if there is none."""
    found = _LONG_NUMBER.search(text)
    return found[0] if found else None


_DOUBLING = re.compile(r"\s*doubling\s*\((.*)\)\s*", re.DOTALL)


def doubled(text: str) -> list[int] | None:
    """Return the numbers that ``doubling(1,256)`` stands for: 1, 2, 4, … 256; None for any other text.

    Raises:
        ValueError: its arguments are not two whole numbers, of which the first is at least 1 and the last at least as large.
    """
    call = _DOUBLING.fullmatch(text)
    if call is None:
        return None
    words = [word.strip() for word in call[1].split(",")]
    if len(words) != 2 or not all(re.fullmatch(r"[0-9]{1,18}", word) for word in words):
        raise ValueError("is not doubling(first,last) with two whole numbers, such as doubling(1,256).")
    value, last = map(int, words)
    if not 1 <= value <= last:
        raise ValueError("has no values: doubling(first,last) needs 1 ≤ first ≤ last, such as doubling(1,256).")
    values = []
    while value <= last:
        values.append(value)
        value *= 2
    return values


def frozen(value: object) -> Hashable:
    """A hashable stand-in for a value of a config; 1, 1.0 and true have different ones, and so have 0.0 and -0.0."""
    if isinstance(value, Mapping):
        return "mapping", frozenset((frozen(key), frozen(inner)) for key, inner in value.items())
    if isinstance(value, list | tuple):
        return "list", tuple(map(frozen, value))
    return type(value), repr(value)


def is_among(value: object, others: Iterable[object]) -> bool:
    """True if one of ``others`` is the same value of a config: 1 is neither 1.0 nor true."""
    stand_in = frozen(value)
    return any(frozen(other) == stand_in for other in others)
