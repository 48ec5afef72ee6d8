"""TFLite files: how they are made, what is counted in them, what they answer; against torch, TensorFlow and formulas by hand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import sweeprof
from sweeprof.backends.torch.counting import count_built as count_torch
from sweeprof.counting.formulas import Formulas
from sweeprof.datasets.arrays import Digits
from sweeprof.errors import Unsupported
from sweeprof.measuring.inputs import Inputs, TensorSpec
from sweeprof.results.layers import LayerTable
from sweeprof.targets import builder
from sweeprof.zoo import digits_resnet, lenet5, mlp

pytest.importorskip("ai_edge_litert")

from sweeprof.backends import model_files, named, signature_of
from sweeprof.backends.litert.adapter import LitertBackend, count_file
from sweeprof.backends.litert.convert import LitertConverter, Quantization
from sweeprof.backends.litert.model import InterpreterSettings, LitertModel, TfliteFile

ROWS = 8
"""Of the files here; the 360 test images come in 45 such batches."""
QUANTIZATIONS: tuple[Quantization, ...] = ("none", "dynamic", "float16", "int8")
TEST = Digits().split("test")


BIASED = {"bias_initializer": "random_normal"}
"""The converter leaves out a bias of zeros, and keeps two equal ones once."""
SAME: dict[str, Any] = {"padding": "same", **BIASED}


def written(folder: Path, model: Any, *shapes: tuple[int, ...], quantization: Quantization = "none") -> TfliteFile:
    samples = {"0": np.moveaxis(Digits().split("train").inputs[:128], 1, -1)} if quantization == "int8" else {}
    signature = signature_of(Inputs(tuple(TensorSpec(shape) for shape in shapes)))
    own = folder / str(len(list(folder.iterdir())))
    own.mkdir()
    return LitertConverter(quantization=quantization).convert(model, signature, None, samples, own)


@pytest.fixture(scope="module")
def lenet(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TfliteFile]:
    folder, model = tmp_path_factory.mktemp("lenet"), lenet5.keras_model()
    return {q: written(folder, model, (ROWS, 32, 32, 1), quantization=q) for q in QUANTIZATIONS}


def opened(file: TfliteFile, **settings: Any) -> LitertModel:
    return LitertModel(lambda *_: nullcontext(file), InterpreterSettings(**settings), 1)


def outputs(model: LitertModel, *args: Any) -> Any:
    """What a model returns, and returns once more: its inputs are still there."""
    with model.stepping(model.put(Inputs(args))) as step:
        first, again = (next(iter(named(model.host_outputs(step())).values())) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    return first


def logits(model: LitertModel, images: Any = TEST.inputs) -> Any:
    return np.concatenate([outputs(model, images[begin : begin + ROWS]) for begin in range(0, len(images), ROWS)])


def counted(folder: Path, model: Any, *shapes: tuple[int, ...]) -> LayerTable:
    return count_file(written(folder, model, *shapes), shapes)


@pytest.mark.slow
@pytest.mark.parametrize("quantization", QUANTIZATIONS)
def test_lenet5_costs_what_its_twin_in_torch_does(lenet: dict[str, TfliteFile], quantization: str) -> None:
    table = count_file(lenet[quantization], [(ROWS, 32, 32, 1)])
    twin = count_torch(lenet5.torch_model, Inputs((TensorSpec((ROWS, 1, 32, 32)),)))
    assert (table.macs, table.flops, table.ops) == (twin.macs, twin.flops, twin.ops)
    assert table.macs == ROWS * 416_520
    assert (table.params, table.uncovered, table.coverage, table.method) == (61_706, {}, 1, "shapes")
    names = [row.path for row in table.rows]
    assert names == "__root__ conv1 tanh1 pool1 conv2 tanh2 pool2 conv3 tanh3 linear1 tanh4 linear2".split()


@pytest.mark.slow
def test_parameters_take_what_their_types_take(lenet: dict[str, TfliteFile]) -> None:
    """Weights of 8 bits keep biases of 32; the dynamic range leaves the smallest kernels as they are."""
    sizes = {name: count_file(file, [(ROWS, 32, 32, 1)]).params_bytes for name, file in lenet.items()}
    biases = 6 + 16 + 120 + 84 + 10
    assert sizes["none"] == 4 * 61_706
    assert sizes["float16"] == 2 * 61_706
    assert sizes["int8"] == 61_706 + 3 * biases
    assert sizes["int8"] < sizes["dynamic"] < sizes["float16"]


def test_weights_that_are_widened_are_no_inputs(lenet: dict[str, TfliteFile]) -> None:
    """Weights of 16 bits are widened by operators of the file; a layer of 32 bits reads its activations alone."""
    shape = [(ROWS, 32, 32, 1)]
    plain, half = (count_file(lenet[name], shape) for name in ("none", "float16"))
    assert [row.input_shapes for row in half.rows] == [row.input_shapes for row in plain.rows]
    assert [row.input_bytes for row in half.rows] == [row.input_bytes for row in plain.rows]
    assert plain.rows[0].input_bytes == ROWS * 32 * 32 * 4


def test_the_size_of_a_file_is_its_length(lenet: dict[str, TfliteFile]) -> None:
    """deeplite asked for the size of the Python object, and divided by a million what it called MB elsewhere."""
    for file in lenet.values():
        content = Path(file.path).read_bytes()
        assert file.artifact().bytes == len(content) != sys.getsizeof(content)
        assert file.artifact().format == "tflite"
    sizes = {name: file.artifact().bytes for name, file in lenet.items()}
    assert 2 * 61_706 < sizes["float16"] < 0.55 * sizes["none"]
    assert 61_706 < sizes["int8"] < 0.31 * sizes["none"]


@pytest.mark.parametrize(
    ("quantization", "tolerance", "accuracy"),
    [("none", 1e-4, 0.99), ("float16", 0.02, 0.99), ("dynamic", 0.2, 0.985), ("int8", 0.6, 0.985)],
)
def test_answers_are_those_of_tensorflow(
    lenet: dict[str, TfliteFile], quantization: str, tolerance: float, accuracy: float
) -> None:
    expected = lenet5.keras_model()(np.moveaxis(TEST.inputs, 1, -1), training=False).numpy()
    found = logits(opened(lenet[quantization]))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=tolerance)
    assert np.mean(found.argmax(1) == TEST.targets) >= accuracy


def test_xnnpack_is_on_or_off(lenet: dict[str, TfliteFile]) -> None:
    on, off = opened(lenet["none"]), opened(lenet["none"], xnnpack=False)
    np.testing.assert_allclose(logits(on, TEST.inputs[:ROWS]), logits(off, TEST.inputs[:ROWS]), atol=1e-5)
    names = [{operator["op_name"] for operator in model.native._get_ops_details()} for model in (on, off)]
    assert ["DELEGATE" in found for found in names] == [True, False]


def test_a_short_batch_is_filled_up_and_cut(lenet: dict[str, TfliteFile]) -> None:
    model = opened(lenet["none"])
    np.testing.assert_array_equal(logits(model, TEST.inputs[:5]), logits(model, TEST.inputs[:ROWS])[:5])


def test_what_does_not_fit_is_said(lenet: dict[str, TfliteFile]) -> None:
    model = opened(lenet["none"])
    with pytest.raises(Unsupported, match=r"the file takes a \(8, 32, 32, 1\), not a \(9, 32, 32, 1\)"):
        model.put(Inputs((TEST.inputs[:9],)))
    with pytest.raises(Unsupported, match="the file takes 1 inputs, not 2"):
        opened(lenet["none"]).put(Inputs((TEST.inputs[:8], TEST.inputs[:8])))


def test_activations_live_as_long_as_they_are_read(lenet: dict[str, TfliteFile]) -> None:
    """The highest is while the first tanh runs: what it reads and what it makes; flattening makes nothing."""
    table = count_file(lenet["none"], [(ROWS, 32, 32, 1)])
    assert table.liveness is not None
    assert table.liveness.peak_bytes == 2 * ROWS * 28 * 28 * 6 * 4
    assert (table.liveness.peak_at, table.liveness.input_bytes) == ("tanh1", ROWS * 1024 * 4)


def test_batch_normalisation_is_in_the_weights_before_it(tmp_path: Path) -> None:
    table = counted(tmp_path, digits_resnet.keras_model(), (1, 32, 32, 1))
    twin = count_torch(digits_resnet.torch_model, Inputs((TensorSpec((1, 1, 32, 32)),)))
    assert table.macs == twin.macs
    folded = twin.params - sum(row.params for row in twin.rows if row.type == "BatchNorm2d") // 2
    assert table.params == folded
    assert {row.path for row in table.rows} >= {"stage1_add", "stage2_shortcut_conv", "stage3_pad1", "pool", "linear"}


def test_the_network_of_deeplites_tests(tmp_path: Path) -> None:
    """deeplite-profiler counted activations as parameters, and a dense layer by its batch (64 of 65,536 FLOPs)."""
    convolutions = [layers.Conv2D(32, 3, **SAME), layers.DepthwiseConv2D(3, **SAME)]
    model = [keras.Input((32, 32, 3)), *convolutions, layers.Flatten(), layers.Dense(1, **BIASED)]
    table = counted(tmp_path, keras.Sequential(model), (1, 32, 32, 3))
    assert (table.params, table.macs) == (33_985, 1_212_416)
    assert 2 * table.macs == 2_424_832
    assert table.inclusive().rows[0].params == table.params
    dense = next(row for row in table.rows if row.type == "FULLY_CONNECTED")
    assert (dense.macs, dense.flops) == (32_768, 65_536 + 1)
    assert max(row.output_bytes or 0 for row in table.rows) == 32 * 32 * 32 * 4  # twice that is its "memory footprint"


LAYERS: list[tuple[Callable[[], Any], tuple[int, ...], int, int | None]] = [
    (lambda: layers.Conv2D(6, 3, groups=2), (2, 8, 8, 4), 2 * 6 * 6 * 6 * 2 * 9, None),
    (lambda: layers.Conv2D(6, 3, 2, "same", activation="relu", **BIASED), (2, 9, 9, 4), 2 * 5 * 5 * 6 * 36,
     2 * (2 * 5 * 5 * 6 * 36) + 2 * (2 * 5 * 5 * 6)),
    (lambda: layers.DepthwiseConv2D(3, depth_multiplier=2), (2, 8, 8, 4), 2 * 8 * 6 * 6 * 9, None),
    (lambda: layers.Conv2DTranspose(6, 4, 2, "same"), (2, 8, 8, 4), 49_152, None),
    (lambda: layers.Dense(8, **BIASED), (2, 3, 4), 2 * 3 * 4 * 8, 2 * 192 + 48),
    (layers.Softmax, (3, 7), 0, 21),
]  # fmt: skip


@pytest.mark.parametrize(("layer", "shape", "macs", "flops"), LAYERS)
def test_layers_cost_what_is_written_by_hand(
    tmp_path: Path, layer: Callable[[], Any], shape: tuple[int, ...], macs: int, flops: int | None
) -> None:
    table = counted(tmp_path, keras.Sequential([keras.Input(shape[1:]), layer()]), shape)
    assert (table.macs, table.uncovered) == (macs, {})
    assert flops is None or table.flops == flops


def test_attention_is_products(tmp_path: Path) -> None:
    """5 positions of width 8, 2 heads of 4: three projections and one back, scores and their sums."""
    x = keras.Input((5, 8))
    table = counted(tmp_path, keras.Model(x, layers.MultiHeadAttention(2, 4)(x, x)), (3, 5, 8))
    assert table.macs == 3 * (4 * 5 * 8 * 8 + 2 * 2 * 5 * 5 * 4)
    assert table.uncovered == {}


@pytest.mark.parametrize(
    ("function", "shape", "flops", "uncovered"),
    [
        # As in a file of ONNX or OpenVINO, choosing boxes computes nothing
        (lambda x: tf.image.non_max_suppression(x, x[:, 0], 2), (3, 4), 0, {}),
        (tf.cumsum, (3, 7), 0, {"CUMSUM": 1}),
    ],
    ids=["boxes", "an operator that is not known"],
)
def test_functions(
    function: Any, shape: tuple[int, ...], flops: int, uncovered: dict[str, int], tmp_path: Path
) -> None:
    table = counted(tmp_path, function, shape)
    assert (table.flops, table.uncovered) == (flops, uncovered)
    assert table.coverage == 0 or not uncovered


def test_weights_within_a_loop(tmp_path: Path) -> None:
    """A loop over the time steps has them in its body; the first state, which it is given, is no parameter."""
    table = counted(tmp_path, keras.Sequential([keras.Input((5, 8)), layers.LSTM(6, **BIASED)]), (3, 5, 8))
    assert (table.uncovered, table.params) == ({"WHILE": 1}, 4 * (8 * 6 + 6 * 6 + 6))
    (loop,) = [row for row in table.rows if row.type == "WHILE"]
    assert loop.params == table.params


def test_a_file_that_keeps_a_state(tmp_path: Path) -> None:
    """Operators that write to a variable return nothing, as in models that are called for each part of a stream."""

    class Sums(tf.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.total = tf.Variable(tf.zeros((2, 4)))

        @tf.function(input_signature=[tf.TensorSpec((2, 4))])  # type: ignore[untyped-decorator]
        def __call__(self, x: tf.Tensor) -> tf.Tensor:
            return 2.0 * self.total.assign_add(x)

    model = Sums()
    converter = tf.lite.TFLiteConverter.from_concrete_functions([model.__call__.get_concrete_function()], model)
    converter.experimental_enable_resource_variables = True
    path = tmp_path / "state.tflite"
    path.write_bytes(converter.convert())
    table = count_file(TfliteFile(str(path)), [(2, 4)])
    assert "ASSIGN_VARIABLE" in [row.type for row in table.rows]
    assert (table.flops, table.uncovered) == (2 * 2 * 4, {})


def test_a_formula_for_an_operator(tmp_path: Path) -> None:
    """It comes first, and the activation that is fused into the operator is added."""

    def cost(inputs: Any, attributes: Any, outputs: Any) -> sweeprof.Cost:
        return sweeprof.Cost(macs=attributes["strideH"] * outputs[0].elements, flops=0)

    layer = layers.Conv2D(3, 3, 2, activation="relu", **BIASED)
    file = written(tmp_path, keras.Sequential([keras.Input((9, 9, 4)), layer]), (1, 9, 9, 4))
    table = count_file(file, [(1, 9, 9, 4)], Formulas({"litert::CONV_2D": cost}))
    elements = 4 * 4 * 3
    assert (table.macs, table.flops) == (2 * elements, elements)


def test_a_file_for_any_batch(tmp_path: Path) -> None:
    """What TensorFlow converts by default: its flattening computes a shape, which only a forward tells."""
    path = tmp_path / "open.tflite"
    path.write_bytes(tf.lite.TFLiteConverter.from_keras_model(mlp.keras_model()).convert())
    file = TfliteFile(str(path))
    table = count_file(file, [(ROWS, 32, 32, 1)])
    assert (table.macs, table.params) == (ROWS * 139_904, 140_106)
    assert table.method.startswith("real forward")
    backend = LitertBackend()
    model = backend.load(lambda: file, "cpu", 1)
    expected = mlp.keras_model()(np.moveaxis(TEST.inputs[:ROWS], 1, -1)).numpy()
    np.testing.assert_allclose(logits(model, TEST.inputs[:ROWS]), expected, atol=1e-4)


def loaded(model: Any) -> Any:
    return LitertBackend().load(lambda: model, "cpu", None)


def test_several_inputs_keep_their_order() -> None:
    a, b = keras.Input((2,), name="z"), keras.Input((2,), name="a")
    difference, ones = keras.Model({"z": a, "a": b}, layers.Subtract()([a, b])), np.ones((1, 2), np.float32)
    np.testing.assert_array_equal(outputs(loaded(difference), {"z": 5 * ones, "a": ones}), 4 * ones)


def test_inputs_with_names_may_come_in_any_order(tmp_path: Path) -> None:
    """A file that another program made has its names in its signature; a file made here knows those of the model."""
    module = tf.Module()
    module.doubled = tf.function(lambda alpha, beta: 2 * alpha - beta)
    specs = [tf.TensorSpec((1, 3), name="alpha"), tf.TensorSpec((1, 2, 3), name="beta")]
    path = tmp_path / "two.tflite"
    converter = tf.lite.TFLiteConverter.from_concrete_functions([module.doubled.get_concrete_function(*specs)], module)
    path.write_bytes(converter.convert())
    alpha, beta = np.full((1, 3), 5, np.float32), np.ones((1, 2, 3), np.float32)
    file, own = TfliteFile(str(path)), LitertBackend(cache=str(tmp_path / "cache"))
    for model in (loaded(file), own.load(lambda: lambda alpha, beta: 2 * alpha - beta, "cpu", None)):
        for given in ({"alpha": alpha, "beta": beta}, {"beta": beta, "alpha": alpha}):
            with model.stepping(model.put(Inputs(kwargs=given))) as step:
                np.testing.assert_array_equal(model.host_outputs(step()), np.full((1, 2, 3), 9))
    reversed_order = Inputs(kwargs={"beta": beta, "alpha": alpha})
    table = own.analyze(lambda: file, reversed_order, None, Formulas())
    assert (table.method, table.flops) == ("shapes", 3 + 6)
    with pytest.raises(Unsupported, match=r"the graph takes .*alpha.*, and 2 tensors are given"):
        loaded(file).put(Inputs(kwargs={"alpha": alpha, "gamma": beta}))


def test_integers_become_the_type_of_a_quantized_input(lenet: dict[str, TfliteFile]) -> None:
    """Pixels of another type than the file's are real numbers; those of its own type are quantized already."""
    model, images = opened(lenet["int8"]), np.round(TEST.inputs[:ROWS])
    expected = logits(model, images)
    for dtype in (np.uint8, np.int64):
        np.testing.assert_array_equal(logits(model, images.astype(dtype)), expected)
    scale, zero = model.native.get_input_details()[0]["quantization"]
    quantized = np.clip(np.round(images / scale) + zero, -128, 127).astype(np.int8)
    np.testing.assert_array_equal(logits(model, quantized), expected)


