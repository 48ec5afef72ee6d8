"""Calls a model on symbolic tensors and records every layer and every operation of ``keras.ops`` on the way.

Nothing is computed and nothing allocated: a symbolic tensor is a shape and a data type. An operation is counted by a formula,
known to do no arithmetic, opened into its parts where a user wrote it, or listed as uncovered; there is no silent zero.

Some functions of Keras are replaced while a symbolic trace runs, in its thread only. Layers and operations that are called on
symbolic tensors are the trace's to answer. They leave no nodes behind, so that the caller's model stays as it was. What Keras
would hand to its backend on the way goes to ``keras.ops``.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any

import keras
from keras import KerasTensor
from keras.src import backend
from keras.src.activations.activations import Mish
from keras.src.layers import layer as layers_of_keras
from keras.src.layers.rnn.dropout_rnn_cell import DropoutRNNCell
from keras.src.ops.operation import Operation

from sweeprof.backends.keras.autodiff_tape import TapeEntry, entry
from sweeprof.backends.keras.calls import PARTS, LayerCall, Paths, output_of
from sweeprof.backends.keras.costs import COSTS, FREE, VIEWS, KerasCall
from sweeprof.backends.keras.layer_overrides import count_adapted, override_of
from sweeprof.backends.keras.tensors import TensorLifetimes, described, symbolic, tensors_in
from sweeprof.counting.formulas import Args, FormulaFailed, Formulas, Kwargs, OperatorCost, cost_by_formula
from sweeprof.results.layer_times import OUTSIDE

Fallback = Callable[["SymbolicTrace", Callable[..., object], Args, Kwargs], object]
"""Counts what cannot be called on symbolic tensors, in a framework's own graph; returns symbolic outputs."""
PREFIX = "keras::"
"""Before the names of operations, which other frameworks call otherwise or give another meaning."""


