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

from sweeprof.metrics.metric import Metric, Missing, Result, metric
from sweeprof.results.layer_times import ROOT, above
from sweeprof.results.layers import LayerRow, LayerTable, OperatorCount
from sweeprof.results.measurement import Number

_OPERATORS: dict[str, tuple[str, ...]] = {
    "convolution": (
        "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "convolution", "_convolution",
    ),
    "linear": ("linear", "addmm"),
    "matmul": ("matmul", "mm", "bmm"),
    "baddbmm": ("baddbmm",),
    "attention": (
        "scaled_dot_product_attention", "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention",
    ),
    "batch_norm": ("batch_norm", "native_batch_norm", "_native_batch_norm_legit_no_training", "cudnn_batch_norm"),
    "layer_norm": ("layer_norm", "native_layer_norm"),
    "group_norm": ("group_norm", "native_group_norm"),
    "instance_norm": ("instance_norm",),
    "avg_pool": ("avg_pool1d", "avg_pool2d", "avg_pool3d"),
    "adaptive_avg_pool": (
        "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "_adaptive_avg_pool2d", "_adaptive_avg_pool3d",
    ),
    "max_pool": ("max_pool1d", "max_pool2d", "max_pool3d", "max_pool2d_with_indices", "max_pool3d_with_indices"),
    "adaptive_max_pool": ("adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d"),
    "softmax": ("softmax", "_softmax"),
    "prelu": ("prelu", "_prelu_kernel"),
    "nearest": ("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d"),
    "linear_upsample": ("upsample_linear1d",),
    "bilinear_upsample": ("upsample_bilinear2d",),
    "bicubic_upsample": ("upsample_bicubic2d",),
    "trilinear_upsample": ("upsample_trilinear3d",),
    "recurrent": ("lstm", "gru", "rnn_tanh", "rnn_relu", "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"),
}  # fmt: skip
KINDS = {name: kind for kind, names in _OPERATORS.items() for name in names}
"""Kind of an operator by its name, which differs between a count over shapes and one in a real forward."""

UPSAMPLES = {"nearest", "linear_upsample", "bilinear_upsample", "bicubic_upsample", "trilinear_upsample"}
POOLS = {"avg_pool", "adaptive_avg_pool", "max_pool", "adaptive_max_pool"}
NORMS = {"batch_norm", "layer_norm", "group_norm", "instance_norm"}


def sized(*names: str) -> set[str]:
    """Return the classes of modules that exist for one, two and three axes: Conv1d, Conv2d and Conv3d for ``Conv``."""
    return {f"{name}{axes}d" for name in names for axes in (1, 2, 3)}


CONV_TYPES = sized("Conv", "ConvTranspose")
BATCH_NORM_TYPES = sized("BatchNorm")
POOL_TYPES = sized("MaxPool", "AvgPool", "AdaptiveMaxPool", "AdaptiveAvgPool")
UPSAMPLE_TYPES = {"Upsample", "UpsamplingBilinear2d", "UpsamplingNearest2d"}
RECURRENT_TYPES = {"RNN", "GRU", "LSTM", "RNNCell", "GRUCell", "LSTMCell"}


def convention(*, name: str, unit: str = "MAC") -> Callable[[Callable[..., Number]], Metric]:
    """Register a function of a LayerTable as the metric ``compat/<name>``, which has no direction.

    It has no value for a table without operators of PyTorch; those of other frameworks have the framework before their names.
    """

    def register(function: Callable[..., Number]) -> Metric:
        @wraps(function)
        def guarded(layers: LayerTable, **options: object) -> Result:
            if layers.macs and all("::" in operator.name for operator in operators(layers)):
                return Missing(
                    "the conventions are those of profilers of PyTorch, and this backend runs no operators of it"
                )
            return function(layers=layers, **options)

        return metric(name=f"compat/{name}", unit=unit, better=None)(guarded)

    return register


def kind(operator: OperatorCount) -> str:
    """Return the kind of the operator, or its name if it has none."""
    return KINDS.get(operator.name, operator.name)


def calls(layers: LayerTable) -> Iterator[LayerRow]:
    """Return every call of a module, and what runs outside any."""
    return (row for row in layers.rows if row.call >= 0)


def last_calls(layers: LayerTable) -> list[LayerRow]:
    """The last call of each module; a profiler whose hooks overwrite a module's record sees no other."""
    return list({row.path: row for row in calls(layers)}.values())


