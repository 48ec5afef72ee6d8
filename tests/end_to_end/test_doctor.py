"""The doctor on this machine, for real."""

from __future__ import annotations

import json
import os
import threading
from functools import partial
from importlib import metadata
from pathlib import Path
from pwd import getpwuid
from typing import Any

import psutil
import pytest

from support.command import Ran, call_module
from sweeprof.run import locks
from sweeprof.run.locks import Holder, HostLock

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def own_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "FOLDER", tmp_path / "locks")


def doctor(cwd: Path, *arguments: str) -> Ran:
    return call_module(cwd, "sweeprof", "doctor", *arguments)


def found(ran: Ran) -> dict[tuple[str, str], dict[str, Any]]:
    assert ran.code == 0, ran.err
    return {(row["section"], row["name"]): row for row in json.loads(ran.out)}


@pytest.mark.thorough
def test_everything_is_looked_at(tmp_path: Path) -> None:
    ran = doctor(tmp_path, "--json")
    rows = found(ran)
    assert all((row["value"] is None) == (row["reason"] is not None) for row in rows.values())
    assert metadata.version("torch") in rows["Backends", "torch"]["value"]
    assert "devices cpu" in rows["Backends", "torch"]["value"]
    assert metadata.version("tensorflow") in rows["Backends", "tensorflow"]["value"]
    assert rows["Versions", "hydra-core"]["value"] == metadata.version("hydra-core")
    assert rows["Processor", "logical processors"]["value"] == str(psutil.cpu_count())
    assert rows["Storage", f"writing a record in {tmp_path}"]["value"].endswith(" ms")
    assert rows["Clock", "resolution"]["value"].endswith(" ns")
    assert "10 processes" in rows["Noise", "between processes"]["value"]
    assert rows["Noise", "protocol=default"]["value"].startswith("5 rounds settle ")


def test_the_quick_one_tests_no_backend_and_waits_and_strict_fails_where_something_distorts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Any] = {"busy": psutil.cpu_count(), "top": [], "throttled": 0, "overheated": 0}
    monkeypatch.setattr("sweeprof.results.environment.between", lambda *_: seen)
    let_go = threading.Event()
    busy = threading.Thread(target=partial(_busy, let_go))
    busy.start()
    threading.Timer(2.0, let_go.set).start()
    try:
        ran = doctor(tmp_path, "--quick", "--strict")
    finally:
        let_go.set()
        busy.join()
    assert ran.code == 2, ran.err
    assert "Before you measure small differences" in ran.out
    assert "Load, processors busy with other things" in ran.out
    assert f"waiting for sweep other (s9) of user {getpwuid(os.geteuid()).pw_name}, pid {os.getpid()}" in ran.err
    assert "(not imported: --quick)" in ran.out
    assert "protocol=rigorous" in ran.out
    assert "Good to know" in ran.out


def _busy(let_go: threading.Event) -> None:
    with HostLock(Holder(os.getpid(), "me", "s9", "other")).taken(True):
        let_go.wait(60)
