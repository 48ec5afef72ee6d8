"""The folder of a sweep: where things are in it, and what they say."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sweeprof.results.files import read_json, write_atomically
from sweeprof.results.record import Record, readable_record
from sweeprof.sweep.plan import Plan, Trial

_RECORD = re.compile(r"[^.]\w*-r\d+\.json")
_STAMP = re.compile(r"(\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d)(?:-(\d+))?")


@dataclass(frozen=True, slots=True)
class Folder:
    """The folder of a sweep.

    ::

        plan.json            what was planned; replaced when a sweep is continued with another plan, the old one is plan-1.json
        environment.json     the head's
        tracking.json        where the sweep is sent, and whether it was
        records/ID/PASS-rK.json
        records/ID/superseded/PASS-rK-aN.json  what was tried again, and files that cannot be read
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
        """The plan; raises ``ValueError`` for one of a later version."""
        return Plan.from_dict(read_json(self.plan))

    def record_path(self, trial: Trial) -> Path:
        """Where the record of a trial is, once there is one."""
        return self.records / trial.combination_id / f"{trial.pass_name}-r{trial.round}.json"

    def log_path(self, trial: Trial) -> Path:
        """The log of a trial: what its process printed, and the traceback where it raised."""
        return self.logs / trial.combination_id / f"{trial.pass_name}-r{trial.round}.log"

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

    def records_of(self, combination_id: str) -> list[Record]:
        """The records of one combination, in the order of their paths; a file that was cut is no record."""
        folder = self.records / combination_id
        paths = sorted(p for p in folder.iterdir() if _RECORD.fullmatch(p.name)) if folder.is_dir() else []
        return [record for path in paths if (record := readable_record(path)) is not None]

    def stopped(self) -> str | None:
        """Why no further trial is to be run; None while the sweep goes on."""
        return self.stop.read_text(encoding="utf-8").strip() if self.stop.exists() else None

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
