"""The handwritten digits that ship inside scikit-learn: 1,797 real 8×8 scans, scaled up to 1×32×32."""

from __future__ import annotations

import gzip
import math
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sweeprof.datasets import Split, SplitName
from sweeprof.errors import DatasetError

Numbers = npt.NDArray[Any]

SCALE = 4
"""8×8 → 32×32, the input LeNet-5 was designed for."""
FULL_INK = 16.0
"""The scans hold ink counts 0..16."""


CLASSES = 10


@cache
def scans() -> tuple[Numbers, Numbers]:
    """Ink ``(1797, 64)`` and digits ``(1797,)``, from scikit-learn's file: importing scikit-learn itself takes seconds."""
    package = find_spec("sklearn")
    if package is None or package.origin is None:
        raise DatasetError("the digits are a file of scikit-learn, which is not installed")
    with gzip.open(Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz", "rt", encoding="ascii") as file:
        table = np.loadtxt(file, delimiter=",")
    return table[:, :-1], table[:, -1].astype(int)


@cache
def parts(seed: int = 0, test_share: float = 0.2) -> tuple[Numbers, Numbers]:
    """Indices of the training and of the test split, those of ``sklearn.model_selection.train_test_split(stratify=...)``.

    Args:
        test_share: the share of the test split, or how many samples it has.

    Raises:
        DatasetError: one of the splits would have fewer samples than there are classes.
    """
    _, targets = scans()
    test_samples = math.ceil(test_share * len(targets)) if 0 < test_share < 1 else int(test_share)
    if test_samples not in range(CLASSES, len(targets) - CLASSES + 1):
        raise DatasetError(
            f"test_share={test_share} is {test_samples} of {len(targets)} samples; each split needs {CLASSES}"
        )
    generator = np.random.RandomState(seed)
    present = np.bincount(targets)
    of_train = _stratified(present, len(targets) - test_samples, generator)
    of_test = _stratified(present - of_train, test_samples, generator)
    shuffled = [generator.permutation(np.flatnonzero(targets == digit)) for digit in range(CLASSES)]
    train = [chosen[:n] for chosen, n in zip(shuffled, of_train, strict=True)]
    test = [chosen[n : n + m] for chosen, n, m in zip(shuffled, of_train, of_test, strict=True)]
    return generator.permutation(np.concatenate(train)), generator.permutation(np.concatenate(test))


def _stratified(present: Numbers, samples: int, generator: np.random.RandomState) -> Numbers:
    """Return how many samples of each class are drawn: in proportion, the largest remainders rounded up, ties at random."""
    exact = present / present.sum() * samples
    drawn: Numbers = np.floor(exact).astype(int)
    remainders = exact - np.floor(exact)
    for remainder in np.unique(remainders)[::-1]:
        missing = samples - drawn.sum()
        if not missing:
            break
        (tied,) = np.nonzero(remainders == remainder)
        drawn[generator.choice(tied, size=min(len(tied), missing), replace=False)] += 1
    return drawn


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
