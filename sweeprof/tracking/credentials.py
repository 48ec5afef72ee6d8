"""The logins of the user, with which MLflow's client and other libraries would log in at any address."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from sweeprof.credentials import redacted_address

LOGINS = (
    *("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_AUTH"),
    *("MLFLOW_TRACKING_AWS_SIGV4", "MLFLOW_TRACKING_CLIENT_CERT_PATH"),
)
"""Environment variables by which MLflow's client logs in to whatever server it is told of."""
LOGIN_FILE = "~/.mlflow/credentials"
"""A file that it reads likewise."""
CLOUD = ("AWS_", "AZURE_", "GOOGLE_", "DATABRICKS_", "PG", "MYSQL_")
"""Beginnings of the names of variables by which other libraries log in."""


def logins() -> list[str]:
    """Return the names of this user's variables and files with which MLflow's client would log in, at any address."""
    found = [name for name in LOGINS if os.environ.get(name)]
    try:
        has_file = Path(LOGIN_FILE).expanduser().exists()
    except (OSError, RuntimeError):  # a user without a home
        has_file = False
    return [*found, LOGIN_FILE] if has_file else found


def without_logins(variables: Mapping[str, str]) -> dict[str, str]:
    """Environment variables without those that hold a user's credentials, and with an empty ``.netrc`` for ``requests``."""
    kept = {key: value for key, value in variables.items() if key not in LOGINS and not key.startswith(CLOUD)}
    return {**kept, "NETRC": os.devnull}


def same_address(one: str, other: str) -> bool:
    """True if two addresses are equal apart from their credentials."""
    return redacted_address(one, "").rstrip("/") == redacted_address(other, "").rstrip("/")


def knows_login(address: str) -> bool:
    """True if the environment has a user for the server at ``address``, as MLflow's client reads it; never a database's."""
    is_server = address.startswith(("http://", "https://")) and "***" not in address
    return is_server and any(os.environ.get(name) for name in ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_TOKEN"))


LOGIN = "it wants to know who asks: set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"
"""What to do about the HTTP status 401."""
