"""Training steps of Keras models: in phases where they run operator by operator, else as one program."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial

import keras
import tensorflow as tf

from sweeprof.backends.tensorflow.model import (
    Program,
    TensorflowModel,
    TensorflowVariant,
    as_tensor,
    first_tensor,
    tensors_in,
)
from sweeprof.backends.tensorflow.state import native
from sweeprof.counting.formulas import Args, Kwargs
from sweeprof.errors import Unsupported
from sweeprof.measuring.inputs import Inputs
from sweeprof.measuring.training_config import LOSSES, OPTIMIZERS, TrainingConfig, Work

Loss = Callable[[object, tf.Tensor | None], tf.Tensor]
"""From what the model returned, and the targets, to a scalar."""


def loss_of(given: str | Callable[..., object], has_targets: bool) -> Loss:
    """The loss that is given.

    Args:
        given: a name, or a function of outputs and targets; one of ``y_true`` and ``y_pred``, as Keras's own are, is given them by
            these names, and its mean is taken where it gives a value for each sample.
        has_targets: whether the data have any.

    Raises:
        Unsupported: the loss needs targets that there are not.
    """
    if not isinstance(given, str):
        return _by_name(given) if {"y_true", "y_pred"} <= set(inspect.signature(given).parameters) else given
    if given in _UNTARGETED:
        untargeted = _UNTARGETED[given]
        return lambda outputs, _: untargeted(outputs)
    if not has_targets:
        raise Unsupported(f"training.loss={given} needs targets, and the data have none")
    compare = _TARGETED[given]
    return lambda outputs, targets: compare(first_tensor(outputs), targets)


def _by_name(function: Callable[..., object]) -> Loss:
    return lambda outputs, targets: tf.reduce_mean(function(y_true=targets, y_pred=first_tensor(outputs)))


def _cross_entropy(outputs: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
    """Return the loss of logits, classes along their last axis; targets are classes, or a probability for each."""
    if targets.dtype.is_floating:
        _belong("cross_entropy", targets.shape, outputs.shape, outputs.shape)
        return tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(tf.cast(targets, outputs.dtype), outputs))
    if targets.shape == (*outputs.shape[:-1], 1):  # as Keras's own datasets have them
        targets = tf.squeeze(targets, -1)
    _belong("cross_entropy", targets.shape, outputs.shape[:-1], outputs.shape)
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(targets, outputs))


def _mse(outputs: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
    """The mean squared error; where targets are classes, against 1 for the class and 0 for the others."""
    if targets.shape != outputs.shape and targets.shape.num_elements() == outputs.shape.num_elements():
        targets = tf.reshape(targets, outputs.shape)
    elif targets.shape == outputs.shape[:-1] and not targets.dtype.is_floating:
        targets = tf.one_hot(targets, outputs.shape[-1])
    _belong("mse", targets.shape, outputs.shape, outputs.shape)
    return tf.reduce_mean(tf.math.squared_difference(outputs, tf.cast(targets, outputs.dtype)))


def _belong(loss: str, shape: tf.TensorShape, wanted: tf.TensorShape, outputs: tf.TensorShape) -> None:
    if shape != wanted:  # TensorFlow would stretch one along the other, or say something else
        shapes = f"{tuple(shape)} and the outputs of {tuple(outputs)}"
        raise Unsupported(f"training.loss={loss}: targets of shape {shapes} do not belong together")


def _mean(outputs: object) -> tf.Tensor:
    """The sum of the means of every output that is a number with a fraction."""
    means = [tf.reduce_mean(tensor) for tensor in tensors_in(outputs) if tensor.dtype.is_floating]
    if not means:
        raise Unsupported("the model returned no floating-point tensor to take the mean of")
    return tf.add_n(means) if len({mean.dtype for mean in means}) == 1 else sum(tf.cast(m, tf.float32) for m in means)


def _own(outputs: object) -> tf.Tensor:
    """The loss that a model returns which is given labels: by its name, or first of a tuple."""
    found = outputs.get("loss") if isinstance(outputs, Mapping) else getattr(outputs, "loss", None)
    if found is None and (tf.is_tensor(outputs) or isinstance(outputs, tuple)):
        found = next((tensor for tensor in tensors_in(outputs)[:1] if tensor.shape.rank == 0), None)
    if not tf.is_tensor(found):
        raise Unsupported("training.loss=own: the model returned no loss; give it labels among its inputs")
    return found


_TARGETED: dict[str, Callable[[tf.Tensor, tf.Tensor], tf.Tensor]] = {"cross_entropy": _cross_entropy, "mse": _mse}
_UNTARGETED: dict[str, Callable[[object], tf.Tensor]] = {"mean": _mean, "own": _own}


assert {*_TARGETED, *_UNTARGETED} == set(LOSSES)


RATE = 1e-8
"""Learning rate of the named optimizers: an update costs the same at any, and at this one thousands of timed steps, which
pull at the same batch again and again, leave the weights finite."""
EPSILON = 1e-4
"""Of Adam's denominator: not zero in half precision, where the default of 1e-7 is."""


