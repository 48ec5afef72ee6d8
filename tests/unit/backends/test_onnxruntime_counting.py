"""Counts of ONNX graphs against formulas written out by hand; test_onnxruntime_models has the twins in torch."""

from __future__ import annotations

from math import log2
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_dynamic, quantize_static

from support.onnx_graphs import Shape, counted, floats, one, saved
from sweeprof import Cost
from sweeprof.backends.onnxruntime.counting import COSTS, FREE, count_file
from sweeprof.backends.onnxruntime.files import Exported, OnnxFile
from sweeprof.counting.formulas import DEFAULTS, Formulas
from sweeprof.errors import Unsupported
from sweeprof.results.layer_times import ROOT

GRU = {"w": floats(1, 48, 8), "r": floats(1, 48, 16)}
PRODUCTS: list[tuple[str, list[Shape], dict[str, Any], dict[str, Any], tuple[int, int, int]]] = [
    ("MatMul", [(3, 8)], {"w": floats(8, 5)}, {}, (120, 240, 225)),
    ("MatMul", [(2, 3, 4), (2, 4, 6)], {}, {}, (144, 288, 252)),
    ("Gemm", [(3, 8)], {"w": floats(5, 8), "c": floats(5)}, {"transB": 1}, (120, 255, 240)),
    ("Gemm", [(3, 8)], {"w": floats(5, 8)}, {"transB": 1}, (120, 240, 225)),
    # 1·4·6·6 outputs of sums over 3·3·3
    ("Conv", [(1, 3, 8, 8)], {"w": floats(4, 3, 3, 3), "c": floats(4)}, {}, (3888, 7776 + 144, 7776)),
    ("Conv", [(8, 2, 8, 8)], {"w": floats(4, 1, 2, 2)}, {"group": 2}, (6272, 12544, 12544 - 8 * 4 * 49)),
    ("Conv", [(8, 2, 9)], {"w": floats(4, 2, 2)}, {}, (1024, 2048, 1792)),
    (
        "ConvTranspose",
        [(2, 4, 8, 8)],
        {"w": floats(4, 6, 4, 4)},
        {"strides": [2, 2], "pads": [1, 1, 1, 1]},
        (49_152, 98_304, 98_304 - 2 * 6 * 16 * 16),
    ),
    ("Einsum", [(2, 3, 4), (2, 4, 6)], {}, {"equation": "bij,bjk->bik"}, (144, 288, 252)),
    ("Einsum", [(2, 5, 3, 4), (2, 5, 4, 6)], {}, {"equation": "...ij,...jk->...ik"}, (720, 1440, 1260)),
    ("Einsum", [(3, 4), (4, 5), (5, 6)], {}, {"equation": "ij,jk,kl->il"}, (60 + 90, 300, 300 - 15 - 18)),
    ("Einsum", [(2, 3), (2, 4)], {}, {"equation": "bi,bj->bij"}, (0, 24, 24)),
    ("Einsum", [(3, 4)], {}, {"equation": "ij->ji"}, (0, 0, 0)),
    ("Einsum", [(3, 4)], {}, {"equation": "ij->i"}, (0, 12, 9)),
    # 5 steps of 4 samples, 8 inputs, 16 units
    ("GRU", [(5, 4, 8)], GRU | {"c": floats(1, 96)}, {"hidden_size": 16}, (23_040, 51_520, 52_800)),
    ("GRU", [(5, 4, 8)], GRU, {"hidden_size": 16}, (23_040, 49_600, 50_880)),
    (
        "LSTM",
        [(5, 4, 8)],
        {"w": floats(2, 64, 8), "r": floats(2, 64, 16), "c": floats(2, 128)},
        {"hidden_size": 16, "direction": "bidirectional"},
        (61_440, 136_320, 142_720),
    ),
    ("RNN", [(5, 4, 8)], {"w": floats(1, 16, 8), "r": floats(1, 16, 16)}, {"hidden_size": 16}, (7680, 16_000, 17_280)),
    (
        "RNN",
        [(5, 4, 8)],
        {"w": floats(1, 16, 8), "r": floats(1, 16, 16)},
        {"hidden_size": 16, "activations": ["Relu"]},
        (7680, 16_000, 15_360),
    ),
    # 2·2·16 rows over 16 keys; a softmax is 4·16 - 1 a row
    ("Attention", [(2, 2, 16, 8)] * 3, {}, {}, (16_384, 34_816, 0)),
    ("Attention", [(2, 16, 16)] * 3, {}, {"q_num_heads": 2, "kv_num_heads": 2}, (16_384, 34_816, 0)),
    ("Attention", [(2, 4, 16, 8), (2, 2, 16, 8), (2, 2, 16, 8)], {"m": floats(16, 16)}, {}, (32_768, 71_680, 0)),
]  # fmt: skip


