"""The handwritten digits that ship inside scikit-learn: 1,797 real 8×8 scans, scaled up to 1×32×32."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from sweeprof.datasets import Split, SplitName

Numbers = npt.NDArray[Any]

SCALE = 4
"""8×8 → 32×32, the input LeNet-5 was designed for."""
FULL_INK = 16.0
"""The scans hold ink counts 0..16."""


@cache
def scans() -> tuple[Numbers, Numbers]:
    """Ink ``(1797, 64)`` and digits ``(1797,)``."""
    images, targets = load_digits(return_X_y=True)
    return images, targets


@cache
def parts(seed: int = 0, test_share: float = 0.2) -> tuple[Numbers, Numbers]:
    """Indices of the training and of the test split."""
    _, targets = scans()
    train, test = train_test_split(np.arange(len(targets)), test_size=test_share, random_state=seed, stratify=targets)
    return train, test


@dataclass(frozen=True, slots=True)
class Digits:
    """Ten classes; float32 images in [0, 1]; a stratified split that ``seed`` fixes.

    Source: E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten Digits", UCI, 1998; ``sklearn.datasets.load_digits``.
    """

    seed: int = 0
    test_share: float = 0.2

    @property
    def sample_shape(self) -> tuple[int, ...]:
        return (1, 32, 32)

    @property
    def channel_axis(self) -> int | None:
        return 1

    def split(self, name: SplitName) -> Split:
        images, targets = scans()
        train, test = parts(self.seed, self.test_share)
        chosen = train if name == "train" else test
        small = (images[chosen] / FULL_INK).astype(np.float32).reshape(-1, 1, 8, 8)
        return Split(small.repeat(SCALE, axis=2).repeat(SCALE, axis=3), targets[chosen].astype(np.int64))
