"""Every kind of layer: nothing of it is unknown, shapes and weights are those of a real forward, and costs those of torch."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers, ops
from torch import nn

from sweeprof.backends.keras.counting import count_layers
from sweeprof.backends.tensorflow.counting import count_layers as count_with_graphs
from sweeprof.backends.torch.counting import count_layers as count_torch
from sweeprof.measuring.inputs import Inputs, TensorSpec
from sweeprof.results.layers import LayerTable

SPACE = (9, 8, 7)
Arguments = dict[str, Any]
Shape = tuple[int, ...]


def given(shape: Shape, dtype: str = "float32") -> Inputs:
    return Inputs((TensorSpec(shape, dtype),))


def complete(layer: Any, *shape: int, dtype: str = "float32") -> LayerTable:
    """The counts of a layer, of which nothing is unknown; shapes, types and weights are those of a real forward."""
    table = count_layers(layer, given(shape, dtype))
    assert (table.uncovered, table.method) == ({}, "shapes")
    assert table.coverage in (None, 1)
    outputs = keras.tree.flatten(layer(np.ones(shape, dtype)))
    root = table.rows[0]
    assert root.output_shapes == tuple(tuple(tensor.shape) for tensor in outputs)
    assert root.output_dtypes == tuple(keras.backend.standardize_dtype(tensor.dtype) for tensor in outputs)
    held = [weight for weight in layer.weights if not weight.path.endswith("seed_generator_state")]
    assert table.params + table.buffers == sum(int(np.prod(weight.shape)) for weight in held)
    return table


# Layers that torch has, too


def figures(table: LayerTable) -> tuple[Any, ...]:
    return table.macs, table.flops, table.ops, table.params, table.buffers


def in_torch(module: nn.Module, *shape: int, dtype: str = "float32") -> LayerTable:
    table = count_torch(module.eval(), given(shape, dtype))
    assert table.uncovered == {}
    return table


# A layer of 4 channels and the module of torch, by dimensions, of a pattern of names
IMAGES: list[tuple[str, tuple[Any, ...], Arguments, str, tuple[Any, ...], Arguments]] = [
    ("Conv#D", (6, 3), {}, "Conv#d", (4, 6, 3), {}),
    ("Conv#D", (6, 3), {"groups": 2}, "Conv#d", (4, 6, 3), {"groups": 2}),
    ("Conv#D", (6, 3), {"strides": 2}, "Conv#d", (4, 6, 3), {"stride": 2}),
    ("Conv#D", (6, 3), {"dilation_rate": 2}, "Conv#d", (4, 6, 3), {"dilation": 2}),
    ("Conv#DTranspose", (6, 3), {"strides": 2}, "ConvTranspose#d", (4, 6, 3), {"stride": 2}),
    ("MaxPooling#D", (2,), {}, "MaxPool#d", (2,), {}),
    ("AveragePooling#D", (3,), {}, "AvgPool#d", (3,), {}),
    ("AdaptiveAveragePooling#D", (4,), {}, "AdaptiveAvgPool#d", (4,), {}),
    ("AdaptiveMaxPooling#D", (4,), {}, "AdaptiveMaxPool#d", (4,), {}),
    ("BatchNormalization", (), {}, "BatchNorm#d", (4,), {}),
]


def without_counter(module: Any) -> Any:
    """A batch norm without torch's counter of batches, which is one buffer more."""
    if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d):
        module.num_batches_tracked = None
    return module


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize(("name", "args", "kwargs", "twin", "of_twin", "named"), IMAGES)
def test_layers_of_images(name: str, args: Any, kwargs: Any, twin: str, of_twin: Any, named: Any, dims: int) -> None:
    """Channels are last in Keras and first in torch."""
    layer = getattr(layers, name.replace("#", str(dims)))(*args, **kwargs)
    module = without_counter(getattr(nn, twin.replace("#", str(dims)))(*of_twin, **named))
    space = SPACE[:dims]
    assert figures(complete(layer, 2, *space, 4)) == figures(in_torch(module, 2, 4, *space))


