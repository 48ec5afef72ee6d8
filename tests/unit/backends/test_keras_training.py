"""Training steps of Keras models: forward and backward as in torch, whose autograd is the reference."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import keras
import pytest
from keras import layers, ops
from torch import nn

from sweeprof.backends.keras.counting import count_training
from sweeprof.backends.torch.training import count_training as count_torch
from sweeprof.counting.formulas import DEFAULTS, Cost, Formulas
from sweeprof.errors import Unsupported
from sweeprof.measuring.inputs import Inputs, TensorSpec
from sweeprof.results.layers import Training


def counted(model: Any, *shape: int, formulas: Formulas = DEFAULTS) -> Training:
    return count_training(model, Inputs((TensorSpec(shape),)), formulas)


def complete(model: Any, *shape: int) -> Training:
    training = counted(model, *shape)
    assert (training.estimated, training.uncovered) == (None, {})
    return training


def in_torch(module: nn.Module, *shape: int) -> Training:
    training = count_torch(module, Inputs((TensorSpec(shape),)))
    assert (training.estimated, training.uncovered) == (None, {})
    return training


def macs(training: Training) -> tuple[int, int]:
    return training.forward_macs, training.backward_macs


def flops(training: Training) -> tuple[int, int]:
    return training.forward_flops, training.backward_flops


@pytest.mark.parametrize(("name", "bytes_too"), [("lenet5", 0.01), ("mlp", 0.01), ("digits_resnet", 0.2)])
def test_the_zoo(name: str, bytes_too: float) -> None:
    """The bytes differ by what each framework's kernels keep."""
    builders = import_module(f"sweeprof.zoo.{name}")
    ours, theirs = (
        complete(builders.keras_model(False), 3, 32, 32, 1),
        in_torch(builders.torch_model(False), 3, 1, 32, 32),
    )
    assert macs(ours) == macs(theirs)
    assert flops(ours) == flops(theirs)
    assert ours.liveness is not None
    assert theirs.liveness is not None
    assert ours.liveness.peak_bytes == pytest.approx(theirs.liveness.peak_bytes, rel=bytes_too)
    assert ours.liveness.input_bytes == theirs.liveness.input_bytes


class First(nn.Module):
    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Any) -> Any:
        return self.network(x)[0]


@pytest.mark.parametrize(("name", "kind"), [("LSTM", nn.LSTM), ("GRU", nn.GRU), ("SimpleRNN", nn.RNN)])
def test_recurrent_networks(name: str, kind: Any) -> None:
    """The first state takes no gradient, nor does the input of the first layer."""
    keras_model = keras.Sequential(
        [
            keras.Input((5, 8)),
            *(getattr(layers, name)(16, use_bias=False, return_sequences=True, dropout=0.1) for _ in range(2)),
        ]
    )
    torch_model = First(kind(8, 16, num_layers=2, bias=False, batch_first=True))
    assert macs(complete(keras_model, 4, 5, 8)) == macs(in_torch(torch_model, 4, 5, 8))


def test_every_kind_of_product() -> None:
    """All need gradients of weights and inputs but the first."""
    keras_model = keras.Sequential(
        [
            keras.Input((9, 9, 4)),
            layers.Conv2D(6, 3, groups=2),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.DepthwiseConv2D(3),
            layers.SeparableConv2D(6, 1),
            layers.GroupNormalization(2),
            layers.Activation("silu"),
            layers.Conv2DTranspose(5, 3, 2),
            layers.Dropout(0.5),
            layers.MaxPooling2D(),
            layers.Conv2D(4, 1, activation="sigmoid"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(3, activation="softmax"),
        ]
    )
    torch_model = nn.Sequential(
        *(nn.Conv2d(4, 6, 3, groups=2), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 6, 3, groups=6)),
        *(nn.Conv2d(6, 6, 1, groups=6, bias=False), nn.Conv2d(6, 6, 1)),
        *(nn.GroupNorm(2, 6), nn.SiLU(), nn.ConvTranspose2d(6, 5, 3, 2), nn.Dropout(0.5), nn.MaxPool2d(2)),
        *(nn.Conv2d(5, 4, 1), nn.Sigmoid(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3), nn.Softmax(-1)),
    )
    ours, theirs = complete(keras_model, 2, 9, 9, 4), in_torch(torch_model, 2, 4, 9, 9)
    assert macs(ours) == macs(theirs)
    assert flops(ours) == pytest.approx(flops(theirs), rel=0.01)


def test_attention_and_lookups() -> None:
    tokens = keras.Input((5,), dtype="int32")
    x = layers.Embedding(10, 16)(tokens)
    x = layers.LayerNormalization()(layers.MultiHeadAttention(4, 4)(x, x) + x)
    model = keras.Model(tokens, layers.Dense(3, activation="gelu")(x))
    training = count_training(model, Inputs((TensorSpec((2, 5), "int32"),)))
    assert (training.estimated, training.uncovered) == (None, {})
    projections, scores, head = 4 * 2 * 5 * 16 * 16, 2 * 2 * 4 * 5 * 5 * 4, 2 * 5 * 16 * 3
    assert macs(training) == (projections + scores + head, 2 * (projections + scores + head))