def leaves(layers: LayerTable) -> set[str]:
    """Return the paths of the modules that hold no other module."""
    paths = {row.path for row in layers.rows}
    inner = set(paths)
    for path in paths:
        inner.difference_update(above(path))
    if len(paths) > 1:
        inner.discard(ROOT)
    return inner


def operators(layers: LayerTable) -> Iterator[OperatorCount]:
    """Yield every operator of every call."""
    for row in calls(layers):
        yield from row.operators


def biases(operator: OperatorCount) -> int:
    """Biases that a product or a convolution adds: what its FLOPs are above two a multiply-accumulate."""
    return operator.flops - 2 * operator.macs


def is_affine(operator: OperatorCount) -> bool:
    """True if a norm scales and shifts: 2 FLOPs an element instead of 1 in inference, 5 instead of 4 in training."""
    return operator.flops in (2 * operator.inputs, 5 * operator.inputs)


def scores(operator: OperatorCount) -> int:
    """Elements of ``q kᵀ`` in attention.

    Beside two a multiply-accumulate its FLOPs are one for scaling, one for the softmax and one for a mask, of each score. The
    number of rows follows from its operations, and shows which of the two cases agrees with its multiply-accumulates.
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


def all_params(row: LayerRow) -> int:
    """Return the parameters of a module and of all below it."""
    if row.subtree is None:
        return row.params
    return row.subtree.params


def given_shape(layers: LayerTable) -> tuple[int, ...]:
    """Return the shape of the model's first input; empty if there is none."""
    for row in layers.rows:
        if row.path == ROOT:
            return row.input_shapes[0] if row.input_shapes else ()
    return ()


def per_sample(total: int, layers: LayerTable) -> Number:
    """Return the total over the batch size, the first size of the model's first input."""
    batch_size, *_ = given_shape(layers) or (1,)
    return total / batch_size if total % batch_size else total // batch_size


_GATES = {"lstm": (4, 13), "gru": (3, 11), "rnn": (1, 2)}
"""Gates, and FLOPs of a hidden unit beside its products and biases (sweeprof/backends/torch/costs.py)."""


# torchinfo 1.8 and moduleprofiler 0.0.4, which count modules by their type.

_MODULEPROFILER_TYPES = {
    *("Linear", "Conv1d", "Conv2d", "ConvTranspose1d", "ConvTranspose2d", "GRUCell", "GRU", "LSTMCell", "LSTM"),
    *("LayerNorm", "AvgPool1d", "AvgPool2d", "AdaptiveMaxPool1d", "MaxPool1d", "MaxPool2d", "ReLU", "LeakyReLU"),
    *("ELU", "PReLU", "SELU", "Sigmoid", "Softmax", "Softplus", "Tanh"),
}
"""Types for which moduleprofiler's formula and the table of docs/counting.md agree."""


@convention(name="torchinfo")
def torchinfo(layers: LayerTable) -> int:
    """Mult-adds of torchinfo: for each layer without children, its parameters times the positions that use them.

    For a convolution that is its MACs and biases; for a recurrent network parameters times samples times steps; for any other
    layer, linear ones too, parameters times the batch size, whatever axes are between. What has no parameters is nothing.
    """
    inner = leaves(layers)
    total = 0
    for row in calls(layers):
        if row.path not in inner:
            continue
        if "Conv" in row.type:
            for operator in row.operators:
                if kind(operator) == "convolution":
                    total += operator.macs + biases(operator)
        else:
            shape = row.output_shapes[0] if row.output_shapes else ()
            positions = prod(shape[:2]) if row.type in RECURRENT_TYPES else prod(shape[:1])
            total += all_params(row) * positions
    return total


@convention(name="moduleprofiler", unit="op")
def moduleprofiler(layers: LayerTable) -> int:
    """Operations of moduleprofiler over all layers it has a formula for: multiplications and additions separately.

    Of modules by their exact type, and of each its last call; functionals are nothing. Batch norm is counted as in training, in
    inference too: 7n + 4 for n elements of a channel, 5n + 4 without an affine transform. AdaptiveAvgPool2d is 1 an output.
    """
    total = 0
    for row in last_calls(layers):
        if row.type in ("BatchNorm1d", "BatchNorm2d"):
            for operator in row.operators:
                total += 5 * operator.inputs + 4 * row.input_shapes[0][1]
                if is_affine(operator):
                    total += 2 * operator.inputs
        elif row.type == "AdaptiveAvgPool2d":
            total += returned(row)
        elif row.type in _MODULEPROFILER_TYPES:
            total += sum(operator.ops for operator in row.operators)
    return total


# deeplite-profiler: release 1.1 (D1), whose figures its documentation prints, and release 1.2 (D2).

