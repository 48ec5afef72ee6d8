"""Numbers with their units as text: one style for all that is printed, and the fixed units of charts."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from sweeprof.errors import UserError, choice_problem

MISSING = "–"
"""Stands where there is no value: never a zero, never NaN."""

_SI = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
_SUFFIXES = {
    "MAC": "MAC",
    "FLOP": "FLOP",
    "FLOP/s": "FLOP/s",
    "B/s": "B/s",
    "op": "op",
    "params": "",
    "elements": "",
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
_WITHOUT_PREFIX = ("share", "ratio")

LEAST_PERCENT = 0.001
"""A change of less is not shown as a number."""
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


def rounded(value: float, unit: str, digits: int = 3) -> str:
    """Return a value with three significant digits and the prefix that suits it, e.g. ``1.23 ms``, ``61.7 k``, ``12.3%``."""
    if unit == "share":
        return f"{significant(100.0 * value, digits)}%"
    if unit == "ratio":
        return significant(value, digits + 1)
    if unit not in _PREFIXES:
        return significant(value, digits)
    # A value that would round up to 1000 takes the next prefix: 999.9 µs is 1 ms.
    size, prefixes = abs(value) * (1 + 0.5 * 10**-digits), _PREFIXES[unit]
    factor, name = next((prefix for prefix in prefixes if size >= prefix[0]), prefixes[-1])
    if factor != 1:  # 8 bytes are exact
        value /= factor
    return f"{significant(value, digits)} {name}".rstrip()


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


_LETTERS = {"K": "k", "u": "µ"}
"""How else prefixes are written."""


def scaled(value: float | None, unit: str, prefix: str | None = None, digits: int = 3) -> str:
    """Return a value as sweeprof prints it, e.g. ``61.7 k``, ``1.81 GMAC``, ``2.10 ms``; ``–`` for None and what is not finite.

    Args:
        value: in base units.
        unit: ``params``, ``elements``, ``MAC``, ``FLOP``, ``op``, ``FLOP/s``, ``B``, ``B/s``, ``s``, ``J``, ``ratio``,
            ``share`` (of 1, printed in percent), or a rate such as ``samples/s``.
        prefix: ``"M"`` forces it, ``""`` forces none; bytes have ``"Ki"``, ``"Mi"`` … (1024). None: the one that suits the value.
        digits: significant digits; whole numbers without a prefix have all of theirs.

    Raises:
        UserError: there is no such unit, or the unit has no such prefix.
    """
    if unit not in _PREFIXES and unit not in _WITHOUT_PREFIX:
        raise UserError([choice_problem("unit", unit, "known unit", [*_PREFIXES, *_WITHOUT_PREFIX])])
    if value is None or not math.isfinite(value):
        return MISSING
    if prefix is None:
        return rounded(value, unit, digits)
    prefix = _LETTERS.get(prefix, prefix)
    # Base units have no prefix, so that the rest of their name is what all names end with.
    names = _PREFIXES.get(unit, ())
    base = next((name for factor, name in names if factor == 1), "")
    for factor, name in names:
        if name.removesuffix(base) == prefix:
            return f"{significant(value if factor == 1 else value / factor, digits)} {name}".rstrip()
    known = [name.removesuffix(base) for factor, name in names if factor != 1]
    raise UserError([choice_problem("prefix", prefix, f"prefix of {unit}", known)])


def percent(share: float) -> str:
    """Return a share of 1 in percent with up to three decimals, e.g. ``5%``, ``0.5%``."""
    text = f"{100 * share:.3f}"
    if share and not float(text):
        return f"{100 * share:.3g}%"
    return f"{text.rstrip('0').rstrip('.')}%"


def rounded_percent(share: float) -> str:
    """Return a positive share of 1 in percent with two significant digits, all of them from 100% on: ``12%``, ``0.016%``."""
    number = 100 * share
    if number < LEAST_PERCENT:
        return f"less than {LEAST_PERCENT}%"
    return f"{number:.2g}%" if number < 99.5 else f"{number:,.0f}%"
