"""The protocol, which says how long and how often a step is timed; and the record of a trial, which is always written."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, TypedDict, get_args

from sweeprof.display import Displayed
from sweeprof.errors import Damaged, Problem, choice_problem
from sweeprof.results.files import damaged, read_json, validated, write_json
from sweeprof.text import LONGEST_TRACEBACK, stored

Interleave = Literal["rounds", "samples"]
Decide = Literal["baseline"]
MOST_ROUNDS = 10_000
MOST_STEPS = 1_000_000
"""Of the warm-up, and of the samples of a round, which are all stored."""
LONGEST_S = 7 * 24 * 60 * 60
"""No part of a trial, and no trial, may take longer: a week."""


@dataclass(frozen=True, slots=True)
class Protocol:
    """Duration and number of measurements; one YAML under ``conf/protocol/``. The config's defaults are these."""

    rounds: int = 1
    """Number of rounds; each runs in a new process."""
    threshold: float | None = 0.1
    """Relative difference below which two values are the same; None: no verdicts."""
    warmup_steps: int = 3
    warmup_s: float = 0.2
    """Warm-up lasts for at least this many steps and this many seconds."""
    sample_s: float = 0.001
    """A sample repeats the step until it lasts this long."""
    min_samples: int = 10
    min_s: float = 0.5
    """A round has at least this many samples (``min_samples``) and seconds …"""
    max_s: float = 5
    """… unless it takes this long, which gives a warning."""
    target_spread: float | None = None
    """Also continue until IQR/median is below this or has settled."""
    interleave: Interleave = "rounds"
    """How combinations that are compared alternate: by rounds, or by samples in processes that exist at the same time."""
    decide: Decide | None = None
    """``baseline``: a combination gets no further rounds once its comparison with its baseline is decided. ``rounds`` is then the
    largest number of rounds. None: all combinations get all rounds."""

    def problems(self) -> Iterator[Problem]:
        """Yield the problems of values that the config would refuse too."""
        for name, least, most in (
            ("rounds", 1, MOST_ROUNDS),
            ("warmup_steps", 0, MOST_STEPS),
            ("min_samples", 1, MOST_STEPS),
        ):
            value = getattr(self, name)
            if type(value) is not int or not least <= value <= most:
                yield Problem(f"protocol.{name}", value, f"is not a whole number from {least} to {most:,}.")
        for name in ("warmup_s", "sample_s", "min_s", "max_s"):
            value = getattr(self, name)
            if not _is_number(value) or not 0 <= value <= LONGEST_S:
                yield Problem(f"protocol.{name}", value, f"is not a duration: seconds from 0 to {LONGEST_S:,}.")
        for name in ("threshold", "target_spread"):
            value = getattr(self, name)
            if value is not None and not (_is_number(value) and 0 < value < 1):
                yield Problem(f"protocol.{name}", value, "is not a number between 0 and 1, or None.")
        if self.interleave not in get_args(Interleave):
            yield choice_problem("protocol.interleave", self.interleave, "way to interleave", ("rounds", "samples"))
        if self.decide is not None and self.decide not in get_args(Decide):
            yield choice_problem("protocol.decide", self.decide, "comparison", get_args(Decide))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


SCHEMA_VERSION = 2
"""Of records. Readers ignore fields that they do not know, and refuse a later version."""

Status = Literal["ok", "unsupported", "skipped", "failed", "crashed", "oom", "timeout", "lost"]
PassName = str
"""The name of a pass of :mod:`sweeprof.passes`; here it only has to be an identifier."""

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,79}")
_PASS_NAME = re.compile(r"[a-z][a-z0-9_]{0,79}")

STATUSES: tuple[Status, ...] = get_args(Status)
FINE: tuple[Status, ...] = ("ok", "unsupported")
"""Of a trial that is done, with or without a measurement."""

Json = dict[str, Any]
"""A JSON object, such as a config, of which readers take values by their keys."""


def plain_data(value: Any) -> Any:
    """Return dictionaries, lists and tuples in place of dataclasses and of mappings and sequences of sweeprof's own.

    ``dataclasses.asdict`` would keep their types, which would still print themselves as tables of dataclasses.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        left_out = getattr(value, "NOT_STORED", ())
        names = [spec.name for spec in dataclasses.fields(value) if spec.name not in left_out]
        return {name: plain_data(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {key: plain_data(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain_data(item) for item in value]
    if isinstance(value, tuple):
        return tuple(plain_data(item) for item in value)
    return value


@dataclass(frozen=True, slots=True)
class Stored(Displayed):
    """The result of a pass, which a record has as a JSON object of its fields."""

    NOT_STORED: ClassVar[tuple[str, ...]] = ()
    """Fields that no record has."""

    def to_dict(self) -> Json:
        """Return plain JSON data."""
        data: Json = plain_data(self)
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, object]) -> Self:
        """Return the object whose data :meth:`to_dict` returned; raise :class:`~sweeprof.errors.Damaged` for other data."""
        return validated(cls, data)


class Processor(TypedDict, total=False):
    """The parts of ``cpu`` that readers look into."""

    model: str | None
    logical: int | None
    physical: int | None
    available: int | None


class TrialGpu(TypedDict, total=False):
    """A trial's GPU, and its states when the trial began and ended, as of :class:`sweeprof.measuring.nvml.GpuState`."""

    driver: str | None
    power_limit_w: float | None
    before: Json
    after: Json


class Environment(TypedDict, total=False):
    """The parts of an environment that readers look into; others are shown as they are, or not at all."""

    host: str | None
    user: str | None
    os: str | None
    python: str | None
    cpu: Processor | None
    memory_bytes: int | None
    memory_limit_bytes: int | None
    gpus: list[object] | None
    load: list[float] | None
    versions: dict[str, str] | None
    git: Json | None
    scheduler: Json | None
    session: str | None
    settings: Json
    """Of the backend, as it reports them."""