_DEEPLITE_RELU_TYPES = {"ReLU", "PReLU", "ELU", "LeakyReLU", "ReLU6"}
_RELUS = {"relu", "prelu", "elu", "leaky_relu", "relu6"}
_DEEPLITE_PRODUCTS = {"convolution", "linear", "matmul", "baddbmm"}
_DEEPLITE_OUTPUTS = {"convolution", "avg_pool", "adaptive_avg_pool", "mean", "mul", *_RELUS}


@convention(name="d1")
def d1(layers: LayerTable) -> Number:
    """Deeplite 1.1's complexity per sample: MACs with biases, 2 an element of batch norm, 1 of pooling and ReLU's family.

    Of modules by their exact type, and of each its last call; functionals are nothing. The bias of a linear layer counts once a
    call, however many rows there are. Batch norm without an affine transform is 1 an element, upsampling 1 an output. A module
    counts the ``flops`` of its ``compute_module_complexity``.
    """
    total = 0
    for row in last_calls(layers):
        if row.declared_flops is not None:
            total += row.declared_flops
        elif row.type in UPSAMPLE_TYPES:
            total += returned(row)
        else:
            total += sum(_d1(row, operator) for operator in row.operators)
    return per_sample(total, layers)


def _d1(row: LayerRow, operator: OperatorCount) -> int:
    cost = 0
    if row.type in CONV_TYPES:
        cost = operator.macs + biases(operator)
    elif row.type == "Linear":
        cost = operator.macs
        if biases(operator):
            cost += row.output_shapes[0][-1]
    elif row.type in BATCH_NORM_TYPES and is_affine(operator):
        cost = 2 * operator.inputs
    elif row.type in BATCH_NORM_TYPES or row.type in POOL_TYPES:
        cost = operator.inputs
    elif row.type in _DEEPLITE_RELU_TYPES:
        cost = operator.outputs
    return cost


@convention(name="d1_footprint_bytes", unit="B")
def d1_footprint_bytes(layers: LayerTable, include_weights: bool = True) -> Number:
    """Deeplite 1.1's footprint: 4 bytes a trainable parameter, an input element, and an element that any module returned.

    Of each module its last call, per sample, and but for Sequential and ModuleList: a block's output counts again on top of its
    last layer's, and the model's on top of both.
    """
    elements = sum(returned(row) for row in last_calls(layers) if row.type not in ("Sequential", "ModuleList"))
    weights = layers.trainable if include_weights else 0
    return per_sample(4 * elements, layers) + 4 * (weights + prod(given_shape(layers)))


@convention(name="d2")
def d2(layers: LayerTable) -> int:
    """Deeplite 1.2's complexity: MACs, and 1 an element of convolutions' outputs, norms, pooling, ReLU's family and products.

    Of the operators of a trace, for the whole batch. What counts is an element of the output, but of max pooling the input. The
    output of a convolution counts with or without a bias, the bias of a linear layer never. Norms without an affine transform
    are nothing, bilinear upsampling is 4 an output, a mean and an elementwise product 1. Attention in one kernel, softmax, other
    activations, additions and recurrent networks are nothing. A module counts the ``flops`` of its ``compute_module_complexity``.
    """
    total = 0
    for row in calls(layers):
        if row.declared_flops is not None:
            total += row.declared_flops
            continue
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

_F2_PRODUCTS = {"convolution", "linear", "matmul", "baddbmm", "recurrent"}
_F1_ONE_EACH = POOLS | UPSAMPLES | _RELUS | {"softmax"}
_F2_ONE_EACH = POOLS | _RELUS | {"gelu", "silu", "softmax"}
_CELL_OPERATIONS = {1: 1, 3: 7, 4: 10}
"""What F1 and ptflops add for each hidden unit of a cell, by its gates."""


@convention(name="f1")
def f1(layers: LayerTable) -> int:
    """Count of pytorch-profiler: MACs, biases of convolutions, 1 an element of pools, ReLUs and softmax, 2 of batch norm.

    Of modules that hold no other, and of each its last call: what runs in a container or in the model itself is nothing, and so
    are biases of linear layers, other norms and other activations.
    """
    inner = leaves(layers)
    total = 0
    for row in last_calls(layers):
        if row.path not in inner:
            continue
        for operator in row.operators:
            name = kind(operator)
            if name == "convolution":
                total += operator.macs + biases(operator)
            elif name == "linear":
                total += operator.macs
            elif name == "recurrent":
                total += cells(row, operator)
            elif name == "batch_norm":
                total += 2 * operator.inputs
            elif name in _F1_ONE_EACH:
                total += operator.inputs
    return total


