"""LiteRT, formerly TensorFlow Lite: models as files, from a Keras model or as they are given, and the counts of their operators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np

from sweeprof.backends import Gap, shapes_of
from sweeprof.backends.litert.convert import LitertConverter, Quantization
from sweeprof.backends.litert.model import (
    NAMESPACE,
    InterpreterSettings,
    LitertModel,
    TfliteFile,
    TfliteOperator,
    TfliteTensor,
    in_order,
    inputs_of,
    read,
    sized,
)
from sweeprof.backends.model_files import FileBackend, gaps_of
from sweeprof.counting import file_graph
from sweeprof.counting.file_graph import cost_by, described, liveness
from sweeprof.counting.formulas import DEFAULTS, Formulas, OperatorCost, Variable, layer_row, summed
from sweeprof.counting.operators import NOTHING, REAL, added
from sweeprof.measuring.inputs import Inputs
from sweeprof.results.layer_times import ROOT
from sweeprof.results.layers import LayerTable, OperatorCount, Weights

UNSEEN = Gap(
    "not supported upstream", "the interpreter's profiler cannot be switched on from Python, nor one operator run alone"
)


@dataclass(slots=True)
class LitertBackend(FileBackend):
    """TFLite files in LiteRT's interpreter, one for each shape of inputs; ``fp16`` stores weights in 16 bits.

    ``static`` of ``int8`` computes in 8 bits, inputs and outputs too; ``dynamic`` stores weights in 8 bits.
    """

    gaps: ClassVar[Mapping[str, Gap]] = {
        **gaps_of("LiteRT"),
        "layer_times": UNSEEN,
        "operators": UNSEEN,
        "allocations": Gap(
            "not supported upstream", "tensors are planned into one arena when they are allocated, before any step"
        ),
    }
    precision_methods: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "fp32": ("convert",),
        "fp16": ("convert",),
        "int8": ("static", "dynamic"),
    }
    precision_gaps: ClassVar[Mapping[str, str]] = {"bf16": "its converter has no bfloat16"}
    MODEL: ClassVar[type[LitertModel]] = LitertModel
    out_of_memory: ClassVar[tuple[str, ...]] = ("failed to allocate",)
    xnnpack: bool = True
    """True: the XNNPACK delegate runs every operator that it supports, as by default; false: LiteRT's own kernels."""

    def converter(self) -> LitertConverter:
        quantization: Quantization = "none"
        if self.precision == "fp16":
            quantization = "float16"
        elif self.precision == "int8":
            quantization = "dynamic" if self.method() == "dynamic" else "int8"
        return LitertConverter(self.seed, self.cache, self.samples, quantization, kept=self.kept)

    def session_settings(self, device: str) -> InterpreterSettings:
        return InterpreterSettings(self.threads, self.xnnpack)

    def counted(
        self, file: TfliteFile, stored: TfliteFile, inputs: Inputs, axis: int | None, formulas: Formulas
    ) -> LayerTable:
        shapes, named = shapes_of(inputs, axis)
        if named:
            shapes = in_order(file, self.session_settings("cpu").open(file.path), shapes, named)
        return count_file(file, shapes, formulas)


# ---------------------------------------------------------------------------------------------------------------
# Counts of a file: a row for each of its operators, by the layer that the converter's names tell
# ---------------------------------------------------------------------------------------------------------------

VIEWS = ("RESHAPE", "SQUEEZE", "EXPAND_DIMS")
"""Operators whose output has the memory of their input."""


