"""Counts a Keras model in one trace over shapes: every layer with its parameters and buffers, and one training step.

A training step is a forward, the sum of every output as loss, and a backward. The forward is traced in training mode, and the
backward is counted from what it did, last first: an operation's gradient is counted for each operand that is trained, or that
depends on what is trained.
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from math import prod
from typing import Any
from unittest.mock import patch

import keras
from keras import KerasTensor, Layer, layers, ops

from sweeprof.backends import attribute
from sweeprof.backends.keras import private
from sweeprof.backends.keras.calls import (
    ATTENTION,
    COSTS,
    FREE,
    OF_A_CALL,
    VIEWS,
    as_called,
    call_of,
    described,
    dtype_of,
    elements,
    like,
    symbolic,
    symbolic_in,
    tensors_in,
)
from sweeprof.counting import operators
from sweeprof.counting.file_graph import OperatorRun, peak_of
from sweeprof.counting.formulas import (
    DEFAULTS,
    NO_TENSORS,
    Args,
    Cost,
    FormulaFailed,
    Formulas,
    Kwargs,
    OperatorCost,
    ParamSize,
    TensorShapes,
    Variable,
    cost_by_formula,
    declared_size,
    layer_row,
    operator_cost,
    summed,
)
from sweeprof.counting.mapping import CountedOperators, itemsize
from sweeprof.counting.operators import REAL, estimated_training
from sweeprof.errors import Unsupported, first_line
from sweeprof.measuring.inputs import Inputs
from sweeprof.results.layer_times import OUTSIDE, ROOT
from sweeprof.results.layers import Bytes, LayerRow, LayerTable, Liveness, OperatorCount, Training, Weights

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


# Calls a model on symbolic tensors and records every layer and every operation of ``keras.ops`` on the way.


Fallback = Callable[["SymbolicTrace", Callable[..., object], Args, Kwargs], object]
"""Counts what cannot be called on symbolic tensors, in a framework's own graph; returns symbolic outputs."""
PREFIX = "keras::"
"""Before the names of operations, which other frameworks call otherwise or give another meaning."""
ADD = f"{PREFIX}add"


class CannotCall(Exception):
    """The model itself raised ``error``."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


# What a trace records


@dataclass(slots=True, eq=False)
class LayerCall:
    """One call of one layer, or ``times`` equal ones: the steps of a recurrent network are one call of its cell."""

    layer: Any
    path: str
    parent: LayerCall | None
    times: int = 1
    children: int = 0
    in_graph: bool = False
    """True if a framework traces the call in its own graph, where layers are called on the graph's tensors."""
    inputs: TensorShapes = NO_TENSORS
    outputs: TensorShapes = NO_TENSORS
    counted: Cost | None = None
    """The cost by a formula of the layer's type, which replaces that of its operations."""
    counts: CountedOperators = field(default_factory=CountedOperators)
    operator_calls: int = 0
    uncovered: Counter[str] = field(default_factory=Counter)
    """Calls by operation without a formula."""

    def count(self, name: str, cost: OperatorCost, read: Sequence[Any], written: Sequence[Any], times: int) -> None:
        """Add an operation that ran so many times; of the tensors that it read and wrote the first ones are shown."""
        self.operator_calls += times
        given, made = (elements(tensors[0]) if tensors else 0 for tensors in (read, written))
        self.counts.add(name, cost, given, made, times)

    def miss(self, name: str, times: int) -> None:
        """Note that an operation has no formula."""
        self.operator_calls += times
        self.uncovered[name] += times

    @property
    def has_formula(self) -> bool:
        """True if a formula gives the cost of the operations, even as "unknown"."""
        return self.counted is not None and (self.counted.macs is not None or self.counted.flops is not None)

    @property
    def costs(self) -> OperatorCost:
        """MACs, FLOPs and ops: those of the operations, or what a formula says instead."""
        own, message = self.counts, self.counted or Cost()
        return (
            own.macs if message.macs is None else message.macs * self.times,
            own.flops if message.flops is None else message.flops * self.times,
            own.ops if message.ops is None else message.ops * self.times,
        )

    @property
    def operator_counts(self) -> tuple[OperatorCount, ...]:
        """Return the operators that the call ran, without those that do no arithmetic."""
        return tuple(count for count in self.counts.operators.values() if count.macs or count.flops or count.ops)