def test_the_first_output_is_the_first_that_a_mapping_lists() -> None:
    """Not the first of its sorted keys, which TensorFlow's graphs have: other frameworks' answers are compared with it."""
    x, ones = keras.Input((4,)), np.ones((2, 4), np.float32)
    first, aux = layers.Dense(3, kernel_initializer="ones")(x), layers.Dense(5)(x)
    found = outputs(loaded(keras.Model(x, {"logits": first, "aux": aux})), ones)
    np.testing.assert_array_equal(found, np.full((2, 3), 4))
    assert outputs(loaded(keras.Model(x, {"aux": aux, "logits": first})), ones).shape == (2, 5)
    np.testing.assert_array_equal(outputs(loaded(lambda x: {"z": [x + 1, None], "a": (x,)}), ones), ones + 1)


# How a model becomes a file: once, in a process of its own; and the process that runs it, which has none of TensorFlow


IMAGES = Inputs((TensorSpec((2, 1, 32, 32)),))


def test_what_cannot_be_converted_has_the_converters_words(tmp_path: Path) -> None:
    made = LitertConverter(0, str(tmp_path)).converted(lambda: lambda x: tf.math.betainc(x, x, x), IMAGES, 1)
    with pytest.raises(Unsupported, match=r"TensorFlow's converter cannot convert the model: .*tf\.Betainc"), made:
        pass


