"""The call that a model is exported or converted for: its tensors as specifications, which JSON can hold, and as arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from sweeprof import nested
from sweeprof.backends import AnyArray
from sweeprof.errors import Unsupported
from sweeprof.measuring.inputs import Inputs, TensorSpec
from sweeprof.nested import mapped

T = TypeVar("T")
VARYING = 2
"""The batch size that a graph for any batch size is traced with: a tracer takes one for a constant."""
Shape = tuple[int, ...]


def is_tensor(value: object) -> bool:
    """Return True for a specification, an array, and a tensor of any framework."""
    return hasattr(value, "shape") and hasattr(value, "dtype")


def signature_of(inputs: Inputs, axis: int | None = None, *, is_nested: bool = False) -> Inputs:
    """Return the call with a specification for each tensor.

    Args:
        inputs: the call.
        axis: of the channels, which the model wants last; None: nothing is moved.
        is_nested: True: an argument may be a container.

    Raises:
        Unsupported: an argument is of a kind that a graph cannot have, or a step is more than a call.
    """
    if inputs.forward is not None:
        raise Unsupported("a graph is the model's own forward: a step that is more than calling it cannot be exported")

    def specified(value: Any) -> Any:
        if is_tensor(value):
            shape = with_channels_last([int(n) for n in value.shape], axis)
            return TensorSpec(shape, str(value.dtype).rpartition(".")[2])
        if value is None or isinstance(value, bool | int | float | str):
            return value
        raise Unsupported(f"an argument of a graph is a tensor or a constant, not a {type(value).__name__}")

    if is_nested:
        return inputs.map(specified)
    return Inputs(tuple(map(specified, inputs.args)), {key: specified(value) for key, value in inputs.kwargs.items()})


def with_channels_last(shape: Sequence[int], axis: int | None) -> Shape:
    """Return a shape with an axis moved to its end; None: as it is."""
    if axis is None or len(shape) <= axis:
        return tuple(shape)
    return (*shape[:axis], *shape[axis + 1 :], shape[axis])


def specs_in(tree: object) -> list[TensorSpec]:
    """Return the tensors of a signature, or of a part of it, in their order."""
    found: list[Any] = []
    mapped(tree, found.append)
    return [leaf for leaf in found if is_tensor(leaf)]


def batch_of(signature: Inputs) -> int | None:
    """Return the size of the first tensor's first axis; None for a scalar."""
    specs = specs_in((signature.args, dict(signature.kwargs)))
    if not specs or not specs[0].shape:
        return None
    return specs[0].shape[0]


def with_specs(signature: Inputs, change: Callable[[TensorSpec], object]) -> Inputs:
    """Return a signature with every tensor changed."""
    return signature.map(lambda leaf: change(leaf) if is_tensor(leaf) else leaf)


def filled(signature: Inputs, tensors: Iterable[object]) -> Inputs:
    """Return the call with these tensors, in the order of the signature's, and its constants."""
    waiting = iter(tensors)
    return with_specs(signature, lambda _: next(waiting))


def varying(signature: Inputs) -> Inputs:
    """Return a signature for any batch size: an example of it in every tensor whose first axis is as long as the first one's."""
    size = batch_of(signature)

    def example(spec: TensorSpec) -> TensorSpec:
        if not spec.shape or spec.shape[0] != size:
            return spec
        return replace(spec, shape=(VARYING, *spec.shape[1:]))

    return with_specs(signature, example)


def in_floats(signature: Inputs, dtype: str | None) -> Inputs:
    """Return a signature with every floating-point tensor in another data type, if one is given."""

    def changed(spec: TensorSpec) -> TensorSpec:
        if dtype is None or "float" not in spec.dtype:
            return spec
        return replace(spec, dtype=dtype)

    return with_specs(signature, changed)


def to_json(signature: Inputs) -> dict[str, Any]:
    """Return a signature as JSON; a tensor is a ``{"shape": […], "dtype": "float32"}``."""
    given = with_specs(signature, lambda spec: {"shape": list(spec.shape), "dtype": spec.dtype})
    return {"args": list(given.args), "kwargs": dict(given.kwargs)}


def from_json(data: Mapping[str, Any]) -> Inputs:
    """Return what :func:`to_json` was given."""
    return Inputs(tuple(_specified(data["args"])), _specified(data["kwargs"]))


def _specified(tree: Any) -> Any:
    if isinstance(tree, list):
        return [_specified(branch) for branch in tree]
    if not isinstance(tree, dict):
        return tree
    if set(tree) == {"shape", "dtype"}:
        return TensorSpec(tuple(tree["shape"]), tree["dtype"])
    return {key: _specified(branch) for key, branch in tree.items()}


def arrays(inputs: Inputs, axis: int | None = None) -> tuple[list[AnyArray], dict[str, AnyArray]]:
    """Return the tensors of a call as arrays: positional ones in their order, and those with a name; constants are in the graph.

    Args:
        inputs: the call; what is specified is generated.
        axis: of the channels, which the model wants last; None: nothing is moved.
    """
    return _tensors(inputs, lambda value: channels_moved(array_of(value), axis))


def shapes_of(inputs: Inputs, axis: int | None = None) -> tuple[list[Shape], dict[str, Shape]]:
    """Return the shapes of what :func:`arrays` returns."""
    return _tensors(inputs, lambda value: with_channels_last([int(n) for n in value.shape], axis))


def values_of(inputs: Inputs) -> tuple[list[AnyArray | None], dict[str, AnyArray | None]]:
    """Return the integers and truth values among what :func:`arrays` returns; None for other tensors and specifications."""

    def known(value: Any) -> AnyArray | None:
        if isinstance(value, TensorSpec) or "float" in str(value.dtype) or getattr(value, "is_meta", False):
            return None
        return array_of(value)

    return _tensors(inputs, known)


def _tensors(inputs: Inputs, made: Callable[[Any], T]) -> tuple[list[T], dict[str, T]]:
    positional = list(map(made, specs_in(inputs.args)))
    named = {}
    for key, value in inputs.kwargs.items():
        for index, leaf in enumerate(specs_in(value)):
            named[f"{key}.{index}" if index else key] = made(leaf)
    return positional, named


def array_of(value: Any) -> AnyArray:
    """Return a tensor of any framework as an array; one that is specified is generated."""
    if isinstance(value, TensorSpec):
        if "float" in value.dtype:
            return np.random.default_rng(0).standard_normal(value.shape).astype(value.dtype)
        return np.zeros(value.shape, value.dtype)
    return nested.array_of(value)


def channels_moved(array: AnyArray, axis: int | None) -> AnyArray:
    """Return an array with an axis moved to its end; None: as it is."""
    if axis is None or array.ndim <= axis:
        return array
    return np.moveaxis(array, axis, -1)


def by_name(names: Sequence[str], positional: Sequence[T], named: Mapping[str, T]) -> dict[str, T]:
    """Return the value for each of a graph's inputs, in their order: positional values fill the inputs that are not named.

    Raises:
        Unsupported: there are not as many as the graph has.
    """
    if len(positional) + len(named) != len(names) or not set(named) <= set(names):
        raise Unsupported(f"the graph takes {', '.join(names)}, and {len(positional) + len(named)} tensors are given")
    waiting = iter(positional)
    found = {}
    for name in names:
        found[name] = named[name] if name in named else next(waiting)
    return found
