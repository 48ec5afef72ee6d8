"""The exceptions and warnings of sweeprof.

    SweeprofError                 everything below; catch this one
    ├── UserError                 a mistake in a config or a command: printed without a traceback, exit code 1
    │   └── DatasetError          a dataset returned invalid data
    ├── UnknownMetric             a metric that was not measured is looked up in results; also a KeyError
    ├── Damaged                   a file has invalid content: it was cut, edited, or comes from a later version
    ├── Unsupported               a combination that cannot exist (no builder for this backend, ...): a row with a reason
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
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import Any

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
        place = f"{self.source}: " if self.source else ""
        hint = f" Did you mean '{self.nearest}'?" if self.nearest else ""
        # The list of what is known may be long: the suggestion comes before it.
        message, known, options = self.allowed.partition(" Known: ")
        return f"{place}{shortened(self.key)}: {shown_value(self.value)} {message}{hint}{known}{options}"


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
    """The problem of ``value`` not being one of ``known``; ``noun`` reads as in "is not a backend"."""
    options = sorted(known)
    article = "an" if noun[0] in "aeiou" else "a"
    return Problem(key, value, f"is not {article} {noun}. {_known(value, options)}", nearest(str(value), options))


def target_advice(key: str, value: object) -> str | None:
    """Return what to write for a function or class of the user's that is given by its dotted name alone; None for other values."""
    if not isinstance(value, str) or "." not in value or not all(part.isidentifier() for part in value.split(".")):
        return None
    return f"a function or class of your own is given by _target_: write {key}._target_={value}."


def option_problem(key: str, option: str, known: Iterable[str]) -> Problem:
    """Return the problem of a metric not having an ``option``; lists the options that it has."""
    options = sorted(known)
    return (
        choice_problem(key, option, "option", options)
        if options
        else Problem(key, option, "is not an option: there is none.")
    )


def _known(value: object, options: Sequence[str]) -> str:
    """The sentence that lists ``options``; of a long list, those most like ``value``."""
    if len(", ".join(options)) <= _LISTED:
        return f"Known: {', '.join(options)}."
    matcher = difflib.SequenceMatcher(b=str(value))

    def likeness(option: str) -> float:
        matcher.set_seq1(option)
        return matcher.ratio()

    shown = sorted(sorted(options, key=likeness, reverse=True)[:_SHOWN])
    return f"Known: {', '.join(shown)} and {len(options) - len(shown)} more."


def key_problem(key: str, value: object, known: Iterable[str]) -> Problem:
    """Return the problem of a ``key`` that is not one of the dotted keys ``known``; lists its siblings and the nearest key."""
    options = sorted(set(known))
    parent = key.rpartition(".")[0]
    beside = [option for option in options if option.rpartition(".")[0] == parent] or [
        o for o in options if "." not in o
    ]
    return Problem(
        key, value, f"is given to a key that does not exist. {_known(key, beside)}", _nearest_key(key, options)
    )


def _nearest_key(key: str, options: Sequence[str]) -> str | None:
    """The key most like ``key``; that two stand in one group makes them no more alike."""
    parent, _, name = key.rpartition(".")
    beside = {o.rpartition(".")[2]: o for o in options if o.rpartition(".")[0] == parent}
    elsewhere = [o for o in options if o not in beside.values()]
    close = nearest(name, list(beside))
    if close:
        return beside[close]
    return nearest(key, elsewhere, _ALIKE) or next((o for o in elsewhere if o.rpartition(".")[2] == name), None)


def nearest(word: str, options: Sequence[str], likeness: float = 0.6) -> str | None:
    """The option that ``word`` most probably misspells, or None when none is at least so alike, of 1."""
    close = difflib.get_close_matches(word, options, n=5, cutoff=likeness)
    # `modle` is one edit away from `mode` and from `model`; only the second has the same letters.
    return min(close, key=lambda option: (_slips(word, option), sorted(word) != sorted(option)), default=None)


def _slips(word: str, other: str) -> int:
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
        self.problems: tuple[Problem, ...] = () if isinstance(problems, str) else tuple(problems)
        super().__init__(problems if isinstance(problems, str) else "\n".join(str(problem) for problem in problems))


class DatasetError(UserError):
    """A dataset returned something else than arrays of samples, and their targets."""


class UnknownMetric(SweeprofError, KeyError):
    """A metric is looked up that is not among the measured ones."""

    def __init__(self, name: object, measured: Iterable[str]) -> None:
        options = list(measured)
        close = nearest(str(name), options)
        hint = f" Did you mean {close!r}?" if close else f" There are: {', '.join(options) or 'none'}."
        super().__init__(f"{name!r} is not among the measured metrics.{hint}")

    def __str__(self) -> str:
        return str(self.args[0])  # a KeyError shows the repr of its argument


class Damaged(SweeprofError, ValueError):
    """A file has invalid content: it was cut, edited, or comes from a later version."""


class Unsupported(SweeprofError):
    """This combination cannot be measured, for a reason that is not a mistake."""


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


# The message of an exception and the line of the user's code that raised it, even if a framework wrapped it.


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
    """Type, message and location of an error in one line, e.g. ``ValueError: no width (nets.py:7 in forward)``.

    What could not be imported comes with the search path; a mistake that sweeprof itself reports is its message alone.
    """
    error = original(error)
    message = message_of(error)[:LENGTH]
    if isinstance(error, UserError):
        return message
    kind, location = type(error).__name__, location_of(error)
    text = f"{kind}: {message}" if message else kind
    if location is not None:
        text = f"{text} ({location})"
    return f"{text}; sys.path: {', '.join(_search_path())}" if isinstance(error, ImportError) else text


