"""``sweeprof doctor``: check this machine, and print what to change before small differences are measured."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from sweeprof import doctor
from sweeprof.cli.common import PIPED_WIDTH, add_output
from sweeprof.doctor import Finding
from sweeprof.errors import ExitCode, Problem, UserError, nearest
from sweeprof.run.locks import Holder, HostLock, this_process
from sweeprof.text import console

PROCESSES, SECONDS = 10, 0.5
QUICK_PROCESSES, QUICK_SECONDS = 4, 0.15


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the subcommand."""
    parser.epilog = (
        "Prints this machine's hardware and noise, and what to change before you measure small differences.\n"
    )
    parser.add_argument(
        "settings",
        nargs="*",
        metavar="KEY=VALUE",
        help="device=NAME: also compare what models give on this accelerator, such as device=cuda, with the CPU, and measure its "
        "noise instead of the CPU's",
    )
    parser.add_argument("--quick", action="store_true", help="test no backend, and measure noise briefly")
    parser.add_argument(
        "--strict",
        action="store_true",
        help="exit with 2 if something would distort measurements, or the named device cannot be used",
    )
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    add_output(parser)


def run(options: argparse.Namespace) -> ExitCode:
    """Run the subcommand; return the exit code."""
    device = None
    for argument in options.settings:
        key, _, value = argument.partition("=")
        if key != "device" or not value:
            close = nearest(key, ["device"])
            message = "is not an argument: device=NAME, such as device=cuda."
            raise UserError([Problem("doctor", argument, message, f"{close}={value}" if close and value else None)])
        device = value
    found = [*doctor.backends(options.quick), *doctor.versions(), *doctor.processor(), *doctor.gpus()]
    if device is not None:
        found += doctor.device(device)
    found += [*doctor.limits(), *doctor.disk(options.output)]

    def say_waiting(holders: Sequence[Holder]) -> None:
        print(f"waiting for {holders[0]}", file=sys.stderr)

    processes, seconds = (QUICK_PROCESSES, QUICK_SECONDS) if options.quick else (PROCESSES, SECONDS)
    with HostLock(this_process("doctor", "doctor")).taken(True, (), say_waiting):
        found += [*doctor.interference(), *doctor.clock()]
        found += doctor.noise(processes, seconds, doctor.protocols(), device or "cpu")
    if options.json:
        print(json.dumps([dataclasses.asdict(finding) for finding in found], indent=1))
    else:
        show(found, console(PIPED_WIDTH))
    if options.strict and any(finding.distorts for finding in found):
        return ExitCode.INCOMPLETE
    return ExitCode.OK


def show(found: Sequence[Finding], out: Console) -> None:
    """A table for each section, and below them what to change."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold")
    table.add_column()
    table.add_column(overflow="fold")
    for section, rows in itertools.groupby(found, key=lambda finding: finding.section):
        for i, row in enumerate(rows):
            value = Text(f"– {row.reason}", style="dim")
            if row.value:
                value = Text(row.value, style="yellow" if row.distorts else "")
            table.add_row("" if i else section, row.name, value)
    out.print(table)
    for distorts, title in ((True, "Before you measure small differences"), (False, "Good to know")):
        chosen = [row for row in found if row.advice and row.distorts == distorts]
        if not chosen:
            continue
        out.print(Text(f"\n{title}", style="bold"))
        for row in chosen:
            assert row.advice is not None
            what = f"{row.section}, {row.name}: {row.value or row.reason}"
            out.print(Text(f"  {what}; {row.advice.text}:"), soft_wrap=True)
            out.print(Text(f"    {row.advice.command}", style="cyan"), soft_wrap=True)
