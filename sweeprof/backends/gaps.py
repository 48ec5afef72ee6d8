"""What a backend cannot do, and why: declared in its own file, shown in the sweep's table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from sweeprof.errors import Unsupported

Kind = Literal["not implemented", "not possible upstream", "makes no sense"]

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
    """Why a backend lacks a capability."""

    kind: Kind
    reason: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.reason}"


def gap_of(backend: object, capability: type) -> str:
    """Why ``backend`` lacks ``capability``, for the table."""
    gaps: Mapping[str, Gap] = getattr(backend, "gaps", {})
    name = capability.__name__
    return str(gaps[name]) if name in gaps else f"this backend cannot {LACKS[name]}"


def lacking(backend: object, capability: type) -> Unsupported:
    """The error of a pass that needs the capability."""
    return Unsupported(gap_of(backend, capability))
