"""Each layer of Keras beside the module of torch that computes the same: MACs, FLOPs, operations and parameters are equal."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import keras
import pytest
from keras import layers
from torch import nn

from sweeprof.backends.keras.counting import count_layers
from sweeprof.backends.torch.counting import count_layers as count_torch
from sweeprof.measuring.inputs import Inputs, TensorSpec
from sweeprof.results.layers import LayerTable


def complete(model: Any, *shape: int, dtype: str = "float32") -> LayerTable:
    table = count_layers(model, Inputs((TensorSpec(shape, dtype),)))
    assert table.uncovered == {}
    assert table.coverage in (None, 1)
    assert table.method == "shapes"
    return table


def in_torch(module: nn.Module, *shape: int, dtype: str = "float32") -> LayerTable:
    table = count_torch(module.eval(), Inputs((TensorSpec(shape, dtype),)))
    assert table.uncovered == {}
    return table


def figures(table: LayerTable) -> tuple[Any, ...]:
    return table.macs, table.flops, table.ops, table.params, table.buffers


class First(nn.Module):
    """Of what a recurrent network returns, the sequence."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Any) -> Any:
        return self.network(x)[0]


class SelfAttention(nn.Module):
    def __init__(self, width: int, heads: int, bias: bool = True) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, heads, bias=bias, batch_first=True)

    def forward(self, x: Any) -> Any:
        return self.attention(x, x, x, need_weights=False)[0]


class KerasSelfAttention(keras.Model):  # type: ignore[misc]
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        self.attention = layers.MultiHeadAttention(*args, **kwargs)

    def call(self, x: Any) -> Any:
        return self.attention(x, x)


def conv(dims: int, **kwargs: Any) -> Any:
    return getattr(layers, f"Conv{dims}D")(6, 3, **kwargs)


def torch_conv(dims: int, **kwargs: Any) -> Any:
    return getattr(nn, f"Conv{dims}d")(4, 6, 3, **kwargs)


def separable(dims: int, **kwargs: Any) -> nn.Module:
    kind = getattr(nn, f"Conv{dims}d")
    return nn.Sequential(kind(4, 8, 3, groups=4, bias=False, **kwargs), kind(8, 6, 1))


