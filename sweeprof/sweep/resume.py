"""Going on with a sweep: which one, with which plan, and which of its trials are run again."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sweeprof.errors import Damaged, Problem, UserError, choice_problem
from sweeprof.profiling.observations import checked_record
from sweeprof.results.environment import capture
from sweeprof.results.files import read_json, remove_unfinished, write_bytes, write_json
from sweeprof.results.record import STATUSES, Json, Status, check_environment, outcome
from sweeprof.sweep.check import rule_problems
from sweeprof.sweep.cluster.shards import Shards
from sweeprof.sweep.difference import difference
from sweeprof.sweep.folder import Folder, sweeps
from sweeprof.sweep.plan import Plan

FINE: tuple[Status, ...] = ("ok", "unsupported")
"""What is not run again, unless it is asked for."""
SETTINGS = ("limits", "jobs", "fail_fast", "isolation")
"""Keys of the plan that the command line may set anew without another plan."""
DAMAGED = "damaged"
"""How a trial ended whose record is not one: it was cut, edited, or comes from a later version."""
NOT_DECIDING = (
    *SETTINGS,
    *("resume", "retry", "output", "shards", "cluster", "wait", "tracking", "hydra", "dry_run", "name", "job", "trust"),
)
"""Keys that decide nothing of what is measured."""


@dataclass(frozen=True, slots=True)
class Tally:
    """What is done and what is to be done."""

    kept: int
    again: dict[str, int]
    """How many trials are run again, by the status that they ended with."""
    missing: int

    def __str__(self) -> str:
        parts = [f"{count} {status}" for status, count in self.again.items()]
        again = f", {sum(self.again.values())} again ({', '.join(parts)})" if parts else ""
        return f"{self.kept} trials are measured, {self.missing} missing{again}"


def found(resume: str, output: Path, name: str | None) -> Folder:
    """The sweep that ``resume`` names: a folder, or ``last`` for the newest below ``output`` of that name, or of all.

    Raises:
        UserError: there is none, or its plan cannot be read.
    """
    if resume == "last":
        newest = next(sweeps(output, name), None)
        if newest is None:
            of = f" named {name!r}" if name else ""
            raise UserError([Problem("resume", resume, f"finds no sweep{of} below {output}.")])
        return newest
    folder = Folder(Path(resume).absolute())
    if not folder.plan.is_file():
        raise UserError([Problem("resume", resume, "is no folder of a sweep: it has no plan.json.")])
    return folder


def stored_plan(folder: Folder) -> Plan:
    """The plan of a sweep; raises :class:`UserError` where it cannot be read."""
    try:
        plan = folder.read_plan()
    except (OSError, Damaged) as error:
        said = f"has a plan.json that cannot be read: {error}"
        raise UserError([Problem("resume", str(folder.path), said)]) from None
    problems = rule_problems({"limits": plan.limits, "isolation": plan.isolation, "jobs": plan.jobs})
    if problems:
        said = "has a plan.json that cannot be used: " + " ".join(map(str, problems))
        raise UserError([Problem("resume", str(folder.path), said)])
    return plan


def decides(keys: Collection[str]) -> bool:
    """Whether one of the keys on a command line decides what is measured."""
    return any(key.partition(".")[0].partition("/")[0] not in NOT_DECIDING for key in keys)


def retried(statuses: Sequence[Any]) -> frozenset[Status]:
    """The statuses that are to be tried again; raises :class:`UserError` for what is none."""
    problems = [choice_problem("retry", one, "status", STATUSES) for one in statuses if one not in STATUSES]
    if problems:
        raise UserError(problems)
    return frozenset(statuses) or frozenset(status for status in STATUSES if status not in FINE)


def with_settings(plan: Plan, given: Mapping[str, Any], sharded: tuple[Shards, Json] | None) -> Plan:
    """The stored plan with what the command line sets anew; ``given`` by dotted key, ``sharded`` None to leave the shards."""
    changed: Json = {"limits": dict(plan.limits)}
    for key, value in given.items():
        head, _, rest = key.partition(".")
        if head == "limits":
            changed["limits"].update({rest: value} if rest else value)
        elif head in SETTINGS:
            changed[head] = value
    if sharded is not None:
        changed["shards"], changed["cluster"] = sharded
    return dataclasses.replace(plan, **changed)


def replaced(folder: Folder, old: Plan, new: Plan) -> tuple[Plan, list[str]]:
    """The new plan as the folder's, and in words how it differs; nothing is written.

    Raises:
        UserError: nothing that was measured belongs to it, or it would be compared with itself.
    """
    compare = {**new.compare, "against": _same_sweep(folder, old.compare.get("against"), new.compare.get("against"))}
    plan = dataclasses.replace(new, sweep_id=old.sweep_id, name=old.name, created=old.created, compare=compare)
    measured = {path.name for path in folder.records.glob("*") if any(path.glob("*-r*.json"))}
    words = difference(old, plan, measured)
    if measured and not measured & {c.id for c in plan.combinations}:
        said = "holds nothing that belongs to this plan; start a sweep of its own, without resume. " + " ".join(words)
        raise UserError([Problem("resume", str(folder.path), said)])
    return plan, words


def _same_sweep(folder: Folder, old: Json | None, new: Json | None) -> Json | None:
    """The other sweep that is compared with: what a word such as ``last`` meant when the sweep began, for now it means another."""
    if old is not None and new is not None and old["label"] == new["label"]:
        return old
    if new is not None and Path(new["file"]).resolve() == folder.path.resolve():
        raise UserError([Problem("compare.baseline", new["label"], "is the sweep itself that is gone on with.")])
    return new


def store(folder: Folder, old: Plan, plan: Plan) -> None:
    """Make ``plan`` the folder's; one that it replaces is kept beside it."""
    if plan == old:
        return
    if _measured(plan) != _measured(old):
        number = 1 + sum(1 for _ in folder.path.glob("plan-*.json"))
        # A copy: whatever ends this, or a full disk, must not leave the folder without a plan.
        write_bytes(folder.path / f"plan-{number}.json", folder.plan.read_bytes())
    if plan.compare.get("against") != old.compare.get("against"):
        (folder.path / "baseline.json").unlink(missing_ok=True)
    write_json(folder.plan, plan.to_dict())


