"""What the passes saw of one combination, and every picture that there is of it."""

from __future__ import annotations

from dataclasses import dataclass

from sweeprof.report.figure import Picture
from sweeprof.report.pictures.layers import macs_icicle, time_by_depth, time_icicle, timed_channels
from sweeprof.report.pictures.memory import memory_over_time
from sweeprof.report.pictures.operators import top_operators
from sweeprof.report.pictures.roofline import roofline
from sweeprof.results.allocations import Allocations
from sweeprof.results.layers import LayerTable, Training
from sweeprof.results.operators import Operators
from sweeprof.results.peaks import Peaks


@dataclass(frozen=True, slots=True)
class Observed:
    """Results of the passes; None where a pass was not run or failed."""

    layers: LayerTable | None = None
    """With times where they were measured."""
    operators: Operators | None = None
    allocations: Allocations | None = None
    peaks: Peaks | None = None
    training: Training | None = None
    files: tuple[str, ...] = ()
    """Names of the files that the passes left."""

    @property
    def is_detailed(self) -> bool:
        """Whether there is more than shapes tell."""
        return bool(self.files or self.operators or self.allocations or (self.layers and timed_channels(self.layers)))

    @property
    def estimate_bytes(self) -> int | None:
        """The peak of live tensors as the analysis has it, of the mode in which the allocations were seen."""
        is_training = self.allocations is not None and self.allocations.mode == "training"
        counted = self.training if is_training else self.layers
        return None if counted is None or counted.liveness is None else counted.liveness.peak_bytes


def pictures(seen: Observed) -> list[Picture]:
    """Time by depth, icicles of time and MACs, roofline, memory over time, operators: those that can be drawn.

    There is none of what shapes alone tell where nothing was measured.
    """
    if not seen.is_detailed:
        return []
    found: list[Picture | None] = []
    if seen.layers is not None:
        channels = timed_channels(seen.layers)
        found += [time_by_depth(seen.layers, (channel,)) for channel in channels]
        found += [time_icicle(seen.layers, channels), macs_icicle(seen.layers)]
        if seen.peaks is not None:
            found.append(roofline(seen.layers, seen.peaks))
    if seen.allocations is not None:
        found.append(memory_over_time(seen.allocations, seen.estimate_bytes))
    if seen.operators is not None:
        found.append(top_operators(seen.operators))
    return [picture for picture in found if picture is not None]