class Paths:
    """Gives a path to every layer that is called; two layers of one name in one place have different ones."""

    def __init__(self) -> None:
        self._owner: dict[str, keras.Layer | None] = {}

    def below(self, parent: str, layer: Any) -> str:
        """The path of ``layer`` where a layer at ``parent`` calls or holds it: ``__root__`` outside any layer."""
        if parent == OUTSIDE:
            return ROOT
        name = layer.name.replace(".", "_")
        first = path = name if parent == ROOT else f"{parent}.{name}"
        number = 0
        while self._owner.setdefault(path, layer) is not layer:
            number += 1
            path = f"{first}_{number}"
        return path


@dataclass(slots=True, eq=False)
class OperationRun:
    """One operation that ran."""

    path: str
    """Of the layer that was running."""
    used: Sequence[KerasTensor]
    made: Sequence[KerasTensor]
    in_place: KerasTensor | None = None
    """One of ``used`` in whose memory the result is; None: it has memory of its own."""


def live_bytes(ran: Sequence[OperationRun], inputs: list[KerasTensor], outputs: list[KerasTensor]) -> Liveness:
    """Return the peak, without the inputs; each tensor lives to the last operation that uses it, as a compiled graph frees it.

    The outputs live to the end. A tensor that no operation made, as the first state of a recurrent network, is made just before
    it is used.
    """
    known: set[Hashable] = set(map(id, inputs))
    runs: list[OperatorRun] = []

    def memory_of(tensors: Sequence[KerasTensor]) -> dict[Hashable, Bytes]:
        """The bytes of the tensors that are not known yet, by identity; afterwards they are."""
        new = {id(tensor): tensor for tensor in tensors if id(tensor) not in known}
        known.update(new)
        return {key: elements(tensor) * itemsize(dtype_of(tensor)) for key, tensor in new.items()}

    for run in ran:
        operands = [*map(id, run.used), *(id(tensor) for tensor in run.made if id(tensor) in known)]
        if before := memory_of(run.used):
            runs.append(OperatorRun(run.path, (), before))
        runs.append(
            OperatorRun(run.path, operands, memory_of(run.made), None if run.in_place is None else id(run.in_place))
        )
    if (before := memory_of(outputs)) and runs:
        runs.insert(-1, OperatorRun(runs[-1].path, (), before))
    return peak_of(runs, map(id, outputs), described(inputs).nbytes or 0)


# The trace


