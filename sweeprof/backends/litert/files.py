"""TFLite files: those that a user gives, and those that a conversion leaves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from sweeprof.backends import AnyArray
from sweeprof.errors import Unsupported
from sweeprof.measuring.inputs import Inputs, TensorSpec
from sweeprof.results.artifact import Artifact


@dataclass(frozen=True, slots=True)
class TfliteFile:
    """A model as a file: ``model.litert._target_=sweeprof.backends.litert.files.TfliteFile model.litert.path=net.tflite``."""

    path: str
    channels: Literal["first", "last"] = "last"
    """Where the model wants the channels of an image; datasets give them first."""
    outputs: tuple[str, ...] = ()
    """Names of the outputs, in the order of the file; none: their positions are their names."""

    def found(self) -> TfliteFile:
        """The same with its full path.

        Raises:
            FileNotFoundError: there is no such file.
        """
        path = Path(self.path).expanduser().absolute()
        if not path.is_file():
            raise FileNotFoundError(f"there is no TFLite file {self.path}")
        return replace(self, path=str(path), outputs=tuple(self.outputs))

    def artifact(self) -> Artifact:
        """The length of the file: what is downloaded, and neither a Python object nor what it takes in memory."""
        return Artifact(Path(self.path).stat().st_size, "tflite")


LEAF = {"shape", "dtype"}


def signature_of(inputs: Inputs, channel_axis: int | None) -> dict[str, object]:
    """``{"args": […], "kwargs": {…}}``, each tensor a ``{"shape": […], "dtype": "…"}``, with its channels last.

    Raises:
        Unsupported: a step is more than calling the model, or an argument is no tensor.
    """
    if inputs.forward is not None:
        raise Unsupported("a converted model is called and nothing else; inputs.forward is not possible")
    described = inputs.map(lambda leaf: _leaf(leaf, channel_axis))
    return {"args": list(described.args), "kwargs": dict(described.kwargs)}


def leaves(tree: object) -> Iterator[Any]:
    """Whatever is in lists, tuples and mappings, in their order; a description of a tensor is one."""
    if isinstance(tree, Mapping) and set(tree) != LEAF:
        tree = list(tree.values())
    if isinstance(tree, list | tuple):
        for branch in tree:
            yield from leaves(branch)
    else:
        yield tree


def arrays(inputs: Inputs, channel_axis: int | None) -> list[AnyArray]:
    """Every tensor among the arguments, in the order of the signature, with its channels last; those specified are generated."""
    random = np.random.default_rng(0)
    given = leaves((inputs.args, dict(inputs.kwargs)))
    return [_moved(_made(leaf, random), channel_axis) for leaf in given]


def _leaf(leaf: Any, channel_axis: int | None) -> dict[str, object]:
    if not isinstance(leaf, TensorSpec) and not hasattr(leaf, "__array__"):
        raise Unsupported(f"a {type(leaf).__name__} among the arguments cannot be converted")
    shape = list(leaf.shape)
    if channel_axis is not None and len(shape) > channel_axis:
        shape.append(shape.pop(channel_axis))
    return {"shape": shape, "dtype": str(leaf.dtype).rpartition(".")[2]}


def _made(leaf: object, random: np.random.Generator) -> AnyArray:
    if not isinstance(leaf, TensorSpec):
        return np.asarray(leaf)
    values = random.standard_normal(leaf.shape) if "float" in leaf.dtype else np.zeros(leaf.shape)
    return values.astype(leaf.dtype)


def _moved(array: AnyArray, channel_axis: int | None) -> AnyArray:
    return array if channel_axis is None or array.ndim <= channel_axis else np.moveaxis(array, channel_axis, -1)
