"""Constraints on the values of config keys, each with its error message."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

from sweeprof.config.units import is_gpus, parse_minutes, parse_seconds, parse_size


@dataclass(frozen=True, slots=True)
class Constraint:
    """The values that a key accepts."""

    accepts: Callable[[object], bool]
    message: str
    """The error message after the key and the value: "is not …"."""
    choices: tuple[str, ...] = ()
    """The accepted names, if these can be listed; the closest one is suggested for a misspelt one."""


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def optional(constraint: Constraint) -> Constraint:
    """Accept null, too."""
    return Constraint(
        lambda value: value is None or constraint.accepts(value),
        f"{constraint.message.removesuffix('.')}, {'' if constraint.choices else 'or '}null.",
        constraint.choices,
    )


def integer(noun: str, least: int = 1) -> Constraint:
    """Accept integers of at least ``least``."""
    return Constraint(
        lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= least,
        f"is not a {noun}: a whole number of at least {least}.",
    )


def number(message: str, least: float = 0) -> Constraint:
    """Accept finite numbers of at least ``least``."""
    return Constraint(lambda value: _is_number(value) and value >= least, message)


def is_fraction(value: object) -> bool:
    """True for a number between 0 and 1."""
    return _is_number(value) and 0 < value < 1


def fraction(noun: str) -> Constraint:
    """Accept numbers between 0 and 1."""
    return Constraint(is_fraction, f"is not a {noun}: a number between 0 and 1.")


def choice(noun: str, choices: Sequence[str], or_mapping: bool = False, earlier: Sequence[str] = ()) -> Constraint:
    """Accept some names, those of ``earlier`` releases, and with ``or_mapping`` mappings, too."""
    names = tuple(choices)
    article = "an" if noun[0] in "aeiou" else "a"
    return Constraint(
        lambda value: value in (*names, *earlier) or (or_mapping and isinstance(value, Mapping)),
        f"is not {article} {noun}. Known: {', '.join(names)}.",
        names,
    )


def list_of_choices(noun: str, choices: Sequence[str]) -> Constraint:
    """Accept lists of some names."""
    return Constraint(
        lambda value: isinstance(value, list) and all(item in choices for item in value),
        f"is not a list of {noun}. Known: {', '.join(choices)}.",
    )


def texts(message: str) -> Constraint:
    """Accept lists of texts."""
    return Constraint(
        lambda value: isinstance(value, list) and all(isinstance(item, str) for item in value), f"is not {message}."
    )


def matching(pattern: str, message: str) -> Constraint:
    """Accept texts that begin with a regular expression."""
    return Constraint(lambda value: isinstance(value, str) and re.match(pattern, value) is not None, message)


def mapping(message: str, accepts: Callable[[Mapping[object, object]], bool] | None = None) -> Constraint:
    """Accept mappings, of which ``accepts`` is true."""
    return Constraint(
        lambda value: isinstance(value, Mapping) and (accepts is None or accepts(value)), f"is not {message}."
    )


def is_folder_name(value: object) -> bool:
    """True for the name of a sweep, which is that of a folder."""
    return isinstance(value, str) and re.fullmatch(r"[\w.\-+ ]+", value) is not None and value.strip(". ") != ""


def _is_folder(value: object) -> bool:
    return isinstance(value, str) and value.startswith("/") and (Path(value).is_dir() or not Path(value).exists())


def boolean_or(noun: str, choices: Sequence[str]) -> Constraint:
    """Accept true, false and some names."""
    names = tuple(choices)
    return Constraint(
        lambda value: isinstance(value, bool) or value in names,
        f"is not true, false or a {noun}. Known: {', '.join(names)}.",
        names,
    )


BOOLEAN = Constraint(lambda value: isinstance(value, bool), "is not true or false.")
DURATION = number("is not a duration: seconds of at least 0.")
NAME_OR_NULL = optional(matching("(?s).", "is not a name."))
LIST_OF_METRICS = texts("a list of metrics such as [latency/forward, quality/accuracy]")
GOALS = Constraint(
    lambda value: (
        value is None
        or (isinstance(value, str) and value != "")
        or (isinstance(value, list) and value != [] and all(isinstance(one, str) and one for one in value))
    ),
    "is not a metric such as throughput, a list of metrics, or null.",
)
METRICS = Constraint(lambda value: isinstance(value, list) and value != [], "is not a list of at least one metric.")
TIME = Constraint(lambda value: parse_seconds(value) is not None, "is not a duration, such as 90s, 10min or 2h.")
SIZE = Constraint(lambda value: parse_size(value) is not None, "is not a size, such as 2GiB.")
FOLDER = Constraint(_is_folder, "is not the full path of a folder.")
FOLDER_NAME = Constraint(
    is_folder_name,
    "is not a name: letters, digits, '.', '_', '-', '+' and spaces, in quotes if it looks like a number.",
)
TRACKING_URI = matching(
    # Of any other user or password parsers disagree where it ends.
    r"sqlite(\+\w+)?://|(https?|postgresql|mysql|mssql)(\+\w+)?://([\w.~!$&()*+,;=:%-]*@)?[^@]*\Z",
    "is not an address of MLflow: http://…, https://…, sqlite:///…, another database; a user and a password have letters, digits "
    "and -._~!$&()*+,;=:% only, anything else is percent-encoded, such as %40 for @.",
)
JOB_TIME = Constraint(lambda value: parse_minutes(value) is not None, "is not a time limit, such as 30min, 2h or 1d.")
# Slurm would read a plain number as megabytes; sweeprof reads it as bytes.
JOB_MEMORY = Constraint(
    lambda value: (parse_size(value) or 0) >= 2**20, "is not a size of at least 1 MiB, such as 4GiB."
)
GPUS = Constraint(is_gpus, "is not a number of GPUs, such as 1 or a100:1.")
THRESHOLDS = mapping("{metric: a number between 0 and 1}", lambda value: all(map(is_fraction, value.values())))
ENVIRONMENT = mapping(
    "{variable: value}",
    lambda value: all(isinstance(name, str) and re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) for name in value),
)
