"""Costs of operators of ONNX and of those that ONNX Runtime adds, written out by hand, and the shapes that it computes itself."""

from __future__ import annotations

from math import log2
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from support.onnx_graphs import Shape, call, cost_of_call, counted, floats, graph_of, node, one, saved
from sweeprof.backends.onnxruntime import graph
from sweeprof.backends.onnxruntime.counting import COSTS, FREE, cost_of, count_file
from sweeprof.backends.onnxruntime.files import OnnxFile
from sweeprof.counting.formulas import DEFAULTS

IMAGE: list[Shape] = [(2, 3, 4, 4)]
N = 2 * 3 * 4 * 4
NORM = {name: floats(3) for name in ("s", "b", "m", "v")}
DOUBLED = {"": None, "scales": np.array([1, 1, 2, 2], np.float32)}
# MACs, FLOPs and operations of shapes and weights
GRAPHS: list[tuple[str, list[Shape], dict[str, Any], dict[str, Any], tuple[int, int, int]]] = [
    ("MatMul", [(3, 8)], {"w": floats(8, 5)}, {}, (120, 240, 225)),
    ("MatMul", [(2, 3, 4), (2, 4, 6)], {}, {}, (144, 288, 252)),
    ("Gemm", [(3, 8)], {"w": floats(5, 8), "c": floats(5)}, {"transB": 1}, (120, 255, 240)),
    # 1·4·6·6 outputs of sums over 3·3·3
    ("Conv", [(1, 3, 8, 8)], {"w": floats(4, 3, 3, 3), "c": floats(4)}, {}, (3888, 7776 + 144, 7776)),
    ("Conv", [(8, 2, 8, 8)], {"w": floats(4, 1, 2, 2)}, {"group": 2}, (6272, 12544, 12544 - 8 * 4 * 49)),
    ("ConvTranspose", [(2, 4, 8, 8)], {"w": floats(4, 6, 4, 4)},
     {"strides": [2, 2], "pads": [1, 1, 1, 1]}, (49_152, 98_304, 98_304 - 2 * 6 * 16 * 16)),
    ("Einsum", [(2, 5, 3, 4), (2, 5, 4, 6)], {}, {"equation": "...ij,...jk->...ik"}, (720, 1440, 1260)),
    ("Einsum", [(3, 4), (4, 5), (5, 6)], {}, {"equation": "ij,jk,kl->il"}, (60 + 90, 300, 300 - 15 - 18)),
    ("Einsum", [(3, 4)], {}, {"equation": "ij->i"}, (0, 12, 9)),
    # 5 steps of 4 samples, 8 inputs, 16 units
    ("GRU", [(5, 4, 8)], {"w": floats(1, 48, 8), "r": floats(1, 48, 16), "c": floats(1, 96)},
     {"hidden_size": 16}, (23_040, 51_520, 52_800)),
    ("LSTM", [(5, 4, 8)], {"w": floats(2, 64, 8), "r": floats(2, 64, 16), "c": floats(2, 128)},
     {"hidden_size": 16, "direction": "bidirectional"}, (61_440, 136_320, 142_720)),
    # 2·2·16 rows over 16 keys; a softmax is 4·16 - 1 a row
    ("Attention", [(2, 2, 16, 8)] * 3, {}, {}, (16_384, 34_816, 36_288)),
    ("Attention", [(2, 16, 16)] * 3, {}, {"q_num_heads": 2, "kv_num_heads": 2}, (16_384, 34_816, 36_288)),
    ("Attention", [(2, 4, 16, 8), (2, 2, 16, 8), (2, 2, 16, 8)], {"m": floats(16, 16)}, {}, (32_768, 71_680, 74_624)),
    ("Tanh", IMAGE, {}, {}, (0, N, 7 * N)),
    ("Gelu", IMAGE, {}, {"approximate": "tanh"}, (0, N, 15 * N)),
    ("Softsign", IMAGE, {}, {}, (0, 3 * N, 3 * N)),
    ("Softmax", IMAGE, {}, {"axis": 1}, (0, N, 4 * N - 32)),
    ("AveragePool", IMAGE, {}, {"kernel_shape": [2, 2], "strides": [2, 2]}, (0, N, N)),
    ("MaxPool", IMAGE, {}, {"kernel_shape": [2, 2], "strides": [2, 2]}, (0, N, N // 4)),
    ("BatchNormalization", IMAGE, NORM, {}, (0, 2 * N, 4 * N + 6)),
    ("InstanceNormalization", IMAGE, {"s": floats(3), "b": floats(3)}, {}, (0, 5 * N, 7 * N + 4 * 6)),
    ("LayerNormalization", IMAGE, {"s": floats(4, 4)}, {"axis": 2}, (0, 5 * N, 6 * N + 4 * 6)),
    ("ReduceSum", IMAGE, {"axes": np.array([2, 3])}, {}, (0, N, N - 6)),
    ("ReduceL2", IMAGE, {"axes": np.array([2, 3])}, {}, (0, 2 * N, 2 * N)),
    ("CumSum", IMAGE, {"axis": np.array(1)}, {}, (0, N, N)),
    ("Resize", IMAGE, DOUBLED, {"mode": "linear"}, (0, 28 * N, 28 * N)),
    ("Clip", IMAGE, {"least": np.array(0, np.float32)}, {}, (0, N, N)),
]  # fmt: skip


@pytest.mark.parametrize(("op", "inputs", "weights", "attributes", "cost"), GRAPHS, ids=[g[0] for g in GRAPHS])
def test_graphs_of_one_node(
    op: str, inputs: list[Shape], weights: Any, attributes: Any, cost: tuple[int, int, int], tmp_path: Path
) -> None:
    table = one(tmp_path, op, inputs, weights, **attributes)
    assert (table.uncovered, table.macs, table.flops, table.ops) == ({}, *cost)


def whole(*shape: int) -> Any:
    return np.ones(shape, np.uint8)


def signed(*shape: int) -> Any:
    return np.ones(shape, np.int8)


def places(*shape: int) -> Any:
    return np.zeros(shape, np.int64)


def lengths(keys: int) -> list[Any]:
    """Of all sequences the place of the last key, and how many keys there are."""
    return [np.full(B, keys - 1, np.int32), np.array(keys, np.int32)]


def scores(keys: int, masks: int = 0) -> tuple[int, int]:
    """MACs and FLOPs of an attention of 4 heads of 8 numbers."""
    rows = B * H * L
    macs = rows * keys * 2 * W
    return macs, 2 * macs + (2 + masks) * rows * keys


B, L, S, H, W, E = 2, 6, 9, 4, 8, 32
"""Batch, queries, keys, heads, the width of a head, and that of all."""
R = B * L
T = R * E
SCALE, ZERO = np.array(0.1, np.float32), np.array(0, np.uint8)
Q = (SCALE, ZERO)
TOKENS, KEYS, MASK = floats(B, L, E), floats(B, S, E), np.ones((B, L), np.int32)
PACKED = (floats(E, 3 * E), floats(3 * E))
GROUPED = (floats(B, 1, E), floats(B, 1, 16), floats(B, 1, 16))
PICTURE = floats(2, 3, 8, 8)
CONV = 2 * 4 * 6 * 6
CONTRIB: list[tuple[str, list[Any], dict[str, Any], tuple[int, ...]]] = [
    ("FusedConv", [PICTURE, floats(4, 3, 3, 3), floats(4)], {"activation": "Relu"}, (CONV * 27, CONV * (54 + 2))),
    ("FusedConv", [PICTURE, floats(4, 3, 3, 3), None, floats(2, 4, 6, 6)], {}, (CONV * 27, CONV * (54 + 1))),
    ("FusedMatMul", [floats(2, 8, 5), floats(3, 8)], {"transA": 1, "transB": 1, "alpha": 0.5}, (240, 480 + 30)),
    ("FusedMatMul", [floats(5, 2, 8), floats(2, 8, 3)], {"transBatchA": 1}, (240, 480)),
    ("FusedGemm", [floats(3, 8), floats(5, 8), floats(5)], {"transB": 1, "activation": "Relu"}, (120, 240 + 15 + 15)),
    ("QGemm", [whole(3, 8), *Q, whole(5, 8), *Q, np.ones(5, np.int32), *Q], {"transB": 1}, (120, 0)),
    # The result is multiplied by its scale.
    ("MatMulIntegerToFloat", [whole(2, 5, 8), whole(8, 3), SCALE, *Q, ZERO, floats(3)], {}, (240, 60)),
    ("DynamicQuantizeMatMul", [floats(2, 5, 8), whole(8, 3), *Q, floats(3)], {}, (240, 60)),
    ("MatMulNBits", [floats(2, 5, 40), whole(3, 2, 16), floats(6)], {"K": 40, "N": 3, "bits": 4, "block_size": 32},
     (2 * 5 * 3 * 40, 2 * 2 * 5 * 3 * 40)),
    # 5 steps of 4 samples, 8 inputs, 16 units: 13 FLOPs for each unit and step
    ("DynamicQuantizeLSTM", [floats(5, 4, 8), signed(1, 8, 64), signed(1, 16, 64), floats(1, 128), None, None, None,
                             None, floats(1), signed(1), floats(1), signed(1)],
     {"hidden_size": 16}, (20 * 4 * 16 * 24, 20 * 16 * 13)),
    ("Attention", [TOKENS, *PACKED, MASK], {"num_heads": H},
     (B * L * E * 96 + scores(L)[0], 2 * B * L * E * 96 + B * L * 96 + scores(L, masks=1)[1])),
    # q and k have 16 numbers in all, v 32
    ("Attention", [TOKENS, floats(E, 64), floats(64)], {"num_heads": H, "qkv_hidden_sizes": [16, 16, 32]},
     (B * L * E * 64 + B * H * L * L * 12, 2 * B * L * E * 64 + B * L * 64 + B * H * L * L * (24 + 2))),
    ("QAttention", [whole(B, L, E), whole(E, 3 * E), floats(3 * E), SCALE, SCALE, None, ZERO, ZERO], {"num_heads": H},
     (B * L * E * 96 + scores(L)[0], 2 * B * L * 96 + scores(L)[1])),
    ("MultiHeadAttention", [TOKENS, KEYS, KEYS, floats(3 * E)], {"num_heads": H},
     (scores(S)[0], scores(S)[1] + B * E * (L + 2 * S))),
    ("MultiHeadAttention", [TOKENS, floats(B, H, S, W), floats(B, H, S, W)], {"num_heads": H}, scores(S)),
    ("MultiHeadAttention", [TOKENS, TOKENS, floats(B, L, 64), None, MASK],
     {"num_heads": H}, (B * H * L * L * 24, B * H * L * L * (48 + 3))),
    ("GroupQueryAttention", [TOKENS, floats(B, L, 16), floats(B, L, 16), None, None,
                             *lengths(L)],
     {"num_heads": H, "kv_num_heads": 2}, scores(L)),
    # Of heads of 16 numbers all are rotated, those of the values apart
    ("GroupQueryAttention", [floats(B, L, 128), None, None, None, None,
                             *lengths(L), floats(64, 8), floats(64, 8)],
     {"num_heads": H, "kv_num_heads": 2, "do_rotary": 1},
     (2 * scores(L)[0], 4 * scores(L)[0] + 2 * B * H * L * L + 3 * B * L * 16 * (H + 2))),
    # Keys of the past are further keys: of attention with its projections in one tensor, of one without, of grouped queries
    # whose number of keys is a weight or an input, and of a cache that is larger than its content, as onnxruntime-genai has it.
    ("Attention", [TOKENS, *PACKED, None, floats(2, B, H, 5, W)], {"outputs": 2, "num_heads": H},
     (B * L * E * 96 + scores(L + 5)[0],)),
    ("MultiHeadAttention", [TOKENS, TOKENS, TOKENS, None, None, None, *[floats(B, H, 5, W)] * 2],
     {"outputs": 3, "num_heads": H}, scores(L + 5)[:1]),
    ("GroupQueryAttention", [*GROUPED, *[floats(B, 2, 5, W)] * 2, *lengths(6)],
     {"outputs": 3, "weights": [6], "num_heads": H, "kv_num_heads": 2}, (B * H * 6 * 2 * W,)),
    ("GroupQueryAttention", [*GROUPED, *[floats(B, 2, 32, W)] * 2, *lengths(7)],
     {"outputs": 3, "weights": [6], "num_heads": H, "kv_num_heads": 2}, (B * H * 7 * 2 * W,)),
    # A bias of the scores is one FLOP for each, a soft cap three.
    ("GroupQueryAttention", [TOKENS, floats(B, L, 16), floats(B, L, 16), None, None, *lengths(L)],
     {"num_heads": H, "kv_num_heads": 2, "softcap": 20.0}, scores(L, masks=3)),
    ("GroupQueryAttention", [TOKENS, floats(B, L, 16), floats(B, L, 16), None, None, *lengths(L), None, None, None,
                             floats(B, H, L, L)],
     {"num_heads": H, "kv_num_heads": 2}, scores(L, masks=1)),
    ("BiasGelu", [TOKENS, floats(E)], {}, (0, 2 * T, 6 * T)),
    ("FastGelu", [TOKENS, floats(E)], {}, (0, 2 * T, 16 * T)),
    ("QuickGelu", [TOKENS], {}, (0, 2 * T, 5 * T)),
    ("SkipLayerNormalization", [TOKENS, TOKENS, floats(E), floats(E), floats(E)], {}, (0, 7 * T, 9 * T + 4 * R)),
    ("SkipSimplifiedLayerNormalization", [TOKENS, TOKENS, floats(E), floats(E)], {}, (0, 6 * T, 6 * T + 2 * R)),
    ("EmbedLayerNormalization", [MASK, MASK, floats(50, E), floats(20, E),
                                 floats(2, E), floats(E), floats(E)], {"outputs": 2}, (0, 7 * T, 9 * T + 4 * R)),
    # 3 FLOPs for each number that is rotated: all of a head, or its first four
    ("RotaryEmbedding", [floats(B, H, L, W), places(B, L), floats(64, 4), floats(64, 4)], {}, (0, 3 * T, 3 * T)),
    ("RotaryEmbedding", [TOKENS, places(B, L), floats(64, 2), floats(64, 2)],
     {"num_heads": H, "rotary_embedding_dim": 4}, (0, 3 * T // 2, 3 * T // 2)),
    ("QLinearAdd", [whole(3, 8), *Q, whole(8), *Q, *Q], {}, (0, 0, 0)),
    ("QLinearConcat", [*Q, whole(3, 8), *Q, whole(3, 2), *Q], {"axis": 1, "weights": [0, 1, 3, 4, 6, 7]}, (0, 0, 0)),
    ("QLinearSoftmax", [whole(3, 8), *Q, *Q], {"opset": 13}, (0, 0, 0)),
    ("QLinearAveragePool", [whole(2, 3, 8, 8), *Q, *Q], {"kernel_shape": [3, 3]}, (0, 0, 0)),
    ("QuantizeLinear", [floats(3, 8), SCALE, np.array(0, np.uint16)], {}, (0, 0, 0)),
    ("DequantizeLinear", [np.ones((3, 8), np.uint16), SCALE, np.array(0, np.uint16)], {}, (0, 0, 0)),
    ("GatherBlockQuantized", [whole(50, 16), places(B, L), floats(50, 1)],
     {"block_size": 32, "bits": 4, "quantize_axis": 1, "gather_axis": 0, "weights": [0]}, (0, 0, 0)),
]  # fmt: skip
X = floats(2, 6, 8, 8)
M = X.size
STANDARD: list[tuple[str, list[Any], dict[str, Any], tuple[int, ...]]] = [
    ("LRN", [X], {"size": 5}, (0, 6 * M, 9 * M)),
    ("LpPool", [X], {"kernel_shape": [2, 2], "strides": [2, 2]}, (0, 2 * M + M // 4, 2 * M)),
    ("LpNormalization", [X], {"axis": 1}, (0, 3 * M + M // 6, 3 * M + M // 6)),
    ("MeanVarianceNormalization", [X], {"axes": [2, 3]}, (0, 4 * M, 5 * M + 4 * 12)),
    # 2·4·6·6 sums over 6·3·3; what is multiplied is interpolated between four neighbours
    ("DeformConv", [X, floats(4, 6, 3, 3), floats(2, 18, 6, 6), floats(4), floats(2, 9, 6, 6)], {},
     (288 * 54, 2 * 288 * 54 + 288 + 8 * 2 * 6 * 9 * 36, 2 * 288 * 54 + 8 * 2 * 6 * 9 * 36)),
    # 3 · 6 · 4 results, each the mean of four values
    ("RoiAlign", [X, floats(3, 4), places(3)], {"output_height": 2, "output_width": 2, "sampling_ratio": 2},
     (0, 8 * 4 * 72, 8 * 4 * 72)),
    ("RotaryEmbedding", [floats(B, L, 32), floats(64, 2), floats(64, 2), places(B, L)],
     {"num_heads": 4, "rotary_embedding_dim": 4, "version": 23}, (0, 3 * B * L * 16, 3 * B * L * 16)),
    ("Col2Im", [floats(1, 12, 9), np.array([4, 4]), np.array([2, 2])], {"weights": [1, 2]}, (0, 108, 108)),
    ("STFT", [floats(2, 64, 1), np.array(8), floats(16)], {"weights": [1]},
     (0, 14 * (round(16 * 2.5 * log2(16)) + 16), 14 * (round(16 * 2.5 * log2(16)) + 16))),
    ("AffineGrid", [floats(2, 2, 3), np.array([2, 1, 4, 5])], {"weights": [1]}, (240, 480, 480 - 80)),
    ("ReduceSum", [X], {"noop_with_empty_axes": 1}, (0, 0, 0)),
    ("ReduceSum", [X, np.array([1])], {"noop_with_empty_axes": 1, "weights": [1]}, (0, M, M - M // 6)),
    ("SimplifiedLayerNormalization", [TOKENS, floats(E)], {}, (0, 4 * T, 4 * T + 2 * R)),
]  # fmt: skip
CALLS = [("com.microsoft", *case) for case in CONTRIB] + [("", *case) for case in STANDARD]


@pytest.mark.parametrize(("domain", "op", "operands", "attributes", "cost"), CALLS, ids=[c[1] for c in CALLS])
def test_operators_that_onnxruntime_runs(
    domain: str, op: str, operands: list[Any], attributes: Any, cost: tuple[int, ...], tmp_path: Path
) -> None:
    """MACs, FLOPs and operations, as far as they are written out."""
    found = cost_of_call(tmp_path, op, operands, domain=domain, **attributes)
    assert found is not None
    assert found[: len(cost)] == cost


needs_version_27 = pytest.mark.skipif(
    onnx.defs.onnx_opset_version() < 27, reason="ONNX has this operator from version 27 on"
)
V = 5
TRIPLE = [floats(B, V, 16)] * 3
GATES = floats(B, V, 4)
# 4 heads of 4 numbers: per token and head the state of 16 is added to, is read, and is corrected by the delta rule
LINEAR: list[tuple[str, list[Any], int, int]] = [
    ("linear", [*TRIPLE, None, None, None], 2, 16),
    ("gated_delta", [*TRIPLE, None, GATES, GATES], 3, 16 + 4 * 17 + 4 * 2 * 4),
]


def without_kernel(folder: Path, op: str, operands: list[Any], outputs: int = 1, **attributes: Any) -> tuple[Any, Any]:
    """Shapes and cost of an operator that the installed ONNX Runtime does not run."""
    path = call(folder, op, operands, outputs, domain="", **attributes)
    (found,) = graph_of(path, {f"x{i}": value for i, value in enumerate(operands) if value is not None}).operators
    return [value.shape for value in found.outputs], cost_of(found, DEFAULTS)


@needs_version_27
@pytest.mark.parametrize(("rule", "operands", "products", "others"), LINEAR)
def test_linear_attention(rule: str, operands: list[Any], products: int, others: int, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"q_num_heads": 4, "kv_num_heads": 4, "update_rule": rule, "version": 27}
    shapes, cost = without_kernel(tmp_path, "LinearAttention", operands, 2, **settings)
    macs = B * V * 4 * 16 * products
    assert shapes == [(B, V, 16), (B, 4, 4, 4)]
    assert cost[:2] == (macs, 2 * macs + B * V * others)


@needs_version_27
def test_a_causal_convolution(tmp_path: Path) -> None:
    operands = [floats(B, 6, V), floats(6, 1, 4), floats(6)]
    shapes, cost = without_kernel(tmp_path, "CausalConvWithState", operands, 2, version=27, activation="silu")
    assert shapes == [(B, 6, V), (B, 6, 3)]
    assert cost[:2] == (B * 6 * V * 4, B * 6 * V * (8 + 1 + 1))


@pytest.mark.parametrize(("op", "each"), [("ReduceL2", 2), ("ReduceSumSquare", 1), ("ReduceLogSumExp", 2)])
def test_what_a_reduction_of_no_axes_computes(op: str, each: int, tmp_path: Path) -> None:
    """The squares and roots are left of it."""
    _, cost = without_kernel(tmp_path, op, [X], noop_with_empty_axes=1)
    assert cost == (0, each * M, each * M)


def test_regions_whose_size_decides_how_many_values_are_read(tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"output_height": 2, "output_width": 2}
    assert cost_of_call(tmp_path, "RoiAlign", [X, floats(3, 4), places(3)], domain="", **sizes) is None


def test_a_quantised_product(tmp_path: Path) -> None:
    """Of files whose operators take scales and zero points; integer arithmetic is no FLOP."""
    weights = {"as": SCALE, "az": ZERO, "w": whole(8, 5), "ws": SCALE, "wz": ZERO, "ys": SCALE, "yz": ZERO}
    nodes = [node("QuantizeLinear", "a as az", "b"), node("QLinearMatMul", "b as az w ws wz ys yz", "y")]
    table = counted(saved(tmp_path, nodes, {"a": (3, 8)}, weights), (3, 8))
    assert (table.macs, table.flops, table.ops, table.uncovered) == (3 * 8 * 5, 0, 2 * 3 * 8 * 5 - 3 * 5, {})


# Versions of operators


@pytest.mark.parametrize("opset", [7, 11, 13])
@pytest.mark.parametrize("attributes", [{}, {"axis": 0}, {"axis": 2}, {"axis": 3}])
def test_a_softmax_of_any_version(opset: int, attributes: dict[str, Any], tmp_path: Path) -> None:
    """Before version 13 a row has all axes from ``axis`` on. Every row of the result adds up to one."""
    table = one(tmp_path, "Softmax", [(2, 3, 4, 5)], {}, opset=opset, **attributes)
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    (result,) = session.run(None, {"a": np.ones((2, 3, 4, 5), np.float32)})
    assert (table.flops, table.ops) == (120, 4 * 120 - round(result.sum()))


@pytest.mark.parametrize(("opset", "scales"), [(18, 2), (21, 6)])
def test_a_group_norm_of_any_version(opset: int, scales: int, tmp_path: Path) -> None:
    """Before version 21 it has a scale and a bias for each group; ONNX infers no shapes of it."""
    weights = {"s": floats(scales), "b": floats(scales)}
    table = one(tmp_path, "GroupNormalization", [(2, 6, 4, 4)], weights, opset=opset, num_groups=2)
    assert (table.flops, table.ops, table.params, table.uncovered) == (5 * 192, 7 * 192 + 4 * 4, 2 * scales, {})
    assert table.rows[0].output_shapes == ((2, 6, 4, 4),)


REAL = 2.5 * 2 * 64 * log2(64)
"""Half as much as of complex numbers, whether or not the half of the result that follows from the other one is there."""
TRANSFORMS: list[tuple[int, Shape, dict[str, Any], dict[str, int], float]] = [
    # By default along the first axis after the samples, or from version 20 on along the last one before the parts of the numbers
    (20, (2, 8, 16, 2), {}, {}, 5 * 2 * 8 * 16 * log2(16)),
    (23, (2, 64, 2), {"": None, "axis": np.array(1)}, {}, 5 * 2 * 64 * log2(64)),
    (23, (2, 64, 1), {"": None, "axis": np.array(1)}, {"onesided": 1}, REAL),  # 33 of 64 points
    (23, (2, 33, 2), {"length": np.array(64)}, {"onesided": 1, "inverse": 1}, REAL),
    (23, (2, 48, 1), {"length": np.array(64)}, {"onesided": 1}, REAL),  # filled up with zeros
]


@pytest.mark.parametrize(("opset", "shape", "weights", "attributes", "flops"), TRANSFORMS)
def test_fourier_transforms(
    opset: int, shape: Shape, weights: dict[str, Any], attributes: Any, flops: float, tmp_path: Path
) -> None:
    table = one(tmp_path, "DFT", [shape], weights, opset=opset, **attributes)
    assert (table.macs, table.flops, table.uncovered) == (0, round(flops), {})


def test_a_fourier_transform_along_an_axis_that_is_an_input(tmp_path: Path) -> None:
    """Shapes do not tell how many points it has."""
    nodes = [node("Cast", "axis", "whole", to=onnx.TensorProto.INT64), node("DFT", "a - whole", "y")]
    path = saved(tmp_path, nodes, {"a": (2, 8, 16, 2), "axis": ()}, {})
    assert counted(path, (2, 8, 16, 2), ()).uncovered == {"DFT": 1}


CELLS: list[tuple[str, int, list[str], int, int]] = [
    ("RNN", 1, ["Tanh"], 2, 8),
    ("RNN", 1, ["Affine"], 3, 3),
    ("GRU", 3, ["Sigmoid", "Tanh"], 11, 21),
    ("GRU", 3, ["HardSigmoid", "Relu"], 11, 3 + 2 * 4 + 1 + 5),
    ("LSTM", 4, ["Sigmoid", "Relu", "Softsign"], 4 + 3 + 1 + 3 + 1 + 3, 4 + 9 + 1 + 3 + 1 + 3),
]


@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize(("op", "gates", "activations", "flops", "ops"), CELLS)
def test_nonlinearities_of_recurrent_networks(
    op: str, gates: int, activations: list[str], flops: int, ops: int, directions: int, tmp_path: Path
) -> None:
    """FLOPs and operations of a unit and step, beside its products: 5 steps of 4 samples, 8 inputs, 16 units."""
    weights = {"w": floats(directions, gates * 16, 8), "r": floats(directions, gates * 16, 16)}
    attributes: dict[str, Any] = {"hidden_size": 16, "direction": "forward" if directions == 1 else "bidirectional"}
    table = one(tmp_path, op, [(5, 4, 8)], weights, activations=activations * directions, **attributes)
    units = 20 * 16 * directions
    macs = units * gates * 24
    products = 2 * macs - 2 * gates * units
    assert (table.macs, table.flops, table.ops) == (macs, 2 * macs + flops * units, products + ops * units)


def test_other_nonlinearities_in_each_direction(tmp_path: Path) -> None:
    weights = {"w": floats(2, 16, 8), "r": floats(2, 16, 16)}
    settings: dict[str, Any] = {"hidden_size": 16, "direction": "bidirectional"}
    table = one(tmp_path, "RNN", [(5, 4, 8)], weights, activations=["Tanh", "Softsign"], **settings)
    macs = 2 * 20 * 16 * 24
    assert table.flops == 2 * macs + 20 * 16 * (2 + 4)
    assert one(tmp_path, "RNN", [(5, 4, 8)], weights, activations=["Tanh", "Own"], **settings).uncovered == {"RNN": 1}


def test_optional_results_of_a_norm(tmp_path: Path) -> None:
    """The sum that is normalised is the fourth; those before it are omitted."""
    given = {"x": TOKENS, "skip": TOKENS, "scale": floats(E)}
    norm = node("SkipSimplifiedLayerNormalization", "x skip scale", "y - - sum", domain="com.microsoft")
    (found,) = graph_of(saved(tmp_path, [norm], given, {}, ["y", "sum"]), given).operators
    assert [value.shape for value in found.outputs] == [(B, L, E), (B, L, E)]
    assert cost_of(found, DEFAULTS) == (0, 5 * T, 5 * T + 2 * R)


# What is not counted


UNCOVERED: list[tuple[str, list[Any], dict[str, Any]]] = [
    ("BiasSplitGelu", [TOKENS, floats(E)], {}),
    ("Conv", [floats(2, 16, 8, 8), floats(16, 16, 3, 3)], {"domain": "com.microsoft.nchwc"}),
    ("LinearClassifier", [floats(7, 4)], {"domain": "ai.onnx.ml", "coefficients": [0.5] * 12, "intercepts": [0.1] * 3}),
    ("FusedConv", [PICTURE, floats(4, 3, 3, 3), floats(4)], {"activation": "Own"}),
    ("FusedConv", [floats(2, 3), floats(4, 3, 3, 3)], {}),  # operands that do not fit
]


@pytest.mark.parametrize(("op", "operands", "settings"), UNCOVERED, ids=[u[0] for u in UNCOVERED])
def test_other_operators_are_uncovered_by_name(op: str, operands: list[Any], settings: Any, tmp_path: Path) -> None:
    table = counted(call(tmp_path, op, operands, **settings), *[value.shape for value in operands])
    assert table.uncovered == {f"{settings.get('domain', 'com.microsoft')}::{op}": 1}


UNKNOWN = {
    *("If", "Loop", "Scan", "SequenceMap", "Det", "ImageDecoder", "MaxRoiPool", "TfIdfVectorizer"),
    *("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"),
}
"""What loops and branches run, and the work of others, does not follow from shapes; Det has no formula; models for inference
have no losses."""
NEWER = {
    *("Upsample", "BitCast", "CumProd", "LinearAttention", "CausalConvWithState", "SwiGLU"),
    "SimplifiedLayerNormalization",
}
"""Operators that not every version of ONNX has, or none: ONNX Runtime has the simplified norm in the standard's domain."""
SCHEMAS = {
    schema.name: schema
    for schema in onnxruntime.capi.onnxruntime_pybind11_state.get_all_operator_schema()
    if schema.domain == "com.microsoft"
}


def test_every_operator_is_known_once() -> None:
    """A new version of ONNX with a new operator fails here; shapes are this package's, or ONNX infers them."""
    names = {schema.name for schema in onnx.defs.get_all_schemas() if schema.domain == ""}
    assert names - COSTS.keys() - FREE == UNKNOWN
    assert COSTS.keys() & FREE == graph.COSTS.keys() & graph.FREE == set()
    assert (COSTS.keys() | FREE) <= names | NEWER
    assert graph.COSTS.keys() <= graph.SHAPES[graph.MICROSOFT].keys()
    assert graph.COSTS.keys() | graph.FREE <= SCHEMAS.keys() | {"SimplifiedLayerNormalization"}


# Parameters among the operands


def counted_call(
    folder: Path, op: str, operands: list[Any], weights: Any, *, formulas: Any = DEFAULTS, **rest: Any
) -> Any:
    """The table of a node of which some operands are weights."""
    path = call(folder, op, operands, weights=weights, **rest)
    shapes = {f"x{i}": value.shape for i, value in enumerate(operands) if value is not None and i not in weights}
    return count_file(OnnxFile(path).known(), (), shapes, formulas)


def test_packed_experts_are_parameters(tmp_path: Path) -> None:
    """Two numbers of four bits in a byte; the products of the mixture are uncovered."""
    experts, inner = 8, 48
    first, second = whole(experts, 2 * inner, E // 2), whole(experts, E, inner // 2)
    scales = [floats(experts, 2 * inner), floats(experts, E)]
    operands = [floats(10, E), floats(10, experts), first, scales[0], None, second, scales[1]]
    table = counted_call(tmp_path, "QMoE", operands, range(2, 7), k=2)
    assert (table.params, table.uncovered) == (experts * 3 * inner * E, {"com.microsoft::QMoE": 1})


def test_tables_of_positions_are_no_parameters(tmp_path: Path) -> None:
    operands = [TOKENS, places(B, L), floats(64, 4), floats(64, 4)]
    table = counted_call(tmp_path, "RotaryEmbedding", operands, (2, 3))
    assert (table.params, table.buffers, table.flops) == (0, 2 * 64 * 4, 3 * T)


@pytest.mark.parametrize("op", graph.CONTRIB_SCALES)
def test_scales_and_zero_points_are_no_parameters(op: str, tmp_path: Path) -> None:
    """By the names that ONNX Runtime has for its operands; also where there is one for each channel, as arrays."""
    names = [operand.name.lower() for operand in SCHEMAS[op].inputs]
    scales = [i for i, name in enumerate(names) if "scale" in name or "zero_point" in name or name == "absmax"]
    table = counted_call(tmp_path, op, [floats(3)] * len(names), range(1, len(names)))
    assert table.params == 3 * len(set(range(1, len(names))) - {*scales, *graph.TABLES.get(op, ())})
