"""Sizes, durations and numbers of GPUs, as users write them. Pure."""

from __future__ import annotations

import re
from typing import Any

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(B|KiB|MiB|GiB|TiB|kB|MB|GB|TB)?")
_UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(min|h|d)")
_MINUTES = {"min": 1, "h": 60, "d": 24 * 60}


def parse_size(value: Any) -> int | None:
    """Bytes in ``value``, a whole number or a text such as ``2GiB``; None if it is neither or not above 0."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value if value > 0 else None
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return None
    return int(float(match[1]) * _UNITS[match[2] or "B"]) or None


def parse_minutes(value: Any) -> int | None:
    """Whole minutes in a text such as ``90min``, ``2h`` or ``1d``; None if it is none.

    Slurm's ``2:00:00`` is refused, and so is a number: YAML reads the one as the other, in seconds.
    """
    match = _DURATION.fullmatch(value) if isinstance(value, str) else None
    return (int(float(match[1]) * _MINUTES[match[2]]) or None) if match else None


def is_gpus(value: Any) -> bool:
    """Whether ``value`` is a number of GPUs, or a type and a number as ``a100:1``."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value >= 0
    return isinstance(value, str) and re.fullmatch(r"[\w.\-]+:\d+", value) is not None
