"""Profilers that count modules by their type: torchinfo 1.8, thop 0.1.1 and moduleprofiler 0.0.4."""

from __future__ import annotations

from math import prod

from sweeprof.metrics.compat.calls import (
    BATCH_NORM_TYPES,
    CONV_TYPES,
    RECURRENT_TYPES,
    UPSAMPLE_TYPES,
    biases,
    calls,
    convention,
    is_affine,
    kind,
    last_calls,
    leaves,
    recurrent,
    returned,
    types,
)
from sweeprof.results.layers import LayerRow, LayerTable, OperatorCount

_AS_COUNTED = types(
    "Linear Conv1d Conv2d ConvTranspose1d ConvTranspose2d GRUCell GRU LSTMCell LSTM LayerNorm AvgPool1d AvgPool2d",
    "AdaptiveMaxPool1d MaxPool1d MaxPool2d ReLU LeakyReLU ELU PReLU SELU Sigmoid Softmax Softplus Tanh",
)
"""Types for which moduleprofiler's formula and the table of docs/counting.md say the same."""


@convention(name="torchinfo")
def torchinfo(layers: LayerTable) -> int:
    """Return torchinfo's mult-adds: for each layer without children, its parameters times the positions that use them.

    For a convolution that is its MACs and biases; for a recurrent network parameters times samples times steps; for any other
    layer, linear ones too, parameters times the batch size, whatever axes are between. What has no parameters is nothing.
    """
    inner = leaves(layers)
    return sum(_torchinfo(row) for row in calls(layers) if row.path in inner)


def _torchinfo(row: LayerRow) -> int:
    if "Conv" in row.type:
        return sum(operator.macs + biases(operator) for operator in row.operators if kind(operator) == "convolution")
    params = row.params if row.subtree is None else row.subtree.params
    shape = row.output_shapes[0] if row.output_shapes else ()
    return params * prod(shape[: 2 if row.type in RECURRENT_TYPES else 1])


_THOP_NORMS = BATCH_NORM_TYPES | types("InstanceNorm#d LayerNorm SyncBatchNorm")
_THOP_ADAPTIVE = types("AdaptiveAvgPool#d")
_THOP_AVERAGE = types("AvgPool#d")
_THOP_UPSAMPLE = {"linear_upsample": 5, "bilinear_upsample": 11, "trilinear_upsample": 31, "bicubic_upsample": 259}
_THOP_CELL = {1: 0, 3: 4, 4: 4}
"""What thop adds for each hidden unit of a cell beside its gates, by how many these are."""


@convention(name="thop")
def thop(layers: LayerTable) -> int:
    """Return thop's MACs: convolutions and linear layers without biases, 4 an element of norms, and some of pooling and softmax.

    Of modules by their exact type. Norms without an affine transform 2 an element, PReLU 1, Softmax 3n - 1 a row of n, average
    pooling 1 an output, adaptive one as many as its window has and 1 more, upsampling 1 (nearest), 5, 11, 31 or 259 an output.
    """
    return sum(_thop(row) for row in calls(layers))


def _thop(row: LayerRow) -> int:
    total = sum(_thop_operator(row, operator) for operator in row.operators)
    if row.type in UPSAMPLE_TYPES:
        return max((_THOP_UPSAMPLE.get(kind(operator), 1) for operator in row.operators), default=1) * returned(row)
    return total


def _thop_operator(row: LayerRow, operator: OperatorCount) -> int:
    cost = 0
    if row.type in CONV_TYPES or row.type == "Linear":
        cost = operator.macs
    elif row.type in _THOP_NORMS:
        cost = (4 if is_affine(operator) else 2) * operator.inputs
    elif row.type == "Softmax":  # 4n - 1 operations a row, of which the subtraction of the maximum is not thop's
        cost = operator.ops - operator.inputs
    elif row.type in _THOP_AVERAGE or row.type == "PReLU":
        cost = operator.outputs
    elif row.type in _THOP_ADAPTIVE:
        cost = (operator.inputs // operator.outputs + 1) * operator.outputs
    elif row.type in RECURRENT_TYPES and kind(operator) == "recurrent":
        found = recurrent(row, operator)
        cost = found.macs + found.biases + (found.gates + _THOP_CELL[found.gates]) * found.units
    return cost


@convention(name="moduleprofiler", unit="op")
def moduleprofiler(layers: LayerTable) -> int:
    """Return moduleprofiler's operations over all layers it has a formula for: multiplications and additions separately.

    Of modules by their exact type, and of each its last call; functionals are nothing. Batch norm is counted as in training, in
    inference too: 7n + 4 for n elements of a channel, 5n + 4 without an affine transform. AdaptiveAvgPool2d is 1 an output.
    """
    return sum(_moduleprofiler(row) for row in last_calls(layers))


def _moduleprofiler(row: LayerRow) -> int:
    if row.type in ("BatchNorm1d", "BatchNorm2d"):
        return sum(
            (7 if is_affine(operator) else 5) * operator.inputs + 4 * row.input_shapes[0][1]
            for operator in row.operators
        )
    if row.type == "AdaptiveAvgPool2d":
        return returned(row)
    return sum(operator.ops for operator in row.operators) if row.type in _AS_COUNTED else 0
