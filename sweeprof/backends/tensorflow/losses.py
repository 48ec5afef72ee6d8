"""The losses of training steps by name, as tensors of TensorFlow, and those of the caller's own."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from sweeprof.backends.tensorflow.model import first_tensor, tensors_in
from sweeprof.errors import Unsupported
from sweeprof.profiling.recipe import LOSSES

Loss = Callable[[Any, Any], Any]
"""From what the model returned, and the targets, to a scalar."""


def loss_of(given: str | Callable[..., Any], has_targets: bool) -> Loss:
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


def _by_name(function: Callable[..., Any]) -> Loss:
    return lambda outputs, targets: tf.reduce_mean(function(y_true=targets, y_pred=first_tensor(outputs)))


def _cross_entropy(outputs: Any, targets: Any) -> Any:
    """Of logits, the classes along their last axis; targets are classes, or a probability for each."""
    if targets.dtype.is_floating:
        _belong("cross_entropy", targets.shape, outputs.shape, outputs.shape)
        return tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(tf.cast(targets, outputs.dtype), outputs))
    if targets.shape == (*outputs.shape[:-1], 1):  # as Keras's own datasets have them
        targets = tf.squeeze(targets, -1)
    _belong("cross_entropy", targets.shape, outputs.shape[:-1], outputs.shape)
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(targets, outputs))


def _mse(outputs: Any, targets: Any) -> Any:
    """The mean squared error; where targets are classes, against 1 for the class and 0 for the others."""
    if targets.shape != outputs.shape and targets.shape.num_elements() == outputs.shape.num_elements():
        targets = tf.reshape(targets, outputs.shape)
    elif targets.shape == outputs.shape[:-1] and not targets.dtype.is_floating:
        targets = tf.one_hot(targets, outputs.shape[-1])
    _belong("mse", targets.shape, outputs.shape, outputs.shape)
    return tf.reduce_mean(tf.math.squared_difference(outputs, tf.cast(targets, outputs.dtype)))


def _belong(loss: str, shape: Any, wanted: Any, outputs: Any) -> None:
    if shape != wanted:  # TensorFlow would stretch one along the other, or say something else
        shapes = f"{tuple(shape)} and the outputs of {tuple(outputs)}"
        raise Unsupported(f"training.loss={loss}: targets of shape {shapes} do not belong together")


def _mean(outputs: Any) -> Any:
    """The sum of the means of every output that is a number with a fraction."""
    means = [tf.reduce_mean(tensor) for tensor in tensors_in(outputs) if tensor.dtype.is_floating]
    if not means:
        raise Unsupported("the model returned no floating-point tensor to take the mean of")
    return tf.add_n(means) if len({mean.dtype for mean in means}) == 1 else sum(tf.cast(m, tf.float32) for m in means)


def _own(outputs: Any) -> Any:
    """The loss that a model returns which is given labels: by its name, or first of a tuple."""
    found = outputs.get("loss") if isinstance(outputs, Mapping) else getattr(outputs, "loss", None)
    if found is None and (tf.is_tensor(outputs) or isinstance(outputs, tuple)):
        found = next((tensor for tensor in tensors_in(outputs)[:1] if tensor.shape.rank == 0), None)
    if not tf.is_tensor(found):
        raise Unsupported("training.loss=own: the model returned no loss; give it labels among its inputs")
    return found


_TARGETED: dict[str, Callable[[Any, Any], Any]] = {"cross_entropy": _cross_entropy, "mse": _mse}
_UNTARGETED: dict[str, Callable[[Any], Any]] = {"mean": _mean, "own": _own}


assert {*_TARGETED, *_UNTARGETED} == set(LOSSES)
