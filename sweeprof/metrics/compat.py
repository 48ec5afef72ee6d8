"""The figures of other profilers, computed from the same count by their published conventions, one metric each.

Figures of different profilers for one model differ because they count different things, not because one is wrong; these metrics
follow each one's definition, so that a published table can be reproduced. A profiler's errors are not reproduced: a module that
several parents share counts once a call, a transposed convolution by its input positions, broadcast products by what they
compute, and ``@`` is a product like any other. docs/counting.md lists where these figures differ from the programs'.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from math import prod
from typing import NamedTuple

from sweeprof.metrics.metric import Metric, Missing, Result, metric
from sweeprof.results.layer_times import ROOT
from sweeprof.results.layers import LayerRow, LayerTable, OperatorCount
from sweeprof.results.measurement import Number

_KINDS = """
convolution: conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d convolution _convolution
linear: linear addmm
matmul: matmul mm bmm
baddbmm: baddbmm
attention: scaled_dot_product_attention _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention
attention: _scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention
batch_norm: batch_norm native_batch_norm _native_batch_norm_legit_no_training cudnn_batch_norm
layer_norm: layer_norm native_layer_norm
group_norm: group_norm native_group_norm
instance_norm: instance_norm
avg_pool: avg_pool1d avg_pool2d avg_pool3d
adaptive_avg_pool: adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d _adaptive_avg_pool2d _adaptive_avg_pool3d
max_pool: max_pool1d max_pool2d max_pool3d max_pool2d_with_indices max_pool3d_with_indices
adaptive_max_pool: adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d
softmax: softmax _softmax
prelu: prelu _prelu_kernel
nearest: upsample_nearest1d upsample_nearest2d upsample_nearest3d
linear_upsample: upsample_linear1d
bilinear_upsample: upsample_bilinear2d
bicubic_upsample: upsample_bicubic2d
trilinear_upsample: upsample_trilinear3d
recurrent: lstm gru rnn_tanh rnn_relu lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell
"""
KINDS = {
    name: kind for kind, _, names in (line.partition(": ") for line in _KINDS.split("\n")) for name in names.split()
}
"""Kind of an operator by its name, which differs between a count over shapes and one in a real forward."""

UPSAMPLES = frozenset(kind for kind in KINDS.values() if kind == "nearest" or kind.endswith("_upsample"))
POOLS = frozenset({"avg_pool", "adaptive_avg_pool", "max_pool", "adaptive_max_pool"})
NORMS = frozenset({"batch_norm", "layer_norm", "group_norm", "instance_norm"})


def types(*templates: str) -> frozenset[str]:
    """Class names, with ``#`` standing for 1, 2 and 3: ``Conv#d`` is Conv1d, Conv2d and Conv3d."""
    return frozenset(name.replace("#", size) for names in templates for name in names.split() for size in "123")


CONV_TYPES = types("Conv#d ConvTranspose#d")
BATCH_NORM_TYPES = types("BatchNorm#d")
POOL_TYPES = types("MaxPool#d AvgPool#d AdaptiveMaxPool#d AdaptiveAvgPool#d")
UPSAMPLE_TYPES = types("Upsample UpsamplingBilinear2d UpsamplingNearest2d")
RECURRENT_TYPES = types("RNN GRU LSTM RNNCell GRUCell LSTMCell")


def convention(*, name: str, unit: str = "MAC") -> Callable[[Callable[..., Number]], Metric]:
    """Register a function of a LayerTable as the metric ``compat/<name>``, of which neither more nor less is better.

    A table that tells no operators of PyTorch makes no value; other frameworks' have the framework before their names.
    """

    def register(function: Callable[..., Number]) -> Metric:
        @wraps(function)
        def guarded(layers: LayerTable, **options: object) -> Result:
            if layers.macs and not any("::" not in operator.name for operator in operators(layers)):
                return Missing(
                    "the conventions are those of profilers of PyTorch, and this backend runs no operators of it"
                )
            return function(layers=layers, **options)

        return metric(name=f"compat/{name}", unit=unit, better=None)(guarded)

    return register


def kind(operator: OperatorCount) -> str:
    """Kind of the operator, or its name where there is none."""
    return KINDS.get(operator.name, operator.name)


def calls(layers: LayerTable) -> Iterator[LayerRow]:
    """Every call of a module, and what runs outside any."""
    return (row for row in layers.rows if row.call >= 0)


def last_calls(layers: LayerTable) -> list[LayerRow]:
    """The last call of each module; a profiler whose hooks overwrite a module's record sees no other."""
    return list({row.path: row for row in calls(layers)}.values())


