"""Sanitised text from models, configs, folders and servers, for display and storage."""

from __future__ import annotations

import json
import logging
import math
import os
import re
import shutil
import sys
from collections.abc import Iterable, Mapping
from io import TextIOWrapper
from pathlib import Path
from typing import IO, Any, TextIO, cast

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from sweeprof.credentials import redacted_message

CONTROL = "\x00-\x1f\x7f-\x9f\u2028\u2029\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff\ufffe\uffff\ud800-\udfff"
"""For a character class of a regular expression: control characters, line separators, direction marks and overrides, surrogates."""
LONGEST_MESSAGE = 2_000
"""Characters of a reason or a warning that are kept."""
LONGEST_TRACEBACK = 20_000

_CONTROL = re.compile(f"[{CONTROL}]+")
_OTHER_TYPE = re.compile(r"null|true|false|-?\d+(\.\d+)?(e[+-]?\d+)?|[\[{].*", re.IGNORECASE)
"""A text that is read as another type unless it is quoted; ``nan`` and ``inf`` are not, because such numbers are stored as text."""
_UNPRINTABLE = re.compile(f"(?![\n\t])[{CONTROL}]")


def listed(names: str | Iterable[str]) -> list[str]:
    """Return one name that is given as text, or several, as a list."""
    if isinstance(names, str):
        return [names]
    return list(names)


def printable(text: str) -> str:
    r"""Return ``text`` without control characters: escapes, overrides and surrogates are written as ``\u001b``.

    Line breaks and tabs stay. The spelling is the one of JSON, so that JSON remains valid and keeps its meaning.
    """
    if text.isprintable():  # which most are, and takes a tenth of the time
        return text
    return _UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def one_line(text: str) -> str:
    """Return ``text`` without line breaks, terminal escapes and direction overrides; runs of spaces become one."""
    return " ".join(_CONTROL.sub(" ", text).split())


def without_numbers(text: str) -> str:
    """Return ``text`` with a 0 for every number: the same for reasons that differ only in a size or an address."""
    return re.sub(r"0x[0-9a-f]{6,}|\d+", "0", text)


def shortened(text: str, limit: int) -> str:
    """Return ``text`` without its middle if it is longer than ``limit``: both ends tell names apart."""
    if len(text) <= limit:
        return text
    head = (limit - 1) // 2
    return f"{text[:head]}…{text[len(text) - (limit - 1 - head) :]}"


def axis_text(value: object) -> str:
    """Return the value of an axis as it would be written on the command line, such as ``1``, ``1.0``, ``true`` or ``'1'``."""
    if isinstance(value, str):
        text = one_line(value)
        return f"'{text}'" if _OTHER_TYPE.fullmatch(text) else text
    if isinstance(value, float):
        short = f"{value:g}"
        return repr(value) if float(short) != value or short.lstrip("-").isdigit() else short
    return one_line(json.dumps(value, ensure_ascii=False, default=str))


def axes_text(axes: Mapping[str, object]) -> str:
    """Return several axes with their values, e.g. ``model=mlp, batch_size=512``."""
    return ", ".join(f"{one_line(axis)}={axis_text(value)}" for axis, value in axes.items())