def test_frozen_layers_take_no_gradients_of_weights() -> None:
    model = keras.Sequential(
        [keras.Input((8,)), layers.Dense(4), layers.Dense(6), layers.BatchNormalization(), layers.Dense(2)]
    )
    assert macs(complete(model, 3, 8)) == (3 * (32 + 24 + 12), 3 * (32 + 2 * 24 + 2 * 12))
    model.layers[0].trainable = False
    assert macs(complete(model, 3, 8)) == (3 * (32 + 24 + 12), 3 * (24 + 2 * 12))
    model.layers[1].trainable = False
    assert macs(complete(model, 3, 8)) == (3 * (32 + 24 + 12), 3 * (0 + 2 * 12))
    model.layers[1].trainable, model.layers[2].trainable, model.layers[3].trainable = True, False, False
    assert macs(complete(model, 3, 8)) == (3 * (32 + 24 + 12), 3 * (24 + 12))


def test_what_cannot_be_trained_says_so() -> None:
    model = keras.Sequential([keras.Input((8,)), layers.Dense(4)])
    model.trainable = False
    with pytest.raises(Unsupported, match="no parameter requires a gradient"):
        counted(model, 3, 8)
    rounded = keras.Sequential([keras.Input((8,)), layers.Dense(4), layers.Lambda(ops.stop_gradient)])
    with pytest.raises(Unsupported, match="no output depends on a parameter"):
        counted(rounded, 3, 8)


def test_a_backward_that_is_not_seen_is_estimated() -> None:
    class Raw(keras.Layer):  # type: ignore[misc]
        def call(self, x: Any) -> Any:
            return keras.src.backend.numpy.tanh(x)

    training = counted(keras.Sequential([keras.Input((8,)), layers.Dense(4), Raw(name="raw")]), 3, 8)
    assert training.estimated is not None
    assert training.estimated.startswith("raw does not go through keras.ops: ")
    assert (training.backward_macs, training.liveness) == (2 * 96, None)
    told = Formulas({layers.Dense: lambda layer, inputs, outputs: Cost(macs=5)}, DEFAULTS)
    training = counted(keras.Sequential([keras.Input((8,)), layers.Dense(4, name="dense")]), 3, 8, formulas=told)
    assert training.estimated == "dense has a formula of its own, which does not tell a backward"
    assert macs(training) == (5, 10)


def test_an_operation_whose_backward_is_not_known_is_listed() -> None:
    model = keras.Sequential([keras.Input((8,)), layers.Dense(4), layers.Lambda(lambda x: ops.rfft(x)[0])])
    training = counted(model, 3, 8)
    assert training.uncovered == {"keras::rfft backward": 1}
    assert macs(training) == (96, 96)


class Gated(nn.Module):
    """A GRU as it was published: the reset gate is before the product."""

    def __init__(self, given: int, units: int) -> None:
        super().__init__()
        self.units = units
        self.kernel = nn.Linear(given, 3 * units)
        self.both, self.last = nn.Linear(units, 2 * units, bias=False), nn.Linear(units, units, bias=False)

    def forward(self, x: Any) -> Any:
        state = x.new_zeros(x.shape[0], self.units)
        for step in range(x.shape[1]):
            z, r, h = self.kernel(x[:, step]).chunk(3, -1)
            update, reset = self.both(state).chunk(2, -1)
            z, r = (z + update).sigmoid(), (r + reset).sigmoid()
            state = z * state + (1 - z) * (h + self.last(r * state)).tanh()
        return state


@pytest.mark.parametrize("implementation", [1, 2])
def test_a_weight_in_parts_is_learned(implementation: int) -> None:
    """The reset gate learns through the first state, which itself takes no gradient."""
    gru = layers.GRU(4, reset_after=False, implementation=implementation)
    ours = complete(keras.Sequential([keras.Input((5, 8)), gru]), 1, 5, 8)
    assert macs(ours) == macs(in_torch(Gated(8, 4), 1, 5, 8)) == (720, 5 * 96 + 4 * 2 * 48 + 48 + 16)


class Sliced(keras.Layer):  # type: ignore[misc]
    def build(self, shape: Any) -> None:
        self.kernel = self.add_weight(shape=(8, 24))

    def call(self, x: Any) -> Any:
        return ops.matmul(x, self.kernel[:, :8]) + ops.matmul(x, self.kernel[:, 8:16])


def test_a_weight_in_slices_is_learned() -> None:
    model = keras.Sequential([keras.Input((8,)), layers.Dense(8), Sliced()])
    assert macs(complete(model, 1, 8)) == (192, 64 + 4 * 64)
    model.layers[1].trainable = False
    assert macs(complete(model, 1, 8)) == (192, 64 + 2 * 64)


def test_a_convolutional_recurrent_network_learns() -> None:
    recurrent = layers.ConvLSTM2D(3, 3, padding="same")
    gates = 64 * 12 * 9
    forward, backward = 4 * gates * (2 + 3), 4 * gates * 2 + (4 + 3) * gates * 3
    model = keras.Sequential([keras.Input((4, 8, 8, 2)), recurrent])
    assert macs(complete(model, 1, 4, 8, 8, 2)) == (forward, backward)
    model = keras.Sequential([keras.Input((4, 8, 8, 2)), recurrent, layers.Flatten(), layers.Dense(2)])
    assert macs(complete(model, 1, 4, 8, 8, 2)) == (forward + 384, backward + 2 * 384)


class Pooled(keras.Layer):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.attention = layers.MultiHeadAttention(2, 4)

    def build(self, shape: Any) -> None:
        self.query = self.add_weight(shape=(1, 1, 8))
        self.attention.build((shape[0], 1, 8), shape)

    def call(self, x: Any) -> Any:
        return self.attention(ops.broadcast_to(self.query, (ops.shape(x)[0], 1, 8)), x)


def test_learned_queries_are_learned() -> None:
    model = keras.Sequential([keras.Input((5, 8)), layers.Dense(8), Pooled()])
    assert macs(complete(model, 2, 5, 8)) == (640 + 1696, 640 + 2 * 1696)
