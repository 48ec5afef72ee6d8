"""Records of each layer call while a model is counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import keras
from keras import ops

from sweeprof.backends.keras.tensors import SymbolicTensors, tensors_in
from sweeprof.counting.formulas import Args, Cost, Kwargs, OperatorCost
from sweeprof.measuring.inputs import Inputs
from sweeprof.results.layer_times import OUTSIDE, ROOT
from sweeprof.results.layers import OperatorCount


class LayerCall:
    """One call of one layer, or ``times`` equal ones: the steps of a recurrent network are one call of its cell."""

    __slots__ = (
        *("children", "counted", "inputs", "layer", "operator_calls", "operators", "outputs", "parent", "path"),
        *("in_graph", "times", "uncovered"),
    )

    def __init__(self, layer: Any, path: str, parent: LayerCall | None, times: int = 1) -> None:
        self.layer, self.path, self.parent, self.times = layer, path, parent, times
        self.children = 0
        self.in_graph = False
        """True if a framework traces the call in its own graph, where layers are called on the graph's tensors."""
        self.inputs = self.outputs = SymbolicTensors()
        self.counted: Cost | None = None
        """The cost by a formula of the layer's type, which replaces that of its operations."""
        self.clear()

    def clear(self) -> None:
        """Forget every operation."""
        self.operators: dict[str, list[int]] = {}
        """calls, MACs, FLOPs, ops, input elements, output elements by operation."""
        self.operator_calls = 0
        self.uncovered: Counter[str] = Counter()
        """Calls by operation without a formula."""

    def count(self, name: str, cost: OperatorCost, used: object, made: object, times: int) -> None:
        """Add an operation that ran so many times."""
        self.operator_calls += times
        given, returned = tensors_in(used)[:1], tensors_in(made)[:1]
        figures = (1, *cost, sum(map(_elements, given)), sum(map(_elements, returned)))
        known = self.operators.setdefault(name, [0] * len(figures))
        for index, figure in enumerate(figures):
            known[index] += times * figure

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
        macs, flops, ops = (sum(figures[at] for figures in self.operators.values()) for at in (1, 2, 3))
        message = self.counted
        if message is None:
            return macs, flops, ops
        return (
            macs if message.macs is None else message.macs * self.times,
            flops if message.flops is None else message.flops * self.times,
            ops if message.ops is None else message.ops * self.times,
        )

    @property
    def operator_counts(self) -> tuple[OperatorCount, ...]:
        """Return the operators that the call ran, without those that do no arithmetic."""
        return tuple(OperatorCount(name, *figures) for name, figures in self.operators.items() if any(figures[1:4]))


def uncovered(calls: Iterable[LayerCall]) -> dict[str, int]:
    """Calls by operation without a formula, but for those of layers whose own formula says what they cost."""
    missed: Counter[str] = Counter()
    for call in calls:
        if not call.has_formula:
            missed.update(call.uncovered)
    return dict(missed)


def _elements(tensor: keras.KerasTensor) -> int:
    count = 1
    for size in tensor.shape:
        count *= int(size or 0)
    return count


GRAPHS = (keras.Sequential.call, keras.src.models.Functional.call)
OF_A_CALL = ("training", "mask")
"""Keywords of every layer's call, which are no tensors of the model's own."""


def as_called(model: object, inputs: Inputs) -> Inputs:
    """The arguments as Keras takes them: a model made of a graph has one, and several tensors are a list or a mapping in it."""
    if inputs.forward is not None or getattr(type(model), "call", None) not in GRAPHS:
        return inputs
    if len(inputs.args) > 1 and not inputs.kwargs:
        return Inputs((list(inputs.args),))
    own = {name: value for name, value in inputs.kwargs.items() if name not in OF_A_CALL}
    if not inputs.args and own:
        is_one = len(own) == 1 and not isinstance(getattr(model, "_inputs_struct", None), dict)
        given = next(iter(own.values())) if is_one else own
        return Inputs((given,), {name: value for name, value in inputs.kwargs.items() if name in OF_A_CALL})
    return inputs


def _separable(
    operation: keras.Operation, inputs: keras.KerasTensor, depthwise: keras.KerasTensor, pointwise: keras.KerasTensor
) -> keras.KerasTensor:
    where, dilation = operation.data_format, operation.dilation_rate
    between = ops.depthwise_conv(inputs, depthwise, operation.strides, operation.padding, where, dilation)
    return ops.conv(between, pointwise, 1, "valid", where)


PARTS: dict[str, Callable[..., keras.KerasTensor]] = {"separable_conv": _separable}
"""By the name of an operation, the same by others."""


def output_of(name: str, operation: keras.Operation, args: Args, kwargs: Kwargs) -> keras.KerasTensor:
    """Symbolic outputs of an operation of ``keras.ops`` on symbolic tensors."""
    if name == "conv" and len(args) == 2:
        return operation.compute_output_spec(args[0], _ungrouped(operation, *args))
    if name in ("adaptive_average_pool", "adaptive_max_pool"):
        return _pooled(operation, args[0])
    return operation.compute_output_spec(*args, **kwargs)


def _is_first(operation: keras.Operation) -> bool:
    return bool(keras.src.backend.standardize_data_format(operation.data_format) == "channels_first")


def _ungrouped(operation: keras.Operation, inputs: keras.KerasTensor, kernel: keras.KerasTensor) -> keras.KerasTensor:
    """A kernel for all input channels: Keras knows groups in what it computes, and refuses them in shapes."""
    channels = inputs.shape[1 if _is_first(operation) else -1]
    *space, given, made = kernel.shape
    if given == channels or channels % given:
        return kernel
    return keras.KerasTensor((*space, channels, made), kernel.dtype)


def _pooled(operation: keras.Operation, inputs: keras.KerasTensor) -> keras.KerasTensor:
    """Keras keeps one of the sizes that it pools where the channels are last."""
    batch, *_ = inputs.shape
    size = operation.output_size
    sizes = (size,) * (len(inputs.shape) - 2) if isinstance(size, int) else tuple(size)
    shape = (batch, inputs.shape[1], *sizes) if _is_first(operation) else (batch, *sizes, inputs.shape[-1])
    return keras.KerasTensor(shape, inputs.dtype)


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
