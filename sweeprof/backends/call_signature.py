"""The call that a model is exported or converted for: its tensors as shapes and data types, as JSON, and as arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from sweeprof.backends import AnyArray
from sweeprof.errors import Unsupported
from sweeprof.measuring.inputs import Inputs, TensorSpec

T = TypeVar("T")
VARYING = 2
"""The batch size that a graph for any batch size is traced with: a tracer takes one for a constant."""


@dataclass(frozen=True, slots=True)
class CallSignature:
    """Positional and keyword arguments: tensors as ``{"shape": [...], "dtype": "float32"}``, anything else as it is."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    @property
    def batch(self) -> int | None:
        """The size of the first tensor's first axis; None for a scalar."""
        tensors = [leaf for leaf in (*self.args, *self.kwargs.values()) if is_tensor(leaf)]
        return tensors[0]["shape"][0] if tensors and tensors[0]["shape"] else None

    def in_floats(self, dtype: str) -> CallSignature:
        """The same with every floating-point tensor in another data type."""

        def changed(leaf: Any) -> Any:
            return {**leaf, "dtype": dtype} if is_tensor(leaf) and "float" in leaf["dtype"] else leaf

        args = tuple(map(changed, self.args))
        return replace(self, args=args, kwargs={key: changed(leaf) for key, leaf in self.kwargs.items()})

    def varying(self) -> CallSignature:
        """The same for any batch size: with an example of it, in every tensor whose first axis is as long as the first one's."""
        size = self.batch

        def example(leaf: Any) -> Any:
            if not is_tensor(leaf) or not leaf["shape"] or leaf["shape"][0] != size:
                return leaf
            return {**leaf, "shape": [VARYING, *leaf["shape"][1:]]}

        args = tuple(example(leaf) for leaf in self.args)
        return replace(self, args=args, kwargs={key: example(leaf) for key, leaf in self.kwargs.items()})

    def described(self) -> dict[str, object]:
        """Plain JSON data."""
        return {"args": list(self.args), "kwargs": dict(self.kwargs)}


def is_tensor(leaf: object) -> bool:
    """True if an argument in a signature is a tensor."""
    return isinstance(leaf, dict)


def signature_of(inputs: Inputs) -> CallSignature:
    """The signature of a call.

    Raises:
        Unsupported: an argument is a container, or of a kind that a graph cannot have.
    """
    if inputs.forward is not None:
        raise Unsupported("a graph is the model's own forward: a step that is more than calling it cannot be exported")
    return CallSignature(
        tuple(_leaf(value) for value in inputs.args), {key: _leaf(value) for key, value in inputs.kwargs.items()}
    )


def _leaf(value: Any) -> Any:
    if isinstance(value, TensorSpec):
        return {"shape": list(value.shape), "dtype": value.dtype}
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return {"shape": [int(n) for n in value.shape], "dtype": str(value.dtype).removeprefix("torch.")}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise Unsupported(f"an argument of a graph is a tensor or a constant, not a {type(value).__name__}")


def arrays(inputs: Inputs) -> tuple[list[AnyArray], dict[str, AnyArray]]:
    """The tensors of a call as arrays: the positional ones in their order, and those with a name; constants are in the graph."""
    positional = [_array(value) for value in inputs.args if is_tensor(_leaf(value))]
    return positional, {key: _array(value) for key, value in inputs.kwargs.items() if is_tensor(_leaf(value))}


def _array(value: Any) -> AnyArray:
    if isinstance(value, TensorSpec):
        random = np.random.default_rng(0)
        made = random.standard_normal(value.shape) if "float" in value.dtype else np.zeros(value.shape)
        return made.astype(value.dtype)
    return np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)


def moved_last(array: AnyArray, axis: int) -> AnyArray:
    """An array with its channels last; one without such an axis as it is."""
    return np.moveaxis(array, axis, -1) if array.ndim > axis else array


def by_name(names: Sequence[str], positional: Sequence[T], named: Mapping[str, T]) -> dict[str, T]:
    """Return the value for each of a graph's inputs, in their order: positional values fill the inputs that are not named.

    Raises:
        Unsupported: there are not as many as the graph has.
    """
    free = [name for name in names if name not in named]
    if len(positional) != len(free) or len(free) + len(named) != len(names):
        raise Unsupported(f"the graph takes {', '.join(names)}, and {len(positional) + len(named)} tensors are given")
    found = {**dict(zip(free, positional, strict=True)), **named}
    return {name: found[name] for name in names}


def shapes_of(inputs: Inputs, moved: int | None) -> tuple[list[tuple[int, ...]], dict[str, tuple[int, ...]]]:
    """The shapes of the tensors of a call: positional ones in their order, and those with a name.

    Args:
        inputs: the call.
        moved: the axis of positional ones that the graph wants last; None: none.
    """
    signature = signature_of(inputs)
    positional = [tuple(leaf["shape"]) for leaf in signature.args if is_tensor(leaf)]
    named = {key: tuple(leaf["shape"]) for key, leaf in signature.kwargs.items() if is_tensor(leaf)}
    return [_last(shape, moved) for shape in positional], named


def _last(shape: tuple[int, ...], axis: int | None) -> tuple[int, ...]:
    if axis is None or len(shape) <= axis:
        return shape
    return (*shape[:axis], *shape[axis + 1 :], shape[axis])
