"""Passwords in addresses: what is shown, stored or sent to others is without them."""

from __future__ import annotations

import re

_ADDRESS = re.compile(r"://[^\s\"'<>`]+")
_USER = re.compile(
    r"""://
    (?:[^/?#@:\[]*:(?!\d*[/?#])[^@\\]*@   # user:password@, whatever is in a password: unless it is a port
    |[^/?#\\]*@                           # user@
    )+""",
    re.VERBOSE,
)
_QUERY = re.compile(r"([?&](?:[\w.-]*password|passwd|pwd|[\w.-]*token|[\w.-]*secret|api_?key)=)[^&#\\]+", re.IGNORECASE)


def without_credentials(text: str, instead: str = "") -> str:
    """``text`` without the user and password of every address, nor what its query calls a password, token or secret.

    Args:
        text: anything that may hold addresses.
        instead: what stands where a user was, e.g. ``***@``.
    """

    def shown(address: re.Match[str]) -> str:
        return _QUERY.sub(r"\1***", _USER.sub(f"://{instead}", address[0]))

    return _ADDRESS.sub(shown, text)