CONVOLUTIONS: list[tuple[int, Callable[[], Any], Callable[[], nn.Module]]] = [
    *((d, lambda d=d: conv(d), lambda d=d: torch_conv(d)) for d in (1, 2, 3)),
    *((d, lambda d=d: conv(d, groups=2), lambda d=d: torch_conv(d, groups=2)) for d in (1, 2, 3)),
    *((d, lambda d=d: conv(d, strides=2), lambda d=d: torch_conv(d, stride=2)) for d in (1, 2, 3)),
    *((d, lambda d=d: conv(d, dilation_rate=2), lambda d=d: torch_conv(d, dilation=2)) for d in (1, 2, 3)),
    *((d, lambda d=d: conv(d, padding="same"), lambda d=d: torch_conv(d, padding=1)) for d in (1, 2, 3)),
    *((d, lambda d=d: conv(d, use_bias=False), lambda d=d: torch_conv(d, bias=False)) for d in (1, 2, 3)),
    (2, lambda: conv(2, activation="relu"), lambda: nn.Sequential(torch_conv(2), nn.ReLU())),
    *(
        (
            d,
            lambda d=d: getattr(layers, f"Conv{d}DTranspose")(6, 3, strides=2),
            lambda d=d: getattr(nn, f"ConvTranspose{d}d")(4, 6, 3, stride=2),
        )
        for d in (1, 2, 3)
    ),
    (
        2,
        lambda: layers.Conv2DTranspose(6, 4, 2, "same", use_bias=False),
        lambda: nn.ConvTranspose2d(4, 6, 4, 2, 1, bias=False),
    ),
    (1, lambda: layers.DepthwiseConv1D(3), lambda: nn.Conv1d(4, 4, 3, groups=4)),
    (2, lambda: layers.DepthwiseConv2D(3, depth_multiplier=2), lambda: nn.Conv2d(4, 8, 3, groups=4)),
    *(
        (d, lambda d=d: getattr(layers, f"SeparableConv{d}D")(6, 3, depth_multiplier=2), lambda d=d: separable(d))
        for d in (1, 2)
    ),
    *(
        (d, lambda d=d: getattr(layers, f"MaxPooling{d}D")(2), lambda d=d: getattr(nn, f"MaxPool{d}d")(2))
        for d in (1, 2, 3)
    ),
    *(
        (d, lambda d=d: getattr(layers, f"AveragePooling{d}D")(3), lambda d=d: getattr(nn, f"AvgPool{d}d")(3))
        for d in (1, 2, 3)
    ),
    *(
        (
            d,
            lambda d=d: getattr(layers, f"GlobalAveragePooling{d}D")(),
            lambda d=d: getattr(nn, f"AdaptiveAvgPool{d}d")(1),
        )
        for d in (1, 2, 3)
    ),
    *(
        (
            d,
            lambda d=d: getattr(layers, f"AdaptiveAveragePooling{d}D")(4),
            lambda d=d: getattr(nn, f"AdaptiveAvgPool{d}d")(4),
        )
        for d in (1, 2, 3)
    ),
    *(
        (
            d,
            lambda d=d: getattr(layers, f"AdaptiveMaxPooling{d}D")(4),
            lambda d=d: getattr(nn, f"AdaptiveMaxPool{d}d")(4),
        )
        for d in (1, 2, 3)
    ),
    *((d, layers.BatchNormalization, lambda d=d: Untracked(getattr(nn, f"BatchNorm{d}d")(4))) for d in (1, 2, 3)),
    (
        2,
        lambda: layers.BatchNormalization(center=False, scale=False),
        lambda: Untracked(nn.BatchNorm2d(4, affine=False)),
    ),
    (2, lambda: layers.GroupNormalization(2), lambda: nn.GroupNorm(2, 4)),
    (2, lambda: layers.GroupNormalization(-1), lambda: nn.GroupNorm(4, 4)),
    (2, lambda: layers.GroupNormalization(2, center=False, scale=False), lambda: nn.GroupNorm(2, 4, affine=False)),
    (2, lambda: layers.UpSampling2D(2), lambda: nn.Upsample(scale_factor=2)),
    (2, lambda: layers.UpSampling2D(2, interpolation="bilinear"), lambda: nn.Upsample(scale_factor=2, mode="bilinear")),
    (2, lambda: layers.UpSampling2D(2, interpolation="bicubic"), lambda: nn.Upsample(scale_factor=2, mode="bicubic")),
    (1, lambda: layers.UpSampling1D(2), lambda: nn.Upsample(scale_factor=2)),
    (2, lambda: layers.ZeroPadding2D(1), lambda: nn.ZeroPad2d(1)),
    (2, lambda: layers.SpatialDropout2D(0.5), lambda: nn.Dropout2d(0.5)),
    (2, lambda: layers.PReLU(shared_axes=[1, 2]), lambda: nn.PReLU(4)),
]


class Untracked(nn.Module):
    """A batch norm without torch's counter of batches, which is one buffer more."""

    def __init__(self, norm: Any) -> None:
        super().__init__()
        norm.num_batches_tracked = None
        self.norm = norm

    def forward(self, x: Any) -> Any:
        return self.norm(x)


@pytest.mark.parametrize("case", range(len(CONVOLUTIONS)))
def test_layers_of_images(case: int) -> None:
    """Channels are last in Keras and first in torch."""
    dims, layer, module = CONVOLUTIONS[case]
    space = (9, 8, 7)[:dims]
    expected = in_torch(module(), 2, 4, *space)
    assert figures(complete(layer(), 2, *space, 4)) == figures(expected)


ACTIVATIONS: dict[str, nn.Module] = {
    "relu": nn.ReLU(),
    "relu6": nn.ReLU6(),
    "leaky_relu": nn.LeakyReLU(),
    "elu": nn.ELU(),
    "celu": nn.CELU(),
    "selu": nn.SELU(),
    "gelu": nn.GELU(),
    "silu": nn.SiLU(),
    "mish": nn.Mish(),
    "sigmoid": nn.Sigmoid(),
    "tanh": nn.Tanh(),
    "softplus": nn.Softplus(),
    "softsign": nn.Softsign(),
    "hard_sigmoid": nn.Hardsigmoid(),
    "hard_silu": nn.Hardswish(),
    "hard_tanh": nn.Hardtanh(),
    "hard_shrink": nn.Hardshrink(),
    "soft_shrink": nn.Softshrink(),
    "tanh_shrink": nn.Tanhshrink(),
    "log_sigmoid": nn.LogSigmoid(),
    "softmax": nn.Softmax(-1),
    "log_softmax": nn.LogSoftmax(-1),
    "glu": nn.GLU(),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name: str) -> None:
    """As a layer, and as an argument of one."""
    expected = in_torch(ACTIVATIONS[name], 3, 8)
    assert figures(complete(layers.Activation(name), 3, 8)) == figures(expected)
    dense = in_torch(nn.Sequential(nn.Linear(5, 8), ACTIVATIONS[name]), 3, 5)
    assert figures(complete(layers.Dense(8, activation=name), 3, 5)) == figures(dense)


