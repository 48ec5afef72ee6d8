"""A shard: the trials that belong on one host, run one after the other, each leaving a record whatever happens."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sweeprof.errors import WorkerError
from sweeprof.results.environment import capture, oom_kills
from sweeprof.results.files import read_json
from sweeprof.results.record import Record, Status
from sweeprof.sweep.check import parse_size
from sweeprof.sweep.child import signal_name
from sweeprof.sweep.isolation import Isolation, isolation
from sweeprof.sweep.lock import measuring_lock
from sweeprof.sweep.plan import Combination, Plan, Trial
from sweeprof.sweep.template import Ending
from sweeprof.sweep.worker import Request

MEASURING = ("peaks", "timing", "layer_times", "operators", "memory", "allocations", "lines")
"""Passes that must not share the device with another measurement."""


@dataclass(frozen=True, slots=True)
class Folder:
    """The folder of a sweep, and where things are in it."""

    path: Path

    @property
    def plan(self) -> Path:
        return self.path / "plan.json"

    @property
    def records(self) -> Path:
        return self.path / "records"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def events(self) -> Path:
        return self.path / "events"


def run_shard(folder: Folder, index: int) -> None:
    """Run every trial of shard ``index`` of the plan in ``folder``."""
    plan = Plan.from_dict(read_json(folder.plan))
    combinations = {c.id: c for c in plan.combinations}
    environment = capture()
    hung: set[str] = set()
    folder.events.mkdir(parents=True, exist_ok=True)
    with (folder.events / f"shard-{index}.jsonl").open("a") as events, isolation(plan.isolation, folder.logs) as place:
        for trial in plan.shards[index]:
            print(json.dumps(_event("begin", trial)), file=events, flush=True)
            combination = combinations[trial.combination_id]
            blank = _blank(plan, combination, trial, environment)
            if trial.combination_id in hung:
                reason = "an earlier trial of this combination ran into limits.timeout_s"
                record = replace(blank, status="skipped", reason=reason)
                record.write(folder.records)
            else:
                record = _run(place, plan, folder, blank)
            if record.status == "timeout":
                hung.add(trial.combination_id)
            print(
                json.dumps({**_event("end", trial), "status": record.status, "reason": record.reason}),
                file=events,
                flush=True,
            )


def _event(kind: str, trial: Trial) -> dict[str, Any]:
    return {
        "event": kind,
        "time": time.time(),
        "combination_id": trial.combination_id,
        "pass": trial.pass_name,
        "round": trial.round,
    }


def _blank(plan: Plan, combination: Combination, trial: Trial, environment: Mapping[str, Any]) -> Record:
    """The record as it stands if the process leaves none."""
    return Record(
        sweep_id=plan.sweep_id,
        combination_id=combination.id,
        pass_name=trial.pass_name,
        status="crashed",
        reason="ended without leaving a record",
        round=trial.round,
        attempt=trial.attempt,
        axes=combination.axes,
        config=combination.config,
        command=combination.command,
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        environment=dict(environment),
    )


def _run(place: Isolation, plan: Plan, folder: Folder, blank: Record) -> Record:
    """Run one trial; the record is the worker's own, or made here from the way it ended."""
    log = folder.logs / blank.combination_id / f"{blank.pass_name}-r{blank.round}.log"
    path = folder.records / blank.file_name
    with _lock(blank):
        kills = oom_kills()
        asked = time.monotonic()
        limits = plan.limits
        request = Request(
            blank.to_dict(), str(folder.records), str(log), limits["timeout_s"], parse_size(limits["memory"]), asked
        )
        try:
            ending = place.run(request)
        except WorkerError as error:
            record = replace(blank, reason=str(error), wall_s=time.monotonic() - asked)
            record.write(folder.records)
            return record
    if path.exists() and ending.code == 0:
        _remove_if_empty(log)
        return Record.from_dict(read_json(path))
    status, reason = _judged(ending, limits["timeout_s"], oom_kills() > kills, _tail(log))
    record = replace(blank, status=status, reason=reason, wall_s=time.monotonic() - asked, traceback=_tail(log, 50))
    record.write(folder.records)
    return record


def _lock(blank: Record) -> AbstractContextManager[Any]:
    if blank.pass_name not in MEASURING:
        return nullcontext()
    return measuring_lock(str(blank.config["device"]["type"]))


def _judged(ending: Ending, timeout_s: float | None, oom_kill: bool, output: str | None) -> tuple[Status, str]:
    """Status and reason of a process that left no record."""
    if ending.timed_out:
        return "timeout", f"took longer than limits.timeout_s={timeout_s:g}"
    if ending.code == -signal.SIGKILL and oom_kill:
        return "oom", "the system ran out of memory and killed it"
    if "std::bad_alloc" in (output or ""):
        return "oom", "std::bad_alloc"
    said = f": {output}" if output and ending.code >= 0 else ""
    if ending.code < 0:
        return "crashed", f"killed by {signal_name(-ending.code)} (signal {-ending.code})"
    return "crashed", f"exited with code {ending.code} without leaving a record{said}"


def _tail(log: Path, lines: int = 1) -> str | None:
    try:
        text = log.read_text(errors="replace").strip().splitlines()[-lines:]
    except OSError:
        return None
    return "\n".join(text) or None


def _remove_if_empty(log: Path) -> None:
    if log.exists() and log.stat().st_size == 0:
        log.unlink()