@pytest.mark.parametrize(("op", "inputs", "weights", "attributes", "cost"), PRODUCTS, ids=[p[0] for p in PRODUCTS])
def test_products(
    op: str, inputs: list[Shape], weights: Any, attributes: Any, cost: tuple[int, int, int], tmp_path: Path
) -> None:
    table = one(tmp_path, op, inputs, weights, **attributes)
    assert table.uncovered == {}
    assert (table.macs, table.flops) == cost[:2]
    if op != "Attention":
        assert table.ops == cost[2]


def test_a_quantised_product(tmp_path: Path) -> None:
    """Of files whose operators take scales and zero points; integer arithmetic is no FLOP."""
    scale, zero, weight = np.float32(0.1), np.uint8(128), np.zeros((8, 5), np.uint8)
    weights = {"as": scale, "az": zero, "w": weight, "ws": scale, "wz": zero, "ys": scale, "yz": zero}
    nodes = [
        helper.make_node("QuantizeLinear", ["a", "as", "az"], ["b"], "quantised"),
        helper.make_node("QLinearMatMul", ["b", *weights], ["y"], "product"),
    ]
    path = saved(tmp_path, nodes, {"a": (3, 8)}, weights)
    table = counted(path, (3, 8))
    assert (table.macs, table.flops, table.ops, table.uncovered) == (3 * 8 * 5, 0, 2 * 3 * 8 * 5 - 3 * 5, {})


def test_textbook_operations_of_attention(tmp_path: Path) -> None:
    """Two products less their sums, a scaling, a softmax of 4·16 - 1 a row, and for each score a mask."""
    rows, keys, width = 2 * 4 * 16, 16, 8
    scores = rows * keys
    table = one(tmp_path, "Attention", [(2, 4, 16, 8), (2, 2, 16, 8), (2, 2, 16, 8)], {"m": floats(16, 16)})
    products = 2 * scores * 2 * width - scores - rows * width
    assert table.ops == products + 2 * scores + rows * (4 * keys - 1)


