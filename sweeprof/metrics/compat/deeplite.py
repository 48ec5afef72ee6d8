"""deeplite-profiler: release 1.1 (D1), whose figures its documentation prints, and release 1.2 (D2)."""

from __future__ import annotations

from sweeprof.metrics.compat.calls import (
    BATCH_NORM_TYPES,
    CONV_TYPES,
    NORMS,
    POOL_TYPES,
    UPSAMPLE_TYPES,
    biases,
    convention,
    given,
    is_affine,
    kind,
    last_calls,
    operators,
    per_sample,
    returned,
    types,
)
from sweeprof.results.layers import LayerRow, LayerTable
from sweeprof.results.measurement import Number

_RELU_TYPES = types("ReLU PReLU ELU LeakyReLU ReLU6")
_CONTAINERS = types("Sequential ModuleList")
_PRODUCTS = frozenset({"convolution", "linear", "matmul", "baddbmm"})
_OUTPUTS = frozenset("convolution avg_pool adaptive_avg_pool mean mul relu leaky_relu relu6 prelu elu".split())


@convention(name="d1")
def d1(layers: LayerTable) -> Number:
    """Deeplite 1.1's complexity per sample: MACs with biases, 2 an element of batch norm, 1 of pooling and ReLU's family.

    Of modules by their exact type, and of each its last call; functionals are nothing. The bias of a linear layer counts once a
    call, however many rows there are. Batch norm without an affine transform is 1 an element, upsampling 1 an output.
    """
    return per_sample(sum(_d1(row) for row in last_calls(layers)), layers)


def _d1(row: LayerRow) -> int:
    if row.type in UPSAMPLE_TYPES:
        return returned(row)
    total = 0
    for operator in row.operators:
        if row.type in CONV_TYPES:
            total += operator.macs + biases(operator)
        elif row.type == "Linear":
            total += operator.macs + (row.output_shapes[0][-1] if biases(operator) else 0)
        elif row.type in BATCH_NORM_TYPES:
            total += (2 if is_affine(operator) else 1) * operator.inputs
        elif row.type in POOL_TYPES:
            total += operator.inputs
        elif row.type in _RELU_TYPES:
            total += operator.outputs
    return total


@convention(name="d1_footprint_bytes", unit="B")
def d1_footprint_bytes(layers: LayerTable, include_weights: bool = True) -> Number:
    """Deeplite 1.1's footprint: 4 bytes a trainable parameter, an input element, and an element that any module returned.

    Of each module its last call, per sample, and but for Sequential and ModuleList: a block's output counts again on top of its
    last layer's, and the model's on top of both.
    """
    made = per_sample(4 * sum(returned(row) for row in last_calls(layers) if row.type not in _CONTAINERS), layers)
    weights = layers.trainable if include_weights else 0
    return made + 4 * (weights + given(layers))


@convention(name="d2")
def d2(layers: LayerTable) -> int:
    """Deeplite 1.2's complexity: MACs, and 1 an element of convolutions' outputs, norms, pooling, ReLU's family and products.

    Of the operators of a trace, for the whole batch. What counts is an element of the output, but of max pooling the input. The
    output of a convolution counts with or without a bias, the bias of a linear layer never. Norms without an affine transform
    are nothing, bilinear upsampling is 4 an output, a mean and an elementwise product 1. Attention in one kernel, softmax, other
    activations, additions and recurrent networks are nothing.
    """
    total = 0
    for operator in operators(layers):
        name = kind(operator)
        if name in _PRODUCTS:
            total += operator.macs
        if name in _OUTPUTS or (name in NORMS and is_affine(operator)):
            total += operator.outputs
        elif name == "max_pool":
            total += operator.inputs
        elif name == "bilinear_upsample":
            total += 4 * operator.outputs
    return total