def leaves(layers: LayerTable) -> frozenset[str]:
    """Paths of the modules that hold no other module."""
    paths = {row.path for row in layers.rows}
    above = {path[:end] for path in paths for end, letter in enumerate(path) if letter == "."}
    return frozenset(paths - above - ({ROOT} if len(paths) > 1 else set()))


def operators(layers: LayerTable) -> Iterator[OperatorCount]:
    """Every operator of every call."""
    return (operator for row in calls(layers) for operator in row.operators)


def biases(operator: OperatorCount) -> int:
    """Biases that a product or a convolution adds: what its FLOPs are above two a multiply-accumulate."""
    return operator.flops - 2 * operator.macs


def is_affine(operator: OperatorCount) -> bool:
    """True if a norm scales and shifts: 2 FLOPs an element instead of 1 in inference, 5 instead of 4 in training."""
    return operator.flops in (2 * operator.inputs, 5 * operator.inputs)


def scores(operator: OperatorCount) -> int:
    """Elements of ``q kᵀ`` in attention.

    Beside two a multiply-accumulate its FLOPs are one for scaling, one for the softmax and one for a mask, of each score. Its
    operations tell how many rows there are, and with them which of both cases agrees with its multiply-accumulates.
    """
    extra = operator.flops - 2 * operator.macs
    beside = operator.ops - 2 * operator.macs + operator.outputs
    for each in (2, 3):
        elements = extra // each
        rows = (each + 2) * elements - beside
        if rows > 0 and elements * (operator.inputs + operator.outputs) == operator.macs * rows:
            return elements
    return extra // 2


def returned(row: LayerRow) -> int:
    """Elements of every tensor that the call returned."""
    return sum(prod(shape) for shape in row.output_shapes)


def _given(layers: LayerTable) -> tuple[int, ...]:
    """Shape of the model's first input."""
    shapes = next((row.input_shapes for row in layers.rows if row.path == ROOT), ())
    return shapes[0] if shapes else ()


def given(layers: LayerTable) -> int:
    """Elements of the model's first input."""
    return prod(_given(layers))


def batch_size(layers: LayerTable) -> int:
    """First size of the model's first input; 1 where there is none."""
    return next(iter(_given(layers)), 1)


def per_sample(total: int, layers: LayerTable) -> Number:
    """The total over the batch size."""
    whole, rest = divmod(total, batch_size(layers))
    return total / batch_size(layers) if rest else whole


class Recurrent(NamedTuple):
    """A recurrent network's call: one cell per time step, sample, layer and direction."""

    macs: int
    biases: int
    """Bias elements added, both vectors of each gate."""
    units: int
    """Hidden units computed, over all cells."""
    gates: int


_GATES = {"lstm": (4, 13), "gru": (3, 11), "rnn": (1, 2)}
"""Gates, and FLOPs of a hidden unit beside its products and biases (sweeprof/backends/torch/costs.py)."""


