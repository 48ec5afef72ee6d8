"""Counts of Keras models against formulas written out by hand, and against torch where the zoo has both.

The symbolic trace of layers is in test_keras_counting.py; here too what calls TensorFlow itself and is counted in a traced graph.
"""

from __future__ import annotations

import runpy
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
from sweeprof.backends.torch.counting import count_built as count_torch
from sweeprof.counting.formulas import DEFAULTS, Cost, Formulas
from sweeprof.errors import Unsupported, UserError
from sweeprof.measuring.inputs import Inputs, TensorSpec
from sweeprof.results.layer_times import ROOT
from sweeprof.results.layers import LayerRow, LayerTable

HAND = runpy.run_path(str(Path(__file__).parents[1] / "zoo" / "hand_counts.py"))

QUICK = sweeprof.Protocol(min_s=0.02, warmup_s=0.01)


def counted(model: Any, *shape: int, dtype: Any = "float32") -> LayerTable:
    return count_layers(model, Inputs((TensorSpec(shape, dtype),)))


def complete(model: Any, *shape: int, dtype: Any = "float32") -> LayerTable:
    table = counted(model, *shape, dtype=dtype)
    assert table.uncovered == {}
    return table


def sequential(*parts: Any) -> Any:
    return keras.Sequential(list(parts))


def row(table: LayerTable, path: str) -> LayerRow:
    """The row of a layer; its parents are left out."""
    (found,) = [r for r in table.rows if r.path.rsplit(".", 1)[-1] == path]
    return found


@pytest.mark.parametrize("batch", [1, 7])
@pytest.mark.parametrize("name", sorted(HAND["MACS"]))
def test_the_zoo_is_as_counted_by_hand_and_by_torch(name: str, batch: int) -> None:
    builders = import_module(f"sweeprof.zoo.{name}")
    table = complete(builders.keras_model(), batch, 32, 32, 1)
    assert table.macs == batch * HAND["MACS"][name]
    assert table.params == table.trainable == HAND["PARAMS"][name]
    assert table.params_bytes == 4 * HAND["PARAMS"][name]
    in_torch = count_torch(builders.torch_model, Inputs((TensorSpec((batch, 1, 32, 32)),)))
    assert (table.macs, table.params, table.trainable) == (in_torch.macs, in_torch.params, in_torch.trainable)


@pytest.mark.parametrize(
    ("layer", "shape", "macs"),
    [
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
    ],
)
def test_layers_by_hand(layer: Callable[[], Any], shape: tuple[int, ...], macs: int) -> None:
    model = sequential(keras.Input(shape[1:]), layer())
    table = complete(model, *shape)
    assert table.macs == macs
    assert table.params == model.count_params()


def test_a_layer_of_its_own_is_a_model() -> None:
    layer = layers.Dense(5)
    table = complete(layer, 2, 3)
    assert (table.macs, table.params) == (30, 20)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (layers.ReLU, (2, 8)),
        (lambda: layers.Activation("gelu"), (2, 8)),
        (layers.Softmax, (2, 8)),
        (layers.BatchNormalization, (2, 8, 8, 3)),
        (layers.LayerNormalization, (2, 8)),
        (layers.MaxPooling2D, (2, 8, 8, 3)),
        (lambda: layers.AveragePooling2D(2), (2, 8, 8, 3)),
        (layers.GlobalAveragePooling2D, (2, 8, 8, 3)),
        (lambda: layers.Dropout(0.5), (2, 8)),
        (layers.Flatten, (2, 8, 3)),
        (layers.ZeroPadding2D, (2, 8, 8, 3)),
        (layers.UpSampling2D, (2, 8, 8, 3)),
    ],
)
def test_what_does_no_multiply_accumulate_is_covered(layer: Callable[[], Any], shape: tuple[int, ...]) -> None:
    assert complete(sequential(keras.Input(shape[1:]), layer()), *shape).macs == 0


def test_multi_head_attention() -> None:
    batch, length, width, heads, key = 2, 5, 16, 4, 4
    image = keras.Input((length, width))
    attention = layers.MultiHeadAttention(heads, key)
    table = complete(keras.Model(image, attention(image, image)), batch, length, width)
    projections = 3 * batch * length * width * heads * key + batch * length * heads * key * width
    scores = 2 * batch * heads * length * length * key
    assert table.macs == projections + scores
    assert table.params == 4 * (width * heads * key) + 3 * heads * key + width


