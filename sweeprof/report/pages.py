"""HTML pages from the templates beside this code: everything escaped, nothing fetched."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from sweeprof.report.cells import axis_text, one_line, shortened


def render(template: str, **values: Any) -> str:
    """The page that a template makes of the values."""
    return _environment().get_template(template).render(values)


@cache  # a template is compiled once, however many pages are made of it
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("sweeprof.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(axis_text=axis_text, one_line=one_line, shortened=shortened, script_json=script_json)
    return environment


def script_json(data: object) -> Markup:
    """JSON that cannot end the ``script`` element it stands in."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)