OTHERS: list[tuple[Callable[[], Any], Callable[[], nn.Module], tuple[int, ...]]] = [
    (lambda: layers.Dense(32), lambda: nn.Linear(8, 32), (1, 8)),
    (lambda: layers.Dense(32, use_bias=False), lambda: nn.Linear(8, 32, bias=False), (2, 3, 8)),
    (lambda: layers.EinsumDense("abc,cd->abd", (None, 5), bias_axes="d"), lambda: nn.Linear(8, 5), (2, 3, 8)),
    (lambda: layers.EinsumDense("...c,cd->...d", 5), lambda: nn.Linear(8, 5, bias=False), (2, 3, 8)),
    (layers.LayerNormalization, lambda: nn.LayerNorm(8), (2, 3, 8)),
    (lambda: layers.LayerNormalization(center=False), lambda: nn.LayerNorm(8, bias=False), (2, 3, 8)),
    (layers.RMSNormalization, lambda: nn.RMSNorm(8), (2, 3, 8)),
    (layers.Softmax, lambda: nn.Softmax(-1), (2, 3, 8)),
    (layers.ReLU, nn.ReLU, (2, 8)),
    (lambda: layers.ReLU(6.0), nn.ReLU6, (2, 8)),
    (layers.LeakyReLU, nn.LeakyReLU, (2, 8)),
    (layers.ELU, nn.ELU, (2, 8)),
    (lambda: layers.Activation("gelu"), nn.GELU, (2, 8)),
    (lambda: layers.Dropout(0.5), nn.Dropout, (2, 8)),
    (layers.Flatten, nn.Flatten, (2, 8, 3)),
    (
        lambda: layers.SimpleRNN(16, use_bias=False),
        lambda: First(nn.RNN(8, 16, bias=False, batch_first=True)),
        (4, 5, 8),
    ),
    (lambda: layers.LSTM(16, use_bias=False), lambda: First(nn.LSTM(8, 16, bias=False, batch_first=True)), (4, 5, 8)),
    (lambda: layers.GRU(16, use_bias=False), lambda: First(nn.GRU(8, 16, bias=False, batch_first=True)), (4, 5, 8)),
    (lambda: layers.GRU(16), lambda: First(nn.GRU(8, 16, batch_first=True)), (4, 5, 8)),
    (
        lambda: layers.Bidirectional(layers.GRU(16, return_sequences=True)),
        lambda: First(nn.GRU(8, 16, batch_first=True, bidirectional=True)),
        (4, 5, 8),
    ),
    (
        lambda: keras.Sequential([layers.GRU(16, return_sequences=True), layers.GRU(16)]),
        lambda: First(nn.GRU(8, 16, num_layers=2, batch_first=True)),
        (4, 5, 8),
    ),
    (lambda: KerasSelfAttention(4, 4), lambda: SelfAttention(16, 4), (2, 5, 16)),
    (lambda: KerasSelfAttention(4, 4, use_bias=False), lambda: SelfAttention(16, 4, bias=False), (2, 5, 16)),
]


@pytest.mark.parametrize("case", range(len(OTHERS)))
def test_other_layers(case: int) -> None:
    layer, module, shape = OTHERS[case]
    assert figures(complete(layer(), *shape)) == figures(in_torch(module(), *shape))


def test_a_lookup() -> None:
    table = complete(layers.Embedding(10, 4), 2, 3, dtype="int64")
    assert figures(table) == figures(in_torch(nn.Embedding(10, 4), 2, 3, dtype="int64"))


@pytest.mark.parametrize(("name", "longer"), [("lenet5", 0), ("mlp", 0), ("digits_resnet", 3 * 32 * 32 * 16 * 4)])
def test_the_zoo(name: str, longer: int) -> None:
    """Whole models, and the memory of their activations.

    A forward in Python holds what its variables name until it returns: in torch's residual block one tensor longer than needed.
    """
    builders = import_module(f"sweeprof.zoo.{name}")
    ours = complete(builders.keras_model(False), 3, 32, 32, 1)
    theirs = in_torch(builders.torch_model(False), 3, 1, 32, 32)
    assert figures(ours)[:4] == figures(theirs)[:4]
    assert ours.liveness is not None
    assert theirs.liveness is not None
    assert ours.liveness.input_bytes == theirs.liveness.input_bytes
    assert ours.liveness.peak_bytes == theirs.liveness.peak_bytes - longer