def test_moving_statistics_are_buffers() -> None:
    model = sequential(keras.Input((8,)), layers.BatchNormalization(name="bn"))
    table = complete(model, 2, 8)
    assert (table.params, table.trainable) == (16, 16)
    assert row(table, "bn").buffers == 16


def test_the_state_of_a_random_generator_is_no_buffer() -> None:
    table = complete(sequential(keras.Input((8,)), layers.Dropout(0.5)), 2, 8)
    assert sum(r.buffers for r in table.rows) == 0


def test_frozen_layers_are_parameters() -> None:
    model = sequential(keras.Input((4,)), layers.Dense(4, name="frozen"), layers.Dense(2))
    model.get_layer("frozen").trainable = False
    table = complete(model, 1, 4)
    assert (table.params, table.trainable) == (20 + 10, 10)
    assert row(table, "frozen").trainable == 0


def test_a_frozen_batch_norm_keeps_its_buffers_apart() -> None:
    model = sequential(keras.Input((4,)), layers.BatchNormalization(name="bn"))
    model.trainable = False
    table = complete(model, 1, 4)
    assert (table.params, table.trainable, row(table, "bn").buffers) == (8, 0, 8)


def test_a_shared_layer_computes_twice_and_is_stored_once() -> None:
    image = keras.Input((4,))
    shared = layers.Dense(4, name="shared")
    table = complete(keras.Model(image, shared(shared(image))), 1, 4)
    assert (table.params, table.macs) == (20, 32)


def test_a_layer_shared_by_three_models() -> None:
    shared = layers.Dense(100, name="shared")
    image = x = keras.Input((100,))
    for i in range(3):
        inner = keras.Input((100,))
        x = keras.Model(inner, shared(inner), name=f"parent{i}")(x)
    table = complete(keras.Model(image, x), 1, 100)
    assert (table.params, table.macs) == (10_100, 30_000)


def test_a_nested_model_has_the_counts_of_its_parts() -> None:
    inner = sequential(keras.Input((4,)), layers.Dense(8, name="first"), layers.Dense(4, name="second"))
    model = sequential(keras.Input((4,)), inner, layers.Dense(2, name="third"))
    table = complete(model, 3, 4)
    assert table.macs == 3 * (4 * 8 + 8 * 4 + 4 * 2)
    assert table.params == 40 + 36 + 10
    assert {r.path.rsplit(".", 1)[-1]: r.macs for r in table.rows if r.macs} == {
        "first": 96,
        "second": 96,
        "third": 24,
    }


class Subclassed(keras.Model):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.hidden = layers.Dense(8, name="hidden")
        self.out = layers.Dense(2, name="out")

    def call(self, x: Any) -> Any:
        return self.out(self.hidden(x) * 2) @ tf.ones((2, 3))


def test_a_subclassed_model_has_its_own_products_too() -> None:
    table = complete(Subclassed(), 3, 4)
    assert (table.macs, table.params) == (3 * (4 * 8 + 8 * 2 + 2 * 3), 40 + 18)
    assert row(table, "hidden").macs == 3 * 4 * 8
    assert row(table, ROOT).macs == 3 * 2 * 3


def test_a_plain_function_is_counted_too() -> None:
    weights = tf.ones((4, 6))
    table = complete(lambda x: tf.nn.relu(x @ weights), 3, 4)
    assert (table.macs, table.params) == (3 * 4 * 6, 0)


def test_transposed_products() -> None:
    table = complete(lambda x: tf.matmul(x, x, transpose_a=True), 3, 4)
    assert table.macs == 4 * 4 * 3
    table = complete(lambda x: tf.matmul(x, x, transpose_b=True), 2, 3, 4)
    assert table.macs == 2 * 3 * 3 * 4
    table = complete(lambda x: tf.matmul(x, x, transpose_a=True), 2, 3, 4)
    assert table.macs == 2 * 4 * 4 * 3


def test_what_the_outputs_do_not_need_is_not_counted() -> None:
    def model(x: Any) -> Any:
        tf.matmul(x, x)
        return x + 1

    assert complete(model, 4, 4).macs == 0


@pytest.mark.parametrize("function", [tf.linalg.inv, lambda x: tf.abs(tf.signal.rfft(x)), lambda x: tf.linalg.qr(x)[0]])
def test_an_operator_without_a_formula_is_listed(function: Callable[[Any], Any]) -> None:
    assert counted(function, 4, 4).uncovered


