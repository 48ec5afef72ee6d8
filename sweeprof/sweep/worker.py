"""The process of one trial: run the pass, leave a record, end."""

from __future__ import annotations

import faulthandler
import os
import random
import resource
import time
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import psutil

from sweeprof.errors import Unsupported
from sweeprof.profiling.profiler import Profiler
from sweeprof.results.comparable import warnings_of
from sweeprof.results.environment import load
from sweeprof.results.files import write_bytes
from sweeprof.results.record import Json, Record, Status, Warning
from sweeprof.sweep.company import Company
from sweeprof.sweep.player import Player, joined
from sweeprof.text import LONGEST_TRACEBACK, stored
from sweeprof.tracebacks import described, formatted, location_of, original

DISK_FULL = 74
"""Exit code of a process that could not write its record."""


@dataclass(frozen=True, slots=True)
class Request:
    """One trial, as it travels from the shard to the process that runs it."""

    blank: Json
    """The record without its outcome: ids, axes, config, command, environment."""
    records: str
    """The folder ``records/``."""
    log: str
    """Where the process's own output goes."""
    timeout_s: float | None
    memory: int | None
    """Bytes the process may allocate above its start."""
    asked: float
    """``time.monotonic()`` when the shard asked for the process."""
    duel: Json | None = None
    """Where its referee is, the duel's ``id`` and the ``partners``; None: it runs alone."""
    family: int = 0
    """The shard's process id: what descends from it belongs to the sweep; 0: this process alone does."""
    environment: dict[str, str] = field(default_factory=dict)
    """Environment variables of this trial's process, beside those that its backend asks for."""


def run_trial(request: Request) -> None:
    """Run the trial in this process and write its record."""
    with joined(request.duel, request.blank["combination_id"]) as turns:
        _run(request, turns)


def _run(request: Request, turns: Player | None) -> None:
    costs = {"fork": time.monotonic() - request.asked}
    started = datetime.now(UTC).isoformat(timespec="seconds")
    blank = Record.from_dict(request.blank)
    profiler: Profiler | None = None
    company = Company(blank, request.family)
    warnings: tuple[Warning, ...] = ()
    observations: Json | None = None
    status: Status = "ok"
    reason: str | None = None
    trace: str | None = None
    location: str | None = None
    try:
        if request.memory is not None:
            _limit_memory(request.memory)
        _seed(blank.config["seed"]["weights"])
        profiler = Profiler.from_config(blank.config)
        profiler.session.turns = turns
        seen = profiler.run(blank.pass_name)
        observations = seen.to_dict() if hasattr(seen, "to_dict") else asdict(seen)
        for name, content in getattr(seen, "files", {}).items():
            write_bytes(Path(request.records).parent / "artifacts" / blank.combination_id / name, content)
        warnings += getattr(seen, "warnings", ())
        for one in getattr(seen, "tracebacks", ()):
            _log(Path(request.log), one)
    except Exception as error:
        status, reason, trace = _outcome(error, profiler)
        location = location_of(error) if trace else None
        _log(Path(request.log), trace)
    own = dict(profiler.session.costs) if profiler else {}
    warnings += tuple(profiler.session.warnings) if profiler else ()
    if turns and "measure" in own:  # which others' turns are no part of
        own |= {"measure": own["measure"] - turns.waited_s, "wait": turns.waited_s}
    others, disturbed = company.seen()
    deviating = warnings_of(profiler.session.settings.deviations) if profiler else ()
    replace(
        blank,
        status=status,
        reason=reason,
        traceback=trace,
        location=location,
        observations=observations,
        warnings=tuple(dict.fromkeys((*disturbed, *warnings, *deviating))),
        started=started,
        wall_s=time.monotonic() - request.asked,
        costs={**costs, **own},
        environment={**blank.environment, "load": load(), **_settings(blank, profiler), **others},
    ).write(Path(request.records))


def _settings(blank: Record, profiler: Profiler | None) -> Json:
    """Return the settings that were in effect while the model ran, and where they were not as requested."""
    threads = blank.config["backend"].get("threads")
    if profiler is None or not profiler.session.settings.in_effect:
        return {"threads": threads}
    settings = profiler.session.settings
    found: Json = {"threads": settings.in_effect.get("threads", threads), "settings": dict(settings.in_effect)}
    if settings.deviations:
        found["deviations"] = {name: list(values) for name, values in settings.deviations.items()}
    return found


def _outcome(error: Exception, profiler: Profiler | None) -> tuple[Status, str, str | None]:
    cause = original(error)
    if isinstance(cause, Unsupported):
        return "unsupported", str(cause), None
    ran_out = isinstance(cause, MemoryError) or (
        profiler is not None and profiler.session.backend.is_out_of_memory(cause)
    )
    return "oom" if ran_out else "failed", described(error), formatted(error)


def _log(log: Path, trace: str | None) -> None:
    if trace is not None:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(stored(trace, LONGEST_TRACEBACK))


def _seed(seed: int) -> None:
    """Seed what user code may draw from beside the framework, before anything is built."""
    random.seed(seed)
    np.random.seed(seed)


def _limit_memory(size: int) -> None:
    """Let this process allocate ``size`` bytes more; beyond that allocations fail and the pass raises."""
    info = psutil.Process().memory_info()
    limit = info.data + size
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def redirect_output(log: Path) -> None:
    """Send everything this process prints, also from C, to ``log``, and a traceback of every thread should it crash."""
    log.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    faulthandler.enable(file=2)
