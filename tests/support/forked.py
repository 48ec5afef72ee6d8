"""Child processes of sweeprof as forks of one that has imported what they import: frameworks take each of them seconds.

``python -m support.forked SOCKET OWNER MODULE…`` is the process that forks, a source; it imports the modules first. It forks for
every connection to its socket, and the fork does what ``python -c`` would do. Modules that a fork had to import are imported by the
source for the next ones. A source ends with the process OWNER.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from filelock import FileLock

from sweeprof import processes

TESTS = Path(__file__).parents[1]
INSTALLED = (sysconfig.get_path("purelib"), sysconfig.get_path("stdlib"), f"{TESTS.parent / 'sweeprof'}/")
"""Modules elsewhere belong to one test; a source does not import them."""
FORK_SERVER = "sweeprof.run.fork_server"
"""Its arguments are the modules that it imports, and the functions that it calls (``MODULE:FUNCTION``)."""
TRACKER = "sweeprof.run.tracker_process"
FRAMEWORKS = ("sweeprof.backends.", "sweeprof.model_sources.", "sweeprof.metrics.quality:", "torch.")
"""What such a module imports, a source for other ones does not: it would take memory, which is measured."""
START_S = 60.0
POLL_S = 1.0


class Sources:
    """The processes that fork, by what they have imported and their environment; each is started when it is needed."""

    DEVNULL = subprocess.DEVNULL
    TimeoutExpired = subprocess.TimeoutExpired

    def __init__(self, folder: Path, owner: int) -> None:
        """Args:
        folder: of the sockets, to which all who have this folder connect.
        owner: the process with whose end the sources end.
        """
        self.folder, self.owner = folder, owner

    def close(self) -> None:
        """End the sources."""
        for path in self.folder.glob("*.pid"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(path.read_text()), signal.SIGTERM)

    # What sweeprof uses of the module subprocess

    def Popen(  # noqa: N802
        self,
        command: Sequence[str],
        *,
        stdin: IO[str] | int,
        stdout: IO[Any],
        stderr: IO[Any],
        env: Mapping[str, str],
        pass_fds: Sequence[int] = (),
        **_: Any,
    ) -> Forked | subprocess.Popen[bytes]:
        """Start what a ``Child`` starts, in a session of its own; a tracker must be a child of its driver."""
        place = command.index("-c") + 1
        arguments = command[place + 1 :]
        module = arguments[1].partition(":")[0]
        if module == TRACKER:
            return subprocess.Popen(
                command, stdin=stdin, stdout=stdout, stderr=stderr, env=env, pass_fds=pass_fds, start_new_session=True
            )
        modules = [name for name in arguments[2:] if name.startswith(("sweeprof.", "hydra.", "torch."))]
        connection = self._connected(module, modules if module == FORK_SERVER else [], env)
        asked: dict[str, Any] = {
            "program": command[place],
            "arguments": list(arguments),
            "env": dict(env),
            "cwd": str(Path.cwd()),
            "is_first": "-P" not in command,
            "pass_fds": list(pass_fds),
        }
        with Path(os.devnull).open("rb") as nothing:
            descriptors = [nothing.fileno() if isinstance(stdin, int) else stdin.fileno()]
            descriptors += [stdout.fileno(), stderr.fileno(), *pass_fds]
            socket.send_fds(connection, [b"."], descriptors)
        connection.sendall(json.dumps(asked).encode() + b"\n")
        return Forked(connection, command)

    def _connected(self, module: str, modules: Sequence[str], env: Mapping[str, str]) -> socket.socket:
        """A connection to the source for such a process; where there is none, one that imports the modules is started."""
        own = sorted(
            (name, value) for name, value in env.items() if os.environ.get(name) != value and name != "PYTHONPATH"
        )
        known = json.dumps([module, [name for name in modules if name.startswith(FRAMEWORKS)], own])
        path = self.folder / hashlib.sha256(known.encode()).hexdigest()[:8]
        with FileLock(path.with_suffix(".lock")):
            if not path.exists():
                with path.with_suffix(".log").open("wb") as log:
                    subprocess.run(
                        [sys.executable, "-m", "support.forked", str(path), str(self.owner), *modules],
                        cwd=TESTS,
                        env={**env, "HOME": str(self.folder), "PYTHONPATH": f"{TESTS}{os.pathsep}{TESTS.parent}"},
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        check=True,
                    )
            deadline = time.monotonic() + START_S
            while not path.exists() and time.monotonic() < deadline:
                time.sleep(0.02)
        connected = socket.socket(socket.AF_UNIX)
        connected.connect(str(path))
        return connected


class Forked:
    """A process that a source has forked: what sweeprof uses of ``subprocess.Popen``."""

    def __init__(self, connection: socket.socket, command: Sequence[str]) -> None:
        self._stream, self._command = connection.makefile("r"), command
        self._connection = connection
        self.pid: int = json.loads(self._stream.readline())
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code; None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end, and return the exit code: if a signal has ended it, its negative number."""
        if self.returncode is None:
            if not select.select([self._connection], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self._command, timeout or 0)
            self.returncode = int(self._stream.readline())
            self._stream.close()
            self._connection.close()
        return self.returncode


