"""Constraints on the values of config keys, each with its error message."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeGuard

from sweeprof.errors import UserError
from sweeprof.paths import user_path
from sweeprof.results.record import LONGEST_S

LARGEST_BYTES = 2**50
LONGEST_JOB_S = 366 * 24 * 60 * 60
MOST_GPUS = 100_000
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(B|KiB|MiB|GiB|TiB|kB|MB|GB|TB)?")
_BYTES = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
_TIME = re.compile(r"(\d+(?:\.\d+)?)\s*(s|min|h|d)")
_SECONDS = {"s": 1, "min": 60, "h": 60 * 60, "d": 24 * 60 * 60}


def parse_size(value: object) -> int | None:
    """Return the bytes in ``value``, an integer or a text such as ``2GiB``; None if it is neither, not above 0 or too large."""
    size: float = 0
    if is_integer(value):
        size = value
    elif isinstance(value, str) and (match := _SIZE.fullmatch(value)):
        size = float(match[1]) * _BYTES[match[2] or "B"]
    return int(size) if 1 <= size <= LARGEST_BYTES else None


def parse_seconds(value: object) -> float | None:
    """Return the seconds in a text such as ``90s``, ``10min`` or ``2h``; None for any other value, and beyond a year."""
    if isinstance(value, str) and (match := _TIME.fullmatch(value)):
        seconds = float(match[1]) * _SECONDS[match[2]]
        if 0 < seconds <= LONGEST_JOB_S:
            return seconds
    return None


def parse_minutes(value: object) -> int | None:
    """Return the whole minutes in a text such as ``90min``, ``2h`` or ``1d``; None for any other value, and beyond a year.

    Slurm's ``2:00:00`` and plain numbers are rejected: YAML reads ``2:00:00`` as a number of seconds.
    """
    seconds = parse_seconds(value)
    if seconds is None or seconds < 60 or str(value).endswith("s"):
        return None
    return int(seconds / 60 + 1e-9)  # 4.35h are 261 minutes


def is_gpus(value: object) -> bool:
    """True if ``value`` is a number of GPUs, or a type and a number as ``a100:1``."""
    if is_integer(value):
        return 0 <= value <= MOST_GPUS
    if isinstance(value, str) and (match := re.fullmatch(r"[\w.\-]+:(\d{1,9})", value)):
        return int(match[1]) <= MOST_GPUS
    return False


def is_integer(value: object) -> TypeGuard[int]:
    """True for a whole number; ``bool`` is a subclass of ``int``."""
    return isinstance(value, int) and not isinstance(value, bool)


# ----------------------------------------------------------------------------------------------------------------------
# Kinds of constraints


@dataclass(frozen=True, slots=True)
class Constraint:
    """The values that a key accepts."""

    accepts: Callable[[object], bool]
    message: str
    """The error message after the key and the value: "is not …"."""
    choices: tuple[str, ...] = ()
    """The accepted names, if these can be listed; the closest one is suggested for a misspelt one."""
    takes_target: bool = False
    """True if a mapping with the ``_target_`` of the user's own function or class is accepted, too."""


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, float) or is_integer(value)


def optional(constraint: Constraint) -> Constraint:
    """Accept null, too."""
    conjunction = "" if constraint.choices else "or "
    return Constraint(
        lambda value: value is None or constraint.accepts(value),
        f"{constraint.message.removesuffix('.')}, {conjunction}null.",
        constraint.choices,
    )


def integer(noun: str, most: int, least: int = 1) -> Constraint:
    """Accept integers from ``least`` to ``most``, beyond which memory or time would not suffice for any machine."""
    return Constraint(
        lambda value: is_integer(value) and least <= value <= most,
        f"is not a {noun}: a whole number from {least} to {most:,}.",
    )


def number(noun: str, unit: str, most: int, least: float = 0) -> Constraint:
    """Accept numbers from ``least`` to ``most``."""
    return Constraint(
        lambda value: _is_number(value) and least <= value <= most,  # NaN is neither
        f"is not a {noun}: {unit} from {least:g} to {most:,}.",
    )


def is_fraction(value: object) -> bool:
    """True for a number between 0 and 1."""
    return _is_number(value) and 0 < value < 1


def fraction(noun: str) -> Constraint:
    """Accept numbers between 0 and 1."""
    return Constraint(is_fraction, f"is not a {noun}: a number between 0 and 1.")


