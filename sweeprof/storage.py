"""The folder of a sweep on disk: its files, the events of its shards, the jobs of a cluster, and why results are missing."""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import stat
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from sweeprof.credentials import redacted_address
from sweeprof.errors import Damaged, Problem, UserError
from sweeprof.passes.registry import checked_record, pass_named
from sweeprof.plan.plan import Combination, Plan, Trial, trial_groups
from sweeprof.results.files import open_regular, read_bytes, read_json, validated, write_atomically, write_json
from sweeprof.results.record import Json, PassName, Record, Status, check_pass_name
from sweeprof.tracking.connection import same_address

DRIVER = "SWEEPROF_DRIVER"
"""Environment variable with the driver's token: a process whose parent died before it began tells by it whose it is."""
KEPT_BYTES = 16 << 20
"""Size of the files whose records are kept in memory, where they take several times as much."""
MOST_REASON = 500
"""Characters of the reason for which a sweep is stopped."""
_LAST = re.compile(r"(?:(?P<name>[^/~]+)/)?last(?:~(?P<back>\d+))?")
_RECORD = re.compile(r"([^.]\w*)-r\d+\.json")
_STAMP = re.compile(r"(\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d)Z(?:-(\d+))?")
_STAMP_FORMAT = "%Y-%m-%d_%H-%M-%S"


StopReason = Literal["decided", "budget"]
"""Why a combination gets no further rounds: its comparisons are decided, or the time of the sweep is used up."""


@dataclass(frozen=True, slots=True)
class _Decided:
    """The content of ``decided.json``."""

    rounds: int
    reason: StopReason = "decided"