N = 2 * 3 * 4 * 4
OTHERS: list[tuple[str, dict[str, Any], dict[str, Any], tuple[int, int]]] = [
    ("Relu", {}, {}, (N, N)),
    ("Sigmoid", {}, {}, (N, 3 * N)),
    ("Tanh", {}, {}, (N, 7 * N)),
    ("Gelu", {}, {}, (N, 5 * N)),
    ("Gelu", {}, {"approximate": "tanh"}, (N, 15 * N)),
    ("HardSwish", {}, {}, (N, 5 * N)),
    ("Softsign", {}, {}, (3 * N, 3 * N)),
    ("Softmax", {}, {"axis": 1}, (N, 4 * N - 32)),
    ("LogSoftmax", {}, {"axis": 1}, (N, 4 * N)),
    ("AveragePool", {}, {"kernel_shape": [2, 2], "strides": [2, 2]}, (N, N)),
    ("MaxPool", {}, {"kernel_shape": [2, 2], "strides": [2, 2]}, (N, N // 4)),
    ("GlobalAveragePool", {}, {}, (N, N)),
    ("BatchNormalization", {k: floats(3) for k in ("s", "b", "m", "v")}, {}, (2 * N, 4 * N + 6)),
    ("InstanceNormalization", {"s": floats(3), "b": floats(3)}, {}, (5 * N, 7 * N + 4 * 6)),
    ("GroupNormalization", {"s": floats(3), "b": floats(3)}, {"num_groups": 3}, (5 * N, 7 * N + 4 * 6)),
    ("LayerNormalization", {"s": floats(4), "b": floats(4)}, {}, (5 * N, 7 * N + 4 * 24)),
    ("LayerNormalization", {"s": floats(4, 4)}, {"axis": 2}, (5 * N, 6 * N + 4 * 6)),
    ("RMSNormalization", {"s": floats(4)}, {}, (4 * N, 4 * N + 2 * 24)),
    ("ReduceSum", {"axes": np.array([2, 3])}, {}, (N, N - 6)),
    ("ReduceMean", {"axes": np.array([2, 3])}, {}, (N, N)),
    ("ReduceL2", {"axes": np.array([2, 3])}, {}, (2 * N, 2 * N)),
    ("CumSum", {"axis": np.array(1)}, {}, (N, N)),
    ("Resize", {"": None, "scales": np.array([1, 1, 2, 2], np.float32)}, {"mode": "linear"}, (28 * N, 28 * N)),
    ("Resize", {"": None, "scales": np.array([1, 1, 2, 2], np.float32)}, {"mode": "nearest"}, (0, 0)),
    ("Transpose", {}, {"perm": [0, 2, 3, 1]}, (0, 0)),
    ("Clip", {"least": np.array(0, np.float32)}, {}, (N, N)),
]  # fmt: skip


@pytest.mark.parametrize(("op", "weights", "attributes", "cost"), OTHERS, ids=[o[0] for o in OTHERS])
def test_what_is_no_product(op: str, weights: Any, attributes: Any, cost: tuple[int, int], tmp_path: Path) -> None:
    table = one(tmp_path, op, [(2, 3, 4, 4)], weights, **attributes)
    assert table.uncovered == {}
    assert (table.macs, table.flops, table.ops) == (0, *cost)


@pytest.mark.parametrize("opset", [7, 11, 13])
@pytest.mark.parametrize("attributes", [{}, {"axis": 0}, {"axis": 2}, {"axis": 3}])
def test_a_softmax_of_any_version(opset: int, attributes: dict[str, Any], tmp_path: Path) -> None:
    """Before version 13 a row has all axes from ``axis`` on. Every row of the result adds up to one."""
    node = helper.make_node("Softmax", ["a"], ["y"], "softmax", **attributes)
    path = saved(tmp_path, [node], {"a": (2, 3, 4, 5)}, {}, opset=opset)
    (result,) = onnxruntime.InferenceSession(path).run(None, {"a": np.ones((2, 3, 4, 5), np.float32)})
    rows = round(result.sum())
    table = counted(path, (2, 3, 4, 5))
    assert (table.flops, table.ops) == (120, 4 * 120 - rows)


@pytest.mark.parametrize(("opset", "scales"), [(18, 2), (21, 6)])
def test_a_group_norm_of_any_version(opset: int, scales: int, tmp_path: Path) -> None:
    """Before version 21 it has a scale and a bias for each group; ONNX infers no shapes of it."""
    node = helper.make_node("GroupNormalization", ["a", "s", "b"], ["y"], "norm", num_groups=2)
    path = saved(tmp_path, [node], {"a": (2, 6, 4, 4)}, {"s": floats(scales), "b": floats(scales)}, opset=opset)
    table = counted(path, (2, 6, 4, 4))
    assert (table.flops, table.ops, table.params, table.uncovered) == (5 * 192, 7 * 192 + 4 * 4, 2 * scales, {})
    assert table.rows[0].output_shapes == ((2, 6, 4, 4),)


def test_a_fourier_transform_along_an_axis_that_is_an_input(tmp_path: Path) -> None:
    """Shapes do not tell how many points it has."""
    nodes = [
        helper.make_node("Cast", ["axis"], ["whole"], "cast", to=TensorProto.INT64),
        helper.make_node("DFT", ["a", "", "whole"], ["y"], "dft"),
    ]
    path = saved(tmp_path, nodes, {"a": (2, 8, 16, 2), "axis": ()}, {})
    assert counted(path, (2, 8, 16, 2), ()).uncovered == {"DFT": 1}


@pytest.mark.parametrize(("opset", "points"), [(17, 8), (20, 16)])
def test_the_default_axis_of_a_fourier_transform(opset: int, points: int, tmp_path: Path) -> None:
    """The first one after the samples, or from version 20 on the last one before the parts of the numbers."""
    path = saved(tmp_path, [helper.make_node("DFT", ["a"], ["y"], "dft")], {"a": (2, 8, 16, 2)}, {}, opset=opset)
    assert counted(path, (2, 8, 16, 2)).flops == 5 * 2 * 8 * 16 * log2(points)


def test_a_fourier_transform(tmp_path: Path) -> None:
    table = one(tmp_path, "DFT", [(2, 64, 2)], {"": None, "axis": np.array(1)})
    assert (table.macs, table.flops) == (0, round(5 * 2 * 64 * log2(64)))


@pytest.mark.parametrize(
    ("shape", "weights", "attributes"),
    [
        ((2, 64, 1), {}, {}),
        ((2, 64, 1), {"": None, "axis": np.array(1)}, {"onesided": 1}),  # 33 of 64 points
        ((2, 33, 2), {"length": np.array(64)}, {"onesided": 1, "inverse": 1}),
        ((2, 48, 1), {"length": np.array(64)}, {"onesided": 1}),  # filled up with zeros
    ],
)
def test_a_fourier_transform_of_real_numbers(
    shape: Shape, weights: dict[str, Any], attributes: dict[str, int], tmp_path: Path
) -> None:
    """Half as much as of complex numbers, whether or not the half of it that follows from the other one is there."""
    table = one(tmp_path, "DFT", [shape], weights, **attributes)
    assert (table.flops, table.uncovered) == (round(2.5 * 2 * 64 * log2(64)), {})


NEWER = {
    "Upsample",
    "BitCast",
    "CumProd",
    "SimplifiedLayerNormalization",
    "LinearAttention",
    "CausalConvWithState",
    "SwiGLU",
}
"""Operators that not every version of ONNX has, or none: ONNX Runtime has the simplified norm in the standard's domain."""


def test_nothing_is_both_counted_and_free() -> None:
    assert COSTS.keys() & FREE == set()
    known = {schema.name for schema in onnx.defs.get_all_schemas() if schema.domain == ""}
    assert (COSTS.keys() | FREE) <= known | NEWER


def test_no_silent_zero(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Relu", ["a"], ["b"], "relu"),
        helper.make_node("Mystery", ["b"], ["c"], "mystery", domain="mine"),
        helper.make_node("Relu", ["c"], ["d"], "after"),
        helper.make_node("Det", ["a"], ["y"], "det"),
    ]
    table = counted(saved(tmp_path, nodes, {"a": (2, 3, 3)}, {}, ["d", "y"]), (2, 3, 3))
    assert table.uncovered == {"mine::Mystery": 1, "Relu": 1, "Det": 1}, "what has an unknown shape is uncovered too"
    assert (table.flops, table.coverage, table.liveness) == (18, 0.25, None)


@pytest.mark.parametrize("op", ["Relu", "Identity"])
def test_an_operator_of_another_domain_is_not_the_standards(op: str, tmp_path: Path) -> None:
    node = helper.make_node(op, ["a"], ["b"], "first", domain="mine")
    assert counted(saved(tmp_path, [node], {"a": (2, 3)}, {}, ["b"]), (2, 3)).uncovered == {f"mine::{op}": 1}


@pytest.mark.parametrize("of_node", ["", "ai.onnx"])
@pytest.mark.parametrize("of_file", ["", "ai.onnx"])
def test_the_standards_domain_has_two_names(of_node: str, of_file: str, tmp_path: Path) -> None:
    node = helper.make_node("Gemm", ["a", "w"], ["y"], "product", domain=of_node)
    path = saved(tmp_path, [node], {"a": (3, 8)}, {"w": floats(8, 5)}, opset=17)
    model = onnx.load(path)
    del model.opset_import[:]
    model.opset_import.append(helper.make_opsetid(of_file, 17))
    model.ir_version = 8
    onnx.save(model, path)
    (result,) = onnxruntime.InferenceSession(path).run(None, {"a": np.ones((3, 8), np.float32)})
    table = counted(path, (3, 8))
    assert (table.macs, table.uncovered, table.rows[0].output_shapes) == (120, {}, (result.shape,))


def test_as_many_shapes_as_the_graph_has_inputs(tmp_path: Path) -> None:
    """An input that nothing is given for has open dimensions, and they are no zeros."""
    path = saved(tmp_path, [helper.make_node("MatMul", ["x", "z"], ["y"], "product")], {"x": (2, 3), "z": (3, 4)}, {})
    assert counted(path, (2, 3), (3, 4)).macs == 24
    for shapes in ([(2, 3)], [(2, 3), (3, 4), (1,)]):
        with pytest.raises(Unsupported, match=f"^the graph takes x, z, and {len(shapes)} tensors are given$"):
            counted(path, *shapes)
    with pytest.raises(Unsupported, match="the graph takes x, z, and 2 tensors are given"):
        count_file(OnnxFile(path).known(), [(2, 3)], {"nothing": (3, 4)}, DEFAULTS)


def test_a_formula_of_the_users(tmp_path: Path) -> None:
    def mystery(inputs: Any, attributes: Any, outputs: Any) -> Cost:
        return Cost(macs=inputs[0].elements * attributes["k"])

    node = helper.make_node("Mystery", ["a"], ["y"], "mystery", domain="mine", k=5)
    path = saved(tmp_path, [node], {"a": (2, 3)}, {})
    table = counted(path, (2, 3), formulas=Formulas({"mine::Mystery": mystery}))
    assert (table.macs, table.flops, table.uncovered) == (30, 60, {})


def test_shapes_follow_the_batch_through_arithmetic_on_them(tmp_path: Path) -> None:
    """As exporters flatten: the shape of the input, sliced and joined, is that of a reshape."""
    nodes = [
        helper.make_node("Shape", ["a"], ["s"], "shape", end=1),
        helper.make_node("Concat", ["s", "rest"], ["t"], "concat", axis=0),
        helper.make_node("Reshape", ["a", "t"], ["f"], "reshape"),
        helper.make_node("MatMul", ["f", "w"], ["y"], "product"),
    ]
    path = saved(tmp_path, nodes, {"a": (1, 3, 4)}, {"rest": np.array([-1]), "w": floats(12, 5)})
    for batch in (1, 7):
        table = counted(path, (batch, 3, 4))
        assert (table.macs, table.uncovered) == (batch * 60, {})
        assert table.rows[0].output_shapes == ((batch, 5),)


def test_a_bias_of_zeros_is_none(tmp_path: Path) -> None:
    """Such as exporters make where a convolution has none; one that is a weight counts, whatever it holds."""
    nodes = [
        helper.make_node("ConstantOfShape", ["size"], ["zeros"], "zeros"),
        helper.make_node("Conv", ["a", "w", "zeros"], ["y"], "conv"),
    ]
    weights = {"size": np.array([4]), "w": floats(4, 3, 3, 3)}
    table = counted(saved(tmp_path, nodes, {"a": (1, 3, 8, 8)}, weights), (1, 3, 8, 8))
    assert (table.macs, table.flops) == (3888, 7776)


def test_parameters_buffers_and_constants_of_a_file_that_does_not_tell(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Conv", ["a", "w"], ["c"], "/stage/stage.0/conv/Conv"),
        helper.make_node(
            "BatchNormalization", ["c", "s", "b", "m", "v"], ["n"], "/stage/stage.0/bn/BatchNormalization"
        ),
        helper.make_node("Mul", ["n", "two"], ["d"], "/stage/Mul"),
        helper.make_node("Reshape", ["d", "shape"], ["y"], "/Reshape"),
    ]
    weights = {
        "w": floats(4, 3, 3, 3),
        "s": floats(4),
        "b": floats(4),
        "m": floats(4),
        "v": floats(4),
        "two": np.array(2, np.float32),
        "shape": np.array([0, -1]),
    }
    table = counted(saved(tmp_path, nodes, {"a": (2, 3, 8, 8)}, weights), (2, 3, 8, 8))
    assert (table.params, table.params_bytes, table.buffers) == (108 + 8, 4 * 116, 8)
    assert [(row.path, row.params, row.buffers, row.macs) for row in table.rows] == [
        (ROOT, 0, 0, 0),
        ("stage", 0, 0, 0),
        ("stage.0", 0, 0, 0),
        ("stage.0.conv", 108, 0, 2 * 4 * 36 * 27),
        ("stage.0.bn", 8, 8, 0),
    ]
    subtree = table.rows[2].subtree
    assert subtree is not None
    assert (subtree.params, subtree.buffers) == (116, 8)
    assert table.inclusive().rows[1].macs == 2 * 4 * 36 * 27


def held(name: str, value: Any) -> Any:
    """A Constant node."""
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(np.asarray(value), name))


def constants_of(path: str) -> str:
    """Move the initializers of a file into Constant nodes, as some exporters write them."""
    model = onnx.load(path)
    nodes = [helper.make_node("Constant", [], [tensor.name], value=tensor) for tensor in model.graph.initializer]
    del model.graph.initializer[:]
    nodes += model.graph.node
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    onnx.save(model, path)
    return path


def test_weights_in_constant_nodes_count_like_initializers(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Conv", ["a", "w", "wb"], ["c"], "/conv/Conv"),
        helper.make_node("BatchNormalization", ["c", "s", "b", "m", "v"], ["n"], "/bn/BatchNormalization"),
        helper.make_node("GlobalAveragePool", ["n"], ["p"], "/pool/GlobalAveragePool"),
        helper.make_node("Flatten", ["p"], ["f"], "/Flatten"),
        helper.make_node("Transpose", ["dense"], ["d"], "/dense/Transpose", perm=[1, 0]),
        helper.make_node("MatMul", ["f", "d"], ["h"], "/dense/MatMul"),
        helper.make_node("Add", ["h", "db"], ["e"], "/dense/Add"),
        helper.make_node("Gemm", ["e", "g"], ["y"], "/head/Gemm"),
    ]
    norm = {name: floats(4) for name in ("s", "b", "m", "v")}
    # A matrix of 5,000 elements is larger than what is computed from constants.
    weights = {"w": floats(4, 3, 3, 3), "wb": floats(4), **norm, "dense": floats(1250, 4), "db": floats(1250)}
    path = saved(tmp_path, nodes, {"a": (2, 3, 8, 8)}, weights | {"g": floats(1250, 2)})
    table, again = counted(path, (2, 3, 8, 8)), counted(constants_of(path), (2, 3, 8, 8))
    assert again.params == 4 * 27 + 4 + 2 * 4 + 5000 + 1250 + 2500
    assert (again.params_bytes, again.buffers, again.trainable) == (4 * again.params, 2 * 4, again.params)
    assert {row.path: (row.params, row.buffers, row.flops) for row in again.rows if row.params} == {
        "conv": (112, 0, 2 * 2 * 4 * 36 * 27 + 2 * 4 * 36),
        "bn": (8, 8, 2 * 2 * 4 * 36),
        "dense": (6250, 0, 2 * 2 * 1250 * 4 + 2 * 1250),
        "head": (2500, 0, 2 * 2 * 1250 * 2),
    }
    assert again == table


def test_constants_of_the_code_are_no_parameters(tmp_path: Path) -> None:
    """As torch's exporter writes tensors that a forward makes, scalars, shapes and settings of operators."""
    nodes = [
        held("mean", floats(1, 2, 1, 1)),
        held("shift", floats(6)),
        held("half", np.float32(0.5)),
        held("scales", np.array([1, 1, 2, 2], np.float32)),
        held("shape", np.array([0, 2, -1, 6])),
        held("w", floats(6, 5)),
        helper.make_node("Sub", ["a", "mean"], ["b"]),
        helper.make_node("Resize", ["b", "", "scales"], ["r"]),
        helper.make_node("Reshape", ["r", "shape"], ["q"]),
        helper.make_node("Mul", ["q", "half"], ["h"]),
        helper.make_node("Add", ["h", "shift"], ["s"]),
        helper.make_node("MatMul", ["s", "w"], ["y"]),
    ]
    table = counted(saved(tmp_path, nodes, {"a": (1, 2, 3, 3)}, {}), (1, 2, 3, 3))
    assert (table.params, table.buffers, table.macs, table.uncovered) == (30, 0, 2 * 6 * 6 * 5, {})


def test_a_constant_of_unknown_shape(tmp_path: Path) -> None:
    """It is computed by an operator of another domain."""
    nodes = [
        held("c", floats(5)),
        helper.make_node("Mystery", ["c"], ["d"], domain="mine"),
        helper.make_node("MatMul", ["a", "w"], ["b"]),
        helper.make_node("Add", ["b", "d"], ["y"]),
    ]
    table = counted(saved(tmp_path, nodes, {"a": (3, 8)}, {"w": floats(8, 5)}), (3, 8))
    assert (table.params, table.macs, table.uncovered) == (40, 120, {"mine::Mystery": 1, "Add": 1})


def test_a_constant_bias_of_zeros_is_none(tmp_path: Path) -> None:
    """As torch's exporter wrote a product without a bias when Gemm needed one."""
    nodes = [held("w", floats(8, 5)), held("zero", floats(5) * 0), helper.make_node("Gemm", ["a", "w", "zero"], ["y"])]
    table = counted(saved(tmp_path, nodes, {"a": (3, 8)}, {}), (3, 8))
    assert (table.params, table.flops) == (40, 240)


def test_a_constant_node_with_its_values_in_another_file(tmp_path: Path) -> None:
    nodes = [held("w", floats(100, 50)), helper.make_node("MatMul", ["a", "w"], ["y"], "product")]
    path = saved(tmp_path, nodes, {"a": (3, 100)}, {})
    onnx.save(
        onnx.load(path), path, save_as_external_data=True, size_threshold=0, convert_attribute=True, location="w.data"
    )
    table = counted(path, (3, 100))
    assert (table.params, table.macs) == (5000, 3 * 100 * 50)


@pytest.mark.parametrize("name", ["model.onnx.data", "model.onnx_data", "w.bin"])
def test_the_size_of_a_file_includes_the_file_of_its_weights(name: str, tmp_path: Path) -> None:
    """Whatever a tool has called it."""
    path = saved(tmp_path, [helper.make_node("MatMul", ["a", "w"], ["y"])], {"a": (3, 100)}, {"w": floats(100, 50)})
    alone = OnnxFile(path).known().artifact().bytes
    assert alone == Path(path).stat().st_size
    onnx.save(onnx.load(path), path, save_as_external_data=True, size_threshold=0, location=name)
    size = OnnxFile(path).known().artifact().bytes
    assert size == Path(path).stat().st_size + (tmp_path / name).stat().st_size
    assert (tmp_path / name).stat().st_size == 4 * 5000


@pytest.mark.parametrize("is_initializer", [True, False])
def test_a_sparse_weight_counts_with_its_zeros(is_initializer: bool, tmp_path: Path) -> None:
    """ONNX Runtime expands it, and multiplies all of it; PyTorch's sparse parameters count so, too."""
    weight = np.zeros((8, 4), np.float32)
    places = np.array([0, 3, 9, 20, 31])
    weight.ravel()[places] = np.arange(1, 6)
    stored = helper.make_sparse_tensor(
        numpy_helper.from_array(weight.ravel()[places], "w"), numpy_helper.from_array(places, "places"), weight.shape
    )
    nodes = [helper.make_node("MatMul", ["a", "w"], ["y"], "/dense/MatMul")]
    if not is_initializer:
        nodes.insert(0, helper.make_node("Constant", [], ["w"], sparse_value=stored))
    path = saved(tmp_path, nodes, {"a": (3, 8)}, {})
    if is_initializer:
        model = onnx.load(path)
        model.graph.sparse_initializer.append(stored)
        onnx.save(model, path)
    given = np.ones((3, 8), np.float32)
    (result,) = onnxruntime.InferenceSession(path).run(None, {"a": given})
    np.testing.assert_array_equal(result, given @ weight)
    table = counted(path, (3, 8))
    assert (table.params, table.params_bytes, table.macs, table.flops) == (32, 128, 96, 192)
    assert {row.path: row.params for row in table.rows} == {ROOT: 0, "dense": 32}


class Samples(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self) -> None:
        self.left = 2

    def get_next(self) -> dict[str, Any] | None:
        self.left -= 1
        return {"a": np.random.default_rng(self.left).standard_normal((2, 3, 8, 8), np.float32)} if self.left else None


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("form", ["QDQ", "QOperator", "dynamic"])
def test_a_quantised_file_has_the_parameters_of_the_file_that_it_was_made_of(
    form: str, per_channel: bool, tmp_path: Path
) -> None:
    """Its scales and zero points are none; its biases are, also as integers of 32 bits."""
    nodes = [
        helper.make_node("Conv", ["a", "w", "b"], ["c"], "conv"),
        helper.make_node("GlobalAveragePool", ["c"], ["p"], "pool"),
        helper.make_node("Flatten", ["p"], ["f"], "flatten"),
        helper.make_node("Gemm", ["f", "d", "e"], ["y"], "gemm"),
    ]
    weights = {"w": floats(8, 3, 3, 3), "b": floats(8), "d": floats(8, 10), "e": floats(10)}
    path = saved(tmp_path, nodes, {"a": (2, 3, 8, 8)}, weights, opset=17)
    quantised = str(tmp_path / "quantised.onnx")
    if form == "dynamic":
        quantize_dynamic(path, quantised, per_channel=per_channel)
    else:
        quantize_static(path, quantised, Samples(), quant_format=QuantFormat[form], per_channel=per_channel)
    whole, parts = counted(path, (2, 3, 8, 8)), counted(quantised, (2, 3, 8, 8))
    assert whole.params == parts.params == 8 * 27 + 8 + 80 + 10
    assert parts.params_bytes == 8 * 27 + 80 + 4 * (8 + 10)
    if form != "QOperator":  # which has an operator of its own for Gemm
        assert parts.macs == whole.macs


def test_weights_of_four_bits_take_half_a_byte(tmp_path: Path) -> None:
    """The file has two in a byte; numpy has each in a byte of its own."""
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "scale"], ["k"], "/dense/DequantizeLinear"),
        helper.make_node("MatMul", ["a", "k"], ["y"], "/dense/MatMul"),
    ]
    path = saved(tmp_path, nodes, {"a": (3, 8)}, {"scale": np.array(0.1, np.float32)})
    model = onnx.load(path)
    model.graph.initializer.append(helper.make_tensor("w", TensorProto.INT4, [8, 6], [1] * 48))
    onnx.save(model, path)
    table = counted(path, (3, 8))
    assert (table.params, table.params_bytes, table.macs) == (48, 24, 3 * 8 * 6)


