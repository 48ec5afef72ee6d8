"""The progress of a profiler: which pass runs. It is written between passes only, so that no measurement contains any of it."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sweeprof.passes.registry import passes
from sweeprof.results.record import PassName
from sweeprof.text import printable

if TYPE_CHECKING:
    from logging import LoggerAdapter

LOG = logging.getLogger("sweeprof")
"""Passes and their durations at the level INFO, warnings about results at the level WARNING; without handlers of its own."""
_ERASE = "\r\x1b[2K"
_BAR = 20
"""Characters of the bar that shows how many of the passes are done."""


class _Forward(logging.Handler):
    """Hands every message on to another logger."""

    def __init__(self, target: logging.Logger | LoggerAdapter[Any], level_before: int) -> None:
        super().__init__()
        self.target, self.level_before = target, level_before

    def emit(self, record: logging.LogRecord) -> None:
        self.target.log(record.levelno, "%s", record.getMessage(), exc_info=record.exc_info)


def set_logger(logger: logging.Logger | LoggerAdapter[Any] | None = None) -> None:
    """Send the messages of the library to ``logger``, which replaces the logger ``sweeprof``; None: to ``sweeprof`` again.

    The level and the handlers of ``logger`` decide which messages are shown, and where. Messages of sweeps, which are logged by
    loggers below ``sweeprof``, are sent to it, too.

    Raises:
        TypeError: it is neither a ``logging.Logger`` nor a ``logging.LoggerAdapter``.
        ValueError: it is a logger below ``sweeprof``.

    Example:
        >>> sweeprof.set_logger(logging.getLogger("my_package.profiling"))
    """
    if logger is not None and not isinstance(logger, logging.Logger | logging.LoggerAdapter):
        raise TypeError(f"{logger!r} is not a logger: it must be a logging.Logger or a logging.LoggerAdapter")
    if logger is not None and logger.name.startswith(f"{LOG.name}."):
        raise ValueError(f"{logger!r} passes its messages on to {LOG.name}, which would send them to it again")
    for handler in list(LOG.handlers):
        if isinstance(handler, _Forward):
            LOG.removeHandler(handler)
            LOG.setLevel(handler.level_before)
            LOG.propagate = True
    if logger is not None and logger.name != LOG.name:
        LOG.addHandler(_Forward(logger, LOG.level))
        LOG.setLevel(1)  # of any level: those of the other logger decide
        LOG.propagate = False


class Progress:
    """Shows one line while measuring passes run, and logs every pass.

    Args:
        is_shown: None: on a terminal and in a notebook; True: everywhere, as lines where stderr is neither; False: nowhere.
        is_verbose: True: every message of the log is a line on stderr, too, and there is no other line.
    """

    def __init__(self, is_shown: bool | None, is_verbose: bool = False) -> None:
        self.is_shown, self.is_verbose = is_shown, is_verbose
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
        text, bar = name, ""
        if name in self._pending and len(self._pending) > 1:
            done = self._pending.index(name)
            text += f", pass {done + 1} of {len(self._pending)}"
            filled = round(_BAR * done / len(self._pending))
            bar = f" [{'█' * filled}{'░' * (_BAR - filled)}]"
        self.log(logging.INFO, text)
        if any(passes()[pending].kind != "exact" for pending in self._pending or (name,)):
            elapsed = time.monotonic() - self._began
            line = f"sweeprof: {text}" + (f", {elapsed:.0f} s so far" if self._pending and elapsed >= 1 else "")
            self._show(line, bar)
        begin = time.monotonic()
        try:
            yield
        finally:
            self.log(logging.INFO, f"{name} took {time.monotonic() - begin:.3g} s")
            if not self._pending:
                self._remove()

    def log(self, level: int, message: str) -> None:
        """Log a message; a verbose profiler also prints it, unless the program shows such messages itself."""
        targets = [handler.target for handler in LOG.handlers if isinstance(handler, _Forward)] or [LOG]
        if self.is_verbose and not targets[0].isEnabledFor(logging.INFO):
            print(f"sweeprof: {printable(message)}", file=sys.stderr, flush=True)
        LOG.log(level, "%s", message)

    def _show(self, line: str, bar: str) -> None:
        if self.is_shown is False or self.is_verbose:
            return
        if self._shown_by is not None:
            self._shown_by.update({"text/plain": line + bar}, raw=True)
        elif sys.stderr.isatty():
            print(f"{_ERASE}{line}{bar}", end="", file=sys.stderr, flush=True)
        elif _is_notebook():
            self._shown_by = sys.modules["IPython.display"].display(
                {"text/plain": line + bar}, raw=True, display_id=True
            )
        elif self.is_shown:
            print(line, file=sys.stderr, flush=True)

    def _remove(self) -> None:
        if self._shown_by is not None:
            self._shown_by.update({"text/plain": ""}, raw=True)
            self._shown_by = None
        elif self.is_shown is not False and not self.is_verbose and sys.stderr.isatty():
            print(_ERASE, end="", file=sys.stderr, flush=True)


def _is_notebook() -> bool:
    """Return True in the kernel of a notebook, which has imported IPython."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return hasattr(shell, "kernel") and "IPython.display" in sys.modules