def _measured(plan: Plan) -> Any:
    return [c.id for c in plan.combinations], plan.passes, plan.metrics, plan.order_seed, plan.baseline


def tally(folder: Folder, plan: Plan, retry: frozenset[Status], move: bool) -> Tally:
    """What is left to do; with ``move`` the records of what is to be run again, or cannot be read, are set aside."""
    kept, missing, again = 0, 0, Counter[str]()
    for bout in (bout for index in range(len(plan.shards)) for bout in plan.bouts(index)):
        found = [(folder.record_path(trial), _ending(folder.record_path(trial))) for trial in bout]
        if all(ending is not None and ending not in (DAMAGED, *retry) for _, ending in found):
            kept += len(bout)
            continue
        for path, ending in found:  # also those of a duel that ended well, for a pair needs both
            if ending is None:
                missing += 1
                continue
            again[ending] += 1
            if move and ending == DAMAGED:
                folder.set_aside_damaged(path)
            elif move:
                folder.set_aside(path)
    return Tally(kept, dict(again), missing)


def _ending(path: Path) -> str | None:
    """How a trial ended; None for one without a record."""
    try:
        return outcome(checked_record(path))[0]
    except FileNotFoundError:
        return None
    except (Damaged, OSError):
        return DAMAGED


def environment_file(folder: Folder) -> None:
    """Write ``environment.json`` again where it is missing or damaged, which is set aside."""
    path = folder.path / "environment.json"
    try:
        check_environment(read_json(path))
    except (Damaged, OSError) as error:
        if isinstance(error, Damaged):
            folder.set_aside_damaged(path)
        write_json(path, capture())


def tidied(folder: Folder, at_work: bool = False) -> None:
    """Remove what the last run left behind that is neither a result nor of use; ``at_work``: jobs of it may be writing."""
    folder.stop.unlink(missing_ok=True)
    if not at_work:
        remove_unfinished(folder.path)