class _ReadRecords:
    """Records that this process has read, while their files stay the same: each report of a sweep reads all of them several times.

    Safe to be used by several threads.
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[Path, tuple[tuple[int, ...], Record]] = OrderedDict()
        """By path, those that were used last at the end: what tells one state of a file from another, and its record."""
        self._bytes = 0
        self._lock = threading.Lock()

    def record(self, path: Path) -> Record:
        """Return the record in a file; raises like :func:`~sweeprof.passes.registry.checked_record`."""
        status = path.stat()
        state = (status.st_size, status.st_ino, status.st_mtime_ns, status.st_ctime_ns)
        with self._lock:
            known = self._kept.get(path)
            if known is not None and known[0] == state:
                self._kept.move_to_end(path)
                return known[1]
        record = checked_record(path)
        with self._lock:
            self._forget(path)
            self._kept[path] = state, record
            self._bytes += status.st_size
            while self._bytes > KEPT_BYTES:
                self._forget(next(iter(self._kept)))
        return record

    def _forget(self, path: Path) -> None:
        known = self._kept.pop(path, None)
        if known is not None:
            self._bytes -= known[0][0]


_records = _ReadRecords()


@dataclass(frozen=True, slots=True)
class Folder:
    """The folder of a sweep.

    ::

        plan.json            the plan
        environment.json     of the driver's process
        baseline.json        the comparison of another sweep, if that is the baseline
        tracking.json        the tracker, and whether the sweep was sent
        records/ID/PASS-rK.json
        records/ID/superseded/PASS-rK-aN.json  records of trials that were run again
        records/ID/decided.json  how many rounds the combination has, if it gets no further ones
        damaged/records/ID/PASS-rK-N.json  files that could not be read, set aside
        artifacts/ID/*       files that passes wrote beside their records
        events/shard-I.jsonl begin and end of every trial (:mod:`sweeprof.storage`)
        logs/                the output of processes
        jobs/                jobs on a cluster (:mod:`sweeprof.storage`)
        budget.json          when the trials of a sweep with a budget must end
        stop                 exists while the sweep is stopped; contains the reason
        driver.json, *.lock  the driver, and locks (:mod:`sweeprof.run.locks`)
    """

    path: Path

    @property
    def output(self) -> Path:
        """The folder of all sweeps, two levels above: of a folder that was moved to ``/``, as in a container, ``/`` itself."""
        return self.path.absolute().parent.parent

    @property
    def plan(self) -> Path:
        return self.path / "plan.json"

    @property
    def environment(self) -> Path:
        return self.path / "environment.json"

    @property
    def baseline(self) -> Path:
        return self.path / "baseline.json"

    @property
    def tracking(self) -> Path:
        return self.path / "tracking.json"

    @property
    def budget(self) -> Path:
        return self.path / "budget.json"

    @property
    def records(self) -> Path:
        return self.path / "records"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def events(self) -> Path:
        return self.path / "events"

    @property
    def stop(self) -> Path:
        return self.path / "stop"

    def read_plan(self) -> Plan:
        """Return the plan.

        Raises:
            Damaged: it is not one, or comes from a later version.
            OSError: it cannot be read.
        """
        return Plan.from_dict(read_json(self.plan))

    def check_exists(self) -> None:
        """Raise ``FileNotFoundError`` if the folder was removed: what is written would make a part of it again."""
        if not os.path.lexists(self.plan):
            raise FileNotFoundError(errno.ENOENT, "the folder of the sweep was removed", str(self.path))

    def repair(self, id: str) -> list[str]:
        """Make the folders that a trial of the combination ``id`` writes usable again: its code may do anything with them.

        Returns a line for each that was not.
        """
        lines = []
        for folder in (self.path, self.records, self.logs, self.events, self.path / "artifacts"):
            if folder.exists() and not folder.is_dir():
                aside = folder.with_name(f"{folder.name}.{secrets.token_hex(3)}.aside")
                folder.rename(aside)
                lines.append(f"{folder.name} was not a folder any longer, and is now {aside.name}")
            lines += self._opened(folder)
        return [*lines, *self._opened(self.records / id), *self._opened(self.logs / id)]

    def repair_all(self) -> list[str]:
        """Make every file and folder in this one readable and writable again, likewise."""
        lines: list[str] = []
        places = [self.path]
        while places:
            place = places.pop()
            lines += self._opened(place)
            if place.is_dir() and not place.is_symlink():
                places += place.iterdir()
        return lines

    def _opened(self, place: Path) -> Iterator[str]:
        """Let this user read and write a file or folder; yields a line if that was not so."""
        with suppress(OSError):  # there is none, or it belongs to another user, as what writes into it reports
            mode = place.lstat().st_mode
            needed = stat.S_IRUSR | stat.S_IWUSR
            if stat.S_ISDIR(mode):
                needed = stat.S_IRWXU
            if mode & needed != needed and not stat.S_ISLNK(mode):
                place.chmod(stat.S_IMODE(mode) | needed)
                name = "it" if place == self.path else place.relative_to(self.path)
                yield f"{name} had the mode {stat.S_IMODE(mode):03o}"

    def check_files(self) -> None:
        """Raise :class:`UserError` if the folder contains a link, by which files elsewhere would be written, a FIFO or a device."""
        folders = [self.path]
        while folders:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    if entry.is_symlink():
                        message = f"contains a link, {Path(entry.path).relative_to(self.path)}; no link is allowed."
                        raise UserError([Problem("DIR", str(self.path), message)])
                    if entry.is_dir():
                        if not entry.name.startswith("."):
                            folders.append(Path(entry.path))
                    elif not entry.is_file():
                        message = "is not a regular file: remove it."
                        raise UserError([Problem("DIR", entry.path, message)])

    def check_owner(self, key: str) -> None:
        """Raise :class:`UserError` if another user can change the plan, because resuming runs the code that it names."""
        why = self.foreign()
        if why is not None:
            message = f"{why}, and resuming runs the code that its plan names: add trust=true if you trust its author."
            raise UserError([Problem(key, str(self.path), message)])

    def foreign(self) -> str | None:
        """Return why another user may have written what the folder names; None if only this user can have."""
        return foreign(self.path, self.plan, self.tracking, self.path / "jobs")

    def record_path(self, trial: Trial) -> Path:
        """Return the path of a trial's record."""
        return self.records / trial.combination_id / f"{trial.pass_name}-r{trial.round}.json"

    def log_path(self, trial: Trial) -> Path:
        """Return the path of a trial's log: the output of its process, and the traceback if it raised."""
        return self.logs / trial.combination_id / f"{trial.pass_name}-r{trial.round}.log"

    def is_done(self, trial: Trial) -> bool:
        """True if the trial has a record, or is not needed; the record of a trial to be run again is moved away first."""
        return self.record_path(trial).exists() or self.is_decided(trial)

    def is_decided(self, trial: Trial) -> bool:
        """True if the combination gets no further rounds after those before this trial's, so that it is not needed."""
        if trial.round == 0 or pass_named(trial.pass_name).kind != "rounds":
            return False
        rounds = self.rounds_that_decided(trial.combination_id)
        return rounds is not None and trial.round >= rounds

    def rounds_that_decided(self, combination_id: str, reason: StopReason | None = None) -> int | None:
        """Return how many rounds a combination has that gets no further ones; None if it gets all that are planned.

        Args:
            reason: None also if it gets no further ones for another reason.
        """
        decided = _read_decided(self._decided(combination_id))
        if decided is None or reason not in (None, decided.reason):
            return None
        return decided.rounds

    def note_decided(self, combination_id: str, rounds: int, reason: StopReason = "decided") -> None:
        """Note that a combination gets no more than this number of rounds."""
        write_json(self._decided(combination_id), asdict(_Decided(rounds, reason)))

    def forget_decided(self, reason: StopReason | None = None) -> None:
        """Remove the notes of :meth:`note_decided`, as for a plan with other comparisons; those with one reason, or all."""
        for path in self.records.glob("*/decided.json"):
            decided = _read_decided(path)
            if reason is None or (decided is not None and decided.reason == reason):
                path.unlink()

    def _decided(self, combination_id: str) -> Path:
        return self.records / combination_id / "decided.json"

    def attempts(self, trial: Trial) -> int:
        """Return how many records of the trial were set aside."""
        aside = self.records / trial.combination_id / "superseded"
        return len(list(aside.glob(f"{trial.pass_name}-r{trial.round}-a*.json")))

    def new_record(
        self,
        plan: Plan,
        combination: Combination,
        trial: Trial,
        status: Status,
        reason: str,
        environment: Mapping[str, Any],
    ) -> Record:
        """Return the record of a trial that begins now and has measured nothing; it is not written."""
        return Record(
            sweep_id=plan.sweep_id,
            combination_id=combination.id,
            pass_name=trial.pass_name,
            status=status,
            reason=reason,
            round=trial.round,
            attempt=self.attempts(trial),
            axes=combination.axes,
            config=combination.config,
            command=combination.command,
            started=datetime.now(UTC).isoformat(timespec="seconds"),
            environment=dict(environment),
        )

    def set_aside(self, path: Path) -> None:
        """Move a record to ``superseded/``, so that its trial is run again."""
        aside = path.parent / "superseded"
        aside.mkdir(exist_ok=True)
        number = len(list(aside.glob(f"{path.stem}-a*.json")))
        path.replace(aside / f"{path.stem}-a{number}.json")

    def set_aside_damaged(self, path: Path) -> Path:
        """Move a damaged file out of the readers' way; returns where it is now."""
        place = self.path / "damaged" / path.relative_to(self.path)
        place.parent.mkdir(parents=True, exist_ok=True)
        number = len(list(place.parent.glob(f"{path.stem}-*")))
        return path.replace(place.with_name(f"{path.stem}-{number}{path.suffix}"))

    def records_of(
        self, combination_id: str, pass_name: PassName | None = None, damaged: dict[str, str] | None = None
    ) -> list[Record]:
        """Return the records of one combination, in the order of their paths; damaged files are left out.

        Nobody may change them: as long as a file is the same, later calls may return the same record.

        Args:
            pass_name: None for those of all passes.
            damaged: gets why a file is left out, by the file's name.
        """
        folder = self.records / combination_id
        unread: dict[str, str] = {} if damaged is None else damaged
        found = []
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            match = _RECORD.fullmatch(path.name)
            if match is None or pass_name not in (None, match[1]):
                continue
            try:
                found.append(_records.record(path))
            except Damaged as error:
                unread[path.name] = str(error)
            except OSError as error:
                unread[path.name] = str(error.strerror)
        return found

    def stopped(self) -> str | None:
        """Return why no further trial is to be run; None if the sweep is not stopped."""
        if not self.stop.exists():
            return None
        try:
            return read_bytes(self.stop).decode(errors="replace").strip()[:MOST_REASON]
        except (Damaged, OSError) as error:
            return f"a file that {error}"

    def stop_because(self, reason: str) -> None:
        """Stop every shard after the trial that it runs."""
        write_atomically(self.stop, reason)


