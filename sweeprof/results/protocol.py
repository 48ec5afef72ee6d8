"""Protocol: how long and how often a step is timed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


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
    interleave: Literal["rounds", "samples", "duel"] = "rounds"
    """How combinations that are compared alternate: by rounds, or by samples in processes that exist at the same time.
    ``duel`` is ``samples`` in earlier plans and records."""
    kernel: Literal["auto", "convolution", "matmul"] | None = None
    """The calibration kernel that is timed between samples; ``auto``: the one that resembles the model. None: there is none."""
    decide: Literal["baseline", "pairs", "best"] | None = None
    """Which comparisons must be decided before a combination gets no further rounds: with its ``baseline``; of all ``pairs`` that
    differ only in the baseline's axes; of the ``best`` of them with the others. ``rounds`` is then the largest number of rounds.
    None: all combinations get all rounds."""