TWINS: list[tuple[Callable[[], Any], Callable[[], Any], int]] = [
    (lambda: layers.Conv2D(6, 3, activation="relu"), lambda: nn.Sequential(nn.Conv2d(4, 6, 3), nn.ReLU()), 2),
    (lambda: layers.Conv2DTranspose(6, 4, 2, "same", use_bias=False),
     lambda: nn.ConvTranspose2d(4, 6, 4, 2, 1, bias=False), 2),
    (lambda: layers.DepthwiseConv2D(3, depth_multiplier=2), lambda: nn.Conv2d(4, 8, 3, groups=4), 2),
    (lambda: layers.SeparableConv1D(6, 3, depth_multiplier=2),
     lambda: nn.Sequential(nn.Conv1d(4, 8, 3, groups=4, bias=False), nn.Conv1d(8, 6, 1)), 1),
    (lambda: layers.SeparableConv2D(6, 3, depth_multiplier=2),
     lambda: nn.Sequential(nn.Conv2d(4, 8, 3, groups=4, bias=False), nn.Conv2d(8, 6, 1)), 2),
    (lambda: layers.BatchNormalization(center=False, scale=False), lambda: nn.BatchNorm2d(4, affine=False), 2),
    (lambda: layers.GroupNormalization(2), lambda: nn.GroupNorm(2, 4), 2),
    (lambda: layers.GroupNormalization(-1), lambda: nn.GroupNorm(4, 4), 2),
    (lambda: layers.UpSampling2D(2), lambda: nn.Upsample(scale_factor=2), 2),
    (lambda: layers.UpSampling2D(2, interpolation="bilinear"), lambda: nn.Upsample(scale_factor=2, mode="bilinear"), 2),
    (lambda: layers.UpSampling2D(2, interpolation="bicubic"), lambda: nn.Upsample(scale_factor=2, mode="bicubic"), 2),
    (lambda: layers.ZeroPadding2D(1), lambda: nn.ZeroPad2d(1), 2),
    (lambda: layers.SpatialDropout2D(0.5), lambda: nn.Dropout2d(0.5), 2),
    (lambda: layers.PReLU(shared_axes=[1, 2]), lambda: nn.PReLU(4), 2),
]  # fmt: skip


@pytest.mark.parametrize(("layer", "module", "dims"), TWINS)
def test_further_layers_of_images(layer: Callable[[], Any], module: Callable[[], Any], dims: int) -> None:
    space = SPACE[:dims]
    expected = in_torch(without_counter(module()), 2, 4, *space)
    assert figures(complete(layer(), 2, *space, 4)) == figures(expected)


