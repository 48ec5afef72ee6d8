"""Base units of measurements into what people read; counts of a layer table are scaled by scaled.py."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from sweeprof.results.measurement import Number

_SI = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
_SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_ENERGY = ((1e3, "kJ"), (1.0, "J"), (1e-3, "mJ"), (1e-6, "µJ"), (1e-9, "nJ"))
_BYTES = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B"))

MOST_EXACT = 10**15
"""Integers below this are written in full; the scripts of the pages cannot hold larger ones exactly."""

_SUFFIXES = {
    "MAC": "MAC",
    "FLOP": "FLOP",
    "FLOP/s": "FLOP/s",
    "B/s": "B/s",
    "params": "",
    **dict.fromkeys(("samples/s", "tokens/s", "images/s", "pixels/s", "frames/s"), "/s"),
}
"""Of counts and rates, what comes after the prefix."""

_FIXED: dict[str, tuple[str, float]] = {
    "s": ("ms", 1e3),
    "B": ("mib", 1 / 2**20),
    "J": ("mj", 1e3),
    "MAC": ("m", 1e-6),
    "FLOP": ("m", 1e-6),
    "FLOP/s": ("g", 1e-9),
    "params": ("k", 1e-3),
}
"""Unit → suffix of the key, factor: one scale for a metric over all its runs, so that a chart's axis means one thing."""

FIXED_NAMES = {
    "s": "ms",
    "B": "MiB",
    "J": "mJ",
    "MAC": "MMAC",
    "FLOP": "MFLOP",
    "FLOP/s": "GFLOP/s",
    "params": "k params",
    "ratio": "",
    "abs": "",
}
"""What a chart calls the fixed unit of a base unit; any other unit is its own."""


def text_unit(metric: str, unit: str) -> str:
    """The unit that :func:`scaled` reads values of the metric in: shares of a whole read better in percent than as ratios."""
    is_share = metric in ("rate/mfu", "rate/mfu_train") or metric.endswith("_share")
    return "share" if unit == "ratio" and is_share else unit


def scaled(value: Number, unit: str) -> str:
    """``value`` with three significant digits and the prefix that suits it, e.g. ``1.23 ms``, ``61.7 k``, ``0.989``."""
    if unit == "s":
        return _with_prefix(value, _SECONDS)
    if unit == "B":
        return _with_prefix(value, _BYTES)
    if unit == "J":
        return _with_prefix(value, _ENERGY)
    if unit in _SUFFIXES:
        suffix = _SUFFIXES[unit]
        return _with_prefix(value, tuple((factor, prefix + suffix) for factor, prefix in _SI))
    if unit == "share":
        return f"{significant(100.0 * value)} %"
    return significant(value, 4 if unit == "ratio" else 3)


def column_scale(values: Sequence[Number], unit: str) -> tuple[float, str]:
    """One scale for all values of a column, that of their median: the factor to divide by, and what the header calls it."""
    if unit == "share":
        return 0.01, "%"
    if unit in _SUFFIXES:
        prefixes = tuple((factor, prefix + _SUFFIXES[unit]) for factor, prefix in _SI)
    elif unit in ("s", "B", "J"):
        scales = {"s": _SECONDS, "B": tuple((float(factor), name) for factor, name in _BYTES), "J": _ENERGY}
        prefixes = scales[unit]
    else:
        return 1.0, "" if unit in ("ratio", "abs") else unit
    middle = statistics.median(map(abs, values)) if values else 1.0
    return next(((factor, name) for factor, name in prefixes if middle >= factor), prefixes[-1])


def _with_prefix(value: Number, prefixes: tuple[tuple[float, str], ...]) -> str:
    # A value that would round up to 1000 takes the next prefix: 999.9 µs is 1 ms.
    factor, name = next(((f, n) for f, n in prefixes if abs(value) * 1.0005 >= f), prefixes[-1])
    return f"{significant(value if factor == 1 else value / factor)} {name}".rstrip()  # 8 bytes are exact


def significant(value: Number, digits: int = 3) -> str:
    """``value`` rounded to significant digits, trailing zeros kept; with an exponent only where it would not stay readable.

    An integer is exact and is not rounded: 3744 bits are ``3,744``.
    """
    if not math.isfinite(value):
        return "not a number" if math.isnan(value) else "−∞" if value < 0 else "∞"
    if isinstance(value, int) and abs(value) < MOST_EXACT:
        return f"{value:,}"
    rounded = float(f"{value:.{digits - 1}e}")
    if rounded == 0:
        return "0"
    exponent = math.floor(math.log10(abs(rounded)))
    if -4 <= exponent < 6:
        return f"{rounded:,.{max(0, digits - 1 - exponent)}f}"
    return f"{rounded:.1e}"


def fixed_key(name: str, unit: str) -> str:
    """The key under which a metric is tracked, its fixed unit included: ``latency/forward`` → ``latency/forward_ms``."""
    suffix = _FIXED.get(unit)
    stem = name.removesuffix("_bytes") if unit == "B" else name
    return f"{stem}_{suffix[0]}" if suffix else name


def fixed_factor(unit: str) -> float:
    """Return the factor from the base unit to the fixed unit."""
    return _FIXED.get(unit, ("", 1.0))[1]


def fixed_value(value: Number, unit: str, digits: int = 5) -> float:
    """``value`` in the fixed unit of :func:`fixed_key`, rounded to significant digits; integers are not, but for bytes."""
    if isinstance(value, int) and unit != "B":
        digits = max(digits, 15)
    return float(f"{value * fixed_factor(unit):.{digits - 1}e}")