def test_a_weight_that_is_read_twice_counts_once(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MatMul", ["a", "w"], ["b"], "/first/MatMul"),
        helper.make_node("MatMul", ["b", "w"], ["y"], "/second/MatMul"),
    ]
    table = counted(saved(tmp_path, nodes, {"a": (2, 4)}, {"w": floats(4, 4)}), (2, 4))
    assert (table.params, table.macs) == (16, 64)
    assert [(row.path, row.params) for row in table.rows] == [(ROOT, 0), ("first", 16), ("second", 0)]


def test_the_roles_that_an_export_tells(tmp_path: Path) -> None:
    node = helper.make_node("Gemm", ["a", "head.w", "head.c"], ["y"], "gemm")
    path = saved(tmp_path, [node], {"a": (2, 4)}, {"head.w": floats(4, 3), "head.c": floats(3)})
    file = Exported(
        path, paths={"gemm": "head"}, weights={"head.w": "frozen", "head.c": "parameter"}, types={"head": "Linear"}
    )
    table = count_file(file, [(2, 4)], {}, DEFAULTS)
    assert (table.params, table.trainable) == (15, 3)
    assert [(row.path, row.type, row.params, row.frozen) for row in table.rows] == [
        (ROOT, "Graph", 0, 0),
        ("head", "Linear", 15, 12),
    ]