class First(nn.Module):
    """Of what a recurrent network returns, the sequence."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Any) -> Any:
        return self.network(x)[0]


class SelfAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)

    def forward(self, x: Any) -> Any:
        return self.attention(x, x, x, need_weights=False)[0]


class KerasSelfAttention(keras.Model):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.attention = layers.MultiHeadAttention(4, 4)

    def call(self, x: Any) -> Any:
        return self.attention(x, x)


def recurrent(kind: Any, **kwargs: Any) -> nn.Module:
    return First(kind(8, 16, batch_first=True, **kwargs))


OTHERS: list[tuple[Callable[[], Any], Callable[[], nn.Module], Shape]] = [
    (lambda: layers.Dense(32), lambda: nn.Linear(8, 32), (1, 8)),
    (lambda: layers.EinsumDense("abc,cd->abd", (None, 5), bias_axes="d"), lambda: nn.Linear(8, 5), (2, 3, 8)),
    (layers.LayerNormalization, lambda: nn.LayerNorm(8), (2, 3, 8)),
    (lambda: layers.LayerNormalization(center=False), lambda: nn.LayerNorm(8, bias=False), (2, 3, 8)),
    (layers.RMSNormalization, lambda: nn.RMSNorm(8), (2, 3, 8)),
    (lambda: layers.Dropout(0.5), nn.Dropout, (2, 8)),
    (layers.Flatten, nn.Flatten, (2, 8, 3)),
    (lambda: layers.LSTM(16, use_bias=False), lambda: recurrent(nn.LSTM, bias=False), (4, 5, 8)),
    (lambda: layers.GRU(16), lambda: recurrent(nn.GRU), (4, 5, 8)),
    (lambda: layers.Bidirectional(layers.GRU(16, return_sequences=True)),
     lambda: recurrent(nn.GRU, bidirectional=True), (4, 5, 8)),
    (lambda: keras.Sequential([layers.GRU(16, return_sequences=True), layers.GRU(16)]),
     lambda: recurrent(nn.GRU, num_layers=2), (4, 5, 8)),
    (KerasSelfAttention, SelfAttention, (2, 5, 16)),
]  # fmt: skip


@pytest.mark.parametrize(("layer", "module", "shape"), OTHERS)
def test_other_layers(layer: Callable[[], Any], module: Callable[[], nn.Module], shape: Shape) -> None:
    assert figures(complete(layer(), *shape)) == figures(in_torch(module(), *shape))


def test_a_lookup() -> None:
    table = complete(layers.Embedding(10, 4), 2, 3, dtype="int64")
    assert figures(table) == figures(in_torch(nn.Embedding(10, 4), 2, 3, dtype="int64"))


ACTIVATIONS: dict[str, nn.Module] = {
    "relu": nn.ReLU(), "relu6": nn.ReLU6(), "leaky_relu": nn.LeakyReLU(), "elu": nn.ELU(), "celu": nn.CELU(),
    "selu": nn.SELU(), "gelu": nn.GELU(), "silu": nn.SiLU(), "mish": nn.Mish(), "sigmoid": nn.Sigmoid(),
    "tanh": nn.Tanh(), "softplus": nn.Softplus(), "softsign": nn.Softsign(), "hard_sigmoid": nn.Hardsigmoid(),
    "hard_silu": nn.Hardswish(), "hard_tanh": nn.Hardtanh(), "hard_shrink": nn.Hardshrink(),
    "soft_shrink": nn.Softshrink(), "tanh_shrink": nn.Tanhshrink(), "log_sigmoid": nn.LogSigmoid(),
    "softmax": nn.Softmax(-1), "log_softmax": nn.LogSoftmax(-1), "glu": nn.GLU(),
}  # fmt: skip


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name: str) -> None:
    """As an argument of a layer."""
    dense = in_torch(nn.Sequential(nn.Linear(5, 8), ACTIVATIONS[name]), 3, 5)
    assert figures(complete(layers.Dense(8, activation=name), 3, 5)) == figures(dense)


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


# Multiply-accumulates by hand


PRODUCTS: list[tuple[Callable[[], Any], Shape, int]] = [
    (lambda: layers.Conv1D(6, 3, dilation_rate=2, padding="causal"), (2, 9, 4), 2 * 9 * 6 * (4 * 3)),
    (lambda: layers.DepthwiseConv2D(3, dilation_rate=2), (2, 9, 9, 4), 2 * 5 * 5 * 4 * (3 * 3)),
    (lambda: layers.Conv2D(6, (3, 5), (2, 1)), (2, 9, 9, 4), 2 * 6 * 4 * 5 * (4 * 3 * 5)),
    (lambda: layers.Conv2D(6, 3, 2, "same"), (2, 9, 9, 4), 2 * 6 * 5 * 5 * (4 * 3 * 3)),
    (lambda: layers.Conv2DTranspose(6, 4, 2, "same"), (2, 8, 8, 4), 2 * 4 * 8 * 8 * (6 * 4 * 4)),  # 49,152
    (lambda: layers.EinsumDense("abc,cde->abde", (None, 5, 6)), (2, 3, 4), 2 * 3 * 4 * 5 * 6),
    (lambda: layers.ConvLSTM2D(6, 3), (2, 5, 9, 9, 4), 2 * 5 * 4 * 6 * 7**2 * 3**2 * (4 + 6)),
]


@pytest.mark.parametrize(("layer", "shape", "macs"), PRODUCTS)
def test_products_by_hand(layer: Callable[[], Any], shape: Shape, macs: int) -> None:
    assert complete(layer(), *shape).macs == macs


SUMS: list[tuple[Callable[[Any], Any], tuple[int, int, int]]] = [
    (lambda x: ops.einsum("bi,bj->bij", x, x), (0, 128, 128)),
    (lambda x: ops.outer(x, x), (0, 256, 256)),
    (lambda x: ops.vdot(x, x), (16, 32, 31)),
    (lambda x: ops.einsum("bi->b", x), (0, 16, 14)),
]


@pytest.mark.parametrize(("function", "cost"), SUMS, ids=["einsum", "outer", "vdot", "one operand"])
def test_sums_and_products_by_hand(function: Callable[[Any], Any], cost: Any) -> None:
    """MACs, FLOPs and operations of 2 samples of 8 numbers."""
    table = complete(layers.Lambda(function), 2, 8)
    assert (table.macs, table.flops, table.ops) == cost


# Everything else that Keras has


NETWORKS = ("LSTM", "GRU", "SimpleRNN")
UNROLLED = {"dropout": 0.5, "recurrent_dropout": 0.5, "go_backwards": True, "unroll": True}
FURTHER_ACTIVATIONS = "exponential linear squareplus sparse_plus sparse_sigmoid sparsemax".split()
BY_DIMENSIONS: list[tuple[str, Arguments]] = [
    ("Conv#DTranspose", {"filters": 6, "kernel_size": 3, "strides": 2, "padding": "same"}),
    ("MaxPooling#D", {"padding": "same"}),
    ("AveragePooling#D", {"pool_size": 3, "padding": "same"}),
    ("GlobalMaxPooling#D", {"keepdims": True}),
    ("GlobalAveragePooling#D", {}),
    ("ZeroPadding#D", {}),
    ("Cropping#D", {}),
    ("SpatialDropout#D", {"rate": 0.5}),
]
CASES: list[tuple[str, Arguments, Shape]] = [
    *((name.replace("#", str(d)), kwargs, (2, *SPACE[:d], 4)) for name, kwargs in BY_DIMENSIONS for d in (1, 2, 3)),
    ("SeparableConv2D", {"filters": 6, "kernel_size": 3, "padding": "same"}, (2, 9, 8, 4)),
    ("ConvLSTM2D", {"filters": 3, "kernel_size": 2, "return_sequences": True}, (2, 3, 9, 8, 4)),
    *((kind, {"units": 6, "return_sequences": True, "return_state": True}, (2, 5, 8)) for kind in NETWORKS),
    *((kind, {"units": 6, **UNROLLED}, (2, 5, 8)) for kind in NETWORKS),
    *((kind, {"units": 6, "stateful": True}, (2, 5, 8)) for kind in NETWORKS),
    ("GRU", {"units": 6, "reset_after": False, "implementation": 1}, (2, 5, 8)),
    ("LSTM", {"units": 6, "implementation": 1}, (2, 5, 8)),
    *((kind, {}, (2, 6, 6, 4)) for kind in ("PReLU", "UnitNormalization", "Identity", "Masking", "LayerNormalization")),
    ("Softmax", {"axis": [1, 2]}, (2, 6, 6, 4)),
    ("LayerNormalization", {"axis": [1, 2]}, (2, 6, 6, 4)),
    ("BatchNormalization", {"axis": 1}, (2, 6, 6, 4)),
    *((kind, {"rate": 0.5}, (2, 8)) for kind in ("AlphaDropout", "GaussianDropout")),
    ("GaussianNoise", {"stddev": 0.5}, (2, 8)),
    ("ActivityRegularization", {"l2": 0.5}, (2, 8)),
    ("UpSampling2D", {"interpolation": "lanczos3"}, (2, 6, 6, 4)),
    ("Reshape", {"target_shape": (4, -1)}, (2, 8)),
    ("Permute", {"dims": (2, 1)}, (2, 8, 3)),
    ("RepeatVector", {"n": 3}, (2, 8)),
    ("Rescaling", {"scale": 0.5}, (2, 6, 6, 3)),
    ("Normalization", {"mean": 0.5, "variance": 2.0}, (2, 6, 6, 3)),
    ("STFTSpectrogram", {"frame_length": 64, "frame_step": 32, "fft_length": 64}, (2, 400, 1)),
    *(("Activation", {"activation": name}, (2, 8)) for name in FURTHER_ACTIVATIONS),
]


@pytest.mark.parametrize(("name", "kwargs", "shape"), CASES)
def test_every_kind_of_layer(name: str, kwargs: Arguments, shape: Shape) -> None:
    complete(getattr(layers, name)(**kwargs), *shape)


class Paired(keras.Model):  # type: ignore[misc]
    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    def call(self, x: Any) -> Any:
        return self.layer([x, ops.tanh(x)])


@pytest.mark.parametrize(
    "name", "Attention AdditiveAttention Add Subtract Multiply Average Maximum Minimum Concatenate Dot".split()
)
def test_layers_of_several_tensors(name: str) -> None:
    arguments = {"axes": 2} if name == "Dot" else {}
    complete(Paired(getattr(layers, name)(**arguments)), 2, 5, 8)


def test_layers_around_layers() -> None:
    for mode in ("concat", "sum", "mul", "ave", None):
        complete(layers.Bidirectional(layers.GRU(6, return_sequences=True), merge_mode=mode), 2, 5, 8)
    complete(layers.SpectralNormalization(layers.Dense(4)), 2, 8)


@pytest.mark.parametrize(
    ("layer", "flops"),
    [
        (layers.Resizing(4, 5), 840),
        (layers.CenterCrop(4, 5), 0),
        (layers.RandomFlip(), 0),
        (layers.RandomCrop(4, 4), 0),
    ],
)
def test_image_layers_are_counted_by_the_graph_of_the_framework_or_listed(layer: Any, flops: int) -> None:
    shape = tuple(layer(np.ones((2, 6, 6, 3), "float32"), training=False).shape)
    for count, uncovered in ((count_with_graphs, {}), (count_layers, {type(layer).__name__: 1})):
        table = count(layer, given((2, 6, 6, 3)))
        assert table.uncovered == uncovered
        assert table.method.startswith("shapes; as a graph __root__: ")
        assert table.rows[0].output_shapes == (shape,)
        assert table.flops == (0 if uncovered else flops)
