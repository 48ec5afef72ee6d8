"""Probes: marks in time at every call of every layer, and at the backward of every call.

``keras.Layer.__call__`` is replaced for as long as probes are attached, so that what Keras itself does around a layer's ``call`` is
part of the layer. Its tensors pass a mark where the call begins and where it ends.

For the backward each call is followed by a tape of its own, and the tape around it sees one operation, whose gradient is that
call's whole backward, between two marks. A single tape goes through the branches of a model by turns, so that no mark in it could
tell which layer its next operation serves.

Within a recurrent layer nothing is marked, as a graph runs its steps in a loop; nor within a function that a layer compiles itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol
from unittest.mock import patch

import keras
import tensorflow as tf
from tensorflow.python.autograph.impl.api import autograph_artifact
from tensorflow.python.eager import record

from sweeprof.backends.keras.calls import Paths
from sweeprof.counting.formulas import Args, Kwargs
from sweeprof.measuring.layer_timing import LEFT, Event
from sweeprof.results.layer_times import OUTSIDE


class Marks(Protocol):
    """The interface that makes marks."""

    def is_here(self) -> bool:
        """True if the running code is part of the step itself, not of a loop or branch within its graph."""

    def at(self, tensors: Sequence[tf.Tensor], is_entry: bool) -> tuple[object, list[tf.Tensor]]:
        """A mark that comes after ``tensors``, and the same tensors, which come after the mark."""


class LayerProbes:
    """Marks the calls of every layer below a root while it is :meth:`attached`.

    Args:
        root: the model.
        marks: how a mark is made.
        parameters: variables, as TensorFlow has them, that a tape around the model watches; none: there is no backward.
    """

    def __init__(self, root: keras.Layer, marks: Marks, parameters: Collection[tf.Variable]) -> None:
        self._root, self._marks = root, marks
        self._parameters = {parameter.ref() for parameter in parameters}
        self._paths = Paths()
        self._index: dict[str, int] = {}
        self._running: list[str] = []
        self._is_closed = False
        self._tape: Any = None
        self._thread = threading.get_ident()
        self.described: list[tuple[list[str], str]] = []
        """Per index, the path and the class name of a layer."""
        self.forward: list[Event] = []
        """In a step so far; the numbers of events take the place of those of autograd nodes."""
        self.backward: list[Event] = []

    @contextmanager
    def attached(self, tape: tf.GradientTape | None = None) -> Iterator[None]:
        """Within it calls of layers leave marks; afterwards Keras is as it was. ``tape`` is the one that follows the model.

        A layer that the backward calls once more leaves none, and is part of what calls it.
        """
        call = keras.Layer.__call__

        def called(layer: keras.Layer, *args: object, **kwargs: object) -> object:
            return self._probed(call, layer, args, kwargs) if self._sees(layer) else call(layer, *args, **kwargs)

        self.forward, self.backward, self._running, self._is_closed = [], [], [], False
        self._tape = tape
        # AutoGraph takes Keras's own method as it is, and would rewrite this one.
        with patch.object(keras.Layer, "__call__", autograph_artifact(called)):
            yield

    def _sees(self, layer: keras.Layer) -> bool:
        return (
            not self._is_closed
            and (bool(self._running) or layer is self._root)
            and threading.get_ident() == self._thread
            and self._marks.is_here()
        )

    def _probed(self, call: Callable[..., object], layer: keras.Layer, args: Args, kwargs: Kwargs) -> object:
        index, path = self._placed(layer)
        given, around = _Tensors((args, kwargs)), self._tape
        wanted = [around is not None and _is_followed(tensor) for tensor in given.found]
        with _paused(around), nullcontext() if around is None else tf.GradientTape() as tape:
            entered, inside = self._passed(given.found, index)
            sources = [
                pair for pair, is_wanted in zip(zip(given.found, inside, strict=True), wanted, strict=True) if is_wanted
            ]
            if tape is not None:
                tape.watch([inner for _, inner in sources])
            args, kwargs = given.replaced(inside)
            self._running.append(path)
            self._tape, self._is_closed = tape, isinstance(layer, keras.layers.RNN)
            try:
                outputs = _Tensors(call(layer, *args, **kwargs))
            finally:
                self._tape, self._is_closed = around, False
                self._running.pop()
            left, outside = self._passed(outputs.found, LEFT)
        if tape is not None:
            self._record(_CallGradients(tape, sources, outputs.found, outside, entered, left))
        return outputs.replaced(outside)

    def _placed(self, layer: keras.Layer) -> tuple[int, str]:
        path = self._paths.below(self._running[-1] if self._running else OUTSIDE, layer)
        index = self._index.setdefault(path, len(self._index))
        if index == len(self.described):
            self.described.append(([path], type(layer).__name__))
        return index, path

    def _passed(self, tensors: list[tf.Tensor], what: int) -> tuple[int, list[tf.Tensor]]:
        """The number of an event of the forward, and the tensors beyond its mark, of which no tape knows."""
        with record.stop_recording():
            mark, after = self._marks.at(tensors, what != LEFT)
        number = len(self.forward) + 1
        self.forward.append((what, number, mark))
        return number, after

    def _record(self, call: _CallGradients) -> None:
        """Let the tape around a call see it as one operation."""
        variables = [variable for variable in call.tape.watched_variables() if variable.ref() in self._parameters]
        inner = [*(inner for _, inner in call.sources), *variables]
        outer = [*(outer for outer, _ in call.sources), *(variable.handle for variable in variables)]
        pairs = [pair for pair in zip(call.outputs, call.outside, strict=True) if _has_gradient(pair[0])]
        if not outer or not pairs:
            return
        self._tape.watch(variables)

        def gradient(*given: tf.Tensor) -> list[tf.Tensor]:
            begun = self._turned(list(given), call.entered)
            found = call.tape.gradient([output for output, _ in pairs], inner, output_gradients=begun)
            return self._turned(found, call.left)

        record.record_operation("Layer", [outside for _, outside in pairs], outer, gradient)

    def _turned(self, gradients: list[tf.Tensor], number: int) -> list[tf.Tensor]:
        """The gradients beyond a mark of the backward; from there on it belongs to whom the forward did from ``number`` on."""
        dense = [place for place, gradient in enumerate(gradients) if isinstance(gradient, tf.Tensor)]
        mark, after = self._marks.at([gradients[place] for place in dense], True)
        self.backward.append((None, number, mark))
        for place, gradient in zip(dense, after, strict=True):
            gradients[place] = gradient
        return gradients


@dataclass(frozen=True, slots=True)
class _CallGradients:
    """The values that the backward pass of a call needs."""

    tape: tf.GradientTape
    """It has seen the call, and nothing else."""
    sources: list[tuple[tf.Tensor, tf.Tensor]]
    """Tensors that the call was given and that need a gradient, before the mark and after it."""
    outputs: list[tf.Tensor]
    outside: list[tf.Tensor]
    """The outputs beyond the mark."""
    entered: int
    left: int


class _Tensors:
    """The tensors in a structure."""

    def __init__(self, structure: object) -> None:
        self._structure, self._leaves = structure, keras.tree.flatten(structure)
        self._places = [place for place, leaf in enumerate(self._leaves) if isinstance(leaf, tf.Tensor)]

    @property
    def found(self) -> list[tf.Tensor]:
        return [self._leaves[place] for place in self._places]

    def replaced(self, tensors: Sequence[tf.Tensor]) -> Any:
        """The structure with others instead, which have the same masks."""
        leaves = list(self._leaves)
        for place, tensor in zip(self._places, tensors, strict=True):
            mask = getattr(leaves[place], "_keras_mask", None)
            if mask is not None:
                tensor._keras_mask = mask
            leaves[place] = tensor
        return keras.tree.pack_sequence_as(self._structure, leaves)


def _paused(tape: tf.GradientTape | None) -> Any:
    """Within it a tape sees nothing: where two follow a loop, TensorFlow computes its gradient as if for a second derivative."""
    return nullcontext() if tape is None else tape.stop_recording()


def _is_followed(tensor: tf.Tensor) -> bool:
    """True if the running tape needs a gradient of the tensor."""
    return _has_gradient(tensor) and bool(record.should_record_backprop([tensor]))


def _has_gradient(tensor: tf.Tensor) -> bool:
    return bool(tensor.dtype.is_floating or tensor.dtype.is_complex)