def recurrent(row: LayerRow, operator: OperatorCount) -> Recurrent:
    """Takes apart what one row's recurrent operator counted, by how many parameters the module has."""
    gates, each = _GATES[operator.name.partition("_")[0]]
    steps = operator.inputs // row.input_shapes[0][-1]
    params = row.subtree.params if row.subtree is not None else row.params
    added = max(0, params - operator.macs // steps) * steps
    return Recurrent(operator.macs, added, (biases(operator) - added) // each, gates)


# Profilers that count modules by their type: torchinfo 1.8 and moduleprofiler 0.0.4.

_MODULEPROFILER_TYPES = types(
    "Linear Conv1d Conv2d ConvTranspose1d ConvTranspose2d GRUCell GRU LSTMCell LSTM LayerNorm AvgPool1d AvgPool2d",
    "AdaptiveMaxPool1d MaxPool1d MaxPool2d ReLU LeakyReLU ELU PReLU SELU Sigmoid Softmax Softplus Tanh",
)
"""Types for which moduleprofiler's formula and the table of docs/counting.md say the same."""


@convention(name="torchinfo")
def torchinfo(layers: LayerTable) -> int:
    """Mult-adds of torchinfo: for each layer without children, its parameters times the positions that use them.

    For a convolution that is its MACs and biases; for a recurrent network parameters times samples times steps; for any other
    layer, linear ones too, parameters times the batch size, whatever axes are between. What has no parameters is nothing.
    """
    inner = leaves(layers)
    total = 0
    for row in calls(layers):
        if row.path in inner and "Conv" in row.type:
            convolutions = [operator for operator in row.operators if kind(operator) == "convolution"]
            total += sum(operator.macs + biases(operator) for operator in convolutions)
        elif row.path in inner:
            params = row.params if row.subtree is None else row.subtree.params
            shape = row.output_shapes[0] if row.output_shapes else ()
            total += params * prod(shape[: 2 if row.type in RECURRENT_TYPES else 1])
    return total


@convention(name="moduleprofiler", unit="op")
def moduleprofiler(layers: LayerTable) -> int:
    """Operations of moduleprofiler over all layers it has a formula for: multiplications and additions separately.

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
    return sum(operator.ops for operator in row.operators) if row.type in _MODULEPROFILER_TYPES else 0


# deeplite-profiler: release 1.1 (D1), whose figures its documentation prints, and release 1.2 (D2).

_DEEPLITE_RELU_TYPES = types("ReLU PReLU ELU LeakyReLU ReLU6")
_DEEPLITE_CONTAINERS = types("Sequential ModuleList")
_DEEPLITE_PRODUCTS = frozenset({"convolution", "linear", "matmul", "baddbmm"})
_DEEPLITE_OUTPUTS = frozenset("convolution avg_pool adaptive_avg_pool mean mul relu leaky_relu relu6 prelu elu".split())


@convention(name="d1")
def d1(layers: LayerTable) -> Number:
    """Deeplite 1.1's complexity per sample: MACs with biases, 2 an element of batch norm, 1 of pooling and ReLU's family.

    Of modules by their exact type, and of each its last call; functionals are nothing. The bias of a linear layer counts once a
    call, however many rows there are. Batch norm without an affine transform is 1 an element, upsampling 1 an output. A module
    counts the ``flops`` of its ``compute_module_complexity``.
    """
    return per_sample(sum(_d1(row) for row in last_calls(layers)), layers)


def _d1(row: LayerRow) -> int:
    if row.declared_flops is not None:
        return row.declared_flops
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
        elif row.type in _DEEPLITE_RELU_TYPES:
            total += operator.outputs
    return total


@convention(name="d1_footprint_bytes", unit="B")
def d1_footprint_bytes(layers: LayerTable, include_weights: bool = True) -> Number:
    """Deeplite 1.1's footprint: 4 bytes a trainable parameter, an input element, and an element that any module returned.

    Of each module its last call, per sample, and but for Sequential and ModuleList: a block's output counts again on top of its
    last layer's, and the model's on top of both.
    """
    made = per_sample(
        4 * sum(returned(row) for row in last_calls(layers) if row.type not in _DEEPLITE_CONTAINERS), layers
    )
    weights = layers.trainable if include_weights else 0
    return made + 4 * (weights + given(layers))


@convention(name="d2")
def d2(layers: LayerTable) -> int:
    """Deeplite 1.2's complexity: MACs, and 1 an element of convolutions' outputs, norms, pooling, ReLU's family and products.

    Of the operators of a trace, for the whole batch. What counts is an element of the output, but of max pooling the input. The
    output of a convolution counts with or without a bias, the bias of a linear layer never. Norms without an affine transform
    are nothing, bilinear upsampling is 4 an output, a mean and an elementwise product 1. Attention in one kernel, softmax, other
    activations, additions and recurrent networks are nothing. A module counts the ``flops`` of its ``compute_module_complexity``.
    """
    return sum(map(_d2, calls(layers)))


def _d2(row: LayerRow) -> int:
    if row.declared_flops is not None:
        return row.declared_flops
    total = 0
    for operator in row.operators:
        name = kind(operator)
        if name in _DEEPLITE_PRODUCTS:
            total += operator.macs
        if name in _DEEPLITE_OUTPUTS or (name in NORMS and is_affine(operator)):
            total += operator.outputs
        elif name == "max_pool":
            total += operator.inputs
        elif name == "bilinear_upsample":
            total += 4 * operator.outputs
    return total


# pytorch-profiler (F1) and its successor flops-profiler 0.1.2 (F2).

_F2_PRODUCTS = frozenset({"convolution", "linear", "matmul", "baddbmm", "recurrent"})
_F_RELUS = frozenset({"relu", "prelu", "elu", "leaky_relu", "relu6"})
_F1_CELL_OPERATIONS = {1: 1, 3: 7, 4: 10}
"""What F1 and ptflops add for each hidden unit of a cell, by its gates."""


@convention(name="f1")
def f1(layers: LayerTable) -> int:
    """Count of pytorch-profiler: MACs, biases of convolutions, 1 an element of pools, ReLUs and softmax, 2 of batch norm.

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
    return operator.inputs if name in POOLS | _F_RELUS | UPSAMPLES or name == "softmax" else 0


def cells(row: LayerRow, operator: OperatorCount) -> int:
    """MACs, both biases and what a cell does with its gates, as F1 and ptflops count a recurrent network."""
    cell = recurrent(row, operator)
    return cell.macs + cell.biases + _F1_CELL_OPERATIONS[cell.gates] * cell.units


@convention(name="f2")
def f2(layers: LayerTable) -> int:
    """MACs of flops-profiler: those of convolutions, matrix products and recurrent networks.

    Attention in one kernel is nothing.
    """
    return sum(operator.macs for operator in operators(layers) if kind(operator) in _F2_PRODUCTS)


@convention(name="f2_flops", unit="FLOP")
def f2_flops(layers: LayerTable) -> int:
    """FLOPs of flops-profiler: 2 a MAC, biases but a linear layer's, 1 to 5 an element of norms and 1 of most others.

    Norms are 2 an element in inference, 5 for those that compute statistics, one less without an affine transform; pools 1 an
    input; ReLU's family, GELU, SiLU, softmax and upsampling 1 an output. Additions and multiplications are nothing: flops-profiler
    sees ``torch.add(x, y)`` but not ``x + y``, which are one operator here, and the second is what models write.
    """
    return sum(_f2_flops(operator) for operator in operators(layers))


_F2_ONE_EACH = POOLS | _F_RELUS | frozenset({"gelu", "silu", "softmax"})


def _f2_flops(operator: OperatorCount) -> int:
    name = kind(operator)
    if name in ("linear", "matmul"):
        return 2 * operator.macs
    if name in _F2_PRODUCTS or name in NORMS:
        return operator.flops
    if name in UPSAMPLES:
        return operator.outputs
    return operator.inputs if name in _F2_ONE_EACH else 0


# ptflops 0.7.5, by modules and functionals (backend pytorch) and by operators (backend aten).

_PTFLOPS_RELU_TYPES = types("ReLU PReLU ELU LeakyReLU ReLU6 GELU")
_PTFLOPS_NORM_TYPES = BATCH_NORM_TYPES | types("InstanceNorm#d GroupNorm")
_PTFLOPS_FUNCTIONALS = POOLS | {"relu", "prelu", "elu", "relu6", "gelu", "silu", "softmax"}
_PTFLOPS_ATTENTION = "MultiheadAttention"
_PTFLOPS_WHOLE = frozenset({"Linear", _PTFLOPS_ATTENTION})


@convention(name="ptflops")
def ptflops(layers: LayerTable, count_functional: bool = True) -> Number:
    """MACs of ptflops: products with biases, activations, pools and norms of modules, and functionals again.

    A module is counted by its exact type: MACs and biases of convolutions, linear layers, recurrent networks and
    MultiheadAttention; 1 an element of ReLU's family, GELU, pooling, upsampling and LayerNorm; 2 of the other norms, 1 without
    an affine transform. With ``count_functional``, as by default, whatever goes through ``torch.nn.functional`` counts too,
    and so again where a module calls it: 1 an element of relu, prelu, elu, gelu, silu, softmax, pools and upsampling, and
    products outside linear layers. Modules are per sample, functionals for the whole batch.
    """
    modules = sum(_ptflops_of_module(row) for row in calls(layers))
    functionals = sum(map(_ptflops_of_functional, _free_operators(layers))) if count_functional else 0
    return per_sample(modules, layers) + functionals


def _ptflops_of_module(row: LayerRow) -> int:
    if row.type in UPSAMPLE_TYPES:
        return returned(row)
    if row.type == _PTFLOPS_ATTENTION:
        return sum(map(_ptflops_of_attention, row.operators))
    total = 0
    for operator in row.operators:
        if row.type in CONV_TYPES or row.type == "Linear":
            total += operator.macs + biases(operator)
        elif row.type in _PTFLOPS_RELU_TYPES:
            total += operator.outputs
        elif row.type in POOL_TYPES or row.type == "LayerNorm":
            total += operator.inputs
        elif row.type in _PTFLOPS_NORM_TYPES:
            total += (2 if is_affine(operator) else 1) * operator.inputs
        elif row.type in RECURRENT_TYPES and kind(operator) == "recurrent":
            total += cells(row, operator)
    return total


def _ptflops_of_attention(operator: OperatorCount) -> int:
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
    return (operator for row in calls(layers) if row.type not in _PTFLOPS_WHOLE for operator in row.operators)


def _ptflops_of_functional(operator: OperatorCount) -> int:
    name = kind(operator)
    if name in ("matmul", "baddbmm"):
        return operator.macs + biases(operator)
    if name in UPSAMPLES:
        return operator.outputs
    return operator.inputs if name in _PTFLOPS_FUNCTIONALS else 0


_PTFLOPS_ATEN_PRODUCTS = frozenset({"convolution", "linear", "matmul"})


@convention(name="ptflops_aten")
def ptflops_aten(layers: LayerTable) -> int:
    """MACs of ptflops by operators: convolutions, linear layers and matrix products, with their biases.

    All else is nothing, attention in one kernel and recurrent networks too, as on a CPU.
    """
    counted = (operator for operator in operators(layers) if kind(operator) in _PTFLOPS_ATEN_PRODUCTS)
    return sum(operator.macs + biases(operator) for operator in counted)
