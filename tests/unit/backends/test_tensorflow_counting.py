"""Counts of Keras models on TensorFlow: what calls TensorFlow itself, functions, SavedModels, texts, TensorFlow's own profiler.

The symbolic trace of layers is in test_keras_counting.py.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import sweeprof
from sweeprof.backends.tensorflow.counting import count_layers, own_counts
from sweeprof.backends.tensorflow.files import SavedModel
from sweeprof.counting.formulas import DEFAULTS, Cost, Formulas
from sweeprof.errors import Unsupported, UserError
from sweeprof.measuring.inputs import Inputs, TensorSpec
from sweeprof.results.layer_times import ROOT
from sweeprof.results.layers import LayerTable

QUICK = sweeprof.Protocol(min_s=0.02, warmup_s=0.01)


def counted(model: Any, *shape: int, dtype: Any = "float32", formulas: Formulas = DEFAULTS) -> LayerTable:
    return count_layers(model, Inputs((TensorSpec(shape, dtype),)), formulas)


def complete(model: Any, *shape: int) -> LayerTable:
    table = counted(model, *shape)
    assert table.uncovered == {}
    return table


def sequential(*parts: Any) -> Any:
    return keras.Sequential(list(parts))


@pytest.mark.parametrize("thing", [keras.optimizers.SGD(), tf.ones([2]), tf.data.Dataset.range(3)])
def test_what_is_no_model_is_refused(thing: Any) -> None:
    with pytest.raises(UserError, match="is not a model of a framework"):
        sweeprof.profile(thing, (1, 8), progress=False)


# Functions


def unused(x: Any) -> Any:
    tf.matmul(x, x)
    return x + 1


def branching(x: Any) -> Any:
    return tf.cond(tf.reduce_sum(x) > 0, lambda: x @ x, lambda: x)


FUNCTIONS: list[tuple[str, Callable[[Any], Any], tuple[int, ...], int, bool]] = [
    ("a product", lambda x: tf.nn.relu(x @ tf.ones((4, 6))), (3, 4), 3 * 4 * 6, True),
    ("the first is transposed", lambda x: tf.matmul(x, x, transpose_a=True), (3, 4), 4 * 4 * 3, True),
    ("the second of a batch", lambda x: tf.matmul(x, x, transpose_b=True), (2, 3, 4), 2 * 3 * 3 * 4, True),
    ("the first of a batch", lambda x: tf.matmul(x, x, transpose_a=True), (2, 3, 4), 2 * 4 * 4 * 3, True),
    ("what no output needs", unused, (4, 4), 0, True),
    ("an inverse", tf.linalg.inv, (4, 4), 0, False),
    ("a Fourier transform", lambda x: tf.abs(tf.signal.rfft(x)), (4, 4), 0, False),
    ("a decomposition", lambda x: tf.linalg.qr(x)[0], (4, 4), 0, False),
    ("a branch", branching, (4, 4), 0, False),
]


@pytest.mark.parametrize(
    ("function", "shape", "macs", "is_covered"), [case[1:] for case in FUNCTIONS], ids=[case[0] for case in FUNCTIONS]
)
def test_functions(function: Callable[[Any], Any], shape: tuple[int, ...], macs: int, is_covered: bool) -> None:
    """What has no formula is listed."""
    table = counted(function, *shape)
    assert (table.macs, table.params, table.uncovered == {}) == (macs, 0, is_covered)


def test_a_users_formula_for_an_operator_of_the_graph() -> None:
    own = Formulas(
        {"tensorflow::MatrixInverse": lambda args, kwargs, output: Cost(macs=args[0].shape[-1] ** 3)}, DEFAULTS
    )
    table = counted(tf.linalg.inv, 2, 4, 4, formulas=own)
    assert (table.uncovered, table.macs, table.flops) == ({}, 64, 128)


class Projection(tf.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.first = tf.Variable(tf.ones([16, 8]))
        self.second = tf.Variable(tf.ones([8, 4]), trainable=False)

    @tf.function(input_signature=[tf.TensorSpec([None, 16])])  # type: ignore[untyped-decorator]
    def project(self, x: Any) -> Any:
        return self.inner(x) @ self.second

    @tf.function  # type: ignore[untyped-decorator]
    def inner(self, x: Any) -> Any:
        return x @ self.first


KERNEL = tf.Variable(tf.ones([16, 3]))


PROJECTION = Projection()  # functions do not keep what they belong to
RESTORED: list[Any] = []


def loaded(folder: Path) -> Any:
    tf.saved_model.save(PROJECTION, str(folder))
    RESTORED.append(tf.saved_model.load(str(folder)))
    return RESTORED[-1]


@pytest.mark.parametrize(
    ("make", "weights"),
    [
        (lambda folder: loaded(folder).project, (128, 32, 2 * 160)),
        (lambda folder: tf.function(lambda x: x @ KERNEL), (48, 0, 2 * 48)),
        (lambda folder: lambda x: tf.function(lambda y: y @ KERNEL)(x) @ tf.transpose(KERNEL), (48, 0, 2 * 96)),
    ],
)
def test_variables_that_a_function_reads_are_its_weights(
    make: Callable[[Path], Any], weights: tuple[int, int, int], tmp_path: Path
) -> None:
    table = complete(make(tmp_path), 2, 16)
    assert (table.params, table.buffers, table.macs) == weights
    assert table.params_bytes == 4 * weights[0]


def test_layers_within_a_function_hold_their_own_weights() -> None:
    dense = layers.Dense(4)
    dense.build((None, 3))
    function = tf.function(lambda x: dense(x @ KERNEL))
    table = complete(function, 2, 16)
    assert (table.params, table.macs) == (48 + 3 * 4 + 4, 2 * (48 + 12))
    assert counted(lambda x: function(2 * x), 2, 16).uncovered == {"tensorflow::MatMul within a function": 1}


def test_sizes_that_depend_on_values_are_no_zeros() -> None:
    with pytest.raises(Unsupported, match="the sizes of what __root__ returns are known only from values"):
        counted(lambda x: tf.boolean_mask(x, x[:, 0] > 0) @ tf.ones((4, 2)), 3, 4)


def test_graph_operators_cost_what_the_same_operations_cost() -> None:
    """The same function on symbolic tensors, by ``keras.ops``, and in a graph."""
    ops = keras.ops

    def both(x: Any) -> Any:
        hidden = ops.softmax(ops.matmul(ops.gelu(x, approximate=False), ops.transpose(x)))
        return (
            ops.sum(ops.sqrt(ops.square(hidden)) / 3.0, axis=-1) - ops.mean(hidden) + ops.einsum("ij,jk->i", hidden, x)
        )

    symbolic = complete(layers.Lambda(both), 5, 4)
    graph = complete(both, 5, 4)
    assert (symbolic.method, graph.method) == ("shapes", f"shapes; as a graph {ROOT}: it is no Keras layer")
    assert symbolic.macs == graph.macs
    # GELU is one operation of one FLOP and five; in the graph it is divided by √2, erf, plus one, times x, halved.
    assert symbolic.flops is not None
    assert graph.flops == symbolic.flops + 4 * 20
    assert graph.ops == symbolic.ops


# Layers that call TensorFlow


class Raw(keras.Layer):  # type: ignore[misc]
    """Calls TensorFlow, and a layer in between."""

    def __init__(self) -> None:
        super().__init__(name="raw")
        self.inner = layers.Dense(6, name="inner")

    def call(self, x: Any) -> Any:
        return tf.nn.relu(tf.matmul(self.inner(tf.tanh(x)), tf.ones((6, 2))))


def test_a_layer_that_calls_tensorflow_is_a_graph_around_the_layers_that_it_calls() -> None:
    model = sequential(keras.Input((4,)), layers.Dense(4, name="first"), Raw())
    table = complete(model, 3, 4)
    assert table.method.startswith("shapes; as a graph raw: ")
    assert [(r.path, r.type, r.macs, r.params) for r in table.rows] == [
        (ROOT, "Sequential", 0, 0),
        ("first", "Dense", 3 * 4 * 4, 20),
        ("raw", "Raw", 3 * 6 * 2, 0),
        ("raw.inner", "Dense", 3 * 4 * 6, 30),
    ]
    raw = table.rows[2]
    assert raw.flops == 2 * 36 + 12 + 6  # tanh of (3, 4), the product, relu of (3, 2)
    assert raw.ops == 2 * 36 - 6 + 7 * 12 + 6
    assert {operator.name for operator in raw.operators} == {f"tensorflow::{n}" for n in ("Tanh", "MatMul", "Relu")}
    assert (raw.input_shapes, raw.output_shapes) == (((3, 4),), ((3, 2),))
    assert table.coverage == 1


def test_what_a_layer_raises_is_the_users() -> None:
    class Broken(keras.Layer):  # type: ignore[misc]
        def call(self, x: Any) -> Any:
            raise RuntimeError("so it is")

    with pytest.raises(RuntimeError, match="so it is"):
        counted(sequential(keras.Input((4,)), layers.Dense(2), Broken()), 3, 4)


class Lazy(keras.Layer):  # type: ignore[misc]
    """Calls TensorFlow with a condition on values, and has its weights only once it is called."""

    def __init__(self) -> None:
        super().__init__(name="lazy")
        self.inner = layers.Dense(4, name="inner")

    def build(self, shape: Any) -> None:
        self.built = True

    def call(self, x: Any) -> Any:
        if tf.shape(x)[0] > 100:
            x = x + 1.0
        return tf.nn.relu(self.inner(x))


def test_a_layer_that_makes_its_weights_while_it_is_traced_is_counted_once() -> None:
    table = counted(Lazy(), 3, 4)
    assert table.uncovered == {"tensorflow::StatelessIf": 1}
    assert [(r.path, r.call, r.macs, r.params) for r in table.rows] == [(ROOT, 0, 0, 0), ("inner", 0, 48, 20)]


class _CallsTensorflow(layers.Layer):  # type: ignore[misc]
    """A cell that computes something by ``keras.ops`` before or after it calls TensorFlow itself."""

    state_size = output_size = 64

    def __init__(self, is_first: bool) -> None:
        super().__init__(name="cell")
        self.is_first = is_first

    def call(self, inputs: Any, states: Any) -> Any:
        if self.is_first:
            state = tf.raw_ops.Relu(features=states[0])
            return inputs, [keras.ops.multiply(state, 2.0)]
        state = keras.ops.multiply(states[0], 2.0)
        return inputs, [tf.raw_ops.Relu(features=state)]


def test_a_state_that_was_seen_before_a_layer_is_counted_as_a_graph_takes_memory() -> None:
    tables = [counted(layers.RNN(_CallsTensorflow(is_first)), 2, 1, 3) for is_first in (True, False)]
    assert [table.method.partition(":")[0] for table in tables] == ["shapes; as a graph cell"] * 2
    for table in tables:  # both states, the step and what is returned for it are alive while the cell runs
        assert table.liveness is not None
        assert (table.liveness.peak_bytes, table.liveness.peak_at) == (4 * 2 * (64 + 64 + 3 + 3), "cell")


@pytest.mark.parametrize("value_dim", [2, 6])
def test_attention_has_the_width_of_its_values(value_dim: int) -> None:
    queries, keys = keras.Input((5, 8)), keras.Input((7, 8))
    model = keras.Model([queries, keys], layers.MultiHeadAttention(2, 4, value_dim=value_dim)(queries, keys))
    table = count_layers(model, Inputs(([TensorSpec((3, 5, 8)), TensorSpec((3, 7, 8))],)))
    projected = 5 * 8 * 8 + 7 * 8 * 8 + 7 * 8 * 2 * value_dim + 5 * 2 * value_dim * 8
    assert table.macs == 3 * (projected + 2 * 5 * 7 * (4 + value_dim))


# SavedModels and texts


def test_a_saved_model_is_counted_in_the_batch_that_it_is_asked_for(tmp_path: Path) -> None:
    """Its functions were traced for any size of the batch."""
    model = import_module("sweeprof.zoo.lenet5").keras_model()
    model.export(str(tmp_path), verbose=False)
    loaded = tf.saved_model.load(str(tmp_path))  # its functions live as long as it does
    signature = loaded.signatures["serving_default"]
    table = count_layers(signature, Inputs((), {"image": TensorSpec((3, 32, 32, 1))}))
    live = complete(model, 3, 32, 32, 1)
    assert table.uncovered == {}
    assert (table.macs, table.flops, table.ops) == (3 * 416_520, live.flops, live.ops)
    assert (table.params, table.trainable, table.params_bytes) == (61_706, 61_706, 4 * 61_706)
    layer = count_layers(
        keras.layers.TFSMLayer(str(tmp_path), call_endpoint="serve"), Inputs((TensorSpec((3, 32, 32, 1)),))
    )
    assert (layer.macs, layer.params) == (live.macs, 61_706)


class _Nested(tf.Module):  # type: ignore[misc]
    """Functions that call functions, one of them twice, for any size of the batch; a grouped convolution; a loop."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel = tf.Variable(tf.ones((3, 3, 2, 8)))
        self.weight = tf.Variable(tf.ones((8, 8)))
        self.unused = tf.Variable(1.0)

    @tf.function(input_signature=[tf.TensorSpec((None, 8))])  # type: ignore[untyped-decorator]
    def product(self, x: tf.Tensor) -> tf.Tensor:
        return x @ self.weight

    @tf.function(input_signature=[tf.TensorSpec((None, 10, 10, 4))])  # type: ignore[untyped-decorator]
    def convolution(self, x: tf.Tensor) -> tf.Tensor:
        return tf.nn.conv2d(x, self.kernel, 1, "VALID")

    @tf.function(input_signature=[tf.TensorSpec((None, 10, 10, 4))])  # type: ignore[untyped-decorator]
    def serve(self, x: tf.Tensor) -> tf.Tensor:
        pooled = tf.reduce_mean(self.convolution(x), (1, 2))
        y = self.product(self.product(pooled))
        for _ in tf.range(3):
            y = y + 1.0
        return tf.ensure_shape(y, (5, 8))


