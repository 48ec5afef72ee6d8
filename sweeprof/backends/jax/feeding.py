"""Inputs as Keras wants them on JAX: arrays on the device, images with their channels last."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from sweeprof.profiling.inputs import Inputs, TensorSpec


def arranged(inputs: Inputs, channel_axis: int | None) -> Inputs:
    """Generated where a specification is given, and with the channels moved from ``channel_axis`` to the end."""
    random = np.random.default_rng(0)

    def change(leaf: Any) -> Any:
        array = _made(leaf, random)
        if channel_axis is None or not isinstance(array, np.ndarray) or array.ndim <= channel_axis:
            return array
        return np.moveaxis(array, channel_axis, -1)

    return inputs.map(change)


def placed(inputs: Inputs, device: Any) -> Inputs:
    """The same with every array on ``device``."""
    return inputs.map(lambda leaf: jax.device_put(leaf, device) if isinstance(leaf, np.ndarray | jax.Array) else leaf)


def _made(leaf: Any, random: np.random.Generator) -> Any:
    """An array of anything that has numbers: of a specification, and of other frameworks' tensors; anything else as it is."""
    if isinstance(leaf, TensorSpec):
        values = random.standard_normal(leaf.shape) if "float" in leaf.dtype else np.zeros(leaf.shape)
        return values.astype(leaf.dtype)
    return np.asarray(leaf) if hasattr(leaf, "__array__") and not isinstance(leaf, jax.Array) else leaf