def count_file(file: TfliteFile, shapes: Sequence[tuple[int, ...]], formulas: Formulas = DEFAULTS) -> LayerTable:
    """Return the operators of the file for inputs of these shapes.

    Parameters are the constants that stand for real numbers, once each, as the file has them: after the converter has folded
    batch normalisation into the weights before it. A file does not say which of them learned; all count as trainable.
    """
    graph, method = read(file.path), "shapes"
    if [tensor.shape for tensor in graph.inputs] != [tuple(shape) for shape in shapes]:
        graph, method = read(file.path, _shapes_of_forward(file, shapes)), "real forward: the file leaves sizes open"
    inputs, outputs = described(graph.inputs), described(graph.outputs)
    root = layer_row(ROOT, "tflite", Weights(), NOTHING, inputs, outputs, is_leaf=False)
    rows, uncovered, calls = [root], Counter[str](), Counter[str]()
    known: set[TfliteTensor] = set()
    variables: list[Variable] = []
    for operator in graph.operators:
        made = operator.outputs  # none where an operator only writes to a variable
        if made and made[0].source is not None:
            continue
        cost = cost_of(operator, formulas)
        if cost is None:
            uncovered[operator.op] += 1
            cost = NOTHING
        given = [tensor for tensor in operator.inputs if tensor is not None and not tensor.is_constant]
        own = _new_weights(operator, known)
        variables += own
        row = layer_row(operator.path, operator.op, summed(own), cost, described(given), described(made), is_leaf=True)
        row.call, row.parent = calls[operator.path], 0
        elements = [sum(tensor.elements for tensor in tensors[:1]) for tensors in (given, made)]
        row.operators = (OperatorCount(operator.op, 1, *cost, *elements),)
        calls[operator.path] += 1
        rows.append(row)
    root.subtree = summed(variables)
    return LayerTable(tuple(rows), dict(uncovered), method, len(graph.operators), liveness(graph, VIEWS))


def _shapes_of_forward(file: TfliteFile, shapes: Sequence[tuple[int, ...]]) -> dict[int, tuple[int, ...]]:
    """Return the shapes after a forward on zeros, by the position of a tensor: a file for any batch computes some itself."""
    interpreter = InterpreterSettings(xnnpack=False).open(file.path)
    sized(interpreter, list(shapes))
    for detail in inputs_of(interpreter):
        interpreter.set_tensor(detail["index"], np.zeros_like(interpreter.get_tensor(detail["index"])))
    interpreter.invoke()
    return {detail["index"]: tuple(map(int, detail["shape"])) for detail in interpreter.get_tensor_details()}


def _new_weights(operator: TfliteOperator, known: set[TfliteTensor]) -> list[Variable]:
    """Return the parameters that this operator, or what it runs, is the first to read."""
    found = []
    for body in operator.bodies:
        for inner in body.operators:
            found += _new_weights(inner, known)
    inputs = list(operator.inputs)
    if operator.op == "WHILE":  # those that every iteration is given, and not the first state of a network
        body = operator.bodies[-1]
        states = zip(inputs, body.inputs, body.outputs, strict=True)
        inputs = [given for given, before, after in states if before is after]
    for tensor in inputs:
        if tensor is None:
            continue
        stored = tensor.source or tensor
        if stored.is_constant and stored.numbers is REAL and stored not in known:
            known.add(stored)
            found.append(Variable(stored, stored.elements, stored.itemsize, stored.dtype, True, False))
    return found


TfliteRule = Callable[[TfliteOperator], OperatorCost]

