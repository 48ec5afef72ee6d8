"""How long a trial may take, how much memory it may use, and how long its log may be."""

from __future__ import annotations

import math
import os
import select
import signal
import time
from contextlib import suppress
from pathlib import Path

from sweeprof.processes import Connection, bytes_of, descendants
from sweeprof.run.interleave import ProcessExit, Request

LOG_S = 1.0
"""How often the size of a log is checked."""
MEMORY_S = 0.1
"""How often memory is checked, if it is limited: about the time in which a process touches 500 MiB."""
MOST_LOG = 64 << 20
"""Bytes of a log; of a longer one only the end is kept, or a model that prints without end would fill the disk."""
KEPT_OF_LOG = 1 << 20


def wait_for_trial(child: int, request: Request, connection: Connection) -> ProcessExit | None:
    """Wait until the process of a trial has ended, and end it when it takes longer or uses more memory than it may.

    Returns:
        how it ended; None if the shard went away, and the process was ended for it.
    """
    watch = TrialWatch(request.memory, Path(request.log))
    excess: int | None = None
    handle = os.pidfd_open(child)
    try:
        waiter = select.poll()
        waiter.register(handle, select.POLLIN)
        waiter.register(connection.socket, select.POLLIN | select.POLLHUP)
        end = math.inf if request.timeout_s is None else time.monotonic() + request.timeout_s
        ready: set[int] = set()
        while not ready and excess is None and time.monotonic() < end:
            wait_s = max(0.0, min(end - time.monotonic(), watch.every_s))
            ready = {descriptor for descriptor, _ in waiter.poll(wait_s * 1000)}
            excess = watch.excess()
    finally:
        os.close(handle)
    try:
        os.killpg(child, signal.SIGKILL)  # also what the trial itself may have started
    except ProcessLookupError:
        os.kill(child, signal.SIGKILL)  # not yet the leader of its own group
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if handle in ready:
        return ProcessExit(code)
    if ready:
        return None
    return ProcessExit(code, timed_out=excess is None, used_bytes=excess)


class TrialWatch:
    """Watches the trial that this process has just forked.

    Args:
        limit: the bytes that the trial may use in addition to what it shared at its start; None: any number.
    """

    def __init__(self, limit: int | None, log: Path) -> None:
        self._limit, self._log = limit, log
        self.every_s = LOG_S if limit is None else MEMORY_S
        """How often to call :meth:`excess`."""
        if limit is not None:
            self._resident, self._used = resident_bytes(), used_bytes()

    def excess(self) -> int | None:
        """Return the bytes that the trial uses if they are above its limit, else None; shorten its log if that is too long."""
        shorten_log(self._log)
        # The first sum is read quickly, but counts pages that processes share several times.
        if self._limit is None or resident_bytes() - self._resident <= self._limit:
            return None
        used = used_bytes() - self._used
        return used if used > self._limit else None


def shorten_log(log: Path) -> None:
    """Keep only the end of a log that is too long."""
    with suppress(OSError):  # of a log that does not exist yet, or a folder that was removed
        size = log.stat(follow_symlinks=False).st_size
        if size > MOST_LOG:
            with log.open("r+b") as file:
                file.seek(size - KEPT_OF_LOG)
                end = file.read(KEPT_OF_LOG)
                file.truncate(0)  # writers append, whatever the size is
            with log.open("ab") as file:
                file.write(f"… of {size:,} bytes the last {KEPT_OF_LOG:,}:\n".encode() + end)


def excess_reason(used: int, limit: int) -> str:
    """Return the reason of a trial that used too much memory."""
    return f"its processes used {used / 2**20:,.0f} MiB of memory, more than limits.memory ({limit / 2**20:,.0f} MiB)"


def resident_bytes() -> int:
    """Return the anonymous and shared memory of this process and its descendants; a page of several processes counts for each."""
    return sum(bytes_of(pid, "status", ("RssAnon", "RssShmem")) for pid in descendants(os.getpid()))


def used_bytes() -> int:
    """Return the anonymous and shared memory of this process and its descendants, in which each page counts once."""
    return sum(bytes_of(pid, "smaps_rollup", ("Pss_Anon", "Pss_Shmem", "SwapPss")) for pid in descendants(os.getpid()))


def shared_bytes() -> int:
    """Return the shared memory of this process, which no limit of the system counts."""
    return bytes_of(os.getpid(), "status", ("RssShmem",))
