"""Operators of classical machine learning, as scikit-learn's converters write them: costs by hand, shapes by ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest

from support.onnx_graphs import call, checked, floats
from sweeprof.backends.onnxruntime import classical_ml_operators
from sweeprof.backends.onnxruntime.counting import count_file
from sweeprof.backends.onnxruntime.files import OnnxFile
from sweeprof.counting.formulas import DEFAULTS
from sweeprof.results.layers import LayerTable

N, F, C = 7, 4, 3
"""Samples, features, classes."""
COEFFICIENTS = {"coefficients": [0.5] * (C * F), "intercepts": [0.1] * C}
TREES = 2
"""Each is a comparison with two leaves."""


def trees(kind: str, width: int) -> dict[str, Any]:
    """The attributes of two trees, whose leaves have ``width`` weights."""
    leaves = [(tree, node, column) for tree in range(TREES) for node in (1, 2) for column in range(width)]
    return {
        "nodes_treeids": [0, 0, 0, 1, 1, 1],
        "nodes_nodeids": [0, 1, 2] * TREES,
        "nodes_featureids": [0] * 6,
        "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"] * TREES,
        "nodes_values": [0.5, 0.0, 0.0] * TREES,
        "nodes_truenodeids": [1, 0, 0] * TREES,
        "nodes_falsenodeids": [2, 0, 0] * TREES,
        f"{kind}_treeids": [tree for tree, _, _ in leaves],
        f"{kind}_nodeids": [node for _, node, _ in leaves],
        f"{kind}_ids": [column for _, _, column in leaves],
        f"{kind}_weights": [0.25] * len(leaves),
    }


def counted(folder: Path, op: str, outputs: int, **attributes: Any) -> LayerTable:
    path = call(folder, op, [floats(N, F)], outputs, domain=classical_ml_operators.DOMAIN, **attributes)
    model = onnx.load(path)
    model.opset_import[1].version = 3
    onnx.save(model, path)
    checked(path, {"x0": floats(N, F)})
    return count_file(OnnxFile(path).known(), (), {"x0": (N, F)}, DEFAULTS)


LABELS = {"classlabels_ints": [0, 1, 2]}
SUPPORT = {
    "coefficients": [0.5] * 5,
    "support_vectors": [0.5] * (5 * F),
    "rho": [0.1],
    "n_supports": 5,
    "kernel_params": [0.5, 0.0, 3.0],
}
PAIRS = N * 5
"""Samples and support vectors."""
CALLS: list[tuple[str, int, dict[str, Any], tuple[int, int], int]] = [
    ("LinearRegressor", 1, {**COEFFICIENTS, "targets": C}, (N * C * F, 2 * N * C * F + N * C), C * F + C),
    ("LinearRegressor", 1, {"coefficients": [0.5] * F}, (N * F, 2 * N * F), F),
    ("LinearClassifier", 2, {**COEFFICIENTS, **LABELS}, (N * C * F, 2 * N * C * F + N * C), C * F + C),
    ("LinearClassifier", 2, {**COEFFICIENTS, **LABELS, "post_transform": "SOFTMAX"},
     (N * C * F, 2 * N * C * F + 2 * N * C), C * F + C),
    ("TreeEnsembleRegressor", 1, {**trees("target", 1), "n_targets": 1}, (0, N * TREES), 6 + 4),
    ("TreeEnsembleClassifier", 2, {**trees("class", C), "classlabels_int64s": [0, 1, 2]}, (0, N * TREES * C), 6 + 12),
    ("Scaler", 1, {"offset": [0.5] * F, "scale": [2.0] * F}, (0, 2 * N * F), 0),
    ("Normalizer", 1, {"norm": "L2"}, (0, 3 * N * F + N), 0),
    ("SVMRegressor", 1, {**SUPPORT, "kernel_type": "LINEAR"}, (PAIRS * F + PAIRS, 2 * PAIRS * F + 2 * PAIRS), 5 * F + 6),
    # A difference, a square and an addition for each feature, a multiplication and an exponential
    ("SVMRegressor", 1, {**SUPPORT, "kernel_type": "RBF"},
     (PAIRS, 3 * PAIRS * F + 2 * PAIRS + 2 * PAIRS), 5 * F + 6),
]  # fmt: skip


@pytest.mark.parametrize(("op", "outputs", "attributes", "cost", "params"), CALLS, ids=[c[0] for c in CALLS])
def test_operators(
    op: str, outputs: int, attributes: dict[str, Any], cost: tuple[int, int], params: int, tmp_path: Path
) -> None:
    """The numbers in attributes are parameters; those of a scaler are statistics."""
    table = counted(tmp_path, op, outputs, **attributes)
    assert (table.macs, table.flops, table.uncovered) == (*cost, {})
    assert (table.params, table.buffers) == (params, 2 * F if op == "Scaler" else 0)


@pytest.mark.parametrize("probabilities", [False, True])
def test_a_classifier_with_support_vectors(probabilities: bool, tmp_path: Path) -> None:
    """Five vectors of three classes, each with a coefficient for each of the other two."""
    settings: dict[str, Any] = {
        **LABELS,
        "kernel_type": "LINEAR",
        "kernel_params": [0.5, 0.0, 3.0],
        "support_vectors": [0.5] * (5 * F),
        "coefficients": [0.5] * (5 * 2),
        "vectors_per_class": [2, 2, 1],
        "rho": [0.1] * 3,
    }
    if probabilities:
        settings |= {"prob_a": [0.5] * 3, "prob_b": [0.5] * 3}
    table = counted(tmp_path, "SVMClassifier", 2, **settings)
    assert (table.macs, table.uncovered) == (PAIRS * F + 2 * PAIRS, {})


def test_every_operator_of_the_domain_is_known() -> None:
    names = {schema.name for schema in onnx.defs.get_all_schemas() if schema.domain == classical_ml_operators.DOMAIN}
    assert names - classical_ml_operators.COSTS.keys() - classical_ml_operators.FREE == {"TreeEnsemble"}
    assert classical_ml_operators.COSTS.keys() & classical_ml_operators.FREE == set()
    assert classical_ml_operators.COSTS.keys() <= classical_ml_operators.SHAPES[classical_ml_operators.DOMAIN].keys()
