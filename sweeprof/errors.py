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
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum

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
