"""Limits on every request to a tracking server: how long it may take in all, and how large its answer may be.

The timeouts of HTTP libraries hold for each single read, so that a server which sends one byte per second never runs into them.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from requests import PreparedRequest, Response, Session
    from requests.adapters import HTTPAdapter

T = TypeVar("T")

REQUEST_S = 30.0
"""For a request with its redirects and its whole answer; a server may wait 20 seconds for its own database."""
UPLOAD_BYTES_PER_S = 256 << 10
"""A request that uploads gets as much more time as this rate needs."""
ANSWER_BYTES = 256 << 20
"""Many times what MLflow answers for 500 runs."""


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
            said = "took too long" if late else f"is larger than {ANSWER_BYTES >> 20} MiB"
            raise exceptions.ConnectionError(f"the answer {said}")
    response._content = bytes(content)


def _size(request: PreparedRequest) -> int:
    length = request.headers.get("Content-Length")
    return int(length) if length else 0
