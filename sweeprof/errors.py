"""The exceptions and warnings of sweeprof, and how errors are described: by their message and the line of the user's code.

    SweeprofError                 everything below; catch this one
    ├── UserError                 a mistake in a config or a command: printed without a traceback, exit code 1
    │   └── DatasetError          a dataset returned invalid data
    ├── UnknownMetric             a metric that was not measured is looked up in results; also a KeyError
    ├── Damaged                   a file has invalid content: it was cut, edited, or comes from a later version
    ├── Unsupported               a combination that cannot exist (no builder for this backend, ...): a row with a reason
    ├── CommandError              a program that is measured failed, or took too long
    ├── Uncounted                 an operator has no formula, and `strict=error` is set
    ├── OverrideError             two metrics both override a third
    └── WorkerError               a process of the sweep failed; never the user's model

A user's mistakes are collected as ``Problem`` values and raised together, so that one run of the command shows all of them.
"""

from __future__ import annotations

import difflib
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import Any, Literal

_ALIKE = 0.75
"""Minimum similarity of keys of different groups for one to be suggested for the other."""
_LISTED = 400
"""Characters of a list of options; of a longer one, only the options most like what was given are listed."""
_SHOWN = 8
"""The number of these options."""


class ExitCode(IntEnum):
    """Exit codes of ``sweeprof`` and its subcommands."""

    meaning: str

    def __new__(cls, value: int, meaning: str) -> ExitCode:
        code = int.__new__(cls, value)
        code._value_ = value
        code.meaning = meaning
        return code

    OK = 0, "success: everything was measured, sent, shown or removed"
    ERROR = 1, "a mistake in the command, a config or a folder; all mistakes are printed"
    INCOMPLETE = (
        2,
        "something failed: a combination, sending (sync), MLflow (ui), removing (prune), a check (doctor --strict)",
    )
    CHANGED = 3, "compare --fail-on: there is a change of that kind"
    RUNNING = 4, "collect: jobs are still running"
    INTERRUPTED = 130, "interrupted; what was measured is kept"


class SweeprofError(Exception):
    """Base class of all exceptions that sweeprof raises on purpose."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake of the user: the key, its value, and the accepted values."""

    key: str
    """The config key, dotted, as it would be written on the command line."""
    value: object
    """The invalid value."""
    allowed: str
    """The accepted values, in words."""
    nearest: str | None = None
    """The accepted value or key that is closest to the given one, if one is close."""
    source: str | None = None
    """The line of the user's file that has it, as ``conf/sweep/mine.yaml:7``; None if it was not read from a file."""

    def __str__(self) -> str:
        # The list of what is known may be long: the suggestion comes before it.
        message, known, options = self.allowed.partition(" Known: ")
        text = f"{shortened(self.key)}: {shown_value(self.value)} {message}"
        if self.source:
            text = f"{self.source}: {text}"
        if self.nearest:
            text += f" Did you mean '{self.nearest}'?"
        return text + known + options


_LONGEST_VALUE = 300
"""Characters of a value that an error quotes: more than any path, less than a page."""


def shown_value(value: object) -> str:
    """Return a value as an error shows it; a long one without its middle."""
    try:
        return shortened(repr(value))
    except ValueError:  # Python converts no integer of more than 4,300 digits
        return "a number of thousands of digits"


def shortened(text: str, limit: int = _LONGEST_VALUE) -> str:
    """Return a text without its middle, if it is longer than ``limit``."""
    return text if len(text) <= limit else f"{text[: limit // 2]}…{text[-limit // 3 :]}"


def choice_problem(key: str, value: object, noun: str, known: Iterable[str]) -> Problem:
    """Return the problem of ``value`` not being one of ``known``; ``noun`` reads as in "is not a backend"."""
    options = sorted(known)
    article = "an" if noun[0] in "aeiou" else "a"
    return Problem(key, value, f"is not {article} {noun}. {_known(value, options)}", nearest(str(value), options))


def target_advice(key: str, value: object) -> str | None:
    """Return what to write for a function or class of the user's that is given by its dotted name alone; None for other values."""
    if not isinstance(value, str) or "." not in value or not all(map(str.isidentifier, value.split("."))):
        return None
    return f"a function or class of your own is given by _target_: write {key}._target_={value}."


