"""Datasets: real or generated samples that a combination is measured and evaluated on.

A dataset is any object with the attributes of :class:`Dataset`; a config names its constructor by ``dataset._target_``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

SplitName = Literal["train", "test"]


@dataclass(frozen=True, slots=True)
class Split:
    """Samples that belong together."""

    inputs: npt.NDArray[Any]
    """``(n, *sample_shape)``."""
    targets: npt.NDArray[np.int64] | None
    """Class indices ``(n,)``, or None where the samples have no labels."""

    def __len__(self) -> int:
        return len(self.inputs)


class Dataset(Protocol):
    """The protocol of a dataset.

    What it returns is checked against ``sample_shape``, and against ``dtype`` where it has an attribute of that name.
    """

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Shape of one sample, without the batch axis; images channels-first, e.g. ``(1, 32, 32)``."""

    @property
    def channel_axis(self) -> int | None:
        """Axis of the channels within a batch (1 for images), or None where there is none; a backend may move it."""

    def split(self, name: SplitName) -> Split:
        """The samples of a split; the same ones in the same order on every call and every machine."""


def batch_of(split: Split, size: int) -> npt.NDArray[Any]:
    """The first ``size`` inputs, beginning again from the first where the split is shorter: ``(size, *sample_shape)``."""
    inputs = split.inputs
    return np.ascontiguousarray(np.take(inputs, np.arange(size) % len(inputs), axis=0))


def targets_of(split: Split, size: int) -> npt.NDArray[np.int64] | None:
    """The targets of :func:`batch_of`: ``(size,)``, or None where the samples have no labels."""
    targets = split.targets
    return None if targets is None else np.take(targets, np.arange(size) % len(targets), axis=0)
