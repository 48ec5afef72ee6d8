"""A command that stays, with a home of its own: what it prints, the processes that it started, and its end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

import psutil

from support.servers import isolated
from sweeprof.storage import begun

Kind = Literal["driver", "shard", "fork_server", "worker", "tracker", "other"]
START_S = 180.0


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


class Started:
    """A running ``python -m MODULE``."""

    def __init__(self, module: str, words: Sequence[str], cwd: Path, variables: dict[str, str]) -> None:
        self._log = cwd / "stderr.log"
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, *words],
                cwd=cwd,
                env={**isolated(cwd), **variables},
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def err(self) -> str:
        """What it printed as errors."""
        return self._log.read_text(errors="replace")

    def line(self, beginning: str) -> str:
        """The rest of the line that begins so, waited for."""
        end = time.monotonic() + START_S
        while time.monotonic() < end:
            ended = self.process.poll() is not None and not self._reader.is_alive()
            for line in self.lines:
                if line.startswith(beginning):
                    return line.removeprefix(beginning).strip()
            assert not ended, f"ended with {self.process.returncode}: {self.lines} {self.err}"
            time.sleep(0.1)
        raise AssertionError(f"never printed {beginning!r}: {self.lines} {self.err}")

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send the signal to it alone; returns its exit code."""
        self.process.send_signal(number)
        return self.process.wait(timeout=60)

    def join(self) -> None:
        """Wait until all that it printed is read."""
        self._reader.join(60)

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self.lines.append(line.rstrip("\n"))


@contextmanager
def started(module: str, *words: str, cwd: Path, **variables: str) -> Iterator[Started]:
    """The command, in a folder that is its home, too."""
    found = Started(module, words, cwd, variables)
    try:
        yield found
    finally:
        if found.process.poll() is None:
            found.end(signal.SIGTERM)
        found.join()
