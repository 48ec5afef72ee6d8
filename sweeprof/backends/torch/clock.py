"""The time of an accelerator's own work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from sweeprof.measuring.timing import Clock, WallClock


class EventClock(WallClock):
    """Marks are events in the device's stream: taking one does not wait, reading the time between two does.

    Args:
        record: puts an event into the stream; it has ``synchronize()`` and ``elapsed_time(later)``, in milliseconds.
    """

    def __init__(self, record: Callable[[], Any]) -> None:
        self._record = record

    def mark(self) -> Any:
        return self._record()

    def between(self, begin: Any, end: Any) -> float:
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3


def clock_of(device: torch.device) -> Clock:
    """The clock of a device: of the host where it has no events."""
    if device.type == "cpu":
        return WallClock()

    def record() -> torch.Event:
        event = torch.Event(device.type, enable_timing=True)
        event.record(torch.accelerator.current_stream(device))  # an event's own choice is the current device's stream
        return event

    return EventClock(record)
