"""An extension of Griffe: docstrings show ``:class:`~package.Name``` as the code ``Name``."""

from __future__ import annotations

import re
from typing import Any

import griffe


class DocstringRoles(griffe.Extension):
    """Replaces roles of reStructuredText, which Markdown does not have."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of an object when it is read."""
        if obj.docstring is not None:
            obj.docstring.value = re.sub(r":\w+:`~?(?:[\w.]+\.)?(\w+)`", r"`\1`", obj.docstring.value)