def option_problem(key: str, option: str, known: Iterable[str]) -> Problem:
    """Return the problem of a metric not having an ``option``; lists the options that it has."""
    options = sorted(known)
    if not options:
        return Problem(key, option, "is not an option: there is none.")
    return choice_problem(key, option, "option", options)


def _known(value: object, options: Sequence[str]) -> str:
    """Return the sentence that lists ``options``; of a long list, those most like ``value``."""
    if len(", ".join(options)) <= _LISTED:
        return f"Known: {', '.join(options)}."
    matcher = difflib.SequenceMatcher(b=str(value))
    likeness = {}
    for option in options:
        matcher.set_seq1(option)
        likeness[option] = matcher.ratio()
    shown = sorted(sorted(options, key=likeness.__getitem__, reverse=True)[:_SHOWN])
    return f"Known: {', '.join(shown)} and {len(options) - len(shown)} more."


def key_problem(key: str, value: object, known: Iterable[str]) -> Problem:
    """Return the problem of a ``key`` that is not one of the dotted keys ``known``; lists its siblings and the nearest key."""
    options = sorted(set(known))
    parent, _, name = key.rpartition(".")
    siblings = {}
    elsewhere = []
    for option in options:
        group, _, last = option.rpartition(".")
        if group == parent:
            siblings[last] = option
        else:
            elsewhere.append(option)
    # Names are compared within the group: that two stand in one group makes them no more alike.
    close = nearest(name, list(siblings))
    if close is not None:
        suggested: str | None = siblings[close]
    else:
        same_name = [option for option in elsewhere if option.rpartition(".")[2] == name]
        suggested = nearest(key, elsewhere, _ALIKE) or next(iter(same_name), None)
    listed = list(siblings.values()) or [option for option in options if "." not in option]
    return Problem(key, value, f"is given to a key that does not exist. {_known(key, listed)}", suggested)


def nearest(word: str, options: Sequence[str], likeness: float = 0.6) -> str | None:
    """Return the option that ``word`` most probably misspells; None if none is at least so similar, of 1."""
    close = difflib.get_close_matches(word, options, n=5, cutoff=likeness)
    # `modle` is one edit away from `mode` and from `model`; only the second has the same letters.
    return min(close, key=lambda option: (_edits(word, option), sorted(word) != sorted(option)), default=None)


def _edits(word: str, other: str) -> int:
    """Return the number of letters to insert, delete, replace or swap with their neighbour to turn ``word`` into ``other``."""
    rows = [list(range(len(other) + 1))]
    for i, letter in enumerate(word, 1):
        row = [i]
        for j, wanted in enumerate(other, 1):
            cost = min(rows[-1][j] + 1, row[-1] + 1, rows[-1][j - 1] + (letter != wanted))
            if i > 1 and j > 1 and letter == other[j - 2] and word[i - 2] == wanted:
                cost = min(cost, rows[-2][j - 2] + 1)
            row.append(cost)
        rows.append(row)
    return rows[-1][-1]


class UserError(SweeprofError, ValueError):
    """One or more problems of a config or a command."""

    def __init__(self, problems: Sequence[Problem] | str) -> None:
        self.problems: tuple[Problem, ...] = ()
        if not isinstance(problems, str):
            self.problems = tuple(problems)
            problems = "\n".join(map(str, self.problems))
        super().__init__(problems)


class DatasetError(UserError):
    """A dataset returned something else than arrays of samples, and their targets."""


class UnknownMetric(SweeprofError, KeyError):
    """A metric is looked up that is not among the measured ones."""

    def __init__(self, name: object, measured: Iterable[str]) -> None:
        options = list(measured)
        close = nearest(str(name), options)
        hint = f"Did you mean {close!r}?" if close else f"There are: {', '.join(options) or 'none'}."
        super().__init__(f"{name!r} is not among the measured metrics. {hint}")

    def __str__(self) -> str:
        return str(self.args[0])  # a KeyError shows the repr of its argument


class Damaged(SweeprofError, ValueError):
    """A file has invalid content: it was cut, edited, or comes from a later version."""


class Unsupported(SweeprofError):
    """This combination cannot be measured, for a reason that is not a mistake."""


