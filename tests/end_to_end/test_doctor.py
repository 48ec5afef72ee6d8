"""The doctor on this machine, for real."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib import metadata
from pathlib import Path
from pwd import getpwuid
from typing import Any

import psutil
import pytest

from support.command import Ran, call_module, run_command
from sweeprof.run.locks import Holder, HostLock

pytestmark = pytest.mark.slow


def doctor(cwd: Path, *arguments: str) -> Ran:
    return call_module(cwd, "sweeprof", "doctor", "--locks", str(cwd / "locks"), *arguments)


def found(ran: Ran) -> dict[tuple[str, str], dict[str, Any]]:
    assert ran.code == 0, ran.err
    return {(row["section"], row["name"]): row for row in json.loads(ran.out)}


def test_everything_is_looked_at(tmp_path: Path) -> None:
    ran = doctor(tmp_path, "--json")
    rows = found(ran)
    assert all((row["value"] is None) == (row["reason"] is not None) for row in rows.values())
    assert metadata.version("torch") in rows["Backends", "torch"]["value"]
    assert "devices cpu" in rows["Backends", "torch"]["value"]
    assert metadata.version("tensorflow") in rows["Backends", "tensorflow"]["value"]
    assert rows["Versions", "hydra-core"]["value"] == metadata.version("hydra-core")
    assert rows["Processor", "logical processors"]["value"] == str(psutil.cpu_count())
    assert rows["Tracking", "MLflow server"]["reason"] == "none was named: --uri http://…"
    assert rows["Storage", f"writing a record in {tmp_path}"]["value"].endswith(" ms")
    assert rows["Clock", "resolution"]["value"].endswith(" ns")
    assert "10 processes" in rows["Noise", "between processes"]["value"]
    assert rows["Noise", "protocol=default"]["value"].startswith("5 rounds settle ")


class Healthy(BaseHTTPRequestHandler):
    """Answers as an MLflow server does."""

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


def test_the_quick_one_imports_nothing_waits_for_its_turn_and_asks_a_server(tmp_path: Path) -> None:
    server = HTTPServer(("127.0.0.1", 0), Healthy)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    uri = f"http://127.0.0.1:{server.server_port}"
    let_go = threading.Event()
    busy = threading.Thread(target=partial(_busy, tmp_path / "locks", let_go))
    busy.start()
    threading.Timer(2.0, let_go.set).start()
    try:
        ran = doctor(tmp_path, "--quick", "--uri", uri)
    finally:
        let_go.set()
        busy.join()
        server.shutdown()
        server.server_close()
    assert ran.code == 0, ran.err
    assert f"waiting for sweep other (s9) of user {getpwuid(os.geteuid()).pw_name}, pid {os.getpid()}" in ran.err
    assert "answers: 200" in ran.out
    assert "(not imported: --quick)" in ran.out
    assert "protocol=rigorous" in ran.out
    assert "Good to know" in ran.out


def _busy(folder: Path, let_go: threading.Event) -> None:
    with HostLock(Holder(os.getpid(), "me", "s9", "other"), folder).taken(True):
        let_go.wait(60)


def test_strict_fails_where_something_would_distort_and_a_dead_server_is_a_row(tmp_path: Path) -> None:
    own_locks = ("--locks", str(tmp_path / "locks"))
    command = [sys.executable, "-c", "while True: pass"]
    spinning = [subprocess.Popen(command) for _ in range((psutil.cpu_count() or 1) // 2 + 1)]
    try:
        # In a process of its own: of this one, the spinning processes are children, which are not "other things".
        ran = run_command(tmp_path, "doctor", "--quick", "--strict", "--uri", "http://127.0.0.1:1", *own_locks)
    finally:
        _end(spinning)
    assert ran.code == 2
    assert "Before you measure small differences" in ran.out
    assert "Load, processors busy with other things" in ran.out
    assert "does not answer: [Errno 111] Connection refused" in ran.out
    assert "sweeprof sync DIR uri=http://127.0.0.1:1" in ran.out


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.kill()
        process.wait()


def test_a_folder_that_cannot_be_used_is_a_mistake(tmp_path: Path) -> None:
    (tmp_path / "locks").touch()
    ran = doctor(tmp_path, "--quick")
    assert ran.code == 1
    assert ran.err.startswith("error: limits.locks: ")
