"""Costs, written out by hand, of operators of the standard that exporters of few models write."""

from __future__ import annotations

from math import log2
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

from support.onnx_graphs import call, cost_of_call, floats, graph_of
from sweeprof.backends.onnxruntime.counting import COSTS, FREE, cost_of
from sweeprof.counting.formulas import DEFAULTS

Figures = tuple[int, int, int]
X = floats(2, 6, 8, 8)
N = X.size
B, L = 2, 5


def whole(*shape: int) -> Any:
    return np.zeros(shape, np.int64)


# What ONNX Runtime runs: its results tell whether the shapes are right.
CALLS: list[tuple[str, list[Any], dict[str, Any], Figures]] = [
    ("LRN", [X], {"size": 5}, (0, 6 * N, 9 * N)),
    ("LpPool", [X], {"kernel_shape": [2, 2], "strides": [2, 2]}, (0, 2 * N + N // 4, 2 * N)),
    ("GlobalLpPool", [X], {}, (0, 2 * N, 2 * N)),
    ("LpNormalization", [X], {"axis": 1}, (0, 3 * N + N // 6, 3 * N + N // 6)),
    ("MeanVarianceNormalization", [X], {}, (0, 4 * N, 5 * N + 4 * 6)),
    ("MeanVarianceNormalization", [X], {"axes": [2, 3]}, (0, 4 * N, 5 * N + 4 * 12)),
    # 2·4·6·6 sums over 6·3·3; what is multiplied is interpolated between four neighbours
    ("DeformConv", [X, floats(4, 6, 3, 3), floats(2, 18, 6, 6)], {},
     (288 * 54, 2 * 288 * 54 + 7 * 2 * 6 * 9 * 36, 2 * 288 * 54 - 288 + 7 * 2 * 6 * 9 * 36)),
    ("DeformConv", [X, floats(4, 6, 3, 3), floats(2, 18, 6, 6), floats(4), floats(2, 9, 6, 6)], {},
     (288 * 54, 2 * 288 * 54 + 288 + 8 * 2 * 6 * 9 * 36, 2 * 288 * 54 + 8 * 2 * 6 * 9 * 36)),
    # 3 · 6 · 4 results, each the mean of four values
    ("RoiAlign", [X, floats(3, 4), whole(3)], {"output_height": 2, "output_width": 2, "sampling_ratio": 2},
     (0, 8 * 4 * 72, 8 * 4 * 72)),
    ("RotaryEmbedding", [floats(B, 4, L, 8), floats(64, 4), floats(64, 4), whole(B, L)], {"version": 23},
     (0, 3 * B * 4 * L * 8, 3 * B * 4 * L * 8)),
    ("RotaryEmbedding", [floats(B, L, 32), floats(64, 2), floats(64, 2), whole(B, L)],
     {"num_heads": 4, "rotary_embedding_dim": 4, "version": 23}, (0, 3 * B * L * 16, 3 * B * L * 16)),
    ("Col2Im", [floats(1, 12, 9), np.array([4, 4]), np.array([2, 2])], {"weights": [1, 2]}, (0, 108, 108)),
    ("STFT", [floats(2, 64, 1), np.array(8), floats(16)], {"weights": [1]},
     (0, 14 * (round(16 * 2.5 * log2(16)) + 16), 14 * (round(16 * 2.5 * log2(16)) + 16))),
    ("AffineGrid", [floats(2, 2, 3), np.array([2, 1, 4, 5])], {"weights": [1]}, (240, 480, 480 - 80)),
    ("ReduceSum", [X], {"noop_with_empty_axes": 1}, (0, 0, 0)),
    ("ReduceSum", [X], {"noop_with_empty_axes": 0}, (0, N, N - 1)),
    ("ReduceSum", [X, np.array([1])], {"noop_with_empty_axes": 1, "weights": [1]}, (0, N, N - N // 6)),
    ("ReduceMean", [X], {"noop_with_empty_axes": 1}, (0, 0, 0)),
]  # fmt: skip


@pytest.mark.parametrize(("op", "operands", "attributes", "cost"), CALLS, ids=[c[0] for c in CALLS])
def test_operators(op: str, operands: list[Any], attributes: dict[str, Any], cost: Figures, tmp_path: Path) -> None:
    assert cost_of_call(tmp_path, op, operands, domain="", **attributes) == cost


def test_regions_whose_size_decides_how_many_values_are_read(tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"output_height": 2, "output_width": 2}
    assert cost_of_call(tmp_path, "RoiAlign", [X, floats(3, 4), whole(3)], domain="", **sizes) is None


@pytest.mark.parametrize(("op", "each"), [("ReduceL2", 2), ("ReduceSumSquare", 1), ("ReduceLogSumExp", 2)])
def test_what_a_reduction_of_no_axes_computes(op: str, each: int, tmp_path: Path) -> None:
    """The squares and roots are left of it. ONNX Runtime does not have all of these."""
    path = call(tmp_path, op, [X], domain="", noop_with_empty_axes=1)
    (node,) = graph_of(path, {"x0": X}).operators
    assert cost_of(node, DEFAULTS) == (0, each * N, each * N)


# What the installed ONNX Runtime has no kernel for.
T = B * L
needs_version_27 = pytest.mark.skipif(
    onnx.defs.onnx_opset_version() < 27, reason="ONNX has this operator from version 27 on"
)
RULES = [("linear", 2, 0), ("gated", 2, 4 * 17), ("delta", 3, 0), ("gated_delta", 3, 4 * 17)]


@needs_version_27
@pytest.mark.parametrize(("rule", "products", "decay"), RULES)
def test_linear_attention(rule: str, products: int, decay: int, tmp_path: Path) -> None:
    """4 heads of 4 numbers: per token and head the state of 16 is added to, is read, and is corrected by the delta rule."""
    gates = [floats(B, L, 4) if part in rule else None for part in ("gated", "delta")]
    operands = [*[floats(B, L, 16)] * 3, None, *gates]
    settings: dict[str, Any] = {"q_num_heads": 4, "kv_num_heads": 4, "update_rule": rule}
    path = call(tmp_path, "LinearAttention", operands, 2, domain="", version=27, **settings)
    (node,) = graph_of(path, {f"x{i}": value for i, value in enumerate(operands) if value is not None}).operators
    macs = T * 4 * 16 * products
    correction = 4 * 2 * 4 if "delta" in rule else 0
    assert [value.shape for value in node.outputs] == [(B, L, 16), (B, 4, 4, 4)]
    cost = cost_of(node, DEFAULTS)
    assert cost is not None
    assert cost[:2] == (macs, 2 * macs + T * (16 + decay + correction))


@needs_version_27
def test_a_causal_convolution(tmp_path: Path) -> None:
    operands = [floats(B, 6, L), floats(6, 1, 4), floats(6)]
    path = call(tmp_path, "CausalConvWithState", operands, 2, domain="", version=27, activation="silu")
    (node,) = graph_of(path, {f"x{i}": value for i, value in enumerate(operands)}).operators
    assert [value.shape for value in node.outputs] == [(B, 6, L), (B, 6, 3)]
    outputs = B * 6 * L
    cost = cost_of(node, DEFAULTS)
    assert cost is not None
    assert cost[:2] == (outputs * 4, outputs * (8 + 1 + 1))


def test_norms_and_pooling_cost_about_as_much_as_torch_counts(tmp_path: Path) -> None:
    """torch computes them by several operators, each of which costs its elements."""
    from sweeprof import profile

    image = torch.ones(2, 6, 8, 8)
    for op, settings, module, tolerance in (
        ("LRN", {"size": 3}, torch.nn.LocalResponseNorm(3), 0.1),
        ("LpPool", {"kernel_shape": [2, 2], "strides": [2, 2]}, torch.nn.LPPool2d(2, 2), 0.7),
    ):
        attributes: dict[str, Any] = settings
        found = cost_of_call(tmp_path, op, [X], domain="", **attributes)
        assert found is not None
        assert found[1] == pytest.approx(profile(module, image).layers.flops, rel=tolerance)


UNCOVERED = {
    *("If", "Loop", "Scan", "SequenceMap", "Det", "ImageDecoder", "MaxRoiPool", "TfIdfVectorizer"),
    *("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"),
}
"""What loops and branches run, and the work of others, does not follow from shapes; Det has no formula; models for inference
have no losses."""


def test_every_operator_of_the_standard_is_known() -> None:
    """A new version of ONNX with a new operator fails here."""
    names = {schema.name for schema in onnx.defs.get_all_schemas() if schema.domain == ""}
    assert names - COSTS.keys() - FREE == UNCOVERED
