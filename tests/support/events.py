"""What the event logs of a sweep say while it runs."""

from __future__ import annotations

from pathlib import Path

from sweeprof.storage import begun


def running_trials(cwd: Path, pass_name: str) -> int:
    """Return how many trials of a pass run at this moment, in the only sweep below ``cwd``; 0 before there is one."""
    return sum(trial[1] == pass_name for events in cwd.glob("outputs/*/*/events") for trial in begun(events))
