"""Training steps on JAX: forward with loss, backward and update, each a compiled function of its own.

What the backward needs travels from the forward as arrays, as in PyTorch: ``jax.vjp`` returns the backward as a tree of them. A
whole step in one compiled function may be quicker, and has no phases that could be told apart (docs/backends-jax.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import jax
import keras
from jax import numpy as jnp

from sweeprof.backends.jax.model import Form, JaxModel, JaxWeights, arrays_in, called, first_array, parted, weights_of
from sweeprof.errors import Unsupported
from sweeprof.measuring.inputs import Inputs
from sweeprof.measuring.training_config import LOSSES, OPTIMIZERS, TrainingConfig

RATE = 1e-8
"""Learning rate of the named optimizers: an update costs the same at any, and at this one thousands of timed steps, which
pull at the same batch again and again, leave the weights finite."""
EPSILON = 1e-4
"""Of Adam's denominator: not zero in half precision, where the default of 1e-7 is."""


class JaxTraining:
    """Forward, backward and update of a Keras model in training mode; each waits for the device, which JAX offers no marks on."""

    def __init__(
        self,
        model: JaxModel,
        batch: Inputs,
        loss: Callable[[object], jax.Array],
        optimizer: keras.optimizers.Optimizer | None,
    ) -> None:
        """Args:
        model: a Keras layer, with something to train. Its own variables are read and never written.
        batch: on its device.
        loss: of what the model returns.
        optimizer: of Keras, built for the model's trainable variables; None leaves them as they are.
        """
        form, self._arrays = parted(batch)
        self._trained, self._state = weights_of(model.native, batch)
        self._slots = [] if optimizer is None else [variable.value for variable in optimizer.variables]
        self._forward = model.compiled(partial(_forward, model.native, loss, form))
        self._backward = model.compiled(_backward)
        self._update = None if optimizer is None else model.compiled(optimizer.stateless_apply)
        self._back: Any = None
        self._gradients: list[jax.Array] = []

    def forward(self) -> jax.Array:
        self._gradients = []
        loss, self._back, self._state = jax.block_until_ready(self._forward((self._trained, self._state), self._arrays))
        return loss

    def backward(self, loss: jax.Array) -> None:
        self._gradients = jax.block_until_ready(self._backward(self._back, loss))
        self._back = None

    def update(self) -> None:
        if self._update is not None:
            updated = self._update(self._slots, self._gradients, self._trained)
            self._trained, self._slots = jax.block_until_ready(updated)

    @property
    def trained(self) -> list[jax.Array]:
        """Values of the trainable variables by now."""
        return self._trained


def _forward(
    model: object, loss: Callable[[object], jax.Array], form: Form, weights: JaxWeights, arrays: list[jax.Array]
) -> Any:
    """The loss, the function that takes its gradient back, and the state (moving statistics, seeds) after the step."""
    trained, state = weights
    args, kwargs = form.filled(arrays)

    def of(trained: Any) -> Any:
        outputs, after = called(model, (trained, state), args, {"training": True, **kwargs})
        return loss(outputs), after

    value, back, after = jax.vjp(of, trained, has_aux=True)
    return value, back, after


def _backward(back: Any, loss: jax.Array) -> Any:
    return back(jnp.ones_like(loss))[0]


@contextmanager
def training(model: JaxModel, batch: Inputs, targets: object, config: TrainingConfig) -> Iterator[JaxTraining]:
    """The model trains on one batch again and again; what it learns is forgotten afterwards.

    Raises:
        Unsupported: nothing can be trained, or the loss needs targets that there are not.
        Exception: whatever the constructor of the caller's own optimizer raised.
    """
    with jax.default_device(model.device):
        if not isinstance(model.native, keras.Layer):
            raise Unsupported("a plain function has no parameters to train")
        weights_of(model.native, batch)
        if not model.native.trainable_variables:
            raise Unsupported("no parameter requires a gradient")
        optimizer = _optimizer(config.optimizer)
        if optimizer is not None:
            optimizer.build(model.native.trainable_variables)
        yield JaxTraining(model, batch, _loss(config.loss, targets), optimizer)


_OPTIMIZERS: dict[str, Callable[[], keras.optimizers.Optimizer | None]] = {
    "sgd": partial(keras.optimizers.SGD, RATE),
    "momentum": partial(keras.optimizers.SGD, RATE, momentum=0.9),
    "adam": partial(keras.optimizers.Adam, RATE, epsilon=EPSILON),
    "adamw": partial(keras.optimizers.AdamW, RATE, epsilon=EPSILON),
    "none": lambda: None,
}


def _optimizer(given: str | Callable[..., object]) -> Any:
    """A Keras optimizer is made without the parameters, which it is built for later."""
    return _OPTIMIZERS[given]() if isinstance(given, str) else given()


def _loss(given: str | Callable[[object, object], jax.Array], targets: object) -> Callable[[object], jax.Array]:
    wanted = None if targets is None else jnp.asarray(targets)
    if not isinstance(given, str):
        return lambda outputs: given(outputs, wanted)
    if given in _UNTARGETED:
        return _UNTARGETED[given]
    if wanted is None:
        raise Unsupported(f"training.loss={given} needs targets, and the data have none")
    compare = _TARGETED[given]
    return lambda outputs: compare(first_array(outputs), wanted)


def _cross_entropy(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """Return the loss of logits with their classes along the last axis, as in Keras."""
    losses = keras.ops.sparse_categorical_crossentropy(targets, logits, from_logits=True)
    return jnp.mean(losses)


def _mse(outputs: jax.Array, targets: jax.Array) -> jax.Array:
    """The mean squared error; where targets are classes, against 1 for the class and 0 for the others."""
    if targets.shape != outputs.shape and targets.size == outputs.size:
        targets = targets.reshape(outputs.shape)
    elif targets.shape == outputs.shape[:-1] and jnp.issubdtype(targets.dtype, jnp.integer):
        targets = jax.nn.one_hot(targets, outputs.shape[-1])
    if targets.shape != outputs.shape:  # JAX would stretch one along the other
        shapes = f"{targets.shape} and the outputs of {outputs.shape}"
        raise Unsupported(f"training.loss=mse: targets of shape {shapes} do not belong together")
    return jnp.mean((outputs - targets.astype(outputs.dtype)) ** 2)


_TARGETED: dict[str, Callable[[jax.Array, jax.Array], jax.Array]] = {"cross_entropy": _cross_entropy, "mse": _mse}


def _mean(outputs: object) -> jax.Array:
    """The sum of the means of every output."""
    first_array(outputs)
    means = [leaf.mean() for leaf in arrays_in(outputs) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    return sum(means[1:], start=means[0])


def _own(outputs: object) -> jax.Array:
    """The loss that a model returns itself: by its name, or first of a tuple."""
    found = outputs.get("loss") if isinstance(outputs, Mapping) else None
    if found is None and not isinstance(outputs, Mapping):
        found = next((leaf for leaf in arrays_in(outputs)[:1] if leaf.ndim == 0), None)
    if found is None:
        raise Unsupported("training.loss=own: the model returned no loss; give it labels among its inputs")
    return found


_UNTARGETED: dict[str, Callable[[object], jax.Array]] = {"mean": _mean, "own": _own}

assert set(_OPTIMIZERS) == set(OPTIMIZERS)
assert {*_TARGETED, *_UNTARGETED} == set(LOSSES)
