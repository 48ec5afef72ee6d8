"""The operators of classical machine learning, in the standard's domain ``ai.onnx.ml``, which scikit-learn's converters write.

Their weights are attributes. Trees compare numbers, which is no arithmetic; only the weights of the leaves are added up.

Source: https://github.com/onnx/onnx/blob/main/docs/Operators-ml.md
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from onnx import TensorProto

from sweeprof.backends.onnxruntime.contrib_operators import (
    ContribNode,
    ContribRule,
    ShapeRule,
    Typed,
    like_first,
    names,
)
from sweeprof.counting import mapping, operators
from sweeprof.counting.formulas import OperatorCost
from sweeprof.counting.operators import NOTHING, REAL, added

DOMAIN = "ai.onnx.ml"
WEIGHTS: dict[str, tuple[str, ...]] = mapping.by_name(
    {
        "LinearClassifier LinearRegressor": ("coefficients", "intercepts"),
        "SVMClassifier SVMRegressor": ("coefficients", "support_vectors", "rho"),
        "TreeEnsembleClassifier": ("nodes_values", "class_weights"),
        "TreeEnsembleRegressor": ("nodes_values", "target_weights"),
        "Scaler": ("offset", "scale"),
    }
)
"""Attributes that have learned numbers; they are counted as further operands of the operator."""
BUFFERS: dict[str, tuple[int, ...]] = {"Scaler": (1, 2)}
"""Positions of those that are statistics of the data."""


def _rows(node: ContribNode) -> int:
    """Return the number of samples of ``(samples, features)``, or of one sample ``(features,)``."""
    sizes = node.operand(0).sizes
    return sizes[0] if len(sizes) > 1 else 1


def _regression_shape(node: ContribNode) -> Sequence[Typed]:
    return [
        (TensorProto.FLOAT, (_rows(node), int(node.attributes.get("n_targets", node.attributes.get("targets", 1)))))
    ]


def _classes(node: ContribNode) -> tuple[int, int]:
    """Return the type of the labels, and their number; LinearClassifier and the others call them differently."""
    for name in ("classlabels_int64s", "classlabels_ints"):
        if name in node.attributes:
            return TensorProto.INT64, len(node.attributes[name])
    return TensorProto.STRING, len(node.attributes["classlabels_strings"])


def _classification_shape(node: ContribNode) -> Sequence[Typed]:
    """The label of each sample, and the score of each class."""
    kind, classes = _classes(node)
    return [(kind, (_rows(node),)), (TensorProto.FLOAT, (_rows(node), classes))]


def _support_classification_shape(node: ContribNode) -> Sequence[Typed]:
    """A score for each pair of classes, unless there are but two, or probabilities, or there are no support vectors."""
    kind, classes = _classes(node)
    is_by_pairs = classes > 2 and "prob_a" not in node.attributes and "support_vectors" in node.attributes
    scores = classes * (classes - 1) // 2 if is_by_pairs else classes
    return [(kind, (_rows(node),)), (TensorProto.FLOAT, (_rows(node), scores))]


def _like_real(node: ContribNode) -> Sequence[Typed]:
    return [(TensorProto.FLOAT, node.operand(0).sizes)]


def _chosen_shape(node: ContribNode) -> Sequence[Typed]:
    """``(X, positions on the last axis)``."""
    given = node.operand(0)
    return [(given, (*(given.sizes[:-1] or (1,)), node.operand(1).elements))]


SHAPES: dict[str, dict[str, ShapeRule]] = {
    DOMAIN: mapping.by_name(
        {
            "LinearRegressor SVMRegressor TreeEnsembleRegressor": _regression_shape,
            "LinearClassifier TreeEnsembleClassifier": _classification_shape,
            "SVMClassifier": _support_classification_shape,
            "Scaler Normalizer": _like_real,
            "ArrayFeatureExtractor": _chosen_shape,
            "Binarizer Imputer": like_first,
        }
    )
}
"""By the domain and the name of an operator whose shapes ONNX does not infer."""


def _transformed(scores: int, node: ContribNode) -> OperatorCost:
    """Return the cost of the function that makes probabilities of scores, in an attribute."""
    kinds = {"SOFTMAX": "function", "SOFTMAX_ZERO": "function", "LOGISTIC": "sigmoid", "PROBIT": "function"}
    definition = kinds.get(node.text("post_transform", "NONE"))
    return NOTHING if definition is None else operators.elementwise(definition, scores, REAL)


def _linear(node: ContribNode) -> OperatorCost:
    """Every sample is multiplied by the coefficients of each class or target."""
    features, coefficients = node.operand(0).sizes[-1], node.operand(1).elements
    scores = _rows(node) * coefficients // features
    bias = node.input(2) is not None
    return added(operators.matmul(scores, features, REAL, bias=bias), _transformed(scores, node))


def _support_vectors(node: ContribNode) -> OperatorCost:
    """A kernel of each sample with each support vector; their results are multiplied by the coefficients and added up."""
    rows, features = _rows(node), node.operand(0).sizes[-1]
    vectors = node.input(2)
    if vectors is None:  # a linear model
        return operators.matmul(rows * node.operand(1).elements // features, features, REAL, bias=True)
    pairs = rows * vectors.elements // features
    kernel = node.text("kernel_type", "LINEAR")
    if kernel == "RBF":
        values = added(operators.distances(pairs, features), operators.elementwise("function", 2 * pairs, REAL))
    else:
        values = operators.matmul(pairs, features, REAL)
        each = {"POLY": 3, "SIGMOID": 3}.get(kernel, 0)
        values = added(values, operators.elementwise("function", each * pairs, REAL))
    products = rows * node.operand(1).elements
    return added(values, operators.sums_of_products(products, 0, REAL))


def _trees(node: ContribNode) -> OperatorCost:
    """Each tree adds the weights of one leaf to the scores."""
    prefix = "class" if node.op == "TreeEnsembleClassifier" else "target"
    trees, leaves = node.attributes[f"{prefix}_treeids"], node.attributes[f"{prefix}_nodeids"]
    each = len(leaves) // len(set(zip(trees, leaves, strict=True)))
    scores = _rows(node) * len(set(node.attributes[f"{prefix}_ids"]))
    sums = _rows(node) * len(set(trees)) * each
    return added((0, sums, sums), _transformed(scores, node))


def _scaler(node: ContribNode) -> OperatorCost:
    """An offset is subtracted, and a scale multiplied."""
    return operators.elementwise("affine", node.operand(0).elements, REAL)


def _normaliser(node: ContribNode) -> OperatorCost:
    return operators.unit_norm(node.operand(0).elements, _rows(node))


COSTS: dict[str, ContribRule] = mapping.by_name(
    {
        "LinearClassifier LinearRegressor": _linear,
        "SVMClassifier SVMRegressor": _support_vectors,
        "TreeEnsembleClassifier TreeEnsembleRegressor": _trees,
        "Scaler": _scaler,
        "Normalizer": _normaliser,
    }
)
"""Rule by the name of the operator."""
FREE = names(
    """
    ArrayFeatureExtractor Binarizer CastMap CategoryMapper DictVectorizer FeatureVectorizer Imputer LabelEncoder OneHotEncoder
    ZipMap
    """
)
"""Operators that move, choose, compare or convert."""
RULES: Mapping[str, tuple[Mapping[str, ContribRule], frozenset[str]]] = {DOMAIN: (COSTS, FREE)}
"""Rules, and operators without arithmetic, by domain."""
