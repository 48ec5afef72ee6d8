"""A number that is measured in a child of this process, which ends with it."""

from __future__ import annotations

import atexit
import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress

import psutil

from sweeprof.processes import die_with, signal_name


def in_child(measure: Callable[[], int]) -> tuple[int | None, str | None]:
    """Return the number that ``measure`` returns in a child of this process, or None and why there is none.

    The child begins as a copy of this process: whatever it imports, allocates or changes is gone with it.
    """
    if (
        psutil.Process().num_threads() > 1
    ):  # a child has only one of them, and would wait for the others' locks for ever
        return (
            None,
            "this process has several threads already, and cannot have a child that measures; a trial with isolation=fork can",
        )
    sys.stdout.flush()
    sys.stderr.flush()
    reading, writing = os.pipe()
    parent, child = os.getpid(), os.fork()
    if child == 0:
        os.close(reading)
        _measure_and_exit(measure, writing, parent)
    os.close(writing)
    with os.fdopen(reading, "rb") as answer:
        text = answer.read()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if not text:
        ending = f"was ended by {signal_name(-code)}" if code < 0 else f"exited with {code}"
        return None, f"the process that measured it {ending}"
    value, reason = json.loads(text)
    return value, reason


def _measure_and_exit(measure: Callable[[], int], writing: int, parent: int) -> None:
    value, reason = None, None
    atexit._clear()  # what the parent registered is not this process's to do
    try:
        die_with(parent)
        value = measure()
    except BaseException as error:
        reason = f"{type(error).__name__}: {error}"
    os.write(writing, json.dumps([value, reason]).encode())
    with suppress(BaseException):
        atexit._run_exitfuncs()  # what the measurement registered: the removal of AutoGraph's files, for one
    os._exit(0)
