"""What passes saw, read back from records."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sweeprof.errors import Damaged
from sweeprof.profiling.live import Live
from sweeprof.profiling.memory import Memory
from sweeprof.profiling.quality import Quality
from sweeprof.profiling.timing import Timing
from sweeprof.results.allocations import Allocations
from sweeprof.results.artifact import Artifact
from sweeprof.results.layer_times import LayerTimes
from sweeprof.results.layers import LayerTable, Training
from sweeprof.results.lines import Lines
from sweeprof.results.operators import Operators
from sweeprof.results.own_counts import OwnCounts
from sweeprof.results.peaks import Peaks
from sweeprof.results.record import PassName, Record, stored_record

READERS: dict[PassName, Callable[[Mapping[str, Any]], Any]] = {
    "analysis": LayerTable.from_dict,
    "training": Training.from_dict,
    "own_counts": OwnCounts.from_dict,
    "artifact": Artifact.from_dict,
    "peaks": Peaks.from_dict,
    "timing": Timing.from_dict,
    "layer_times": LayerTimes.from_dict,
    "operators": Operators.from_dict,
    "memory": Memory.from_dict,
    "allocations": Allocations.from_dict,
    "lines": Lines.from_dict,
    "quality": Quality.from_dict,
    "live": Live.from_dict,
}


def checked_record(path: Path) -> Record:
    """The record in a file, of which also the observations can be read.

    Raises:
        Damaged: the file holds something else, or the record of another trial.
        OSError: it cannot be read.
    """
    record = stored_record(path)
    if record.observations is not None and record.status == "ok":
        try:
            READERS[record.pass_name](record.observations)
        except Damaged as error:
            raise Damaged(f"observations: {error}") from None
    return record
