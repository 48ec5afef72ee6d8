"""Every command with every kind of address that a folder can name: a socket that listens notes who connects."""

from __future__ import annotations

import os
import re
import shutil
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from support import command as commands
from support.command import Command, Ran, call_command, run_command
from support.plans import fake_plan, sweep_folder
from sweeprof.config.schema import RESOURCES
from sweeprof.results.files import read_json, write_json
from sweeprof.results.record import Json, Record
from sweeprof.storage import Folder, Jobs
from sweeprof.tracking import MLFLOW

COMMANDS = {
    "report": ["report", "DIR"],
    "compare": ["compare", "DIR", "DIR"],
    "tag": ["compare", "DIR", "--tag", "nightly"],
    "collect": ["collect", "DIR"],
    "collect --wait": ["collect", "DIR", "--wait"],
    "sync": ["sync", "DIR"],
    "sync unsent": ["sync", "unsent"],
    "ui": ["ui", "DIR", "--port", "0", "--no-browser"],
    "prune": ["prune", "test", "--keep", "1"],
    "resume": ["resume=DIR"],
    "dry run": ["resume=DIR", "dry_run=true"],
}
CONNECTS = {("ray", "collect"), ("http", "collect"), ("http", "sync"), ("http", "ui"), ("baseline", "collect")}
"""Of one's own folder: what these commands are for."""
GOLDEN = Path(__file__).parents[2] / "golden" / "sweep-v2"
LOGIN = "CANARY"


@dataclass
class Listener:
    """A port on which everything that connects is noted, with what it says first."""

    socket: socket.socket
    heard: list[bytes] = field(default_factory=list)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.socket.getsockname()[1]}"

    def serve(self) -> None:
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(1)
                try:
                    self.heard.append(connection.recv(1 << 16))
                    connection.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                except OSError:
                    self.heard.append(b"")


@pytest.fixture
def listener() -> Iterator[Listener]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        found = Listener(server)
        thread = threading.Thread(target=found.serve, daemon=True)
        thread.start()
        yield found
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with the user's login, and with a Ray that connects and then fails."""
    home = tmp_path / "home"
    home.mkdir()
    (home / ".netrc").write_text(f"default login u password {LOGIN}\n")
    (home / ".netrc").chmod(0o600)
    ray = tmp_path / "stub" / "ray"
    ray.mkdir(parents=True)
    (ray / "__init__.py").write_text("def init(*_, **__): raise RuntimeError('stub')\n")
    (ray / "exceptions.py").write_text(
        "class RayError(Exception): pass\nActorDiedError = ActorUnavailableError = GetTimeoutError = RayError\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "stub"))
    for name in ("RAY_ADDRESS", "http_proxy", "HTTP_PROXY", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    return home


def write_folder(home: Path, kind: str, listener: Listener) -> Folder:
    """Write a sweep that was measured by a job, whose folder names the address, and a newer one."""
    path = home / "outputs" / "test" / "2026-11-22_10-00-00Z"
    folder = sweep_folder(path, fake_plan({"a": {}}, ["analysis"], limits={"locks": str(home.with_name("locks"))}))
    Record("s1", "ca", "analysis", "ok").write(folder.records)
    resources: Json = {**dict.fromkeys(RESOURCES), "cpus": 1, "options": {}}
    settings: Json = {
        **dict.fromkeys(RESOURCES),
        "scheduler": "ray" if kind == "ray" else None,
        "address": listener.address,
        "options": {},
        "poll_s": 0.1,
    }
    plan = read_json(folder.plan)
    plan["cluster"] = {"settings": settings, "resources": [resources]}
    if kind == "baseline":
        against = {"label": "x", "file": str(GOLDEN), "sweep_id": "s0"}
        plan["compare"]["against"] = against
    write_json(folder.plan, plan)
    if kind == "ray":
        jobs = Jobs(folder.path)
        jobs.keep(jobs.new("test", [0], resources), "#!/bin/bash\n")
    uri = {"http": f"http://{listener.address}", "database": f"postgresql://{listener.address}/x"}.get(kind)
    target = MLFLOW if uri else None
    write_json(folder.tracking, {"config": {"_target_": target, "uri": uri}, "complete": True, "sent": None})
    shutil.copytree(folder.path, path.with_name("2026-11-22_11-00-00Z"))
    return folder


def belong_to_another(folder: Folder, how: str) -> None:
    for path in (folder.path, folder.path.with_name("2026-11-22_11-00-00Z")):
        if how == "owner":
            for one in (path, *path.rglob("*")):
                os.chown(one, 65534, 65534)
        else:
            path.chmod(0o777)


def ran(home: Path, folder: Folder, command: str, *more: str, call: Command = call_command) -> Ran:
    return call(home, *(word.replace("DIR", str(folder.path)) for word in COMMANDS[command]), *more)


def used(kind: str, folder: Folder, listener: Listener) -> bool:
    """Return whether the address was used."""
    return folder.baseline.exists() if kind == "baseline" else bool(listener.heard)


@pytest.mark.parametrize(
    "how", [pytest.param("owner", marks=pytest.mark.skipif(os.geteuid() != 0, reason="needs root")), "mode"]
)
@pytest.mark.parametrize("kind", ["ray", "http", "database", "baseline"])
@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_uses_an_address_that_only_the_folder_of_another_user_names(
    command: str, kind: str, how: str, home: Path, listener: Listener
) -> None:
    folder = write_folder(home, kind, listener)
    belong_to_another(folder, how)
    done = ran(home, folder, command)
    assert not used(kind, folder, listener), listener.heard
    assert "Traceback" not in done.err
    if (kind, command) in CONNECTS:
        assert done.code == 1
        assert re.search("is named by a folder that (belongs to another user|can be written by every user)", done.err)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "command"), sorted(CONNECTS))
