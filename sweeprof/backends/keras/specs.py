"""What an operation returns, in shapes: as Keras says, but for operations of which Keras 3 says it wrongly.

And what one consists of that is several.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import keras
from keras import ops


def _separable(operation: Any, inputs: Any, depthwise: Any, pointwise: Any) -> Any:
    where, dilation = operation.data_format, operation.dilation_rate
    between = ops.depthwise_conv(inputs, depthwise, operation.strides, operation.padding, where, dilation)
    return ops.conv(between, pointwise, 1, "valid", where)


PARTS: dict[str, Callable[..., Any]] = {"separable_conv": _separable}
"""By the name of an operation, the same by others."""


def output_of(name: str, operation: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Symbolic outputs of an operation of ``keras.ops`` on symbolic tensors."""
    if name == "conv" and len(args) == 2:
        return operation.compute_output_spec(args[0], _ungrouped(operation, *args))
    if name in ("adaptive_average_pool", "adaptive_max_pool"):
        return _pooled(operation, args[0])
    return operation.compute_output_spec(*args, **kwargs)


def _is_first(operation: Any) -> bool:
    return bool(keras.src.backend.standardize_data_format(operation.data_format) == "channels_first")


def _ungrouped(operation: Any, inputs: Any, kernel: Any) -> Any:
    """A kernel for all input channels: Keras knows groups in what it computes, and refuses them in shapes."""
    channels = inputs.shape[1 if _is_first(operation) else -1]
    *space, given, made = kernel.shape
    if given == channels or channels % given:
        return kernel
    return keras.KerasTensor((*space, channels, made), kernel.dtype)


def _pooled(operation: Any, inputs: Any) -> Any:
    """Keras keeps one of the sizes that it pools where the channels are last."""
    batch, *_ = inputs.shape
    size = operation.output_size
    sizes = (size,) * (len(inputs.shape) - 2) if isinstance(size, int) else tuple(size)
    shape = (batch, inputs.shape[1], *sizes) if _is_first(operation) else (batch, *sizes, inputs.shape[-1])
    return keras.KerasTensor(shape, inputs.dtype)
