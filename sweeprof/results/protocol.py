"""Protocol: how long and how often a step is timed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

from sweeprof.errors import Problem, choice_problem

Interleave = Literal["rounds", "samples"]
Decide = Literal["baseline"]
MOST_ROUNDS = 10_000
MOST_STEPS = 1_000_000
"""Of the warm-up, and of the samples of a round, which are all stored."""
LONGEST_S = 7 * 24 * 60 * 60
"""No part of a trial, and no trial, may take longer: a week."""


@dataclass(frozen=True, slots=True)
class Protocol:
    """Duration and number of measurements; one YAML under ``conf/protocol/``. The config's defaults are these."""

    rounds: int = 1
    """Number of rounds; each runs in a new process."""
    threshold: float | None = 0.1
    """Relative difference below which two values are the same; None: no verdicts."""
    warmup_steps: int = 3
    warmup_s: float = 0.2
    """Warm-up lasts for at least this many steps and this many seconds."""
    sample_s: float = 0.001
    """A sample repeats the step until it lasts this long."""
    min_samples: int = 10
    min_s: float = 0.5
    """A round has at least this many samples (``min_samples``) and seconds …"""
    max_s: float = 5
    """… unless it takes this long, which gives a warning."""
    target_spread: float | None = None
    """Also continue until IQR/median is below this or has settled."""
    interleave: Interleave = "rounds"
    """How combinations that are compared alternate: by rounds, or by samples in processes that exist at the same time."""
    decide: Decide | None = None
    """``baseline``: a combination gets no further rounds once its comparison with its baseline is decided. ``rounds`` is then the
    largest number of rounds. None: all combinations get all rounds."""

    def problems(self) -> Iterator[Problem]:
        """Yield the problems of values that the config would refuse too."""
        for name, least, most in (
            ("rounds", 1, MOST_ROUNDS),
            ("warmup_steps", 0, MOST_STEPS),
            ("min_samples", 1, MOST_STEPS),
        ):
            value = getattr(self, name)
            if type(value) is not int or not least <= value <= most:
                yield Problem(f"protocol.{name}", value, f"is not a whole number from {least} to {most:,}.")
        for name in ("warmup_s", "sample_s", "min_s", "max_s"):
            value = getattr(self, name)
            if not _is_number(value) or not 0 <= value <= LONGEST_S:
                yield Problem(f"protocol.{name}", value, f"is not a duration: seconds from 0 to {LONGEST_S:,}.")
        for name in ("threshold", "target_spread"):
            value = getattr(self, name)
            if value is not None and not (_is_number(value) and 0 < value < 1):
                yield Problem(f"protocol.{name}", value, "is not a number between 0 and 1, or None.")
        if self.interleave not in get_args(Interleave):
            yield choice_problem("protocol.interleave", self.interleave, "way to interleave", ("rounds", "samples"))
        if self.decide is not None and self.decide not in get_args(Decide):
            yield choice_problem("protocol.decide", self.decide, "comparison", get_args(Decide))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
