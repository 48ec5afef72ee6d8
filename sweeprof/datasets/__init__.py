"""Datasets: real or generated samples that a combination is measured and evaluated on.

A dataset is any object with the method of :class:`Dataset`; a config names its constructor by ``dataset._target_``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from sweeprof.nested import mapped, named_leaves

SplitName = Literal["train", "test"]
PassAs = Literal["auto", "positional", "keywords", "single"]
"""How a batch is passed to a model: the items of a tuple as positional arguments and those of a mapping as keyword arguments
(``auto``), always as one of these, or unchanged as the single argument."""
Collate = Callable[[list[Any]], Any]
"""Makes a batch of a list of samples, as ``collate_fn`` of torch's ``DataLoader`` does."""


@dataclass(frozen=True, slots=True)
class Split:
    """Samples that belong together."""

    inputs: Any
    """One array ``(n, *sample_shape)``, or a nested tuple or mapping of arrays ``(n, ...)``: ``{"input_ids": ..., "attention_mask":
    ...}``. Or, with :attr:`collate`, a list of ``n`` samples of different shapes."""
    targets: Any = None
    """Class indices ``(n,)``, also as a list, any other arrays ``(n, ...)``, or None where the samples have no labels. Or, with
    :attr:`collate`, a list of ``n`` targets."""
    collate: Collate | None = None
    """Makes a batch of a list of inputs, such as :class:`sweeprof.datasets.collate.Pad`."""
    collate_targets: Collate | None = None
    """The same for a list of targets; None: as :attr:`collate`."""
    pass_as: PassAs = "auto"
    is_evaluated: bool = True
    """False: the targets are generated for training steps, and no quality is computed from them."""

    def __len__(self) -> int:
        return samples_in(self.inputs)

    def batch(self, indices: npt.NDArray[np.integer]) -> tuple[Any, Any]:
        """Return inputs and targets of some samples as contiguous arrays; targets are None where there are none."""
        inputs = _chosen(self.inputs, indices, self.collate)
        return inputs, _chosen(self.targets, indices, self.collate_targets or self.collate)


def _chosen(values: Any, indices: npt.NDArray[np.integer], collate: Collate | None) -> Any:
    if values is None:
        return None
    if isinstance(values, list) and collate is not None:
        return collate([values[index] for index in indices])
    if isinstance(values, list):  # numbers: class indices
        values = np.asarray(values)
    return mapped(values, lambda array: np.ascontiguousarray(np.take(array, indices, axis=0)))


def samples_in(values: object) -> int:
    """Return the number of samples: the length of a list, or of the first array."""
    if isinstance(values, list):
        return len(values)
    arrays: Sequence[Any] = list(named_leaves(values).values())
    return len(arrays[0]) if arrays else 0


class Dataset(Protocol):
    """The protocol of a dataset.

    It may also have these attributes. What :meth:`split` returns is checked against ``sample_shape``, the shape of one sample
    without the batch axis (images channels-first, e.g. ``(1, 32, 32)``), and against ``dtype``; both describe datasets with one
    array per sample. ``channel_axis`` is the axis of the channels within a batch (1 for images); a backend may move it. ``unit`` is
    the unit in which the workload is counted, such as ``tokens``, and ``units_per_sample`` or the method ``units_in(inputs)`` tells
    how many there are (:func:`sweeprof.measuring.inputs.workload_of`).
    """

    def split(self, name: SplitName) -> Split:
        """The samples of a split; the same ones in the same order on every call and every machine."""


@runtime_checkable
class Prepares(Protocol):
    """A dataset that does work once per host, before any trial, for ``prepare: true`` in its config file."""

    def prepare(self, name: SplitName) -> None:
        """Do the work for a split, such as decoding its samples into a cache; does nothing if it has been done."""


@runtime_checkable
class Loads(Protocol):
    """A dataset with a loader of its own, which mode=loading measures."""

    def batch_sizes(self, name: SplitName, batch_size: int) -> Iterator[int]:
        """Load a split from the beginning; yield the number of samples of each batch when it is there."""


def channel_axis_of(dataset: Dataset) -> int | None:
    """Return the axis of the channels within a batch, or None if there is none."""
    axis: int | None = getattr(dataset, "channel_axis", None)
    return axis


def first_batch(split: Split, size: int) -> tuple[Any, Any]:
    """Return inputs and targets of the first ``size`` samples, beginning again from the first if the split is shorter."""
    return split.batch(np.arange(size) % len(split))
