"""``resume=…`` on the command line: the stored plan or a new one is gone on with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf, open_dict
from rich.console import Console
from rich.text import Text

from sweeprof.errors import Problem, UserError
from sweeprof.results.record import Json
from sweeprof.sweep import head
from sweeprof.sweep.again import Launch
from sweeprof.sweep.check import config_problems
from sweeprof.sweep.cluster.jobs import Jobs
from sweeprof.sweep.cluster.launch import live_jobs
from sweeprof.sweep.cluster.slurm import SlurmError
from sweeprof.sweep.compose import Composer
from sweeprof.sweep.dry_run import print_plan
from sweeprof.sweep.folder import Folder
from sweeprof.sweep.hold import heading
from sweeprof.sweep.plan import Plan
from sweeprof.sweep.queued import StoredTracker, stored_tracker
from sweeprof.sweep.resume import (
    SETTINGS,
    decides,
    environment_file,
    found,
    replaced,
    retried,
    store,
    stored_plan,
    tally,
    tidied,
    with_settings,
)


def go_on(composer: Composer, launch: Launch, out: Console, live: Console) -> int:
    """Run what is missing of the sweep that ``resume`` names; returns the exit code.

    Raises:
        UserError: with what is wrong with the command, the sweep or its new plan.
    """
    config, given = composer.config, {*composer.arguments.fixed, *composer.arguments.axes}
    deciding = decides(given)
    name = composer.name() if deciding or "name" in given else None
    retry = retried(list(config.retry))
    folder = found(str(config.resume), Path(str(config.output)).absolute(), name)
    folder.check_links()
    if not config.trust and not config.dry_run:
        folder.check_owner("resume")
    try:
        stored_plan(folder)  # or what is wrong with it is told
        jobs = _jobs(folder)
        with heading(folder.path, beside_jobs=bool(jobs)):
            old = stored_plan(folder)
            if deciding:
                plan, words = replaced(folder, old, composer.plan())
            else:
                plan, words = _with_settings(old, composer, given), []
            if jobs:
                words = [*words, *_beside(jobs, folder, old, plan)]
            if config.dry_run:
                _say(live, folder, [*words, f"{tally(folder, plan, retry, move=False)}."])
                print_plan(plan, out)
                return 0
            tracking = _tracking(composer, folder, given)
            tidied(folder, at_work=bool(jobs))
            if plan.shards != old.shards:
                Jobs(folder.path).forget()  # of shards that are no more
            store(folder, old, plan)
            _say(live, folder, [*words, f"{tally(folder, plan, retry, move=True)}."])
            environment_file(folder)
            return head.go_on(folder, plan, tracking, launch, out, live).exit_code
    except OSError as error:
        return head.halted(folder, error, live).exit_code


def _jobs(folder: Folder) -> list[str]:
    """The jobs that still measure the sweep; raises :class:`UserError` where Slurm cannot be asked."""
    try:
        return live_jobs(folder)
    except SlurmError as error:
        said = f"was measured by jobs of Slurm, which does not say whether they run: {error}"
        raise UserError([Problem("resume", str(folder.path), said)]) from None


def _beside(jobs: Sequence[str], folder: Folder, old: Plan, plan: Plan) -> list[str]:
    """What to say of jobs that are still at work; raises :class:`UserError` where they are not what is to be gone on with."""
    named = f"job{'s' * (len(jobs) > 1)} {', '.join(jobs)} of Slurm"
    if (old.combinations, old.shards, bool(old.cluster)) != (plan.combinations, plan.shards, bool(plan.cluster)):
        said = (
            f"is being measured by {named} by another plan: wait for their end, or end them: scancel {' '.join(jobs)}."
        )
        raise UserError([Problem("resume", str(folder.path), said)])
    return [f"{named} still measure it."]


def _say(live: Console, folder: Folder, words: list[str]) -> None:
    for line in (f"going on with {folder.path}", *words):
        live.print(Text(line), soft_wrap=True)


def _with_settings(plan: Plan, composer: Composer, given: set[str]) -> Plan:
    plain = composer.config.copy()
    with open_dict(plain):
        del plain["hydra"]
    config: Any = OmegaConf.to_container(plain, resolve=True)
    problems = config_problems(config)
    if problems:
        raise UserError(problems)
    settings = {key: _plain(composer, key) for key in given if key.partition(".")[0] in SETTINGS}
    resharded = composer.sharded(plan.combinations, plan.baseline, plan.passes) if _reshards(given) else None
    return with_settings(plan, settings, resharded)


def _reshards(given: set[str]) -> bool:
    return any(key in ("shards", "hydra/launcher") or key.partition(".")[0] == "cluster" for key in given)


def _plain(composer: Composer, key: str) -> Any:
    node = OmegaConf.select(composer.config, key)
    return OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node


def _tracking(composer: Composer, folder: Folder, given: set[str]) -> StoredTracker:
    """Where the sweep was sent, unless the command line says otherwise.

    Raises:
        UserError: what the folder names may not be used.
    """
    asked: Json = OmegaConf.to_container(composer.config.tracking, resolve=True)  # type: ignore[assignment]
    if any(key.partition(".")[0] == "tracking" for key in given) or not folder.tracking.is_file():
        return StoredTracker(asked, confined=False)
    addresses = [asked["uri"]] if asked.get("uri") else []
    return stored_tracker(folder, "tracking.uri", addresses, bool(composer.config.trust))
