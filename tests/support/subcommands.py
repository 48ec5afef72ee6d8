"""Subcommands of ``sweeprof``, run in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sweeprof.cli.run import run_command


def subcommand(name: str) -> Callable[[Sequence[str]], int]:
    """Return a function that runs ``sweeprof NAME ARGUMENTS`` and returns the exit code."""
    return lambda arguments: run_command([name, *arguments])