class CommandError(SweeprofError):
    """A program that is measured failed, took too long, or used too much memory.

    Args:
        status: of the trial.
        reason: in the words of the program, as far as it gave any.
    """

    def __init__(self, status: Literal["failed", "timeout", "oom"], reason: str) -> None:
        super().__init__(reason)
        self.status = status


class WorkerError(SweeprofError):
    """A fork server, another process of the sweep or the connection to it failed."""


class Uncounted(SweeprofError):
    """An operator has no formula, and the caller wants complete counts or none."""


class OverrideError(SweeprofError, RuntimeError):
    """Two metrics of one name were both registered with ``override=True``."""


class UncountedWarning(UserWarning):
    """An operator has no formula, so that counts are a lower bound."""


class MetricWarning(UserWarning):
    """A metric's function raised, or did not return a number, so that the metric has no value."""


# How an error is described, even if a framework wrapped it.


LENGTH = 500
"""Characters of a message in a reason; the traceback has all of it."""
SHORT = 200
"""Characters of an error's first line in a reason that is one of several."""
LIBRARIES = (
    *("torch", "keras", "tensorflow", "tf_keras", "jax", "jaxlib", "flax", "numpy", "onnx", "onnxruntime"),
    *("ai_edge_litert", "openvino", "nncf", "hydra", "omegaconf"),
)
"""Packages that the user's code calls. A frame in another installed package is shown where there is none in the user's files."""
_OWN = Path(__file__).resolve().parent
_INSTALLED = re.compile(r"[\\/](?:site|dist)-packages[\\/]([^\\/.]+)")
_GENERATED = "__autograph_generated_file"
"""Part of the name of the files that TensorFlow's AutoGraph writes; their lines are not the user's."""
_KERAS = re.compile(
    r"Exception encountered when calling [^\n]*\n\s*\n(.*?)(?:\n\s*\nArguments received by .*)?", re.DOTALL
)
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_LOCATION = "_sweeprof_location"

Frame = tuple[str, int, str | None]
"""File, line, and function; None where it is not in a function, as a syntax error."""