def _read_decided(path: Path) -> _Decided | None:
    """Return the content of a ``decided.json``; None if there is none, or it cannot be read."""
    try:
        return validated(_Decided, read_json(path))
    except (Damaged, OSError):
        return None


def foreign(*paths: Path) -> str | None:
    """Return why another user may have written to one of these files and folders; None if only this user can have."""
    for path in paths:
        try:
            found = path.stat()
        except FileNotFoundError:
            continue
        if found.st_uid != os.geteuid():
            return "belongs to another user"
        if found.st_mode & stat.S_IWOTH:
            return "can be written by every user"
    return None


def sweeps(output: Path, name: str | None = None) -> Iterator[Folder]:
    """Yield the sweeps below ``output``, of one name or of all, the newest first."""
    found = []
    for plan in output.glob("*/*/plan.json"):
        match = _STAMP.fullmatch(plan.parent.name)
        if match is not None and name in (None, plan.parent.parent.name):
            with suppress(ValueError):  # there is no such time
                created = datetime.strptime(match[1], _STAMP_FORMAT).replace(tzinfo=UTC)
                found.append((created, int(match[2] or 1), plan.parent))
    for _, _, path in sorted(found, reverse=True):
        yield Folder(path)


def last_sweep(reference: str, output: Path, key: str, name: str | None = None) -> Folder | None:
    """Return the sweep that ``last``, ``last~1`` or ``NAME/last`` means; None for a reference of another form.

    Args:
        output: the folder of all sweeps.
        key: the config key or argument with the reference.
        name: of which sweeps ``last`` is the newest; None: of all.

    Raises:
        UserError: there is no such sweep.
    """
    last = _LAST.fullmatch(reference)
    if last is None:
        return None
    name, back = last["name"] or name, int(last["back"] or 0)
    found = list(sweeps(output, name))
    if back < len(found):
        return found[back]
    there = "there is 1 sweep" if len(found) == 1 else f"there are {len(found) or 'no'} sweeps"
    if name:
        there += f" of the name {name}"
    raise UserError([Problem(key, reference, f"does not exist: {there} in {output}.")])


