"""Models of ``keras.applications``: parameters as Keras documents them, multiply-accumulates by hand and as in torch."""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Iterator
from math import prod
from typing import Any

import keras
import pytest
from keras import layers
from torch import nn

from sweeprof.backends.keras.counting import count_layers
from sweeprof.backends.torch.counting import count_layers as count_torch
from sweeprof.backends.torch.model import build_on_meta
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
        ("ResNet50", 25_636_712, 25_583_592, sum(resnet50())),
        ("MobileNetV2", 3_538_984, 3_504_872, sum(mobilenet_v2())),
        ("EfficientNetB0", 5_330_571, 5_288_548, sum(efficientnet_b0())),
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


def in_torchvision(name: str) -> LayerTable:
    before = sys.modules.get("torchvision._meta_registrations")
    if before is None:  # they need operators that a wheel for CUDA cannot load beside a torch without
        sys.modules["torchvision._meta_registrations"] = types.ModuleType("torchvision._meta_registrations")
    torchvision = importlib.import_module("torchvision")
    module = build_on_meta(getattr(torchvision.models, name)).eval()
    for inner in module.modules() if name == "resnet50" else ():
        parts: dict[str, Any] = dict(inner.named_children())
        if {"conv1", "conv3"} <= set(parts):
            parts["conv1"].stride, parts["conv2"].stride = parts["conv2"].stride, parts["conv1"].stride
    return count_torch(module, Inputs((TensorSpec((1, 3, 224, 224)),)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "macs"),
    [("resnet50", sum(resnet50())), ("mobilenet_v2", sum(mobilenet_v2())), ("efficientnet_b0", sum(efficientnet_b0()))],
)
def test_the_hand_counts_are_those_of_torch(name: str, macs: int) -> None:
    assert in_torchvision(name).macs == macs


WIDTH, HEADS, DEPTH, PATCH, SIDE = 48, 4, 3, 8, 32
TOKENS = (SIDE // PATCH) ** 2


class TorchBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Any) -> Any:
        y = self.norm1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class TorchViT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, PATCH, PATCH)
        self.positions = nn.Embedding(TOKENS, WIDTH)
        self.blocks = nn.Sequential(*(TorchBlock() for _ in range(DEPTH)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 10)

    def forward(self, images: Any) -> Any:
        x = self.patches(images).flatten(2).transpose(1, 2) + self.positions.weight
        return self.head(self.norm(self.blocks(x)).mean(1))


class Positions(keras.Layer):  # type: ignore[misc]
    def build(self, shape: Any) -> None:
        self.table = self.add_weight(shape=(TOKENS, WIDTH), name="positions")

    def call(self, x: Any) -> Any:
        return x + self.table


def keras_vit() -> Any:
    """As the example of keras.io has it."""
    image = keras.Input((SIDE, SIDE, 3))
    x = Positions()(layers.Reshape((TOKENS, WIDTH))(layers.Conv2D(WIDTH, PATCH, PATCH)(image)))
    for _ in range(DEPTH):
        y = layers.LayerNormalization()(x)
        x = layers.Add()([x, layers.MultiHeadAttention(HEADS, WIDTH // HEADS)(y, y)])
        y = layers.Dense(4 * WIDTH, "gelu")(layers.LayerNormalization()(x))
        x = layers.Add()([x, layers.Dense(WIDTH)(y)])
    x = layers.GlobalAveragePooling1D()(layers.LayerNormalization()(x))
    return keras.Model(image, layers.Dense(10)(x))


def test_a_vision_transformer() -> None:
    ours = complete(keras_vit(), 2, SIDE, SIDE, 3)
    theirs = count_torch(TorchViT().eval(), Inputs((TensorSpec((2, 3, SIDE, SIDE)),)))
    assert (ours.macs, ours.flops, ours.ops, ours.params) == (theirs.macs, theirs.flops, theirs.ops, theirs.params)
    block = TOKENS * 12 * WIDTH**2 + 2 * TOKENS**2 * WIDTH
    assert ours.macs == 2 * (TOKENS * WIDTH * 3 * PATCH**2 + DEPTH * block + WIDTH * 10)


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
