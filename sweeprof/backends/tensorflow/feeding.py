"""Inputs and targets as tensors on a device."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from sweeprof.profiling.inputs import Inputs, TensorSpec


def on_device(inputs: Inputs, device: str, channel_axis: int | None = None, dtype: str | None = None) -> Inputs:
    """The inputs with every tensor on ``device``; what is only specified is generated there, the same values each time.

    Args:
        device: as TensorFlow calls it.
        channel_axis: where arrays have the channels that the model expects last; None: they stay as they are.
        dtype: of floating-point tensors; None: their own.
    """
    with tf.device(device):
        return inputs.map(partial(_tensor, channel_axis=channel_axis, dtype=dtype))


def as_tensor(values: Any, device: str) -> Any:
    """Targets as tensors on ``device``; None stays None."""
    return on_device(Inputs((values,)), device).args[0]


def arranged(array: Any, channel_axis: int | None) -> Any:
    """An array with its channels last; one without such an axis as it is."""
    if channel_axis is None or array.ndim <= max(channel_axis, 1):
        return array
    return np.moveaxis(array, channel_axis, -1)


def _tensor(leaf: Any, channel_axis: int | None, dtype: str | None) -> Any:
    if isinstance(leaf, Mapping):  # of a kind of its own, such as a tokenizer's BatchEncoding
        return {key: _tensor(value, channel_axis, dtype) for key, value in leaf.items()}
    if isinstance(leaf, TensorSpec):
        leaf = _generated(leaf)
    elif hasattr(leaf, "detach"):  # one of torch, as its data loaders give
        leaf = leaf.detach().cpu().numpy()
    if isinstance(leaf, np.ndarray | np.generic):
        leaf = tf.constant(arranged(leaf, channel_axis))
    if not tf.is_tensor(leaf):
        return leaf
    wanted = leaf.dtype if dtype is None or not leaf.dtype.is_floating else tf.as_dtype(dtype)
    return tf.identity(tf.cast(leaf, wanted)) if isinstance(leaf, tf.Tensor) else leaf


def _generated(spec: TensorSpec) -> Any:
    dtype = tf.as_dtype(spec.dtype)
    if not (dtype.is_floating or dtype.is_complex):
        return tf.zeros(spec.shape, dtype)
    return tf.cast(np.random.default_rng(0).standard_normal(spec.shape, np.float32), dtype)
