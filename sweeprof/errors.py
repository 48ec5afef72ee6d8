"""What sweeprof raises.

    SweeprofError                 everything below; catch this one
    ├── UserError                 a mistake in a config or a command: printed without a traceback, exit code 1
    │   └── DatasetError          a dataset returned something else than it should
    ├── Unsupported               a combination that cannot exist (no builder for this backend, ...): a row with a reason
    ├── Uncounted                 an operator has no formula, and `strict=error` was asked for
    ├── OverrideError             two metrics both override a third
    └── WorkerError               the machinery between head and worker broke; never the user's model

A user's mistakes are collected as ``Problem`` values and raised together, so that one run of the command shows all of them.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_ALIKE = 0.75
"""How alike keys of different groups must be for one to be taken for the other."""


class SweeprofError(Exception):
    """Base class of everything sweeprof raises on purpose."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake of the user: where it is, what was given, what would be right."""

    key: str
    """The config key, dotted, as it would be written on the command line."""
    value: object
    """What was given."""
    allowed: str
    """What would be accepted, in words."""
    nearest: str | None = None
    """The accepted value or key closest to what was given, when one is close."""

    def __str__(self) -> str:
        hint = f" Did you mean '{self.nearest}'?" if self.nearest else ""
        return f"{self.key}: {self.value!r} {self.allowed}{hint}"


def choice_problem(key: str, value: object, noun: str, known: Iterable[str]) -> Problem:
    """The problem of ``value`` not being one of ``known``; ``noun`` reads as in "is not a backend"."""
    options = sorted(known)
    article = "an" if noun[0] in "aeiou" else "a"
    return Problem(key, value, f"is not {article} {noun}. Known: {', '.join(options)}.", nearest(str(value), options))


def key_problem(key: str, value: object, known: Iterable[str]) -> Problem:
    """The problem of ``key`` not being one of the dotted keys ``known``; tells those beside it, and the nearest of all."""
    options = sorted(set(known))
    parent = key.rpartition(".")[0]
    beside = [option for option in options if option.rpartition(".")[0] == parent] or [
        o for o in options if "." not in o
    ]
    return Problem(
        key, value, f"is given to a key that does not exist. Known: {', '.join(beside)}.", _nearest_key(key, options)
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
    """The option most like ``word``, or None when none is at least so alike, of 1."""
    close = difflib.get_close_matches(word, options, n=1, cutoff=likeness)
    return close[0] if close else None


class UserError(SweeprofError, ValueError):
    """One or more problems of a config or a command."""

    def __init__(self, problems: Sequence[Problem] | str) -> None:
        self.problems: tuple[Problem, ...] = () if isinstance(problems, str) else tuple(problems)
        super().__init__(problems if isinstance(problems, str) else "\n".join(str(problem) for problem in problems))


class DatasetError(UserError):
    """A dataset returned something else than one array of samples, and their targets."""


class Unsupported(SweeprofError):
    """This combination cannot be measured, for a reason that is no one's mistake."""


class WorkerError(SweeprofError):
    """The template process or its pipe failed."""


class Uncounted(SweeprofError):
    """An operator has no formula, and the caller wants complete counts or none."""


class OverrideError(SweeprofError, RuntimeError):
    """Two metrics of one name were both registered with ``override=True``."""


class UncountedWarning(UserWarning):
    """An operator has no formula, so that counts are a lower bound."""


class MetricWarning(UserWarning):
    """A metric's function raised, or returned something else than a number, so that the metric has no value."""
