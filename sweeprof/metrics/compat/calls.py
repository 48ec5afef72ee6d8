"""Functions that the conventions share: the calls and operators of a model, and their properties."""

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
        found = extra // each
        rows = (each + 2) * found - beside
        if rows > 0 and found * (operator.inputs + operator.outputs) == operator.macs * rows:
            return found
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
"""Gates, and FLOPs of a hidden unit beside its products and biases (sweeprof/backends/torch/costs/recurrent.py)."""


def recurrent(row: LayerRow, operator: OperatorCount) -> Recurrent:
    """Takes apart what one row's recurrent operator counted, by how many parameters the module has."""
    gates, each = _GATES[operator.name.partition("_")[0]]
    steps = operator.inputs // row.input_shapes[0][-1]
    params = row.subtree.params if row.subtree is not None else row.params
    added = max(0, params - operator.macs // steps) * steps
    return Recurrent(operator.macs, added, (biases(operator) - added) // each, gates)