def described(error: BaseException) -> str:
    """Return type, message and location of an error in one line, e.g. ``ValueError: no width (nets.py:7 in forward)``.

    What could not be imported comes with the search path; a mistake or a lost process is its message alone.
    """
    error = original(error)
    message = message_of(error)[:LENGTH]
    if isinstance(error, UserError | WorkerError):
        return message
    text, location = type(error).__name__, location_of(error)
    if message:
        text += f": {message}"
    if location is not None:
        text += f" ({location})"
    if isinstance(error, ImportError):
        standard = [os.path.realpath(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")]
        folders = []
        for folder in dict.fromkeys(entry or os.curdir for entry in sys.path):
            is_standard = os.path.realpath(folder) in standard or folder.endswith(f"{os.sep}lib-dynload")
            if Path(folder).is_dir() and not is_standard:
                folders.append(folder)
        text += f"; sys.path: {', '.join(folders)}"
    return text


def original(error: BaseException) -> BaseException:
    """Return the error itself, without the errors that Hydra wraps around it."""
    while error.__cause__ is not None:
        is_hydras = type(error).__module__.startswith("hydra.")
        if isinstance(error, ImportError):  # which Hydra raises for a target that it cannot import
            frames = _frames(error)
            is_hydras = is_hydras or (bool(frames) and _package(frames[-1][0]) == "hydra")
        if not is_hydras:
            break
        error = error.__cause__
    return error


def message_of(error: BaseException) -> str:
    """Return the first line of an error's message, without the text that Keras and AutoGraph add."""
    try:
        text = str(error)
        metadata = getattr(error, "ag_error_metadata", None)
        if metadata is not None and text.startswith("in user code:"):
            text = str(metadata.cause_message).partition(": ")[2]
    except Exception as broken:  # __str__ of a user's class may raise anything
        return f"(its message raised {type(broken).__name__})"
    text = _ANSI.sub("", text).strip()
    inner = _KERAS.fullmatch(text)
    if inner is not None:
        text = inner[1]
    message = ""
    for line in text.splitlines():
        message = f"{message} {line.strip()}".strip()
        if message and not message.endswith(":"):  # e.g. "Error(s) in loading state_dict for Net:" goes on
            break
    return message


def first_line(error: BaseException) -> str:
    """Return type and first line of an error, for a reason that is shown beside others."""
    kind = type(error).__name__
    message = str(error).strip()
    if not message:
        return kind
    return f"{kind}: {message.splitlines()[0].strip()}"[:SHORT]


def location_of(error: BaseException) -> str | None:
    """Return ``file:line in function`` of the deepest frame in the user's code.

    Errors that the error was raised from are searched after the error itself. If none has a frame in the user's code, it is
    the deepest frame in an installed package that is not one of :data:`LIBRARIES`, then the deepest frame of all.
    None if that only imports or calls what a config names, as for a module that does not exist.
    """
    chain: list[BaseException] = []
    cause: BaseException | None = original(error)
    while cause is not None and all(cause is not seen for seen in chain):
        known: str | None = getattr(cause, _LOCATION, None)
        if known is not None:
            return known
        chain.append(cause)
        context = None if cause.__suppress_context__ else cause.__context__
        cause = cause.__cause__ or context
    frames: list[Frame] = []
    for one in chain:
        frames += reversed(_frames(one))
    for is_wanted in (_is_users, _is_in_another_package):
        for frame in frames:
            if is_wanted(frame[0]):
                return _shown(*frame)
    deepest = next((frame for frame in reversed(_frames(chain[0])) if not frame[0].startswith("<")), None)
    if deepest is None or _package(deepest[0]) == "hydra" or Path(deepest[0]).parent.name == "importlib":
        return None
    return _shown(*deepest)


def located_at(error: BaseException, location: str | None) -> None:
    """Let :func:`location_of` return ``location`` for an error whose frames are in another process, or say too little."""
    if location is not None:
        setattr(error, _LOCATION, location)


def definition_of(function: Callable[..., Any]) -> str | None:
    """Return ``file:line in function`` of a function's first line; None for a function of sweeprof, or without Python source."""
    code = getattr(function, "__code__", None)
    if code is None or not _is_users(code.co_filename):
        return None
    return _shown(code.co_filename, code.co_firstlineno, function.__qualname__)


def formatted(error: BaseException) -> str:
    """Return the traceback as Python prints it."""
    return "".join(traceback.format_exception(error))


def _frames(error: BaseException) -> list[Frame]:
    """Return the frames of an error, the deepest last, as positions in source that a person wrote."""
    frames = list(traceback.walk_tb(error.__traceback__))
    found: list[Frame] = [(frame.f_code.co_filename, line, frame.f_code.co_name) for frame, line in frames]
    # AutoGraph runs a translation of the user's code, and torch.compile reads it without running it.
    translated = getattr(getattr(error, "ag_error_metadata", None), "translated_stack", None) or ()
    found += [(one.filename, one.lineno, one.function_name) for one in reversed(translated)]
    compiled = getattr(error, "real_stack", None) or ()
    found += [(one.filename, one.lineno or 0, one.name) for one in compiled]
    if isinstance(error, SyntaxError) and error.filename is not None:
        found.append((error.filename, error.lineno or 0, None))
    return found


@cache
def _is_users(file: str) -> bool:
    if file.startswith("<"):
        return file.startswith(("<stdin>", "<ipython-"))
    if _GENERATED in file or _package(file) is not None:
        return False
    standard = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib")]
    return not any(map(Path(file).is_relative_to, standard))


def _is_in_another_package(file: str) -> bool:
    package = _package(file)
    return package is not None and package not in LIBRARIES and package != _OWN.name


@cache
def _package(file: str) -> str | None:
    """Return the installed package that a file belongs to; None for a file of the user's, or of Python's own."""
    path = Path(file)
    if path.is_relative_to(_OWN) or path.is_relative_to(_OWN.parent / "hydra_plugins"):
        return _OWN.name
    found = _INSTALLED.search(file)
    return found[1] if found else None


def _shown(file: str, line: int, function: str | None) -> str:
    with suppress(OSError, ValueError):  # the working directory is gone, or the file is not below it
        file = str(Path(file).relative_to(Path.cwd()))
    place = f"{file}:{line}"
    return place if function is None else f"{place} in {function}"
