"""OpenVINO on graphs that are made here and on files of ONNX: what is counted, timed and returned."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import openvino
import pytest
from onnxruntime.quantization import QuantFormat, quantize_dynamic
from onnxruntime.quantization.matmul_nbits_quantizer import DefaultWeightOnlyQuantConfig, MatMulNBitsQuantizer
from openvino import opset13 as ops

import sweeprof
from support import onnx_graphs
from support.onnx_graphs import call, floats, node
from sweeprof.backends.onnxruntime.files import OnnxFile
from sweeprof.backends.openvino.adapter import OpenvinoBackend, OpenvinoModel
from sweeprof.backends.openvino.convert import OpenvinoFile
from sweeprof.counting.formulas import DEFAULTS, Cost, Formulas
from sweeprof.datasets import ArraySpec
from sweeprof.errors import Unsupported
from sweeprof.measuring.inputs import Inputs, TensorSpec
from sweeprof.measuring.training_config import Work
from sweeprof.model_sources.file import inputs as inputs_of
from sweeprof.results.layer_times import ROOT
from sweeprof.results.layers import LayerTable
from sweeprof.results.record import Protocol

RANDOM = np.random.default_rng(0)
SHORT = Protocol(warmup_steps=1, warmup_s=0, min_samples=5, min_s=0.01)


def array(*shape: int) -> Any:
    return RANDOM.standard_normal(shape).astype(np.float32)


def saved(folder: Path, results: Any, *slots: Any) -> OpenvinoFile:
    """The file of a graph of one result or a list of them."""
    path = folder / "model.xml"
    graph = openvino.Model(results if isinstance(results, list) else [results], list(slots), "made")
    openvino.save_model(graph, path, compress_to_fp16=False)
    return OpenvinoFile(str(path))


def called(name: str, value: Any) -> Any:
    value.output(0).get_tensor().set_names({name})
    return value


def slot(*shape: int, name: str = "x", dtype: Any = np.float32) -> Any:
    return called(name, ops.parameter(list(shape), dtype, name=name))


def product(folder: Path) -> OpenvinoFile:
    """``relu(x A + b)`` of any number of rows, as TensorFlow would name its operators."""
    x = slot(-1, 8)
    y = ops.matmul(x, ops.constant(array(8, 4), name="net/dense/kernel"), False, False, name="net/dense/MatMul")
    z = ops.add(y, ops.constant(array(4), name="net/dense/bias"), name="net/dense/Add")
    return saved(folder, ops.relu(z, name="net/relu/Relu"), x)


def counted(file: OpenvinoFile, *shapes: tuple[int, ...], formulas: Formulas = DEFAULTS) -> LayerTable:
    inputs = Inputs(tuple(TensorSpec(shape) for shape in shapes))
    return OpenvinoBackend().analyze(lambda: file, inputs, None, formulas)


def loaded(file: OpenvinoFile, *arrays: Any) -> tuple[OpenvinoModel, Any]:
    # By itself OpenVINO computes in bfloat16 where the processor can.
    model = OpenvinoBackend(precision="fp32").load(lambda: file, "cpu", None)
    return model, model.put(Inputs(arrays))


def outputs(model: OpenvinoModel, *args: Any, **kwargs: Any) -> Any:
    with model.stepping(model.put(Inputs(args, kwargs))) as step:
        return model.host_outputs(step())


def test_a_file_runs_and_is_counted(tmp_path: Path) -> None:
    file, given = product(tmp_path), array(3, 8)
    model, _ = loaded(file, given)
    weights, bias = (each.data for each in model.graph.get_ordered_ops() if each.get_type_name() == "Constant")
    np.testing.assert_allclose(outputs(model, given), np.maximum(given @ weights + bias, 0), rtol=1e-5)
    table = counted(file, (3, 8))
    assert (table.macs, table.flops, table.ops) == (3 * 8 * 4, 2 * 96 + 12 + 12, 2 * 96 - 12 + 12 + 12)
    assert (table.params, table.params_bytes, table.uncovered) == (36, 144, {})
    assert [(row.path, row.macs, row.params) for row in table.rows] == [
        (ROOT, 0, 0),
        ("net", 0, 0),
        ("net.dense", 96, 36),
        ("net.relu", 0, 0),
    ]


N = 2 * 6 * 8 * 8
SCORES = 12 * 8 * 8
# Of an input of (2, 6, 8, 8): MACs and FLOPs
OPERATORS: list[tuple[str, Callable[[Any], Any], int, int]] = [
    ("convolution", lambda x: ops.convolution(x, array(4, 6, 3, 3), [2, 2], [1, 1], [1, 1], [1, 1]),
     2 * 4 * 4 * 4 * 6 * 9, 2 * 2 * 4 * 4 * 4 * 6 * 9),
    ("group convolution", lambda x: ops.group_convolution(x, array(3, 4, 2, 3, 3), [1, 1], [1, 1], [1, 1], [1, 1]),
     2 * 12 * 64 * 2 * 9, 2 * 2 * 12 * 64 * 2 * 9),
    ("transposed", lambda x: ops.convolution_backprop_data(x, array(6, 4, 2, 2), [2, 2]), N * 4 * 4, 2 * N * 4 * 4),
    ("transposed product", lambda x: ops.matmul(x, array(8, 3), True, False), N * 3, 2 * N * 3),
    ("average", lambda x: ops.avg_pool(x, [2, 2], [0, 0], [0, 0], [2, 2], False), 0, N),
    ("mean", lambda x: ops.reduce_mean(x, np.array([2, 3])), 0, N),
    ("softmax", lambda x: ops.softmax(x, 1), 0, N),
    ("gelu", lambda x: ops.gelu(x, "erf"), 0, N),
    ("norm", lambda x: ops.mvn(x, np.array([3]), True, 1e-5, "INSIDE_SQRT"), 0, 4 * N),
    ("causal attention", lambda x: ops.scaled_dot_product_attention(x, x, x, causal=True),
     SCORES * 16, 2 * SCORES * 16 + 2 * SCORES),
    ("masked attention", lambda x: ops.scaled_dot_product_attention(x, x, x, array(8, 8)),
     SCORES * 16, 2 * SCORES * 16 + 3 * SCORES),
    ("integers", lambda x: ops.add(ops.convert(x, np.int32), np.int32(2)), 0, 0),
]  # fmt: skip


@pytest.mark.parametrize(("name", "make", "macs", "flops"), OPERATORS, ids=[o[0] for o in OPERATORS])
def test_operators_are_counted_by_hand(
    name: str, make: Callable[[Any], Any], macs: int, flops: int, tmp_path: Path
) -> None:
    table = counted(saved(tmp_path, make(x := slot(2, 6, 8, 8)), x), (2, 6, 8, 8))
    assert (table.uncovered, table.macs, table.flops) == ({}, macs, flops)


@pytest.mark.parametrize(
    ("made", "states", "gates"), [(ops.lstm_sequence, 2, 4), (ops.gru_sequence, 1, 3), (ops.rnn_sequence, 1, 1)]
)
def test_recurrent_networks(made: Any, states: int, gates: int, tmp_path: Path) -> None:
    """Of 5 inputs and 6 units over 7 steps of 2 samples, in one direction."""
    x, lengths = slot(2, 7, 5), ops.constant(np.array([7, 7], np.int64))
    weights = [array(1, gates * 6, 5), array(1, gates * 6, 6), array(1, gates * 6)]
    network = made(x, *[array(2, 1, 6)] * states, lengths, *weights, 6, "forward")
    table = counted(saved(tmp_path, network.output(0), x), (2, 7, 5))
    assert (table.macs, table.uncovered) == (2 * 7 * gates * 6 * (5 + 6), {})


def test_an_operator_without_a_definition_is_listed_and_a_formula_counts_it(tmp_path: Path) -> None:
    x = slot(2, 6, 8, 8)
    file = saved(tmp_path, ops.grid_sample(x, array(2, 4, 4, 2), {}), x)
    assert counted(file, (2, 6, 8, 8)).uncovered == {"GridSample": 1}
    formulas = Formulas({"openvino::GridSample": lambda inputs, attributes, outputs: Cost(flops=outputs[0].elements)})
    assert counted(file, (2, 6, 8, 8), formulas=formulas).flops == 2 * 6 * 4 * 4


@pytest.mark.parametrize(
    ("kind", "dtype", "size"),
    [("i4", "int4", 0.5), ("u4", "uint4", 0.5), ("nf4", "normal_float4", 0.5), ("f8e4m3", "float8_e4m3", 1)],
)
def test_weights_of_few_bits_are_parameters(kind: str, dtype: str, size: float, tmp_path: Path) -> None:
    """As files of language models have them, with a scale for each column."""
    x = slot(-1, 8)
    stored = ops.constant(np.ones((8, 4), np.float32), dtype=getattr(openvino.Type, kind))
    kernel = ops.multiply(ops.convert(stored, np.float32), ops.constant(np.full((1, 4), 0.1, np.float32)))
    table = counted(saved(tmp_path, ops.matmul(x, kernel, False, False), x), (3, 8))
    assert (table.macs, table.flops) == (96, 192), "weights are scaled before the steps"
    assert (table.params, table.params_bytes) == (32 + 4, 32 * size + 4 * 4)
    assert table.rows[0].dtypes == {dtype: 32, "float32": 4}


def test_a_last_batch_is_filled_up_a_larger_one_compiled_and_another_shape_refused(tmp_path: Path) -> None:
    model, _ = loaded(product(tmp_path), given := array(4, 8))
    whole = np.array(outputs(model, given))
    np.testing.assert_array_equal(outputs(model, given[:3]), whole[:3])
    larger = np.array(outputs(model, np.concatenate([given, given[:1]])))
    np.testing.assert_allclose(larger, np.concatenate([whole, whole[:1]]), rtol=1e-6)
    with pytest.raises(Unsupported, match=r"the graph takes a .* as x, not a "):
        loaded(product(tmp_path), array(4, 9))


def test_inputs_by_name_and_several_outputs(tmp_path: Path) -> None:
    left, right = slot(-1, 4, name="left"), slot(-1, 4, name="right")
    results = [
        called("difference", ops.subtract(left, right)),
        called("flag", ops.greater(left, right)),
        called("twice", ops.multiply(left, np.float32(2))),
    ]
    file, a, b = saved(tmp_path, results, left, right), array(3, 4), array(3, 4)
    found = outputs(OpenvinoBackend().load(lambda: file, "cpu", None), right=b, left=a)
    np.testing.assert_allclose(found["difference"], a - b, rtol=1e-6)
    np.testing.assert_array_equal(found["flag"], a > b)
    types = {name: values.dtype.name for name, values in found.items()}
    assert types == {"difference": "float32", "flag": "bool", "twice": "float32"}


def test_settings_are_in_effect(tmp_path: Path) -> None:
    backend = OpenvinoBackend(threads=2, streams=2, hint="throughput", precision="fp32")
    model = backend.load(partial(product, tmp_path), "cpu", None)
    model.put(Inputs((array(3, 8),)))
    found = backend.settings_in_effect(model)
    assert (found["threads"], found["streams"], found["inference precision"]) == (2, 2, "f32")
    assert backend.concurrently(model, model.put(Inputs((array(3, 8),))), 0.01)[0] == found["optimal requests"]


def test_requests_at_the_same_time(tmp_path: Path) -> None:
    names = ["throughput/concurrent", "throughput/samples_per_s", "size/artifact_bytes"]
    result = sweeprof.profile(product(tmp_path), (4, 8), names, protocol=SHORT)
    found = result["throughput/concurrent"]
    assert found.detail["requests"] >= 1
    assert found.value is not None
    assert found.value > 0
    assert found.detail["n"] == SHORT.min_samples
    file = tmp_path / "model.xml"
    assert result["size/artifact_bytes"].value == file.stat().st_size + file.with_suffix(".bin").stat().st_size


def test_times_belong_to_modules_and_add_up(tmp_path: Path) -> None:
    model, batch = loaded(product(tmp_path), array(512, 8))
    covered = []
    for _ in range(10):  # other work lengthens single steps of ten microseconds
        times = OpenvinoBackend().layer_times(model, Work(batch), SHORT)
        (whole,) = times.forward.plain
        covered.append(sum(call.forward[0] for call in times.calls) / whole)
    assert "net.dense" in {call.path for call in times.calls}
    assert min(covered) <= 1.1
    rows = OpenvinoBackend().operators(model, Work(batch)).rows
    dense = next(row for row in rows if row.path == "net.dense" and row.flops)
    assert dense.flops == 2 * 512 * 8 * 4 + 2 * 512 * 4  # with its bias and the activation that is fused into it


def test_the_inputs_of_a_file_are_described(tmp_path: Path) -> None:
    """As model=file needs them; what the file leaves open is a size by name."""
    x, ids = slot(-1, 8), slot(-1, -1, name="ids", dtype=np.int64)
    file = saved(tmp_path, [ops.relu(x), ops.add(ids, np.int64(1))], x, ids)
    found = inputs_of(file.path, {"size_1": 5})
    assert found.inputs == {"x": ArraySpec((8,), "float32"), "ids": ArraySpec((5,), "int64", high=2)}


# Files of ONNX that other tools made have the MACs and parameters that they have in ONNX Runtime


IMAGES = (2, 3, 8, 8)


def network(folder: Path) -> str:
    """Its weights are not all the same number, which OpenVINO would make one of."""
    nodes = [
        node("Conv", "a w b", "c", "conv"),
        node("Relu", "c", "r", "relu"),
        node("GlobalAveragePool", "r", "p", "pool"),
        node("Flatten", "p", "f", "flatten"),
        node("MatMul", "f d", "y", "product"),
    ]
    weights = {"w": array(128, 3, 3, 3), "b": array(128), "d": array(128, 32)}
    return onnx_graphs.saved(folder, nodes, {"a": IMAGES}, weights, opset=21)


def in_openvino(path: str, *shapes: tuple[int, ...]) -> LayerTable:
    given = Inputs(tuple(floats(*shape) for shape in shapes))
    return OpenvinoBackend().analyze(lambda: OnnxFile(path), given, None, DEFAULTS)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("form", ["dynamic", "four bits"])
def test_quantised_files(form: str, tmp_path: Path) -> None:
    path, result = network(tmp_path), str(tmp_path / "quantised.onnx")
    if form == "dynamic":
        quantize_dynamic(path, result)
    else:
        config = DefaultWeightOnlyQuantConfig(block_size=32, is_symmetric=False, quant_format=QuantFormat.QDQ)
        quantizer = MatMulNBitsQuantizer(onnx.load(path), algo_config=config)
        quantizer.process()
        quantizer.model.save_model_to_file(result)
    whole, expected = onnx_graphs.counted(path, IMAGES), onnx_graphs.counted(result, IMAGES)
    found = in_openvino(result, IMAGES)
    assert (found.macs, found.params, found.uncovered) == (whole.macs, whole.params, {})
    assert found.params_bytes == expected.params_bytes


def test_a_fused_operator(tmp_path: Path) -> None:
    path = call(tmp_path, "BiasGelu", [floats(2, 6, 32), floats(32)], weights=(1,))
    table = in_openvino(path, (2, 6, 32))
    assert (table.params, table.uncovered) == (32, {})


def test_an_operator_that_openvino_does_not_have(tmp_path: Path) -> None:
    path = call(tmp_path, "ReorderInput", [floats(2, 16, 8, 8)], domain="com.microsoft.nchwc")
    says = r"No conversion rule found for operations: com\.microsoft\.nchwc\.ReorderInput"
    with pytest.raises(Unsupported, match=says):
        in_openvino(path, (2, 16, 8, 8))
