"""What is repeated where layers are looked at: a forward, or forward, loss and gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras

from sweeprof.backends.tensorflow.model import TensorflowModel
from sweeprof.backends.tensorflow.training import parts
from sweeprof.errors import Unsupported
from sweeprof.profiling.recipe import Work


@dataclass(frozen=True, slots=True)
class Task:
    """The phases of a step."""

    root: keras.Layer
    """The model."""
    forward: Callable[..., Any]
    """Returns the outputs, or with parameters the loss; it also runs within a graph that is being traced."""
    fed: tuple[Any, ...]
    """Its arguments."""
    parameters: tuple[Any, ...] = ()
    """Variables, as TensorFlow has them, that gradients are asked for; none: inference."""
    update: Callable[[list[Any]], None] | None = None
    """What is done with the gradients."""

    @property
    def trains(self) -> bool:
        """Whether a step has a backward."""
        return bool(self.parameters)


def task_of(model: TensorflowModel, work: Work) -> Task:
    """The task of ``work``.

    Raises:
        Unsupported: the model has no layers when it runs, or the recipe does not fit it.
        Exception: whatever the model raised.
    """
    root, batch = model.native, work.batch
    if not isinstance(root, keras.Layer):
        raise Unsupported(f"a {type(root).__name__} has no layers: only a Keras model does")
    if model.variant.mode == "xla":
        raise Unsupported(
            "not possible upstream: a compiled XLA program has no layers; mode=function has the same model with them"
        )
    if work.recipe is not None:
        made = parts(model, batch, work.targets, work.recipe)
        return Task(root, made.lost, made.fed, tuple(made.watched), made.update)
    forward = model.called(batch.forward)
    if not root.built:
        forward(*batch.args, **batch.kwargs)  # its weights are made when it is first called
    return Task(root, lambda args, kwargs: forward(*args, **kwargs), (batch.args, dict(batch.kwargs)))