@dataclass(frozen=True)
class Parts:
    """The parts of a training step; each part can also run within a graph that is being traced."""

    forward: Callable[..., object]
    """The model's outputs for its arguments, in training mode."""
    loss: Loss
    fed: tuple[Args, Kwargs, tf.Tensor | None]
    """Positional arguments, keyword arguments and targets: handed to a program, which would take what it finds for constant."""
    variables: list[keras.Variable]
    """Those that are trained, as Keras has them."""
    optimizer: keras.optimizers.Optimizer | None
    """None: nothing is updated."""

    @cached_property
    def watched(self) -> list[tf.Variable]:
        """The variables as TensorFlow has them."""
        return [native(variable) for variable in self.variables]

    def lost(self, args: Args, kwargs: Kwargs, targets: tf.Tensor | None) -> tf.Tensor:
        """The loss of one forward."""
        return self.loss(self.forward(*args, **kwargs), targets)

    def taped(self, args: Args, kwargs: Kwargs, targets: tf.Tensor | None) -> tuple[tf.Tensor, tf.GradientTape]:
        """The loss, and the tape from which its gradients can be had."""
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(self.watched)
            return self.lost(args, kwargs, targets), tape

    def gradients(self, loss: tf.Tensor, tape: tf.GradientTape) -> list[tf.Tensor | None]:
        """One for each variable, None for those that the loss does not depend on.

        Raises:
            Unsupported: it depends on none.
        """
        found: list[tf.Tensor | None] = tape.gradient(loss, self.watched)
        if all(gradient is None for gradient in found):
            raise Unsupported("no output depends on a trainable variable")
        return found

    def update(self, gradients: list[tf.Tensor | None]) -> None:
        """The optimizer's step."""
        if self.optimizer is not None:
            pairs = [(g, v) for g, v in zip(gradients, self.variables, strict=True) if g is not None]
            self.optimizer.apply([gradient for gradient, _ in pairs], [variable for _, variable in pairs])