class SymbolicTrace:
    """Follows one forward of a model."""

    def __init__(self, formulas: Formulas, fallback: Fallback | None = None, is_training: bool = False) -> None:
        self.outside = self.current = LayerCall(None, OUTSIDE, None)
        self.calls: list[LayerCall] = []
        self.ran: list[OperationRun] = []
        """Every operation in its order."""
        self.variables: list[Any] = []
        """Variables that a model reads which is no Keras layer."""
        self.paths = Paths()
        self.fallen_back: dict[str, str] = {}
        """Paths of layers that were counted otherwise, with the reason."""
        self.is_training = is_training
        """True: the model is called as in training."""
        self.formulas, self._fallback = formulas, fallback
        self.times = 1
        self._is_paused = False
        self._thread = threading.get_ident()
        self._product: KerasTensor | None = None
        """The output of the last product."""

    @property
    def operator_calls(self) -> int:
        """The number of operator calls in all layer calls."""
        return sum(call.operator_calls for call in (*self.calls, self.outside))

    def sees(self) -> bool:
        """True if the current call belongs to the trace."""
        return not self._is_paused and threading.get_ident() == self._thread

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Within it layers and operations are called as ever."""
        before, self._is_paused = self._is_paused, True
        try:
            yield
        finally:
            self._is_paused = before

    @contextmanager
    def repeated(self, times: int) -> Iterator[None]:
        """Within it everything is done so many times."""
        before, self.times = self.times, self.times * times
        try:
            yield
        finally:
            self.times = before

    def beginning(self) -> Callable[[], None]:
        """Forgets, when it is called, everything that the call which runs now did after this."""
        call, calls, operations = self.current, len(self.calls), len(self.ran)
        children, operator_calls = call.children, call.operator_calls
        missed, counts = call.uncovered.copy(), call.counts.copied()

        def start_over() -> None:
            del self.calls[calls:]
            del self.ran[operations:]
            call.children, call.operator_calls = children, operator_calls
            call.uncovered, call.counts = missed.copy(), counts.copied()
            self.current = call

        return start_over

    def layer(self, layer: keras.Layer, args: Args, kwargs: Kwargs) -> object:
        """One call of a layer on symbolic tensors; what it returns.

        Raises:
            FormulaFailed: the formula of the layer's type did.
            CannotCall: the layer raised something, and what it is traced to instead did too.
        """
        call = LayerCall(layer, self.paths.below(self.current.path, layer), self.current, self.times)
        self.current.children += 1
        given = (*args, *(value for name, value in kwargs.items() if name not in OF_A_CALL and value is not None))
        outputs = self._called(call, given, lambda: self._computed(call, args, kwargs))
        formula = self.formulas.of_module(layer)
        if formula is not None:
            call.counted = cost_by_formula(formula, layer, given, outputs)
        return outputs

    def _called(self, call: LayerCall, given: object, compute: Callable[[], object]) -> object:
        """Return what ``compute`` returns, with ``call`` as the one that runs."""
        before, self.current = self.current, call
        call.inputs = described(given)
        self.calls.append(call)
        try:
            outputs = compute()
        finally:
            self.current = before
        call.outputs = described(outputs)
        return outputs

    def layer_on_values(self, compute: Callable[..., object], layer: keras.Layer, args: Args, kwargs: Kwargs) -> object:
        """A call of a layer on tensors that do not depend on the inputs, as learned queries are: on symbolic ones like them.

        ``compute`` calls it. What has values only is computed, and is uncovered.
        """
        given = tensors_in((args, kwargs))
        if self.current.in_graph or not given or any(isinstance(tensor, KerasTensor) for tensor in given):
            return compute(layer, *args, **kwargs)
        start_over = self.beginning()
        try:
            instead = keras.tree.map_structure(symbolic, (args, kwargs))
            self.passed(given, tensors_in(instead))
            return compute(layer, *instead[0], **instead[1])
        except FormulaFailed:
            raise
        except Exception as error:  # a layer may raise anything when it meets a symbolic tensor
            start_over()
            self.fallen_back.setdefault(self.current.path, first_line(error))
            with self.paused():
                outputs = compute(layer, *args, **kwargs)
            self.miss(type(layer).__name__, (args, kwargs), outputs)
            return outputs

    def function(self, model: object, compute: Callable[..., object], args: Args, kwargs: Kwargs) -> object:
        """A model that is no layer, counted as a whole in the framework's graph; ``compute`` calls it."""
        call = LayerCall(model, self.paths.below(OUTSIDE, None), self.outside)
        return self._called(
            call, (args, kwargs), lambda: self._fallen_back(call, "it is no Keras layer", compute, args, kwargs)
        )

    def _computed(self, call: LayerCall, args: Args, kwargs: Kwargs) -> object:
        layer, start_over = call.layer, self.beginning()
        is_quantized = layer.quantization_mode is not None
        compute = layer.quantized_call if is_quantized else layer.call
        instead = None if is_quantized else override_of(layer)
        try:
            return compute(*args, **kwargs) if instead is None else instead(self, layer, *args, **kwargs)
        except (FormulaFailed, CannotCall):
            raise
        except Exception as error:  # a layer may raise anything when it meets a symbolic tensor
            start_over()
            return self._fallen_back(call, first_line(error), compute, args, kwargs)

    def _fallen_back(
        self, call: LayerCall, reason: str, compute: Callable[..., object], args: Args, kwargs: Kwargs
    ) -> object:
        self.fallen_back.setdefault(call.path, reason)
        call.in_graph = True
        try:
            if self._fallback is not None:
                return self._fallback(self, compute, args, kwargs)
            with self.paused():
                outputs = private.backend.compute_output_spec(compute, *args, **kwargs)
        except (FormulaFailed, CannotCall):
            raise
        except Exception as error:
            raise CannotCall(error) from error
        self.miss(type(call.layer).__name__, (args, kwargs), outputs)
        return outputs

    def operation(self, operation: keras.Operation, args: Args, kwargs: Kwargs) -> object:
        """One operation on symbolic tensors; what it returns."""
        kind: Any = type(operation)
        name, is_own = _named(kind)
        title, used = PREFIX + name, (args, kwargs)
        written = self.formulas.of_operator(title)
        if written is None and not is_own:
            return operation.call(*args, **kwargs)  # a user's: counted by its parts
        if written is None and name == "separable_conv":
            return _separable(operation, *args, **kwargs)
        with self.paused():
            outputs = _output_of(name, operation, args, kwargs)
        if written is not None:
            self.count(title, operator_cost(written, args, kwargs, outputs), used, outputs)
        elif is_own and name in COSTS:
            self.count(title, COSTS[name](call_of(name, operation, args, kwargs, outputs)), used, outputs)
        elif name in FREE:
            self.free(name, used, outputs)
        else:
            self.miss(title, used, outputs)
        return outputs

    def count(self, name: str, cost: OperatorCost, used: object, made: object) -> None:
        """Add an operation to the call that is running."""
        read, written = tensors_in(used), tensors_in(made)
        self.current.count(name, cost, read, written, self.times)
        # A bias is added where the product is, as every framework does it in one kernel or one buffer.
        inputs = symbolic_in(read)
        is_bias = name == ADD and len(inputs) == 1 and inputs[0] is self._product
        self._ran(read, written, inputs[0] if is_bias else None)
        if cost[0]:
            self._product = written[0]

    def free(self, name: str, used: object, made: object) -> None:
        """Note an operation that does no arithmetic; to take a tensor for a tensor is none."""
        self.current.operator_calls += self.times if name != "convert_to_tensor" else 0
        read, written = tensors_in(used), tensors_in(made)
        inputs = symbolic_in(read)
        is_view = bool(inputs) and (name in VIEWS or (name == "cast" and inputs[0].dtype == written[0].dtype))
        self._ran(read, written, inputs[0] if is_view else None)

    def miss(self, name: str, used: object, made: object) -> None:
        """Note an operation without a formula."""
        self.current.miss(name, self.times)
        self._ran(tensors_in(used), tensors_in(made))

    def passed(self, used: object, made: object) -> None:
        """Note that a tensor is made of others by what is no operation: all time steps of one, or one of all."""
        self._ran(tensors_in(used), tensors_in(made))

    def _ran(self, read: list[KerasTensor], written: list[KerasTensor], in_place: KerasTensor | None = None) -> None:
        self.ran.append(OperationRun(self.current.path, symbolic_in(read), symbolic_in(written), in_place))


