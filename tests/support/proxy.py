"""A proxy in front of a server, which does to single requests what networks, proxies and servers do."""

from __future__ import annotations

import base64
import http.client
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal
from urllib.parse import urlsplit

Fault = Literal["hang", "drop", "twice"] | int | None
"""Answer never; forward and drop the answer; forward twice; answer with a status; or, with None, do what a proxy is for."""

_NOT_FORWARDED = {
    "connection",
    "keep-alive",
    "transfer-encoding",
    "content-length",
    "host",
    "authorization",
    "server",
    "date",
}


class Proxy(ThreadingHTTPServer):
    """Listens on a free port of 127.0.0.1."""

    daemon_threads = True

    def __init__(self, target: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.target = urlsplit(target).netloc
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.fault: Callable[[str, str, int], Fault] = lambda method, path, number: None
        """Called with the number of a request, from 0, before it is forwarded."""
        self.asked: list[tuple[str, str]] = []
        """Method and path of every request."""
        self.answered: set[int] = set()
        """Every status that was answered."""
        self.login: tuple[str, str] | None = None
        """User and password without which it answers 401."""
        self.ending = threading.Event()
        self._lock = threading.Lock()

    def number(self, method: str, path: str) -> int:
        """Note a request; returns how many there were before."""
        with self._lock:
            self.asked.append((method, path))
            return len(self.asked) - 1

    def handle_error(self, request: object, client_address: object) -> None:
        """Be silent: clients that are killed are what the tests are about."""


class _Handler(BaseHTTPRequestHandler):
    server: Proxy
    protocol_version = "HTTP/1.1"

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = self.server.fault(self.command, self.path, self.server.number(self.command, self.path))
        if fault == "hang":
            self.server.ending.wait()
            self.close_connection = True
        elif self.server.login and self.headers.get("Authorization") != _basic(*self.server.login):
            self._answer(401, {"Content-Type": "text/plain"}, b"You are not authenticated.")
        elif isinstance(fault, int):
            self._answer(fault, {"Content-Type": "text/html"}, b"<html>\n<h1>proxy</h1>\n</html>")
        else:
            for _ in range(2 if fault == "twice" else 1):
                status, headers, content = self._forwarded(body)
            if fault == "drop":
                self.close_connection = True
            else:
                self._answer(status, headers, content)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _handle  # noqa: N815

    def _forwarded(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection(self.server.target, timeout=60)
        try:
            kept = {name: value for name, value in self.headers.items() if name.lower() not in _NOT_FORWARDED}
            connection.request(self.command, self.path, body, {**kept, "Host": self.server.target})
            response = connection.getresponse()
            content = response.read()
        except OSError:
            return 502, {"Content-Type": "text/plain"}, b"Bad gateway"
        finally:
            connection.close()
        headers = {name: value for name, value in response.getheaders() if name.lower() not in _NOT_FORWARDED}
        return response.status, headers, content

    def _answer(self, status: int, headers: dict[str, str], content: bytes) -> None:
        self.server.answered.add(status)
        with suppress(OSError):
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Be silent."""


def _basic(user: str, password: str) -> str:
    return f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"


@contextmanager
def proxy(target: str) -> Iterator[Proxy]:
    """A proxy in front of the server at ``target``."""
    with Proxy(target) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.ending.set()
            server.shutdown()
            thread.join()
