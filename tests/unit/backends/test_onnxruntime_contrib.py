"""Operators that ONNX Runtime adds to the standard: costs written out by hand, and the shapes and types that it computes itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import sweeprof
from support.onnx_graphs import call, cost_of_call, floats, graph_of
from sweeprof.backends.onnxruntime import graph
from sweeprof.backends.onnxruntime.counting import cost_of, count_file
from sweeprof.backends.onnxruntime.files import OnnxFile
from sweeprof.counting.formulas import DEFAULTS, Formulas

SCALE, ZERO = np.array(0.1, np.float32), np.array(0, np.uint8)
B, L, S, H, W, E = 2, 6, 9, 4, 8, 32
"""Batch, queries, keys, heads, the width of a head, and that of all."""


def whole(*shape: int) -> Any:
    return np.ones(shape, np.uint8)


def signed(*shape: int) -> Any:
    return np.ones(shape, np.int8)


def scores(keys: int, rows: int = B * H * L, masks: int = 0) -> tuple[int, int]:
    """MACs and FLOPs of an attention of 4 heads of 8 numbers."""
    macs = rows * keys * 2 * W
    return macs, 2 * macs + (2 + masks) * rows * keys


X = floats(2, 3, 8, 8)
N = 2 * 3 * 8 * 8
CONV = 2 * 4 * 6 * 6
PRODUCTS: list[tuple[str, list[Any], dict[str, Any], tuple[int, int]]] = [
    ("FusedConv", [X, floats(4, 3, 3, 3), floats(4)], {"activation": "Relu"}, (CONV * 27, CONV * (54 + 2))),
    ("FusedConv", [X, floats(4, 3, 3, 3), None, floats(2, 4, 6, 6)], {}, (CONV * 27, CONV * (54 + 1))),
    ("FusedMatMul", [floats(2, 5, 8), floats(8, 3)], {}, (240, 480)),
    ("FusedMatMul", [floats(2, 8, 5), floats(3, 8)], {"transA": 1, "transB": 1, "alpha": 0.5}, (240, 480 + 30)),
    ("FusedMatMul", [floats(5, 2, 8), floats(2, 8, 3)], {"transBatchA": 1}, (240, 480)),
    ("FusedMatMul", [floats(2, 1, 5, 8), floats(3, 8, 7)], {}, (2 * 3 * 5 * 7 * 8, 2 * 2 * 3 * 5 * 7 * 8)),
    ("FusedGemm", [floats(3, 8), floats(5, 8), floats(5)], {"transB": 1, "activation": "Relu"}, (120, 240 + 15 + 15)),
    ("QGemm", [whole(3, 8), SCALE, ZERO, whole(5, 8), SCALE, ZERO, np.ones(5, np.int32), SCALE, ZERO], {"transB": 1},
     (120, 0)),
    # The result is multiplied by its scale.
    ("MatMulIntegerToFloat", [whole(2, 5, 8), whole(8, 3), SCALE, SCALE], {}, (240, 30)),
    ("MatMulIntegerToFloat", [whole(2, 5, 8), whole(8, 3), SCALE, SCALE, ZERO, ZERO, floats(3)], {}, (240, 60)),
    ("DynamicQuantizeMatMul", [floats(2, 5, 8), whole(8, 3), SCALE, ZERO], {}, (240, 30)),
    ("DynamicQuantizeMatMul", [floats(2, 5, 8), whole(8, 3), SCALE, ZERO, floats(3)], {}, (240, 60)),
    ("MatMulNBits", [floats(2, 5, 40), whole(3, 2, 16), floats(6)], {"K": 40, "N": 3, "bits": 4, "block_size": 32},
     (2 * 5 * 3 * 40, 2 * 2 * 5 * 3 * 40)),
    ("MatMulNBits", [floats(2, 32), whole(3, 1, 16), floats(3), None, None, floats(3)],
     {"K": 32, "N": 3, "bits": 4, "block_size": 32}, (192, 384 + 6)),
    # 5 steps of 4 samples, 8 inputs, 16 units: 13 FLOPs for each unit and step
    ("DynamicQuantizeLSTM", [floats(5, 4, 8), signed(1, 8, 64), signed(1, 16, 64), floats(1, 128), None, None, None,
                             None, floats(1), signed(1), floats(1), signed(1)],
     {"hidden_size": 16}, (20 * 4 * 16 * 24, 20 * 16 * 13)),
    ("Attention", [floats(B, L, E), floats(E, 3 * E), floats(3 * E)], {"num_heads": H},
     (B * L * E * 96 + scores(L)[0], 2 * B * L * E * 96 + B * L * 96 + scores(L)[1])),
    ("Attention", [floats(B, L, E), floats(E, 3 * E), floats(3 * E), np.ones((B, L), np.int32)], {"num_heads": H},
     (B * L * E * 96 + scores(L)[0], 2 * B * L * E * 96 + B * L * 96 + scores(L, masks=1)[1])),
    # q and k have 16 numbers in all, v 32
    ("Attention", [floats(B, L, E), floats(E, 64), floats(64)], {"num_heads": H, "qkv_hidden_sizes": [16, 16, 32]},
     (B * L * E * 64 + B * H * L * L * 12, 2 * B * L * E * 64 + B * L * 64 + B * H * L * L * (24 + 2))),
    ("QAttention", [whole(B, L, E), whole(E, 3 * E), floats(3 * E), SCALE, SCALE, None, ZERO, ZERO], {"num_heads": H},
     (B * L * E * 96 + scores(L)[0], 2 * B * L * 96 + scores(L)[1])),
    ("MultiHeadAttention", [floats(B, L, E), floats(B, S, E), floats(B, S, E)], {"num_heads": H}, scores(S)),
    ("MultiHeadAttention", [floats(B, L, E), floats(B, S, E), floats(B, S, E), floats(3 * E)], {"num_heads": H},
     (scores(S)[0], scores(S)[1] + B * E * (L + 2 * S))),
    ("MultiHeadAttention", [floats(B, L, E), floats(B, H, S, W), floats(B, H, S, W)], {"num_heads": H}, scores(S)),
    ("MultiHeadAttention", [floats(B, L, E), floats(B, L, E), floats(B, L, 64), None, np.ones((B, L), np.int32)],
     {"num_heads": H}, (B * H * L * L * 24, B * H * L * L * (48 + 3))),
    ("GroupQueryAttention", [floats(B, L, E), floats(B, L, 16), floats(B, L, 16), None, None,
                             np.full(B, L - 1, np.int32), np.array(L, np.int32)],
     {"num_heads": H, "kv_num_heads": 2}, scores(L)),
    # Of heads of 16 numbers all are rotated, those of the values apart
    ("GroupQueryAttention", [floats(B, L, 128), None, None, None, None,
                             np.full(B, L - 1, np.int32), np.array(L, np.int32), floats(64, 8), floats(64, 8)],
     {"num_heads": H, "kv_num_heads": 2, "do_rotary": 1},
     (2 * scores(L)[0], 4 * scores(L)[0] + 2 * B * H * L * L + 3 * B * L * 16 * (H + 2))),
]  # fmt: skip


@pytest.mark.parametrize(("op", "operands", "attributes", "cost"), PRODUCTS, ids=[p[0] for p in PRODUCTS])
def test_products(op: str, operands: list[Any], attributes: Any, cost: tuple[int, int], tmp_path: Path) -> None:
    found = cost_of_call(tmp_path, op, operands, **attributes)
    assert found is not None
    assert found[:2] == cost


def test_keys_of_the_past_are_further_keys(tmp_path: Path) -> None:
    """Of attention with its projections in one tensor, of one without, and of grouped queries; the caches are results, too."""
    past, rows = 5, B * H * L
    keys = past + L
    packed = cost_of_call(
        tmp_path,
        "Attention",
        [floats(B, L, E), floats(E, 3 * E), floats(3 * E), None, floats(2, B, H, past, W)],
        outputs=2,
        num_heads=H,
    )
    separate = cost_of_call(
        tmp_path,
        "MultiHeadAttention",
        [floats(B, L, E), floats(B, L, E), floats(B, L, E), None, None, None, *[floats(B, H, past, W)] * 2],
        outputs=3,
        num_heads=H,
    )
    assert packed is not None
    assert separate is not None
    assert packed[0] - B * L * E * 3 * E == separate[0] == rows * keys * 2 * W


@pytest.mark.parametrize("is_constant", [True, False])
def test_the_keys_of_grouped_queries(is_constant: bool, tmp_path: Path) -> None:
    """As many as an operand says; where that is an input of the model, the past ones and those of this call."""
    past = 5
    operands = [
        floats(B, 1, E),
        floats(B, 1, 16),
        floats(B, 1, 16),
        floats(B, 2, past, W),
        floats(B, 2, past, W),
        np.full(B, past, np.int32),
        np.array(past + 1, np.int32),
    ]
    attributes: dict[str, Any] = {"num_heads": H, "kv_num_heads": 2}
    weights = [6] if is_constant else []
    found = cost_of_call(tmp_path, "GroupQueryAttention", operands, 3, weights=weights, **attributes)
    assert found is not None
    assert found[0] == B * H * (past + 1) * 2 * W


def test_a_cache_of_grouped_queries_that_is_larger_than_its_content(tmp_path: Path) -> None:
    """As onnxruntime-genai allocates it: it stays as large as it is, and only its content is read."""
    length, used = 32, 7
    operands = [
        floats(B, 1, E),
        floats(B, 1, 16),
        floats(B, 1, 16),
        *[floats(B, 2, length, W)] * 2,
        np.full(B, used - 1, np.int32),
        np.array(used, np.int32),
    ]
    attributes: dict[str, Any] = {"num_heads": H, "kv_num_heads": 2}
    found = cost_of_call(tmp_path, "GroupQueryAttention", operands, 3, weights=[6], **attributes)
    assert found is not None
    assert found[0] == B * H * used * 2 * W


def test_what_grouped_queries_add_to_scores(tmp_path: Path) -> None:
    """A bias of the scores one FLOP for each, a soft cap three."""
    operands = [
        *[floats(B, L, E), floats(B, L, 16), floats(B, L, 16), None, None],
        *[np.full(B, L - 1, np.int32), np.array(L, np.int32)],
    ]
    attributes: dict[str, Any] = {"num_heads": H, "kv_num_heads": 2}
    plain = cost_of_call(tmp_path, "GroupQueryAttention", operands, **attributes)
    capped = cost_of_call(tmp_path, "GroupQueryAttention", operands, softcap=20.0, **attributes)
    biased = [*operands, None, None, None, floats(B, H, L, L)]
    masked = cost_of_call(tmp_path, "GroupQueryAttention", biased, **attributes)
    assert plain is not None
    assert capped is not None
    assert masked is not None
    assert (capped[1] - plain[1], masked[1] - plain[1]) == (3 * B * H * L * L, B * H * L * L)


R = B * L
T = R * E
OTHERS: list[tuple[str, list[Any], dict[str, Any], tuple[int, int]]] = [
    ("BiasGelu", [floats(B, L, E), floats(E)], {}, (2 * T, 6 * T)),
    ("Gelu", [floats(B, L, E)], {}, (T, 5 * T)),
    ("FastGelu", [floats(B, L, E)], {}, (T, 15 * T)),
    ("FastGelu", [floats(B, L, E), floats(E)], {}, (2 * T, 16 * T)),
    ("QuickGelu", [floats(B, L, E)], {}, (2 * T, 5 * T)),
    ("QuickGelu", [floats(B, L, E)], {"alpha": 1.0}, (T, 4 * T)),
    ("SkipLayerNormalization", [floats(B, L, E), floats(B, L, E), floats(E)], {}, (6 * T, 7 * T + 4 * R)),
    ("SkipLayerNormalization", [floats(B, L, E), floats(B, L, E), floats(E), floats(E), floats(E)], {},
     (7 * T, 9 * T + 4 * R)),
    ("SkipSimplifiedLayerNormalization", [floats(B, L, E), floats(B, L, E), floats(E)], {}, (5 * T, 5 * T + 2 * R)),
    ("SkipSimplifiedLayerNormalization", [floats(B, L, E), floats(B, L, E), floats(E), floats(E)], {},
     (6 * T, 6 * T + 2 * R)),
    ("SimplifiedLayerNormalization", [floats(B, L, E), floats(E)], {"domain": ""}, (4 * T, 4 * T + 2 * R)),
    ("EmbedLayerNormalization", [np.ones((B, L), np.int32), None, floats(50, E), floats(20, E), None, floats(E),
                                 floats(E)], {"outputs": 2}, (6 * T, 8 * T + 4 * R)),
    ("EmbedLayerNormalization", [np.ones((B, L), np.int32), np.ones((B, L), np.int32), floats(50, E), floats(20, E),
                                 floats(2, E), floats(E), floats(E)], {"outputs": 2}, (7 * T, 9 * T + 4 * R)),
    # 3 FLOPs for each number that is rotated: all of a head, or its first four
    ("RotaryEmbedding", [floats(B, L, E), np.zeros((B, L), np.int64), floats(64, 4), floats(64, 4)], {}, (3 * T,) * 2),
    ("RotaryEmbedding", [floats(B, H, L, W), np.zeros((B, L), np.int64), floats(64, 4), floats(64, 4)], {},
     (3 * T,) * 2),
    ("RotaryEmbedding", [floats(B, L, E), np.zeros((B, L), np.int64), floats(64, 2), floats(64, 2)],
     {"num_heads": H, "rotary_embedding_dim": 4}, (3 * T // 2,) * 2),
    ("QLinearAdd", [whole(3, 8), SCALE, ZERO, whole(8), SCALE, ZERO, SCALE, ZERO], {}, (0, 0)),
    ("QLinearMul", [whole(3, 8), SCALE, ZERO, whole(8), SCALE, ZERO, SCALE, ZERO], {}, (0, 0)),
    ("QLinearConcat", [SCALE, ZERO, whole(3, 8), SCALE, ZERO, whole(3, 2), SCALE, ZERO], {"axis": 1, "weights": [
        0, 1, 3, 4, 6, 7]}, (0, 0)),
    ("QLinearSigmoid", [whole(3, 8), SCALE, ZERO, SCALE, ZERO], {}, (0, 0)),
    ("QLinearLeakyRelu", [whole(3, 8), SCALE, ZERO, SCALE, ZERO], {}, (0, 0)),
    ("QLinearSoftmax", [whole(3, 8), SCALE, ZERO, SCALE, ZERO], {"opset": 13}, (0, 0)),
    ("QLinearAveragePool", [whole(2, 3, 8, 8), SCALE, ZERO, SCALE, ZERO], {"kernel_shape": [3, 3]}, (0, 0)),
    ("QLinearGlobalAveragePool", [whole(2, 3, 8, 8), SCALE, ZERO, SCALE, ZERO], {}, (0, 0)),
    ("QuantizeLinear", [floats(3, 8), SCALE, np.array(0, np.uint16)], {}, (0, 0)),
    ("DequantizeLinear", [np.ones((3, 8), np.uint16), SCALE, np.array(0, np.uint16)], {}, (0, 0)),
    ("GatherBlockQuantized", [whole(50, 16), np.zeros((B, L), np.int64), floats(50, 1)],
     {"block_size": 32, "bits": 4, "quantize_axis": 1, "gather_axis": 0, "weights": [0]}, (0, 0)),
]  # fmt: skip


@pytest.mark.parametrize(("op", "operands", "attributes", "cost"), OTHERS, ids=[o[0] for o in OTHERS])
def test_what_is_no_product(
    op: str, operands: list[Any], attributes: dict[str, Any], cost: tuple[int, int], tmp_path: Path
) -> None:
    assert cost_of_call(tmp_path, op, operands, **attributes) == (0, *cost)


def test_optional_results_of_a_norm(tmp_path: Path) -> None:
    """The sum that is normalised is the fourth; those before it are omitted."""
    operands = [floats(B, L, E), floats(B, L, E), floats(E)]
    path = call(tmp_path, "SkipSimplifiedLayerNormalization", operands, 4)
    model = onnx.load(path)
    model.graph.node[0].output[1:3] = ["", ""]
    del model.graph.output[1:3]
    onnx.save(model, path)
    (node,) = graph_of(path, {f"x{i}": value for i, value in enumerate(operands)}).operators
    assert [value.shape for value in node.outputs] == [(B, L, E), (B, L, E)]
    assert cost_of(node, DEFAULTS) == (0, 5 * T, 5 * T + 2 * R)


@pytest.mark.parametrize(
    ("op", "operands", "settings"),
    [
        ("GroupNorm", [floats(2, 8, 8, 4), floats(4), floats(4)], {"groups": 2, "activation": 1}),
        ("BiasSplitGelu", [floats(B, L, E), floats(E)], {}),
        ("NhwcConv", [floats(2, 8, 8, 3), floats(4, 3, 3, 3)], {}),
        ("Conv", [floats(2, 16, 8, 8), floats(16, 16, 3, 3)], {"domain": "com.microsoft.nchwc"}),
        ("Scaler", [floats(3, 4)], {"domain": "ai.onnx.ml", "offset": [0.5] * 4, "scale": [2.0] * 4}),
        (
            "LinearClassifier",
            [floats(7, 4)],
            {"domain": "ai.onnx.ml", "coefficients": [0.5] * 12, "intercepts": [0.1] * 3},
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_other_operators_are_uncovered_by_name(
    op: str, operands: list[Any], settings: dict[str, Any], tmp_path: Path
) -> None:
    path = call(tmp_path, op, operands, **settings)
    table = count_file(OnnxFile(path).known(), [value.shape for value in operands], {}, DEFAULTS)
    assert table.uncovered == {f"{settings.get('domain', 'com.microsoft')}::{op}": 1}


def test_packed_experts_are_parameters(tmp_path: Path) -> None:
    """Two numbers of four bits in a byte; the products of the mixture are uncovered."""
    experts, inner = 8, 48
    first, second = whole(experts, 2 * inner, E // 2), whole(experts, E, inner // 2)
    scales = [floats(experts, 2 * inner), floats(experts, E)]
    operands = [floats(10, E), floats(10, experts), first, scales[0], None, second, scales[1]]
    path = call(tmp_path, "QMoE", operands, weights=range(2, 7), k=2)
    table = count_file(OnnxFile(path).known(), [(10, E), (10, experts)], {}, DEFAULTS)
    assert (table.params, table.uncovered) == (experts * 3 * inner * E, {"com.microsoft::QMoE": 1})


SCHEMAS = {
    schema.name: schema
    for schema in onnxruntime.capi.onnxruntime_pybind11_state.get_all_operator_schema()
    if schema.domain == "com.microsoft"
}


def test_every_operator_with_a_cost_has_shapes() -> None:
    """Or ONNX infers them, of operators that the standard has too."""
    costs, free = graph.COSTS.keys(), graph.FREE
    assert costs & free == set()
    assert costs <= graph.SHAPES[graph.MICROSOFT].keys()
    assert costs | free <= SCHEMAS.keys() | {"SimplifiedLayerNormalization"}


def test_tables_of_positions_are_no_parameters(tmp_path: Path) -> None:
    operands = [floats(B, L, E), np.zeros((B, L), np.int64), floats(64, 4), floats(64, 4)]
    path = call(tmp_path, "RotaryEmbedding", operands, weights=(2, 3))
    table = count_file(OnnxFile(path).known(), (), {"x0": (B, L, E), "x1": (B, L)}, DEFAULTS)
    assert (table.params, table.buffers, table.flops) == (0, 2 * 64 * 4, 3 * T)


def test_a_formula_of_the_users_comes_first(tmp_path: Path) -> None:
    operands = [floats(B, L, E), floats(E)]
    path = call(tmp_path, "BiasGelu", operands, weights=(1,))
    formulas = Formulas({"com.microsoft::BiasGelu": lambda inputs, attributes, outputs: sweeprof.Cost(flops=7)})
    table = count_file(OnnxFile(path).known(), (), {"x0": (B, L, E)}, formulas)
    assert (table.flops, table.params) == (7, E)


def test_an_activation_that_is_unknown(tmp_path: Path) -> None:
    operands = [X, floats(4, 3, 3, 3), floats(4)]
    path = call(tmp_path, "FusedConv", operands, weights=(1, 2), activation="Own")
    table = count_file(OnnxFile(path).known(), (), {"x0": X.shape}, DEFAULTS)
    assert table.uncovered == {"com.microsoft::FusedConv": 1}


def test_operands_that_do_not_fit_are_uncovered(tmp_path: Path) -> None:
    path = call(tmp_path, "FusedConv", [floats(2, 3), floats(4, 3, 3, 3)])
    table = count_file(OnnxFile(path).known(), (), {"x0": (2, 3), "x1": (4, 3, 3, 3)}, DEFAULTS)
    assert table.uncovered == {"com.microsoft::FusedConv": 1}


@pytest.mark.parametrize("op", graph.CONTRIB_SCALES)
def test_scales_and_zero_points_are_no_parameters(op: str, tmp_path: Path) -> None:
    """By the names that ONNX Runtime has for its operands; also where there is one for each channel, as arrays."""
    names = [operand.name.lower() for operand in SCHEMAS[op].inputs]
    scales = [i for i, name in enumerate(names) if "scale" in name or "zero_point" in name or name == "absmax"]
    tables = graph.TABLES.get(op, ())
    path = call(tmp_path, op, [floats(3)] * len(names), weights=range(1, len(names)))
    table = count_file(OnnxFile(path).known(), (), {"x0": (3,)}, DEFAULTS)
    assert table.params == 3 * len(set(range(1, len(names))) - {*scales, *tables})
