"""Requests to a tracking server by its REST interface, and limits on every request to it.

MLflow's own client takes two seconds to import. The timeouts of HTTP libraries hold for each single read, so that a server which
sends one byte per second never runs into them.
"""

from __future__ import annotations

import base64
import functools
import json
import os
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from http import HTTPStatus
from http.client import HTTPException
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.error import HTTPError

from sweeprof.credentials import redacted_address, redacted_message
from sweeprof.errors import SweeprofError
from sweeprof.tracking.credentials import LOGIN

if TYPE_CHECKING:
    from requests import PreparedRequest, Response, Session
    from requests.adapters import HTTPAdapter


T = TypeVar("T")

REQUEST_S = 30.0
"""For a request with its redirects and its whole answer; a server may wait 20 seconds for its own database."""
UPLOAD_BYTES_PER_S = 256 << 10
"""A request that uploads gets as much more time as this rate needs."""
ANSWER_BYTES = 256 << 20
"""Limit of an answer to MLflow's client: many times what MLflow answers for 500 runs."""

LOCAL = ("127.0.0.1", "localhost", "::1")
PORT = 5000
VIEWER = f"http://{LOCAL[0]}:{PORT}"
"""Where ``sweeprof ui`` shows a database, unless another port is given."""
ANSWER_S = 20.0
HEALTH_S = 2.0
REST_ANSWER_BYTES = 16 << 20
"""Many times the size of any answer to a question of this file."""


def within(limit_s: float, step: Callable[[], T]) -> T:
    """Return what ``step`` returns.

    Raises:
        TimeoutError: it did not return within ``limit_s``; it is then left to a thread that does not keep the process alive.
    """
    done: Future[T] = Future()
    threading.Thread(target=_run, args=(step, done), name="sweeprof-request", daemon=True).start()
    try:
        return done.result(limit_s)
    except TimeoutError:
        if done.done():  # raised by the step itself
            raise
        raise TimeoutError(f"no complete answer within {limit_s:g} s") from None
    finally:
        del done  # an error's traceback would keep it, and with it the error: sockets would stay open until the next collection


def _run(step: Callable[[], T], done: Future[T]) -> None:
    try:
        done.set_result(step())
    except BaseException as error:
        done.set_exception(error)


def limit_requests() -> None:
    """Limit every request that this process makes with the library ``requests``, as MLflow's client does, from now on."""
    from requests import Session, exceptions
    from requests.adapters import HTTPAdapter

    send, exchange = Session.send, HTTPAdapter.send
    if hasattr(send, "__wrapped__"):
        return
    redirected = threading.local()

    @functools.wraps(send)
    def limited_send(self: Session, request: PreparedRequest, **options: Any) -> Response:
        if getattr(redirected, "end", None):  # the limit is that of the first request
            return send(self, request, **options)
        limit_s = REQUEST_S + _size(request) / UPLOAD_BYTES_PER_S

        def step() -> Response:
            redirected.end = time.monotonic() + limit_s
            return send(self, request, **options)

        try:
            return within(limit_s, step)
        except TimeoutError as error:
            raise exceptions.Timeout(str(error)) from None

    @functools.wraps(exchange)
    def limited_exchange(self: HTTPAdapter, request: PreparedRequest, **options: Any) -> Response:
        response = exchange(self, request, **options)
        if not options.get("stream"):
            _read(response, getattr(redirected, "end", None))
        return response

    Session.send, HTTPAdapter.send = limited_send, limited_exchange  # type: ignore[method-assign, assignment]


def _read(response: Response, end: float | None) -> None:
    """Read the whole answer, as ``requests`` itself would without any limit."""
    from requests import exceptions

    content = bytearray()
    for chunk in response.iter_content(1 << 16):
        content += chunk
        late = end is not None and time.monotonic() > end
        if late or len(content) > ANSWER_BYTES:
            response.close()
            message = "took too long" if late else f"is larger than {ANSWER_BYTES >> 20} MiB"
            raise exceptions.ConnectionError(f"the answer {message}")
    response._content = bytes(content)


def _size(request: PreparedRequest) -> int:
    length = request.headers.get("Content-Length")
    return int(length) if length else 0


class ServerUnreachable(SweeprofError):
    """A tracking server was not reached, or refused."""


