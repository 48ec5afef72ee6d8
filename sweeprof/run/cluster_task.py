"""``python -m sweeprof.run.cluster_task FOLDER TOKEN``: run one shard, as a task of an array on its node.

The number of the task is in the environment: ``SLURM_ARRAY_TASK_ID`` of Slurm, or ``SWEEPROF_TASK``.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace
from pathlib import Path

from sweeprof.errors import UserError
from sweeprof.processes import die_with
from sweeprof.results.environment import scheduler
from sweeprof.results.files import is_full
from sweeprof.run.locks import ENDING_S
from sweeprof.run.shard import run_shard
from sweeprof.storage import HELD, Folder, Jobs, Note
from sweeprof.text import guard_output

NUMBERS = ("SWEEPROF_TASK", "SLURM_ARRAY_TASK_ID")
REVOKED = 0
EXIT_DISK_FULL = 74
"""Exit code where nothing more can be written (EX_IOERR); the driver reads the note of the task."""
EXIT_HELD = 75
"""Exit code where another task measures the same shard (EX_TEMPFAIL)."""


def main(arguments: list[str]) -> int:
    """Run the shard that this task is for; returns the exit code."""
    guard_output()
    folder, token = Folder(Path(arguments[0])), arguments[1]
    if os.environ.get("SWEEPROF_PARENT") == str(os.getppid()):
        die_with(os.getppid())  # an actor of Ray: what it has started does not end with it
    numbers = [os.environ[name] for name in NUMBERS if name in os.environ]
    if not numbers:
        raise UserError(f"this is not a task of a cluster: none of {', '.join(NUMBERS)} is set.")
    number = int(numbers[0])
    jobs = Jobs(folder.path)
    submission = jobs.read(token)
    if submission is None or submission.revoked:
        print(f"{folder.path}: this job was revoked; nothing to do")
        return REVOKED
    place, shard = scheduler() or {}, submission.shards[number]
    events = folder.events / f"shard-{shard}.jsonl"
    earlier = events.stat().st_size if events.exists() else 0
    note = Note(str(place.get("job")), str(place.get("node")), earlier)
    jobs.write_note(token, number, note)
    error: str | None = "it was ended"
    code = 1
    try:
        if run_shard(folder, shard, ENDING_S):
            code, error = 0, None
        else:
            code, error = EXIT_HELD, HELD
    except OSError as failure:
        error = f"{type(failure).__name__}: {failure}"
        if is_full(failure):
            code, error = EXIT_DISK_FULL, "the disk is full"
        print(error, file=sys.stderr)
    except Exception as failure:
        error = f"{type(failure).__name__}: {failure}"
        raise
    finally:
        jobs.write_note(token, number, replace(note, ended=time.time(), error=error))
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
