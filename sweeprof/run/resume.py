"""Resuming a sweep: find its folder, replace its plan where the command line changes it, and run the trials without a result."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf, open_dict
from rich.console import Console
from rich.text import Text

from sweeprof.cluster.job_tracker import live_jobs, scheduler_of
from sweeprof.cluster.scheduler import ClusterError
from sweeprof.config.schema import NOT_DECIDING, TRIAL_KEYS, constraint_problems
from sweeprof.config.validation import config_problems
from sweeprof.errors import Damaged, Problem, UserError, choice_problem
from sweeprof.passes.registry import checked_record
from sweeprof.plan.comparing import most_rounds
from sweeprof.plan.compose import Composer, change_problems, changed_search, placement_problems
from sweeprof.plan.plan import Plan, Shards, Trial
from sweeprof.plan.sweep_file import plain_node
from sweeprof.results.environment import capture
from sweeprof.results.files import read_json, remove_unfinished, write_json
from sweeprof.results.record import FINE, STATUSES, Json, Status, check_environment, outcome
from sweeprof.run import driver
from sweeprof.run.dry_run import print_plan
from sweeprof.run.launchers import Launch
from sweeprof.run.locks import driver_lock
from sweeprof.run.search import begun, measured_plan
from sweeprof.run.tracker_process import StoredTracker, stored_tracker
from sweeprof.storage import Folder, Jobs, last_sweep

DAMAGED = "damaged"
"""The status of a trial whose record cannot be read: it was cut, edited, or comes from a later version."""


@dataclass(frozen=True, slots=True)
class TrialCounts:
    """How many trials have a result, are run again, and are missing."""

    kept: int
    again: dict[str, int]
    """How many trials are run again, by the status that they ended with."""
    missing: int
    is_at_most: bool = False
    """True if fewer may be measured, because verdicts can be decided before (``protocol.decide``)."""
    to_choose: int = 0
    """How many combinations a search may still choose; their trials are not among those that are missing."""

    def __str__(self) -> str:
        text = f"{self.kept} trials are measured, "
        if self.is_at_most and self.missing:
            text += "at most "
        text += f"{self.missing} missing"
        if self.again:
            parts = [f"{count} {status}" for status, count in self.again.items()]
            text += f", {sum(self.again.values())} again ({', '.join(parts)})"
        if self.to_choose:
            text += f"; the search may choose up to {self.to_choose} more"
        return text


def find_sweep(resume: str, output: Path, name: str | None) -> Folder:
    """Return the sweep that ``resume`` names: a folder; ``last``, the newest below ``output`` of ``name`` or of all.

    Raises:
        UserError: there is none, or its plan cannot be read.
    """
    folder = last_sweep(resume, output, "resume", name) or Folder(Path(resume).absolute())
    if not folder.plan.is_file():
        raise UserError([Problem("resume", resume, "is not the folder of a sweep: it has no plan.json.")])
    return folder


def stored_plan(folder: Folder) -> Plan:
    """Return the plan of a sweep; raises :class:`UserError` if it cannot be read."""
    try:
        plan = folder.read_plan()
    except (OSError, Damaged) as error:
        message = f"has a plan.json that cannot be read: {error}"
        raise UserError([Problem("resume", str(folder.path), message)]) from None
    problems = constraint_problems({"limits": dataclasses.asdict(plan.limits), "isolation": plan.isolation})
    if problems:
        message = "has a plan.json that cannot be used: " + " ".join(map(str, problems))
        raise UserError([Problem("resume", str(folder.path), message)])
    return plan


def changes_measurement(keys: Collection[str]) -> bool:
    """True if one of the keys on a command line changes what is measured."""
    return any(key.partition(".")[0].partition("/")[0] not in NOT_DECIDING for key in keys)


def retry_statuses(statuses: str | Sequence[Any]) -> frozenset[Status]:
    """Return the statuses of trials to run again; a text is one of them. Raises :class:`UserError` for an unknown status."""
    if isinstance(statuses, str):
        statuses = [statuses]
    problems = [choice_problem("retry_statuses", one, "status", STATUSES) for one in statuses if one not in STATUSES]
    if problems:
        raise UserError(problems)
    return frozenset(statuses) or frozenset(status for status in STATUSES if status not in FINE)


def with_settings(plan: Plan, given: Mapping[str, Any], sharded: tuple[Shards, Json] | None) -> Plan:
    """Return the stored plan with the settings of the command line, by dotted key; ``sharded``: None to keep the shards."""
    changed: Json = {}
    limits: Json = {}
    search: Json = {}
    for key, value in given.items():
        top, _, rest = key.partition(".")
        if top == "limits":
            limits |= {rest: value} if rest else value
        elif top == "search":
            search[rest] = value
        elif top in TRIAL_KEYS:
            changed[top] = value
    changed["limits"] = dataclasses.replace(plan.limits, **limits)
    if search:
        changed["search"] = changed_search(plan, search)
    if sharded is not None:
        changed["shards"], changed["cluster"] = sharded
    return dataclasses.replace(plan, **changed)


def replace_plan(folder: Folder, old: Plan, new: Plan) -> tuple[Plan, list[str]]:
    """Return the new plan with the folder's id and name, and sentences on the differences; nothing is written.

    Ids of combinations are hashes of what is measured, so results that belong to the new plan are those of its ids.

    Raises:
        UserError: nothing that was measured belongs to it, or it would be compared with itself.
    """
    compare, before = new.compare, old.compare.against
    if before is not None and compare.against is not None and before.label == compare.against.label:
        # A name such as ``last`` keeps the meaning that it had when the sweep began.
        compare = dataclasses.replace(compare, against=before)
    elif compare.against is not None and Path(compare.against.file).resolve() == folder.path.resolve():
        raise UserError([Problem("compare.baseline", compare.against.label, "is the sweep that is resumed.")])
    plan = dataclasses.replace(new, sweep_id=old.sweep_id, name=old.name, created=old.created, compare=compare)
    measured = begun(folder)
    known, wanted = {c.id for c in old.combinations}, {c.id for c in plan.combinations}
    kept = measured & wanted
    sentences = []
    if known != wanted:
        added, gone = len(wanted - known), len(known - wanted)
        text = "1 combination is new" if added == 1 else f"{added} combinations are new"
        sentences.append(f"{text}, {gone} {'is' if gone == 1 else 'are'} gone.")
        sentences.append(f"{len(kept)} of {len(measured)} combinations with results belong to the new plan.")
    passes = [name for name in plan.passes if name not in old.passes]
    if passes:
        sentences.append(f"New passes: {', '.join(passes)}.")
    if measured and not kept:
        message = "has no results that belong to this plan; start a new sweep without resume. " + " ".join(sentences)
        raise UserError([Problem("resume", str(folder.path), message)])
    return plan, sentences


def store_plan(folder: Folder, old: Plan, plan: Plan) -> None:
    """Write ``plan`` instead of ``old``; what that has decided is decided again if other verdicts are to be reached."""
    compared = []
    for one in (old, plan):
        ids = [c.id for c in one.combinations]
        compared.append((ids, one.passes, one.metrics, one.baseline, one.compare, one.threshold, one.search))
    if compared[0] != compared[1]:
        folder.forget_decided()
    if plan.compare.against != old.compare.against:
        folder.baseline.unlink(missing_ok=True)
    if plan != old:
        write_json(folder.plan, plan.to_dict())


def count_trials(
    folder: Folder, plan: Plan, retry: frozenset[Status], move: bool, old: Plan | None = None
) -> TrialCounts:
    """Count the trials; with ``move`` the records of trials to run again, and those that cannot be read, are set aside.

    Args:
        old: the plan that this one replaces: a search with another sampler or seed may choose other combinations.
    """
    kept, missing, again = 0, 0, Counter[str]()
    measured = measured_plan(plan, folder)
    for group in chain.from_iterable(map(measured.trial_groups, range(len(measured.shards)))):
        statuses: dict[Path, str | None] = {}
        for trial in group:
            path = folder.record_path(trial)
            if path.exists() or _is_needed(folder, trial):
                statuses[path] = _status(path)
        if all(status not in (None, DAMAGED, *retry) for status in statuses.values()):
            kept += len(statuses)
            continue
        for path, status in statuses.items():  # of an interleaved round all: pairs need both
            if status is None:
                missing += 1
                continue
            again[status] += 1
            if move and status == DAMAGED:
                folder.set_aside_damaged(path)
            elif move:
                folder.set_aside(path)
    if again and move:
        folder.forget_decided()  # what is measured again may decide otherwise
    to_choose = 0
    if plan.search is not None:
        to_choose = max(0, plan.size - len(measured.combinations))
        before = old.search if old is not None else None
        if before is not None and (before.sampler, before.seed) != (plan.search.sampler, plan.search.seed):
            to_choose = min(plan.size, len(plan.combinations) - len(measured_plan(plan, folder).combinations))
    stops_early = any(most_rounds(c.config) for c in measured.combinations)
    return TrialCounts(kept, dict(again), missing, stops_early, to_choose)


def _is_left(folder: Folder, retry: frozenset[Status], trial: Trial) -> bool:
    """True if a trial is missing, or is run again."""
    path = folder.record_path(trial)
    return _status(path) in (DAMAGED, *retry) if path.exists() else _is_needed(folder, trial)


def _is_needed(folder: Folder, trial: Trial) -> bool:
    """True unless verdicts have made a trial unnecessary; what the end of a budget left out, a resumed sweep measures."""
    return not folder.is_decided(trial) or folder.rounds_that_decided(trial.combination_id, "decided") is None


def _status(path: Path) -> str | None:
    """Return the status of a trial; None for one without a record."""
    try:
        return outcome(checked_record(path))[0]
    except FileNotFoundError:
        return None
    except (Damaged, OSError):
        return DAMAGED


def restore_environment(folder: Folder) -> None:
    """Write ``environment.json`` again if it is missing or damaged; a damaged one is set aside."""
    path = folder.environment
    try:
        check_environment(read_json(path))
    except (Damaged, OSError) as error:
        if isinstance(error, Damaged):
            folder.set_aside_damaged(path)
        write_json(path, capture())


def resume_sweep(composer: Composer, launch: Launch, out: Console, live: Console) -> int:
    """Run the missing trials of the sweep that ``resume`` names; returns the exit code.

    Raises:
        UserError: the command, the sweep or its new plan is invalid.
    """
    config, keys = composer.config, {*composer.arguments.fixed, *composer.arguments.axes}
    deciding = changes_measurement(keys)
    name = composer.name() if deciding or "name" in keys else None
    retry = retry_statuses(plain_node(config, "retry_statuses") or [])
    folder = find_sweep(str(config.resume), Path(str(config.output)).absolute(), name)
    folder.check_files()
    if not config.trust and not config.dry_run:
        folder.check_owner("resume")

    def say(*messages: str) -> None:
        for line in (f"resuming {folder.path}", *messages):
            live.print(Text(line), soft_wrap=True)

    try:
        stored_plan(folder)  # reports a plan that cannot be read
        try:
            jobs = live_jobs(folder, [OmegaConf.select(config, "cluster.address")], bool(config.trust))
        except ClusterError as error:
            message = f"was measured by jobs of a cluster that does not answer whether they still run: {error}"
            raise UserError([Problem("resume", str(folder.path), message)]) from None
        with driver_lock(folder.path, allow_jobs=bool(jobs)):
            old = stored_plan(folder)
            if deciding:
                plan, messages = replace_plan(folder, old, composer.plan())
            else:
                plan, messages = _with_settings(old, composer, keys), []
            if jobs:
                messages.append(_running_jobs(jobs, folder, old, plan))
            if config.dry_run:
                say(*messages, f"{count_trials(folder, plan, retry, move=False, old=old)}.")
                print_plan(plan, out, partial(_is_left, folder, retry))
                return 0
            tracking = _tracking(composer, folder, keys)
            folder.stop.unlink(missing_ok=True)
            if not jobs:  # which may be writing
                remove_unfinished(folder.path)
            if plan.shards != old.shards:
                Jobs(folder.path).forget()  # their shards are not those of the plan
            store_plan(folder, old, plan)
            say(*messages, f"{count_trials(folder, plan, retry, move=True, old=old)}.")
            restore_environment(folder)
            return driver.measure_missing(folder, plan, tracking, launch, out, live)
    except OSError as error:
        return driver.disk_failure(folder, error, live)


def _running_jobs(jobs: Sequence[str], folder: Folder, old: Plan, plan: Plan) -> str:
    """Return a sentence on jobs that still run; raises :class:`UserError` if they measure another plan."""
    scheduler = scheduler_of(old.cluster["settings"], Jobs(folder.path))
    named = f"job{'s' * (len(jobs) > 1)} {', '.join(jobs)} of {scheduler.title}"
    if (old.combinations, old.shards, old.scheduler) != (plan.combinations, plan.shards, plan.scheduler):
        cancel = scheduler.cancel_command(jobs)
        message = f"is being measured by {named} with another plan: wait until they end, or cancel them: {cancel}."
        raise UserError([Problem("resume", str(folder.path), message)])
    return f"{named} still measure it."


def _with_settings(plan: Plan, composer: Composer, given: set[str]) -> Plan:
    """Return the stored plan with the settings of the command line, which are checked."""
    plain = composer.config.copy()
    with open_dict(plain):
        del plain["hydra"]
    config: Any = OmegaConf.to_container(plain, resolve=True)
    sections = {key.partition(".")[0] for key in given}
    settings = {key: plain_node(composer.config, key) for key in given if key.partition(".")[0] in TRIAL_KEYS}
    problems = list(change_problems(plan.search, settings))
    if plan.search is None:
        del config["search"]  # reported as a whole
    else:
        config["search"]["maximize"] = [goal.metric for goal in plan.search.goals]
        problems += placement_problems(config["shards"])
    problems += config_problems(config)
    if problems:
        raise UserError(problems)
    sharded = None
    if "cluster" in sections or not given.isdisjoint(("shards", "hydra/launcher")):
        sharded = composer.sharded(plan.combinations, plan.baseline, plan.passes, plan.search is not None)
    return with_settings(plan, settings, sharded)


def _tracking(composer: Composer, folder: Folder, given: set[str]) -> StoredTracker:
    """Return the tracker of the command line, else that of the folder.

    Raises:
        UserError: the folder's tracker may not be used.
    """
    asked: Json = OmegaConf.to_container(composer.config.tracking, resolve=True)  # type: ignore[assignment]
    if any(key.partition(".")[0] == "tracking" for key in given) or not folder.tracking.is_file():
        return StoredTracker(asked, confined=False)
    addresses = [asked["uri"]] if asked.get("uri") else []
    return stored_tracker(folder, "tracking.uri", addresses, bool(composer.config.trust))