def stamp_of(created: str) -> str:
    """Return the folder name of a sweep that was created at an ISO 8601 time: that time in UTC, e.g. ``2026-11-21_02-07-40Z``."""
    return f"{datetime.fromisoformat(created).astimezone(UTC):{_STAMP_FORMAT}}Z"


# ---- Addresses and files that a sweep's folder names: which of them are used ----


def check_address(
    folder: Folder, key: str, address: str, named: Iterable[str | None], how: str, trust: bool = False
) -> bool:
    """Return whether the user's logins may be sent to an address, or a path, that a sweep's folder names.

    Args:
        key: by which the user would give the address.
        named: what the user's command line, environment and config name.
        how: the user can name it, as in ``"set RAY_ADDRESS"``.
        trust: whether the user trusts the author of the folder.

    Raises:
        UserError: the address may not be used at all.
    """
    if trust or any(one and same_address(one, address) for one in named):
        return True
    why = folder.foreign()
    if why is None:
        return False
    message = (
        f"is named by a folder that {why}, and by nothing of your own: {how}, or add --trust (resume: trust=true) "
        "if you trust its author."
    )
    raise UserError([Problem(key, redacted_address(address), message)])


# ---- Jobs of a sweep on a cluster: processes that follow the tasks, and the tasks, share only these files ----


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
        found = []
        for path in self.path.glob("*.json"):
            # By their names: of the notes beside them there are thousands.
            if _TOKEN.fullmatch(path.stem):
                submission = self.read(path.stem)
                if submission is not None:
                    found.append(submission)
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


