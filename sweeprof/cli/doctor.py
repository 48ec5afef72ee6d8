"""``sweeprof doctor``: check this machine, and print what to change before small differences are measured."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sweeprof.cli.common import PIPED_WIDTH, add_output, path
from sweeprof.config.errors import diagnosed, no_folder
from sweeprof.config.groups import VERSION_BASE
from sweeprof.config.validation import part_problems
from sweeprof.doctor import device as devices
from sweeprof.doctor import host, noise, software
from sweeprof.doctor.host import Finding
from sweeprof.doctor.task import task
from sweeprof.errors import ExitCode, Problem, UserError, nearest
from sweeprof.paths import conf_folder
from sweeprof.results.record import Json
from sweeprof.run.locks import Holder, HostLock, this_process
from sweeprof.terminal import console

PROCESSES, SECONDS = 10, 0.5
QUICK_PROCESSES, QUICK_SECONDS = 4, 0.15
WAIT_S = 300.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the subcommand."""
    parser.epilog = (
        "Prints this machine's hardware and noise, and what to change before you measure small differences.\n"
    )
    parser.add_argument(
        "settings",
        nargs="*",
        metavar="KEY=VALUE",
        help="device=NAME: also try the measurements of this accelerator, such as device=cuda, and its conformance; "
        "cluster=NAME and cluster.KEY=VALUE: submit a probe instead, and report what a task gets, such as cluster=slurm "
        "cluster.partition=gpu",
    )
    parser.add_argument("--config-dir", type=path, metavar="DIR", help="a folder with a cluster/NAME.yaml of your own")
    parser.add_argument(
        "--wait",
        type=float,
        default=WAIT_S,
        metavar="SECONDS",
        help="how long a probe may wait in the queue (default: 300)",
    )
    parser.add_argument(
        "--quick", action="store_true", help="import no framework, measure noise briefly, and run no suite"
    )
    parser.add_argument(
        "--strict",
        action="store_true",
        help="exit with 2 if something would distort measurements, or the named device cannot be used",
    )
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    parser.add_argument("--uri", metavar="ADDRESS", help="check whether this MLflow server answers")
    add_output(parser)
    parser.add_argument(
        "--locks",
        type=path,
        metavar="PATH",
        help="the folder with the locks between sweeps of this host, as limits.locks",
    )


def run(options: argparse.Namespace) -> ExitCode:
    """Run the subcommand; return the exit code."""
    device, of_cluster = _settings(options.settings)
    if of_cluster:
        settings = composed_group("cluster", of_cluster, options.config_dir)
        if settings["scheduler"] is None:
            raise UserError([Problem("cluster", of_cluster[0], "names no scheduler: cluster=slurm or cluster=ray.")])
        found = list(task(settings, options.output, options.wait))
    else:
        found = list(examine(options.quick, options.uri, options.output, options.locks, device))
    if options.json:
        print(json.dumps([dataclasses.asdict(finding) for finding in found], indent=1))
    else:
        show(found, console(PIPED_WIDTH))
    return ExitCode.INCOMPLETE if options.strict and any(finding.distorts for finding in found) else ExitCode.OK


def _settings(arguments: Sequence[str]) -> tuple[str | None, list[str]]:
    """Return the device, and the settings of a cluster."""
    device, of_cluster = None, []
    for argument in arguments:
        key, _, value = argument.partition("=")
        if key == "device" and value:
            device = value
        elif key.partition(".")[0] == "cluster" and value:
            of_cluster.append(argument)
        else:
            message = "is not an argument: device=NAME, such as device=cuda, cluster=NAME, or cluster.KEY=VALUE."
            close = nearest(key, ["device", "cluster"])
            raise UserError([Problem("doctor", argument, message, f"{close}={value}" if close and value else None)])
    if device and of_cluster:
        raise UserError([Problem("doctor", f"device={device}", "cannot be combined with cluster=NAME.")])
    return device, of_cluster


def examine(
    quick: bool, uri: str | None, output: Path, locks: Path | None, device: str | None = None
) -> Iterator[Finding]:
    """Return all findings; measurements wait for the host lock.

    Raises:
        UserError: the folder of the locks cannot be used.
    """
    yield from software.backends(quick)
    yield from software.versions()
    yield from host.processor()
    yield from host.gpus()
    if device is not None:
        yield from devices.device(device)
        if not quick:
            yield from devices.conformance(device)
    yield from host.limits()
    yield from software.disk(output)
    yield from software.tracking(uri)
    turns = HostLock(this_process("doctor", "doctor"), locks)
    with turns.taken(True, (), _say_waiting):
        yield from host.interference()
        yield from noise.clock()
        processes, seconds = (QUICK_PROCESSES, QUICK_SECONDS) if quick else (PROCESSES, SECONDS)
        yield from noise.noise(processes, seconds, noise.protocols())


def _say_waiting(holders: Sequence[Holder]) -> None:
    print(f"waiting for {holders[0]}", file=sys.stderr)


def show(found: Sequence[Finding], out: Console) -> None:
    """A table for each section, and below them what to change."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold")
    table.add_column()
    table.add_column(overflow="fold")
    for section, rows in itertools.groupby(found, key=lambda finding: finding.section):
        for i, row in enumerate(rows):
            value = Text(row.value or "", style="yellow" if row.distorts else "")
            table.add_row("" if i else section, row.name, value if row.value else Text(f"– {row.reason}", style="dim"))
    out.print(table)
    advised = sorted((row for row in found if row.advice), key=lambda row: not row.distorts)
    for distorts, title in ((True, "Before you measure small differences"), (False, "Good to know")):
        chosen = [row for row in advised if row.distorts == distorts]
        if not chosen:
            continue
        out.print(Text(f"\n{title}", style="bold"))
        for row in chosen:
            assert row.advice is not None
            what = f"{row.section}, {row.name}: {row.value or row.reason}"
            out.print(Text(f"  {what}; {row.advice.text}:"), soft_wrap=True)
            out.print(Text(f"    {row.advice.command}", style="cyan"), soft_wrap=True)


# One group of the config, composed outside of a sweep.


def composed_group(group: str, overrides: Sequence[str], config_dir: Path | None) -> Json:
    """Return a group of the config for overrides of the command line.

    Args:
        config_dir: a folder with config files of the user's own.

    Raises:
        UserError: with every problem of the overrides.
    """
    if config_dir is not None and not config_dir.is_dir():
        raise UserError([no_folder(config_dir)])
    own = [f"--config-dir={config_dir}"] if config_dir else []
    search = [f"hydra.searchpath=[file://{config_dir.absolute()}]"] if config_dir else []
    try:
        with initialize_config_dir(str(conf_folder()), **VERSION_BASE):
            config = compose("config", overrides=[*search, *overrides])
    except (HydraException, OmegaConfBaseException) as error:
        raise diagnosed(error, [*own, *overrides]) from None
    found: Any = OmegaConf.to_container(config[group], resolve=True)
    problems = part_problems(group, found)
    if problems:
        raise UserError(problems)
    return dict(found)
