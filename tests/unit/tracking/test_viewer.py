"""The application in front of MLflow's server passes on requests with the token, and nothing else."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import pytest

from sweeprof.tracking.viewer import TokenGuard, with_token

TOKEN = "0123456789abcdef"
COOKIE = f"sweeprof-ui-5000={TOKEN}"
Sent = list[dict[str, Any]]


def asked(path: str, method: str = "GET", kind: str = "http", query: str = "", **headers: str) -> Sent:
    """The messages that answer a request; of one that is passed on, ``{"passed": True}``."""
    sent: Sent = []

    async def behind(*_: object) -> None:
        sent.append({"passed": True})

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": kind,
        "method": method,
        "path": path,
        "query_string": query.encode(),
        "server": ("127.0.0.1", 5000),
        "headers": [(name.encode(), value.encode("latin-1")) for name, value in headers.items()],
    }
    asyncio.run(TokenGuard(behind, TOKEN)(scope, None, send))  # type: ignore[arg-type]
    return sent


def basic(user: str) -> str:
    return f"Basic {base64.b64encode(f'{user}:'.encode()).decode()}"


@pytest.mark.parametrize(
    ("path", "method"),
    [
        *[
            ("/", "GET"),
            ("/health", "POST"),
            ("/health/", "GET"),
            ("//health", "GET"),
            ("/version", "GET"),
            ("/x", "HEAD"),
        ],
        *[("/api/2.0/mlflow/experiments/search", "POST"), ("/ajax-api/2.0/mlflow/runs/search", "OPTIONS")],
        *[("/graphql", "POST"), ("/get-artifact", "GET"), ("/static-files/main.js", "GET"), ("/docs", "GET")],
    ],
)
def test_a_request_without_the_token_is_refused(path: str, method: str) -> None:
    wrong = TOKEN[:-1] + "0"
    for headers in (
        *[{}, {"cookie": f"sweeprof-ui-5000={wrong}"}, {"cookie": f"sweeprof-ui-5001={TOKEN}"}, {"cookie": "\xff=;;="}],
        *[{"authorization": basic(wrong)}, {"authorization": "Basic %"}, {"authorization": f"Bearer {TOKEN}"}],
    ):
        start, body = asked(path, method, query=f"token={wrong}&x=%ff", **headers)
        assert start["status"] == 403
        assert TOKEN.encode() not in body["body"]


def test_a_token_in_the_query_of_another_page_is_refused() -> None:
    assert asked("/get-artifact", query=f"token={TOKEN}")[0]["status"] == 403


def test_what_has_the_token_is_passed_on() -> None:
    for headers in ({"cookie": f"a b=c; \xe9; {COOKIE}"}, {"authorization": basic(TOKEN)}):
        assert asked("/api/2.0/mlflow/experiments/search", "POST", **headers) == [{"passed": True}]
        assert asked("/", kind="websocket", **headers) == [{"passed": True}]
    assert asked("/health") == [{"passed": True}]
    assert asked("/", kind="websocket") == [{"type": "websocket.close", "code": 1008}]


def test_the_address_with_the_token_gives_a_cookie_and_keeps_the_page() -> None:
    assert (
        with_token("http://127.0.0.1:5000/#/experiments/1?a=b", "T")
        == "http://127.0.0.1:5000/?token=T#/experiments/1?a=b"
    )
    start, _ = asked("/", query=f"token={TOKEN}")
    headers = dict(start["headers"])
    assert (start["status"], headers[b"location"]) == (303, b"/")
    assert headers[b"set-cookie"].decode().split("; ") == [COOKIE, "Path=/", "HttpOnly", "SameSite=Lax"]
