"""The entry point of Hydra's sweeper: compose the plan, run or resume the sweep, exit with its code."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stderr
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import yaml
from hydra.core.plugins import Plugins
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from sweeprof.cluster.job_tracker import scheduler_of
from sweeprof.config.override_syntax import quoted
from sweeprof.config.overrides import Arguments
from sweeprof.config.schema import unstorable_values, value_at
from sweeprof.errors import Problem, UserError
from sweeprof.paths import conf_folder, expanded, expanded_address
from sweeprof.plan.compose import Composer
from sweeprof.plan.plan import CLUSTER, Plan
from sweeprof.processes import collect_again
from sweeprof.run import driver
from sweeprof.run.dry_run import print_plan
from sweeprof.run.launchers import set_defaults
from sweeprof.run.reports import find_baseline
from sweeprof.run.resume import resume_sweep
from sweeprof.storage import Folder, Jobs
from sweeprof.text import console, error_console

PIPED_WIDTH = 120
"""Columns if the output is not a terminal, as in a log."""


def sweep(
    context: HydraContext, task: TaskFunction, config: DictConfig, params: DictConfig | None, arguments: Sequence[str]
) -> None:
    """Plan and run the sweep that ``config`` and the command line's ``arguments`` describe.

    Raises:
        UserError: with every problem of the config.
        SystemExit: not everything was measured; Hydra passes it through as the exit code.
    """
    collect_again()
    out = console(PIPED_WIDTH)
    live = error_console()
    for key in ("output", "resume"):
        if isinstance(OmegaConf.select(config, key), str):
            OmegaConf.update(config, key, expanded(OmegaConf.select(config, key), key))
    if isinstance(OmegaConf.select(config, "tracking.uri"), str):
        config.tracking.uri = expanded_address(config.tracking.uri)
    output = Path(str(config.output)).absolute()
    find_sweep = partial(find_baseline, output, OmegaConf.select(config, "tracking.uri"))
    parsed = Arguments.parsed(context.config_loader, arguments, params)
    composer = Composer(context.config_loader, config, parsed, find_sweep, live)

    plain: dict[str, Any] = OmegaConf.to_container(config)  # type: ignore[assignment]
    problems: list[Problem] = []
    for key, value in plain.items():
        if key != "hydra":
            problems += unstorable_values(key, value)
    problems += _ineffective(plain["hydra"])
    if problems:
        raise UserError(composer.located(problems))

    launch = partial(_launch, context, task, config)
    if config.resume is not None:
        code = resume_sweep(composer, launch, out, live)
    else:
        plan = composer.plan()
        if config.dry_run:
            print_plan(plan, out)
            return
        if plan.cluster:
            scheduler_of(plan.cluster["settings"], Jobs(output)).check_installed()
        tracking: dict[str, Any] = OmegaConf.to_container(config.tracking, resolve=True)  # type: ignore[assignment]
        code = driver.run(plan, output, tracking, launch, out, live)
    if code:
        sys.exit(code)


WITHOUT_EFFECT = {
    "run.dir": "output=PATH",
    "sweep.dir": "output=PATH",
    "sweep.subdir": "name=NAME",
    "output_subdir": "output=PATH",
}
"""Keys of Hydra for the folders that its own launchers write, each with the key that sweeprof has instead."""


def _ineffective(hydra: Mapping[str, object]) -> Iterator[Problem]:
    """Yield the keys of Hydra that are set, in a file or on the command line, and change nothing."""
    defaults = yaml.safe_load((conf_folder() / "config.yaml").read_text(encoding="utf-8"))["hydra"]
    for key, instead in WITHOUT_EFFECT.items():
        _, value = value_at(hydra, key)
        if value != value_at(defaults, key)[1]:
            yield Problem(
                f"hydra.{key}", value, f"has no effect in sweeprof, which has its own folders; use {instead}."
            )


def _launch(
    context: HydraContext,
    task: TaskFunction,
    config: DictConfig,
    folder: Folder,
    plan: Plan,
    shards: Sequence[int],
) -> None:
    """Run shards of the plan in the folder through the launcher of Hydra that the config names."""
    with read_write(config.hydra), open_dict(config.hydra):
        config.hydra.sweep.dir = str(folder.path)
        if plan.cluster:  # also of a resumed sweep, whose command line need not repeat it
            config.hydra.launcher = {"_target_": CLUSTER}
        # Jobs compose their config again from the overrides; only these reach them.
        config.hydra.overrides.hydra.append(f"hydra.sweep.dir={quoted(str(folder.path))}")
        set_defaults(config.hydra.launcher)
    launcher = Plugins.instance().instantiate_launcher(hydra_context=context, task_function=task, config=config)
    jobs = [[f"job.folder={quoted(str(folder.path))}", f"job.shard={index}"] for index in shards]
    for returned in launcher.launch(jobs, initial_job_idx=0):
        with redirect_stderr(StringIO()):  # Hydra prints the overrides of a job that failed, which are not the user's
            _ = returned.return_value  # raises what the job raised
