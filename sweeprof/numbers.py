"""Numbers with their units as text: measured values to significant digits, exact counts to decimals, fixed units of charts."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

MISSING = "–"
"""Stands where there is no value: never a zero, never NaN."""

_SI = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
_SUFFIXES = {
    "MAC": "MAC",
    "FLOP": "FLOP",
    "FLOP/s": "FLOP/s",
    "B/s": "B/s",
    "params": "",
    **dict.fromkeys(("samples/s", "tokens/s", "images/s", "pixels/s", "frames/s"), "/s"),
}
"""Of counts and rates, what comes after the prefix."""
_PREFIXES: dict[str, tuple[tuple[float, str], ...]] = {
    "s": ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")),
    "J": ((1e3, "kJ"), (1.0, "J"), (1e-3, "mJ"), (1e-6, "µJ"), (1e-9, "nJ")),
    "B": ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B")),
    **{unit: tuple((factor, prefix + suffix) for factor, prefix in _SI) for unit, suffix in _SUFFIXES.items()},
}
"""By base unit: factors and names of the units that a value is shown in, the largest first."""

MOST_EXACT = 10**15
"""Integers below this are written in full; the scripts of the pages cannot hold larger ones exactly."""

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
    """Return the unit in which :func:`rounded` reads values of the metric: shares read better in percent than as ratios."""
    if unit == "ratio" and (metric in ("rate/mfu", "rate/mfu_train") or metric.endswith("_share")):
        return "share"
    return unit


def rounded(value: float, unit: str) -> str:
    """Return a measured value with three significant digits and the prefix that suits it, e.g. ``1.23 ms``, ``61.7 k``."""
    if unit == "share":
        return f"{significant(100.0 * value)} %"
    if unit == "ratio":
        return significant(value, 4)
    if unit not in _PREFIXES:
        return significant(value)
    # A value that would round up to 1000 takes the next prefix: 999.9 µs is 1 ms.
    size, prefixes = abs(value) * 1.0005, _PREFIXES[unit]
    factor, name = next((prefix for prefix in prefixes if size >= prefix[0]), prefixes[-1])
    if factor != 1:  # 8 bytes are exact
        value /= factor
    return f"{significant(value)} {name}".rstrip()


def column_scale(values: Sequence[float], unit: str) -> tuple[float, str]:
    """Return one scale for all values of a column, that of their median: the factor to divide by, and what the header calls it."""
    if unit == "share":
        return 0.01, "%"
    if unit in ("ratio", "abs"):
        return 1.0, ""
    if unit not in _PREFIXES:
        return 1.0, unit
    middle = statistics.median(map(abs, values)) if values else 1.0
    return next((prefix for prefix in _PREFIXES[unit] if middle >= prefix[0]), _PREFIXES[unit][-1])


def significant(value: float, digits: int = 3) -> str:
    """Return ``value`` rounded to significant digits, trailing zeros kept; with an exponent only if it would not be readable.

    An integer is exact and is not rounded: 3744 bits are ``3,744``.
    """
    if math.isnan(value):
        return "not a number"
    if math.isinf(value):
        return "−∞" if value < 0 else "∞"
    if isinstance(value, int) and abs(value) < MOST_EXACT:
        return f"{value:,}"
    nearest = float(f"{value:.{digits - 1}e}")
    if nearest == 0:
        return "0"
    exponent = math.floor(math.log10(abs(nearest)))
    if -4 <= exponent < 6:
        return f"{nearest:,.{max(0, digits - 1 - exponent)}f}"
    return f"{nearest:.1e}"


def ratio_number(value: float) -> str:
    """Return a ratio as a factor: two decimals, or two significant digits below 0.1 and three from 100 on."""
    if 0.095 <= value < 99.995:
        return f"{value:.2f}"
    return significant(value, 2 if value < 1 else 3)


def fixed_key(name: str, unit: str) -> str:
    """Return the key under which a metric is tracked, its fixed unit included: ``latency/forward`` → ``latency/forward_ms``."""
    if unit not in _FIXED:
        return name
    if unit == "B":
        name = name.removesuffix("_bytes")
    return f"{name}_{_FIXED[unit][0]}"


def fixed_factor(unit: str) -> float:
    """Return the factor from the base unit to the fixed unit."""
    return _FIXED.get(unit, ("", 1.0))[1]


def fixed_value(value: float, unit: str, digits: int = 5) -> float:
    """Return ``value`` in the unit of :func:`fixed_key`, rounded to significant digits; integers are not, apart from bytes."""
    if isinstance(value, int) and unit != "B":
        digits = max(digits, 15)
    return float(f"{value * fixed_factor(unit):.{digits - 1}e}")


# Counts of a layer table are exact: they are shown with a chosen number of decimals.

_COUNT = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BYTES = {"": 1.0, "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}
_DECIMAL_BYTES = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_SECONDS = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1.0}


def scaled(value: float | None, unit: str, prefix: str | None = None, precision: int = 2) -> str:
    """Return ``value`` in base units with at most ``precision`` decimals, trailing zeros left out, e.g. ``61.71 k``, ``4.5 KMACs``.

    Args:
        value: None, and what is not finite, is ``–``.
        unit: ``params`` and ``elements`` are not written, ``MACs``, ``FLOPs`` and ``ops`` (also as a metric's unit, ``MAC``) and
            any other are, with SI prefixes (1000); ``B`` has KiB, MiB … (1024); ``s`` has ns, us, ms, s.
        prefix: ``"M"`` forces it, ``""`` forces none; for bytes ``"Mi"`` is MiB (1024²) and ``"M"`` is MB (1000²). By
            default the largest that leaves at least 1.
        precision: decimals. A value that is too small for them keeps as many significant digits instead of reading 0.

    Raises:
        ValueError: there is no such prefix for the unit.
    """
    if value is None or not math.isfinite(value):
        return MISSING
    prefixes = {"B": _BYTES, "s": _SECONDS}.get(unit, _COUNT)
    if prefix is None:
        # The largest prefix that leaves at least 1 once rounded: 999,999 is `1 M`, not `1000 k`.
        name = "" if value == 0 else next(iter(prefixes))
        for other, factor in prefixes.items():
            if abs(value) >= factor or round(abs(value) / prefixes[name], precision) >= factor / prefixes[name]:
                name = other
    else:
        if unit == "B":
            prefixes = {**prefixes, **_DECIMAL_BYTES}
        name = {"K": "k", "µ": "u"}.get(prefix, prefix)
        if name not in prefixes:
            known = ", ".join(map(repr, prefixes))
            raise ValueError(f"{prefix!r} is no prefix of {unit or 'a count'!r}; known: {known}")
    number = _decimals(value / prefixes[name], precision)
    if unit in ("params", "elements", ""):
        return f"{number} {name}".rstrip()
    if name == "k" and unit not in ("B", "s"):
        name = "K"  # KMACs and KFLOPs are what the profilers of this field print; kB and k are SI
    return f"{number} {name}{_PLURALS.get(unit, unit)}"


_PLURALS = {"MAC": "MACs", "FLOP": "FLOPs", "op": "ops"}


def percent(share: float | None, precision: int = 3) -> str:
    """Return a share of 1 in percent, e.g. ``82.151 %``; None is ``–``."""
    if share is None or not math.isfinite(share):
        return MISSING
    return f"{_decimals(100 * share, precision)} %"


def _decimals(number: float, precision: int) -> str:
    text = f"{number:.{precision}f}"
    if number and not float(text):
        return f"{number:.{max(1, precision)}g}"
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return text