def choice(noun: str, choices: Sequence[str], or_mapping: bool = False) -> Constraint:
    """Accept some names, and with ``or_mapping`` mappings, too."""
    names = tuple(choices)
    article = "an" if noun[0] in "aeiou" else "a"
    return Constraint(
        lambda value: value in names or (or_mapping and isinstance(value, Mapping)),
        f"is not {article} {noun}. Known: {', '.join(names)}.",
        names,
        or_mapping,
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


# ----------------------------------------------------------------------------------------------------------------------
# The constraints of single keys

LARGEST_SIZE = 10_000_000
"""Of a batch, and of a side of an input."""
KEPT_NAMES = ("mlflow-artifacts", "mlflow.db", "mlruns")
"""What is below ``output`` beside sweeps; the other such names begin with a dot or with that of the database."""
LONGEST_NAME = 255
"""Bytes of the name of a folder in Linux's file systems."""


def is_folder_name(value: object) -> bool:
    """True for the name of a sweep: a folder below ``output``, where it hides nothing and replaces nothing."""
    if not isinstance(value, str) or re.fullmatch(r"\w(?:[\w.\-+ ]*[\w.\-+])?", value) is None:
        return False
    is_kept = value.casefold() in KEPT_NAMES or value.casefold().startswith("mlflow.db")
    return not is_kept and len(value.encode("utf-8", "surrogatepass")) <= LONGEST_NAME


def _is_folder(value: object) -> bool:
    if not isinstance(value, str):
        return False
    try:
        path = user_path(value)
    except UserError:
        return False
    return path.is_absolute() and (path.is_dir() or not path.exists())


def listed(value: object) -> list[object]:
    """Return a list as it is, and any other value as a list of one."""
    return value if isinstance(value, list) else [value]


def boolean_or(noun: str, choices: Sequence[str]) -> Constraint:
    """Accept true, false and some names."""
    names = tuple(choices)
    return Constraint(
        lambda value: isinstance(value, bool) or value in names,
        f"is not true, false or a {noun}. Known: {', '.join(names)}.",
        names,
    )


BOOLEAN = Constraint(lambda value: isinstance(value, bool), "is not true or false.")
DURATION = number("duration", "seconds", LONGEST_S)
NAME_OR_NULL = optional(matching("(?s).", "is not a name."))
LIST_OF_METRICS = texts("a list of metrics such as [latency/forward, quality/accuracy]")
GOALS = Constraint(
    lambda value: (
        value is None or (value not in ("", []) and all(isinstance(one, str) and one for one in listed(value)))
    ),
    "is not a metric such as throughput, a list of metrics, or null.",
)
METRICS = Constraint(lambda value: isinstance(value, list) and value != [], "is not a list of at least one metric.")
TIME = Constraint(
    lambda value: parse_seconds(value) is not None, "is not a duration of at most a year, such as 90s, 10min or 2h."
)
SIZE = Constraint(lambda value: parse_size(value) is not None, "is not a size of at most 1024 TiB, such as 2GiB.")
FOLDER = Constraint(_is_folder, "is not the full path of a folder.")
FOLDER_NAME = Constraint(
    is_folder_name,
    f"is not a name: at most {LONGEST_NAME} bytes of letters, digits, '.', '_', '-', '+' and spaces, in quotes if it looks like a "
    "number. It begins with a letter, a digit or '_', does not end with a space, and is not the name of what `output` contains "
    f"beside sweeps: {', '.join(KEPT_NAMES)}.",
)
TRACKING_URI = matching(
    # Of any other user or password parsers disagree where it ends.
    r"sqlite(\+\w+)?://|(https?|postgresql|mysql|mssql)(\+\w+)?://([\w.~!$&()*+,;=:%-]*@)?[^@]*\Z",
    "is not an address of MLflow: http://…, https://…, sqlite:///…, another database; a user and a password have letters, digits "
    "and -._~!$&()*+,;=:% only, anything else is percent-encoded, such as %40 for @.",
)
RUN_ID = matching(r"\w{1,32}\Z", "is not the id of a run of MLflow: up to 32 letters and digits, as MLflow shows it.")
JOB_TIME = Constraint(
    lambda value: parse_minutes(value) is not None, "is not a time limit of at most a year, such as 30min, 2h or 1d."
)
# Slurm would read a plain number as megabytes; sweeprof reads it as bytes.
JOB_MEMORY = Constraint(
    lambda value: (parse_size(value) or 0) >= 2**20, "is not a size from 1 MiB to 1024 TiB, such as 4GiB."
)
GPUS = Constraint(is_gpus, f"is not a number of GPUs of at most {MOST_GPUS}, such as 1 or a100:1.")
SIZES = mapping(
    f"a mapping of names to whole numbers of at most {LARGEST_SIZE:,}",
    lambda value: all(not isinstance(size, int) or abs(size) <= LARGEST_SIZE for size in value.values()),
)
THRESHOLDS = mapping("{metric: a number between 0 and 1}", lambda value: all(map(is_fraction, value.values())))
ENVIRONMENT = mapping(
    "{variable: value}",
    lambda value: all(isinstance(name, str) and re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) for name in value),
)
