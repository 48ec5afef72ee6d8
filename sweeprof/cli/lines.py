"""``sweeprof lines``: run a script and print the time, and the memory, of the source lines of its functions."""

from __future__ import annotations

import argparse
import traceback

from sweeprof.cli.common import output_file
from sweeprof.errors import ExitCode, SweeprofError
from sweeprof.profiling.profile_lines import run_script
from sweeprof.results.observations import Lines

ENDS_WITH_A_COMMAND = True
"""What follows the script belongs to it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the subcommand."""
    parser.epilog = (
        "Measured are the functions that the script marks by @sweeprof.profile_lines or @profile; if it marks none, all\n"
        "that it defines. The lines are printed when the script has ended, however it ends.\n"
    )
    parser.add_argument("--memory", action="store_true", help="also measure the memory that each line allocates")
    parser.add_argument("--device", metavar="NAME", help="measure memory of this accelerator, such as cuda")
    parser.add_argument(
        "--function",
        action="append",
        default=[],
        metavar="NAME",
        help="only this function, such as main or Net.forward",
    )
    parser.add_argument(
        "--output", type=output_file, metavar="FILE", help="write the lines to a file instead of printing them"
    )
    parser.add_argument("-m", action="store_true", dest="is_module", help="SCRIPT is the name of a module")
    parser.add_argument("script", metavar="SCRIPT", help="a Python script, run as `python SCRIPT` runs it")
    parser.add_argument("arguments", metavar="ARGUMENTS", nargs=argparse.REMAINDER, help="the arguments of the script")


def run(options: argparse.Namespace) -> int:
    """Run the subcommand; return the exit code of the script."""

    def report(lines: Lines) -> None:
        called = [function for function in lines.functions if function.is_called]
        text = lines.listing if called else "No function that is measured was called.\n"
        if options.output is None:
            print(f"\n{text}", end="")
        else:
            options.output.write_text(text, encoding="utf-8")

    try:
        run_script(
            options.script,
            options.arguments,
            is_module=options.is_module,
            functions=options.function,
            memory=options.device or options.memory,
            report=report,
        )
    except SystemExit as ended:
        if isinstance(ended.code, str):
            print(ended.code)
            return ExitCode.ERROR
        return ended.code or ExitCode.OK
    except SweeprofError:
        raise
    except Exception:  # a script may raise anything
        traceback.print_exc()
        return ExitCode.ERROR
    return ExitCode.OK
