"""One decoded sample, and the checks of its values."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sweeprof.errors import DatasetError
from sweeprof.nested import mapped, named_leaves
from sweeprof.tensors import array_of

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
        inputs = {f"inputs.{path}".rstrip("."): leaf for path, leaf in named_leaves(self.inputs).items()}
        if self.targets is None:
            return inputs
        return inputs | {f"targets.{path}".rstrip("."): leaf for path, leaf in named_leaves(self.targets).items()}

    def as_arrays(self) -> Sample:
        """Return the same with NumPy arrays, of numbers of 32 bits where they are floating-point numbers of 64.

        Raises:
            DatasetError: a value is not a number, or an array of numbers.
        """

        def array(value: object, part: str) -> npt.NDArray[Any]:
            made = array_of(value)
            if made.dtype.kind not in "biufc":
                kind = "text" if made.dtype.kind in "US" else f"{type(value).__name__}"
                raise DatasetError(f"{self.place} has {part} that are not numbers, but {kind}: {str(value)[:60]!r}")
            if made.dtype == np.float64:
                return made.astype(np.float32)
            return made.astype(np.int64) if part == "targets" and made.dtype.kind in "iu" else made

        targets = None if self.targets is None else mapped(_tupled(self.targets), lambda value: array(value, "targets"))
        return replace(self, inputs=mapped(_tupled(self.inputs), lambda value: array(value, "inputs")), targets=targets)

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
                raise DatasetError(
                    f"{self.place} has the label {wrong.flat[0]}, and the model has the classes 0 to {classes - 1}"
                )

    def check_ids(self, vocabulary: int) -> None:
        """Raise :class:`DatasetError` for an id that is not in the vocabulary."""
        for path, leaf in named_leaves(self.inputs).items():
            if leaf.dtype.kind not in "iu" or not is_ids(path):
                continue
            wrong = leaf[(leaf < 0) | (leaf >= vocabulary)]
            if wrong.size:
                raise DatasetError(
                    f"{self.place} has the id {wrong.flat[0]}, and the model's vocabulary has the ids 0 to {vocabulary - 1}"
                )


def is_ids(path: str) -> bool:
    """Return whether whole numbers at a path of the inputs are ids of tokens: by their name, or because they are all there is."""
    return path == "" or path.endswith(("input_ids", "token_ids"))


def _tupled(tree: Any) -> Any:
    """Return mappings as plain dictionaries, and lists as arrays: only tuples and mappings are containers of a sample."""
    if hasattr(tree, "items") and not hasattr(tree, "shape"):
        return {str(name): _tupled(value) for name, value in tree.items()}
    if isinstance(tree, tuple):
        return tuple(map(_tupled, tree))
    return np.asarray(tree) if isinstance(tree, list) else tree