def test_a_users_formula_for_an_operator_of_the_graph() -> None:
    own = Formulas(
        {"tensorflow::MatrixInverse": lambda args, kwargs, output: Cost(macs=args[0].shape[-1] ** 3)}, DEFAULTS
    )
    table = count_layers(tf.linalg.inv, Inputs((TensorSpec((2, 4, 4)),)), own)
    assert (table.uncovered, table.macs, table.flops) == ({}, 64, 128)


def test_a_branch_is_listed() -> None:
    def model(x: Any) -> Any:
        return tf.cond(tf.reduce_sum(x) > 0, lambda: x @ x, lambda: x)

    assert counted(model, 4, 4).uncovered


def test_several_inputs_of_tokens() -> None:
    model = sequential(keras.Input((3,), dtype="int64"), layers.Embedding(10, 4), layers.Dense(2))
    table = complete(model, 2, 3, dtype="int64")
    assert (table.macs, table.params) == (2 * 3 * 4 * 2, 50)


def test_rows_know_their_shapes() -> None:
    model = sequential(keras.Input((4,)), layers.Dense(6, name="dense"))
    dense = row(complete(model, 3, 4), "dense")
    assert (dense.input_shapes, dense.output_shapes, dense.type, dense.depth) == (((3, 4),), ((3, 6),), "Dense", 1)


def test_layers_beside_each_other_have_paths_beside_each_other() -> None:
    """Whether a layer multiplies does not change where it is."""
    parts = [layers.Dense(6, name="dense"), layers.BatchNormalization(name="bn")]
    table = complete(sequential(keras.Input((4,)), *parts), 3, 4)
    assert [(r.path, r.depth) for r in table.rows] == [(ROOT, 0), ("dense", 1), ("bn", 1)]


def test_two_layers_of_one_name_in_two_models_keep_the_total() -> None:
    image = x = keras.Input((4,))
    for i in range(2):
        inner = keras.Input((4,))
        x = keras.Model(inner, layers.Dense(4, name="dense")(inner), name=f"parent{i}")(x)
    table = complete(keras.Model(image, x), 1, 4)
    assert (table.params, table.macs) == (40, 32)


def test_counting_leaves_the_model_as_it_was() -> None:
    model = import_module("sweeprof.zoo.mlp").keras_model()
    before = [tuple(map(float, w.numpy().ravel()[:3])) for w in model.weights]
    first = complete(model, 2, 32, 32, 1)
    assert complete(model, 2, 32, 32, 1) == first
    assert [tuple(map(float, w.numpy().ravel()[:3])) for w in model.weights] == before
    assert model.trainable


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
    raw = row(table, "raw")
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


TFPROF_TOY = 244_056_064
"""FLOPs of the toy network by TensorFlow's profiler; with its initialisers it is 244,060,866."""


def toy() -> Any:
    return sequential(
        keras.Input((224, 224, 3)),
        layers.Conv2D(32, 5, padding="same", activation="relu"),
        layers.MaxPool2D(),
        layers.Flatten(),
    )


def test_tensorflows_own_profiler() -> None:
    """LeNet-5 and the toy network, without operators that initialise weights, which deeplite-profiler counts."""
    lenet5 = import_module("sweeprof.zoo.lenet5").keras_model
    assert said(lenet5(), 1, 32, 32, 1) == 845_862
    assert said(toy(), 1, 224, 224, 3) == TFPROF_TOY


def said(model: Any, *shape: int) -> int:
    return own_counts(model, Inputs((TensorSpec(shape),))).counts["tfprof"]


def test_the_gaps_of_tensorflows_own_profiler_are_none_of_ours() -> None:
    """Operators that TensorFlow's profiler misses are counted here."""
    grouped = sequential(keras.Input((8, 8, 4)), layers.Conv2D(6, 3, groups=2))
    macs = 6 * 6 * 6 * (2 * 3 * 3)
    assert said(grouped, 1, 8, 8, 4) == 216  # the biases alone
    assert (complete(grouped, 1, 8, 8, 4).macs, complete(grouped, 1, 8, 8, 4).flops) == (macs, 2 * macs + 216)
    lstm = sequential(keras.Input((5, 8)), layers.LSTM(16))
    assert complete(lstm, 4, 5, 8).macs == 4 * 5 * 4 * 16 * (8 + 16)
    assert said(lstm, 4, 5, 8) < 2 * 4 * 5 * 4 * 16 * (8 + 16) / 4  # one step of five