# ---- Events: the begin and end of every trial, a line of JSON each, in a file per shard ----


TrialKey = tuple[str, PassName, int]
"""Combination id, pass and round."""
EventKind = Literal["begin", "waiting", "running", "end", "decided"]
"""``waiting`` for the host lock, ``running`` once a trial that waited has it; ``decided``: the trial is not needed, as the rounds
before it decided the combination's comparisons, or these were given up."""


@dataclass(frozen=True, slots=True)
class TrialEvent:
    """A line of an event log."""

    kind: EventKind
    time: float
    """Seconds since the epoch by a clock that nobody sets while a log is open: differences within a log are durations."""
    combination_id: str
    pass_name: PassName
    round: int
    status: Status | None = None
    """Of an end."""
    reason: str | None = None
    """Of an end."""
    waits_for: str | None = None
    """Of waiting: the sweep that holds the host lock; None if it is this one."""
    step_s: float | None = None
    """Of an end of a trial that timed steps: their median in seconds."""
    log: str | None = None
    """Of an end that needs attention: the path of the trial's log."""

    @property
    def key(self) -> TrialKey:
        """The trial."""
        return self.combination_id, self.pass_name, self.round


_STORED_NAMES = {"kind": "event", "pass_name": "pass", "waits_for": "for"}
"""Names of fields in the files, where they differ."""


def parsed(line: bytes) -> TrialEvent | None:
    """Return the event of a line; None for a line that was cut or holds something else."""
    try:
        stored = validated(Json, json.loads(line))
        fields = {**stored, **{name: stored[key] for name, key in _STORED_NAMES.items() if key in stored}}
        event = validated(TrialEvent, fields)
        check_pass_name(event.pass_name)
    except (ValueError, RecursionError):
        return None
    if event.kind == "end" and event.status is None:
        return None
    if event.kind == "waiting" and "for" not in stored:
        return None
    return event


