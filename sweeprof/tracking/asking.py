"""Questions to a tracking server by its REST interface: MLflow's own client takes two seconds to import."""

from __future__ import annotations

import base64
import json
import os
import urllib.parse
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError

from sweeprof.errors import SweeprofError
from sweeprof.tracking.credentials import without_credentials
from sweeprof.tracking.serving import LOCAL

ANSWER_S = 20.0
HEALTH_S = 2.0


class NoAnswer(SweeprofError):
    """A tracking server was not reached, or refused."""


def is_healthy(address: str) -> bool:
    """Whether a server answers at ``address``."""
    try:
        with _opened(f"{address}/health", HEALTH_S):
            return True
    except (OSError, ValueError, HTTPException):
        return False


def experiment_id(address: str, name: str) -> str | None:
    """Id of the experiment of that name; None where there is none.

    Raises:
        NoAnswer: the server was not reached, or refused.
    """
    # A sweep's name has no quotes in it (sweep/check.py).
    found = _asked(address, "experiments/search", {"filter": f"name = '{name}'", "max_results": 1})
    experiments = found.get("experiments", [])
    return str(experiments[0]["experiment_id"]) if experiments else None


def run_ids(address: str, experiment: str, condition: str, order: str, limit: int) -> list[str]:
    """Ids of the first ``limit`` runs for which ``condition`` holds; it and ``order`` are in MLflow's language.

    Raises:
        NoAnswer: the server was not reached, or refused.
    """
    asked = {"experiment_ids": [experiment], "filter": condition, "order_by": [order], "max_results": limit}
    return [run["info"]["run_id"] for run in _asked(address, "runs/search", asked).get("runs", [])]


def _asked(address: str, path: str, question: Mapping[str, Any]) -> dict[str, Any]:
    url = f"{address.rstrip('/')}/api/2.0/mlflow/{path}"
    try:
        with _opened(url, ANSWER_S, json.dumps(question).encode()) as answer:
            found: dict[str, Any] = json.loads(answer.read())
            return found
    except (OSError, ValueError, HTTPException) as error:
        raise NoAnswer(without_credentials(f"MLflow at {address} gave no answer: {_reason(error)}")) from None


def _reason(error: Exception) -> str:
    if isinstance(error, HTTPError):
        return f"{error.code} {error.reason}"
    return str(getattr(error, "reason", error)) or type(error).__name__


def _opened(url: str, timeout_s: float, body: bytes | None = None) -> Any:
    """The answer; a user and password in ``url`` become the header that they stand for, as MLflow's client has it."""
    parts = urllib.parse.urlsplit(url)
    headers = {"Content-Type": "application/json"}
    user = urllib.parse.unquote(parts.username or "") or os.environ.get("MLFLOW_TRACKING_USERNAME")
    password = urllib.parse.unquote(parts.password or "") or os.environ.get("MLFLOW_TRACKING_PASSWORD", "")
    if user:
        headers["Authorization"] = f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"
    elif token := os.environ.get("MLFLOW_TRACKING_TOKEN"):
        headers["Authorization"] = f"Bearer {token}"
    plain = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    # A proxy, meant for the world outside, knows nothing of this machine's own servers.
    proxies = urllib.request.ProxyHandler({} if parts.hostname in LOCAL else None)
    return urllib.request.build_opener(proxies).open(urllib.request.Request(plain, body, headers), timeout=timeout_s)