def test_an_export_without_weights_has_constants_and_no_parameters(tmp_path: Path) -> None:
    node = helper.make_node("Resize", ["a", "", "scales"], ["y"], "resize")
    path = saved(tmp_path, [node], {"a": (1, 2, 4, 4)}, {"scales": np.array([1, 1, 2, 2], np.float32)})
    for file, params in ((Exported(path, types={"": "Upsample"}), 0), (Exported(path), 4)):
        assert count_file(file, [(1, 2, 4, 4)], {}, DEFAULTS).params == params


def test_peak_live_bytes_by_hand(tmp_path: Path) -> None:
    """``a`` (24 elements) is not counted; b and c are alive at once, then c and d; a view has no memory of its own."""
    nodes = [
        helper.make_node("Relu", ["a"], ["b"], "/first/Relu"),
        helper.make_node("Concat", ["b", "b", "b"], ["c"], "/second/Concat", axis=1),
        helper.make_node("Flatten", ["c"], ["f"], "/second/Flatten"),
        helper.make_node("MatMul", ["f", "w"], ["y"], "/third/MatMul"),
    ]
    table = counted(saved(tmp_path, nodes, {"a": (2, 3, 4)}, {"w": floats(36, 2)}), (2, 3, 4))
    assert table.liveness is not None
    assert (table.liveness.peak_bytes, table.liveness.peak_at, table.liveness.input_bytes) == (
        4 * (24 + 72),
        "second",
        96,
    )
    assert table.act_bytes == 4 * (24 + 72 + 4)


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no ONNX file nowhere\.onnx"):
        OnnxFile("nowhere.onnx").known()