@cache
def _named(kind: type) -> tuple[str, bool]:
    """The name of an operation's class in small letters, and whether it is one of Keras."""
    spaced = re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", kind.__name__)
    name = re.sub(r"([a-z])([A-Z])", r"\1_\2", spaced).lower()
    return name.replace("re_lu", "relu"), kind.__module__.startswith(private.OWN_MODULES)


def _separable(
    operation: keras.Operation, inputs: KerasTensor, depthwise: KerasTensor, pointwise: KerasTensor
) -> KerasTensor:
    """A separable convolution by others."""
    where, dilation = operation.data_format, operation.dilation_rate
    between = ops.depthwise_conv(inputs, depthwise, operation.strides, operation.padding, where, dilation)
    return ops.conv(between, pointwise, 1, "valid", where)


def _attended(
    operation: keras.Operation, query: KerasTensor, key: KerasTensor, value: KerasTensor, *_: Any, **__: Any
) -> KerasTensor:
    """Return the result of attention, which is as wide as the values; Keras says that it is as wide as the queries."""
    return KerasTensor((*query.shape[:-1], value.shape[-1]), operation.compute_output_spec(query, key, value).dtype)


def _output_of(name: str, operation: keras.Operation, args: Args, kwargs: Kwargs) -> KerasTensor:
    """Symbolic outputs of an operation of ``keras.ops`` on symbolic tensors."""
    if name == "conv" and len(args) == 2:
        return operation.compute_output_spec(args[0], _ungrouped(operation, *args))
    if name == ATTENTION:
        return _attended(operation, *args, **kwargs)
    if name in ("adaptive_average_pool", "adaptive_max_pool"):
        return _pooled(operation, args[0])
    return operation.compute_output_spec(*args, **kwargs)


