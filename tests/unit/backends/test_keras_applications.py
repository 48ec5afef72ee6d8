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


def resnet50() -> Iterator[int]:
    """Version 1: of a stage's first block the first convolution has the stride, as Keras has it (torchvision: the second)."""
    yield 112**2 * 64 * 7**2 * 3
    given = 64
    for width, blocks, side in ((64, 3, 56), (128, 4, 28), (256, 6, 14), (512, 3, 7)):
        for block in range(blocks):
            yield side**2 * (given * width + 9 * width**2 + 4 * width**2)
            yield side**2 * given * 4 * width if block == 0 else 0
            given = 4 * width
    yield 2048 * 1000


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


def efficientnet_b0() -> Iterator[int]:
    """Table 1 of Tan and Le, 2019: expansion, kernel, channels, repeats, stride; squeeze and excitation to a quarter."""
    yield 112**2 * 32 * 9 * 3
    given, side = 32, 112
    for expansion, kernel, made, repeats, stride in (
        *((1, 3, 16, 1, 1), (6, 3, 24, 2, 2), (6, 5, 40, 2, 2), (6, 3, 80, 3, 2)),
        *((6, 5, 112, 3, 1), (6, 5, 192, 4, 2), (6, 3, 320, 1, 1)),
    ):
        for repeat in range(repeats):
            inner = given * expansion
            yield side**2 * given * inner if expansion > 1 else 0
            side //= stride if repeat == 0 else 1
            yield side**2 * (kernel**2 * inner + inner * made) + 2 * inner * (given // 4)
            given = made
    yield 7**2 * 320 * 1280 + 1280 * 1000


@pytest.mark.parametrize(
    ("name", "total", "trainable", "macs"),
    [
        pytest.param("ResNet50", 25_636_712, 25_583_592, sum(resnet50()), marks=pytest.mark.slow),
        ("MobileNetV2", 3_538_984, 3_504_872, sum(mobilenet_v2())),
        pytest.param("EfficientNetB0", 5_330_571, 5_288_548, sum(efficientnet_b0()), marks=pytest.mark.slow),
    ],
)
def test_classic_models(name: str, total: int, trainable: int, macs: int) -> None:
    """Parameters: the totals that ``model.summary()`` documents, moving statistics among them."""
    model = getattr(keras.applications, name)(weights=None)
    table = complete(model, 1, 224, 224, 3)
    assert table.params + table.buffers == total
    assert table.params == table.trainable == trainable
    assert table.macs == macs
    assert complete(model, 7, 224, 224, 3).macs == 7 * macs


SMALLER = {
    "DenseNet121": (64, 8_062_504),
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