def test_a_saved_model_is_counted_in_the_batch_that_it_is_asked_for(tmp_path: Path) -> None:
    """Its functions were traced for any size of the batch."""
    model = import_module("sweeprof.zoo.lenet5").keras_model()
    model.export(str(tmp_path), verbose=False)
    loaded = tf.saved_model.load(str(tmp_path))  # its functions live as long as it does
    signature = loaded.signatures["serving_default"]
    table = count_layers(signature, Inputs((), {"image": TensorSpec((3, 32, 32, 1))}))
    live = complete(model, 3, 32, 32, 1)
    assert table.uncovered == {}
    assert (
        (table.macs, table.flops, table.ops) == (live.macs, live.flops, live.ops) == (3 * 416_520, live.flops, live.ops)
    )
    assert (table.params, table.trainable, table.params_bytes) == (61_706, 61_706, 4 * 61_706)
    layer = count_layers(
        keras.layers.TFSMLayer(str(tmp_path), call_endpoint="serve"), Inputs((TensorSpec((3, 32, 32, 1)),))
    )
    assert (layer.macs, layer.params) == (live.macs, 61_706)
    own = own_counts(signature, Inputs((), {"image": TensorSpec((3, 32, 32, 1))}))
    assert own.counts == {}
    assert "SavedModel" in own.reasons["tfprof"]


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


def test_text() -> None:
    """A graph does not know how many lines come out of a vectorisation; the layer does."""
    words = layers.TextVectorization(max_tokens=20, output_sequence_length=6)
    words.adapt(["a b c", "d e f"])
    model = sequential(keras.Input((), dtype="string"), words, layers.Embedding(20, 4), layers.LSTM(3))
    table = count_layers(model, Inputs((TensorSpec((2,), "string"),)))
    assert (table.uncovered, table.macs) == ({}, 2 * 6 * 4 * 3 * (4 + 3))


def test_sizes_that_depend_on_values_are_no_zeros() -> None:
    with pytest.raises(Unsupported, match="the sizes of what __root__ returns are known only from values"):
        counted(lambda x: tf.boolean_mask(x, x[:, 0] > 0) @ tf.ones((4, 2)), 3, 4)


def test_conventions_of_profilers_of_pytorch_have_no_value() -> None:
    from sweeprof.metrics.compat import f2

    said: Any = f2.function(layers=complete(layers.Dense(5), 2, 3))
    assert said.reason.startswith("the conventions are those of profilers of PyTorch")


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


class _Widened(layers.Layer):  # type: ignore[misc]
    """Makes something large by ``keras.ops``, as symbolic tensors see it, before it calls TensorFlow itself."""

    def call(self, inputs: Any) -> Any:
        return tf.reduce_sum(keras.ops.repeat(inputs, 64, axis=1), axis=1, keepdims=True)


def test_what_was_seen_of_a_layer_before_it_is_counted_as_a_graph_is_forgotten() -> None:
    table = counted(sequential(keras.Input((4,)), _Widened(name="widened")), 2, 4)
    assert table.method.startswith("shapes; as a graph widened: ")
    assert table.liveness is not None
    assert table.liveness.peak_bytes == 4 * 2 * 1  # what it returns


# Models that list no variables, and texts


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
        (lambda folder: PROJECTION.project, (128, 32, 2 * 160)),
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


@pytest.mark.parametrize("value_dim", [2, 6])
@pytest.mark.parametrize("causal", [True, False])
def test_attention_has_the_width_of_its_values(value_dim: int, causal: bool) -> None:
    queries, keys = keras.Input((5, 8)), keras.Input((7 if not causal else 5, 8))
    attention = layers.MultiHeadAttention(2, 4, value_dim=value_dim)
    model = keras.Model([queries, keys], attention(queries, keys, use_causal_mask=causal))
    length = keys.shape[1]
    table = count_layers(model, Inputs(([TensorSpec((3, 5, 8)), TensorSpec((3, length, 8))],)))
    projected = 5 * 8 * 8 + length * 8 * 8 + length * 8 * 2 * value_dim + 5 * 2 * value_dim * 8
    assert table.macs == 3 * (projected + 2 * 5 * length * (4 + value_dim))


@pytest.mark.parametrize("thing", [keras.optimizers.SGD(), tf.ones([2]), tf.data.Dataset.range(3)])
def test_what_is_no_model_is_refused(thing: Any) -> None:
    with pytest.raises(UserError, match="is not a model of a framework"):
        sweeprof.profile(thing, (1, 8), progress=False)
