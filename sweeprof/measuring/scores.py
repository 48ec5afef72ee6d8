"""Sums over the outputs of a model and their targets, from which quality metrics are computed: batch by batch, in bounded memory.

Targets are class indices, one per sample, per token or per pixel; one-hot rows; or numbers of the outputs' own shape.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

IGNORED_CLASS = -100
"""A target that is not counted, as in torch's ``cross_entropy`` and in transformers."""
MOST_CLASSES = 4096
"""Confusions are counted per class up to so many classes."""
MOST_COLUMNS = 4096
"""Numbers of a sample up to which each has sums of its own."""
CHUNK = 2**22
"""Elements that are widened to float64 at a time."""

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class ClassScores:
    """Rows of class scores with their true classes."""

    scores: Array
    """``(rows, classes)``."""
    classes: npt.NDArray[np.int64]
    """``(rows,)``; every one below the number of classes."""
    is_per_sample: bool
    """True if there is one row per sample."""


@dataclass(frozen=True, slots=True)
class UnknownClass:
    """A target that is no class of the outputs."""

    sample: int
    label: int
    classes: int
    is_per_sample: bool

    def reason(self, samples_before: int) -> str:
        """Return why there are no class scores; ``samples_before``: those of earlier batches."""
        part = "" if self.is_per_sample else f"; tokens and pixels of the class {IGNORED_CLASS} do not count"
        sample = samples_before + self.sample
        return f"sample {sample} has the label {self.label}, and the outputs have the classes 0 to {self.classes - 1}{part}"


def with_two_classes(outputs: Array) -> Array:
    """Return a single logit ``(n, 1)``, which decides between two classes at zero, as scores ``(n, 2)``; others as they are."""
    if outputs.ndim == 2 and outputs.shape[1] == 1:
        return np.concatenate([np.zeros_like(outputs), outputs], axis=1)
    return outputs


def class_scores(outputs: Array, targets: Array) -> ClassScores | UnknownClass | None:
    """Return the scores of the true and all other classes; None if the targets are not one class for each row of the outputs.

    Args:
        outputs: ``(n, classes)``, ``(n, tokens, classes)``, or for images ``(n, classes, height, width)`` or
            ``(n, height, width, classes)``.
        targets: class indices of the same shape without the classes, or ``(n, 1)``; or one-hot, of the outputs' shape.
    """
    if outputs.ndim < 2 or not len(outputs):
        return None
    outputs = with_two_classes(outputs)
    if targets.shape == (len(outputs), 1) and outputs.ndim == 2:
        targets = targets[:, 0]
    if targets.shape == outputs.shape and _is_one_hot(targets):
        targets = targets.argmax(axis=-1)
    if targets.dtype.kind not in "iub":
        return None
    if targets.shape == outputs.shape[:-1]:
        scores = outputs.reshape(-1, outputs.shape[-1])
    elif outputs.ndim > 2 and targets.shape == (len(outputs), *outputs.shape[2:]):
        scores = np.moveaxis(outputs, 1, -1).reshape(-1, outputs.shape[1])
    else:
        return None
    classes = targets.reshape(-1).astype(np.int64)
    if outputs.ndim > 2:
        counted = classes != IGNORED_CLASS
        scores, classes = scores[counted], classes[counted]
    if ((classes < 0) | (classes >= scores.shape[1])).any():
        is_unknown = (targets < 0) | (targets >= scores.shape[1])
        if outputs.ndim > 2:
            is_unknown &= targets != IGNORED_CLASS
        first = tuple(np.argwhere(is_unknown)[0])
        return UnknownClass(int(first[0]), int(targets[first]), scores.shape[1], is_per_sample=outputs.ndim == 2)
    return ClassScores(scores, classes, is_per_sample=outputs.ndim == 2)


def _is_one_hot(targets: Array) -> bool:
    is_zero_or_one = (targets == 0) | (targets == 1)
    return targets.shape[-1] > 1 and bool(is_zero_or_one.all()) and bool((targets.sum(axis=-1) == 1).all())


def ranks_of(found: ClassScores) -> npt.NDArray[np.int64]:
    """Return per row how many classes score higher than the true one; ties are broken by the class index, lower first.

    A row with a NaN has no most likely class: its rank is the number of classes, so that it is never among the k most likely.
    """
    true = np.take_along_axis(found.scores, found.classes[:, None], axis=1)
    is_before = np.arange(found.scores.shape[1])[None, :] < found.classes[:, None]
    ranks: npt.NDArray[np.int64] = ((found.scores > true) | ((found.scores == true) & is_before)).sum(axis=1)
    ranks[has_nan(found.scores)] = found.scores.shape[1]
    return ranks