class EventLog:
    """Appends events to a file; a context, safe to be used by several threads."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._epoch = time.time() - time.monotonic()
        self._file = open_regular(path, "a+b")
        size = os.fstat(self._file.fileno()).st_size
        if size and os.pread(self._file.fileno(), 1, size - 1) != b"\n":
            self._append(b"\n")

    def __enter__(self) -> EventLog:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(
        self,
        kind: EventKind,
        trial: Trial,
        *,
        status: Status | None = None,
        reason: str | None = None,
        waits_for: str | None = None,
        log: str | None = None,
        step_s: float | None = None,
    ) -> None:
        """Append an event of a trial, see :class:`TrialEvent`.

        Raises:
            OSError: it could not be written completely.
        """
        line: Json = {
            "event": kind,
            "time": self._epoch + time.monotonic(),
            "combination_id": trial.combination_id,
            "pass": trial.pass_name,
            "round": trial.round,
        }
        if kind == "waiting":
            line["for"] = waits_for
        for name, value in (("status", status), ("reason", reason), ("log", log), ("step_s", step_s)):
            if value is not None:
                line[name] = value
        self._append(json.dumps(line).encode() + b"\n")

    def _append(self, line: bytes) -> None:
        with self._lock:
            if self._file.write(line) != len(line):
                raise OSError(errno.ENOSPC, "an event was written only in part", self._file.name)


def events_of(
    folder: Path, shard: int | None = None, start: int = 0, damaged: list[str] | None = None
) -> Iterator[TrialEvent]:
    """Yield every event in the files of ``events/``, shard by shard, or those of one shard.

    Args:
        start: the byte of each file from which it is read.
        damaged: gets a line for each file of which something could not be read.
    """
    name = "*" if shard is None else str(shard)
    for path in sorted(folder.glob(f"shard-{name}.jsonl")):
        unread = 0
        try:
            lines = read_bytes(path)[start:].splitlines(keepends=True)
        except (Damaged, OSError) as error:
            lines = []
            if damaged is not None:
                damaged.append(f"events/{path.name}: {error}")
        for line in lines:
            event = parsed(line)
            if event is not None:
                yield event
            elif line.endswith(b"\n") and line.strip():  # the last line may be half written
                unread += 1
        if unread and damaged is not None:
            damaged.append(f"events/{path.name}: {unread} line{'s' * (unread > 1)} cannot be read")


def begun(folder: Path, shard: int | None = None, start: int = 0, damaged: list[str] | None = None) -> set[TrialKey]:
    """Return the trials, of all shards or of one, that began to run and of which no end was written since.

    Args:
        start: the size of the shard's file when its task began: what is before it is of earlier tasks.
        damaged: as in :func:`events_of`.
    """
    trials: set[TrialKey] = set()
    for event in events_of(folder, shard, start, damaged):
        if event.kind in ("begin", "running"):
            trials.add(event.key)
        else:  # it has ended, or waits for the host lock
            trials.discard(event.key)
    return trials


# ---- Missing results: records of trials whose process, shard or job was killed before they could write one ----


KILLED = "the worker was killed"
RUNNING = "it is being measured"


def leave_record(
    folder: Folder,
    plan: Plan,
    trial: Trial,
    status: Status,
    reason: str,
    environment: Mapping[str, Any],
) -> None:
    """Write the record of a trial whose whole shard was killed, and the event of its end: the rest can be run without it."""
    combination = plan.combination(trial.combination_id)
    shard = next(index for index, ids in enumerate(plan.shards) if combination.id in ids)
    folder.new_record(plan, combination, trial, status, reason, environment).write(folder.records)
    with EventLog(folder.events / f"shard-{shard}.jsonl") as events:
        events.write("end", trial, status=status, reason=reason)


@dataclass(slots=True)
class MissingResults:
    """Why trials have no record."""

    folder: Folder
    plan: Plan
    missing: str
    """Why trials have not begun, unless their shard's job ended early."""
    running: bool
    """Whether the sweep is running, so that trials that have begun are not lost."""
    unfinished: Set[TrialKey]
    """Trials that began and have no event of their end."""
    _outcomes: dict[str, ShardOutcome] = field(init=False)
    """By combination, of those whose shard's job ended early."""

    def __post_init__(self) -> None:
        self._outcomes = {}
        for shard, outcome in Jobs(self.folder.path).outcomes().items():
            if 0 <= shard < len(self.plan.shards):
                self._outcomes.update(dict.fromkeys(self.plan.shards[shard], outcome))

    def placeholder_records(
        self, combination: Combination, records: Sequence[Record], damaged: Mapping[str, str]
    ) -> list[Record]:
        """Return records for a combination's other trials; they are never written, so that the trials can still be run.

        Args:
            damaged: by file name, why the record of a trial cannot be read.
        """
        plan = self.plan
        if combination.unsupported is not None:
            reason = combination.unsupported
            return [Record(plan.sweep_id, combination.id, name, "unsupported", reason) for name in plan.passes]
        known = {(record.pass_name, record.round) for record in records}
        placeholders = []
        for (trial,) in trial_groups([combination], plan.passes, {}):
            if (trial.pass_name, trial.round) not in known and not self.folder.is_decided(trial):
                status, reason = self._reason(trial, damaged)
                placeholders.append(Record(plan.sweep_id, combination.id, trial.pass_name, status, reason, trial.round))
        return placeholders

    def _reason(self, trial: Trial, damaged: Mapping[str, str]) -> tuple[Status, str]:
        name = f"{trial.pass_name}-r{trial.round}.json"
        if name in damaged:
            return "lost", f"its record is damaged: {damaged[name]}"
        outcome = self._outcomes.get(trial.combination_id)
        if (trial.combination_id, trial.pass_name, trial.round) not in self.unfinished:
            return "skipped", outcome.missing if outcome else self.missing
        if outcome:
            return outcome.status, outcome.reason
        return ("skipped", RUNNING) if self.running else ("lost", KILLED)
