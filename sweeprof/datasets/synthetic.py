"""Generated samples of any shape, for models whose data are not at hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sweeprof.datasets import Split, SplitName


@dataclass(frozen=True, slots=True)
class Synthetic:
    """Standard normal float32 samples, or integers below ``high`` where it is given; without labels."""

    shape: Sequence[int]
    """Shape of one sample, images channels-first."""
    samples: int = 64
    high: int | None = None
    channels: int | None = None
    """Axis of the channels within a batch (1 for images), or None."""
    seed: int = 0

    @property
    def sample_shape(self) -> tuple[int, ...]:
        return tuple(self.shape)

    @property
    def channel_axis(self) -> int | None:
        return self.channels

    def split(self, name: SplitName) -> Split:
        random = np.random.default_rng([self.seed, name == "test"])
        shape = (self.samples, *self.sample_shape)
        if self.high is not None:
            return Split(random.integers(0, self.high, shape), None)
        return Split(random.standard_normal(shape, dtype=np.float32), None)
