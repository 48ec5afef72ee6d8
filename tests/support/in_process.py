"""The command, in this process: what it prints where it does not come to measuring, in a fraction of the time of a process."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from unittest.mock import patch

from hydra.core.global_hydra import GlobalHydra

from support.command import Ran
from sweeprof.app import main


def call_command(cwd: Path, *arguments: str) -> Ran:
    """``python -m sweeprof ARGUMENTS`` in ``cwd``, to its end."""
    out, err, code = StringIO(), StringIO(), 0
    with _kept(cwd, arguments), redirect_stdout(out), redirect_stderr(err):
        try:
            main()
        except SystemExit as ending:
            code = int(ending.code or 0)
    return Ran(code, out.getvalue(), err.getvalue(), cwd)


@contextmanager
def _kept(cwd: Path, arguments: tuple[str, ...]) -> Iterator[None]:
    """Whatever the command changes of the process is as before afterwards."""
    handlers, level, before = list(logging.root.handlers), logging.root.level, Path.cwd()
    os.chdir(cwd)
    try:
        with (
            patch.dict(os.environ),
            patch.object(sys, "argv", ["sweeprof", *arguments]),
            # Hydra would disable the loggers of later tests, and close absl's handler and with it pytest's captured stderr.
            patch("hydra._internal.hydra.configure_log"),
        ):
            yield
    finally:
        os.chdir(before)
        GlobalHydra.instance().clear()
        logging.root.handlers[:] = handlers
        logging.root.setLevel(level)
