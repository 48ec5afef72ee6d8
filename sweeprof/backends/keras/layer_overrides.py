"""Layers that a symbolic trace calls in another way than Keras does.

A layer whose own ``call`` does not go through ``keras.ops`` gets the same computation for a trace to see. Layers that repeat
are traced once: recurrent networks trace their cell once for all time steps, ``TimeDistributed`` its layer.

An override is ``(trace, layer, *args, **kwargs) -> outputs`` with the arguments of the layer's ``call``, on symbolic tensors.
It stands in for the layers of Keras alone: a subclass with a ``call`` of its own is entered like any other layer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import keras
from keras import KerasTensor, Layer, layers, ops

from sweeprof.backends.keras import private
from sweeprof.backends.keras.calls import like
from sweeprof.backends.keras.costs import elements
from sweeprof.counting import operators
from sweeprof.counting.formulas import OperatorCost
from sweeprof.counting.operators import REAL

if TYPE_CHECKING:
    from sweeprof.backends.keras.symbolic_trace import SymbolicTrace


LayerOverride = Callable[..., object]

_NETWORKS = (
    *(layers.SimpleRNN, layers.GRU, layers.LSTM),
    *(layers.ConvLSTM1D, layers.ConvLSTM2D, layers.ConvLSTM3D),
)


def hidden_in(layer: Layer) -> list[Layer]:
    """The layers that have no rows, as they are how ``layer`` is made: the cell of an LSTM, but not that of ``RNN(cell)``."""
    return [layer.cell] if isinstance(layer, _NETWORKS) else []


def _network(
    trace: SymbolicTrace,
    layer: Layer,
    sequences: KerasTensor,
    initial_state: Any = None,
    mask: KerasTensor | None = None,
    training: bool | None = False,
) -> KerasTensor:
    """As many steps as the sequence is long, each one trace of the cell; masks of dropout are made once and cost nothing."""
    batch, steps, *rest = sequences.shape
    step = KerasTensor((batch, *rest), sequences.dtype)
    if initial_state is None:
        with trace.paused():
            initial_state = private.backend.compute_output_spec(layer.get_initial_state, batch)
    states = list(initial_state) if isinstance(initial_state, list | tuple) else [initial_state]
    cell = layer.cell
    call = cell.call if hidden_in(layer) else cell
    trace.passed([sequences], [step])
    with trace.repeated(steps):
        output, states = call(step, states)
    outputs = _over_time(output, steps) if layer.return_sequences else like(output)
    final = [like(state) for state in keras.tree.flatten(states)]
    trace.passed([sequences, output, *keras.tree.flatten(states)], [outputs, *final])
    if not layer.return_state:
        return outputs
    if not keras.tree.is_nested(states):
        states = [states]
    return (outputs, *keras.tree.pack_sequence_as(states, final))


def _time_distributed(
    trace: SymbolicTrace,
    layer: Layer,
    inputs: KerasTensor,
    training: bool | None = None,
    mask: KerasTensor | None = None,
) -> KerasTensor:
    """One trace of the layer for all time steps."""
    batch, steps, *rest = inputs.shape
    keywords: dict[str, Any] = {}
    if private.takes_training(layer.layer):
        keywords["training"] = training
    if private.takes_mask(layer.layer) and mask is not None:
        keywords["mask"] = KerasTensor((batch, *mask.shape[2:]), mask.dtype)
    step = KerasTensor((batch, *rest), inputs.dtype)
    trace.passed([inputs], [step])
    with trace.repeated(steps):
        output = layer.layer(step, **keywords)
    outputs = keras.tree.map_structure(lambda tensor: _over_time(tensor, steps), output)
    trace.passed([inputs, output], outputs)
    return outputs


def _over_time(output: KerasTensor, steps: int) -> KerasTensor:
    batch, *rest = output.shape
    return KerasTensor((batch, steps, *rest), output.dtype)


def override_of(layer: Layer) -> LayerOverride | None:
    """Return the override of the layer's ``call``; None if the layer itself is called."""
    kinds: tuple[Any, ...] = type(layer).__mro__
    for kind in kinds:
        found = _OVERRIDES.get(kind)
        if found is not None:
            return found if kinds[0].call is kind.call else None
    return _unchanged if _is_random(layer) else None


