"""Jobs of a sweep on a cluster, as files in its folder: processes that follow the tasks, and the tasks, share only these.

::

    jobs/TOKEN.json      a submission: which shards, in this order the tasks of one array; what it asked for; its job's number
    jobs/TOKEN.sh        the batch script
    jobs/TOKEN-N.json    written by task N itself: where it runs, since when, how often it was started again, how it ended
    jobs/endings.json    by shard: why its job left results missing
    jobs/queue.txt       what is running and what waits, as a line for people
    logs/jobs/TOKEN-N.log  what task N printed
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from sweeprof.errors import Damaged
from sweeprof.results.files import read_json, validated, write_atomically, write_json
from sweeprof.results.record import Json, Status

HELD = "another process measures its shard"
"""The error of a task that ended because of one that the scheduler has lost contact with, which may finish or be gone soon."""
_NAME = re.compile(r"[\w.][\w. -]*")
_TOKEN = re.compile(r"[0-9a-f]{10}")


@dataclass(frozen=True, slots=True)
class Submission:
    """One array of tasks."""

    token: str
    name: str
    """Name of the job; it ends with the token, so that the scheduler can be queried even if its answer was lost."""
    shards: tuple[int, ...]
    """Task N runs the shard at place N."""
    resources: Json
    submitted: float
    """Seconds since the epoch."""
    job: str | None = None
    """The scheduler's id; None until it has answered."""
    revoked: bool = False
    """True if its tasks must end before they measure anything."""


@dataclass(frozen=True, slots=True)
class Note:
    """A task's note about itself."""

    job: str
    node: str
    restarts: int
    events: int
    """Bytes of its shard's events when it began, which are of earlier tasks."""
    ended: float | None = None
    """Seconds since the epoch."""
    error: str | None = None
    """Why it ended before its shard was complete."""


@dataclass(frozen=True, slots=True)
class ShardOutcome:
    """Why a shard whose job has ended lacks results."""

    missing: str
    """Why trials that had not begun were not measured."""
    status: Status
    """Of trials that had begun."""
    reason: str


class Jobs:
    """The files below ``jobs/`` of a sweep's folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.path = folder / "jobs"

    def new(self, name: str, shards: Sequence[int], resources: Json) -> Submission:
        """Return a submission with a new token; nothing is written."""
        token = secrets.token_hex(5)
        newest = max((one.submitted for one in self.all()), default=0.0)
        # After all others also by the clock of a host that is behind: of a shard the newest task counts.
        now = max(time.time(), newest + 0.001)
        return Submission(token, f"{name}-{token}", tuple(shards), resources, now)

    def keep(self, submission: Submission, script: str | None = None) -> None:
        """Write a submission, and its script where that is new."""
        if script is not None:
            self.logs.mkdir(parents=True, exist_ok=True)  # Slurm opens a task's output before anything runs
            write_atomically(self.script(submission.token), script)
        write_json(self.path / f"{submission.token}.json", asdict(submission))

    def revoke(self, submission: Submission) -> None:
        """Prevent tasks of the submission that have not begun from measuring anything."""
        self.keep(replace(submission, revoked=True))

    def forget(self) -> None:
        """Revoke every submission: their numbers of shards mean other shards now."""
        for submission in self.all():
            if not submission.revoked:
                self.revoke(submission)
        self.write_outcomes({})

    def all(self) -> list[Submission]:
        """Return the submissions, the oldest first."""
        # By their names: of the notes beside them there are thousands.
        tokens = [path.stem for path in self.path.glob("*.json") if _TOKEN.fullmatch(path.stem)]
        found = [submission for token in tokens if (submission := self.read(token)) is not None]
        return sorted(found, key=lambda submission: submission.submitted)

    def read(self, token: str) -> Submission | None:
        """Return the submission with a token; None if there is none."""
        with suppress(OSError, Damaged):
            found = validated(Submission, read_json(self.path / f"{token}.json"))
            # Its job and name become arguments of the scheduler's commands.
            is_safe = _NAME.fullmatch(found.name) and (found.job is None or _NAME.fullmatch(found.job))
            if found.token == token and is_safe:
                return found
        return None

    def script(self, token: str) -> Path:
        """Return the path of the batch script of a submission."""
        return self.path / f"{token}.sh"

    @property
    def logs(self) -> Path:
        """The folder of the output of tasks."""
        return self._folder / "logs" / "jobs"

    def log(self, token: str, number: int) -> Path:
        """Return the path of the output of a task."""
        return self.logs / f"{token}-{number}.log"

    def write_note(self, token: str, number: int, note: Note) -> None:
        """Write the note of a task."""
        write_json(self.path / f"{token}-{number}.json", asdict(note))

    def note(self, token: str, number: int) -> Note | None:
        """Return the note of a task; None for one that has not begun."""
        with suppress(OSError, Damaged):
            return validated(Note, read_json(self.path / f"{token}-{number}.json"))
        return None

    def outcomes(self) -> dict[int, ShardOutcome]:
        """Return by shard why its job left results missing."""
        with suppress(OSError, ValueError):
            data = validated(dict[str, ShardOutcome], read_json(self.path / "endings.json"))
            return {int(shard): outcome for shard, outcome in data.items()}
        return {}

    def write_outcomes(self, outcomes: Mapping[int, ShardOutcome]) -> None:
        """Replace what :meth:`outcomes` returns."""
        write_json(self.path / "endings.json", {str(shard): asdict(outcome) for shard, outcome in outcomes.items()})

    def write_queue(self, line: str) -> None:
        """Write what is running and what waits."""
        write_atomically(self.path / "queue.txt", line, durable=False)

    def queue(self) -> str:
        """Return the line that was written last; empty if no job runs."""
        with suppress(OSError):
            return (self.path / "queue.txt").read_text(encoding="utf-8").strip()
        return ""