class EagerTraining:
    """The three phases of a step that runs operator by operator."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._tape: tf.GradientTape | None = None
        self._gradients: list[tf.Tensor | None] = []

    def forward(self) -> tf.Tensor:
        self._gradients = []
        loss, self._tape = self._parts.taped(*self._parts.fed)
        return loss

    def backward(self, loss: tf.Tensor) -> None:
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

    def __init__(self, parts: Parts, variant: TensorflowVariant, is_on_host: bool) -> None:
        self._fed, self._is_on_host = parts.fed, is_on_host

        def backward(args: Args, kwargs: Kwargs, targets: tf.Tensor | None) -> tuple[tf.Tensor, list[tf.Tensor | None]]:
            loss, tape = parts.taped(args, kwargs, targets)
            return loss, parts.gradients(loss, tape)

        def whole(args: Args, kwargs: Kwargs, targets: tf.Tensor | None) -> tf.Tensor:
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
    model: TensorflowModel, batch: Inputs, targets: object, config: TrainingConfig
) -> Iterator[EagerTraining | FusedTraining]:
    """The model trains on one batch again and again; what it learns is its owner's to take back.

    Raises:
        Unsupported: nothing can be trained, or the loss needs targets that there are not.
        Exception: whatever the constructor of the caller's own optimizer raised.
    """
    with tf.device(model.device):
        made = parts(model, batch, targets, config)
        if model.variant.mode == "eager":
            yield EagerTraining(made)
        else:
            yield FusedTraining(made, model.variant, model.device == "cpu")


def parts(model: TensorflowModel, batch: Inputs, targets: object, config: TrainingConfig) -> Parts:
    """Return the parts of a training step of ``model``, with the optimizer's variables built. Raises as :func:`training`."""
    native = model.native
    if not getattr(native, "built", True):
        model.called(batch.forward)(*batch.args, **batch.kwargs)  # its weights are made when it is first called
    variables = list(getattr(native, "trainable_variables", ()))
    if not variables:
        raise Unsupported("no variable of the model is trainable")
    optimizer = _optimizer(config.optimizer, variables)
    if optimizer is not None and not optimizer.built:
        optimizer.build(variables)
    wanted = as_tensor(targets, model.device)
    loss = loss_of(config.loss, has_targets=wanted is not None)
    fed = (batch.args, dict(batch.kwargs), wanted)
    return Parts(model.called(batch.forward, training=True), loss, fed, variables, optimizer)


_OPTIMIZERS: dict[str, Callable[[], keras.optimizers.Optimizer | None]] = {
    "sgd": partial(keras.optimizers.SGD, RATE),
    "momentum": partial(keras.optimizers.SGD, RATE, momentum=0.9),
    "adam": partial(keras.optimizers.Adam, RATE, epsilon=EPSILON),
    "adamw": partial(keras.optimizers.AdamW, RATE, epsilon=EPSILON),
    "none": lambda: None,
}


def _optimizer(
    given: str | Callable[..., object], variables: list[keras.Variable]
) -> keras.optimizers.Optimizer | None:
    """Keras's optimizers are made without the variables, a function of the caller's own is given them."""
    if isinstance(given, str):
        return _OPTIMIZERS[given]()
    kind = given.func if isinstance(given, partial) else given
    is_keras = isinstance(kind, type) and issubclass(kind, keras.optimizers.Optimizer)
    return given() if is_keras else given(variables)


assert set(_OPTIMIZERS) == set(OPTIMIZERS)


@dataclass(frozen=True, slots=True)
class StepPhases:
    """The phases of a step."""

    root: keras.Layer
    """The model."""
    forward: Callable[..., object]
    """Returns the outputs, or with parameters the loss; it also runs within a graph that is being traced."""
    fed: Args
    """Its arguments."""
    parameters: tuple[tf.Variable, ...] = ()
    """Variables, as TensorFlow has them, that gradients are asked for; none: inference."""
    update: Callable[[list[tf.Tensor | None]], None] | None = None
    """Applies the gradients."""

    @property
    def trains(self) -> bool:
        """True if a step has a backward pass."""
        return bool(self.parameters)


def step_phases_of(model: TensorflowModel, work: Work) -> StepPhases:
    """The task of ``work``.

    Raises:
        Unsupported: the model has no layers when it runs, or the training config does not fit it.
        Exception: whatever the model raised.
    """
    root, batch = model.native, work.batch
    if not isinstance(root, keras.Layer):
        raise Unsupported(f"a {type(root).__name__} has no layers: only a Keras model does")
    if model.variant.mode == "xla":
        raise Unsupported(
            "not possible upstream: a compiled XLA program has no layers; mode=function has the same model with them"
        )
    if work.training is not None:
        made = parts(model, batch, work.targets, work.training)
        return StepPhases(root, made.lost, made.fed, tuple(made.watched), made.update)
    forward = model.called(batch.forward)
    if not root.built:
        forward(*batch.args, **batch.kwargs)  # its weights are made when it is first called
    return StepPhases(root, lambda args, kwargs: forward(*args, **kwargs), (batch.args, dict(batch.kwargs)))