CELLS: list[tuple[str, int, list[str], int, int]] = [
    ("RNN", 1, ["Tanh"], 2, 8),
    ("RNN", 1, ["Softsign"], 4, 4),
    ("RNN", 1, ["Affine"], 3, 3),
    ("GRU", 3, ["Sigmoid", "Tanh"], 11, 21),
    ("GRU", 3, ["HardSigmoid", "Relu"], 11, 3 + 2 * 4 + 1 + 5),
    ("LSTM", 4, ["Sigmoid", "Tanh", "Tanh"], 13, 31),
    ("LSTM", 4, ["Sigmoid", "Relu", "Softsign"], 4 + 3 + 1 + 3 + 1 + 3, 4 + 9 + 1 + 3 + 1 + 3),
]


@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize(("op", "gates", "activations", "flops", "ops"), CELLS)
def test_nonlinearities_of_recurrent_networks(
    op: str, gates: int, activations: list[str], flops: int, ops: int, directions: int, tmp_path: Path
) -> None:
    """FLOPs and operations of a unit and step, beside its products: 5 steps of 4 samples, 8 inputs, 16 units."""
    weights = {"w": floats(directions, gates * 16, 8), "r": floats(directions, gates * 16, 16)}
    attributes = {"hidden_size": 16, "direction": "forward" if directions == 1 else "bidirectional"}
    table = one(tmp_path, op, [(5, 4, 8)], weights, activations=activations * directions, **attributes)
    units = 20 * 16 * directions
    macs = units * gates * 24
    assert (table.macs, table.flops, table.ops) == (
        macs,
        2 * macs + flops * units,
        2 * macs - 2 * gates * units + ops * units,
    )


