"""The symbolic trace of Keras models: rows, weights, data types, inputs of all kinds, formulas, training, and what it leaves."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from importlib import import_module
from math import prod
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers, ops
from torch import nn

from sweeprof.backends.keras.counting import count_layers, count_training
from sweeprof.backends.tensorflow.counting import count_layers as count_with_graphs
from sweeprof.backends.torch.counting import count_layers as count_torch
from sweeprof.counting.formulas import DEFAULTS, Cost, Formulas
from sweeprof.errors import Unsupported
from sweeprof.measuring.inputs import Inputs, TensorSpec
from sweeprof.results.layer_times import ROOT
from sweeprof.results.layers import LayerRow, LayerTable, Training, Weights


def spec(*shape: int, dtype: str = "float32") -> TensorSpec:
    return TensorSpec(shape, dtype)


def counted(model: Any, *args: Any, formulas: Formulas = DEFAULTS, **kwargs: Any) -> LayerTable:
    return count_layers(model, Inputs(args, kwargs), formulas)


def complete(model: Any, *args: Any, **kwargs: Any) -> LayerTable:
    table = counted(model, *args, **kwargs)
    assert table.uncovered == {}
    assert table.method == "shapes"
    if isinstance(model, keras.Model):
        assert table.params + table.buffers == model.count_params()
    return table


def rows(table: LayerTable) -> dict[tuple[str, int], LayerRow]:
    found = {(row.path, row.call): row for row in table.rows}
    assert len(found) == len(table.rows)
    return found


def sequential(shape: tuple[int, ...], *parts: Any, dtype: str = "float32", name: str | None = None) -> Any:
    return keras.Sequential([keras.Input(shape, dtype=dtype), *parts], name=name)


class Calling(keras.Model):  # type: ignore[misc]
    """A model of these layers whose call is a function of itself and its input."""

    def __init__(self, function: Callable[[Any, Any], Any], **parts: Any) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def call(self, x: Any) -> Any:
        return self.function(self, x)


def mlp() -> Any:
    return sequential((4,), layers.Dense(8, "relu", name="hidden"), layers.Dense(2, name="out"), name="mlp")


def test_a_row_for_every_call() -> None:
    table = complete(mlp(), spec(3, 4))
    assert [(r.path, r.type, r.depth, r.call, r.parent) for r in table.rows] == [
        (ROOT, "Sequential", 0, 0, None),
        ("hidden", "Dense", 1, 0, 0),
        ("out", "Dense", 1, 0, 0),
    ]
    root, hidden, _ = table.rows
    assert (hidden.macs, hidden.flops, hidden.ops) == (3 * 32, 2 * 96 + 24 + 24, 2 * 96 + 24)
    assert (hidden.params, hidden.trainable, hidden.params_bytes, hidden.dtypes) == (40, 40, 160, {"float32": 40})
    assert (hidden.input_shapes, hidden.output_shapes) == (((3, 4),), ((3, 8),))
    assert (hidden.input_bytes, hidden.output_bytes, hidden.act_bytes, root.act_bytes) == (48, 96, 96, 0)
    assert root.subtree == Weights(58, 58, 232, 0, 0, {"float32": 58})
    assert [(o.name, o.calls, o.macs, o.inputs, o.outputs) for o in hidden.operators] == [
        ("keras::matmul", 1, 96, 12, 24),
        ("keras::add", 1, 0, 24, 24),
        ("keras::relu", 1, 0, 24, 24),
    ]
    assert table.operator_calls == 5
    assert table.inclusive().rows[0].macs == table.macs == 3 * (32 + 16)


def test_memory_of_activations() -> None:
    """A convolution's result and that of its activation; the pool's is half as large as both."""
    conv = layers.Conv2D(32, 5, padding="same", name="conv")
    toy = sequential((32, 32, 3), conv, layers.ReLU(name="relu"), layers.MaxPool2D(), layers.Flatten())
    table = complete(toy, spec(1, 32, 32, 3))
    assert table.liveness is not None
    assert (table.liveness.peak_bytes, table.liveness.peak_at) == (262_144, "relu")
    assert table.liveness.input_bytes == 12_288
    assert table.act_bytes == 131_072 * 2 + 32_768 * 2


def test_a_residual_lives_until_it_is_added() -> None:
    image = keras.Input((256,))
    kept = layers.ReLU()(image)
    table = complete(keras.Model(image, layers.Add()([layers.ReLU()(layers.ReLU()(kept)), kept])), spec(1, 256))
    assert table.liveness is not None
    assert table.liveness.peak_bytes == 3 * 1024  # of the first, of the second, and of the one that is being made


def test_the_toy_network_of_deeplite_profiler() -> None:
    conv = layers.Conv2D(32, 5, padding="same", activation="relu", name="conv")
    table = complete(sequential((224, 224, 3), conv, layers.MaxPool2D(), layers.Flatten()), spec(1, 224, 224, 3))
    assert (table.params, table.macs) == (2_432, 120_422_400)  # 224² · 32 · 5² · 3


class Subclassed(keras.Model):  # type: ignore[misc]
    """Calls one layer twice, has one that it never calls, and calculates itself."""

    def __init__(self) -> None:
        super().__init__(name="subclassed")
        self.shared = layers.Dense(4, name="shared")
        self.inner = keras.Sequential([layers.Dense(4, name="a"), layers.BatchNormalization(name="bn")], name="inner")
        self.unused = layers.Dense(7, name="unused")
        self.unused.build((None, 3))

    def call(self, x: Any, training: Any = None) -> Any:
        x = self.shared(self.shared(x))
        return self.inner(x, training=training) @ ops.ones((4, 5)) * 2.0


def test_a_subclassed_model_is_built_and_traced() -> None:
    model = Subclassed()
    table = complete(model, spec(3, 4))
    assert [(r.path, r.type, r.call, r.params, r.buffers, r.macs) for r in table.rows] == [
        (ROOT, "Subclassed", 0, 0, 0, 3 * 4 * 5),
        ("shared", "Dense", 0, 20, 0, 48),
        ("shared", "Dense", 1, 0, 0, 48),
        ("inner", "Sequential", 0, 0, 0, 0),
        ("inner.a", "Dense", 0, 20, 0, 48),
        ("inner.bn", "BatchNormalization", 0, 8, 8, 0),
        ("unused", "Dense", -1, 28, 0, 0),
    ]
    assert rows(table)["inner", 0].subtree == Weights(28, 28, 112, 8, 32, {"float32": 28})
    assert np.shape(model(np.ones((3, 4), "float32"))) == (3, 5)
    assert complete(model, spec(3, 4)) == table


def test_two_layers_of_one_name() -> None:
    parts = {"left": layers.Dense(4, name="same"), "right": layers.Dense(5, name="same")}
    table = complete(Calling(lambda model, x: model.right(model.left(x)), **parts), spec(1, 4))
    assert [(r.path, r.macs) for r in table.rows] == [(ROOT, 0), ("same", 16), ("same_1", 20)]


@pytest.mark.parametrize("is_shared", [True, False])
def test_models_within_models(is_shared: bool) -> None:
    """With one layer in all of them, which is stored once, or with a layer of the same name in each."""
    shared = layers.Dense(100, name="dense")
    image = x = keras.Input((100,))
    for i in range(3):
        inner = keras.Input((100,))
        layer = shared if is_shared else layers.Dense(100, name="dense")
        x = keras.Model(inner, layer(inner), name=f"parent{i}")(x)
    table = complete(keras.Model(image, x), spec(1, 100))
    assert (table.params, table.macs) == (10_100 if is_shared else 30_300, 30_000)
    products = [r.path for r in table.rows if r.macs]
    assert products == [f"parent{i}.dense" for i in range(3)]


def test_a_variable_that_two_layers_hold_counts_once() -> None:
    class Tied(keras.Layer):  # type: ignore[misc]
        def __init__(self, other: Any) -> None:
            super().__init__(name="tied")
            self.other = other

        def call(self, x: Any) -> Any:
            return ops.matmul(x, ops.transpose(self.other.embeddings))

    embedding = layers.Embedding(10, 4, name="embedding")
    model = Calling(lambda model, x: model.tied(model.embedding(x)), embedding=embedding, tied=Tied(embedding))
    table = complete(model, spec(2, 3, dtype="int32"))
    assert (table.params, table.macs) == (40, 2 * 3 * 4 * 10)
    assert rows(table)["tied", 0].subtree == Weights(40, 40, 160, 0, 0, {"float32": 40})


@pytest.mark.parametrize(
    ("layer", "gates", "biases", "units"),
    [(layers.SimpleRNN, 1, 1, (2, 8)), (layers.LSTM, 4, 1, (13, 31)), (layers.GRU, 3, 2, (11, 21))],
)
def test_recurrent_networks_by_hand(layer: Any, gates: int, biases: int, units: tuple[int, int]) -> None:
    """Each recurrent network is one row, with the weights of its cell; of the GRU 23,040 MACs and 52,800 operations."""
    steps, given, hidden = 4 * 5, 8, 16
    table = complete(sequential((5, given), layer(hidden, name="network")), spec(4, 5, given))
    macs, added = steps * gates * hidden * (given + hidden), steps * biases * gates * hidden
    network = rows(table)["network", 0]
    assert network.macs == table.macs == macs
    assert network.flops == 2 * macs + added + steps * hidden * units[0]
    assert network.ops == 2 * macs - 2 * steps * gates * hidden + added + steps * hidden * units[1]
    assert network.params == gates * hidden * (given + hidden + biases)
    assert [r.path for r in table.rows] == [ROOT, "network"]


def test_any_cell_is_traced_once_for_all_steps() -> None:
    class Cell(keras.Layer):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(name="cell")
            self.state_size, self.dense = 3, layers.Dense(3, name="dense")

        def build(self, shape: Any) -> None:
            self.dense.build((shape[0], shape[1] + 3))

        def call(self, x: Any, states: Any) -> Any:
            new = self.dense(ops.concatenate([x, states[0]], axis=-1))
            return new, [new]

    table = complete(layers.RNN(Cell(), return_sequences=True, name="rnn"), spec(2, 7, 4))
    found = rows(table)
    assert list(found) == [(ROOT, 0), ("cell", 0), ("cell.dense", 0)]
    dense = found["cell.dense", 0]
    assert (dense.macs, dense.input_shapes, dense.act_bytes) == (7 * 2 * 7 * 3, ((2, 7),), 7 * 2 * 3 * 4)
    assert [(o.name, o.calls) for o in dense.operators] == [("keras::matmul", 7), ("keras::add", 7)]
    assert found[ROOT, 0].output_shapes == ((2, 7, 3),)


@pytest.mark.slow
def test_layers_around_layers() -> None:
    distributed = complete(layers.TimeDistributed(layers.Conv2D(3, 3, name="conv")), spec(2, 5, 8, 8, 4))
    assert distributed.macs == 5 * 2 * 6 * 6 * 3 * 9 * 4
    assert rows(distributed)["conv", 0].input_shapes == ((2, 8, 8, 4),)
    both = layers.Bidirectional(layers.LSTM(16, name="lstm"), name="both")
    table = complete(sequential((5, 8), both), spec(4, 5, 8))
    assert [r.path for r in table.rows] == [ROOT, "both", "both.forward_lstm", "both.backward_lstm"]
    assert table.macs == 61_440
    stacked = complete(layers.RNN([layers.LSTMCell(4), layers.GRUCell(5)]), spec(4, 5, 8))
    assert stacked.macs == 4 * 5 * (4 * 4 * (8 + 4) + 3 * 5 * (4 + 5))


SCORES, WIDTH = 2 * 5 * 5, 16
PROJECTED = 2 * 5 * WIDTH**2
ATTENTIONS: list[tuple[Callable[[], Any], bool, int]] = [
    (layers.Attention, True, 2 * SCORES * WIDTH),
    (layers.AdditiveAttention, True, SCORES * WIDTH),
    # query and output have all 4 heads, key and value 2
    (lambda: layers.GroupQueryAttention(4, 4, 2), False, PROJECTED * (4 + 2 + 2 + 4) // 4 + 2 * SCORES * WIDTH),
    (lambda: layers.MultiHeadAttention(4, 4, dropout=0.1), False, 4 * PROJECTED + 2 * SCORES * WIDTH),
    (lambda: layers.MultiHeadAttention(4, 4), False, 4 * PROJECTED + 2 * SCORES * WIDTH),
]


@pytest.mark.parametrize(("make", "is_listed", "macs"), ATTENTIONS)
def test_attention_layers_by_hand(make: Callable[[], Any], is_listed: bool, macs: int) -> None:
    """Of 2 samples of 5 tokens; it gets the tokens as one list, or as two arguments."""

    def attended(model: Any, x: Any) -> Any:
        return model.attention([x, x]) if is_listed else model.attention(x, x)

    table = complete(Calling(attended, attention=make()), spec(2, 5, WIDTH))
    assert table.macs == macs
    parts = [r.path.rsplit(".", 1)[-1] for r in table.rows if r.depth == 2 and r.call >= 0 and r.type == "EinsumDense"]
    assert parts == ([] if is_listed else ["query", "key", "value", "attention_output"])


def test_trainable_and_frozen_layers_and_their_state() -> None:
    parts = [layers.Dense(4, name="first"), layers.BatchNormalization(name="bn"), layers.Dropout(0.5), layers.Dense(2)]
    model = sequential((4,), *parts)
    model.get_layer("first").trainable = False
    model.get_layer("bn").trainable = False
    table = complete(model, spec(1, 4))
    bn = rows(table)["bn", 0]
    assert (table.params, table.trainable, table.buffers, table.buffers_bytes) == (20 + 8 + 10, 10, 8, 32)
    assert (bn.params, bn.trainable, bn.frozen, bn.buffers) == (8, 0, 8, 8)


@pytest.mark.parametrize(
    ("policy", "stored", "compute", "stored_size", "size"),
    [("mixed_bfloat16", "float32", "bfloat16", 4, 2), ("float64", "float64", "float64", 8, 8)],
)
def test_data_types(policy: str, stored: str, compute: str, stored_size: int, size: int) -> None:
    parts = [layers.Dense(8, dtype=policy, name="first"), layers.BatchNormalization(dtype=policy), layers.Dense(2)]
    table = complete(sequential((4,), *parts), spec(3, 4))
    dense = rows(table)["first", 0]
    assert (dense.dtypes, dense.params_bytes) == ({stored: 40}, 40 * stored_size)
    assert (dense.output_dtypes, dense.act_bytes) == ((compute,), 3 * 8 * size)
    assert (dense.macs, dense.flops) == (96, 2 * 96 + 24)
    assert table.rows[0].subtree is not None
    assert sum(table.rows[0].subtree.dtypes.values()) == table.params


def two_inputs(structure: Callable[[Any, Any], Any]) -> Any:
    left, right = keras.Input((4,), name="left"), keras.Input((6,), name="right")
    joined = layers.Concatenate()([layers.Dense(3)(left), layers.Dense(5)(right)])
    return keras.Model(structure(left, right), [joined, layers.Dense(2)(joined)])


def test_several_inputs_and_outputs() -> None:
    left, right = spec(2, 4), spec(2, 6)
    listed = two_inputs(lambda a, b: [a, b])
    named = two_inputs(lambda a, b: {"left": a, "right": b})
    tables = [
        complete(listed, left, right),
        complete(named, {"left": left, "right": right}),
        complete(named, left=np.zeros((2, 4)), right=keras.ops.zeros((2, 6))),
    ]
    for table in tables:
        assert table.macs == 2 * (4 * 3 + 6 * 5 + 8 * 2)
        root = table.rows[0]
        assert (root.input_shapes, root.output_shapes) == (((2, 4), (2, 6)), ((2, 8), (2, 2)))


def test_a_step_of_ones_own() -> None:
    inputs = Inputs((spec(2, 4),), forward=lambda model, x: model(model(x)[:, :1] * ops.ones((1, 4))))
    table = count_layers(mlp(), inputs)
    assert table.macs == 2 * 2 * (32 + 16)
    twice = [(path, call) for call in (0, 1) for path in (ROOT, "hidden", "out")]
    assert [(r.path, r.call) for r in table.rows] == [*twice, ("__outside__", 0)]
    assert rows(table)["__outside__", 0].flops == 8


def test_shapes_cost_no_memory() -> None:
    """Four terabytes of input."""
    assert counted(mlp(), spec(10**12, 4)).macs == 10**12 * 48


def test_an_operation_without_a_formula_is_listed() -> None:
    model = sequential((4, 4), layers.Lambda(lambda x: ops.cholesky(x) + 1.0), layers.Dense(2))
    table = counted(model, spec(3, 4, 4))
    assert table.uncovered == {"keras::cholesky": 1}
    assert table.operator_calls == 4
    assert table.coverage == 0.75
    known = Formulas({"keras::cholesky": lambda args, kwargs, output: Cost(macs=0, flops=64, ops=60)}, DEFAULTS)
    assert table.flops is not None
    written = counted(model, spec(3, 4, 4), formulas=known)
    assert (written.uncovered, written.flops) == ({}, table.flops + 64)


def test_a_layer_that_cannot_be_traced_is_listed_where_the_backend_has_no_graph() -> None:
    class Raw(keras.Layer):  # type: ignore[misc]
        def call(self, x: Any) -> Any:
            return keras.src.backend.numpy.matmul(x, x)

    table = counted(keras.Sequential([keras.Input((4,), batch_size=4), Raw(name="raw"), layers.Dense(2)]), spec(4, 4))
    assert table.uncovered == {"Raw": 1}
    assert table.method.startswith("shapes; as a graph raw: ")
    assert table.macs == 4 * 4 * 2
    assert table.rows[1].output_shapes == ((4, 4),)


class Quantised(keras.layers.Dense):  # type: ignore[misc]
    def compute_module_complexity(self, inputs: Any, outputs: Any) -> dict[str, Any]:
        return {"flops": 7, "macs": 3, "param_size": {"kernel": 2 / 8}, "activation_size": 0.5}


class OneSize(keras.layers.Dense):  # type: ignore[misc]
    """Has one size for all its parameters."""

    def compute_module_complexity(self, inputs: Any, outputs: Any) -> dict[str, Any]:
        return {"flops": 7, "param_size": 0.25}


@pytest.mark.parametrize(
    ("kind", "macs", "params_bytes", "output_bytes"),
    [(Quantised, 3, 32 * 2 / 8 + 8 * 4, 12), (OneSize, 3 * 32, 40 / 4, 96)],
)
def test_a_layer_declares_its_own_complexity(kind: Any, macs: int, params_bytes: float, output_bytes: int) -> None:
    table = counted(sequential((4,), kind(8, name="q"), layers.Dense(2)), spec(3, 4))
    row = rows(table)["q", 0]
    assert (row.macs, row.flops, row.params, row.params_bytes) == (macs, 7, 40, params_bytes)
    assert (row.output_bytes, row.act_bytes) == (output_bytes, output_bytes)


def test_formulas_of_layers() -> None:
    def formula(layer: Any, inputs: Any, outputs: Any) -> Cost:
        if layer.units == 9:
            raise KeyError("mine")
        return Cost(macs=layer.units * 1000 + inputs[0].shape[-1], flops=outputs.shape[-1])

    own = Formulas({layers.Dense: formula}, DEFAULTS)
    dense = rows(counted(sequential((4,), layers.Dense(8, name="dense")), spec(3, 4), formulas=own))["dense", 0]
    assert (dense.macs, dense.flops, dense.ops) == (8004, 8, 2 * 96)
    training = trained(sequential((4,), layers.Dense(8)), 3, 4, formulas=own)
    assert (training.forward_macs, training.backward_macs) == (8004, 2 * 8004)
    with pytest.raises(KeyError, match="mine"):  # its author's
        counted(layers.Dense(9), spec(3, 4), formulas=own)


def test_a_users_operation_is_counted_by_its_parts() -> None:
    class Twice(keras.Operation):  # type: ignore[misc]
        def call(self, x: Any) -> Any:
            return ops.relu(x) + ops.exp(x)

    assert complete(layers.Lambda(Twice()), spec(3, 4)).flops == 36


def test_what_variables_compute_with_tensors() -> None:
    class Scale(keras.Layer):  # type: ignore[misc]
        def build(self, shape: Any) -> None:
            self.scale = self.add_weight(shape=(4,), name="scale")

        def call(self, x: Any) -> Any:
            self.add_loss(ops.sum(x))
            return self.scale * x + self.scale @ ops.transpose(x)[:, :1]

    assert complete(Scale(), spec(4, 4)).flops == 16 + 16 + 2 * 4 + 16


def test_layers_on_what_does_not_depend_on_the_inputs() -> None:
    parts = {"tokens": layers.Embedding(10, 8), "positions": layers.Embedding(6, 8), "dense": layers.Dense(8)}
    tokens = Calling(lambda model, x: model.tokens(x) + model.dense(model.positions(ops.arange(6))), **parts)
    table = complete(sequential((6,), tokens, dtype="int32"), spec(2, 6, dtype="int32"))
    assert table.macs == 6 * 64
    assert [row.call for row in table.rows if row.type in ("Embedding", "Dense")] == [0, 0, 0]


def test_a_layer_that_needs_the_values_of_constants_is_uncovered() -> None:
    class Chosen(keras.Layer):  # type: ignore[misc]
        def call(self, x: Any) -> Any:
            return ops.convert_to_tensor(np.unique(ops.convert_to_numpy(x)))

    def call(model: Any, x: Any) -> Any:
        return model.outer(x + ops.sum(model.inner(np.ones((4, 8), "float32"))))

    model = Calling(call, inner=Chosen(name="chosen"), outer=layers.Dense(3))
    model(np.ones((2, 8), "float32"))
    table = counted(model, spec(2, 8))
    assert table.uncovered == {"Chosen": 1}
    assert table.macs == 2 * 24
    assert [row.type for row in table.rows] == ["Calling", "Dense", "Chosen"]


def test_everything_is_left_as_it_was() -> None:
    model = import_module("sweeprof.zoo.digits_resnet").keras_model(False)
    watched = [*model._flatten_layers(), *model.operations]

    def state() -> list[Any]:
        return [(len(op._inbound_nodes), len(op._outbound_nodes)) for op in watched]

    def functions() -> list[Any]:
        return [keras.Layer.__call__, keras.src.backend.cast, keras.src.backend.Variable.__mul__]

    found, before, weights = functions(), state(), [weight.numpy() for weight in model.weights]
    complete(model, spec(2, 32, 32, 1))
    with pytest.raises(ValueError, match="incompatible"):
        counted(model, spec(2, 32, 32, 3))
    assert state() == before
    assert all(np.array_equal(a, b.numpy()) for a, b in zip(weights, model.weights, strict=True))
    assert functions() == found
    assert keras.config.is_traceback_filtering_enabled()


def test_another_thread_builds_models_meanwhile() -> None:
    built: list[Any] = []

    class Slow(keras.Layer):  # type: ignore[misc]
        def call(self, x: Any) -> Any:
            other = threading.Thread(target=lambda: built.append(mlp()))
            other.start()
            other.join()
            return x * 2.0

    table = complete(Slow(), spec(2, 4))
    assert [r.path for r in table.rows] == [ROOT]
    assert built[0](np.ones((1, 4), "float32")).shape == (1, 2)
    assert complete(built[0], spec(3, 4)).macs == 3 * 48


def test_the_factors_of_a_kernel_of_low_rank_are_parameters() -> None:
    model = sequential((8,), layers.Dense(4, name="dense"), layers.Embedding(10, 6))
    model.layers[0].enable_lora(2)
    model.layers[1].enable_lora(3)
    table = complete(model, spec(3, 8))
    assert table.macs == 3 * 8 * 4
    assert (table.params, table.trainable) == (8 * 4 + 4 + 8 * 2 + 2 * 4 + 60 + 30 + 18, 4 + 16 + 8 + 48)


# Training: the forward is counted in training mode, the backward is estimated


def trained(model: Any, *shape: int, formulas: Formulas = DEFAULTS) -> Training:
    return count_training(model, Inputs((TensorSpec(shape),)), formulas)


def test_the_backward_is_estimated_as_twice_the_forward() -> None:
    model = sequential((5, 8), layers.LSTM(16, dropout=0.1), layers.Dense(4))
    training = trained(model, 3, 5, 8)
    macs = 3 * (5 * 4 * 16 * (8 + 16) + 16 * 4)
    assert (training.forward_macs, training.backward_macs) == (macs, 2 * macs)
    assert training.backward_flops == 2 * training.forward_flops
    assert (training.estimated, training.liveness) == ("the backward of Keras models is not counted", None)


def test_the_forward_is_that_of_training_mode() -> None:
    """Batch statistics are computed, and random numbers multiplied by."""
    model = sequential((8,), layers.BatchNormalization(), layers.Dropout(0.5))
    inference = count_layers(model, Inputs((TensorSpec((3, 8)),)))
    assert inference.flops is not None
    assert trained(model, 3, 8).forward_flops > inference.flops


def test_what_cannot_be_trained_says_so() -> None:
    model = sequential((8,), layers.Dense(4))
    model.trainable = False
    with pytest.raises(Unsupported, match="no parameter requires a gradient"):
        trained(model, 3, 8)


# Models of ``keras.applications``: parameters as Keras documents them, products by hand and by the kernels of the layers


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
    table = complete(model, spec(1, 224, 224, 3))
    assert (table.params + table.buffers, table.params, table.trainable) == (3_538_984, 3_504_872, 3_504_872)
    assert table.macs == sum(mobilenet_v2())
    assert complete(model, spec(7, 224, 224, 3)).macs == 7 * table.macs


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


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name == "ResNet50" else pytest.mark.thorough) for name in SMALLER],
)
def test_further_applications(name: str) -> None:
    """Every product is that of a convolution or a dense layer, by its kernel: an independent sum over the layers."""
    side, total = SMALLER[name]
    model = getattr(keras.applications, name)(weights=None, input_shape=(side, side, 3))
    table = complete(model, spec(1, side, side, 3))
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


# Every kind of layer: nothing of it is unknown, shapes and weights are those of a real forward, and costs those of torch


SPACE = (9, 8, 7)
Arguments = dict[str, Any]
Shape = tuple[int, ...]


def given(shape: Shape, dtype: str = "float32") -> Inputs:
    return Inputs((TensorSpec(shape, dtype),))


def as_real(layer: Any, *shape: int, dtype: str = "float32") -> LayerTable:
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
    ("Conv#D", (6, 3), {"padding": "same"}, "Conv#d", (4, 6, 3), {"padding": 1}),
    ("Conv#D", (6, 3), {"use_bias": False}, "Conv#d", (4, 6, 3), {"bias": False}),
    ("Conv#DTranspose", (6, 3), {"strides": 2}, "ConvTranspose#d", (4, 6, 3), {"stride": 2}),
    ("MaxPooling#D", (2,), {}, "MaxPool#d", (2,), {}),
    ("AveragePooling#D", (3,), {}, "AvgPool#d", (3,), {}),
    ("GlobalAveragePooling#D", (), {"keepdims": True}, "AdaptiveAvgPool#d", (1,), {}),
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
    assert figures(as_real(layer, 2, *space, 4)) == figures(in_torch(module, 2, 4, *space))


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
    (lambda: layers.UpSampling2D(2, interpolation="bilinear"), lambda: nn.Upsample(scale_factor=2, mode="bilinear"), 2),
    (lambda: layers.UpSampling2D(2, interpolation="bicubic"), lambda: nn.Upsample(scale_factor=2, mode="bicubic"), 2),
    (lambda: layers.PReLU(shared_axes=[1, 2]), lambda: nn.PReLU(4), 2),
]  # fmt: skip


@pytest.mark.parametrize(("layer", "module", "dims"), TWINS)
def test_further_layers_of_images(layer: Callable[[], Any], module: Callable[[], Any], dims: int) -> None:
    space = SPACE[:dims]
    expected = in_torch(without_counter(module()), 2, 4, *space)
    assert figures(as_real(layer(), 2, *space, 4)) == figures(expected)


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


def recurrent(kind: Any, **kwargs: Any) -> nn.Module:
    return First(kind(8, 16, batch_first=True, **kwargs))


OTHERS: list[tuple[Callable[[], Any], Callable[[], nn.Module], Shape]] = [
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
    (lambda: layers.Dropout(0.5), nn.Dropout, (2, 8)),
    (layers.Flatten, nn.Flatten, (2, 8, 3)),
    (lambda: layers.SimpleRNN(16, use_bias=False), lambda: recurrent(nn.RNN, bias=False), (4, 5, 8)),
    (lambda: layers.LSTM(16, use_bias=False), lambda: recurrent(nn.LSTM, bias=False), (4, 5, 8)),
    (lambda: layers.GRU(16, use_bias=False), lambda: recurrent(nn.GRU, bias=False), (4, 5, 8)),
    (lambda: layers.GRU(16), lambda: recurrent(nn.GRU), (4, 5, 8)),
    (lambda: layers.Bidirectional(layers.GRU(16, return_sequences=True)),
     lambda: recurrent(nn.GRU, bidirectional=True), (4, 5, 8)),
    (lambda: keras.Sequential([layers.GRU(16, return_sequences=True), layers.GRU(16)]),
     lambda: recurrent(nn.GRU, num_layers=2), (4, 5, 8)),
    (lambda: Calling(lambda model, x: model.attention(x, x), attention=layers.MultiHeadAttention(4, 4)), SelfAttention, (2, 5, 16)),
]  # fmt: skip


@pytest.mark.parametrize(("layer", "module", "shape"), OTHERS)
def test_other_layers(layer: Callable[[], Any], module: Callable[[], nn.Module], shape: Shape) -> None:
    assert figures(as_real(layer(), *shape)) == figures(in_torch(module(), *shape))


def test_a_lookup() -> None:
    table = as_real(layers.Embedding(10, 4), 2, 3, dtype="int64")
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
    assert figures(as_real(layers.Dense(8, activation=name), 3, 5)) == figures(dense)


@pytest.mark.parametrize(("name", "longer"), [("lenet5", 0), ("mlp", 0), ("digits_resnet", 3 * 32 * 32 * 16 * 4)])
def test_the_zoo(name: str, longer: int) -> None:
    """Whole models, and the memory of their activations.

    A forward in Python holds what its variables name until it returns: in torch's residual block one tensor longer than needed.
    """
    builders = import_module(f"sweeprof.zoo.{name}")
    ours = as_real(builders.keras_model(False), 3, 32, 32, 1)
    theirs = in_torch(builders.torch_model(False), 3, 1, 32, 32)
    assert figures(ours)[:4] == figures(theirs)[:4]
    assert ours.liveness is not None
    assert theirs.liveness is not None
    assert ours.liveness.input_bytes == theirs.liveness.input_bytes
    assert ours.liveness.peak_bytes == theirs.liveness.peak_bytes - longer


# Multiply-accumulates by hand


PRODUCTS: list[tuple[Callable[[], Any], Shape, int]] = [
    (lambda: layers.Dense(32), (1, 8), 8 * 32),
    (lambda: layers.Dense(8), (2, 3, 4), 2 * 3 * 4 * 8),
    (lambda: layers.Dense(8, use_bias=False), (2, 3, 5, 4), 2 * 3 * 5 * 4 * 8),
    (lambda: layers.Conv2D(6, 3), (2, 8, 8, 4), 2 * 6 * 6 * 6 * (4 * 3 * 3)),
    (lambda: layers.Conv2D(6, 3, groups=2), (2, 8, 8, 4), 2 * 6 * 6 * 6 * (2 * 3 * 3)),
    (lambda: layers.Conv2D(6, 3, dilation_rate=2), (2, 9, 9, 4), 2 * 6 * 5 * 5 * (4 * 3 * 3)),
    (lambda: layers.Conv2D(6, 3, padding="same", dilation_rate=2), (2, 9, 9, 4), 2 * 6 * 9 * 9 * (4 * 3 * 3)),
    (lambda: layers.Conv1D(6, 3, dilation_rate=2, padding="causal"), (2, 9, 4), 2 * 9 * 6 * (4 * 3)),
    (lambda: layers.DepthwiseConv2D(3, dilation_rate=2), (2, 9, 9, 4), 2 * 5 * 5 * 4 * (3 * 3)),
    (lambda: layers.Conv2D(6, (3, 5), (2, 1)), (2, 9, 9, 4), 2 * 6 * 4 * 5 * (4 * 3 * 5)),
    (lambda: layers.Conv2D(6, 3, 2, "same"), (2, 9, 9, 4), 2 * 6 * 5 * 5 * (4 * 3 * 3)),
    (lambda: layers.Conv1D(4, 2), (8, 9, 2), 8 * 4 * 8 * (2 * 2)),
    (lambda: layers.Conv3D(3, 2), (2, 4, 5, 6, 2), 2 * 3 * 3 * 4 * 5 * (2 * 2 * 2 * 2)),
    (lambda: layers.DepthwiseConv2D(3), (2, 8, 8, 4), 2 * 4 * 6 * 6 * (3 * 3)),
    (lambda: layers.DepthwiseConv2D(3, depth_multiplier=2), (2, 8, 8, 4), 2 * 8 * 6 * 6 * (3 * 3)),
    (lambda: layers.SeparableConv2D(6, 3), (2, 8, 8, 4), 2 * 6 * 6 * (4 * 3 * 3 + 4 * 6)),
    (lambda: layers.Conv2DTranspose(6, 4, 2, "same"), (2, 8, 8, 4), 2 * 4 * 8 * 8 * (6 * 4 * 4)),  # 49,152
    (lambda: layers.Conv2DTranspose(6, 3), (2, 8, 8, 4), 2 * 4 * 8 * 8 * (6 * 3 * 3)),
    (lambda: layers.Conv1DTranspose(6, 3, 2), (2, 8, 4), 2 * 4 * 8 * (6 * 3)),
    (lambda: layers.EinsumDense("abc,cde->abde", (None, 5, 6)), (2, 3, 4), 2 * 3 * 4 * 5 * 6),
    (lambda: layers.ConvLSTM1D(6, 3), (2, 5, 9, 4), 2 * 5 * 4 * 6 * 7 * 3 * (4 + 6)),  # the state has padding
    (lambda: layers.ConvLSTM2D(6, 3), (2, 5, 9, 9, 4), 2 * 5 * 4 * 6 * 7**2 * 3**2 * (4 + 6)),
    (lambda: layers.ConvLSTM3D(6, 3), (2, 5, 9, 9, 9, 4), 2 * 5 * 4 * 6 * 7**3 * 3**3 * (4 + 6)),
    (layers.BatchNormalization, (2, 8, 8, 3), 0),
    (layers.MaxPooling2D, (2, 8, 8, 3), 0),
    (lambda: layers.Activation("gelu"), (2, 8), 0),
]


@pytest.mark.parametrize(("layer", "shape", "macs"), PRODUCTS)
def test_products_by_hand(layer: Callable[[], Any], shape: Shape, macs: int) -> None:
    assert as_real(layer(), *shape).macs == macs


SUMS: list[tuple[Callable[[Any], Any], tuple[int, int, int]]] = [
    (lambda x: ops.einsum("bi,bj->bij", x, x), (0, 128, 128)),
    (lambda x: ops.vdot(x, x), (16, 32, 31)),
    (lambda x: ops.einsum("bi->b", x), (0, 16, 14)),
]


@pytest.mark.parametrize(("function", "cost"), SUMS, ids=["einsum", "vdot", "one operand"])
def test_sums_and_products_by_hand(function: Callable[[Any], Any], cost: Any) -> None:
    """MACs, FLOPs and operations of 2 samples of 8 numbers."""
    table = as_real(layers.Lambda(function), 2, 8)
    assert (table.macs, table.flops, table.ops) == cost


# Everything else that Keras has


NETWORKS = ("LSTM", "GRU", "SimpleRNN")
UNROLLED = {"dropout": 0.5, "recurrent_dropout": 0.5, "go_backwards": True, "unroll": True}
FURTHER_ACTIVATIONS = "exponential linear squareplus sparse_plus sparse_sigmoid sparsemax".split()
BY_DIMENSIONS: list[tuple[str, Arguments]] = [
    ("Conv#D", {"filters": 6, "kernel_size": 3, "groups": 2, "activation": "relu"}),
    ("Conv#DTranspose", {"filters": 6, "kernel_size": 3, "strides": 2, "padding": "same"}),
    ("MaxPooling#D", {"padding": "same"}),
    ("AveragePooling#D", {"pool_size": 3, "padding": "same"}),
    ("GlobalMaxPooling#D", {"keepdims": True}),
    ("GlobalAveragePooling#D", {}),
    ("ZeroPadding#D", {}),
    ("Cropping#D", {}),
    ("UpSampling#D", {}),
    ("SpatialDropout#D", {"rate": 0.5}),
]
CASES: list[tuple[str, Arguments, Shape]] = [
    *((name.replace("#", str(d)), kwargs, (2, *SPACE[:d], 4)) for name, kwargs in BY_DIMENSIONS for d in (1, 2, 3)),
    ("DepthwiseConv1D", {"kernel_size": 3, "depth_multiplier": 2}, (2, 9, 4)),
    ("SeparableConv1D", {"filters": 6, "kernel_size": 3, "padding": "same"}, (2, 9, 4)),
    ("SeparableConv2D", {"filters": 6, "kernel_size": 3, "padding": "same"}, (2, 9, 8, 4)),
    ("ConvLSTM1D", {"filters": 3, "kernel_size": 2, "return_sequences": True}, (2, 3, 9, 4)),
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
    ("EinsumDense", {"equation": "...x,xy->...y", "output_shape": 5, "bias_axes": "y"}, (2, 3, 4)),
    ("Dense", {"units": 4, "kernel_regularizer": "l2", "activity_regularizer": "l2"}, (2, 3, 4)),
    *(("Activation", {"activation": name}, (2, 8)) for name in FURTHER_ACTIVATIONS),
]


@pytest.mark.parametrize(("name", "kwargs", "shape"), CASES)
def test_every_kind_of_layer(name: str, kwargs: Arguments, shape: Shape) -> None:
    as_real(getattr(layers, name)(**kwargs), *shape)


@pytest.mark.parametrize(
    "name", "Attention AdditiveAttention Add Subtract Multiply Average Maximum Minimum Concatenate Dot".split()
)
def test_layers_of_several_tensors(name: str) -> None:
    layer = getattr(layers, name)(**{"axes": 2} if name == "Dot" else {})
    as_real(Calling(lambda model, x: model.layer([x, ops.tanh(x)]), layer=layer), 2, 5, 8)


def test_layers_that_wrap_others() -> None:
    for mode in ("concat", "sum", "mul", "ave", None):
        as_real(layers.Bidirectional(layers.GRU(6, return_sequences=True), merge_mode=mode), 2, 5, 8)
    as_real(layers.SpectralNormalization(layers.Dense(4)), 2, 8)


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
