"""The subcommands of `sweeprof`: their names, how their arguments are parsed, and how errors are printed."""

from __future__ import annotations

import argparse
import importlib
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from sweeprof.credentials import redacted_message
from sweeprof.errors import Damaged, ExitCode, Problem, SweeprofError, UserError, choice_problem
from sweeprof.paths import user_path
from sweeprof.processes import collect_again
from sweeprof.storage import Folder, last_sweep

COMMANDS = {
    "report": "write every report of a sweep again, from its records",
    "compare": "show what changed from one sweep to another",
    "collect": "compare the results of a sweep that runs, or ran, as jobs on a cluster",
    "sync": "send a sweep to MLflow again",
    "ui": "open a sweep in MLflow's interface",
    "lines": "measure the source lines of a script's functions",
    "doctor": "check whether this machine can measure precisely",
    "prune": "remove old sweeps",
}
"""Names and descriptions. Each is a module of this package with ``add_arguments`` and ``run``, imported when it is used."""
PIPED_WIDTH = 120
"""Columns of the output where it is not a terminal."""


def path(text: str) -> Path:
    """Return the path that an argument names, with ``~`` and variables replaced."""
    try:
        return user_path(text)
    except UserError as error:
        raise argparse.ArgumentTypeError(str(error).removesuffix(".")) from None


def output_file(text: str) -> Path:
    """Return the path of a file to write, likewise: replacing a device would break it, and a FIFO waits for its reader."""
    file = path(text)
    if file.exists() and not file.is_file():
        raise argparse.ArgumentTypeError(f"{text!r} is not a regular file")
    return file


class Parser(argparse.ArgumentParser):
    """A parser that raises a :class:`UserError`, where argparse would print its usage and exit with code 2."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, **settings)
        self.given: Sequence[str] = ()
        """The arguments that are parsed."""

    def error(self, message: str) -> NoReturn:
        # A misspelt option may also make argparse miss another argument.
        _, _, unrecognized = message.partition("unrecognized arguments: ")
        known = self._option_string_actions
        problems = []
        for word in unrecognized.split() or self.given:
            option = word.partition("=")[0]
            if re.match("-+[A-Za-z]", option) and option not in known:
                problems.append(choice_problem(self.prog, option, "option", known))
        if problems:
            raise UserError(problems)
        raise UserError(f"{message}; see {self.prog} --help")


def command_parser(name: str) -> Parser:
    """Return the parser of a subcommand; its help ends with the exit codes."""
    parser = Parser(
        prog=f"sweeprof {name}",
        description=f"{COMMANDS[name][0].upper()}{COMMANDS[name][1:]}.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    importlib.import_module(f"sweeprof.cli.{name}").add_arguments(parser)
    parser.epilog = f"{parser.epilog}\n" if parser.epilog else ""
    parser.epilog += f"exit codes:\n{exit_codes()}"
    return parser


def run_subcommand(name: str, arguments: Sequence[str]) -> int:
    """Run a subcommand; return its exit code."""
    module = importlib.import_module(f"sweeprof.cli.{name}")
    parser = command_parser(name)
    parser.given = arguments
    if getattr(module, "ENDS_WITH_A_COMMAND", False):  # whose options are not ours
        options = parser.parse_args(arguments)
    else:  # DIR and uri=… of `sync` may have options between them
        options = parser.parse_intermixed_args(arguments)
    collect_again()
    code: int = module.run(options)
    return code


def exit_codes() -> str:
    """Return the table of exit codes, one line for each."""
    return "\n".join(f"  {code:>3}  {code.meaning}" for code in ExitCode)


def print_error(error: SweeprofError | OSError | str) -> ExitCode:
    """Print an error to stderr, a line for each problem; return the exit code of mistakes."""
    lines = [str(error)]
    if isinstance(error, UserError) and error.problems:
        lines = [str(problem) for problem in error.problems]
    elif isinstance(error, OSError) and error.filename is not None:
        lines = [f"{error.filename}: cannot be read or written: {error.strerror}"]
    for line in lines:
        print(f"error: {redacted_message(line, '***@')}", file=sys.stderr)
    return ExitCode.ERROR


# ----------------------------------------------------------------------------------------------------------------------
# Arguments of several subcommands; DIR is the folder of a sweep, `last`, or `NAME/last`


def add_sweep(parser: argparse.ArgumentParser) -> None:
    """Add the argument for the folder of one sweep."""
    parser.add_argument("folder", metavar="DIR", help="the folder of a sweep; last or NAME/last: the newest")


def add_output(parser: argparse.ArgumentParser) -> None:
    """Add the option for the folder of all sweeps."""
    parser.add_argument(
        "--output",
        type=path,
        default=Path("outputs"),
        metavar="PATH",
        help="the folder of all sweeps (default: outputs)",
    )


def add_trust(parser: argparse.ArgumentParser) -> None:
    """Add the option that allows code of the user's own."""
    parser.add_argument(
        "--trust",
        action="store_true",
        help="also run code outside of sweeprof that the folder names, such as your own metrics; only for folders that you trust",
    )


def sweep_folder(given: str, output: Path) -> Folder:
    """Return the folder of a sweep; for ``last``, or ``NAME/last``, the newest below ``output``.

    Raises:
        UserError: it is not the folder of a sweep, it contains links, or its plan cannot be read.
    """
    folder = last_sweep(given, output.absolute(), "DIR") or Folder(user_path(given).absolute())
    if not folder.plan.is_file():
        raise UserError([Problem("DIR", given, "is not the folder of a sweep: it has no plan.json.")])
    folder.check_files()
    try:
        folder.read_plan()
    except Damaged as error:
        raise UserError([Problem("DIR", given, f"has a plan.json that cannot be read: {error}")]) from None
    return folder