@dataclass(frozen=True, slots=True)
class Warning:
    """Something that makes a number less trustworthy, and what to do about it."""

    code: str
    """Stable identifier, e.g. ``spread_high``."""
    text: str
    """The observation, with its figures."""
    advice: str
    """Advice for the user."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", stored(self.text))
        object.__setattr__(self, "advice", stored(self.advice))


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

    def __post_init__(self) -> None:
        object.__setattr__(self, "message", stored(self.message))
        if self.traceback is not None:
            object.__setattr__(self, "traceback", stored(self.traceback, LONGEST_TRACEBACK))


@dataclass(frozen=True, slots=True)
class Record(Displayed):
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
    """The raw result of the pass, in base SI units; its form is the dataclass of that pass."""
    warnings: tuple[Warning, ...] = ()
    traceback: str | None = None
    location: str | None = None
    """Where in the user's code it was raised, as ``file:line in function``; None if nothing was raised there."""
    started: str = ""
    """ISO 8601, UTC."""
    wall_s: float = 0.0
    """Whole trial as the shard saw it, from asking for the process to its end."""
    costs: dict[str, float] = field(default_factory=dict)
    """Where the wall time went, in seconds: ``fork``, ``build``, ``measure`` …"""
    environment: Json = field(default_factory=dict)
    """Host, CPU, memory, threads, load and library versions at the time of the trial."""
    schema_version: int = SCHEMA_VERSION

    def __post_init__(self) -> None:
        """Limit what a model's error may say: it may be of any length, and is shown in every report."""
        if self.reason is not None:
            object.__setattr__(self, "reason", stored(self.reason))
        if self.traceback is not None:
            object.__setattr__(self, "traceback", stored(self.traceback, LONGEST_TRACEBACK))

    @property
    def file_name(self) -> str:
        """Path below ``records/``."""
        return f"{self.combination_id}/{self.pass_name}-r{self.round}.json"

    def to_dict(self) -> Json:
        """Plain JSON data; the pass is spelled ``pass``."""
        # dataclasses.asdict would copy config, environment and observations, which takes longer than writing them.
        data = {spec.name: getattr(self, spec.name) for spec in dataclasses.fields(self)}
        data["pass"] = data.pop("pass_name")
        data["warnings"] = [dataclasses.asdict(warning) for warning in self.warnings]
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, object]) -> Record:
        """The record that :meth:`to_dict` wrote; unknown fields are ignored.

        Raises:
            Damaged: the data are not a record, or come from a later schema version.
        """
        if not isinstance(data, dict):
            raise damaged(data, "a record")
        check_version(data, "record", SCHEMA_VERSION)
        fields = dict(data)
        del fields["schema_version"]
        if "pass" in fields:
            fields["pass_name"] = fields.pop("pass")
        record = validated(cls, fields)
        check_environment(record.environment, "environment")
        check_id(record.combination_id, "combination_id")
        check_pass_name(record.pass_name, "pass")
        if not 0 <= record.round <= MOST_ROUNDS:
            raise damaged(record.round, f"a round from 0 to {MOST_ROUNDS}", ["round"])
        return record

    def write(self, records: Path) -> Path:
        """Write this record below the folder ``records``; returns its path."""
        path = records / self.file_name
        records.mkdir(exist_ok=True)  # not its parents: the folder of a sweep that was removed meanwhile stays removed
        write_json(path, self.to_dict())
        return path


def check_version(data: Mapping[str, object], noun: str, known: int) -> None:
    """Raise :class:`Damaged` for data of no schema version, or of a later one than is ``known``."""
    version = data.get("schema_version")
    if type(version) is not int or version < 0:
        raise damaged(version, "a schema version", ["schema_version"])
    if version > known:
        raise Damaged(f"{noun} schema {version} is newer than this sweeprof, which reads up to {known}")


def check_environment(data: object, *where: str) -> None:
    """Raise :class:`Damaged` if the data are not an environment; ``where`` are the keys that lead to it."""
    try:
        validated(Environment, data)
    except Damaged as error:
        raise Damaged(".".join((*where, str(error)))) from None


def check_id(id: str, *where: str | int) -> None:
    """Raise :class:`Damaged` for an id that is not one: files are named by it."""
    if not _ID.fullmatch(id):
        raise damaged(id, "an id: up to 80 letters, digits, '-' and '_', beginning with a letter or digit", where)


def check_pass_name(name: PassName, *where: str | int) -> None:
    """Raise :class:`Damaged` for a name that no pass can have: files are named by it."""
    if not _PASS_NAME.fullmatch(name):
        raise damaged(name, "the name of a pass: up to 80 lower-case letters, digits and '_'", where)


def outcome(record: Record) -> tuple[Status, str | None]:
    """Return status and reason of a trial; ``failed`` also where one of its metrics raised, though the record has the others."""
    if record.pass_name == "live" and record.status == "ok" and record.observations is not None:
        results = record.observations.get("results")
        if not isinstance(results, Mapping):
            results = {}
        for name, result in results.items():
            if isinstance(result, Mapping) and isinstance(result.get("failure"), Mapping):
                return "failed", f"metric {name}: {result['failure'].get('message')}"
    return record.status, record.reason


def stored_record(path: Path) -> Record:
    """The record in the file ``PASS-rROUND.json`` below the folder of its combination.

    Raises:
        Damaged: the file holds something else, or the record of another trial.
        OSError: it cannot be read.
    """
    record = Record.from_dict(read_json(path))
    if record.file_name != f"{path.parent.name}/{path.name}":
        raise Damaged(f"is the record of another trial, {record.file_name}")
    return record