class CannotCall(Exception):
    """The model itself raised ``error``."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class SymbolicTrace:
    """Follows one forward of a model."""

    def __init__(self, formulas: Formulas, fallback: Fallback | None = None) -> None:
        self.outside = self.current = LayerCall(None, OUTSIDE, None)
        self.calls: list[LayerCall] = []
        self.lifetimes = TensorLifetimes()
        self.paths = Paths()
        self.fallen_back: dict[str, str] = {}
        """Paths of layers that were counted otherwise, with the reason."""
        self.tape: list[TapeEntry] | None = None
        """Every operation in its order, where a backward is to be counted."""
        self._formulas, self._fallback = formulas, fallback
        self.times = 1
        self._is_paused = False
        self._thread = threading.get_ident()
        self._product: keras.KerasTensor | None = None
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
        call, calls, events = self.current, len(self.calls), self.lifetimes.mark()

        def start_over() -> None:
            del self.calls[calls:]
            self.lifetimes.forget(events)
            call.clear()
            call.children = 0
            self.current = call

        return start_over

    def layer(self, layer: keras.Layer, args: Args, kwargs: Kwargs) -> object:
        """One call of a layer on symbolic tensors; what it returns.

        Raises:
            FormulaFailed: the formula of the layer's type did.
            CannotCall: the layer raised something, and what it is traced to instead did too.
        """
        parent = self.current
        call = LayerCall(layer, self.paths.below(parent.path, layer), parent, self.times)
        context = ("training", "mask")
        given = (*args, *(value for name, value in kwargs.items() if name not in context and value is not None))
        call.inputs = described(given)
        parent.children += 1
        self.calls.append(call)
        self.current = call
        try:
            outputs = self._computed(call, args, kwargs)
        finally:
            self.current = parent
        call.outputs = described(outputs)
        formula = self._formulas.of_module(layer)
        if formula is not None:
            call.counted = cost_by_formula(formula, layer, given, outputs)
        return outputs

    def layer_on_values(self, compute: Callable[..., object], layer: keras.Layer, args: Args, kwargs: Kwargs) -> object:
        """A call of a layer on tensors that do not depend on the inputs, as learned queries are: on symbolic ones like them.

        ``compute`` calls it. What has values only is computed, and is uncovered.
        """
        given = tensors_in((args, kwargs))
        if self.current.in_graph or not given or any(isinstance(tensor, keras.KerasTensor) for tensor in given):
            return compute(layer, *args, **kwargs)
        call, calls, events = self.current, len(self.calls), self.lifetimes.mark()
        children = call.children
        try:
            instead = keras.tree.map_structure(symbolic, (args, kwargs))
            self.passed(given, tensors_in(instead))
            return compute(layer, *instead[0], **instead[1])
        except FormulaFailed:
            raise
        except Exception as error:  # a layer may raise anything when it meets a symbolic tensor
            del self.calls[calls:]
            self.lifetimes.forget(events)
            self.current, call.children = call, children
            self.fallen_back.setdefault(call.path, _message_of(error))
            with self.paused():
                outputs = compute(layer, *args, **kwargs)
            self.miss(type(layer).__name__, (args, kwargs), outputs)
            return outputs

    def function(self, model: object, compute: Callable[..., object], args: Args, kwargs: Kwargs) -> object:
        """A model that is no layer, counted as a whole in the framework's graph; ``compute`` calls it."""
        call = LayerCall(model, self.paths.below(OUTSIDE, None), self.outside)
        call.inputs = described((args, kwargs))
        self.calls.append(call)
        self.current = call
        try:
            outputs = self._fallen_back(call, "it is no Keras layer", compute, args, kwargs)
        finally:
            self.current = self.outside
        call.outputs = described(outputs)
        return outputs

    def _computed(self, call: LayerCall, args: Args, kwargs: Kwargs) -> object:
        layer, start_over = call.layer, self.beginning()
        compute = layer.quantized_call if layer.quantization_mode is not None else layer.call
        instead = override_of(layer)
        try:
            count_adapted(self, layer)
            return compute(*args, **kwargs) if instead is None else instead(self, layer, *args, **kwargs)
        except (FormulaFailed, CannotCall):
            raise
        except Exception as error:  # a layer may raise anything when it meets a symbolic tensor
            start_over()
            return self._fallen_back(call, _message_of(error), compute, args, kwargs)

    def _fallen_back(
        self, call: LayerCall, reason: str, compute: Callable[..., object], args: Args, kwargs: Kwargs
    ) -> object:
        self.fallen_back.setdefault(call.path, reason)
        call.in_graph = True
        try:
            if self._fallback is not None:
                return self._fallback(self, compute, args, kwargs)
            with self.paused():
                outputs = keras.src.backend.compute_output_spec(compute, *args, **kwargs)
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
        written = self.formula_of(PREFIX + name)
        rule = COSTS.get(name) if is_own else None
        if written is None and not is_own:
            return operation.call(*args, **kwargs)  # a user's: counted by its parts
        if written is None and name in PARTS:
            return PARTS[name](operation, *args, **kwargs)
        with self.paused():
            outputs = output_of(name, operation, args, kwargs)
        if written is not None:
            self.count(PREFIX + name, written(args, kwargs, outputs), (args, kwargs), outputs)
        elif rule is not None:
            self.count(PREFIX + name, rule(KerasCall(operation, args, kwargs, outputs)), (args, kwargs), outputs)
        elif name in FREE:
            self.free(name, (args, kwargs), outputs)
        else:
            self.miss(PREFIX + name, (args, kwargs), outputs)
        return outputs

    def formula_of(self, name: str) -> Callable[[Sequence[object], Kwargs, object], OperatorCost] | None:
        """Return a user's formula for an operation as a function of arguments and result; ``name`` is that of tables."""
        written = self._formulas.of_operator(name)
        if written is None:
            return None

        def cost(args: Sequence[object], kwargs: Kwargs, output: object) -> OperatorCost:
            message = cost_by_formula(written, args, kwargs, output)
            macs = message.macs or 0
            flops = 2 * macs if message.flops is None else message.flops
            return macs, flops, flops if message.ops is None else message.ops

        return cost

    def count(self, name: str, cost: OperatorCost, used: object, made: object) -> None:
        """Add an operation to the call that is running."""
        self.current.count(name, cost, used, made, self.times)
        read, written = _symbolic(used), _symbolic(made)
        # A bias is added where the product is, as every framework does it in one kernel or one buffer.
        is_bias = name == f"{PREFIX}add" and len(read) == 1 and read[0] is self._product
        self._ran(name, cost, used, made, read[0] if is_bias else None)
        if cost[0]:
            self._product = written[0]

    def free(self, name: str, used: object, made: object) -> None:
        """Note an operation that does no arithmetic; to take a tensor for a tensor is none."""
        self.current.operator_calls += self.times if name != "convert_to_tensor" else 0
        read, written = _symbolic(used), _symbolic(made)
        is_view = bool(read) and (name in VIEWS or (name == "cast" and read[0].dtype == written[0].dtype))
        self._ran(name, None, used, made, read[0] if is_view else None)

    def miss(self, name: str, used: object, made: object) -> None:
        """Note an operation without a formula."""
        self.current.miss(name, self.times)
        self._ran(name, None, used, made, None)

    def passed(self, used: object, made: object) -> None:
        """Note that a tensor is made of others by what is no operation: all time steps of one, or one of all."""
        self._ran("time", None, used, made, None)

    def _ran(
        self, name: str, cost: OperatorCost | None, used: object, made: object, in_place: keras.KerasTensor | None
    ) -> None:
        self.lifetimes.ran(self.current.path, _symbolic(used), _symbolic(made), in_place)
        if self.tape is not None:
            name = name.removeprefix(PREFIX)
            self.tape.append(entry(name, self.current, cost, used, made, in_place, self.times))


