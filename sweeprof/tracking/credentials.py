"""Passwords in addresses: what is shown, stored or sent to others is without them."""

from __future__ import annotations

import os
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


def knows_login(address: str) -> bool:
    """Whether the environment has the user of the server at ``address``, as MLflow's client reads it; never a database's."""
    is_server = address.startswith(("http://", "https://")) and "***" not in address
    return is_server and any(os.environ.get(name) for name in ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_TOKEN"))


LOGIN = "it wants to know who asks: set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"
"""What to do about the HTTP status 401."""
