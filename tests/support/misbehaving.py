"""A server on this machine that answers HTTP requests as no server should."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Literal

Behaviour = Literal["trickles headers", "trickles", "never stops", "never answers", "closes", "redirects"]
BEHAVIOURS: tuple[Behaviour, ...] = (
    "trickles headers",
    "trickles",
    "never stops",
    "never answers",
    "closes",
    "redirects",
)
PIECE_S = 0.05
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


@contextmanager
def misbehaving(behaviour: Behaviour) -> Iterator[str]:
    """The address of a server that behaves so until the context is left."""
    ending = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"

        def accept() -> None:
            with suppress(OSError):
                while True:
                    connection = listener.accept()[0]
                    threading.Thread(target=_answer, args=(connection, behaviour, address, ending), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        try:
            yield address
        finally:
            ending.set()
            listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts


def _answer(connection: socket.socket, behaviour: Behaviour, address: str, ending: threading.Event) -> None:
    with connection, suppress(OSError):
        connection.recv(1 << 16)
        if behaviour == "never answers":
            ending.wait()
        elif behaviour == "closes":
            connection.sendall(HEAD + b"Content-Length: 1000\r\n\r\n{")
        elif behaviour == "redirects":
            to = f"Location: {address}/again\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
            connection.sendall(b"HTTP/1.1 307 x\r\n" + to.encode())
        elif behaviour == "never stops":
            connection.sendall(HEAD + b"\r\n[")
            while not ending.is_set():
                connection.sendall(b"1," * (1 << 15))
        else:
            start = HEAD + b"Content-Length: 1000000\r\n\r\n["
            rest = b"1," * 500_000
            if behaviour == "trickles":
                connection.sendall(start)
                start = b""
            for byte in start + rest:
                if ending.wait(PIECE_S):
                    return
                connection.sendall(bytes([byte]))
