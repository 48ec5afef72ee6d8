"""Training steps of Keras models: in phases where they run operator by operator, else as one program."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import keras
import tensorflow as tf

from sweeprof.backends.tensorflow.feeding import as_tensor
from sweeprof.backends.tensorflow.losses import Loss, loss_of
from sweeprof.backends.tensorflow.model import TensorflowModel
from sweeprof.backends.tensorflow.programs import Program
from sweeprof.backends.tensorflow.state import native
from sweeprof.backends.tensorflow.variants import Variant
from sweeprof.errors import Unsupported
from sweeprof.profiling.inputs import Inputs
from sweeprof.profiling.recipe import OPTIMIZERS, Recipe

RATE = 1e-8
"""Learning rate of the named optimizers: an update costs the same at any, and at this one thousands of timed steps, which
pull at the same batch again and again, leave the weights finite."""
EPSILON = 1e-4
"""Of Adam's denominator: not zero in half precision, where the default of 1e-7 is."""


@dataclass(frozen=True)
class Parts:
    """What a training step is made of; each part also runs within a graph that is being traced."""

    forward: Callable[..., Any]
    """The model's outputs for its arguments, in training mode."""
    loss: Loss
    fed: tuple[Any, Any, Any]
    """Positional arguments, keyword arguments and targets: handed to a program, which would take what it finds for constant."""
    variables: list[Any]
    """Those that are trained, as Keras has them."""
    optimizer: Any
    """None: nothing is updated."""

    @cached_property
    def watched(self) -> list[Any]:
        """The variables as TensorFlow has them."""
        return [native(variable) for variable in self.variables]

    def lost(self, args: Any, kwargs: Any, targets: Any) -> Any:
        """The loss of one forward."""
        return self.loss(self.forward(*args, **kwargs), targets)

    def taped(self, args: Any, kwargs: Any, targets: Any) -> tuple[Any, Any]:
        """The loss, and the tape from which its gradients can be had."""
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(self.watched)
            return self.lost(args, kwargs, targets), tape

    def gradients(self, loss: Any, tape: Any) -> list[Any]:
        """One for each variable, None for those that the loss does not depend on.

        Raises:
            Unsupported: it depends on none.
        """
        found: list[Any] = tape.gradient(loss, self.watched)
        if all(gradient is None for gradient in found):
            raise Unsupported("no output depends on a trainable variable")
        return found

    def update(self, gradients: list[Any]) -> None:
        """The optimizer's step."""
        if self.optimizer is not None:
            pairs = [(g, v) for g, v in zip(gradients, self.variables, strict=True) if g is not None]
            self.optimizer.apply([gradient for gradient, _ in pairs], [variable for _, variable in pairs])


class EagerTraining:
    """The three phases of a step that runs operator by operator."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._tape: Any = None
        self._gradients: list[Any] = []

    def forward(self) -> Any:
        self._gradients = []
        loss, self._tape = self._parts.taped(*self._parts.fed)
        return loss

    def backward(self, loss: Any) -> None:
        tape, self._tape = self._tape, None
        self._gradients = self._parts.gradients(loss, tape)

    def update(self) -> None:
        self._parts.update(self._gradients)

    def all_phases(self) -> None:
        """A whole step."""
        self.backward(self.forward())
        self.update()


class FusedTraining:
    """A step that is one program, and the programs that end after its first phases."""

    def __init__(self, parts: Parts, variant: Variant, is_on_host: bool) -> None:
        self._fed, self._is_on_host = parts.fed, is_on_host

        def backward(args: Any, kwargs: Any, targets: Any) -> Any:
            loss, tape = parts.taped(args, kwargs, targets)
            return loss, parts.gradients(loss, tape)

        def whole(args: Any, kwargs: Any, targets: Any) -> Any:
            loss, gradients = backward(args, kwargs, targets)
            parts.update(gradients)
            return loss

        by_xla = variant.mode == "xla"
        self._forward, self._backward, self._whole = (Program(each, by_xla) for each in (parts.lost, backward, whole))

    def trace(self) -> None:
        self._whole.trace(*self._fed)

    def forward_alone(self) -> None:
        self._run(self._forward)

    def forward_and_backward(self) -> None:
        self._run(self._backward)

    def whole(self) -> None:
        self._run(self._whole)

    def _run(self, program: Program) -> None:
        program(*self._fed)
        if not self._is_on_host:
            tf.test.experimental.sync_devices()


@contextmanager
def training(
    model: TensorflowModel, batch: Inputs, targets: Any, recipe: Recipe
) -> Iterator[EagerTraining | FusedTraining]:
    """The model trains on one batch again and again; what it learns is its owner's to take back.

    Raises:
        Unsupported: nothing can be trained, or the loss needs targets that there are not.
        Exception: whatever the constructor of the caller's own optimizer raised.
    """
    with tf.device(model.device):
        made = parts(model, batch, targets, recipe)
        if model.variant.mode == "eager":
            yield EagerTraining(made)
        else:
            yield FusedTraining(made, model.variant, model.device == "cpu")


def parts(model: TensorflowModel, batch: Inputs, targets: Any, recipe: Recipe) -> Parts:
    """What a training step of ``model`` is made of; the optimizer's own variables are there. Raises as :func:`training`."""
    native = model.native
    if not getattr(native, "built", True):
        model.called(batch.forward)(*batch.args, **batch.kwargs)  # its weights are made when it is first called
    variables = list(getattr(native, "trainable_variables", ()))
    if not variables:
        raise Unsupported("no variable of the model is trainable")
    optimizer = _optimizer(recipe.optimizer, variables)
    if optimizer is not None and not optimizer.built:
        optimizer.build(variables)
    wanted = as_tensor(targets, model.device)
    loss = loss_of(recipe.loss, has_targets=wanted is not None)
    fed = (batch.args, dict(batch.kwargs), wanted)
    return Parts(model.called(batch.forward, training=True), loss, fed, variables, optimizer)


_OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd": partial(keras.optimizers.SGD, RATE),
    "momentum": partial(keras.optimizers.SGD, RATE, momentum=0.9),
    "adam": partial(keras.optimizers.Adam, RATE, epsilon=EPSILON),
    "adamw": partial(keras.optimizers.AdamW, RATE, epsilon=EPSILON),
    "none": lambda: None,
}


def _optimizer(given: str | Callable[..., Any], variables: list[Any]) -> Any:
    """Keras's optimizers are made without the variables, a function of the caller's own is given them."""
    if isinstance(given, str):
        return _OPTIMIZERS[given]()
    kind = given.func if isinstance(given, partial) else given
    is_keras = isinstance(kind, type) and issubclass(kind, keras.optimizers.Optimizer)
    return given() if is_keras else given(variables)


assert set(_OPTIMIZERS) == set(OPTIMIZERS)
