"""Where Hydra hands over: a sweep is planned, run and, by exit code, answered for."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.plugins import Plugins
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict
from rich.console import Console

from sweeprof.sweep import head
from sweeprof.sweep.arguments import Arguments
from sweeprof.sweep.compose import Composer
from sweeprof.sweep.shard import Folder
from sweeprof.sweep.spelling import quoted

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
    composer = Composer(context.config_loader, config, Arguments.parsed(context.config_loader, arguments, params))
    plan = composer.plan()
    out = Console(width=None if sys.stdout.isatty() else PIPED_WIDTH)
    if config.dry_run:
        head.print_plan(plan, out)
        return

    def launch(folder: Folder, shards: int) -> None:
        _launch(context, task, config, folder, shards)

    output = Path(str(config.output)).absolute()
    tracking: dict[str, Any] = OmegaConf.to_container(config.tracking, resolve=True)  # type: ignore[assignment]
    code = head.run(plan, output, tracking, launch, out, Console(stderr=True)).exit_code
    if code:
        sys.exit(code)


def _launch(context: HydraContext, task: TaskFunction, config: DictConfig, folder: Folder, shards: int) -> None:
    with open_dict(config):
        config.hydra.sweep.dir = str(folder.path)
        # Jobs compose their config anew from the overrides; only what stands there reaches them.
        config.hydra.overrides.hydra.append(f"hydra.sweep.dir={quoted(str(folder.path))}")
    launcher = Plugins.instance().instantiate_launcher(hydra_context=context, task_function=task, config=config)
    jobs = [[f"job.folder={quoted(str(folder.path))}", f"job.shard={index}"] for index in range(shards)]
    for returned in launcher.launch(jobs, initial_job_idx=0):
        _ = returned.return_value  # raises what the job raised