@cache
def _named(kind: type) -> tuple[str, bool]:
    """The name of an operation's class in small letters, and whether it is one of Keras."""
    spaced = re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", kind.__name__)
    name = re.sub(r"([a-z])([A-Z])", r"\1_\2", spaced).lower()
    return name.replace("re_lu", "relu"), kind.__module__.startswith("keras.src.")


def _symbolic(tree: object) -> list[keras.KerasTensor]:
    return [tensor for tensor in tensors_in(tree) if isinstance(tensor, keras.KerasTensor)]


def _message_of(error: Exception) -> str:
    """Return the message of an error in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}"[:200] if lines else type(error).__name__


KerasFunction = Callable[..., object]


@contextmanager
def patching(trace: SymbolicTrace) -> Iterator[None]:
    """Within it ``trace`` sees the calls of layers and operations on symbolic tensors; afterwards Keras is as it was."""
    with ExitStack() as stack:
        for owner, name, instead in _changes(trace):
            stack.enter_context(replaced(owner, name, instead))
        if (
            keras.config.is_traceback_filtering_enabled()
        ):  # it wraps every call, to explain errors that nobody sees here
            stack.callback(keras.config.enable_traceback_filtering)
            keras.config.disable_traceback_filtering()
        yield


def _changes(trace: SymbolicTrace) -> Iterator[tuple[object, str, KerasFunction]]:
    """Class or module, name, and what is there instead."""

    def seen(owner: object, name: str, instead: KerasFunction) -> tuple[object, str, KerasFunction]:
        before = getattr(owner, name)

        def function(*args: object, **kwargs: object) -> object:
            return instead(*args, **kwargs) if trace.sees() else before(*args, **kwargs)

        return owner, name, function

    def build(layer: keras.Layer, call_spec: object) -> None:
        with trace.paused():  # a model may call its layers on symbolic tensors to build them
            before(layer, call_spec)

    def called(layer: keras.Layer, *args: object, **kwargs: object) -> object:
        return trace.layer_on_values(call, layer, args, kwargs)

    before, call = keras.Layer._maybe_build, keras.Layer.__call__
    yield seen(keras.Layer, "__call__", called)
    yield seen(keras.Layer, "_maybe_build", build)
    yield seen(Operation, "symbolic_call", lambda operation, *args, **kwargs: trace.operation(operation, args, kwargs))
    yield seen(keras.Layer, "symbolic_call", lambda layer, *args, **kwargs: trace.layer(layer, args, kwargs))
    yield seen(keras.Layer, "add_loss", _nothing)
    yield seen(layers_of_keras, "Node", _nothing)
    yield seen(DropoutRNNCell, "get_dropout_mask", _nothing)
    yield seen(DropoutRNNCell, "get_recurrent_dropout_mask", _nothing)
    yield backend, "convert_to_tensor", _or_cast(backend.convert_to_tensor)
    yield backend, "cast", _or_cast(backend.cast)
    yield Mish, "static_call", staticmethod(_or(Mish(), Mish.static_call))
    for name in "add sub mul truediv floordiv mod pow matmul".split():
        method = f"__{name}__"
        yield backend.Variable, method, _left_to_tensor(getattr(backend.Variable, method))


def _nothing(*_: object, **__: object) -> None:
    return None


def _or(instead: KerasFunction, before: KerasFunction) -> KerasFunction:
    """``instead`` for symbolic tensors."""

    def function(value: object, *args: object, **kwargs: object) -> object:
        return (instead if isinstance(value, KerasTensor) else before)(value, *args, **kwargs)

    return function


def _or_cast(before: KerasFunction) -> KerasFunction:
    def cast(value: object, dtype: object = None, **_: object) -> Any:
        return value if dtype is None else keras.ops.cast(value, dtype)

    return _or(cast, before)


def _left_to_tensor(before: KerasFunction) -> KerasFunction:
    """``variable * tensor`` is the symbolic tensor's to answer."""

    def operator(variable: keras.Variable, other: object) -> Any:
        return NotImplemented if isinstance(other, KerasTensor) else before(variable, other)

    return operator


@contextmanager
def replaced(owner: object, name: str, value: object) -> Iterator[None]:
    """Within it an attribute of a class or module is another one."""
    before = vars(owner).get(name, _ABSENT)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if before is _ABSENT:
            delattr(owner, name)
        else:
            setattr(owner, name, before)


_ABSENT = object()
