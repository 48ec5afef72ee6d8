"""Passwords in addresses: what is shown, stored or sent to others is without them."""

from __future__ import annotations

import re

_CREDENTIALS = re.compile(r"(?<=://)[^/@\s\"'<>]+@")


def without_credentials(text: str) -> str:
    """``text`` with the user and password taken out of every address."""
    return _CREDENTIALS.sub("", text)
