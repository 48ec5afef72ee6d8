"""MLflow's server as ``sweeprof ui`` starts it: for one user of the machine, and for the artifacts of one folder of sweeps.

MLflow finds :func:`app` by the entry point ``mlflow.app`` in pyproject.toml.
"""

from __future__ import annotations

import base64
import os
import secrets
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from sweeprof.credentials import redacted_address
from sweeprof.tracking.connection import experiment_with, found_experiment, run_id
from sweeprof.tracking.runs import experiment_name
from sweeprof.tracking.views import addresses, run_address

NAME = "sweeprof"
"""Of the entry point."""
TOKEN = "SWEEPROF_UI_TOKEN"
"""Environment variable with the server's token: unlike a command line, only its user can read it."""
ARTIFACTS = "SWEEPROF_UI_ARTIFACTS"
"""Environment variable with the only folder whose artifacts the server shows; unset: any that the store names."""

Scope = MutableMapping[str, Any]
ReceiveMessage = Callable[[], Awaitable[Scope]]
SendMessage = Callable[[Scope], Awaitable[None]]
App = Callable[[Scope, ReceiveMessage, SendMessage], Awaitable[None]]

_REFUSED = b"403: open the address that `sweeprof ui` printed, which has the token of this server.\n"


def app() -> App:
    """Return MLflow's application behind the token of the environment."""
    from mlflow.server.fastapi_app import app as mlflow_app

    from sweeprof.tracking.connection import confine_artifacts

    if ARTIFACTS in os.environ:
        confine_artifacts(Path(os.environ[ARTIFACTS]))
    return TokenGuard(mlflow_app, os.environ[TOKEN])


def with_token(page: str, token: str) -> str:
    """Return the address of a page of MLflow's interface with the token, which the server replaces by a cookie."""
    base, _, fragment = page.partition("/#/")
    return f"{base}/?token={token}#/{fragment}"


class TokenGuard:
    """An ASGI application that passes on what comes with a token, and answers 403 to everything else.

    The token comes in a cookie, or as the user name of basic authentication, as in ``http://TOKEN@127.0.0.1:5000``. A browser
    gets the cookie from the address ``/?token=TOKEN``.
    """

    def __init__(self, app: App, token: str) -> None:
        self._app, self._token = app, token.encode()

    async def __call__(self, scope: Scope, receive: ReceiveMessage, send: SendMessage) -> None:
        """Answer a request."""
        kind, path = scope["type"], scope.get("path")
        asks_for_health = kind == "http" and scope["method"] == "GET" and path == "/health"
        if kind == "lifespan" or asks_for_health:
            await self._app(scope, receive, send)
            return
        if kind == "http" and path == "/":
            token = next(
                (part for part in scope.get("query_string", b"").split(b"&") if part.startswith(b"token=")), b""
            )
            if self._is_token(token.removeprefix(b"token=")):
                # The browser keeps the fragment of the address, in which MLflow's interface has the page.
                cookie = b"%s=%s; Path=/; HttpOnly; SameSite=Lax" % (_cookie_name(scope), self._token)
                headers = [(b"location", b"/"), (b"set-cookie", cookie), (b"referrer-policy", b"no-referrer")]
                await _answer(send, 303, headers, b"")
                return
        if any(map(self._is_token, _tokens_in_headers(scope))):
            await self._app(scope, receive, send)
        elif kind == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            await _answer(send, 403, [(b"content-type", b"text/plain; charset=utf-8")], _REFUSED)

    def _is_token(self, given: bytes) -> bool:
        return secrets.compare_digest(given, self._token)  # which takes as long for a token that is nearly right


def _tokens_in_headers(scope: Scope) -> Iterator[bytes]:
    for name, value in scope.get("headers", ()):
        if name == b"cookie":
            # Parsed by hand: http.cookies stops at the first cookie that it refuses, of whatever server on this host.
            for pair in value.split(b";"):
                key, _, cookie = pair.strip().partition(b"=")
                if key == _cookie_name(scope):
                    yield cookie
        elif name == b"authorization":
            scheme, _, encoded = value.partition(b" ")
            if scheme.lower() == b"basic":
                with suppress(ValueError):
                    yield base64.b64decode(encoded).partition(b":")[0]


def _cookie_name(scope: Scope) -> bytes:
    """Return a name of its own for each server: browsers send cookies to all ports of a host."""
    return b"sweeprof-ui-%d" % scope["server"][1]


async def _answer(send: SendMessage, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    headers = [*headers, (b"cache-control", b"no-store"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def pages_of(address: str, sweep_name: str, sweep_id: str, login: bool = True) -> dict[str, str]:
    """Return the addresses of a tracking server's pages about a sweep by what they show, the most useful first.

    There are none if the server does not have the sweep.

    Args:
        login: whether the server may be told the user and password of the environment.

    Raises:
        ServerUnreachable: the server was not reached, or refused.
    """
    experiment, tags = found_experiment(address, experiment_name(sweep_name), login)
    condition = f"tags.`sweeprof.sweep_id` = '{sweep_id}' and tags.`sweeprof.kind` = 'sweep'"
    sweep = run_id(address, experiment, condition, login) if experiment else None
    if sweep is None:  # it is below a run of another experiment
        experiment, tags = experiment_with(address, condition, login)
        sweep = run_id(address, experiment, condition, login) if experiment else None
    if experiment is None or sweep is None:
        return {}
    shown = redacted_address(address, "")
    views = addresses(shown, experiment, sweep_id, sweep, tags)
    pages = {kind.capitalize(): page for kind, page in views.items()}
    pages["Sweep"] = run_address(shown, experiment, sweep)
    pages["Report"] = run_address(shown, experiment, sweep, "report.html")
    return pages