def _is_first(operation: keras.Operation) -> bool:
    return bool(private.backend.standardize_data_format(operation.data_format) == "channels_first")


def _ungrouped(operation: keras.Operation, inputs: KerasTensor, kernel: KerasTensor) -> KerasTensor:
    """A kernel for all input channels: Keras knows groups in what it computes, and refuses them in shapes."""
    channels = inputs.shape[1 if _is_first(operation) else -1]
    *space, given, made = kernel.shape
    if given == channels or channels % given:
        return kernel
    return KerasTensor((*space, channels, made), kernel.dtype)


def _pooled(operation: keras.Operation, inputs: KerasTensor) -> KerasTensor:
    """Keras keeps one of the sizes that it pools where the channels are last."""
    batch, *_ = inputs.shape
    size = operation.output_size
    sizes = (size,) * (len(inputs.shape) - 2) if isinstance(size, int) else tuple(size)
    shape = (batch, inputs.shape[1], *sizes) if _is_first(operation) else (batch, *sizes, inputs.shape[-1])
    return KerasTensor(shape, inputs.dtype)


# Patches of Keras

KerasFunction = Callable[..., Any]


@contextmanager
def patching(trace: SymbolicTrace) -> Iterator[None]:
    """Within it ``trace`` sees the calls of layers and operations on symbolic tensors; afterwards Keras is as it was."""
    with ExitStack() as stack:
        for owner, name, instead in _changes(trace):
            stack.enter_context(patch.object(owner, name, instead))
        if keras.config.is_traceback_filtering_enabled():  # it explains, in every call, errors that nobody sees here
            stack.callback(keras.config.enable_traceback_filtering)
            keras.config.disable_traceback_filtering()
        yield


Change = tuple[object, str, KerasFunction]
"""Class or module, name, and what is there instead."""


def _changes(trace: SymbolicTrace) -> Iterator[Change]:
    def seen(owner: object, name: str, instead: KerasFunction) -> Change:
        before = getattr(owner, name)

        def function(*args: object, **kwargs: object) -> object:
            return instead(*args, **kwargs) if trace.sees() else before(*args, **kwargs)

        return owner, name, function

    def build(layer: keras.Layer, call_spec: object) -> None:
        with trace.paused():  # a model may call its layers on symbolic tensors to build them
            before(layer, call_spec)

    def called(layer: keras.Layer, *args: object, **kwargs: object) -> object:
        return trace.layer_on_values(call, layer, args, kwargs)

    before, call, backend = attribute(keras.Layer, "_maybe_build"), keras.Layer.__call__, private.backend
    yield seen(keras.Layer, "__call__", called)
    yield seen(keras.Layer, "_maybe_build", build)
    yield seen(
        keras.Operation, "symbolic_call", lambda operation, *args, **kwargs: trace.operation(operation, args, kwargs)
    )
    yield seen(keras.Layer, "symbolic_call", lambda layer, *args, **kwargs: trace.layer(layer, args, kwargs))
    for owner, name in (
        (keras.Layer, "add_loss"),
        (private.layer_module, "Node"),
        (private.DropoutRNNCell, "get_dropout_mask"),
        (private.DropoutRNNCell, "get_recurrent_dropout_mask"),
    ):
        yield seen(owner, name, lambda *_, **__: None)
    for name in ("convert_to_tensor", "cast"):
        yield backend, name, _of_symbolic(_cast, getattr(backend, name))
    mish = private.Mish
    yield mish, "static_call", staticmethod(_of_symbolic(mish(), mish.static_call))
    for name in "add sub mul truediv floordiv mod pow matmul".split():
        method = f"__{name}__"
        yield backend.Variable, method, _left_to_tensor(getattr(backend.Variable, method))


