"""Sizes, times and numbers of GPUs as a user writes them: ``2GiB``, ``90min``, ``a100:1``."""

from __future__ import annotations

import re

LARGEST_BYTES = 2**50
LONGEST_S = 366 * 24 * 60 * 60
MOST_GPUS = 100_000
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(B|KiB|MiB|GiB|TiB|kB|MB|GB|TB)?")
_BYTES = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(min|h|d)")
_MINUTES = {"min": 1, "h": 60, "d": 24 * 60}
_TIME = re.compile(r"(\d+(?:\.\d+)?)\s*(s|min|h|d)")
_SECONDS = {"s": 1, **{unit: 60 * minutes for unit, minutes in _MINUTES.items()}}


def parse_size(value: object) -> int | None:
    """Return the bytes in ``value``, an integer or a text such as ``2GiB``; None if it is neither, not above 0 or too large."""
    size: float = 0
    if isinstance(value, int) and not isinstance(value, bool):
        size = value
    elif isinstance(value, str) and (match := _SIZE.fullmatch(value)):
        size = float(match[1]) * _BYTES[match[2] or "B"]
    return int(size) if 1 <= size <= LARGEST_BYTES else None


def parse_minutes(value: object) -> int | None:
    """Return the whole minutes in a text such as ``90min``, ``2h`` or ``1d``; None for any other value, and beyond a year.

    Slurm's ``2:00:00`` and plain numbers are rejected: YAML reads ``2:00:00`` as a number of seconds.
    """
    match = _DURATION.fullmatch(value) if isinstance(value, str) else None
    minutes = float(match[1]) * _MINUTES[match[2]] if match else 0
    return int(minutes) if 1 <= minutes <= LONGEST_S / 60 else None


def parse_seconds(value: object) -> float | None:
    """Return the seconds in a text such as ``90s``, ``10min`` or ``2h``; None for any other value, and beyond a year."""
    match = _TIME.fullmatch(value) if isinstance(value, str) else None
    seconds = float(match[1]) * _SECONDS[match[2]] if match else 0
    return seconds if 0 < seconds <= LONGEST_S else None


def is_gpus(value: object) -> bool:
    """True if ``value`` is a number of GPUs, or a type and a number as ``a100:1``."""
    if isinstance(value, int) and not isinstance(value, bool):
        return 0 <= value <= MOST_GPUS
    match = re.fullmatch(r"[\w.\-]+:(\d{1,9})", value) if isinstance(value, str) else None
    return match is not None and int(match[1]) <= MOST_GPUS
