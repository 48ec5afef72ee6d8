"""Nested tuples, lists and mappings of tensors of any framework: samples of a dataset, arguments or outputs of a model.

No framework is imported to recognise its tensors or to read them as NumPy arrays.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt


def mapped(tree: Any, change: Callable[[Any], Any]) -> Any:
    """Return the same lists, tuples and dicts with every leaf changed.

    A container of another type is a leaf: its constructor may take something else than its items.
    """
    if type(tree) in (list, tuple):
        return type(tree)(mapped(item, change) for item in tree)
    if type(tree) in (dict, OrderedDict):
        return type(tree)((key, mapped(item, change)) for key, item in tree.items())
    if isinstance(tree, tuple) and type(tree).__bases__ == (tuple,):  # a named tuple
        return type(tree)(*(mapped(item, change) for item in tree))
    return change(tree)


def named_leaves(tree: object, path: str = "") -> dict[str, Any]:
    """Return the leaves by their paths: ``ids``, ``0``, ``encoder.0.mask``; a single leaf has the path ``""``.

    Every mapping, list, tuple and dataclass is a container here, whatever its type.

    Args:
        tree: a leaf, or containers of leaves.
        path: of the tree itself, with which all paths begin.
    """
    items: Iterable[tuple[object, object]]
    if isinstance(tree, Mapping):
        items = tree.items()
    elif isinstance(tree, list | tuple):
        items = zip(getattr(tree, "_fields", range(len(tree))), tree, strict=True)
    elif dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        items = [(field.name, getattr(tree, field.name)) for field in dataclasses.fields(tree)]
    else:
        return {path: tree}
    found: dict[str, Any] = {}
    for name, value in items:
        found |= named_leaves(value, f"{path}.{name}" if path else str(name))
    return found


_NUMPY_FLOATS = ("float16", "float32", "float64")
_JAX_PACKAGES = ("jax", "jaxlib")


def package_of(value: object) -> str | None:
    """Return the package that a tensor is of: ``numpy``, ``torch``, ``tensorflow``, ``jax`` or ``keras``; None for anything else.

    None also for tensors that are not one block of numbers, such as sparse, ragged and nested ones.
    """
    # A nested tensor has no shape to ask for.
    if getattr(value, "is_nested", False) or getattr(value, "is_sparse", False):
        return None
    if not hasattr(value, "__array__") or not hasattr(value, "shape") or isinstance(value, np.generic):
        return None
    for kind in type(value).__mro__:
        package = kind.__module__.partition(".")[0]
        if package in _JAX_PACKAGES:
            return "jax"
        if package in ("numpy", "torch", "tensorflow", "keras"):
            return package
    return None


def array_of(value: Any) -> npt.NDArray[Any]:
    """Return a tensor of any framework, or anything else that NumPy takes, as an array that may be written to.

    Floating-point types that NumPy does not have, such as bfloat16, become float32.
    """
    if hasattr(value, "detach"):  # PyTorch's, which may require gradients or be on an accelerator
        value = value.detach().cpu()
        if value.dtype.is_floating_point and str(value.dtype).rpartition(".")[2] not in _NUMPY_FLOATS:
            value = value.float()
    array = np.asarray(value)
    if "float" in array.dtype.name and array.dtype.kind != "f":  # a type that ml_dtypes adds to NumPy
        return array.astype(np.float32)
    # As of TensorFlow and JAX, and of a mapped file: run-times take arrays for their own memory.
    if not array.flags.writeable:
        return array.copy()
    return array


def in_package(tree: Any, package: str | None) -> Any:
    """Return the same lists, tuples and mappings, with every tensor of another package as a NumPy array that may be written to.

    Args:
        tree: tensors, constants, or containers of them.
        package: whose tensors stay as they are, see :func:`package_of`; None: all become arrays.
    """

    def changed(leaf: Any) -> Any:
        if isinstance(leaf, Mapping) and not hasattr(leaf, "shape"):  # such as a tokenizer's BatchEncoding
            return {key: in_package(value, package) for key, value in leaf.items()}
        has_values = not getattr(leaf, "is_meta", False)
        if has_values and package_of(leaf) not in (None, package):
            return array_of(leaf)
        return leaf

    return mapped(tree, changed)