def _of_symbolic(instead: KerasFunction, before: KerasFunction) -> KerasFunction:
    """``instead`` for symbolic tensors."""

    def function(value: object, *args: object, **kwargs: object) -> object:
        return (instead if isinstance(value, KerasTensor) else before)(value, *args, **kwargs)

    return function


def _cast(value: object, dtype: object = None, **_: object) -> Any:
    return value if dtype is None else ops.cast(value, dtype)


def _left_to_tensor(before: KerasFunction) -> KerasFunction:
    """``variable * tensor`` is the symbolic tensor's to answer."""

    def operator(variable: keras.Variable, other: object) -> Any:
        return NotImplemented if isinstance(other, KerasTensor) else before(variable, other)

    return operator


# Counts a Keras model in one trace over shapes: every layer with its parameters and buffers, and one training step.


_STORED_SMALLER = frozenset({"int8", "int4", "gptq", "awq"})
"""Quantisations that store weights otherwise; ``float8`` scales them as it computes."""


LayersBelow = Mapping[int, list[keras.Layer]]
"""By the identity of a layer, those that it holds or calls."""


def inventory(
    root: keras.Layer, below: LayersBelow, sizes: Mapping[int, ParamSize], read: Sequence[Any] = ()
) -> tuple[dict[int, Weights], dict[int, Weights]]:
    """The weights of every layer, by the identity of the layer.

    The first are a layer's own, without what a layer before it holds already; the second with everything below, each variable once.

    Args:
        root: whose layers.
        below: the layers below each.
        sizes: by the identity of a layer, bytes per element, where a layer declares them.
        read: the variables that the forward of a root reads that is no Keras layer.
    """
    layers = _reached(root, below)
    held = {identity: _variables(layer, sizes.get(identity, {}), read) for identity, layer in layers.items()}
    before: set[Hashable] = set()
    own, subtree = {}, {}
    for identity, layer in layers.items():
        fresh = {variable.key: variable for variable in held[identity] if variable.key not in before}
        before.update(fresh)
        own[identity] = summed(fresh.values())
        inner = {variable.key: variable for found in _reached(layer, below) for variable in held[found]}
        subtree[identity] = summed(inner.values())
    return own, subtree


def _reached(root: keras.Layer, below: LayersBelow) -> dict[int, keras.Layer]:
    """The root and every layer below it by identity, each once, parents first."""
    found: dict[int, keras.Layer] = {}
    waiting = [root]
    while waiting:
        layer = waiting.pop()
        if id(layer) not in found:
            found[id(layer)] = layer
            waiting += reversed(below[id(layer)])
    return found


def _variables(layer: keras.Layer, sizes: ParamSize, read: Sequence[Any]) -> list[Variable]:
    """Parameters, and state that no optimizer sees.

    Keras keeps what an optimizer may change in ``_trainable_variables`` whether or not the layer is frozen; its public lists move
    frozen parameters in with moving statistics. The weights of a quantised layer, which no optimizer can change, are parameters
    too. The state of a random generator is none of the model's.
    """
    if not isinstance(layer, keras.Layer):
        return _of_other(layer, read)
    found = []
    for owner in (layer, *hidden_in(layer)):
        is_quantised = owner.quantization_mode in _STORED_SMALLER
        found += [_described(variable, sizes, is_buffer=False) for variable in private.own_parameters(owner)]
        for variable in private.own_state(owner):
            if not variable.path.endswith("seed_generator_state"):
                found.append(_described(variable, sizes, is_buffer=not is_quantised))
    return found


def _of_other(model: object, read: Sequence[Any]) -> list[Variable]:
    """The variables of a model that is no Keras layer: those that it lists, as a signature of a SavedModel does, or reads."""
    return [
        Variable(id(v), prod(v.shape), itemsize(dtype_of(v)), dtype_of(v), v.trainable, not v.trainable)
        for v in getattr(model, "variables", read)
    ]