# The source


def serve(path: Path, owner: int) -> None:
    """Fork for every connection, as long as the owner lives."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the keepers
    listening = socket.socket(socket.AF_UNIX)
    unready = path.with_suffix(".new")
    listening.bind(str(unready))
    listening.listen()
    unready.rename(path)  # from now on somebody may connect
    reading, writing = os.pipe()
    while _is_alive(owner):
        ready = select.select([listening.fileno(), reading], [], [], POLL_S)[0]
        if listening.fileno() in ready:
            connection, _ = listening.accept()
            if os.fork() == 0:
                listening.close()
                os.close(reading)
                _keep(connection, writing)
            connection.close()
        elif reading in ready:
            _import(os.read(reading, 1 << 20).decode().split())


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def _keep(connection: socket.socket, writing: int) -> None:
    """Be the parent of one process that is asked for; tell its number, then its exit code, and what it has imported."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _, descriptors, _, _ = socket.recv_fds(connection, 1, 16)
    stream = connection.makefile("rw")
    asked = json.loads(stream.readline())
    known = set(sys.modules)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            stream.close()
            connection.close()
            code = _run(asked, descriptors)
            imported = [name for name in _installed_modules() if name not in known]
            if imported:
                os.write(writing, f"{' '.join(imported)} ".encode())
        finally:
            os._exit(code)
    for descriptor in descriptors:
        os.close(descriptor)
    with contextlib.suppress(OSError):  # whoever has asked may have ended
        print(child, file=stream, flush=True)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(code, file=stream, flush=True)
    os._exit(0)


def _run(asked: Mapping[str, Any], descriptors: Sequence[int]) -> int:
    """Do what ``python -c`` does, with the descriptors of the one who asks, the environment and the search path."""
    os.setsid()
    os.chdir(asked["cwd"])
    for number, descriptor in zip((0, 1, 2, *asked["pass_fds"]), descriptors, strict=True):
        if number != descriptor:
            os.dup2(descriptor, number)
    os.environ.clear()
    os.environ.update(asked["env"])
    paths = [path for path in asked["env"].get("PYTHONPATH", "").split(os.pathsep) if path]
    first = [asked["cwd"]] if asked["is_first"] else []
    sys.path[:] = [*first, *paths, *(path for path in sys.path if path not in paths)]
    sys.argv[:] = ["-c", *asked["arguments"]]
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    try:
        exec(asked["program"], {"__name__": "__main__"})
    except SystemExit as ending:
        if isinstance(ending.code, str):
            print(ending.code, file=sys.stderr)
        return ending.code if isinstance(ending.code, int) else int(ending.code is not None)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


def _installed_modules() -> Iterator[str]:
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if name != "__main__" and file is not None and file.startswith(INSTALLED):
            yield name


def _import(modules: Sequence[str]) -> None:
    for name in modules:
        with contextlib.suppress(Exception), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            importlib.import_module(name)


@contextmanager
def sources() -> Iterator[Sources]:
    """Sources of forks that end with this process, or the context."""
    with tempfile.TemporaryDirectory(prefix="forks-") as folder:  # a socket's path has at most 107 characters
        made = Sources(Path(folder), os.getpid())
        try:
            yield made
        finally:
            made.close()


if __name__ == "__main__":
    if os.fork():  # tests look for children of theirs that are left
        os._exit(0)
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the owner's end is its own
    socket_path = Path(sys.argv[1])
    socket_path.with_suffix(".pid").write_text(str(os.getpid()))
    processes.end_process = sys.exit  # type: ignore[assignment]  # forks tell what they have imported before they end
    _import(sys.argv[3:])
    serve(socket_path, int(sys.argv[2]))