def most_likely(scores: Array) -> npt.NDArray[np.int64]:
    """Return per row the class with the highest score, the lowest of several; -1 for a row with a NaN, which has none."""
    classes: npt.NDArray[np.int64] = scores.argmax(axis=1)
    classes[has_nan(scores)] = -1
    return classes


def has_nan(array: Array) -> npt.NDArray[np.bool_]:
    """Return for each entry of the first axis whether a number of it is NaN."""
    if array.dtype.kind in "iub":
        return np.zeros(len(array), dtype=bool)
    return np.asarray(np.isnan(array).any(axis=tuple(range(1, array.ndim))))


def loss_sum_of(found: ClassScores) -> float | None:
    """Return the cross-entropy of the scores taken as logits in nats, summed over all rows; None if a score is not finite."""
    total = 0.0
    rows = max(1, CHUNK // found.scores.shape[1])
    for begin in range(0, len(found.scores), rows):
        wide = found.scores[begin : begin + rows].astype(np.float64)
        if not np.isfinite(wide).all():
            return None
        true = np.take_along_axis(wide, found.classes[begin : begin + rows, None], axis=1)[:, 0]
        largest = wide.max(axis=1)
        # Here rather than by scipy, whose import takes a sixth of a second in every trial.
        log_sums = largest + np.log(np.exp(wide - largest[:, None]).sum(axis=1))
        total += float((log_sums - true).sum())
    return total


@dataclass(slots=True)
class ClassTally:
    """Sums over rows of class scores."""

    rank_counts: dict[int, int] = field(default_factory=dict)
    """How many rows have each rank of the true class."""
    loss_sum: float | None = 0.0
    """Cross-entropy summed over all rows, in nats; None if a score was not finite."""
    confusion: npt.NDArray[np.int64] | None = None
    """``(3, classes)``: rows of each class that were predicted right, predicted as it, and truly of it; None above
    :data:`MOST_CLASSES` classes."""

    def add(self, found: ClassScores, ranks: npt.NDArray[np.int64]) -> None:
        """Add the rows of a batch."""
        for rank, count in zip(*np.unique(ranks, return_counts=True), strict=True):
            self.rank_counts[int(rank)] = self.rank_counts.get(int(rank), 0) + int(count)
        loss = loss_sum_of(found)
        self.loss_sum = None if loss is None or self.loss_sum is None else self.loss_sum + loss
        number = found.scores.shape[1]
        if number > MOST_CLASSES:
            return
        predicted = most_likely(found.scores)
        right = found.classes[predicted == found.classes]
        predicted = predicted[predicted >= 0]
        counts = np.stack([np.bincount(part, minlength=number) for part in (right, predicted, found.classes)])
        self.confusion = counts if self.confusion is None else self.confusion + counts


@dataclass(frozen=True, slots=True)
class NumberSums:
    """Sums over outputs that are numbers, and the targets that they should equal: one entry per column."""

    samples: int
    """The number of rows."""
    squared_errors: tuple[float, ...]
    absolute_errors: tuple[float, ...]
    targets: tuple[float, ...]
    squared_targets: tuple[float, ...]

    @classmethod
    def of(cls, outputs: Array, targets: Array) -> NumberSums | None:
        """Return the sums of a batch; None if targets are no numbers, or not as many as outputs.

        A column is a number of each sample. Above :data:`MOST_COLUMNS` of them, all elements are in one column.
        """
        if not np.issubdtype(targets.dtype, np.number) or not len(targets):
            return None
        if len(outputs) != len(targets) or outputs.size != targets.size:
            return None
        answers, wanted = (side.reshape(len(side), -1).astype(np.float64) for side in (outputs, targets))
        if answers.shape[1] > MOST_COLUMNS:
            answers, wanted = answers.reshape(-1, 1), wanted.reshape(-1, 1)
        errors = answers - wanted
        sums = ((errors**2).sum(0), np.abs(errors).sum(0), wanted.sum(0), (wanted**2).sum(0))
        return cls(len(wanted), *(tuple(column.tolist()) for column in sums))

    def __add__(self, other: NumberSums) -> NumberSums:
        """Return the sums of the samples of both, which have the same columns."""
        pairs = zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)
        samples, *sums = (np.add(own, more).tolist() for own, more in pairs)
        return NumberSums(samples, *map(tuple, sums))
