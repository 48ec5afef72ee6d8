"""The progress of a profiler: which pass runs. It is written between passes only, so that no measurement contains any of it."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sweeprof.passes.registry import passes
from sweeprof.results.record import PassName

LOG = logging.getLogger("sweeprof")
"""Passes and their durations at the level INFO, warnings about results at the level WARNING; without handlers of its own."""
_ERASE = "\r\x1b[2K"


class Progress:
    """Shows one line while measuring passes run, and logs every pass.

    Args:
        is_shown: None: on a terminal and in a notebook; True: everywhere, as lines where stderr is neither; False: nowhere.
    """

    def __init__(self, is_shown: bool | None) -> None:
        self.is_shown = is_shown
        self._pending: Sequence[PassName] = ()
        self._shown_by: Any = None
        """The output of a notebook that is changed from pass to pass."""
        self._began = 0.0

    @contextmanager
    def over(self, names: Sequence[PassName]) -> Iterator[None]:
        """Around passes that follow each other; the line is removed at the end. Within another such context: nothing."""
        if self._pending or not names:
            yield
            return
        self._pending, self._began = names, time.monotonic()
        try:
            yield
        finally:
            self._pending = ()
            self._remove()

    @contextmanager
    def running(self, name: PassName) -> Iterator[None]:
        """Around one pass."""
        text = name
        if name in self._pending and len(self._pending) > 1:
            text += f", pass {self._pending.index(name) + 1} of {len(self._pending)}"
        LOG.info("%s", text)
        if any(passes()[pending].kind != "exact" for pending in self._pending or (name,)):
            elapsed = time.monotonic() - self._began
            self._show(f"sweeprof: {text}" + (f", {elapsed:.0f} s so far" if self._pending and elapsed >= 1 else ""))
        begin = time.monotonic()
        try:
            yield
        finally:
            LOG.info("%s took %.3g s", name, time.monotonic() - begin)
            if not self._pending:
                self._remove()

    def _show(self, line: str) -> None:
        if self.is_shown is False:
            return
        if self._shown_by is not None:
            self._shown_by.update({"text/plain": line}, raw=True)
        elif sys.stderr.isatty():
            print(f"{_ERASE}{line}", end="", file=sys.stderr, flush=True)
        elif _is_notebook():
            self._shown_by = sys.modules["IPython.display"].display({"text/plain": line}, raw=True, display_id=True)
        elif self.is_shown:
            print(line, file=sys.stderr, flush=True)

    def _remove(self) -> None:
        if self._shown_by is not None:
            self._shown_by.update({"text/plain": ""}, raw=True)
            self._shown_by = None
        elif self.is_shown is not False and sys.stderr.isatty():
            print(_ERASE, end="", file=sys.stderr, flush=True)


def _is_notebook() -> bool:
    """Return True in the kernel of a notebook, which has imported IPython."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return hasattr(shell, "kernel") and "IPython.display" in sys.modules
