"""Whether this process leaves the processors to others.

The threads of OpenMP go on spinning after a parallel region: 5 ms on the machine this was written on, half a sample of whoever
comes next. Telling them not to (``GOMP_SPINCOUNT=0``) would change what is measured, so one waits until they sleep.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path

TASKS = Path("/proc/self/task")
LOOK_S = 0.0005
AT_MOST_S = 0.1
"""A thread that runs for longer than this does not spin, it works."""


def become_quiet() -> None:
    """Return when no other thread of this process runs; where the system does not tell, or one never ends, soon."""
    own = str(threading.get_native_id())
    end = time.monotonic() + AT_MOST_S
    while _others_run(own) and time.monotonic() < end:
        time.sleep(LOOK_S)


def _others_run(own: str) -> bool:
    return TASKS.exists() and any(_runs(task) for task in TASKS.iterdir() if task.name != own)


def _runs(task: Path) -> bool:
    try:
        stat = (task / "stat").read_text(encoding="utf-8")
    except OSError:  # it ended meanwhile
        return False
    return stat.rpartition(")")[2].split()[0] == "R"  # after the name, which may hold anything
