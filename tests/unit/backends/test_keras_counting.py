"""The symbolic trace of Keras models: rows, weights, data types, inputs of all kinds, formulas, training, and what it leaves."""

from __future__ import annotations

import threading
from collections.abc import Callable
from importlib import import_module
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers, ops
from keras.src.layers import layer as layers_of_keras
from keras.src.ops.operation import Operation

from sweeprof.backends.keras.counting import count_layers, count_training
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
    assert (hidden.input_dtypes, hidden.output_dtypes) == (("float32",), ("float32",))
    assert (hidden.input_bytes, hidden.output_bytes, hidden.act_bytes) == (48, 96, 96)
    assert root.act_bytes == 0
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


def toy() -> Any:
    """The toy network of deeplite-profiler."""
    conv = layers.Conv2D(32, 5, padding="same", activation="relu", name="conv")
    return sequential((224, 224, 3), conv, layers.MaxPool2D(), layers.Flatten())


def of_tflite() -> Any:
    """The network of deeplite-profiler's TFLite example."""
    conv = layers.Conv2D(32, 3, padding="same", activation="relu", name="conv")
    depthwise = layers.DepthwiseConv2D(3, padding="same", name="depthwise")
    return sequential((32, 32, 3), conv, depthwise, layers.Flatten(), layers.Dense(1, name="dense"))


NETWORKS: list[tuple[Callable[[], Any], tuple[int, ...], int, int, dict[str, int]]] = [
    (toy, (224, 224, 3), 2_432, 120_422_400, {"conv": 224**2 * 32 * 5**2 * 3}),
    # Parameters without activations; a dense layer has all its inputs, not one size of their shape.
    (of_tflite, (32, 32, 3), 33_985, 2_424_832 // 2, {"conv": 884_736, "depthwise": 294_912, "dense": 32 * 32 * 32}),
]  # fmt: skip


@pytest.mark.parametrize(("make", "shape", "params", "macs", "products"), NETWORKS)
def test_networks_as_published(
    make: Callable[[], Any], shape: tuple[int, ...], params: int, macs: int, products: dict[str, int]
) -> None:
    """Counted by hand, as a whole and layer by layer."""
    table = complete(make(), spec(1, *shape))
    assert (table.params, table.macs) == (params, macs)
    assert {row.path: row.macs for row in table.rows if row.macs} == products


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
    assert rows(table)[ROOT, 0].flops == 2 * 60 + 15
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
    [
        ("mixed_bfloat16", "float32", "bfloat16", 4, 2),
        ("float64", "float64", "float64", 8, 8),
    ],
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
        backend = keras.src.backend
        calls = [Operation.symbolic_call, keras.Layer.symbolic_call, keras.Layer.__call__, layers_of_keras.Node]
        return [*calls, backend.convert_to_tensor, backend.cast, backend.Variable.__mul__]

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


@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy")  # within Keras, as the next one
@pytest.mark.filterwarnings("ignore:Layer InputLayer does not have a `quantize` method")
def test_quantised_weights_are_parameters() -> None:
    model = sequential((8,), layers.Dense(4, name="dense"))
    model.quantize("int8")
    dense = rows(counted(model, spec(3, 8)))["dense", 0]
    assert dense.dtypes == {"float32": 4 + 4, "int8": 32}  # biases and scales
    assert (dense.params, dense.params_bytes, dense.buffers) == (40, 64, 0)


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
