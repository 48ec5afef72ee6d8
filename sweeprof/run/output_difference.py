"""The difference between the outputs of two combinations that should compute the same, as one model on two frameworks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sweeprof.passes.quality import THE_BASELINES, Quality, incomparable, pairs_of_outputs
from sweeprof.plan.comparing import DEFAULT_BASELINE
from sweeprof.plan.plan import Plan
from sweeprof.results.comparison import find_baselines
from sweeprof.results.record import Json, Record, Warning

INEXACT = {"quantization": ("dynamic", "int8"), "precision": ("int8", "bf16", "fp16")}
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


@dataclass(frozen=True, slots=True)
class Reference:
    """The combination whose outputs those of another one should be."""

    id: str
    tolerance: float
    whose: str
    """``the baseline's``, or ``torch's``."""


def output_references(plan: Plan, bases: Mapping[str, str | None]) -> dict[str, Reference]:
    """Return the references of the combinations that have one, by their ids.

    It is the baseline if that is the same model on another framework. Where it is not, as where a student is compared with its
    teacher on each backend, it is the same combination on one backend: the baseline's, PyTorch, or the first of the sweep.

    Args:
        bases: by combination, the baseline.
    """
    configs = {c.id: c.config for c in plan.combinations}
    axes = {c.id: c.axes for c in plan.combinations}
    backends = [c.axes["backend"] for c in plan.combinations if "backend" in c.axes and c.unsupported is None]
    default = DEFAULT_BASELINE["backend"]
    backend = plan.baseline.get("backend", default if default in backends else next(iter(backends), None))
    on_backend = find_baselines({"backend": backend}, axes)
    found = {}
    for id, config in configs.items():
        for other, whose in ((bases[id], THE_BASELINES), (on_backend[id], f"{backend}'s")):
            if other is None or other == id:
                continue
            tolerance = tolerance_of(config, configs[other], plan.compare.tolerance)
            if tolerance is not None:
                found[id] = Reference(other, tolerance, whose)
                break
    return found


def disagreement(
    own: Sequence[Record], base: Sequence[Record], tolerance: float | None, whose: str = THE_BASELINES
) -> str | None:
    """Return how the outputs differ by more than ``tolerance``; None if they do not, or are not known.

    Args:
        whose: what the outputs of ``base`` are called.
    """
    sides = [_quality(records) for records in (own, base)]
    if tolerance is None or sides[0] is None or sides[1] is None:
        return None
    ours, theirs = sides[0], sides[1]
    if ours.is_varying or theirs.is_varying:  # :func:`unjudged` says so
        return None
    problem = incomparable(ours, theirs, whose)
    if problem is not None:
        return f"outputs differ: {problem}"
    worst: tuple[float, str] | None = None
    for name, own_output, base_output in pairs_of_outputs(ours, theirs):
        reason = _difference(name, own_output.astype(np.float64), base_output.astype(np.float64), tolerance, whose)
        if reason is not None and (worst is None or reason[0] > worst[0]):
            worst = reason
    return None if worst is None else worst[1]


def _difference(
    name: str, own: npt.NDArray[np.float64], base: npt.NDArray[np.float64], tolerance: float, whose: str
) -> tuple[float, str] | None:
    """Return the difference of an output relative to its largest value, and a sentence about it; None within the tolerance."""
    subject = f"outputs {name!r}" if name else "outputs"
    if not np.isfinite(own).all() or not np.isfinite(base).all():
        is_equal = np.array_equal(own, base, equal_nan=True)
        return None if is_equal else (math.inf, f"{subject} differ: not all of them are finite")
    apart, largest = float(np.abs(own - base).max(initial=0)), float(np.abs(base).max(initial=0))
    if apart <= tolerance * largest:
        return None
    share = apart / largest if largest else math.inf
    return share, (
        f"{subject} differ by up to {apart:.3g}, and {whose} are no larger than {largest:.3g}:"
        f" more than compare.tolerance={tolerance:g} of that (random weights differ between frameworks: compare.tolerance=null)"
    )


def unjudged(
    own: Sequence[Record], base: Sequence[Record], tolerance: float | None, whose: str = THE_BASELINES
) -> Warning | None:
    """Return the warning for two sides whose outputs should agree and are not both known; ``whose``: as of :func:`disagreement`."""
    if tolerance is None:
        return None
    missing = next((who for who, side in (("its", own), (whose, base)) if _quality(side) is None), None)
    if missing is None:
        ours, theirs = _quality(own), _quality(base)
        if ours is None or theirs is None or not (ours.is_varying or theirs.is_varying):
            return None
        return Warning(
            "outputs_not_compared",
            f"outputs cannot be compared: {incomparable(ours, theirs, whose)}; it is not certain that both sides compute the same",
            "pad all batches to one length: dataset.collate.length=…, or Split(…, collate=Pad(length=…))",
        )
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
