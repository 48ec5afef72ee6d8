"""Layers that repeat: recurrent networks trace their cell once for all time steps, ``TimeDistributed`` its layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import keras
from keras import layers

if TYPE_CHECKING:
    from sweeprof.backends.keras.symbolic_trace import SymbolicTrace

LayerOverride = Callable[..., Any]

_NETWORKS = (
    *(layers.SimpleRNN, layers.GRU, layers.LSTM),
    *(layers.ConvLSTM1D, layers.ConvLSTM2D, layers.ConvLSTM3D),
)


def hidden_in(layer: Any) -> list[Any]:
    """The layers that have no rows, as they are how ``layer`` is made: the cell of an LSTM, but not that of ``RNN(cell)``."""
    return [layer.cell] if isinstance(layer, _NETWORKS) else []


def _network(
    trace: SymbolicTrace, layer: Any, sequences: Any, initial_state: Any = None, mask: Any = None, training: Any = False
) -> Any:
    """As many steps as the sequence is long, each one trace of the cell; masks of dropout are made once and cost nothing."""
    batch, steps, *rest = sequences.shape
    step = keras.KerasTensor((batch, *rest), sequences.dtype)
    if initial_state is None:
        with trace.paused():
            initial_state = keras.src.backend.compute_output_spec(layer.get_initial_state, batch)
    states = list(initial_state) if isinstance(initial_state, list | tuple) else [initial_state]
    cell = layer.cell
    call = cell.call if hidden_in(layer) else cell
    trace.passed([sequences], [step])
    before = 0
    if (
        trace.tape is not None and steps > 1
    ):  # the first state is given, and takes no gradient; those of further steps do
        before = 1
        _, states = call(step, states)
        states = states if isinstance(states, list | tuple) else [states]
    with trace.repeated(steps - before):
        output, states = call(step, states)
    outputs = _over_time(output, steps) if layer.return_sequences else _like(output)
    final = [_like(state) for state in keras.tree.flatten(states)]
    trace.passed([sequences, output, *keras.tree.flatten(states)], [outputs, *final])
    if not layer.return_state:
        return outputs
    if not keras.tree.is_nested(states):
        states = [states]
    return (outputs, *keras.tree.pack_sequence_as(states, final))


def _time_distributed(trace: SymbolicTrace, layer: Any, inputs: Any, training: Any = None, mask: Any = None) -> Any:
    """One trace of the layer for all time steps."""
    batch, steps, *rest = inputs.shape
    keywords: dict[str, Any] = {}
    if layer.layer._call_has_training_arg:
        keywords["training"] = training
    if layer.layer._call_has_mask_arg and mask is not None:
        keywords["mask"] = keras.KerasTensor((batch, *mask.shape[2:]), mask.dtype)
    step = keras.KerasTensor((batch, *rest), inputs.dtype)
    trace.passed([inputs], [step])
    with trace.repeated(steps):
        output = layer.layer(step, **keywords)
    outputs = keras.tree.map_structure(lambda tensor: _over_time(tensor, steps), output)
    trace.passed([inputs, output], outputs)
    return outputs


def _over_time(output: Any, steps: int) -> Any:
    batch, *rest = output.shape
    return keras.KerasTensor((batch, steps, *rest), output.dtype)


def _like(tensor: Any) -> Any:
    return keras.KerasTensor(tensor.shape, tensor.dtype)


RECURRENT: dict[type, LayerOverride] = {
    **dict.fromkeys((layers.RNN, *_NETWORKS), _network),
    layers.TimeDistributed: _time_distributed,
}
"""Overrides of recurrent layers."""
