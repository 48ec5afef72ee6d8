"""Gaps: what a backend cannot do and why. Each backend declares them in its own file, and the sweep's table shows them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from sweeprof.errors import Unsupported

GapKind = Literal["not implemented", "not possible upstream", "makes no sense"]

LACKS = {
    "Analyzes": "count layers",
    "AnalyzesTraining": "count a training step",
    "CountsItself": "be asked for a count of the framework's own",
    "HasArtifact": "tell the size of the file that its run-time loads",
    "Borrows": "profile a model in a caller's hands",
    "MeasuresMemory": "measure memory",
    "Trains": "train",
    "Watches": "watch a model in a loop",
    "TimesLayers": "time layers",
    "TracesOperators": "trace operators",
    "TracksAllocations": "follow allocations",
    "MeasuresPeaks": "benchmark the machine",
    "Calibrates": "run a calibration kernel",
    "ProfilesLines": "watch source lines",
}
"""By the name of the capability what a backend without it cannot do."""


@dataclass(frozen=True, slots=True)
class Gap:
    """The kind and reason of a missing capability."""

    kind: GapKind
    reason: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.reason}"


def gap_of(backend: object, capability: type) -> str:
    """Return the reason why ``backend`` lacks ``capability``, for the table."""
    gaps: Mapping[str, Gap] = getattr(backend, "gaps", {})
    name = capability.__name__
    if name in gaps:
        return str(gaps[name])
    return f"this backend cannot {LACKS[name]}" if name in LACKS else f"this backend does not have {name}"


def lacking(backend: object, capability: type) -> Unsupported:
    """The error of a pass that needs the capability."""
    return Unsupported(gap_of(backend, capability))
