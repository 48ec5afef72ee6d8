"""Datasets: real or generated samples that a combination is measured and evaluated on.

A dataset is any object with the method of :class:`Dataset`; a config names its constructor by ``dataset._target_``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from sweeprof.nested import mapped, named_leaves
from sweeprof.results.files import validated

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
    array per sample. ``channel_axis`` is the axis of the channels within a batch (1 for images); a backend may move it, of several
    arrays in those with the most axes. ``unit`` is the unit in which the workload is counted, such as ``tokens``, and
    ``units_per_sample`` or the method ``units_in(inputs)`` tells how many there are
    (:func:`sweeprof.measuring.inputs.workload_of`).
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


# Generated samples that fit a model, from the description that its source gives of its inputs.


Interpolation = Literal["nearest", "bilinear", "bicubic", "lanczos", "box", "hamming"]


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """One array of a sample: standard normal floating-point numbers, or whole numbers of a range."""

    shape: tuple[int, ...]
    """Of one sample, without the batch axis."""
    dtype: str = "float32"
    low: int = 0
    """The smallest whole number; for ``bool`` 0 is false."""
    high: int | None = None
    """Whole numbers are below this; None: all are :attr:`low`."""

    def generated(self, samples: int, random: np.random.Generator) -> npt.NDArray[Any]:
        """Return ``(samples, *shape)``."""
        shape = (samples, *self.shape)
        dtype = np.dtype(self.dtype)
        if dtype.kind in "fc":
            return random.standard_normal(shape, dtype=np.float32).astype(dtype)
        if self.high is None:
            return np.full(shape, self.low, dtype)
        return random.integers(self.low, self.high, shape).astype(dtype)


@dataclass(frozen=True, slots=True)
class ImagePreprocessing:
    """How a model wants a picture to become an array ``(channels, height, width)``."""

    height: int
    width: int
    channels: int = 3
    resize: int | None = None
    """The length to which the shorter side is resized before the centre is cut out; None: the picture is resized to height and
    width whatever its shape is."""
    interpolation: Interpolation = "bilinear"
    scale: float = 1 / 255
    """Multiplied with the values 0 to 255, before the mean of each channel is subtracted and the result divided by ``std``."""
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    order: Literal["rgb", "bgr"] = "rgb"


@dataclass(frozen=True, slots=True)
class ModelInputs:
    """The inputs that a model takes: plain data, which a plan and the records have."""

    inputs: Mapping[str, ArraySpec]
    """By the names of the model's arguments, in their order."""
    pass_as: PassAs = "keywords"
    targets: ArraySpec | None = None
    """What a loss compares the outputs with; None: it is not known."""
    channel_axis: int | None = None
    """The axis of the channels of images within a batch."""
    unit: str = "samples"
    """The unit in which the workload is counted: samples, tokens, seconds of audio."""
    units_per_sample: float = 1
    sizes: Mapping[str, int] = field(default_factory=dict)
    """The sizes that shapes depend on, by their names under ``inputs``, with their values."""
    targets_argument: str | None = None
    """The argument by which a model takes the targets, where it returns its own loss."""
    images: ImagePreprocessing | None = None
    """How pictures are prepared; None: it is not known, or the model takes no images."""
    no_images: str | None = None
    """Why :attr:`images` is None, where the source specifies something that cannot be described."""
    vocabulary: int | None = None
    """The number of token ids; None: it is not known, or the model takes no text."""
    sampling_rate: int | None = None
    """Of audio in Hz; None: it is not known, or the model takes no audio."""
    batch_size: int | None = None
    """The only batch size that the model takes; None: it takes any."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, object]) -> ModelInputs:
        """Return the description in a config; raises :class:`~sweeprof.errors.Damaged` for something else."""
        return validated(cls, data)


class Auto:
    """Generated samples for a model."""

    def __init__(self, inputs: Mapping[str, Any], samples: int = 64, seed: int = 0) -> None:
        """Args:
        inputs: :class:`ModelInputs` as plain data; planning takes it from the model's source.
        samples: number of samples per split.
        seed: of the generated numbers.
        """
        described = self._described = ModelInputs.from_dict(inputs)
        self._samples, self._seed = samples, seed
        self.channel_axis = described.channel_axis
        """The axis of the channels of images within a batch."""
        self.unit, self.units_per_sample = described.unit, described.units_per_sample
        """The unit in which the workload is counted, and the number of units of a sample."""

    def split(self, name: SplitName) -> Split:
        """Return samples that are the same on every call, and differ by split."""
        described, random = self._described, np.random.default_rng([self._seed, name == "test"])
        inputs = {key: spec.generated(self._samples, random) for key, spec in described.inputs.items()}
        targets = None if described.targets is None else described.targets.generated(self._samples, random)
        return Split(inputs, targets, pass_as=described.pass_as, is_evaluated=False)