def _softmax(trace: SymbolicTrace, layer: Layer, inputs: KerasTensor, mask: KerasTensor | None = None) -> KerasTensor:
    """``x - logsumexp(x)`` exponentiated over several axes; a mask chooses before and behind."""
    if mask is not None:
        inputs = ops.where(mask, inputs, -1e9)
    axes = layer.axis if isinstance(layer.axis, list | tuple) else [layer.axis]
    if len(axes) == 1:
        outputs = ops.softmax(inputs, axis=axes[0])
    else:
        outputs = ops.exp(ops.subtract(inputs, ops.logsumexp(inputs, axis=tuple(axes), keepdims=True)))
    return outputs if mask is None else ops.where(mask, outputs, 0.0)


def _convolution(trace: SymbolicTrace, layer: Layer, inputs: KerasTensor) -> KerasTensor:
    """The layer's own call, but for its bias: Keras reshapes it first, which the framework would run."""
    if layer.data_format != "channels_last":
        return layer.call(inputs)
    outputs = layer.convolution_op(inputs, layer.kernel)
    if layer.use_bias:
        outputs = ops.add(outputs, layer.bias)
    return outputs if layer.activation is None else layer.activation(outputs)


def _one_operation(
    trace: SymbolicTrace, layer: Layer, name: str, cost: OperatorCost, inputs: KerasTensor
) -> KerasTensor:
    """Count a layer that changes no shape as one operation, as torch has it, which Keras computes from parts."""
    outputs = KerasTensor(inputs.shape, layer.compute_dtype)
    trace.count(f"keras::{name}", cost, [inputs, *private.own_parameters(layer)], outputs)
    return outputs


def _batch_normalization(
    trace: SymbolicTrace,
    layer: Layer,
    inputs: KerasTensor,
    training: bool | None = None,
    mask: KerasTensor | None = None,
) -> KerasTensor:
    """One operation, as it is without a mask in inference."""
    channels = int(inputs.shape[layer.axis])
    is_affine, learns = layer.scale or layer.center, bool(training) and layer.trainable
    cost = operators.batch_norm(elements(inputs), channels, affine=is_affine, training=learns)
    return _one_operation(trace, layer, "batch_norm", cost, inputs)


def _group_normalization(trace: SymbolicTrace, layer: Layer, inputs: KerasTensor) -> KerasTensor:
    rows = int(inputs.shape[0]) * layer.groups
    cost = operators.normalisation(elements(inputs), rows, weight=layer.scale, bias=layer.center)
    return _one_operation(trace, layer, "group_norm", cost, inputs)


def _rescaling(trace: SymbolicTrace, layer: Layer, inputs: KerasTensor) -> KerasTensor:
    return ops.add(ops.multiply(ops.cast(inputs, layer.compute_dtype), 1.0), 0.0)


def _normalization(trace: SymbolicTrace, layer: Layer, inputs: KerasTensor) -> KerasTensor:
    """The deviation is computed from the variance, which is a constant."""
    given = ops.cast(inputs, layer.compute_dtype)
    if layer.invert:
        return ops.add(ops.multiply(given, 1.0), 0.0)
    return ops.divide(ops.subtract(given, 0.0), 1.0)


def _parametric(trace: SymbolicTrace, layer: Layer, inputs: KerasTensor) -> KerasTensor:
    """PReLU, which Keras computes from two rectifiers."""
    cost = operators.elementwise("leaky_relu", elements(inputs), REAL)
    return _one_operation(trace, layer, "prelu", cost, inputs)


