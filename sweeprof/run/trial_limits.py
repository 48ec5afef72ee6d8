"""How long a trial may take, how much memory it may use, and how long its log may be."""

from __future__ import annotations

import math
import os
import select
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from itertools import chain
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

    Its memory is what this process, which has just forked it, and its descendants use beyond what they used before, and all memory
    of its server.

    Returns:
        how it ended; None if the shard went away, and the process was ended for it.
    """
    limit, every_s, excess = request.memory, LOG_S, None
    roots = [os.getpid()] if request.server is None else [os.getpid(), request.server.pid]
    resident_before = used_before = 0
    if limit is not None:
        every_s = MEMORY_S
        resident_before, used_before = resident_bytes(roots[:1]), used_bytes(roots[:1])
    handle = os.pidfd_open(child)
    try:
        waiter = select.poll()
        waiter.register(handle, select.POLLIN)
        waiter.register(connection.socket, select.POLLIN | select.POLLHUP)
        end = math.inf if request.timeout_s is None else time.monotonic() + request.timeout_s
        ready: set[int] = set()
        while not ready and excess is None and time.monotonic() < end:
            wait_s = max(0.0, min(end - time.monotonic(), every_s))
            ready = {descriptor for descriptor, _ in waiter.poll(wait_s * 1000)}
            shorten_log(Path(request.log))
            # The first sum is read quickly, but counts pages that processes share several times.
            if limit is not None and resident_bytes(roots) - resident_before > limit:
                used = used_bytes(roots) - used_before
                excess = used if used > limit else None
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


def excess_reason(used: int, limit: int, whose: str = "its processes") -> str:
    """Return the reason of a trial that used too much memory."""
    return f"{whose} used {used / 2**20:,.0f} MiB of memory, more than limits.memory ({limit / 2**20:,.0f} MiB)"


def resident_bytes(roots: Iterable[int]) -> int:
    """Return the anonymous and shared memory of processes and their descendants; a page of several processes counts for each."""
    pids = chain.from_iterable(map(descendants, roots))
    return sum(bytes_of(pid, "status", ("RssAnon", "RssShmem")) for pid in pids)


def used_bytes(roots: Iterable[int]) -> int:
    """Return the anonymous and shared memory of processes and their descendants, in which each page counts once."""
    pids = chain.from_iterable(map(descendants, roots))
    return sum(bytes_of(pid, "smaps_rollup", ("Pss_Anon", "Pss_Shmem", "SwapPss")) for pid in pids)


def shared_bytes() -> int:
    """Return the shared memory of this process, which no limit of the system counts."""
    return bytes_of(os.getpid(), "status", ("RssShmem",))
