"""Counts a Keras model in one trace over shapes: every layer with its parameters and buffers, and one training step.

The model is called on symbolic tensors, and every layer and every operation of ``keras.ops`` is recorded on the way. Layers that
would hide their arithmetic from such a trace (recurrent layers, batch normalisation) are counted by an override. What cannot be
called on symbolic tensors is counted by the framework's own graph, or listed as uncovered. The forward of a training step is
counted in training mode, and its backward is estimated from it.
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

import keras
from keras import KerasTensor, Layer, layers, ops

from sweeprof.backends import attribute
from sweeprof.backends.keras import calls, private
from sweeprof.backends.keras.calls import (
    as_called,
    described,
    dtype_of,
    elements,
    like,
    symbolic,
    symbolic_in,
    tensors_in,
)
from sweeprof.counting import operators
from sweeprof.counting.file_graph import CountedOperators, OperatorRun, itemsize, peak_of
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
from sweeprof.counting.operators import REAL, estimated_training
from sweeprof.errors import Unsupported, first_line
from sweeprof.measuring.inputs import Inputs
from sweeprof.results.layer_times import OUTSIDE, ROOT
from sweeprof.results.layers import Bytes, LayerRow, LayerTable, Liveness, OperatorCount, Training, Weights

# ---------------------------------------------------------------------------------------------------------------------
# Overrides: what is traced instead of a layer's own call
# ---------------------------------------------------------------------------------------------------------------------

LayerOverride = Callable[..., object]

_RECURRENT = (layers.SimpleRNN, layers.GRU, layers.LSTM, layers.ConvLSTM1D, layers.ConvLSTM2D, layers.ConvLSTM3D)


def hidden_in(layer: Layer) -> list[Layer]:
    """The layers that have no rows, as they are how ``layer`` is made: the cell of an LSTM, but not that of ``RNN(cell)``."""
    return [layer.cell] if isinstance(layer, _RECURRENT) else []


def _recurrent(
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
    call = layer.cell.call if hidden_in(layer) else layer.cell
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
    if layer.invert:
        return _rescaling(trace, layer, inputs)
    return ops.divide(ops.subtract(ops.cast(inputs, layer.compute_dtype), 0.0), 1.0)


def _parametric_relu(trace: SymbolicTrace, layer: Layer, inputs: KerasTensor) -> KerasTensor:
    """PReLU, which Keras computes from two rectifiers."""
    cost = operators.elementwise("leaky_relu", elements(inputs), REAL)
    return _one_operation(trace, layer, "prelu", cost, inputs)


def _dropout(trace: SymbolicTrace, layer: Layer, inputs: KerasTensor, training: bool | None = None) -> KerasTensor:
    """Nothing in inference."""
    outputs = KerasTensor(inputs.shape, inputs.dtype)
    if training and layer.rate:
        trace.count("keras::dropout", operators.dropout(elements(inputs), elements(inputs)), [inputs], outputs)
    else:
        trace.free("view", [inputs], outputs)
    return outputs


def _noise(trace: SymbolicTrace, layer: Layer, inputs: KerasTensor, training: bool | None = None) -> KerasTensor:
    """Random numbers are added or multiplied."""
    return ops.add(inputs, 0.0) if training else inputs


_OVERRIDES: dict[type, LayerOverride] = {
    **dict.fromkeys((layers.RNN, *_RECURRENT), _recurrent),
    layers.TimeDistributed: _time_distributed,
    private.BaseConv: _convolution,
    layers.Softmax: _softmax,
    layers.BatchNormalization: _batch_normalization,
    layers.GroupNormalization: _group_normalization,
    layers.PReLU: _parametric_relu,
    layers.Rescaling: _rescaling,
    layers.Normalization: _normalization,
    **dict.fromkeys((layers.Dropout, layers.SpatialDropout1D, layers.SpatialDropout2D), _dropout),
    **dict.fromkeys((layers.SpatialDropout3D, layers.AlphaDropout), _dropout),
    **dict.fromkeys((layers.GaussianNoise, layers.GaussianDropout), _noise),
}


def override_of(layer: Layer) -> LayerOverride | None:
    """Return the override of the layer's ``call``; None if the layer itself is called."""
    kinds: tuple[Any, ...] = type(layer).__mro__
    for kind in kinds:
        found = _OVERRIDES.get(kind)
        if found is not None:
            return found if kinds[0].call is kind.call else None  # a subclass may compute something else
    return None


