"""Tensors of any framework as NumPy arrays, without importing a framework."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from sweeprof.nested import mapped

_NUMPY_FLOATS = ("float16", "float32", "float64")
_JAX_PACKAGES = ("jax", "jaxlib")


def package_of(value: object) -> str | None:
    """Return the package that a tensor is of: ``numpy``, ``torch``, ``tensorflow``, ``jax`` or ``keras``; None for anything else.

    None also for tensors that are not one block of numbers, such as sparse, ragged and nested ones.
    """
    if getattr(value, "is_nested", False) or getattr(
        value, "is_sparse", False
    ):  # a nested tensor has no shape to ask for
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
    # Arrays of TensorFlow and JAX are read-only, as are those that a file is mapped into; run-times take them for their own memory.
    return array if array.flags.writeable else array.copy()


def in_package(tree: Any, package: str | None) -> Any:
    """Return the same lists, tuples and mappings, with every tensor of another package as a NumPy array that may be written to.

    Args:
        tree: tensors, constants, or containers of them.
        package: whose tensors stay as they are, see :func:`package_of`; None: all become arrays.
    """

    def changed(leaf: Any) -> Any:
        if isinstance(leaf, Mapping) and not hasattr(leaf, "shape"):  # such as a tokenizer's BatchEncoding
            return {key: in_package(value, package) for key, value in leaf.items()}
        found = package_of(leaf)
        is_without_values = getattr(leaf, "is_meta", False)
        return leaf if found is None or found == package or is_without_values else array_of(leaf)

    return mapped(tree, changed)