def _described(variable: keras.Variable, sizes: ParamSize, *, is_buffer: bool) -> Variable:
    dtype = private.stored_dtype(variable)
    size = declared_size(sizes, variable.name, itemsize(dtype), is_buffer)
    return Variable(id(variable), prod(variable.shape), size, dtype, bool(variable.trainable), is_buffer)


def rows_of(trace: SymbolicTrace, root: object) -> tuple[LayerRow, ...]:
    """One row per call in the order of the calls, then every layer that was never called."""
    below = _below(trace, root)
    declared = {id(c.layer): c.counted.param_size for c in trace.calls if c.counted is not None}
    own_weights, subtree = inventory(root, below, declared, trace.variables)
    position: dict[LayerCall | None, int] = {}
    times: Counter[str] = Counter()
    rows: list[LayerRow] = []

    def add(call: LayerCall, index: int) -> None:
        position[call] = len(rows)
        own = own_weights.pop(id(call.layer), Weights())
        rows.append(_row(call, own, subtree.get(id(call.layer)), index, position.get(call.parent)))

    for call in trace.calls:
        add(call, times[call.path])
        times[call.path] += 1
    for layer, path in _uncalled(trace, root, below):
        add(LayerCall(layer, path, None), -1)
    if trace.outside.counts.operators:
        rows.append(_row(trace.outside, Weights(), None, 0, None))
    return tuple(rows)


def parts_of(layer: keras.Layer) -> list[keras.Layer]:
    """The layers that a layer holds, but for inputs, which do nothing, and those that are how it is made."""
    if not isinstance(layer, keras.Layer):
        return []
    hidden = {id(part) for part in hidden_in(layer)}
    return [
        part
        for part in private.children_of(layer)
        if not isinstance(part, keras.layers.InputLayer) and id(part) not in hidden
    ]


def _below(trace: SymbolicTrace, root: object) -> dict[int, list[keras.Layer]]:
    """Return the layers that each layer holds or calls, by the identity of the layer."""
    found: dict[int, list[keras.Layer]] = {}
    waiting = [root, *(call.layer for call in trace.calls)]
    while waiting:
        layer = waiting.pop()
        if id(layer) not in found:
            found[id(layer)] = parts_of(layer)
            waiting += found[id(layer)]
    for call in trace.calls:
        if call.parent is not None and id(call.parent.layer) in found:
            inner = found[id(call.parent.layer)]
            if not any(layer is call.layer for layer in inner):
                inner.append(call.layer)
    return found


def _uncalled(trace: SymbolicTrace, root: object, below: LayersBelow) -> list[tuple[keras.Layer, str]]:
    """Layers that were never called, with paths below the layers that hold them."""
    paths = {id(call.layer): call.path for call in reversed(trace.calls)}
    found = []
    for layer in _reached(root, below).values():
        path = paths.get(id(layer), ROOT)
        for part in parts_of(layer):
            if id(part) not in paths:
                paths[id(part)] = trace.paths.below(path, part)
                found.append((part, paths[id(part)]))
    return found


def _row(call: LayerCall, own: Weights, subtree: Weights | None, index: int, parent: int | None) -> LayerRow:
    inputs, outputs, message = call.inputs, call.outputs, call.counted or Cost()
    kind = type(call.layer).__name__ if isinstance(call.layer, keras.Layer) else ""
    row = layer_row(
        call.path,
        kind,
        own,
        call.costs,
        inputs._replace(shapes=message.input_shapes or inputs.shapes),
        outputs._replace(shapes=message.output_shapes or outputs.shapes, nbytes=_bytes(call)),
        is_leaf=not call.children,
    )
    row.call, row.parent, row.subtree = index, parent, subtree
    row.operators = call.operator_counts
    row.kernel_size, row.stride = _sizes(call.layer, "kernel_size", "pool_size"), _sizes(call.layer, "strides")
    row.groups = _groups(call.layer)
    return row


def _sizes(layer: object, *names: str) -> tuple[int, ...]:
    """Return the first of these attributes that a convolution or pooling has; empty for other layers."""
    value = next((value for name in names if (value := getattr(layer, name, None)) is not None), ())
    sizes = value if isinstance(value, tuple | list) else (value,)
    return tuple(sizes) if all(isinstance(size, int) for size in sizes) else ()


