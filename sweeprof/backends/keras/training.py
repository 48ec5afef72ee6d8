"""Counts one training step of a Keras model over shapes: forward, the sum of every output as loss, backward.

The forward is traced in training mode, and the backward is counted from what it did, last first: an operation's gradient is
counted for each operand that is trained, or that depends on what is trained.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import keras

from sweeprof.backends.keras.autodiff_tape import TapeEntry
from sweeprof.backends.keras.calls import as_called, uncovered
from sweeprof.backends.keras.costs import (
    ADDS_ROWS,
    ATTENTION,
    ELEMENTWISE_RULES,
    KEEPS_NOTHING,
    KEEPS_RESULT,
    PRODUCTS,
    backward_flops,
    elements,
    numbers_of,
    shape_of,
)
from sweeprof.backends.keras.counting import traced
from sweeprof.backends.keras.layer_overrides import is_adapted
from sweeprof.backends.keras.symbolic_trace import PREFIX, Fallback, SymbolicTrace
from sweeprof.backends.keras.tensors import TensorLifetimes, dtype_of, symbolic, tensors_in
from sweeprof.counting.formulas import DEFAULTS, Formulas
from sweeprof.counting.gradients import gradient
from sweeprof.counting.operators import INTEGER
from sweeprof.errors import Unsupported
from sweeprof.measuring.inputs import Inputs
from sweeprof.results.layers import Training

BACKWARD_OVER_FORWARD = 2
"""An estimated backward: a product each for the gradient of the weights and for that of the inputs."""
_BLOCKS = frozenset({"stop_gradient", "argmax", "argmin", "one_hot", "round", "sign", "floor", "ceil"})
"""Operations that pass no gradient on."""
_PASSES = frozenset({"add", "subtract"})
"""Operations whose result's gradient is that of their operands too."""


def count_training(
    model: object, inputs: Inputs, formulas: Formulas = DEFAULTS, fallback: Fallback | None = None
) -> Training:
    """One training step of ``model`` on ``inputs``; gradients are those of every parameter that is trained.

    Where a layer calls its framework itself, or has a formula of its own, the backward is estimated as twice the forward, and
    ``Training.estimated`` says why.

    Raises:
        Unsupported: no parameter is trained, or no output depends on one.
        Exception: whatever the model, or a formula, raised.
    """
    given = as_called(model, inputs).map(symbolic)
    trace = SymbolicTrace(formulas, fallback)
    trace.tape = []
    outputs = traced(model, given, trace, training=True)
    if not isinstance(model, keras.Layer) or not any(weight.trainable for weight in model.trainable_variables):
        raise Unsupported("no parameter requires a gradient")
    costs = [call.costs for call in (*trace.calls, trace.outside)]
    macs, flops = sum(cost[0] for cost in costs), sum(cost[1] for cost in costs)
    missed = uncovered((*trace.calls, trace.outside))
    why = _why_estimated(trace)
    if why is not None:
        twice = BACKWARD_OVER_FORWARD
        return Training(macs, flops, twice * macs, twice * flops, None, why, missed)
    backward = _TapeGradients(trace.tape, tensors_in((given.args, dict(given.kwargs))), tensors_in(outputs))
    return Training(
        macs,
        flops,
        backward.macs,
        backward.flops,
        backward.liveness,
        uncovered=dict(Counter(missed) + backward.uncovered),
    )


def _why_estimated(trace: SymbolicTrace) -> str | None:
    for path, reason in trace.fallen_back.items():
        return f"{path} does not go through keras.ops: {reason}"
    for call in trace.calls:
        if call.has_formula:
            return f"{call.path} has a formula of its own, which does not tell a backward"
        if is_adapted(call.layer):
            return f"{call.path} computes its kernel from others, which symbolic tensors do not show"
    return None