PROGRAM = """
import json, sys
import numpy as np, psutil
from sweeprof.backends.litert.adapter import LitertBackend
from sweeprof.backends.litert.model import TfliteFile
from sweeprof.measuring.inputs import Inputs, TensorSpec

def times():
    return {thread.id: thread.user_time + thread.system_time for thread in psutil.Process().threads()}

found = {}
for threads in (1, 2):
    model = LitertBackend(threads=threads).load(lambda: TfliteFile(sys.argv[1]), "cpu", None)
    with model.stepping(model.put(Inputs((TensorSpec((1024, 1024)),)))) as step:
        step()
        before = times()
        for _ in range(8):
            step()
        spent = {id: time - before.get(id, 0.0) for id, time in times().items()}
    found[threads] = [spent.pop(psutil.Process().pid), sum(spent.values())]
print(json.dumps({"threads": found, "loaded": [name for name in ("tensorflow", "keras", "torch", "jax") if name in sys.modules]}))
"""


@pytest.mark.slow
def test_a_measured_process_has_the_interpreter_and_as_many_threads_as_it_should(tmp_path: Path) -> None:
    wide = keras.Sequential([keras.Input((1024,)), layers.Dense(1024)])
    command = [sys.executable, "-c", PROGRAM, written(tmp_path, wide, (1024, 1024)).path]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120, env=environment)
    found = json.loads(done.stdout)
    assert found["loaded"] == []
    (own, others), (own_of_two, others_of_two) = found["threads"]["1"], found["threads"]["2"]
    assert others < 0.1 * (own + others)
    assert others_of_two > 0.1 * (own_of_two + others_of_two)


def test_other_samples_make_another_file_in_the_users_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def made(request: Any, variables: Any) -> None:
        asked.append(Path(request["folder"]))
        (asked[-1] / TfliteFile.NAME).write_bytes(b"content")
        TfliteFile(str(asked[-1] / TfliteFile.NAME)).write_facts()

    def given(samples: Inputs, limit: int) -> Inputs:
        return samples

    monkeypatch.setattr(model_files, "run_child", made)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    backend, build = (
        LitertBackend(precision="int8"),
        builder({"_target_": "sweeprof.zoo.mlp.keras_model"}, "tensorflow"),
    )
    backend.expect(IMAGES)
    dark, light = (Inputs((np.full((128, 1, 32, 32), value, np.float32),)) for value in (0, 1))
    for samples in (dark, light, light):
        backend.ranges_from(partial(given, samples))
        assert backend.artifact(build, 1).bytes == len(b"content")
    assert len(set(asked)) == len(asked) == 2
    assert asked[0].parent == tmp_path / "sweeprof" / "litert"
