"""Where Hydra hands over: a sweep is planned, run and, by exit code, answered for."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.plugins import Plugins
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from sweeprof.sweep import head
from sweeprof.sweep.arguments import Arguments
from sweeprof.sweep.cluster.slurm import check_installed
from sweeprof.sweep.compose import Composer
from sweeprof.sweep.continuing import go_on
from sweeprof.sweep.dry_run import print_plan
from sweeprof.sweep.folder import Folder
from sweeprof.sweep.launchers import SLURM, set_defaults
from sweeprof.sweep.plan import Plan
from sweeprof.sweep.spelling import quoted
from sweeprof.terminal import console, error_console

PIPED_WIDTH = 120
"""Columns where the output is no terminal, as in a log."""


def sweep(
    context: HydraContext, task: TaskFunction, config: DictConfig, params: DictConfig | None, arguments: Sequence[str]
) -> None:
    """Plan and run the sweep that ``config`` and the command line's ``arguments`` describe.

    Raises:
        UserError: with every problem that was found.
        SystemExit: not everything was measured; Hydra passes it through as the exit code.
    """
    out = console(PIPED_WIDTH)
    live = error_console()
    composer = Composer(context.config_loader, config, Arguments.parsed(context.config_loader, arguments, params), live)

    def launch(folder: Folder, plan: Plan, shards: Sequence[int]) -> None:
        _launch(context, task, config, folder, plan, shards)

    if config.resume is not None:
        code = go_on(composer, launch, out, live)
    else:
        plan = composer.plan()
        if config.dry_run:
            print_plan(plan, out)
            return
        if plan.cluster:
            check_installed()
        output = Path(str(config.output)).absolute()
        tracking: dict[str, Any] = OmegaConf.to_container(config.tracking, resolve=True)  # type: ignore[assignment]
        code = head.run(plan, output, tracking, launch, out, live).exit_code
    if code:
        sys.exit(code)


def _launch(
    context: HydraContext,
    task: TaskFunction,
    config: DictConfig,
    folder: Folder,
    plan: Plan,
    shards: Sequence[int],
) -> None:
    with read_write(config.hydra), open_dict(config.hydra):
        config.hydra.sweep.dir = str(folder.path)
        if plan.cluster:  # also of a sweep that is gone on with, whose command does not say so again
            config.hydra.launcher = {"_target_": SLURM}
        # Jobs compose their config anew from the overrides; only what stands there reaches them.
        config.hydra.overrides.hydra.append(f"hydra.sweep.dir={quoted(str(folder.path))}")
        set_defaults(config.hydra.launcher)
    launcher = Plugins.instance().instantiate_launcher(hydra_context=context, task_function=task, config=config)
    jobs = [[f"job.folder={quoted(str(folder.path))}", f"job.shard={index}"] for index in shards]
    for returned in launcher.launch(jobs, initial_job_idx=0):
        _ = returned.return_value  # raises what the job raised
