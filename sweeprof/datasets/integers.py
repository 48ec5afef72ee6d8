"""Bounds of the whole numbers among the arguments of datasets, beyond which memory or time would not suffice for any machine."""

from __future__ import annotations

from collections.abc import Mapping

from sweeprof.errors import Problem

BOUNDS = {
    "cache_limit": ("number of bytes", 0, 2**63 - 1),
    "image_size": ("size in pixels", 1, 100_000),
    "length": ("length", 1, 1_000_000_000),
    "limit": ("number of samples", 1, 1_000_000_000),
    "max_length": ("number of tokens", 1, 10_000_000),
    "samples": ("number of samples", 1, 1_000_000_000),
    "sampling_rate": ("sampling rate in Hz", 1, 10_000_000),
    "seed": ("seed", 0, 2**32 - 1),
    "workers": ("number of processes", 0, 4096),
}
"""By argument: what it is, the smallest and the largest value."""


def integer_problems(arguments: Mapping[str, object]) -> list[Problem]:
    """Return the problems of arguments that are whole numbers, as the ones named here must be."""
    problems = []
    for name, (noun, least, most) in BOUNDS.items():
        value = arguments.get(name)
        if isinstance(value, int) and not least <= value <= most:
            reason = f"is not a {noun}: a whole number from {least} to {most:,}."
            problems.append(Problem(f"dataset.{name}", value, reason))
    return problems
