"""Figures of a layer table as short texts with a chosen number of decimals, e.g. ``61.71 k``, ``429.25 KMACs``.

``report/units.py`` rounds measurements to significant digits; what is counted is exact, and is shown to so many decimals.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

from sweeprof.results.measurement import Number

MISSING = "–"

_COUNT = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BYTES = {"": 1.0, "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}
_DECIMAL_BYTES = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_SECONDS = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1.0}
_BARE = frozenset({"params", "elements", ""})
"""Units that are not written: ``61.71 k``."""


def scaled(value: Number | None, unit: str, prefix: str | None = None, precision: int = 2) -> str:
    """``value`` in base units with at most ``precision`` decimals, trailing zeros left out.

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
    name = _fitting(abs(value), prefixes, precision) if prefix is None else _named(prefix, unit, prefixes)
    number = _decimals(value / {**prefixes, **(_DECIMAL_BYTES if unit == "B" else {})}[name], precision)
    return f"{number} {_spelled(name, unit)}".rstrip()


def percent(share: float | None, precision: int = 3) -> str:
    """A share of 1 in percent, e.g. ``82.151 %``; None is ``–``."""
    return MISSING if share is None or not math.isfinite(share) else f"{_decimals(100 * share, precision)} %"


def _fitting(size: float, prefixes: Mapping[str, float], precision: int) -> str:
    """The largest prefix that leaves at least 1 once rounded: 999,999 is ``1 M``, not ``1000 k``."""
    names = sorted(prefixes, key=lambda name: prefixes[name])
    above = dict(itertools.pairwise(names))
    name = next((name for name in reversed(names) if size >= prefixes[name]), "" if size == 0 else names[0])
    if name in above and round(size / prefixes[name], precision) >= prefixes[above[name]] / prefixes[name]:
        return above[name]
    return name


def _named(prefix: str, unit: str, prefixes: Mapping[str, float]) -> str:
    known = {**prefixes, **(_DECIMAL_BYTES if unit == "B" else {})}
    name = {"K": "k", "µ": "u"}.get(prefix, prefix)
    if name not in known:
        raise ValueError(f"{prefix!r} is no prefix of {unit or 'a count'!r}; known: {', '.join(map(repr, known))}")
    return name


def _spelled(prefix: str, unit: str) -> str:
    if unit in _BARE:
        return prefix
    # KMACs and KFLOPs are what the profilers of this field print; kB and k are SI.
    plural = {"MAC": "MACs", "FLOP": "FLOPs", "op": "ops"}.get(unit, unit)
    return ("K" if prefix == "k" and unit not in ("B", "s") else prefix) + plural


def _decimals(number: float, precision: int) -> str:
    text = f"{number:.{precision}f}"
    if number and not float(text):
        return f"{number:.{max(1, precision)}g}"
    return text.rstrip("0").rstrip(".") if "." in text else text
