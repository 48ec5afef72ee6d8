"""Samples, the checks of their values, and batches of them, also if they have different lengths."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from sweeprof.errors import DatasetError
from sweeprof.nested import array_of, mapped, named_leaves


@dataclass(frozen=True, slots=True)
class Pad:
    """Makes a batch of samples whose first axes differ in length: shorter ones are filled up to the longest.

    A sample is one array, or a tuple or mapping of arrays. Each array of the batch is as long as the longest of its kind, as
    ``torch.nn.utils.rnn.pad_sequence(batch_first=True)`` makes it. To a mapping with ``input_ids`` it adds their mask, as
    transformers' ``DataCollatorWithPadding`` does.
    """

    value: float | Mapping[str, float] = 0
    """What arrays are filled with; a mapping has a value by the name of the array, and 0 for all others."""
    length: int | None = None
    """The length of every batch; None: that of the longest sample in the batch."""
    multiple: int = 1
    """The length is rounded up to a multiple of this."""
    side: Literal["right", "left"] = "right"
    """The side that is filled up; models that generate text read padding on the left."""
    mask: str | None = "attention_mask"
    """Name of the mask that is added to a mapping: 1 for the ids of the sample and 0 for padding; None: no mask is added."""
    masked: str = "input_ids"
    """Name of the array from whose lengths the mask is made."""

    def __call__(self, samples: list[Any]) -> Any:
        """Return the batch.

        Raises:
            DatasetError: the samples differ in more than their lengths, or one is longer than :attr:`length`.
        """
        first = samples[0]
        if isinstance(first, tuple):
            return tuple(self._column(list(column), str(at)) for at, column in enumerate(zip(*samples, strict=True)))
        if not isinstance(first, Mapping):
            return self._column(samples, "")
        for at, sample in enumerate(samples):
            if set(sample) != set(first):
                names, expected = ", ".join(sorted(sample)), ", ".join(sorted(first))
                raise DatasetError(f"sample {at} of a batch has {names}, and the first has {expected}")
        batch = {name: self._column([sample[name] for sample in samples], name) for name in first}
        if self.mask is not None and self.masked in first and self.mask not in first:
            ones = [np.ones(len(sample[self.masked]), np.int64) for sample in samples]
            batch[self.mask] = self._column(ones, self.mask)
        return batch

    def _column(self, values: list[Any], name: str) -> npt.NDArray[Any]:
        arrays = list(map(np.asarray, values))
        described = f" of {name!r}" if name else ""
        if len({(array.ndim, array.shape[1:]) for array in arrays}) > 1:
            shapes = ", ".join(sorted({str(array.shape) for array in arrays}))
            raise DatasetError(
                f"samples{described} differ in more than their lengths, and cannot be padded: their shapes are {shapes}"
            )
        if arrays[0].ndim == 0:
            return np.stack(arrays)
        value: Any = self.value
        if isinstance(value, Mapping):
            value = value.get(name, 0)
        elif name == self.mask:
            value = 0
        longest = max(map(len, arrays))
        if self.length is not None and longest > self.length:
            limit = f"above the Pad(length={self.length}) of all batches"
            raise DatasetError(f"a sample{described} has the length {longest}, which is {limit}")
        length = math.ceil((self.length or longest) / self.multiple) * self.multiple
        batch = np.full((len(arrays), length, *arrays[0].shape[1:]), value, np.result_type(*arrays))
        for row, array in zip(batch, arrays, strict=True):
            if self.side == "right":
                row[: len(array)] = array
            else:
                row[length - len(array) :] = array
        return batch


def stack(samples: list[Any]) -> Any:
    """Return the batch of samples that have the same shape.

    Raises:
        DatasetError: their shapes differ.
    """
    leaves = list(map(named_leaves, samples))
    shapes = {tuple((name, np.shape(leaf)) for name, leaf in sample.items()) for sample in leaves}
    if len(shapes) > 1:
        listed = ", ".join(str(tuple(dict(shape).values())) for shape in sorted(shapes)[:3])
        raise DatasetError(f"samples differ in their shapes ({listed}): dataset.collate=pad pads them")
    first = samples[0]
    if isinstance(first, Mapping):
        return {name: stack([sample[name] for sample in samples]) for name in first}
    if isinstance(first, tuple):
        return tuple(stack(list(column)) for column in zip(*samples, strict=True))
    return np.stack(samples)


# One decoded sample, and the checks of its values.


NOT_COUNTED = -100
"""A target that counts nowhere, as in torch."""
TARGETS = ("labels", "label", "targets", "target")
"""Keys of a batch, a sample or a row under which its targets are looked for; the model is not given them."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The inputs of a model, and the outputs that it should return."""

    inputs: Any
    """An array, or a nested mapping or tuple of arrays."""
    targets: Any = None
    """A class index, or anything like the inputs; None: it has none."""
    place: str = ""
    """Its file or row, for error messages."""
    channel_axis: int | None = None
    """The axis of the channels of images in a batch."""

    def leaves(self) -> dict[str, npt.NDArray[Any]]:
        """Return its arrays by their paths, such as ``inputs.input_ids``."""
        found = named_leaves(self.inputs, "inputs")
        if self.targets is not None:
            found |= named_leaves(self.targets, "targets")
        return found

    def as_arrays(self) -> Sample:
        """Return the same with NumPy arrays, of numbers of 32 bits where they are floating-point numbers of 64.

        Raises:
            DatasetError: a value is not a number, or an array of numbers.
        """

        def array(value: object, part: str) -> npt.NDArray[Any]:
            made = array_of(value)
            if made.dtype.kind not in "biufc":
                kind = "text" if made.dtype.kind in "US" else type(value).__name__
                raise DatasetError(f"{self.place} has {part} that are not numbers, but {kind}: {str(value)[:60]!r}")
            if made.dtype == np.float64:
                return made.astype(np.float32)
            if part == "targets" and made.dtype.kind in "iu":
                return made.astype(np.int64)
            return made

        inputs = mapped(_tupled(self.inputs), partial(array, part="inputs"))
        if self.targets is None:
            return replace(self, inputs=inputs)
        return replace(self, inputs=inputs, targets=mapped(_tupled(self.targets), partial(array, part="targets")))

    def with_layout(self, layout: str | None) -> Sample:
        """Return the same with images, arrays of three axes, channels first.

        Args:
            layout: ``channels_first`` or ``channels_last``, as the images are; None: there are no images.
        """
        inputs = self.inputs
        if layout is None or getattr(inputs, "ndim", None) != 3:
            return self
        if layout == "channels_last":
            inputs = np.ascontiguousarray(np.moveaxis(inputs, -1, 0))
        return replace(self, inputs=inputs, channel_axis=1)

    def check_labels(self, classes: int) -> None:
        """Raise :class:`DatasetError` for a label that is none of the classes ``0`` to ``classes - 1``."""
        for leaf in named_leaves(self.targets).values():
            if leaf.dtype.kind != "i":
                continue
            wrong = leaf[(leaf < 0) & (leaf != NOT_COUNTED) | (leaf >= classes)]
            if wrong.size:
                known = f"the model has the classes 0 to {classes - 1}"
                raise DatasetError(f"{self.place} has the label {wrong.flat[0]}, and {known}")

    def check_ids(self, vocabulary: int) -> None:
        """Raise :class:`DatasetError` for an id that is not in the vocabulary."""
        for path, leaf in named_leaves(self.inputs).items():
            if leaf.dtype.kind not in "iu" or not is_ids(path):
                continue
            wrong = leaf[(leaf < 0) | (leaf >= vocabulary)]
            if wrong.size:
                known = f"the model's vocabulary has the ids 0 to {vocabulary - 1}"
                raise DatasetError(f"{self.place} has the id {wrong.flat[0]}, and {known}")


def is_ids(path: str) -> bool:
    """Return whether whole numbers at a path of the inputs are ids of tokens: by their name, or because they are all there is."""
    return path == "" or path.endswith(("input_ids", "token_ids"))


def _tupled(tree: Any) -> Any:
    """Return mappings as plain dictionaries, and lists as arrays: only tuples and mappings are containers of a sample."""
    if hasattr(tree, "items") and not hasattr(tree, "shape"):
        return {str(name): _tupled(value) for name, value in tree.items()}
    if isinstance(tree, tuple):
        return tuple(map(_tupled, tree))
    if isinstance(tree, list):
        return np.asarray(tree)
    return tree
