"""Keeps this process from disturbing the measurements of others: it waits until its threads are idle, and prefaults its memory.

The threads of OpenMP continue to spin after a parallel region, for about 5 ms, which is half a sample of the next process.
``GOMP_SPINCOUNT=0`` would prevent that, but would also change what is measured, so the process waits until they sleep.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import re
import threading
import time
from contextlib import suppress
from pathlib import Path

import numpy as np

TASKS = Path("/proc/self/task")
LOOK_S = 0.0005
AT_MOST_S = 0.1
"""A thread that runs for longer than this does not spin, it works."""


def become_quiet() -> None:
    """Return when no other thread of this process runs; where the system does not tell, or one never ends, soon."""
    this_thread = str(threading.get_native_id())
    end = time.monotonic() + AT_MOST_S
    while _others_run(this_thread) and time.monotonic() < end:
        time.sleep(LOOK_S)


def _others_run(this_thread: str) -> bool:
    return TASKS.exists() and any(_runs(task) for task in TASKS.iterdir() if task.name != this_thread)


def _runs(task: Path) -> bool:
    try:
        stat = (task / "stat").read_text(encoding="utf-8")
    except OSError:  # it ended meanwhile
        return False
    return stat.rpartition(")")[2].split()[0] == "R"  # after the name, which may hold anything


PRESENT = np.uint64(1 << 63)
"""Bit of a pagemap entry: the page is in memory."""
MADV_POPULATE_READ = 22
"""madvise(2), Linux 5.14: fault in the pages of a range."""
_FILE_MAPPING = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) r\S+ \S+ \S+ [1-9]\d* +/")

_remembered: list[tuple[int, int]] = []
"""Address and length of the resident ranges of mapped files, as the fork server had them."""


def remember() -> None:
    """Note which pages of mapped files this process has in memory; its children inherit the note."""
    with suppress(OSError):  # without /proc there is nothing to correct, and no memory pass either
        _remembered[:] = _resident_ranges()


def restore() -> None:
    """Bring the remembered pages into this process, but those that are no longer mapped."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for address, length in _remembered:
        failed = libc.madvise(address, length, MADV_POPULATE_READ) != 0
        if failed and ctypes.get_errno() == errno.EINVAL:  # an older kernel
            for page in range(address, address + length, mmap.PAGESIZE):
                ctypes.string_at(page, 1)


def _resident_ranges() -> list[tuple[int, int]]:
    """Return the runs of pages of mapped files that are in memory, as address and length."""
    ranges = []
    with Path("/proc/self/pagemap").open("rb", buffering=0) as pagemap:
        for line in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines():
            match = _FILE_MAPPING.match(line)
            if match is None:
                continue
            begin, end = int(match[1], 16), int(match[2], 16)
            size, offset = (end - begin) // mmap.PAGESIZE * 8, begin // mmap.PAGESIZE * 8
            entries = np.frombuffer(os.pread(pagemap.fileno(), size, offset), dtype="<u8")
            is_present = ((entries & PRESENT) != 0).astype(np.int8)
            edges = np.flatnonzero(np.diff(np.concatenate(([0], is_present, [0]))))
            for first, last in edges.reshape(-1, 2).tolist():
                ranges.append((begin + first * mmap.PAGESIZE, (last - first) * mmap.PAGESIZE))
    return ranges