def test_other_nonlinearities_in_each_direction(tmp_path: Path) -> None:
    weights = {"w": floats(2, 16, 8), "r": floats(2, 16, 16)}
    settings = {"hidden_size": 16, "direction": "bidirectional"}
    table = one(tmp_path, "RNN", [(5, 4, 8)], weights, activations=["Tanh", "Softsign"], **settings)
    macs = 2 * 20 * 16 * 24
    assert table.flops == 2 * macs + 20 * 16 * (2 + 4)
    assert one(tmp_path, "RNN", [(5, 4, 8)], weights, activations=["Tanh", "Own"], **settings).uncovered == {"RNN": 1}


def test_nodes_in_any_order(tmp_path: Path) -> None:
    """ONNX Runtime runs a file whose nodes are not in order, too."""
    nodes = [
        helper.make_node("MatMul", ["c", "w"], ["y"], "/second/MatMul"),
        helper.make_node("Relu", ["b"], ["c"], "/first/Relu"),
        helper.make_node("MatMul", ["a", "w"], ["b"], "/first/MatMul"),
    ]
    path = saved(tmp_path, nodes, {"a": (2, 4)}, {"w": floats(4, 4)})
    onnxruntime.InferenceSession(path)
    table = counted(path, (2, 4))
    assert (table.macs, table.flops, table.uncovered) == (64, 136, {})
    assert [row.path for row in table.rows] == [ROOT, "first", "second"]


