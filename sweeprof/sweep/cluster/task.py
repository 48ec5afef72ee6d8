"""``python -m sweeprof.sweep.cluster.task FOLDER TOKEN``: what a task of an array runs on its node: one shard."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace
from pathlib import Path

from sweeprof.results.environment import scheduler
from sweeprof.results.files import is_full
from sweeprof.sweep.cluster.jobs import HELD, Jobs, Note
from sweeprof.sweep.cluster.sending import send_shard
from sweeprof.sweep.folder import Folder
from sweeprof.sweep.hold import ENDING_S
from sweeprof.sweep.shard import run_shard
from sweeprof.sweep.worker import DISK_FULL
from sweeprof.terminal import guard_output

REVOKED = 0
EXIT_HELD = 75
"""Exit code where another task measures the same shard (EX_TEMPFAIL)."""


def main(arguments: list[str]) -> int:
    """Run the shard that this task is for; returns the exit code."""
    guard_output()
    folder, token = Folder(Path(arguments[0])), arguments[1]
    number = int(os.environ["SLURM_ARRAY_TASK_ID"])
    jobs = Jobs(folder.path)
    submission = jobs.read(token)
    if submission is None or submission.revoked:
        print(f"{folder.path}: this job was revoked; nothing to do")
        return REVOKED
    place = scheduler() or {}
    note = Note(str(place.get("job")), str(place.get("node")), int(place.get("restarts") or 0), time.time())
    jobs.write_note(token, number, note)
    error: str | None = "it was ended"
    code = 1
    try:
        if run_shard(folder, submission.shards[number], ENDING_S):
            send_shard(folder, folder.read_plan(), submission.shards[number])
            code, error = 0, None
        else:
            code, error = EXIT_HELD, HELD
    except OSError as failure:
        code, error = (
            (DISK_FULL, "the disk is full") if is_full(failure) else (1, f"{type(failure).__name__}: {failure}")
        )
        print(error, file=sys.stderr)
    except Exception as failure:
        error = f"{type(failure).__name__}: {failure}"
        raise
    finally:
        jobs.write_note(token, number, replace(note, ended=time.time(), error=error))
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