def test_what_the_functions_of_a_file_call_is_counted_where_they_call_it(tmp_path: Path) -> None:
    tf.saved_model.save(_Nested(), str(tmp_path))
    table = counted(SavedModel(str(tmp_path)), 5, 10, 10, 4)
    assert table.macs == 5 * 8 * 8 * 8 * (3 * 3 * 2) + 2 * 5 * 8 * 8
    assert {operator.name: operator.calls for row in table.rows for operator in row.operators} == {
        "tensorflow::Conv2D": 1,
        "tensorflow::Mean": 1,
        "tensorflow::MatMul": 2,
    }
    assert table.uncovered == {"tensorflow::StatelessWhile": 1}
    assert table.rows[0].output_shapes == ((5, 8),)


TEXTS = np.array(["a b", "c d e"], dtype=object)


@pytest.mark.parametrize("texts", [TEXTS, TEXTS.astype(str), tf.constant(["a b", "c d e"])])
def test_texts_are_counted_and_timed(texts: Any) -> None:
    words = layers.TextVectorization(max_tokens=20, output_sequence_length=6)
    words.adapt(["a b c", "d e f"])
    parts = [words, layers.Embedding(20, 8), layers.GlobalAveragePooling1D(), layers.Dense(2, use_bias=False)]
    model = keras.Sequential([keras.Input((), dtype="string"), *parts])
    profile = sweeprof.profile(model, texts, ["compute/macs", "latency/forward"], protocol=QUICK, progress=False)
    assert profile["compute/macs"].value == 2 * 8 * 2
    assert profile["latency/forward"].value
    assert profile.layers.rows[0].input_dtypes == ("string",)


# TensorFlow's own profiler


def test_tensorflows_own_profiler() -> None:
    """LeNet-5 and the toy network, without operators that initialise weights, which deeplite-profiler counts: 244,060,866."""
    lenet5 = import_module("sweeprof.zoo.lenet5").keras_model()
    convolution = layers.Conv2D(32, 5, padding="same", activation="relu")
    toy = sequential(keras.Input((224, 224, 3)), convolution, layers.MaxPool2D(), layers.Flatten())
    for model, shape, flops in ((lenet5, (1, 32, 32, 1), 845_862), (toy, (1, 224, 224, 3), 244_056_064)):
        assert own_counts(model, Inputs((TensorSpec(shape),))).counts["tfprof"] == flops