def cells(row: LayerRow, operator: OperatorCount) -> int:
    """Return MACs, both biases and what a cell does with its gates, as F1 and ptflops count a recurrent network.

    A cell runs for each time step, sample, layer and direction. The number of its biases follows from the parameters of the module.
    """
    gates, flops_per_unit = _GATES[operator.name.partition("_")[0]]
    steps = operator.inputs // row.input_shapes[0][-1]
    added = max(0, all_params(row) - operator.macs // steps) * steps  # both vectors of each gate
    units = (biases(operator) - added) // flops_per_unit
    return operator.macs + added + _CELL_OPERATIONS[gates] * units


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
    total = 0
    for operator in operators(layers):
        name = kind(operator)
        if name in ("linear", "matmul"):
            total += 2 * operator.macs
        elif name in _F2_PRODUCTS or name in NORMS:
            total += operator.flops
        elif name in UPSAMPLES:
            total += operator.outputs
        elif name in _F2_ONE_EACH:
            total += operator.inputs
    return total


# ptflops 0.7.5, by modules and functionals (backend pytorch) and by operators (backend aten).

_PTFLOPS_RELU_TYPES = {"ReLU", "PReLU", "ELU", "LeakyReLU", "ReLU6", "GELU"}
_PTFLOPS_NORM_TYPES = {*sized("BatchNorm", "InstanceNorm"), "GroupNorm"}
_PTFLOPS_FUNCTIONALS = POOLS | {"relu", "prelu", "elu", "relu6", "gelu", "silu", "softmax"}


@convention(name="ptflops")
def ptflops(layers: LayerTable, count_functional: bool = True) -> Number:
    """MACs of ptflops: products with biases, activations, pools and norms of modules, and functionals again.

    A module is counted by its exact type: MACs and biases of convolutions, linear layers, recurrent networks and
    MultiheadAttention; 1 an element of ReLU's family, GELU, pooling, upsampling and LayerNorm; 2 of the other norms, 1 without
    an affine transform. With ``count_functional``, as by default, whatever goes through ``torch.nn.functional`` counts too,
    and so again where a module calls it: 1 an element of relu, prelu, elu, gelu, silu, softmax, pools and upsampling, and
    products outside linear layers. Modules are per sample, functionals for the whole batch.
    """
    modules = functionals = 0
    for row in calls(layers):
        if row.type in UPSAMPLE_TYPES:
            modules += returned(row)
        else:
            modules += sum(_ptflops_of_module(row, operator) for operator in row.operators)
        if not count_functional or row.type in ("Linear", "MultiheadAttention"):
            continue
        for operator in row.operators:
            name = kind(operator)
            if name in ("matmul", "baddbmm"):
                functionals += operator.macs + biases(operator)
            elif name in UPSAMPLES:
                functionals += operator.outputs
            elif name in _PTFLOPS_FUNCTIONALS:
                functionals += operator.inputs
    return per_sample(modules, layers) + functionals


def _ptflops_of_module(row: LayerRow, operator: OperatorCount) -> int:
    name = kind(operator)
    cost = 0
    if row.type == "MultiheadAttention":
        # Projections with biases, the scaling of the query, both products and the softmax.
        if name == "attention":
            cost = operator.inputs + operator.macs + scores(operator)
        elif name in ("linear", "matmul", "baddbmm"):
            cost = operator.macs + biases(operator)
        elif name in ("softmax", "mul"):
            cost = operator.outputs
    elif row.type in CONV_TYPES or row.type == "Linear":
        cost = operator.macs + biases(operator)
    elif row.type in _PTFLOPS_RELU_TYPES:
        cost = operator.outputs
    elif row.type in _PTFLOPS_NORM_TYPES and is_affine(operator):
        cost = 2 * operator.inputs
    elif row.type in POOL_TYPES or row.type == "LayerNorm" or row.type in _PTFLOPS_NORM_TYPES:
        cost = operator.inputs
    elif row.type in RECURRENT_TYPES and name == "recurrent":
        cost = cells(row, operator)
    return cost


@convention(name="ptflops_aten")
def ptflops_aten(layers: LayerTable) -> int:
    """MACs of ptflops by operators: convolutions, linear layers and matrix products, with their biases.

    All else is nothing, attention in one kernel and recurrent networks too, as on a CPU.
    """
    counted = (operator for operator in operators(layers) if kind(operator) in ("convolution", "linear", "matmul"))
    return sum(operator.macs + biases(operator) for operator in counted)
