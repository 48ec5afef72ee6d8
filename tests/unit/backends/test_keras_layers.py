"""Every kind of layer: it is traced, nothing of it is unknown, and its shapes and weights are those of a real forward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers, ops

from sweeprof.backends.keras.counting import count_layers
from sweeprof.backends.tensorflow.counting import count_layers as count_with_graphs
from sweeprof.measuring.inputs import Inputs, TensorSpec

SPACE = (9, 8, 7)
IMAGES: dict[str, dict[str, Any]] = {
    "Conv#D": {"filters": 6, "kernel_size": 3, "groups": 2, "activation": "relu"},
    "Conv#DTranspose": {"filters": 6, "kernel_size": 3, "strides": 2, "padding": "same"},
    "MaxPooling#D": {"padding": "same"},
    "AveragePooling#D": {"pool_size": 3, "padding": "same"},
    "GlobalMaxPooling#D": {"keepdims": True},
    "GlobalAveragePooling#D": {},
    "AdaptiveAveragePooling#D": {"output_size": 4},
    "AdaptiveMaxPooling#D": {"output_size": 4},
    "ZeroPadding#D": {},
    "Cropping#D": {},
    "UpSampling#D": {},
    "SpatialDropout#D": {"rate": 0.5},
}
CASES: list[tuple[str, dict[str, Any], tuple[int, ...]]] = [
    *((name.replace("#", str(d)), kwargs, (2, *SPACE[:d], 4)) for name, kwargs in IMAGES.items() for d in (1, 2, 3)),
    *(
        (f"{kind}Conv{d}D", kwargs, (2, *SPACE[:d], 4))
        for d in (1, 2)
        for kind, kwargs in (
            ("Depthwise", {"kernel_size": 3, "depth_multiplier": 2}),
            ("Separable", {"filters": 6, "kernel_size": 3, "padding": "same"}),
        )
    ),
    *(
        (f"ConvLSTM{d}D", {"filters": 3, "kernel_size": 2, "return_sequences": True}, (2, 3, *SPACE[:d], 4))
        for d in (1, 2)
    ),
    *(
        (f"{kind}", {"units": 6, "return_sequences": True, "return_state": True}, (2, 5, 8))
        for kind in ("LSTM", "GRU", "SimpleRNN")
    ),
    *(
        (
            f"{kind}",
            {"units": 6, "dropout": 0.5, "recurrent_dropout": 0.5, "go_backwards": True, "unroll": True},
            (2, 5, 8),
        )
        for kind in ("LSTM", "GRU", "SimpleRNN")
    ),
    *((kind, {"units": 6, "stateful": True}, (2, 5, 8)) for kind in ("LSTM", "GRU", "SimpleRNN")),
    ("GRU", {"units": 6, "reset_after": False, "implementation": 1}, (2, 5, 8)),
    ("LSTM", {"units": 6, "implementation": 1}, (2, 5, 8)),
    *(
        (kind, {}, (2, 6, 6, 4))
        for kind in (
            *(
                "ReLU",
                "LeakyReLU",
                "PReLU",
                "ELU",
                "Softmax",
                "BatchNormalization",
                "LayerNormalization",
                "UnitNormalization",
            ),
            *("RMSNormalization", "Flatten", "Identity", "Masking"),
        )
    ),
    ("Softmax", {"axis": [1, 2]}, (2, 6, 6, 4)),
    ("LayerNormalization", {"axis": [1, 2]}, (2, 6, 6, 4)),
    ("BatchNormalization", {"axis": 1}, (2, 6, 6, 4)),
    ("GroupNormalization", {"groups": 2}, (2, 6, 6, 4)),
    *(
        (kind, {argument: 0.5}, (2, 8))
        for kind, argument in (
            *(("Dropout", "rate"), ("AlphaDropout", "rate"), ("GaussianDropout", "rate"), ("GaussianNoise", "stddev")),
            ("ActivityRegularization", "l2"),
        )
    ),
    ("UpSampling2D", {"interpolation": "bilinear"}, (2, 6, 6, 4)),
    ("UpSampling2D", {"interpolation": "lanczos3"}, (2, 6, 6, 4)),
    ("Reshape", {"target_shape": (4, -1)}, (2, 8)),
    ("Permute", {"dims": (2, 1)}, (2, 8, 3)),
    ("RepeatVector", {"n": 3}, (2, 8)),
    ("Rescaling", {"scale": 0.5}, (2, 6, 6, 3)),
    ("Normalization", {"mean": 0.5, "variance": 2.0}, (2, 6, 6, 3)),
    ("STFTSpectrogram", {"frame_length": 64, "frame_step": 32, "fft_length": 64}, (2, 400, 1)),
    ("EinsumDense", {"equation": "...x,xy->...y", "output_shape": 5, "bias_axes": "y"}, (2, 3, 4)),
    ("Dense", {"units": 4, "kernel_regularizer": "l2", "activity_regularizer": "l2"}, (2, 3, 4)),
    *(
        ("Activation", {"activation": name}, (2, 8))
        for name in (
            *(
                "relu",
                "relu6",
                "sigmoid",
                "tanh",
                "softmax",
                "softplus",
                "softsign",
                "gelu",
                "elu",
                "selu",
                "silu",
                "leaky_relu",
            ),
            *(
                "hard_sigmoid",
                "hard_silu",
                "mish",
                "exponential",
                "linear",
                "log_softmax",
                "celu",
                "glu",
                "log_sigmoid",
                "squareplus",
            ),
            *("sparse_plus", "sparse_sigmoid", "soft_shrink", "hard_shrink", "tanh_shrink", "hard_tanh", "sparsemax"),
        )
    ),
]


def check(layer: Any, *shape: int, dtype: str = "float32") -> None:
    table = count_layers(layer, Inputs((TensorSpec(shape, dtype),)))
    assert (table.uncovered, table.method) == ({}, "shapes")
    held = [weight for weight in layer.weights if not weight.path.endswith("seed_generator_state")]
    assert table.params + table.buffers == sum(int(np.prod(weight.shape)) for weight in held)
    outputs = keras.tree.flatten(layer(np.ones(shape, dtype)))
    root = table.rows[0]
    assert root.output_shapes == tuple(tuple(tensor.shape) for tensor in outputs)
    assert root.output_dtypes == tuple(keras.backend.standardize_dtype(tensor.dtype) for tensor in outputs)


@pytest.mark.parametrize("case", range(len(CASES)))
def test_every_kind_of_layer(case: int) -> None:
    name, kwargs, shape = CASES[case]
    check(getattr(layers, name)(**kwargs), *shape)


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
    check(Paired(getattr(layers, name)(**({"axes": 2} if name == "Dot" else {}))), 2, 5, 8)


def test_layers_around_layers() -> None:
    for mode in ("concat", "sum", "mul", "ave", None):
        check(layers.Bidirectional(layers.GRU(6, return_sequences=True), merge_mode=mode), 2, 5, 8)
    check(layers.TimeDistributed(layers.Conv2D(3, 3)), 2, 5, 8, 8, 3)
    check(layers.RNN([layers.LSTMCell(4), layers.GRUCell(5), layers.SimpleRNNCell(3)], return_sequences=True), 2, 5, 8)
    check(layers.SpectralNormalization(layers.Dense(4)), 2, 8)
    check(layers.Embedding(10, 4, mask_zero=True), 2, 5, dtype="int32")
    check(layers.Lambda(lambda x: ops.einsum("bi,bj,bk->bk", x, x, x)), 2, 8)


@pytest.mark.parametrize("function", [lambda x: ops.einsum("bi,bj->bij", x, x), lambda x: ops.outer(x, x)])
def test_an_outer_product_adds_nothing_up(function: Callable[[Any], Any]) -> None:
    layer = layers.Lambda(function)
    elements = int(np.prod(layer(np.ones((2, 8), "float32")).shape))
    table = count_layers(layer, Inputs((TensorSpec((2, 8)),)))
    assert (table.macs, table.flops, table.ops) == (0, elements, elements)


def test_an_einsum_of_one_operand_adds_up_what_the_result_does_not_have() -> None:
    table = count_layers(layers.Lambda(lambda x: ops.einsum("bi->b", x)), Inputs((TensorSpec((2, 8)),)))
    assert (table.macs, table.flops, table.ops) == (0, 16, 14)


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
    given = Inputs((TensorSpec((2, 6, 6, 3)),))
    shape = tuple(layer(np.ones((2, 6, 6, 3), "float32"), training=False).shape)
    for count, uncovered in ((count_with_graphs, {}), (count_layers, {type(layer).__name__: 1})):
        table = count(layer, given)
        assert table.uncovered == uncovered
        assert table.method.startswith("shapes; as a graph __root__: ")
        assert table.rows[0].output_shapes == (shape,)
        assert table.flops == (0 if uncovered else flops)
