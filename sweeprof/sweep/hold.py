"""Who is at work in the folder of a sweep; the system takes back what the dead held.

``head.lock`` is held by the one head. ``work.lock`` is shared by its shards and by every trial's process, so that a sweep is
not continued while a process of its last run is still ending. ``report.lock`` is held by whoever makes the reports,
``sending.lock`` by the process that sends the sweep to a tracker.
"""

from __future__ import annotations

import fcntl
import getpass
import os
import secrets
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, TypedDict

import psutil

from sweeprof.errors import Damaged, Problem, UserError
from sweeprof.results.files import read_json, write_json
from sweeprof.results.validation import validated

ENDING_S = 30.0
"""How long processes of a run that was killed may take to end."""
LOOKING_S = 1.0
"""Longer than a head takes to see that nobody works, and about as long as a process takes to end."""
HEAD = "SWEEPROF_HEAD"
"""Environment variable by which what a head starts knows whose it is: its parent may die before it has begun to work."""
HEAD_DIED = 70
"""Exit code of a shard whose head is gone; nobody reads it."""
_GOING_ON = {
    "head.lock": "being measured",
    "work.lock": "processes of its last run are still ending",
    "sending.lock": "being sent to its tracker",
    "report.lock": "its reports are being made",
}
"""The locks of a folder, and what their holders do."""


@contextmanager
def heading(folder: Path, beside_jobs: bool = False, key: str = "resume") -> Iterator[None]:
    """Be the head of the sweep in ``folder``.

    Args:
        beside_jobs: whether jobs of a cluster may be at work, which need no head and are found again by the next one.
        key: by which the command line names the folder.

    Raises:
        UserError: another one is, or processes of an earlier one do not end, or the folder was removed.
    """
    with _opened(folder, "head.lock", key) as lock:
        if not _taken(lock, fcntl.LOCK_EX):
            raise UserError([Problem(key, str(folder), f"is in use by {_head(folder)}; wait for its end.")])
        with _opened(folder, "work.lock", key) as work:
            deadline = time.monotonic() + ENDING_S
            while not beside_jobs and not _taken(work, fcntl.LOCK_EX):
                if time.monotonic() > deadline:
                    said = f"is in use by processes of an earlier run, which did not end within {ENDING_S:g} s."
                    raise UserError([Problem(key, str(folder), said)])
                time.sleep(0.05)
            # Before anyone may work, so that what an earlier head started sees that it is no longer its folder.
            token = secrets.token_hex(8)
            head = {"pid": os.getpid(), "host": socket.gethostname(), "user": _user(), "token": token}
            write_json(folder / "head.json", {**head, "gpus": os.environ.get("CUDA_VISIBLE_DEVICES")})
        os.environ[HEAD] = token
        try:
            yield
        finally:
            os.environ.pop(HEAD, None)


def _opened(folder: Path, name: str, key: str) -> IO[str]:
    """A file to be locked; in a folder that may be removed as an old one just when somebody wants to go on with it."""
    try:
        return (folder / name).open("a")
    except FileNotFoundError:
        raise UserError([Problem(key, str(folder), "is gone: somebody removed it just now.")]) from None


def is_headed(folder: Path) -> bool:
    """Whether a head is at work in ``folder``."""
    path = folder / "head.lock"
    if not path.exists():
        return False
    with path.open("rb") as lock:
        return not _taken(lock, fcntl.LOCK_SH)


@contextmanager
def claimed(folder: Path) -> Iterator[str | None]:
    """Keep everyone else out of ``folder``; yields what is going on there, where something is and nobody was kept out."""
    with ExitStack() as held:
        yield next((going_on for name, going_on in _GOING_ON.items() if not _is_free(folder / name, held)), None)


def _is_free(path: Path, held: ExitStack) -> bool:
    """Take the lock for as long as ``held``; one without a file was never anyone's."""
    try:
        lock = held.enter_context(path.open("r+"))  # for writing: NFS gives no other file to one alone
    except FileNotFoundError:
        return True
    return _taken(lock, fcntl.LOCK_EX)


