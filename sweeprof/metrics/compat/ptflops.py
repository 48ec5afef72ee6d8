"""ptflops 0.7.5, by modules and functionals (backend pytorch) and by operators (backend aten)."""

from __future__ import annotations

from collections.abc import Iterator

from sweeprof.metrics.compat.calls import (
    BATCH_NORM_TYPES,
    CONV_TYPES,
    POOL_TYPES,
    POOLS,
    RECURRENT_TYPES,
    UPSAMPLE_TYPES,
    UPSAMPLES,
    biases,
    calls,
    convention,
    is_affine,
    kind,
    operators,
    per_sample,
    returned,
    scores,
    types,
)
from sweeprof.metrics.compat.flops_profiler import cells
from sweeprof.results.layers import LayerRow, LayerTable, OperatorCount
from sweeprof.results.measurement import Number

_RELU_TYPES = types("ReLU PReLU ELU LeakyReLU ReLU6 GELU")
_NORM_TYPES = BATCH_NORM_TYPES | types("InstanceNorm#d GroupNorm")
_FUNCTIONALS = POOLS | {"relu", "prelu", "elu", "relu6", "gelu", "silu", "softmax"}
_ATTENTION = "MultiheadAttention"
_WHOLE = frozenset({"Linear", _ATTENTION})


@convention(name="ptflops")
def ptflops(layers: LayerTable, count_functional: bool = True) -> Number:
    """Return ptflops's MACs: products with biases, activations, pools and norms of modules, and functionals again.

    A module is counted by its exact type: MACs and biases of convolutions, linear layers, recurrent networks and
    MultiheadAttention; 1 an element of ReLU's family, GELU, pooling, upsampling and LayerNorm; 2 of the other norms, 1 without
    an affine transform. With ``count_functional``, as by default, whatever goes through ``torch.nn.functional`` counts too,
    and so again where a module calls it: 1 an element of relu, prelu, elu, gelu, silu, softmax, pools and upsampling, and
    products outside linear layers. Modules are per sample, functionals for the whole batch.
    """
    modules = sum(_of_module(row) for row in calls(layers))
    functionals = sum(map(_of_functional, _free_operators(layers))) if count_functional else 0
    return per_sample(modules, layers) + functionals


def _of_module(row: LayerRow) -> int:
    if row.type in UPSAMPLE_TYPES:
        return returned(row)
    if row.type == _ATTENTION:
        return sum(map(_of_attention, row.operators))
    total = 0
    for operator in row.operators:
        if row.type in CONV_TYPES or row.type == "Linear":
            total += operator.macs + biases(operator)
        elif row.type in _RELU_TYPES:
            total += operator.outputs
        elif row.type in POOL_TYPES or row.type == "LayerNorm":
            total += operator.inputs
        elif row.type in _NORM_TYPES:
            total += (2 if is_affine(operator) else 1) * operator.inputs
        elif row.type in RECURRENT_TYPES and kind(operator) == "recurrent":
            total += cells(row, operator)
    return total


def _of_attention(operator: OperatorCount) -> int:
    """Projections with biases, the scaling of the query, both products and the softmax."""
    match kind(operator):
        case "attention":
            return operator.inputs + operator.macs + scores(operator)
        case "linear" | "matmul" | "baddbmm":
            return operator.macs + biases(operator)
        case "softmax" | "mul":
            return operator.outputs
    return 0


def _free_operators(layers: LayerTable) -> Iterator[OperatorCount]:
    """Operators that may be a call of a functional: not those of layers that are counted as a whole."""
    return (operator for row in calls(layers) if row.type not in _WHOLE for operator in row.operators)


def _of_functional(operator: OperatorCount) -> int:
    name = kind(operator)
    if name in ("matmul", "baddbmm"):
        return operator.macs + biases(operator)
    if name in UPSAMPLES:
        return operator.outputs
    return operator.inputs if name in _FUNCTIONALS else 0


_ATEN_PRODUCTS = frozenset({"convolution", "linear", "matmul"})


@convention(name="ptflops_aten")
def ptflops_aten(layers: LayerTable) -> int:
    """Return ptflops's MACs by operators: convolutions, linear layers and matrix products, with their biases.

    All else is nothing, attention in one kernel and recurrent networks too, as on a CPU.
    """
    counted = (operator for operator in operators(layers) if kind(operator) in _ATEN_PRODUCTS)
    return sum(operator.macs + biases(operator) for operator in counted)
