"""pytorch-profiler (F1) and its successor flops-profiler 0.1.2 (F2)."""

from __future__ import annotations

from sweeprof.metrics.compat.calls import (
    NORMS,
    POOLS,
    UPSAMPLES,
    biases,
    convention,
    kind,
    last_calls,
    leaves,
    operators,
    recurrent,
)
from sweeprof.results.layers import LayerRow, LayerTable, OperatorCount

_PRODUCTS = frozenset({"convolution", "linear", "matmul", "baddbmm", "recurrent"})
_RELUS = frozenset({"relu", "prelu", "elu", "leaky_relu", "relu6"})
_CELL_OPERATIONS = {1: 1, 3: 7, 4: 10}
"""What F1 and ptflops add for each hidden unit of a cell, by its gates."""


@convention(name="f1")
def f1(layers: LayerTable) -> int:
    """Return pytorch-profiler's count: MACs, biases of convolutions, 1 an element of pools, ReLUs and softmax, 2 of batch norm.

    Of modules that hold no other, and of each its last call: what runs in a container or in the model itself is nothing, and so
    are biases of linear layers, other norms and other activations.
    """
    inner = leaves(layers)
    rows = (row for row in last_calls(layers) if row.path in inner)
    return sum(_f1(row, operator) for row in rows for operator in row.operators)


def _f1(row: LayerRow, operator: OperatorCount) -> int:
    name = kind(operator)
    if name == "convolution":
        return operator.macs + biases(operator)
    if name == "linear":
        return operator.macs
    if name == "recurrent":
        return cells(row, operator)
    if name == "batch_norm":
        return 2 * operator.inputs
    return operator.inputs if name in POOLS | _RELUS | UPSAMPLES or name == "softmax" else 0


def cells(row: LayerRow, operator: OperatorCount) -> int:
    """MACs, both biases and what a cell does with its gates, as F1 and ptflops count a recurrent network."""
    found = recurrent(row, operator)
    return found.macs + found.biases + _CELL_OPERATIONS[found.gates] * found.units


@convention(name="f2")
def f2(layers: LayerTable) -> int:
    """Return flops-profiler's MACs: those of convolutions, matrix products and recurrent networks.

    Attention in one kernel is nothing.
    """
    return sum(operator.macs for operator in operators(layers) if kind(operator) in _PRODUCTS)


@convention(name="f2_flops", unit="FLOP")
def f2_flops(layers: LayerTable) -> int:
    """Return flops-profiler's FLOPs: 2 a MAC, biases but a linear layer's, 1 to 5 an element of norms and 1 of most others.

    Norms are 2 an element in inference, 5 for those that compute statistics, one less without an affine transform; pools 1 an
    input; ReLU's family, GELU, SiLU, softmax and upsampling 1 an output. Additions and multiplications are nothing: flops-profiler
    sees ``torch.add(x, y)`` but not ``x + y``, which are one operator here, and the second is what models write.
    """
    return sum(_f2_flops(operator) for operator in operators(layers))


_ONE_EACH = POOLS | _RELUS | frozenset({"gelu", "silu", "softmax"})


def _f2_flops(operator: OperatorCount) -> int:
    name = kind(operator)
    if name in ("linear", "matmul"):
        return 2 * operator.macs
    if name in _PRODUCTS or name in NORMS:
        return operator.flops
    if name in UPSAMPLES:
        return operator.outputs
    return operator.inputs if name in _ONE_EACH else 0
