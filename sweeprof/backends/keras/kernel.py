"""The calibration kernel that resembles a Keras model."""

from __future__ import annotations

import keras

from sweeprof.measuring.calibration import KernelName, resembling

_CONVOLUTIONS = tuple(
    getattr(keras.layers, f"{kind}{dims}D")
    for kind, last in (("Conv", 3), ("DepthwiseConv", 2), ("SeparableConv", 2))
    for dims in range(1, last + 1)
)


def resembling_kernel(model: object) -> KernelName:
    """The kernel for a Keras layer, or for any function."""
    layers = model._flatten_layers() if isinstance(model, keras.Layer) else ()
    kinds = [type(layer) for layer in layers]
    convolutions = sum(issubclass(kind, _CONVOLUTIONS) for kind in kinds)
    return resembling(convolutions, sum(issubclass(kind, keras.layers.Dense) for kind in kinds))
