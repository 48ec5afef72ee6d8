"""A Keras model (or any function of JAX arrays) on a device: one compiled function of its weights and its inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import jax
import keras
import numpy as np
import numpy.typing as npt

from sweeprof.backends.jax.arguments import Form, arrays_in, parted
from sweeprof.backends.jax.feeding import arranged, placed
from sweeprof.backends.keras.arguments import as_called
from sweeprof.errors import Unsupported
from sweeprof.profiling.inputs import Inputs
from sweeprof.profiling.timing import WallClock


class JaxModel:
    """Ready to step. The weights are arguments of what is compiled: as constants XLA would fold them, which no user's model has."""

    def __init__(self, model: Any, device: Any, is_compiled: bool, channel_axis: int | None) -> None:
        """Args:
        model: a Keras layer or a function of arrays.
        device: JAX's.
        is_compiled: whether a step is one compiled function, or runs operator by operator.
        channel_axis: where the dataset has its channels, which the model expects last; None: nothing is moved.
        """
        self.native = model
        self.device, self.compiles, self._channel_axis = device, is_compiled, channel_axis
        self._forwards: dict[Form, Callable[..., Any]] = {}

    def clock(self) -> WallClock:
        return WallClock()

    def put(self, inputs: Inputs) -> Inputs:
        if inputs.forward is not None:
            raise Unsupported("on JAX a step is a call of the model; inputs.forward is not possible")
        return placed(as_called(self.native, arranged(inputs, self._channel_axis)), self.device)

    @contextmanager
    def stepping(self, batch: Inputs) -> Iterator[Callable[[], Any]]:
        with jax.default_device(self.device):
            weights, (form, arrays) = weights_of(self.native, batch), parted(batch)
            forward = self._forward(form)

            def step() -> Any:
                return jax.block_until_ready(forward(weights, arrays))

            yield step

    def _forward(self, form: Form) -> Callable[..., Any]:
        """One for all batches of a form: a new function would be compiled anew."""
        if form not in self._forwards:
            self._forwards[form] = self.compiled(partial(forward_of(self.native), form))
        return self._forwards[form]

    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function as this model's variant runs it."""
        return jax.jit(function) if self.compiles else function

    def transfers(self, inputs: Inputs, outputs: Any) -> Mapping[str, Callable[[], object]]:
        if self.device.platform == "cpu":
            return {}
        return {
            "h2d": lambda: self._placed(inputs),
            "d2h": lambda: self.host_outputs(outputs),
        }

    def _placed(self, inputs: Inputs) -> None:
        batch = self.put(inputs)
        jax.block_until_ready(parted(batch)[1])

    def host_outputs(self, outputs: Any) -> npt.NDArray[np.float32]:
        return np.asarray(first_array(outputs)).astype(np.float32)


Weights = tuple[list[Any], list[Any]]
"""Values of what is trained, and of everything else that a model remembers."""


def weights_of(model: Any, batch: Inputs) -> Weights:
    """The model's, which is built for ``batch`` if it was not; of a plain function none."""
    if not isinstance(model, keras.Layer):
        return [], []
    if not model.built:
        model(*batch.args, **{"training": False, **batch.kwargs})
    return [v.value for v in model.trainable_variables], [v.value for v in model.non_trainable_variables]


def forward_of(model: Any) -> Callable[[Form, Weights, list[Any]], Any]:
    """A function of the arguments' form, weights and arrays; it runs in inference mode, and leaves the model as it is.

    It returns the arrays among the outputs, in their order: what leaves a compiled function has its keys sorted.
    """

    def forward(form: Form, weights: Weights, arrays: list[Any]) -> Any:
        args, kwargs = form.filled(arrays)
        if isinstance(model, keras.Layer):
            outputs, _ = called(model, weights, args, {"training": False, **kwargs})
        else:
            outputs = model(*args, **kwargs)
        return arrays_in(outputs) or outputs

    return forward


def called(model: Any, weights: Weights, args: Any, kwargs: Any) -> tuple[Any, list[Any]]:
    """Outputs of a Keras layer with these weights, and what it then remembers beside what is trained.

    As ``stateless_call`` of Keras, which goes past ``__call__`` and so past its casts and defaults.
    """
    remembered = model.non_trainable_variables
    values = zip([*model.trainable_variables, *remembered], [*weights[0], *weights[1]], strict=True)
    with keras.StatelessScope(state_mapping=list(values)) as scope:
        outputs = model(*args, **kwargs)
    current = [(variable, scope.get_current_value(variable)) for variable in remembered]
    return outputs, [variable.value if value is None else value for variable, value in current]


def first_array(outputs: Any) -> Any:
    """The first array of whatever a model returned.

    Raises:
        Unsupported: there is none.
    """
    arrays = arrays_in(outputs)
    if not arrays:
        raise Unsupported(f"the model returned a {type(outputs).__name__} without an array")
    return arrays[0]
