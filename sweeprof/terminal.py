"""Output to the terminal, without control characters from names and messages."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterable
from io import TextIOWrapper
from pathlib import Path
from typing import IO, Any, TextIO, cast

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from sweeprof.credentials import redacted_message
from sweeprof.text import limited, printable

LONGEST_LINE = 10_000
"""Characters of a line of errors and warnings; results, which a program may read, are printed in full."""


class _Printable:
    """A stream that writes only printable text, and of errors and warnings no secrets."""

    def __init__(self, stream: TextIO, longest: int | None) -> None:
        self.rich_proxied_file = stream  # where a console of rich writes, whose own control codes are meant
        self._longest = longest

    def write(self, text: str) -> int:
        if self._longest is not None and len(text) > self._longest:
            text = "".join(limited(line, self._longest) for line in text.splitlines(keepends=True))
        if self._longest is not None:
            text = redacted_message(text, "***@")
        self.rich_proxied_file.write(printable(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)


class SafeConsole(Console):
    """A console whose texts are printable; only rich's own control codes reach the terminal. Markup in texts has no meaning."""

    @property
    def file(self) -> IO[str]:
        """The stream itself: while a progress bar is shown, rich wraps the guarded stream in another one."""
        file = super().file
        while (wrapped := getattr(file, "rich_proxied_file", None)) is not None:
            file = wrapped
        return file

    @file.setter
    def file(self, new_file: IO[str]) -> None:
        self._file = new_file

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)


class _PrintableRecord(logging.LogRecord):
    """A log message that is printable, also in the files to which Hydra writes the log."""

    def getMessage(self) -> str:  # noqa: N802 – the name that logging calls
        return limited(printable(redacted_message(super().getMessage(), "***@")), LONGEST_LINE)


def log_as_a_program() -> None:
    """Let the warnings of the library's log reach stderr where no logging is set up, as those of any program's log do."""
    log = logging.getLogger("sweeprof")
    for handler in [handler for handler in log.handlers if isinstance(handler, logging.NullHandler)]:
        log.removeHandler(handler)


def guard_output() -> None:
    """Make everything that this process prints and logs printable, tracebacks included; every command begins with it."""
    log_as_a_program()
    logging.setLogRecordFactory(_PrintableRecord)
    _open_closed_streams()
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a letter of a path that the terminal's encoding lacks is no error
    if not isinstance(sys.stdout, _Printable):
        sys.stdout = cast("TextIO", _Printable(sys.stdout, None))
    if not isinstance(sys.stderr, _Printable):
        sys.stderr = cast("TextIO", _Printable(sys.stderr, LONGEST_LINE))


def _open_closed_streams() -> None:
    """Discard what is printed to a closed stream, as with ``>&-``."""
    open_closed_descriptors()
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115  # until the process ends


def open_closed_descriptors() -> None:
    """Open the descriptors of standard streams that are closed; else the next file that is opened would be that stream."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)  # which takes the lowest number that is free: this one
            os.set_inheritable(opened, True)


def console(piped_width: int | None = None, file: IO[str] | None = None, **options: Any) -> SafeConsole:
    """A console for stdout, or for ``file``; ``piped_width`` are its columns where the output is not a terminal."""
    width = None if file is not None or sys.stdout.isatty() else piped_width
    plain = {"markup": False, "emoji": False, "force_jupyter": False}  # in a notebook, rich would not write to the file
    return SafeConsole(**{"file": file, "width": width, **plain, **options})


def error_console() -> SafeConsole:
    """A console for stderr: progress, warnings and errors."""
    return SafeConsole(stderr=True, markup=False, emoji=False, force_jupyter=False)
