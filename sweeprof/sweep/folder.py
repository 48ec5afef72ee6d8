"""The folder of a sweep: where things are in it, and what they say."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sweeprof.errors import Damaged, Problem, UserError
from sweeprof.profiling.observations import checked_record
from sweeprof.results.files import read_bytes, read_json, write_atomically
from sweeprof.results.record import PassName, Record
from sweeprof.sweep.plan import Plan, Trial

MOST_REASON = 500
"""Characters of the reason for which a sweep is stopped."""
_RECORD = re.compile(r"([^.]\w*)-r\d+\.json")
_STAMP = re.compile(r"(\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d)(?:-(\d+))?")


@dataclass(frozen=True, slots=True)
class Folder:
    """The folder of a sweep.

    ::

        plan.json            what was planned; replaced when a sweep is continued with another plan, the old one is plan-1.json
        environment.json     the head's
        tracking.json        where the sweep is sent, and whether it was
        records/ID/PASS-rK.json
        records/ID/superseded/PASS-rK-aN.json  what was tried again
        damaged/records/ID/PASS-rK-N.json  files that are not what they should be, set aside
        artifacts/ID/*       what passes left beside their records
        events/shard-I.jsonl begin and end of every trial, for the progress display
        logs/                what processes printed
        jobs/                what was submitted to a cluster (:mod:`sweeprof.sweep.cluster.jobs`)
        stop                 there while the sweep is to run no further trial; says why
        head.json, *.lock    who is at work
    """

    path: Path

    @property
    def plan(self) -> Path:
        return self.path / "plan.json"

    @property
    def tracking(self) -> Path:
        return self.path / "tracking.json"

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
        """The plan.

        Raises:
            Damaged: it is not one, or comes from a later version.
            OSError: it cannot be read.
        """
        return Plan.from_dict(read_json(self.plan))

    def check_links(self) -> None:
        """Raise :class:`UserError` if something in the folder is a link: what is written there would land elsewhere."""
        folders = [self.path]
        while folders:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    if entry.is_symlink():
                        said = f"has a link in it, {Path(entry.path).relative_to(self.path)}, which a sweep's folder must not have."
                        raise UserError([Problem("DIR", str(self.path), said)])
                    if entry.is_dir() and not entry.name.startswith("."):
                        folders.append(Path(entry.path))

    def check_owner(self, key: str) -> None:
        """Raise :class:`UserError` if another user can change the plan: whoever resumes a sweep runs the code that it names."""
        for path in (self.path, self.plan):
            found = path.stat()
            other = found.st_uid != os.geteuid()
            if other or found.st_mode & stat.S_IWOTH:
                why = "belongs to another user" if other else "can be written by every user"
                said = f"{why}, and resuming runs the code that its plan names: add trust=true if you trust whoever made it."
                raise UserError([Problem(key, str(path), said)])

    def record_path(self, trial: Trial) -> Path:
        """Where the record of a trial is, once there is one."""
        return self.records / trial.combination_id / f"{trial.pass_name}-r{trial.round}.json"

    def is_done(self, trial: Trial) -> bool:
        """Whether the trial has left a record; what is to be tried again has its record moved away first."""
        return self.record_path(trial).exists()

    def attempts(self, trial: Trial) -> int:
        """How many records of the trial were set aside."""
        aside = self.records / trial.combination_id / "superseded"
        return sum(1 for _ in aside.glob(f"{trial.pass_name}-r{trial.round}-a*.json")) if aside.is_dir() else 0

    def set_aside(self, path: Path) -> None:
        """Move a record to ``superseded/``, so that its trial is run again."""
        aside = path.parent / "superseded"
        aside.mkdir(exist_ok=True)
        number = sum(1 for _ in aside.glob(f"{path.stem}-a*.json"))
        path.replace(aside / f"{path.stem}-a{number}.json")

    def set_aside_damaged(self, path: Path) -> Path:
        """Move a damaged file out of the readers' way; returns where it is now."""
        place = self.path / "damaged" / path.relative_to(self.path)
        place.parent.mkdir(parents=True, exist_ok=True)
        number = sum(1 for _ in place.parent.glob(f"{path.stem}-*"))
        return path.replace(place.with_name(f"{path.stem}-{number}{path.suffix}"))

    def records_of(
        self, combination_id: str, pass_name: PassName | None = None, damaged: dict[str, str] | None = None
    ) -> list[Record]:
        """The records of one combination, in the order of their paths; damaged files are left out.

        Args:
            pass_name: None for those of all passes.
            damaged: gets why a file is left out, by the file's name.
        """
        folder = self.records / combination_id
        names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
        found = []
        for name in names:
            match = _RECORD.fullmatch(name)
            if match is None or pass_name not in (None, match[1]):
                continue
            try:
                found.append(checked_record(folder / name))
            except (Damaged, OSError) as error:
                if damaged is not None:
                    damaged[name] = str(error) if isinstance(error, Damaged) else str(error.strerror)
        return found

    def stopped(self) -> str | None:
        """Why no further trial is to be run; None while the sweep goes on."""
        if not self.stop.exists():
            return None
        try:
            return read_bytes(self.stop).decode(errors="replace").strip()[:MOST_REASON]
        except (Damaged, OSError) as error:
            return f"a file that {error}"

    def stop_because(self, reason: str) -> None:
        """Let every shard end after the trial that it runs."""
        write_atomically(self.stop, reason)


def sweeps(output: Path, name: str | None = None) -> Iterator[Folder]:
    """The sweeps below ``output``, of one name or of all, the newest first."""
    found = [(stamp, path.parent) for path in output.glob("*/*/plan.json") if (stamp := _stamp(path.parent))]
    for _, path in sorted(found, reverse=True):
        if name is None or path.parent.name == name:
            yield Folder(path)


def _stamp(path: Path) -> tuple[str, int] | None:
    match = _STAMP.fullmatch(path.name)
    return (match[1], int(match[2] or 1)) if match else None
