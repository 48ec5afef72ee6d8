"""Converters' processes as forks of one that has imported what they import, which takes each of them seconds.

``python -m support.converting SOCKET OWNER`` is that process. It forks for every connection to its socket, and the fork does what
``python -m MODULE`` would do; it ends with the process OWNER. What a fork had to import is imported for the next ones.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import io
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock

TESTS = Path(__file__).parents[1]
START_S = 60.0
POLL_S = 1.0
INSTALLED = (sysconfig.get_path("purelib"), sysconfig.get_path("stdlib"))


class Conversions:
    """What :mod:`sweeprof.backends.model_files` uses of :mod:`subprocess`; the processes are forks."""

    def __init__(self, folder: Path, owner: int) -> None:
        """Args:
        folder: of the sockets, to which all who have this folder connect.
        owner: the process with whose end the others end.
        """
        self.folder, self.owner = folder, owner
        self._started: list[subprocess.Popen[bytes]] = []

    def run(self, command: Sequence[str], *, input: str, env: Mapping[str, str], **_: Any) -> Any:
        """Do what ``subprocess.run`` would do with a command ``python -m MODULE``."""
        asked = {"module": command[2], "input": input, "env": dict(env)}
        with self._connected(env) as server, server.makefile("rw") as stream:
            stream.write(json.dumps(asked) + "\n")
            stream.flush()
            answer = json.loads(stream.readline())
        return subprocess.CompletedProcess(command, answer["code"], answer["out"], answer["err"])

    def _connected(self, env: Mapping[str, str]) -> socket.socket:
        """A connection to the process with these variables, which is started if there is none."""
        variables = {
            name: value for name, value in env.items() if os.environ.get(name) != value and name != "PYTHONPATH"
        }
        path = self.folder / hashlib.sha256(json.dumps(variables, sort_keys=True).encode()).hexdigest()[:8]
        with FileLock(path.with_suffix(".lock")):
            if not path.exists():
                with path.with_suffix(".log").open("wb") as log:
                    self._started.append(
                        subprocess.Popen(
                            [sys.executable, "-m", "support.converting", str(path), str(self.owner)],
                            cwd=TESTS,
                            env=dict(env),
                            stdin=subprocess.DEVNULL,
                            stdout=log,
                            stderr=log,
                            start_new_session=True,
                        )
                    )
            deadline = time.monotonic() + START_S
            while not path.exists() and time.monotonic() < deadline:
                time.sleep(0.02)
        connected = socket.socket(socket.AF_UNIX)
        connected.connect(str(path))
        return connected

    def close(self) -> None:
        """End the processes that this one has started."""
        for process in self._started:
            process.terminate()
            process.wait()


def serve(path: Path, owner: int) -> None:
    """Fork for every connection, one after the other, as long as the owner lives."""
    listening = socket.socket(socket.AF_UNIX)
    unready = path.with_suffix(".new")
    listening.bind(str(unready))
    listening.listen()
    unready.rename(path)  # from now on somebody may connect
    listening.settimeout(POLL_S)
    while _is_alive(owner):
        try:
            connection, _ = listening.accept()
        except TimeoutError:
            continue
        with connection, connection.makefile("rw") as stream, contextlib.suppress(BrokenPipeError):
            answer = _forked(json.loads(stream.readline()))
            modules = answer.pop("modules")
            stream.write(json.dumps(answer) + "\n")
            stream.flush()
        _import(modules)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def _forked(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Carry out what is asked in a fork; returns its exit code, its output, and the modules that it has imported."""
    with tempfile.TemporaryDirectory() as place:
        out, err, modules = (Path(place) / name for name in ("out", "err", "modules"))
        child = os.fork()
        if child == 0:
            code = 1
            try:
                for stream, file in ((1, out), (2, err)):
                    os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), stream)
                code = _run(asked)
                modules.write_text(json.dumps(_installed_modules()))
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        imported = json.loads(modules.read_text()) if modules.exists() else []
        code = os.waitstatus_to_exitcode(status)
        return {"code": code, "out": out.read_text(), "err": err.read_text(), "modules": imported}


def _run(asked: Mapping[str, Any]) -> int:
    os.environ.clear()
    os.environ.update(asked["env"])
    paths = asked["env"]["PYTHONPATH"].split(os.pathsep)
    sys.path[:] = [*paths, *(path for path in sys.path if path not in paths)]
    sys.argv[1:] = []
    sys.stdin = io.StringIO(asked["input"])
    try:
        runpy.run_module(asked["module"], run_name="__main__", alter_sys=True)
    except SystemExit as ending:
        return int(ending.code or 0)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


def _installed_modules() -> list[str]:
    """Names of the imported modules that do not belong to the model that was converted, in the order of their import."""
    files = {name: getattr(module, "__file__", None) for name, module in sys.modules.items() if name != "__main__"}
    return [name for name, file in files.items() if file is not None and file.startswith(INSTALLED)]


def _import(modules: Sequence[str]) -> None:
    for name in modules:
        if name not in sys.modules:
            with contextlib.suppress(Exception), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                importlib.import_module(name)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the owner's end is its own
    serve(Path(sys.argv[1]), int(sys.argv[2]))