def is_healthy(address: str) -> bool:
    """True if a server answers at ``address``; it gets no password, as whoever listens there may be anyone."""
    try:
        _answer(urllib.request.Request(f"{_split(address)[0]}/health"), HEALTH_S)
        return True
    except (OSError, ValueError, HTTPException):
        return False


def found_experiment(address: str, name: str, login: bool = True) -> tuple[str | None, list[str]]:
    """Return the id of the experiment of that name and the keys of its tags; None if there is no such experiment.

    Args:
        login: whether the server may be told the user and password of the environment.

    Raises:
        ServerUnreachable: the server was not reached, or refused.
    """
    # A sweep's name has no quotes in it (config/check.py).
    found = _post(address, "experiments/search", {"filter": f"name = '{name}'", "max_results": 1}, login)
    for experiment in found.get("experiments", []):
        return str(experiment["experiment_id"]), [str(tag["key"]) for tag in experiment.get("tags", [])]
    return None, []


def run_id(address: str, experiment: str, condition: str, login: bool = True) -> str | None:
    """Id of the oldest run for which ``condition``, in MLflow's language, holds; None where there is none.

    Args:
        login: whether the server may be told the user and password of the environment.

    Raises:
        ServerUnreachable: the server was not reached, or refused.
    """
    order = ["attributes.start_time"]
    asked = {"experiment_ids": [experiment], "filter": condition, "order_by": order, "max_results": 1}
    runs = _post(address, "runs/search", asked, login).get("runs", [])
    return str(runs[0]["info"]["run_id"]) if runs else None


def _post(address: str, path: str, question: Mapping[str, Any], login: bool) -> dict[str, Any]:
    plain, given = _split(address)
    url = f"{plain.rstrip('/')}/api/2.0/mlflow/{path}"
    request = urllib.request.Request(url, json.dumps(question).encode(), {"Content-Type": "application/json"})
    authorization = given or (_of_environment() if login else None)
    if authorization:  # which another server, that this one may name instead, has no right to
        request.add_unredirected_header("Authorization", authorization)
    try:
        found: dict[str, Any] = json.loads(_answer(request, ANSWER_S))
        return found
    except (OSError, ValueError, HTTPException) as error:
        shown, reason = redacted_address(address, ""), redacted_message(_reason(error))
        raise ServerUnreachable(f"MLflow at {shown} gave no answer: {reason}") from None


def _reason(error: Exception) -> str:
    if isinstance(error, HTTPError):
        return f"{error.code} {error.reason}{f'; {LOGIN}' if error.code == HTTPStatus.UNAUTHORIZED else ''}"
    return str(getattr(error, "reason", error)) or type(error).__name__


def _split(address: str) -> tuple[str, str | None]:
    """The address without user and password, and the header that they stand for, as MLflow's client has it."""
    parts = urllib.parse.urlsplit(address)
    plain = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    user, password = (urllib.parse.unquote(text or "") for text in (parts.username, parts.password))
    return plain, _basic(user, password) if user else None


def _of_environment() -> str | None:
    if user := os.environ.get("MLFLOW_TRACKING_USERNAME"):
        return _basic(user, os.environ.get("MLFLOW_TRACKING_PASSWORD", ""))
    token = os.environ.get("MLFLOW_TRACKING_TOKEN")
    return f"Bearer {token}" if token else None


def _basic(user: str, password: str) -> str:
    return f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"


def _answer(request: urllib.request.Request, timeout_s: float) -> bytes:
    """The whole answer; raises ``TimeoutError`` where it is not there in time, and ``ValueError`` where it is too large."""
    # A proxy, meant for the world outside, knows nothing of this machine's own servers.
    host = urllib.parse.urlsplit(request.full_url).hostname
    proxies = urllib.request.ProxyHandler({} if host in LOCAL else None)

    def step() -> bytes:
        try:
            with urllib.request.build_opener(proxies).open(request, timeout=timeout_s) as answer:
                return bytes(answer.read(REST_ANSWER_BYTES + 1))
        except HTTPError as error:
            error.close()
            raise

    content = within(timeout_s, step)
    if len(content) > REST_ANSWER_BYTES:
        raise ValueError(f"its answer is larger than {REST_ANSWER_BYTES >> 20} MiB")
    return content