@contextmanager
def reporting(folder: Path) -> Iterator[None]:
    """Read the records and write the reports while nobody else does: what was read last is what stays."""
    with (folder / "report.lock").open("a") as lock:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def sending(folder: Path, wait_s: float) -> Iterator[None]:
    """Send the sweep while nobody else does: two that look for a run at once would both make it.

    Raises:
        TimeoutError: somebody else still does after ``wait_s``.
    """
    with (folder / "sending.lock").open("a") as lock:
        deadline = time.monotonic() + wait_s
        while not _taken(lock, fcntl.LOCK_EX):
            if time.monotonic() > deadline:
                raise TimeoutError("another process is sending this sweep")
            time.sleep(0.1)
        yield


def working(folder: Path) -> IO[str] | None:
    """What is to be kept open while trials of the sweep are run; None where another head takes the folder over, or has done so."""
    work = (folder / "work.lock").open("a+")  # for reading, too: NFS shares no other file
    deadline = time.monotonic() + LOOKING_S  # a head looks for a moment whether anyone works
    while not _taken(work, fcntl.LOCK_SH):
        if time.monotonic() > deadline:
            work.close()
            return None
        time.sleep(0.01)
    if not _is_taken_over(folder):
        return work
    work.close()
    return None


def until_idle(folder: Path, waiting: Callable[[], object]) -> None:
    """Wait until nobody works in ``folder``; ``waiting`` is told once, before a wait that is more than processes' ending."""
    with (folder / "work.lock").open("a") as work:
        tells = time.monotonic() + LOOKING_S
        while not _taken(work, fcntl.LOCK_EX):
            if tells and time.monotonic() > tells:
                tells = 0.0
                waiting()
            time.sleep(0.1)


@contextmanager
def alone(path: Path, wait_s: float = 0) -> Iterator[bool]:
    """Whether this process is the only one with this file, within ``wait_s``.

    A launcher that retries a job may make two of it, and one that a cluster gave up may still run on a node that lost its way.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        deadline = time.monotonic() + wait_s
        while not (is_alone := _taken(file, fcntl.LOCK_EX)) and time.monotonic() < deadline:
            time.sleep(0.1)
        yield is_alone


def _is_taken_over(folder: Path) -> bool:
    mine = os.environ.get(HEAD)  # None where a launcher does not pass the environment on
    with suppress(OSError, Damaged):
        return mine is not None and read_head(folder)["token"] != mine
    return False


def _taken(file: IO[str] | IO[bytes], kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks: better unguarded than not at all
        return True
    return True


class Head(TypedDict):
    """``head.json``: the process that is, or was, the head of the sweep."""

    pid: int
    host: str
    user: str | None
    token: str
    gpus: str | None


def read_head(folder: Path) -> Head:
    """What ``head.json`` holds; raises :class:`Damaged` or ``OSError`` where it cannot be read."""
    return validated(Head, read_json(folder / "head.json"))


def _head(folder: Path) -> str:
    with suppress(OSError, Damaged):
        head = read_head(folder)
        return f"process {head['pid']} of {head['user']} on {head['host']}"
    return "another process"


def _user() -> str | None:
    with suppress(KeyError, OSError):  # a container may run as a user without a name
        return getpass.getuser()
    return None


def end_with_head(folder: Path) -> None:
    """Let this process end as soon as the head does, where it is a child of the head: a worker of joblib would go on."""
    try:
        head = read_head(folder)
        parents = [process.pid for process in psutil.Process().parents()]
        if head["host"] != socket.gethostname() or head["pid"] not in parents:
            return
        handle = os.pidfd_open(head["pid"])
    except (OSError, Damaged, psutil.Error):
        return

    def wait() -> None:
        select.select([handle], [], [])
        os._exit(HEAD_DIED)  # nothing to tidy: templates end with their sockets, records are whole

    threading.Thread(target=wait, name="sweeprof-head", daemon=True).start()