RULES: dict[str, TfliteRule] = file_graph.by_name(
    {
        "ADD SUB POW ABS NEG MAXIMUM MINIMUM SQUARE FLOOR CEIL ROUND SIGN FLOOR_DIV FLOOR_MOD": partial(
            file_graph.elementwise, "arithmetic"
        ),
        "MUL": partial(file_graph.elementwise, "multiply"),
        "DIV": partial(file_graph.elementwise, "divide"),
        "SQRT EXP LOG SIN COS": partial(file_graph.elementwise, "function"),
        "RELU": partial(file_graph.elementwise, "relu"),
        "RELU6 RELU_N1_TO_1 RELU_0_TO_1": partial(file_graph.elementwise, "hardtanh"),
        "TANH": partial(file_graph.elementwise, "tanh"),
        "LOGISTIC": partial(file_graph.elementwise, "sigmoid"),
        "LEAKY_RELU PRELU": partial(file_graph.elementwise, "leaky_relu"),
        "ELU": partial(file_graph.elementwise, "elu"),
        "HARD_SWISH": partial(file_graph.elementwise, "hardswish"),
        "RSQRT": partial(file_graph.elementwise, "rsqrt"),
        "SQUARED_DIFFERENCE": partial(file_graph.elementwise, "squared_difference"),
        "RESIZE_BILINEAR": partial(file_graph.elementwise, "bilinear"),
        # Weights (out, in): over every leading axis of the input.
        "FULLY_CONNECTED": partial(file_graph.matmul, inner=1, bias=2),
        "BATCH_MATMUL": partial(file_graph.matmul, transposed="adjX"),
        "CONV_2D": partial(file_graph.convolution, first=1),  # weights (out, height, width, in/groups)
        "CONV_3D": partial(file_graph.convolution, first=0, end=-1),  # weights (depth, height, width, in, out)
        "DEPTHWISE_CONV_2D": partial(file_graph.convolution, first=1, end=3),  # weights (1, height, width, out)
        # Inputs are (output shape, weights, values, bias); weights (out, height, width, in) or (depth, …, out, in).
        "TRANSPOSE_CONV CONV_3D_TRANSPOSE": partial(
            file_graph.transposed_convolution, first=0, end=-1, given=2, bias=3
        ),
        "AVERAGE_POOL_2D": partial(file_graph.average_pool, window=("filterWidth", "filterHeight")),
        "MAX_POOL_2D": file_graph.max_pool,
        "SOFTMAX": file_graph.softmax,
        "LOG_SOFTMAX": file_graph.log_softmax,
        "GELU": partial(file_graph.gelu, "approximate"),
        "SUM REDUCE_MAX REDUCE_MIN": partial(file_graph.reduction, "sum"),
        "MEAN": partial(file_graph.reduction, "mean"),
    }
)


def cost_of(call: TfliteOperator, formulas: Formulas = DEFAULTS) -> OperatorCost | None:
    """Return the cost of one call with the activation that is fused into it; None where it is not known."""
    own = cost_by(call, formulas, NAMESPACE, RULES, FREE)
    if own is None or not call.activation:
        return own
    if call.activation not in RULES:
        return None
    return added(own, RULES[call.activation](call))


FREE = frozenset(
    """
    RESHAPE SQUEEZE EXPAND_DIMS TRANSPOSE CONCATENATION PACK UNPACK SLICE STRIDED_SLICE SPLIT SPLIT_V PAD PADV2 MIRROR_PAD SHAPE
    RANK FILL TILE GATHER GATHER_ND SCATTER_ND CAST BITCAST DEQUANTIZE QUANTIZE BROADCAST_TO BROADCAST_ARGS ARG_MAX ARG_MIN
    EQUAL NOT_EQUAL LESS LESS_EQUAL GREATER GREATER_EQUAL LOGICAL_AND LOGICAL_OR LOGICAL_NOT SELECT SELECT_V2 WHERE RANGE
    SPACE_TO_BATCH_ND BATCH_TO_SPACE_ND SPACE_TO_DEPTH DEPTH_TO_SPACE REVERSE_V2 REVERSE_SEQUENCE ZEROS_LIKE ONE_HOT TOPK_V2
    EMBEDDING_LOOKUP RESIZE_NEAREST_NEIGHBOR MATRIX_DIAG MATRIX_SET_DIAG DYNAMIC_UPDATE_SLICE REDUCE_ALL REDUCE_ANY
    CALL_ONCE VAR_HANDLE READ_VARIABLE ASSIGN_VARIABLE NON_MAX_SUPPRESSION_V4 NON_MAX_SUPPRESSION_V5 UNIQUE BUCKETIZE
    MULTINOMIAL RANDOM_UNIFORM RANDOM_STANDARD_NORMAL RIGHT_SHIFT BITWISE_XOR
    """.split()
)
"""Operators that move or compare, and compute nothing."""