def _resizing(
    trace: SymbolicTrace, layer: Layer, data: KerasTensor | dict[str, KerasTensor], training: bool | None = None
) -> KerasTensor:
    if isinstance(data, dict) or layer.crop_to_aspect_ratio or layer.pad_to_aspect_ratio:
        raise NotImplementedError("only the resizing of a tensor to a size stands in for the layer")
    size = (layer.height, layer.width)
    return ops.image.resize(data, size, interpolation=layer.interpolation, data_format=layer.data_format)


def _center_crop(
    trace: SymbolicTrace, layer: Layer, inputs: KerasTensor, *args: object, **kwargs: object
) -> KerasTensor:
    rows, columns = inputs.shape[-2:] if layer.data_format == "channels_first" else inputs.shape[-3:-1]
    if rows < layer.height or columns < layer.width:  # it is resized instead, in the proportions of the crop
        size, given = [layer.height, layer.width], ops.cast(inputs, layer.compute_dtype)
        return private.smart_resize(given, size, data_format=layer.data_format, backend_module=ops)
    outputs = KerasTensor(layer.compute_output_shape(inputs.shape), layer.compute_dtype)
    trace.free("center_crop", [inputs], outputs)
    return outputs


def _unchanged(
    trace: SymbolicTrace,
    layer: Layer,
    inputs: KerasTensor,
    *args: object,
    training: bool | None = None,
    **kwargs: object,
) -> KerasTensor:
    """Do nothing in inference, as random layers do; in training, dropout is counted."""
    if _is_random(layer) and training:
        raise NotImplementedError("a random transformation in training")
    if _is_random(layer) and not _keeps_shape(trace, layer, inputs):
        raise NotImplementedError("a random transformation that changes shapes in inference")
    outputs = KerasTensor(inputs.shape, inputs.dtype)
    if training and layer.rate:
        trace.count("keras::dropout", operators.dropout(elements(inputs), elements(inputs)), [inputs], outputs)
    else:
        trace.free("view", [inputs], outputs)
    return outputs


def _is_random(layer: Layer) -> bool:
    """True if the layer is one of Keras's image transformations for training."""
    return type(layer).__module__.startswith(private.RANDOM_LAYERS)


def _keeps_shape(trace: SymbolicTrace, layer: Layer, inputs: KerasTensor) -> bool:
    """True if the output has the input's shape in inference, as RandomCrop's in some versions of Keras despite its declaration."""
    if tuple(layer.compute_output_shape(inputs.shape)) == tuple(inputs.shape):
        return True
    with trace.paused():
        outputs = private.backend.compute_output_spec(layer.call, inputs, training=False)
    return tuple(outputs.shape) == tuple(inputs.shape)


def _noise(trace: SymbolicTrace, layer: Layer, inputs: KerasTensor, training: bool | None = None) -> KerasTensor:
    """Random numbers are added or multiplied."""
    return ops.add(inputs, 0.0) if training else inputs


_OVERRIDES: dict[type, LayerOverride] = {
    **dict.fromkeys((layers.RNN, *_NETWORKS), _network),
    layers.TimeDistributed: _time_distributed,
    private.BaseConv: _convolution,
    layers.Softmax: _softmax,
    layers.BatchNormalization: _batch_normalization,
    layers.GroupNormalization: _group_normalization,
    layers.PReLU: _parametric,
    layers.Rescaling: _rescaling,
    layers.Normalization: _normalization,
    layers.Resizing: _resizing,
    layers.CenterCrop: _center_crop,
    **dict.fromkeys((layers.Dropout, layers.SpatialDropout1D, layers.SpatialDropout2D), _unchanged),
    **dict.fromkeys((layers.SpatialDropout3D, layers.AlphaDropout), _unchanged),
    **dict.fromkeys((layers.GaussianNoise, layers.GaussianDropout), _noise),
}
