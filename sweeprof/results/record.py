"""What a trial leaves behind, always, whatever happened to it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from sweeprof.errors import UserError
from sweeprof.results.files import read_json, write_json

SCHEMA_VERSION = 2
"""1: the first. 2: the status ``lost``, and what else ran meanwhile. Readers take earlier versions, ignore fields that they do not
know, and refuse a later version."""

Status = Literal["ok", "unsupported", "skipped", "failed", "crashed", "oom", "timeout", "lost"]
PassName = Literal[
    "analysis",
    "training",
    "own_counts",
    "artifact",
    "peaks",
    "timing",
    "layer_times",
    "operators",
    "memory",
    "allocations",
    "lines",
    "quality",
    "live",
]

STATUSES: tuple[Status, ...] = get_args(Status)
PASSES: tuple[PassName, ...] = get_args(PassName)

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Warning:
    """Something that makes a number less trustworthy, and what to do about it."""

    code: str
    """Stable identifier, e.g. ``spread_high``."""
    text: str
    """What was seen, with its figures."""
    advice: str
    """What the user can do."""


@dataclass(frozen=True, slots=True)
class Failure:
    """An error of a pass or a metric: what a report shows of it."""

    source: str
    """The pass or the metrics, e.g. ``timing`` or ``metric quality/mine``."""
    message: str
    """Type, message and location, in one line."""
    location: str | None = None
    """``file:line in function``; None if it is not known."""
    traceback: str | None = None
    """None also where an earlier row has the same one."""
    log: str | None = None
    """Path of the trial's log below the sweep's folder; None if there is none."""


@dataclass(frozen=True, slots=True)
class Record:
    """One trial: a combination, a pass, a round; written once, atomically, when the trial ends."""

    sweep_id: str
    combination_id: str
    pass_name: PassName
    status: Status
    reason: str | None = None
    """Why the status is not ``ok``; one line."""
    round: int = 0
    attempt: int = 0
    axes: Json = field(default_factory=dict)
    """Value per axis."""
    config: Json = field(default_factory=dict)
    """The resolved config of the combination."""
    command: str = ""
    """The shell command that repeats this combination alone."""
    observations: Json | None = None
    """What the pass saw, raw, in base SI units; its form is the dataclass of that pass."""
    warnings: tuple[Warning, ...] = ()
    traceback: str | None = None
    location: str | None = None
    """Where in the user's code it was raised, as ``file:line in function``; None in records of an earlier version."""
    started: str = ""
    """ISO 8601, UTC."""
    wall_s: float = 0.0
    """Whole trial as the shard saw it, from asking for the process to its end."""
    costs: dict[str, float] = field(default_factory=dict)
    """Where the wall time went, in seconds: ``fork``, ``build``, ``measure`` …"""
    environment: Json = field(default_factory=dict)
    """Host, CPU, memory, threads, load and library versions at the time of the trial."""
    schema_version: int = SCHEMA_VERSION

    @property
    def file_name(self) -> str:
        """Path below ``records/``."""
        return f"{self.combination_id}/{self.pass_name}-r{self.round}.json"

    def to_dict(self) -> Json:
        """Plain JSON data; the pass is spelled ``pass``."""
        data = dataclasses.asdict(self)
        data["pass"] = data.pop("pass_name")
        data["warnings"] = list(data["warnings"])
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Record:
        """The record that :meth:`to_dict` wrote; unknown fields are ignored.

        Raises:
            ValueError: the data come from a later schema version.
        """
        version = data.get("schema_version", 0)
        if version > SCHEMA_VERSION:
            raise ValueError(f"record schema {version} is newer than this sweeprof, which reads up to {SCHEMA_VERSION}")
        known = {f.name for f in dataclasses.fields(cls)} - {"pass_name", "warnings"}
        return cls(
            pass_name=data["pass"],
            warnings=tuple(Warning(**warning) for warning in data.get("warnings", ())),
            **{key: value for key, value in data.items() if key in known and key != "schema_version"},
        )

    def write(self, records: Path) -> Path:
        """Write this record below the folder ``records``; returns its path."""
        path = records / self.file_name
        write_json(path, self.to_dict())
        return path


def outcome(record: Record) -> tuple[Status, str | None]:
    """Status and reason of a trial; ``failed`` also where one of its metrics raised, though the record has the other metrics."""
    for name, result in _results(record).items():
        failure = result.get("failure") if isinstance(result, Mapping) else None
        if isinstance(failure, Mapping):
            return "failed", f"metric {name}: {failure.get('message')}"
    return record.status, record.reason


def _results(record: Record) -> Mapping[str, Any]:
    """By metric name, what the metrics that read the model or its data returned."""
    seen = record.observations if record.pass_name == "live" and record.status == "ok" else None
    results = seen.get("results") if isinstance(seen, Mapping) else None
    return results if isinstance(results, Mapping) else {}


def readable_record(path: Path) -> Record | None:
    """The record in a file; None where a power loss or a stranger left something else there.

    Raises:
        UserError: the record is of a later version.
    """
    try:
        data = read_json(path)
        data["pass"], data["combination_id"]
    except (ValueError, KeyError, TypeError, OSError):
        return None
    try:
        return Record.from_dict(data)
    except ValueError as error:
        raise UserError(f"{path}: {error}") from None
    except (KeyError, TypeError, AttributeError):
        return None


def read_records(records: Path) -> list[Record]:
    """Every record below the folder, in the order of their paths; a file that was cut is no record."""
    found = map(readable_record, sorted(records.glob("*/*-r*.json")))
    return [record for record in found if record is not None]