def test_a_result_that_is_omitted(tmp_path: Path) -> None:
    """As exporters write a recurrent network of which only the last state is needed."""
    node = helper.make_node("GRU", ["a", "w", "r"], ["", "y"], "gru", hidden_size=16)
    table = counted(saved(tmp_path, [node], {"a": (5, 4, 8)}, GRU), (5, 4, 8))
    assert (table.macs, table.uncovered) == (23_040, {})
    assert table.rows[0].output_shapes == ((1, 4, 16),)


def test_an_initializer_that_nothing_reads(tmp_path: Path) -> None:
    """As optimisers leave them behind; what a branch reads is read."""
    branch = helper.make_graph(
        [helper.make_node("Identity", ["v"], ["r"])], "branch", [], [helper.make_empty_tensor_value_info("r")]
    )
    nodes = [
        helper.make_node("MatMul", ["a", "w"], ["y"], "product"),
        helper.make_node("If", ["yes"], ["z"], "if", then_branch=branch, else_branch=branch),
    ]
    weights = {"w": floats(8, 5), "v": floats(7), "left": floats(8, 9), "yes": np.array(True)}
    assert counted(saved(tmp_path, nodes, {"a": (3, 8)}, weights, ["y", "z"]), (3, 8)).params == 40 + 7


def test_the_module_of_a_node_that_an_optimiser_made(tmp_path: Path) -> None:
    """Its result has the name that the last of the nodes gave it which it replaces."""
    nodes = [
        helper.make_node("MatMul", ["a", "w"], ["/stage/Mul_output_0"], "/stage/MatMul/MatMulScaleFusion/"),
        helper.make_node(
            "FastGelu", ["/stage/Mul_output_0"], ["/act/Mul_output_0"], "FastGelu", domain="com.microsoft"
        ),
        helper.make_node("Relu", ["/act/Mul_output_0"], ["y"], "last"),
    ]
    table = counted(saved(tmp_path, nodes, {"a": (3, 8)}, {"w": floats(8, 5)}), (3, 8))
    assert [(row.path, row.flops) for row in table.rows] == [(ROOT, 15), ("stage", 240), ("act", 15)]
