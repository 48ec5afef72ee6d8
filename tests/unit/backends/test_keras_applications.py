"""Models of ``keras.applications``: parameters as Keras documents them, multiply-accumulates by hand and as in torch."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

import keras
import pytest
from keras import layers

from sweeprof.backends.keras.counting import count_layers
from sweeprof.measuring.inputs import Inputs, TensorSpec
from sweeprof.results.layers import LayerTable


def complete(model: Any, *shape: int) -> LayerTable:
    table = count_layers(model, Inputs((TensorSpec(shape),)))
    assert (table.uncovered, table.method, table.coverage) == ({}, "shapes", 1)
    assert table.params + table.buffers == model.count_params()
    return table


def mobilenet_v2() -> Iterator[int]:
    """Table 2 of Sandler et al., 2018: expansion, channels, repeats, stride."""
    yield 112**2 * 32 * 9 * 3
    given, side = 32, 112
    for expansion, made, repeats, stride in (
        *((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2)),
        *((6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)),
    ):
        for repeat in range(repeats):
            inner = given * expansion
            yield side**2 * given * inner if expansion > 1 else 0
            side //= stride if repeat == 0 else 1
            yield side**2 * (9 * inner + inner * made)
            given = made
    yield 7**2 * 320 * 1280 + 1280 * 1000


def test_mobilenet_v2_by_hand() -> None:
    """Parameters: the totals that ``model.summary()`` documents, moving statistics among them."""
    model = keras.applications.MobileNetV2(weights=None)
    table = complete(model, 1, 224, 224, 3)
    assert (table.params + table.buffers, table.params, table.trainable) == (3_538_984, 3_504_872, 3_504_872)
    assert table.macs == sum(mobilenet_v2())
    assert complete(model, 7, 224, 224, 3).macs == 7 * table.macs


SMALLER = {
    "DenseNet121": (64, 8_062_504),
    "EfficientNetB0": (64, 5_330_571),
    "ResNet50": (64, 25_636_712),
    "EfficientNetV2B0": (64, 7_200_312),
    "MobileNet": (64, 4_253_864),
    "MobileNetV3Small": (64, 2_554_968),
    "NASNetMobile": (224, 5_326_716),
    "Xception": (96, 22_910_480),
    "ConvNeXtTiny": (64, 28_589_128),
    "InceptionV3": (96, 23_851_784),
}
"""Side of the image, and parameters as documented for 1000 classes."""
FURTHER = ("EfficientNetV2B0", "MobileNetV3Small", "NASNetMobile", "Xception")
"""Depthwise convolutions as in MobileNet, at greater depth."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.thorough if name in FURTHER else pytest.mark.slow) for name in SMALLER],
)
def test_further_applications(name: str) -> None:
    """Every product is that of a convolution or a dense layer, by its kernel: an independent sum over the layers."""
    side, total = SMALLER[name]
    model = getattr(keras.applications, name)(weights=None, input_shape=(side, side, 3))
    table = complete(model, 1, side, side, 3)
    assert table.params + table.buffers == total
    assert table.macs == sum(products(model))


def products(model: Any) -> Iterator[int]:
    """Of the layers of a graph, from the shapes that Keras infers for them."""
    for operation in model.layers if isinstance(model, keras.Sequential) else model.operations:
        if isinstance(operation, keras.Model):
            yield from products(operation)
        elif isinstance(operation, layers.SeparableConv2D):
            _, height, width, made = operation.output.shape
            depthwise = operation.depthwise_kernel.shape
            yield height * width * (depthwise[0] * depthwise[1] + made) * depthwise[2]
        elif isinstance(operation, layers.DepthwiseConv2D):
            yield prod(operation.output.shape[1:]) * operation.kernel.shape[0] * operation.kernel.shape[1]
        elif isinstance(operation, layers.Conv2D):
            height, width, given, _ = operation.kernel.shape
            yield prod(operation.output.shape[1:]) * height * width * given
        elif isinstance(operation, layers.Dense):
            yield prod(operation.output.shape[1:]) * operation.kernel.shape[0]