class _TapeGradients:
    """The gradients of everything that a tape depends on."""

    def __init__(
        self, tape: list[TapeEntry], inputs: list[keras.KerasTensor], outputs: list[keras.KerasTensor]
    ) -> None:
        self.macs = self.flops = 0
        self.uncovered: Counter[str] = Counter()
        self._needs = _needing(tape)
        self._gradients = {id(tensor): _like(tensor) for tensor in outputs if id(tensor) in self._needs}
        """By the identity of a tensor or variable."""
        if not self._gradients:
            raise Unsupported("no output depends on a parameter that requires a gradient")
        self._lifetimes = TensorLifetimes()
        self._lifetimes.given(inputs)
        for entry in tape:
            self._lifetimes.ran(entry.path, _activations(entry.used), list(entry.made), entry.in_place)
        self._kept: list[keras.KerasTensor] = list(outputs)
        for entry in reversed(tape):
            if any(id(tensor) in self._gradients for tensor in entry.made):
                self._pass_back(entry)
        self.liveness = self._lifetimes.result(inputs, self._kept)

    def _pass_back(self, entry: TapeEntry) -> None:
        """The gradients of what one operation used, from those of what it made."""
        both = zip(entry.used, entry.learns, strict=True)
        needing = [(tensor, learns) for tensor, learns in both if learns or id(tensor) in self._needs]
        given = [self._gradients[id(tensor)] for tensor in entry.made if id(tensor) in self._gradients]
        made = []
        for tensor, learns in needing:
            passes = entry.name in _PASSES or entry.in_place is not None
            gradient = given[0] if passes and elements(tensor) == elements(given[0]) else _like(tensor)
            if id(tensor) in self._gradients:  # what is used twice has two gradients, which are added
                self.flops += entry.times * elements(tensor)
            else:
                self._gradients[id(tensor)] = gradient
                if learns:  # those of every time step are added
                    self._kept.append(gradient)
                    self.flops += (entry.times - 1) * elements(tensor)
            if gradient is not given[0]:
                made.append(gradient)
        self._lifetimes.ran(entry.path, [*given, *_saved(entry)], made)
        if needing:
            self._add(entry, [tensor for tensor, _ in needing])

    def _add(self, entry: TapeEntry, needing: list[keras.KerasTensor]) -> None:
        """Add the cost of the gradients of some operands."""
        result = entry.made[0]
        if numbers_of(result) is INTEGER:
            return
        if entry.cost is None:
            if entry.name == ADDS_ROWS:
                self.flops += entry.times * gradient("rows", elements(result))[1]
            return
        beside = backward_flops(entry.name, entry.cost, shape_of(entry.used[0]), shape_of(result), len(needing))
        if beside is None:
            self.uncovered[f"{PREFIX}{entry.name} backward"] += entry.times
            return
        macs = entry.cost[0] * (2 if entry.name == ATTENTION else len(needing) if entry.name in PRODUCTS else 0)
        summed = 0  # the gradient of an operand that was broadcast
        if entry.name in ELEMENTWISE_RULES:
            summed = sum(elements(result) for tensor in needing if elements(tensor) < elements(result))
        self.macs += entry.times * macs
        self.flops += entry.times * (2 * macs + beside + summed)


def _needing(tape: list[TapeEntry]) -> set[int]:
    """Identities of the symbolic tensors that depend on what is trained."""
    found: set[int] = set()
    for entry in tape:
        if entry.name not in _BLOCKS and (any(entry.learns) or any(id(tensor) in found for tensor in entry.used)):
            found.update(id(tensor) for tensor in entry.made if numbers_of(tensor) is not INTEGER)
    return found


def _saved(entry: TapeEntry) -> list[keras.KerasTensor]:
    """The activations that an operation's backward reads."""
    if entry.cost is None or entry.name in KEEPS_NOTHING:
        return []
    return _activations(entry.made if entry.name in KEEPS_RESULT else entry.used)


def _activations(tensors: Iterable[keras.KerasTensor]) -> list[keras.KerasTensor]:
    return [tensor for tensor in tensors if isinstance(tensor, keras.KerasTensor)]


def _like(tensor: keras.KerasTensor) -> keras.KerasTensor:
    return keras.KerasTensor(shape_of(tensor), dtype_of(tensor))