@pytest.mark.parametrize("trust", [False, True])
def test_of_ones_own_folder_and_with_trust_the_address_is_used_and_the_login_with_trust_alone(
    kind: str, command: str, trust: bool, home: Path, listener: Listener
) -> None:
    folder = write_folder(home, kind, listener)
    if trust:
        belong_to_another(folder, "mode")
    if trust and command == "ui":  # for which MLFLOW_TRACKING_URI names the address
        pytest.skip("ui has no --trust")
    ran(home, folder, command, *(["--trust"] if trust else []), call=run_command)
    assert used(kind, folder, listener)
    has_login = any(b"authorization" in heard.lower() for heard in listener.heard)
    assert has_login == (trust and kind == "http")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "variable", "command"),
    [
        ("ray", "RAY_ADDRESS", "collect"),
        ("http", "MLFLOW_TRACKING_URI", "collect"),
        ("http", "MLFLOW_TRACKING_URI", "sync"),
    ],
)
def test_an_address_that_the_environment_names_too_is_used(
    kind: str, variable: str, command: str, home: Path, listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_folder(home, kind, listener)
    belong_to_another(folder, "mode")
    address = listener.address if kind == "ray" else f"http://{listener.address}"
    plain = commands.environment
    monkeypatch.setattr(commands, "environment", lambda cwd: {**plain(cwd), variable: address})
    ran(home, folder, command, call=run_command)
    assert listener.heard


def test_a_module_in_the_working_directory_is_not_imported(home: Path, listener: Listener) -> None:
    """``cd DIR; sweeprof collect .`` in a folder with a file mlflow.py."""
    folder = write_folder(home, "http", listener)
    for name in ("mlflow", "ray", "sweeprof_tracking", "requests"):
        (folder.path / f"{name}.py").write_text(f"open({str(home / 'imported')!r}, 'w').close()\n")
    call_command(folder.path, "sync", str(folder.path))
    assert not (home / "imported").exists()
