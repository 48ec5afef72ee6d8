"""HTML pages from the templates beside this code: everything escaped, nothing fetched, repeated values stored once."""

from __future__ import annotations

import json
import re
from collections.abc import Hashable
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from sweeprof.text import axis_text, one_line, printable, shortened

_ESCAPES = re.compile(
    r"""\\\\ | \\ud[89ab]..\\ud[c-f]..                                    # a backslash, a pair of surrogates
    | (?P<unprintable>\\u(?:00[01].|007f|00[89].|061c|200[ef]|202[89a-e]|206[6-9]|feff|d[89a-f]..))""",
    re.VERBOSE,
)
"""Escapes in JSON that :func:`json.dumps` wrote."""


def render(template: str, **values: object) -> str:
    """The page that a template makes of the values."""
    return _environment().get_template(template).render(values)


def compile_templates() -> None:
    """Compile every template, which takes longer than to make a page."""
    environment = _environment()
    for name in environment.list_templates():
        environment.get_template(name)


@cache  # a template is compiled once, however many pages are made of it
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("sweeprof.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalized,
    )
    environment.filters.update(axis_text=axis_text, one_line=one_line, shortened=shortened, script_json=script_json)
    return environment


def _finalized(value: object) -> Any:
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def script_json(data: object) -> Markup:
    """JSON that cannot end the ``script`` element it stands in, and whose texts are printable."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    text = _ESCAPES.sub(lambda found: f"\\{found[0]}" if found["unprintable"] else found[0], text)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


class StringTable:
    """Different things in the order they came, each with its position."""

    def __init__(self) -> None:
        self._places: dict[Hashable, int] = {}

    def place(self, thing: Hashable) -> int:
        """The position of a thing, a new one at the end."""
        return self._places.setdefault(thing, len(self._places))

    @property
    def values(self) -> list[Any]:
        """The things by their positions."""
        return list(self._places)
