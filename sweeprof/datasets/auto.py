"""Generated samples that fit a model, from the description that its source gives of its inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from sweeprof.datasets import PassAs, Split, SplitName
from sweeprof.results.files import validated

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