# ---------------------------------------------------------------------------------------------------------------------
# What a trace records
# ---------------------------------------------------------------------------------------------------------------------

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
        given = elements(read[0]) if read else 0
        made = elements(written[0]) if written else 0
        self.counts.add(name, cost, given, made, times)

    def miss(self, name: str, times: int) -> None:
        """Note that an operation has no formula."""
        self.operator_calls += times
        self.uncovered[name] += times

    @property
    def costs(self) -> OperatorCost:
        """MACs, FLOPs and ops: those of the operations, or what a formula says instead."""
        own, formula = self.counts, self.counted or Cost()
        return (
            own.macs if formula.macs is None else formula.macs * self.times,
            own.flops if formula.flops is None else formula.flops * self.times,
            own.ops if formula.ops is None else formula.ops * self.times,
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
        new: dict[Hashable, Bytes] = {}
        for tensor in tensors:
            if id(tensor) not in known:
                known.add(id(tensor))
                new[id(tensor)] = elements(tensor) * itemsize(dtype_of(tensor))
        return new

    for run in ran:
        operands = [*map(id, run.used), *(id(tensor) for tensor in run.made if id(tensor) in known)]
        before = memory_of(run.used)
        if before:
            runs.append(OperatorRun(run.path, (), before))
        in_place = None if run.in_place is None else id(run.in_place)
        runs.append(OperatorRun(run.path, operands, memory_of(run.made), in_place))
    unmade = memory_of(outputs)
    if unmade and runs:
        runs.insert(-1, OperatorRun(runs[-1].path, (), unmade))
    return peak_of(runs, map(id, outputs), described(inputs).nbytes or 0)


# ---------------------------------------------------------------------------------------------------------------------
# The trace
# ---------------------------------------------------------------------------------------------------------------------


class SymbolicTrace:
    """Follows one forward of a model."""

    def __init__(self, formulas: Formulas, fallback: Fallback | None = None, is_training: bool = False) -> None:
        self.outside = self.current = LayerCall(None, OUTSIDE, None)
        self.calls: list[LayerCall] = []
        self.ran: list[OperationRun] = []
        """Every operation in its order."""
        self.variables: list[Any] = []
        """Variables that the forward reads, of a model that is not a Keras layer."""
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
    def all_calls(self) -> list[LayerCall]:
        """The calls of layers, and what ran outside of them."""
        return [*self.calls, self.outside]

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
            CannotCall: the layer raised an error, and so did its traced graph.
        """
        call = LayerCall(layer, self.paths.below(self.current.path, layer), self.current, self.times)
        self.current.children += 1
        given = (*args, *(value for name, value in kwargs.items() if name not in calls.OF_A_CALL and value is not None))
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
        """Count a model that is not a layer as a whole, in the framework's graph; ``compute`` calls it."""
        call = LayerCall(model, self.paths.below(OUTSIDE, None), self.outside)
        return self._called(
            call, (args, kwargs), lambda: self._fallen_back(call, "it is no Keras layer", compute, args, kwargs)
        )

    def _computed(self, call: LayerCall, args: Args, kwargs: Kwargs) -> object:
        layer, start_over = call.layer, self.beginning()
        compute, instead = layer.call, override_of(layer)
        if layer.quantization_mode is not None:
            compute, instead = layer.quantized_call, None
        try:
            if instead is not None:
                return instead(self, layer, *args, **kwargs)
            return compute(*args, **kwargs)
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
        name, is_own = _operation_name(kind)
        title, used = PREFIX + name, (args, kwargs)
        written = self.formulas.of_operator(title)
        if written is None and not is_own:
            return operation.call(*args, **kwargs)  # a user's: counted by its parts
        if written is None and name == "separable_conv":
            inputs, depthwise, pointwise = args
            where, dilation = operation.data_format, operation.dilation_rate
            between = ops.depthwise_conv(inputs, depthwise, operation.strides, operation.padding, where, dilation)
            return ops.conv(between, pointwise, 1, "valid", where)
        with self.paused():
            outputs = _output_of(name, operation, args, kwargs)
        if written is not None:
            self.count(title, operator_cost(written, args, kwargs, outputs), used, outputs)
        elif is_own and name in calls.COSTS:
            self.count(title, calls.COSTS[name](calls.call_of(name, operation, args, kwargs, outputs)), used, outputs)
        elif name in calls.FREE:
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
        """Note an operation that does no arithmetic; converting a tensor to a tensor does not count as an operation."""
        if name != "convert_to_tensor":
            self.current.operator_calls += self.times
        read, written = tensors_in(used), tensors_in(made)
        inputs = symbolic_in(read)
        is_view = bool(inputs) and (name in calls.VIEWS or (name == "cast" and inputs[0].dtype == written[0].dtype))
        self._ran(read, written, inputs[0] if is_view else None)

    def miss(self, name: str, used: object, made: object) -> None:
        """Note an operation without a formula."""
        self.current.miss(name, self.times)
        self.passed(used, made)

    def passed(self, used: object, made: object) -> None:
        """Note that a tensor is made of others by what is no operation: all time steps of one, or one of all."""
        self._ran(tensors_in(used), tensors_in(made))

    def _ran(self, read: list[KerasTensor], written: list[KerasTensor], in_place: KerasTensor | None = None) -> None:
        self.ran.append(OperationRun(self.current.path, symbolic_in(read), symbolic_in(written), in_place))


@cache
def _operation_name(kind: type) -> tuple[str, bool]:
    """The name of an operation's class in small letters, and whether it is one of Keras."""
    spaced = re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", kind.__name__)
    name = re.sub(r"([a-z])([A-Z])", r"\1_\2", spaced).lower()
    return name.replace("re_lu", "relu"), kind.__module__.startswith(private.OWN_MODULES)


def _output_of(name: str, operation: keras.Operation, args: Args, kwargs: Kwargs) -> KerasTensor:
    """Symbolic outputs of an operation of ``keras.ops``, also where Keras does not tell their shapes, or tells wrong ones."""
    if name == "conv" and len(args) == 2:
        # Keras knows groups in what it computes, and refuses them in shapes: it gets a kernel for all input channels.
        inputs, kernel = args
        channels = inputs.shape[1 if _is_channels_first(operation) else -1]
        *space, given, made = kernel.shape
        if given != channels and channels % given == 0:
            kernel = KerasTensor((*space, channels, made), kernel.dtype)
        return operation.compute_output_spec(inputs, kernel)
    if name == calls.ATTENTION:
        # Keras says that the result is as wide as the queries, and it is as wide as the values.
        query, _, value = args[:3]
        dtype = operation.compute_output_spec(*args, **kwargs).dtype
        return KerasTensor((*query.shape[:-1], value.shape[-1]), dtype)
    if name in ("adaptive_average_pool", "adaptive_max_pool"):
        # Keras keeps one of the sizes that it pools where the channels are last.
        inputs, size = args[0], operation.output_size
        sizes = (size,) * (len(inputs.shape) - 2) if isinstance(size, int) else tuple(size)
        batch, *_, last = inputs.shape
        if _is_channels_first(operation):
            return KerasTensor((batch, inputs.shape[1], *sizes), inputs.dtype)
        return KerasTensor((batch, *sizes, last), inputs.dtype)
    return operation.compute_output_spec(*args, **kwargs)


def _is_channels_first(operation: keras.Operation) -> bool:
    return bool(private.backend.standardize_data_format(operation.data_format) == "channels_first")


# ---------------------------------------------------------------------------------------------------------------------
# Patches of Keras
# ---------------------------------------------------------------------------------------------------------------------

KerasFunction = Callable[..., Any]


@contextmanager
def patching(trace: SymbolicTrace) -> Iterator[None]:
    """Within it ``trace`` sees the calls of layers and operations on symbolic tensors; afterwards Keras is as it was."""
    build, call, backend = attribute(keras.Layer, "_maybe_build"), keras.Layer.__call__, private.backend

    def built(layer: keras.Layer, call_spec: object) -> None:
        with trace.paused():  # a model may call its layers on symbolic tensors to build them
            build(layer, call_spec)

    def called(layer: keras.Layer, *args: object, **kwargs: object) -> object:
        return trace.layer_on_values(call, layer, args, kwargs)

    with ExitStack() as stack:

        def patch(owner: object, name: str, instead: KerasFunction) -> None:
            """Call ``instead`` where the trace sees it."""
            before = getattr(owner, name)

            def function(*args: object, **kwargs: object) -> object:
                return instead(*args, **kwargs) if trace.sees() else before(*args, **kwargs)

            stack.enter_context(private.replaced(owner, name, function))

        patch(keras.Layer, "__call__", called)
        patch(keras.Layer, "_maybe_build", built)
        patch(keras.Layer, "symbolic_call", lambda layer, *args, **kwargs: trace.layer(layer, args, kwargs))
        patch(
            keras.Operation,
            "symbolic_call",
            lambda operation, *args, **kwargs: trace.operation(operation, args, kwargs),
        )
        # A model keeps no trace of it: no losses, and no nodes between layers. Masks of dropout are no part of a step.
        for owner, name in (
            (keras.Layer, "add_loss"),
            (private.layer_module, "Node"),
            (private.DropoutRNNCell, "get_dropout_mask"),
            (private.DropoutRNNCell, "get_recurrent_dropout_mask"),
        ):
            patch(owner, name, lambda *_, **__: None)
        mish = private.Mish
        for owner, name, instead in (
            (backend, "convert_to_tensor", _cast),
            (backend, "cast", _cast),
            (mish, "static_call", mish()),
        ):
            function = _of_symbolic(instead, getattr(owner, name))
            if owner is mish:
                function = staticmethod(function)
            stack.enter_context(private.replaced(owner, name, function))
        for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul"):
            method = f"__{name}__"
            function = _left_to_tensor(getattr(backend.Variable, method))
            stack.enter_context(private.replaced(backend.Variable, method, function))
        if keras.config.is_traceback_filtering_enabled():  # it explains, in every call, errors that nobody sees here
            stack.callback(keras.config.enable_traceback_filtering)
            keras.config.disable_traceback_filtering()
        yield


def _of_symbolic(instead: KerasFunction, before: KerasFunction) -> KerasFunction:
    """``instead`` for symbolic tensors."""

    def function(value: object, *args: object, **kwargs: object) -> object:
        if isinstance(value, KerasTensor):
            return instead(value, *args, **kwargs)
        return before(value, *args, **kwargs)

    return function


def _cast(value: object, dtype: object = None, **_: object) -> Any:
    return value if dtype is None else ops.cast(value, dtype)


def _left_to_tensor(before: KerasFunction) -> KerasFunction:
    """``variable * tensor`` is the symbolic tensor's to answer."""

    def operator(variable: keras.Variable, other: object) -> Any:
        return NotImplemented if isinstance(other, KerasTensor) else before(variable, other)

    return operator


# ---------------------------------------------------------------------------------------------------------------------
# The layer table
# ---------------------------------------------------------------------------------------------------------------------

_STORED_SMALLER = frozenset({"int8", "int4", "gptq", "awq"})
"""Quantisations that store weights otherwise; ``float8`` scales them as it computes."""
LayersBelow = Mapping[int, list[keras.Layer]]
"""By the identity of a layer, those that it holds or calls."""
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
    method = ON_SHAPES
    if trace.fallen_back:
        path, reason = next(iter(trace.fallen_back.items()))
        others = len(trace.fallen_back) - 1
        more = f" and {others} more" if others else ""
        method = f"{ON_SHAPES}; as a graph {path}{more}: {reason}"
    return LayerTable(
        rows=rows_of(trace, model),
        uncovered=uncovered(trace.all_calls),
        method=method,
        operator_calls=sum(call.operator_calls for call in trace.all_calls),
        liveness=live_bytes(trace.ran, tensors, tensors_in(outputs)),
    )


def traced(model: object, given: Inputs, trace: SymbolicTrace) -> object:
    """Return the symbolic result of ``model`` for symbolic inputs, recorded by ``trace``.

    Raises:
        Exception: whatever the model, or a formula, raised.
    """

    def step(*args: object, **kwargs: object) -> object:
        return Inputs(args, kwargs, given.forward).call(model)

    try:
        with patching(trace):
            if not isinstance(model, keras.Layer):
                return trace.function(model, step, given.args, dict(given.kwargs))
            if given.forward is None and private.takes_training(model):
                return model(*given.args, **{"training": trace.is_training, **given.kwargs})
            return given.call(model)
    except (CannotCall, FormulaFailed) as failed:
        raise failed.error from None


def uncovered(calls: Iterable[LayerCall]) -> dict[str, int]:
    """Calls by operation without a formula, but for those of layers whose own formula says what they cost, even if "unknown"."""
    missed: Counter[str] = Counter()
    for call in calls:
        if call.counted is None or (call.counted.macs is None and call.counted.flops is None):
            missed.update(call.uncovered)
    return dict(missed)


def rows_of(trace: SymbolicTrace, root: object) -> tuple[LayerRow, ...]:
    """One row per call in the order of the calls, then every layer that was never called."""
    below: dict[int, list[keras.Layer]] = {}
    waiting = [root, *(call.layer for call in trace.calls)]
    while waiting:
        layer = waiting.pop()
        if id(layer) not in below:
            below[id(layer)] = parts_of(layer)
            waiting += below[id(layer)]
    for call in trace.calls:
        if call.parent is not None and id(call.parent.layer) in below:
            inner = below[id(call.parent.layer)]
            if not any(layer is call.layer for layer in inner):
                inner.append(call.layer)
    own_weights, subtree = inventory(root, below, trace)
    position: dict[LayerCall | None, int] = {}
    times: Counter[str] = Counter()
    rows: list[LayerRow] = []

    def add(call: LayerCall, index: int) -> None:
        position[call] = len(rows)
        own = own_weights.pop(id(call.layer), Weights())  # the first call of a layer has its weights
        rows.append(_row(call, own, subtree.get(id(call.layer)), index, position.get(call.parent)))

    paths: dict[int, str] = {}
    for call in trace.calls:
        paths.setdefault(id(call.layer), call.path)
        add(call, times[call.path])
        times[call.path] += 1
    for layer in _reached(root, below).values():
        for part in parts_of(layer):
            if id(part) not in paths:
                paths[id(part)] = trace.paths.below(paths.get(id(layer), ROOT), part)
                add(LayerCall(part, paths[id(part)], None), -1)
    if trace.outside.counts.operators:
        rows.append(_row(trace.outside, Weights(), None, 0, None))
    return tuple(rows)


def inventory(root: object, below: LayersBelow, trace: SymbolicTrace) -> tuple[dict[int, Weights], dict[int, Weights]]:
    """The weights of every layer, by the identity of the layer.

    The first are a layer's own, without what a layer before it holds already; the second with everything below, each variable once.
    """
    sizes = {id(call.layer): call.counted.param_size for call in trace.calls if call.counted is not None}
    reached = _reached(root, below)
    held: dict[int, list[Variable]] = {}
    for identity, layer in reached.items():
        held[identity] = _variables(layer, sizes.get(identity, {}), trace.variables)
    before: set[Hashable] = set()
    own, subtree = {}, {}
    for identity, layer in reached.items():
        fresh = {variable.key: variable for variable in held[identity] if variable.key not in before}
        before.update(fresh)
        own[identity] = summed(fresh.values())
        inner = {}
        for found in _reached(layer, below):
            inner.update({variable.key: variable for variable in held[found]})
        subtree[identity] = summed(inner.values())
    return own, subtree


def _reached(root: object, below: LayersBelow) -> dict[int, Any]:
    """The root and every layer below it by identity, each once, parents first."""
    found: dict[int, Any] = {}
    waiting = [root]
    while waiting:
        layer = waiting.pop()
        if id(layer) not in found:
            found[id(layer)] = layer
            waiting += reversed(below[id(layer)])
    return found


def _variables(layer: Any, sizes: ParamSize, read: Sequence[Any]) -> list[Variable]:
    """Parameters, and state that no optimizer sees.

    Keras keeps what an optimizer may change in ``_trainable_variables`` whether or not the layer is frozen; its public lists move
    frozen parameters in with moving statistics. The weights of a quantised layer, which no optimizer can change, are parameters
    too. The state of a random generator does not count. A model that is not a Keras layer has the variables that it lists, as
    a signature of a SavedModel does, or those that its forward reads.
    """
    found = []
    if not isinstance(layer, keras.Layer):
        for variable in getattr(layer, "variables", read):
            dtype, is_buffer = dtype_of(variable), not variable.trainable
            size, number = itemsize(dtype), prod(variable.shape)
            found.append(Variable(id(variable), number, size, dtype, variable.trainable, is_buffer))
        return found
    for owner in (layer, *hidden_in(layer)):
        is_quantised = owner.quantization_mode in _STORED_SMALLER
        found += [_described(variable, sizes, is_buffer=False) for variable in private.own_parameters(owner)]
        for variable in private.own_state(owner):
            if not variable.path.endswith("seed_generator_state"):
                found.append(_described(variable, sizes, is_buffer=not is_quantised))
    return found


def _described(variable: keras.Variable, sizes: ParamSize, *, is_buffer: bool) -> Variable:
    dtype = private.stored_dtype(variable)
    size = declared_size(sizes, variable.name, itemsize(dtype), is_buffer)
    return Variable(id(variable), prod(variable.shape), size, dtype, bool(variable.trainable), is_buffer)


def parts_of(layer: object) -> list[keras.Layer]:
    """The layers that a layer holds, but for inputs, which do nothing, and those that are how it is made."""
    if not isinstance(layer, keras.Layer):
        return []
    hidden = [*map(id, hidden_in(layer))]
    parts = private.children_of(layer)
    return [part for part in parts if not isinstance(part, keras.layers.InputLayer) and id(part) not in hidden]


def _row(call: LayerCall, own: Weights, subtree: Weights | None, index: int, parent: int | None) -> LayerRow:
    inputs, outputs, formula = call.inputs, call.outputs, call.counted or Cost()
    nbytes: Bytes | None = None
    if formula.activation_size is not None:
        nbytes = call.times * outputs.elements * formula.activation_size
    elif outputs.nbytes is not None:
        nbytes = call.times * outputs.nbytes
    row = layer_row(
        call.path,
        type(call.layer).__name__ if isinstance(call.layer, keras.Layer) else "",
        own,
        call.costs,
        inputs._replace(shapes=formula.input_shapes or inputs.shapes),
        outputs._replace(shapes=formula.output_shapes or outputs.shapes, nbytes=nbytes),
        is_leaf=not call.children,
    )
    row.call, row.parent, row.subtree = index, parent, subtree
    row.operators = call.operator_counts
    row.kernel_size = _sizes(call.layer, "kernel_size") or _sizes(call.layer, "pool_size")
    row.stride = _sizes(call.layer, "strides")
    groups = getattr(call.layer, "groups", None)
    if isinstance(groups, int) and _sizes(call.layer, "kernel_size"):
        row.groups = groups
    return row


def _sizes(layer: object, name: str) -> tuple[int, ...]:
    """Return such an attribute of a convolution or pooling; empty for other layers."""
    value = getattr(layer, name, None)
    sizes = value if isinstance(value, tuple | list) else (value,)
    return tuple(sizes) if all(isinstance(size, int) for size in sizes) else ()


# ---------------------------------------------------------------------------------------------------------------------
# Training
# ---------------------------------------------------------------------------------------------------------------------

NOT_COUNTED = "the backward of Keras models is not counted"


def count_training(
    model: object, inputs: Inputs, formulas: Formulas = DEFAULTS, fallback: Fallback | None = None
) -> Training:
    """One training step of ``model`` on ``inputs``: the forward is counted in training mode, the backward estimated as twice that.

    Raises:
        Unsupported: no parameter is trained.
        Exception: whatever the model, or a formula, raised.
    """
    trace = SymbolicTrace(formulas, fallback, is_training=True)
    traced(model, as_called(model, inputs).map(symbolic), trace)
    if not isinstance(model, keras.Layer) or not any(weight.trainable for weight in model.trainable_variables):
        raise Unsupported("no parameter requires a gradient")
    costs = [call.costs for call in trace.all_calls]
    macs, flops = sum(cost[0] for cost in costs), sum(cost[1] for cost in costs)
    return estimated_training(macs, flops, NOT_COUNTED, uncovered(trace.all_calls))
