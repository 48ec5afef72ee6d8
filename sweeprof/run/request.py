"""The request to run a trial, its answer, and what runs it: what shards, fork servers and workers share."""

from __future__ import annotations

from dataclasses import dataclass, field

from sweeprof.results.record import Json


@dataclass(frozen=True, slots=True)
class Interleaved:
    """How the process of a trial takes part in an interleaved run, see :mod:`sweeprof.run.interleave`."""

    address: str
    """The coordinator's socket."""
    id: str
    """Of the interleaved run."""
    partners: tuple[str, ...]
    """Ids of the other combinations."""
    processors: tuple[int, ...]
    """The only processors that the trial may use."""


@dataclass(frozen=True, slots=True)
class Request:
    """One trial, as it travels from the shard to the process that runs it."""

    blank: Json
    """The record without its outcome: ids, axes, config, command, environment."""
    records: str
    """The folder ``records/``."""
    log: str
    """The file for the output of the process."""
    timeout_s: float | None
    memory: int | None
    """Bytes that the process and its descendants may use above its start."""
    asked: float
    """``time.monotonic()`` when the shard asked for the process."""
    interleaved: Interleaved | None = None
    """None for a trial that runs alone."""
    family: int = 0
    """The shard's process id: its descendants belong to the sweep; 0: only this process does."""
    environment: dict[str, str] = field(default_factory=dict)
    """Environment variables of this trial's process, in addition to those that its backend sets."""


@dataclass(frozen=True, slots=True)
class ProcessExit:
    """How the process of a trial ended."""

    code: int
    """Exit code; negative: the signal that ended it."""
    timed_out: bool = False
    used_bytes: int | None = None
    """Memory of its processes, if it was ended because that was above ``limits.memory``."""
