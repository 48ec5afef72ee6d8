"""The difference between the outputs of two combinations that should compute the same, as one model on two frameworks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sweeprof.passes.quality import Quality
from sweeprof.results.record import Json, Record, Warning

INEXACT = {"quantization": ("dynamic", "int8"), "precision": ("int8-dynamic", "bf16", "fp16")}
"""Settings of a backend that change its outputs on purpose; the accuracy shows their effect."""
SAME = ("model", "dataset", "seed")
"""Keys that two combinations must have in common for their outputs to be expected to agree."""


def tolerance_of(own: Json, base: Json, tolerance: float | None) -> float | None:
    """Return how far the outputs of two configs may differ, relative to the largest; None if they are not expected to agree.

    Only the same model, data and seed on different frameworks are. A backend's own ``tolerance`` goes before ``tolerance``.
    """
    if any(own.get(key) != base.get(key) for key in SAME):
        return None
    if own["backend"].get("framework") == base["backend"].get("framework"):
        return None
    if any(config["backend"].get(key) in values for config in (own, base) for key, values in INEXACT.items()):
        return None
    given = [config["backend"].get("tolerance", tolerance) for config in (own, base)]
    return None if None in given else max(given)


def disagreement(own: Sequence[Record], base: Sequence[Record], tolerance: float | None) -> str | None:
    """Return how the outputs differ by more than ``tolerance``; None if they do not, or are not known."""
    sides = [_quality(records) for records in (own, base)]
    if tolerance is None or sides[0] is None or sides[1] is None:
        return None
    ours, theirs = (side.outputs.astype(np.float64) for side in sides if side is not None)
    if ours.ndim > 2 and ours.shape == np.moveaxis(theirs, 1, -1).shape:
        theirs = np.moveaxis(theirs, 1, -1)  # frameworks differ in where images have their channels
    elif ours.ndim > 2 and theirs.shape == np.moveaxis(ours, 1, -1).shape:
        ours = np.moveaxis(ours, 1, -1)
    if ours.shape != theirs.shape:
        return f"outputs differ: their shape is {ours.shape}, the baseline's {theirs.shape}"
    if not np.isfinite(ours).all() or not np.isfinite(theirs).all():
        return None if np.array_equal(ours, theirs, equal_nan=True) else "outputs differ: not all of them are finite"
    apart, largest = float(np.abs(ours - theirs).max(initial=0)), float(np.abs(theirs).max(initial=0))
    if apart <= tolerance * largest:
        return None
    return (
        f"outputs differ by up to {apart:.3g}, and the baseline's are no larger than {largest:.3g}:"
        f" more than compare.tolerance={tolerance:g} of that"
    )


def unjudged(own: Sequence[Record], base: Sequence[Record], tolerance: float | None) -> Warning | None:
    """Return the warning for two sides whose outputs should agree and are not both known."""
    missing = next((who for who, side in (("its", own), ("the baseline's", base)) if _quality(side) is None), None)
    if tolerance is None or missing is None:
        return None
    return Warning(
        "outputs_not_compared",
        f"{missing} outputs are unknown: it is not certain that both sides compute the same",
        "see the quality pass of that side, or set compare.tolerance=null",
    )


def _quality(records: Sequence[Record]) -> Quality | None:
    found: Mapping[str, Any] | None = next(
        (r.observations for r in records if r.pass_name == "quality" and r.status == "ok"), None
    )
    return None if found is None else Quality.from_dict(found)