def axis_number(value: object) -> int | float | None:
    """Return the value of an axis if it is a finite number; booleans are not."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return value


def limited(text: str, limit: int) -> str:
    """Return a text of at most ``limit`` characters, else its beginning and end with the number of characters left out."""
    if len(text) <= limit:
        return text
    kept = limit // 2
    return f"{text[:kept]} … [{len(text) - 2 * kept:,} characters left out] … {text[-kept:]}"


def stored(text: str, limit: int = LONGEST_MESSAGE) -> str:
    """Return ``text`` as a record keeps it: without secrets, limited and printable."""
    return printable(limited(redacted_message(text), limit))


# Output to the terminal, without control characters from names and messages.


LONGEST_LINE = 10_000
"""Characters of a line of errors and warnings; results, which a program may read, are printed in full."""


class _Printable:
    """A stream that writes only printable text, and of errors and warnings no secrets."""

    def __init__(self, stream: TextIO, longest: int | None) -> None:
        self.rich_proxied_file = stream  # where a console of rich writes, whose own control codes are meant
        self._longest = longest

    def write(self, text: str) -> int:
        if self._longest is not None:
            lines = [limited(line, self._longest) for line in text.splitlines(keepends=True)]
            text = redacted_message("".join(lines), "***@")
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
        while hasattr(file, "rich_proxied_file"):
            file = file.rich_proxied_file
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
    for handler in list(log.handlers):
        if isinstance(handler, logging.NullHandler):
            log.removeHandler(handler)


def guard_output() -> None:
    """Make everything that this process prints and logs printable, tracebacks included; every command begins with it."""
    log_as_a_program()
    logging.setLogRecordFactory(_PrintableRecord)
    open_closed_descriptors()
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # it was closed, as with ``>&-``: what is printed is discarded
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115  # until the process ends
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a letter of a path that the terminal's encoding lacks is no error
    if not isinstance(sys.stdout, _Printable):
        sys.stdout = cast("TextIO", _Printable(sys.stdout, None))
    if not isinstance(sys.stderr, _Printable):
        sys.stderr = cast("TextIO", _Printable(sys.stderr, LONGEST_LINE))


def open_closed_descriptors() -> None:
    """Open the descriptors of standard streams that are closed; else the next file that is opened would be that stream."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)  # which takes the lowest number that is free: this one
            os.set_inheritable(opened, True)


class StatusLine:
    """A line on a terminal or in a notebook that each following one replaces."""

    _ERASE = "\r\x1b[2K"
    _BAR = 20
    """Characters of the bar."""

    def __init__(self) -> None:
        self._output: Any = None
        """The output of a notebook that is changed."""

    @staticmethod
    def _notebook() -> Any:
        """Return IPython's module for output in the kernel of a notebook, which has imported it; None elsewhere."""
        ipython, display = sys.modules.get("IPython"), sys.modules.get("IPython.display")
        is_notebook = ipython is not None and hasattr(ipython.get_ipython(), "kernel")
        return display if is_notebook else None

    def can_show(self) -> bool:
        """True if stderr is a terminal, or this is a notebook."""
        return sys.stderr.isatty() or self._notebook() is not None

    def show(self, line: str, done: int = 0, total: int = 0) -> None:
        """Show a line, with a bar behind it if there is a ``total``."""
        if total:
            filled = round(self._BAR * done / total)
            line += f" [{'█' * filled}{'░' * (self._BAR - filled)}]"
        if self._output is not None:
            self._output.update({"text/plain": line}, raw=True)
        elif sys.stderr.isatty():
            width = shutil.get_terminal_size().columns - 1  # a line that is broken cannot be erased
            print(f"{self._ERASE}{line[:width]}", end="", file=sys.stderr, flush=True)
        else:
            self._output = self._notebook().display({"text/plain": line}, raw=True, display_id=True)

    def write(self, text: str) -> None:
        """Write text on stderr; on a terminal it replaces the line, which the next :meth:`show` shows again."""
        if self._output is None:
            self.remove()
        sys.stderr.write(text)
        sys.stderr.flush()

    def remove(self) -> None:
        """Remove the line, if there is one."""
        if self._output is not None:
            self._output.update({"text/plain": ""}, raw=True)
            self._output = None
        elif sys.stderr.isatty():
            print(self._ERASE, end="", file=sys.stderr, flush=True)


_PLAIN: dict[str, Any] = {"markup": False, "emoji": False, "force_jupyter": False}
"""Options of every console; in a notebook, rich would not write to the file."""


def console(piped_width: int | None = None, file: IO[str] | None = None, **options: Any) -> SafeConsole:
    """Return a console for stdout, or for ``file``; it is ``piped_width`` columns wide if the output is not a terminal."""
    width = None if file is not None or sys.stdout.isatty() else piped_width
    return SafeConsole(**{"file": file, "width": width, **_PLAIN, **options})


def error_console() -> SafeConsole:
    """Return a console for stderr: progress, warnings and errors."""
    return SafeConsole(stderr=True, **_PLAIN)