def original(error: BaseException) -> BaseException:
    """The error itself, without the errors that Hydra wraps around it."""
    while error.__cause__ is not None and _is_hydras(error):
        error = error.__cause__
    return error


def message_of(error: BaseException) -> str:
    """Return the first line of an error's message, without the text that Keras and AutoGraph add."""
    try:
        metadata = getattr(error, "ag_error_metadata", None)
        if metadata is not None and str(error).startswith("in user code:"):
            text = str(metadata.cause_message).partition(": ")[2]
        else:
            text = str(error)
    except Exception as broken:  # __str__ of a user's class may raise anything
        return f"(its message raised {type(broken).__name__})"
    text = _ANSI.sub("", text).strip()
    inner = _KERAS.fullmatch(text)
    lines = [line.strip() for line in (inner[1] if inner else text).splitlines() if line.strip()]
    message = lines[0] if lines else ""
    for line in lines[1:]:  # e.g. "Error(s) in loading state_dict for Net:"
        if not message.endswith(":"):
            break
        message = f"{message} {line}"
    return message


def first_line(error: BaseException) -> str:
    """Type and first line of an error, for a reason that is shown beside others."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    kind = type(error).__name__
    return f"{kind}: {lines[0]}"[:SHORT] if lines else kind


def location_of(error: BaseException) -> str | None:
    """``file:line in function`` of the deepest frame in the user's code.

    Errors that the error was raised from are searched after the error itself. Where none has a frame in the user's code, it is
    the deepest frame in an installed package that is not one of :data:`LIBRARIES`, then the deepest frame of all.
    None if that only imports or calls what a config names, as for a module that does not exist.
    """
    chain = list(_chain(original(error)))
    for one in chain:
        known: str | None = getattr(one, _LOCATION, None)
        if known is not None:
            return known
    for is_wanted in (_is_users, _is_in_another_package):
        for one in chain:
            found = next((frame for frame in reversed(_frames(one)) if is_wanted(frame[0])), None)
            if found is not None:
                return _shown(*found)
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
    return (
        None
        if code is None or not _is_users(code.co_filename)
        else _shown(code.co_filename, code.co_firstlineno, function.__qualname__)
    )


def formatted(error: BaseException) -> str:
    """The traceback as Python prints it."""
    return "".join(traceback.format_exception(error))


def _is_hydras(error: BaseException) -> bool:
    """True if Hydra raised the error; for a target that it cannot import it raises ``ImportError``."""
    if type(error).__module__.startswith("hydra."):
        return True
    frames = _frames(error)
    return isinstance(error, ImportError) and bool(frames) and _package(frames[-1][0]) == "hydra"


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An error and those that it was raised from, the outermost first."""
    seen: set[int] = set()
    following: BaseException | None = error
    while following is not None and id(following) not in seen:
        seen.add(id(following))
        yield following
        following = following.__cause__ or (None if following.__suppress_context__ else following.__context__)


def _frames(error: BaseException) -> list[Frame]:
    """The frames of an error, the deepest last, as positions in source that a person wrote."""
    found: list[Frame] = [
        (frame.f_code.co_filename, line, frame.f_code.co_name) for frame, line in traceback.walk_tb(error.__traceback__)
    ]
    # AutoGraph runs a translation of the user's code, and torch.compile reads it without running it.
    translated = getattr(getattr(error, "ag_error_metadata", None), "translated_stack", None)
    if translated:
        found += [(frame.filename, frame.lineno, frame.function_name) for frame in reversed(translated)]
    found += [(frame.filename, frame.lineno or 0, frame.name) for frame in getattr(error, "real_stack", None) or ()]
    if isinstance(error, SyntaxError) and error.filename is not None:
        found.append((error.filename, error.lineno or 0, None))
    return found


def _is_users(file: str) -> bool:
    return _is_source(file) and _package(file) is None and not _is_standard(file)


def _is_in_another_package(file: str) -> bool:
    package = _package(file)
    return package is not None and package not in LIBRARIES and package != _OWN.name


def _is_source(file: str) -> bool:
    if file.startswith("<"):
        return file.startswith(("<stdin>", "<ipython-"))
    return _GENERATED not in file


@cache
def _package(file: str) -> str | None:
    """The installed package that a file belongs to; None for a file of the user's, or of Python's own."""
    if Path(file).is_relative_to(_OWN) or Path(file).is_relative_to(_OWN.parent / "hydra_plugins"):
        return _OWN.name
    found = _INSTALLED.search(file)
    return found[1] if found else None


@cache
def _is_standard(file: str) -> bool:
    return any(Path(file).is_relative_to(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib"))


def _shown(file: str, line: int, function: str | None) -> str:
    place = f"{_relative(file)}:{line}"
    return place if function is None else f"{place} in {function}"


def _relative(file: str) -> str:
    """The path from the working directory where the file is below that."""
    try:
        path = Path(file)
        return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else file
    except OSError:  # the working directory is gone
        return file


def _search_path() -> list[str]:
    """The folders of ``sys.path`` that may hold modules of the user's, or installed ones."""
    standard = {os.path.realpath(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")}
    folders = dict.fromkeys(entry or os.curdir for entry in sys.path)
    return [
        folder
        for folder in folders
        if Path(folder).is_dir()
        and os.path.realpath(folder) not in standard
        and not folder.endswith(f"{os.sep}lib-dynload")
    ]
