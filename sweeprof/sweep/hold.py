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
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import psutil

from sweeprof.errors import Problem, UserError
from sweeprof.results.files import read_json, write_json

ENDING_S = 30.0
"""How long processes of a run that was killed may take to end."""
HEAD = "SWEEPROF_HEAD"
"""Environment variable by which what a head starts knows whose it is: its parent may die before it has begun to work."""
HEAD_DIED = 70
"""Exit code of a shard whose head is gone; nobody reads it."""


@contextmanager
def heading(folder: Path) -> Iterator[None]:
    """Be the head of the sweep in ``folder``.

    Raises:
        UserError: another one is, or processes of an earlier one do not end.
    """
    with (folder / "head.lock").open("a") as lock:
        if not _taken(lock, fcntl.LOCK_EX):
            raise UserError([Problem("resume", str(folder), f"is in use by {_head(folder)}; wait for its end.")])
        with (folder / "work.lock").open("a") as work:
            deadline = time.monotonic() + ENDING_S
            while not _taken(work, fcntl.LOCK_EX):
                if time.monotonic() > deadline:
                    said = f"is in use by processes of an earlier run, which did not end within {ENDING_S:g} s."
                    raise UserError([Problem("resume", str(folder), said)])
                time.sleep(0.05)
            # Before anyone may work, so that what an earlier head started sees that it is no longer its folder.
            token = secrets.token_hex(8)
            head = {"pid": os.getpid(), "host": socket.gethostname(), "user": _user(), "token": token}
            write_json(folder / "head.json", head)
        os.environ[HEAD] = token
        try:
            yield
        finally:
            os.environ.pop(HEAD, None)


def is_headed(folder: Path) -> bool:
    """Whether a head is at work in ``folder``."""
    path = folder / "head.lock"
    if not path.exists():
        return False
    with path.open("rb") as lock:
        return not _taken(lock, fcntl.LOCK_SH)


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
    work = (folder / "work.lock").open("a")
    if _taken(work, fcntl.LOCK_SH) and not _is_taken_over(folder):
        return work
    work.close()
    return None


def _is_taken_over(folder: Path) -> bool:
    mine = os.environ.get(HEAD)  # None where a launcher does not pass the environment on
    with suppress(OSError, ValueError, KeyError):
        return mine is not None and bool(read_json(folder / "head.json")["token"] != mine)
    return False


def _taken(file: IO[str] | IO[bytes], kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks: better unguarded than not at all
        return True
    return True


def _head(folder: Path) -> str:
    with suppress(OSError, ValueError, KeyError):
        head = read_json(folder / "head.json")
        return f"process {head['pid']} of {head['user']} on {head['host']}"
    return "another process"


def _user() -> str | None:
    with suppress(KeyError, OSError):  # a container may run as a user without a name
        return getpass.getuser()
    return None


def end_with_head(folder: Path) -> None:
    """Let this process end as soon as the head does, where it is a child of the head: a worker of joblib would go on."""
    try:
        head = read_json(folder / "head.json")
        parents = [process.pid for process in psutil.Process().parents()]
        if head["host"] != socket.gethostname() or head["pid"] not in parents:
            return
        handle = os.pidfd_open(head["pid"])
    except (OSError, ValueError, KeyError, psutil.Error):
        return

    def wait() -> None:
        select.select([handle], [], [])
        os._exit(HEAD_DIED)  # nothing to tidy: templates end with their sockets, records are whole

    threading.Thread(target=wait, name="sweeprof-head", daemon=True).start()