def _groups(layer: object) -> int | None:
    groups = getattr(layer, "groups", None)
    return groups if isinstance(groups, int) and _sizes(layer, "kernel_size") else None


def _bytes(call: LayerCall) -> Bytes | None:
    """Return the bytes of the call's results, over all repetitions."""
    scale = None if call.counted is None else call.counted.activation_size
    if scale is not None:
        return call.times * call.outputs.elements * scale
    nbytes = call.outputs.nbytes
    return None if nbytes is None else call.times * nbytes


def uncovered(calls: Iterable[LayerCall]) -> dict[str, int]:
    """Calls by operation without a formula, but for those of layers whose own formula says what they cost."""
    missed: Counter[str] = Counter()
    for call in calls:
        if not call.has_formula:
            missed.update(call.uncovered)
    return dict(missed)


ON_SHAPES = "shapes"


def count_layers(
    model: object, inputs: Inputs, formulas: Formulas = DEFAULTS, fallback: Fallback | None = None
) -> LayerTable:
    """The layers of ``model`` for one step on ``inputs`` in inference; it is left as it was found, and built if it was not.

    Args:
        model: a Keras layer or model; any other callable is counted by the fallback.
        inputs: their shapes and data types are all that is used, with the axes where the model expects them.
        fallback: counts a layer that cannot be called on symbolic tensors; without one it is listed as uncovered.

    Raises:
        Exception: whatever the model, or a formula, raised.
    """
    given = as_called(model, inputs).map(symbolic)
    trace = SymbolicTrace(formulas, fallback)
    tensors = tensors_in((given.args, dict(given.kwargs)))
    outputs = traced(model, given, trace)
    return LayerTable(
        rows=rows_of(trace, model),
        uncovered=uncovered((*trace.calls, trace.outside)),
        method=_method(trace),
        operator_calls=trace.operator_calls,
        liveness=live_bytes(trace.ran, tensors, tensors_in(outputs)),
    )


def _step(model: object, given: Inputs) -> Callable[..., object]:
    return lambda *args, **kwargs: Inputs(args, kwargs, given.forward).call(model)


def traced(model: object, given: Inputs, trace: SymbolicTrace) -> object:
    """Return the symbolic result of ``model`` for symbolic inputs, recorded by ``trace``.

    Raises:
        Exception: whatever the model, or a formula, raised.
    """
    try:
        with patching(trace):
            if not isinstance(model, keras.Layer):
                return trace.function(model, _step(model, given), given.args, dict(given.kwargs))
            if given.forward is None and private.takes_training(model):
                return model(*given.args, **{"training": trace.is_training, **given.kwargs})
            return given.call(model)
    except (CannotCall, FormulaFailed) as failed:
        raise failed.error from None


def _method(trace: SymbolicTrace) -> str:
    if not trace.fallen_back:
        return ON_SHAPES
    path, reason = next(iter(trace.fallen_back.items()))
    others = len(trace.fallen_back) - 1
    return f"{ON_SHAPES}; as a graph {path}{f' and {others} more' if others else ''}: {reason}"


# Training

NOT_COUNTED = "the backward of Keras models is not counted"


def count_training(
    model: object, inputs: Inputs, formulas: Formulas = DEFAULTS, fallback: Fallback | None = None
) -> Training:
    """One training step of ``model`` on ``inputs``: the forward is counted in training mode, the backward estimated as twice that.

    Raises:
        Unsupported: no parameter is trained.
        Exception: whatever the model, or a formula, raised.
    """
    given = as_called(model, inputs).map(symbolic)
    trace = SymbolicTrace(formulas, fallback, is_training=True)
    traced(model, given, trace)
    if not isinstance(model, keras.Layer) or not any(weight.trainable for weight in model.trainable_variables):
        raise Unsupported("no parameter requires a gradient")
    costs = [call.costs for call in (*trace.calls, trace.outside)]
    macs, flops = sum(cost[0] for cost in costs), sum(cost[1] for cost in costs)
    return estimated_training(macs, flops, NOT_COUNTED, uncovered((*trace.calls, trace.outside)))
