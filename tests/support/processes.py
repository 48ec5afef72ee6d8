"""The processes of a command that was started with a home of its own."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Literal

import psutil

from sweeprof.storage import begun

Kind = Literal["driver", "shard", "fork_server", "worker", "tracker", "other"]


def processes(home: Path) -> list[psutil.Process]:
    """Every process that was started with this home: driver, shards, fork servers, workers, trackers, and what they started."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get("HOME") == str(home) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def kind_of(process: psutil.Process) -> Kind:
    """Return the kind of a process of the command; raises :class:`psutil.Error` when it has ended."""
    line = " ".join(process.cmdline())
    if "sweeprof.run.fork_server" in line:
        parent = process.parent()
        is_forked = parent is not None and "sweeprof.run.fork_server" in " ".join(parent.cmdline())
        # A fork server that was forked from another one has a session of its own.
        return "worker" if is_forked and os.getsid(process.pid) != process.pid else "fork_server"
    if "sweeprof.run.tracker_process" in line:
        return "tracker"
    if "popen_loky_posix" in line:
        return "shard"
    return "driver" if "-m sweeprof" in line else "other"


def left_after(home: Path, seconds: float) -> list[str]:
    """The command lines of what still runs after that long; none as soon as nothing does."""
    deadline = time.monotonic() + seconds
    while (left := processes(home)) and time.monotonic() < deadline:
        time.sleep(0.05)
    lines = []
    for process in left:
        with suppress(psutil.Error):
            lines.append(" ".join(process.cmdline()))
    return lines


def of_kind(home: Path, kind: Kind) -> list[psutil.Process]:
    """The running processes of one kind."""
    found = []
    for process in processes(home):
        with suppress(psutil.Error):
            if kind_of(process) == kind:
                found.append(process)
    return found


def running_trials(cwd: Path, pass_name: str) -> int:
    """How many trials of a pass run at this moment, in the only sweep below ``cwd``; 0 before there is one."""
    return sum(trial[1] == pass_name for events in cwd.glob("outputs/*/*/events") for trial in begun(events))
