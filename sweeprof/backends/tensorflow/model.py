"""A Keras model on a device, ready to step or to train: operator by operator, as a graph, or compiled by XLA.

:func:`unchanged` leaves a model, and Keras itself, as they were found.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import compress
from typing import Any, Literal, TypeVar

import keras
import numpy as np
import tensorflow as tf

from sweeprof.backends import AnyArray, HostOutputs, LoadedModel, array_in, channels_last, outputs_on_host
from sweeprof.backends.keras import private as keras_private
from sweeprof.backends.keras.calls import Loss, as_called, loss_of, optimizer_of
from sweeprof.backends.tensorflow import private
from sweeprof.counting.formulas import Args, Kwargs
from sweeprof.errors import Unsupported
from sweeprof.measuring.inputs import Inputs, TensorSpec
from sweeprof.measuring.timing import Clock, WallClock
from sweeprof.measuring.training_config import TrainingConfig, Work
from sweeprof.nested import named_leaves

T = TypeVar("T")


class Program:
    """Calls ``function`` as a ``tf.function``; what it raises while it is traced comes through as it was raised."""

    def __init__(self, function: Callable[..., object], by_xla: bool) -> None:
        self._function = graph_of(function, jit_compile=by_xla)

    def __call__(self, *args: object, **kwargs: object) -> object:
        return _as_raised(self._function, args, kwargs)

    def trace(self, *args: object, **kwargs: object) -> None:
        """Make the graph for such arguments, without running or compiling it; once made it is kept."""
        _as_raised(self._function.get_concrete_function, args, kwargs)


def graph_of(function: Callable[..., object], **options: object) -> Any:
    """A ``tf.function`` that does not warn of frequent tracing."""
    return private.without_tracing_warning(tf.function(function, **options))


def _as_raised(function: Callable[..., object], args: Args, kwargs: Kwargs) -> object:
    """Call it; AutoGraph's version of an error, whose message is its own traceback, becomes the error itself again."""
    try:
        return function(*args, **kwargs)
    except tf.errors.InvalidArgumentError as error:
        for line in str(error).splitlines():
            if "unsupported operations" in line:
                raise Unsupported(f"XLA does not compile this model: {line.strip()}") from error
        raise
    except Exception as error:
        original = error.__context__ if hasattr(error, "ag_error_metadata") else None
        if original is None:
            raise
        raise original from None


ExecutionMode = Literal["eager", "function", "xla"]
"""``eager``: operator by operator; ``function``: traced once per shape, as serving does; ``xla``: that, compiled by XLA."""


def on_device(inputs: Inputs, device: str, channel_axis: int | None = None, dtype: str | None = None) -> Inputs:
    """The inputs with every tensor on ``device``; what is only specified is generated there, the same values each time.

    Args:
        device: as TensorFlow calls it.
        channel_axis: where arrays have the channels that the model expects last; None: they stay as they are.
        dtype: of floating-point tensors; None: their own.
    """
    with tf.device(device):
        return inputs.map(partial(_tensor, order=channels_last(inputs, channel_axis), dtype=dtype))


def _tensor(leaf: Any, order: Callable[[int], list[int]], dtype: str | None) -> Any:
    if isinstance(leaf, TensorSpec):
        kind = tf.as_dtype(leaf.dtype)
        if kind.is_floating or kind.is_complex:
            leaf = tf.cast(np.random.default_rng(0).standard_normal(leaf.shape, np.float32), kind)
        else:
            leaf = tf.zeros(leaf.shape, kind)
    elif isinstance(leaf, np.ndarray | np.generic):
        leaf = tf.constant(array_in(np.asarray(leaf), order))
    if not isinstance(leaf, tf.Tensor):
        return leaf
    if dtype is not None and leaf.dtype.is_floating:
        leaf = tf.cast(leaf, dtype)
    return tf.identity(leaf)


class SynchronisedClock(WallClock):
    """A clock for an accelerator: a mark waits for the device, because TensorFlow has no events in its stream."""

    def mark(self) -> float:
        tf.test.experimental.sync_devices()
        return self.now()


@dataclass(frozen=True, slots=True)
class TensorflowModel(LoadedModel):
    """A Keras model, or any callable of tensors, called with ``training=False``."""

    native: Any
    device: str
    """As TensorFlow calls it, e.g. ``gpu:0``."""
    mode: ExecutionMode = "function"
    dtype: str | None = None
    """Of floating-point inputs; None: their own."""
    channel_axis: int | None = None
    """Where arrays that are put have the channels that the model expects last."""
    _programs: dict[object, Program | Callable[..., object]] = field(default_factory=dict, init=False, repr=False)

    @property
    def compiles(self) -> bool:
        return self.mode != "eager"

    def clock(self) -> Clock:
        return WallClock() if self.device == "cpu" else SynchronisedClock()

    def put(self, inputs: Inputs) -> Inputs:
        return as_called(self.native, on_device(inputs, self.device, self.channel_axis, self.dtype))

    @contextmanager
    def stepping(self, batch: Inputs) -> Iterator[Callable[[], Any]]:
        step = partial(self._program(batch.forward), *batch.args, **batch.kwargs)
        with tf.device(self.device):
            yield synchronised(step, self.device)

    def tracing(self, batch: Inputs) -> Callable[[], None] | None:
        """A function that makes the graph of a step on ``batch``; None where steps need no graph."""
        program = self._program(batch.forward)
        return partial(program.trace, *batch.args, **batch.kwargs) if isinstance(program, Program) else None

    def called(self, forward: Callable[..., object] | None = None, training: bool = False) -> Callable[..., object]:
        """Return the function that a step calls with its arguments: the model, or the caller's ``forward`` function.

        It runs operator by operator, or becomes part of a graph that is being traced.
        """
        model = self.native
        if forward is not None:
            return partial(forward, model)
        if not isinstance(model, keras.Layer):
            called: Callable[..., object] = model
            return called

        def run(*args: object, **kwargs: object) -> Any:
            return model(*args, **{"training": training, **kwargs})

        return run

    def _program(self, forward: Callable[..., object] | None) -> Any:
        """One for all batches: TensorFlow keeps a graph for each of their shapes."""
        if forward not in self._programs:
            function = self.called(forward)
            self._programs[forward] = function if self.mode == "eager" else Program(function, by_xla=self.mode == "xla")
        return self._programs[forward]

    def transfers(self, inputs: Inputs, outputs: object) -> Mapping[str, Callable[[], object]]:
        if self.device == "cpu":
            return {}
        host = on_device(inputs, "cpu", self.channel_axis, self.dtype)
        return {
            "h2d": synchronised(partial(on_device, host, self.device), self.device),
            "d2h": lambda: [tensor.numpy() for tensor in tensors_in(outputs)],
        }

    def host_outputs(self, outputs: object) -> HostOutputs:
        def on_host(tensor: tf.Tensor) -> AnyArray:
            array: AnyArray = tensor.numpy()
            return array.astype(np.float32) if tensor.dtype.is_floating else array

        found = {name: leaf for name, leaf in named_leaves(outputs).items() if tf.is_tensor(leaf)}
        return outputs_on_host(outputs, found, on_host)


def synchronised(call: Callable[[], T], device: str) -> Callable[[], T]:
    """Return a function that returns what ``call`` does, when the device has done it."""
    if device == "cpu":
        return call

    def wait() -> T:
        returned = call()
        tf.test.experimental.sync_devices()
        return returned

    return wait


def tensors_in(outputs: object) -> list[tf.Tensor]:
    """The tensors in what a model returned, in their order; those of a mapping by its keys, as it lists them."""
    return [leaf for leaf in named_leaves(outputs).values() if tf.is_tensor(leaf)]


def sweeprof_name(device: str) -> str:
    """``/job:localhost/replica:0/task:0/device:GPU:0`` as sweeprof calls it; there is one CPU."""
    found = tf.DeviceSpec.from_string(device)
    return "cpu" if found.device_type in (None, "CPU") else f"cuda:{found.device_index}"


# ---------------------------------------------------------------------------------------------------------------------
# Leaving a model as it was found
# ---------------------------------------------------------------------------------------------------------------------


@contextmanager
def unchanged(model: object, is_trained: bool) -> Iterator[None]:
    """Put back everything that happens to ``model`` within it, also after an error.

    Restored: the values of its variables (those of the optimizer that it was compiled with too, where it is trained), the
    attributes of its layers and what their containers hold, so that a model that was never called is not built afterwards, and
    the generators of random numbers of Keras, numpy and Python. What TensorFlow itself draws without a seed cannot be taken
    back.

    Args:
        is_trained: whether an optimizer will write to its trainable variables.
    """
    layers = keras_private.all_layers(model)
    # The layers, and what Keras keeps of each to know its weights by.
    holders = [*layers, *(keras_private.tracker_of(layer) for layer in layers)]
    attributes = [_ObjectAttributes(vars(holder)) for holder in holders]
    trained = {id(variable) for variable in getattr(model, "trainable_variables", ())}
    written = [v for v in getattr(model, "variables", ()) if is_trained or id(v) not in trained]
    if is_trained:
        written += getattr(getattr(model, "optimizer", None), "variables", ())
    values = [(variable, _copy(variable)) for variable in written]
    generator = keras_private.seed_generator()
    drawn = None if generator is None else _copy(generator.state)
    python, numbers = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        try:
            random.setstate(python)
            np.random.set_state(numbers)
            keras_private.set_seed_generator(generator)
            if generator is not None:
                native(generator.state).assign(drawn)
        finally:
            for remembered in attributes:
                remembered.restore()
            for variable, value in values:
                native(variable).assign(value)


def native(variable: keras.Variable | tf.Variable) -> tf.Variable:
    """A variable as TensorFlow has it."""
    return variable.value if isinstance(variable, keras.Variable) else variable


def _copy(variable: keras.Variable | tf.Variable) -> Any:
    """Memory of its own: an identity would share the variable's, and every update would have to write elsewhere."""
    return tf.raw_ops.DeepCopy(x=native(variable))


REFILL: dict[type[Any], Callable[..., None]] = {list: list.extend, dict: dict.update, set: set.update}
"""How containers are refilled: by the methods of the plain type, as those of Keras's own types would track the values."""


class _ObjectAttributes:
    """The attributes of an object, and what those that are containers held."""

    def __init__(self, current: dict[str, Any]) -> None:
        self._current, self._before = current, dict(current)
        values = list(current.values())
        for held in current.values():
            if issubclass(type(held), dict):
                values += held.values()
        self._held: list[tuple[Any, type[Any], Any]] = []
        for value in values:
            for kind in REFILL:
                if issubclass(type(value), kind):  # proxies of TensorFlow's only look like a container
                    self._held.append((value, kind, kind(value)))

    def restore(self) -> None:
        """Put every one back that was exchanged, added or removed."""
        self._current.clear()
        self._current.update(self._before)
        for value, kind, content in self._held:
            kind.clear(value)
            REFILL[kind](value, content)


# ---------------------------------------------------------------------------------------------------------------------
# Training
# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StepPhases:
    """The phases of a step; each can also run within a graph that is being traced."""

    root: Any
    """The model."""
    call: Callable[..., object]
    """Returns the model's outputs for its arguments."""
    fed: tuple[Args, Kwargs, tf.Tensor | None]
    """Positional arguments, keyword arguments and targets: handed to a program, which would take what it finds for constant."""
    loss: Loss | None = None
    """None: inference."""
    variables: Sequence[keras.Variable] = ()
    """Those that are trained, as Keras has them."""
    optimizer: keras.optimizers.Optimizer | None = None
    """None: nothing is updated."""

    @cached_property
    def parameters(self) -> tuple[tf.Variable, ...]:
        """The variables that are trained as TensorFlow has them."""
        return tuple(native(variable) for variable in self.variables)

    @property
    def trains(self) -> bool:
        """True if a step has a backward pass."""
        return self.loss is not None

    def forward(self, args: Args, kwargs: Kwargs, targets: tf.Tensor | None) -> Any:
        """Return the outputs; of a training step the loss."""
        outputs = self.call(*args, **kwargs)
        return outputs if self.loss is None else self.loss(outputs, targets)

    @contextmanager
    def taping(self) -> Iterator[tf.GradientTape | None]:
        """Within it a tape follows what the parameters do, if the step has a backward pass."""
        if not self.trains:
            yield None
            return
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(self.parameters)
            yield tape

    def gradients(self, loss: tf.Tensor, tape: tf.GradientTape, seed: tf.Tensor | None = None) -> Gradients:
        """One for each variable, None for those that the loss does not depend on.

        Args:
            loss: what :meth:`forward` returned.
            tape: that followed it.
            seed: the gradient of the loss; None: 1.

        Raises:
            Unsupported: the loss depends on no variable.
        """
        found: Gradients = tape.gradient(loss, self.parameters, output_gradients=seed)
        if all(gradient is None for gradient in found):
            raise Unsupported("no output depends on a trainable variable")
        return found

    def update(self, gradients: Gradients) -> None:
        """The optimizer's step."""
        if self.optimizer is not None:
            known = [gradient is not None for gradient in gradients]
            self.optimizer.apply(list(compress(gradients, known)), list(compress(self.variables, known)))


Gradients = Sequence[tf.Tensor | None]


class EagerTraining:
    """The three phases of a step that runs operator by operator."""

    def __init__(self, parts: StepPhases) -> None:
        self._parts = parts
        self._tape: tf.GradientTape | None = None
        self._gradients: Gradients = []

    def forward(self) -> tf.Tensor:
        self._gradients = []
        with self._parts.taping() as self._tape:
            return self._parts.forward(*self._parts.fed)

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

    def __init__(self, parts: StepPhases, model: TensorflowModel) -> None:

        def backward(args: Args, kwargs: Kwargs, targets: tf.Tensor | None) -> tuple[tf.Tensor, Gradients]:
            with parts.taping() as tape:
                loss = parts.forward(args, kwargs, targets)
            return loss, parts.gradients(loss, tape)

        def whole(args: Args, kwargs: Kwargs, targets: tf.Tensor | None) -> tf.Tensor:
            loss, gradients = backward(args, kwargs, targets)
            parts.update(gradients)
            return loss

        programs = [Program(each, by_xla=model.mode == "xla") for each in (parts.forward, backward, whole)]
        self.trace = partial(programs[-1].trace, *parts.fed)
        self.forward_alone, self.forward_and_backward, self.whole = (
            synchronised(partial(program, *parts.fed), model.device) for program in programs
        )


@contextmanager
def training(
    model: TensorflowModel, batch: Inputs, targets: object, config: TrainingConfig
) -> Iterator[EagerTraining | FusedTraining]:
    """The model trains on one batch again and again; what it learns is its owner's to take back.

    Raises:
        Unsupported: nothing can be trained, or the loss needs targets that there are not.
        Exception: whatever the constructor of a user-defined optimizer raised.
    """
    with tf.device(model.device):
        made = training_phases(model, batch, targets, config)
        if model.mode == "eager":
            yield EagerTraining(made)
        else:
            yield FusedTraining(made, model)


def training_phases(model: TensorflowModel, batch: Inputs, targets: object, config: TrainingConfig) -> StepPhases:
    """Return a training step of ``model``, with the optimizer's variables built. Raises as :func:`training`."""
    build(model, batch)
    variables = list(getattr(model.native, "trainable_variables", ()))
    if not variables:
        raise Unsupported("no variable of the model is trainable")
    wanted = on_device(Inputs((targets,)), model.device).args[0]
    return StepPhases(
        model.native,
        model.called(batch.forward, training=True),
        (batch.args, dict(batch.kwargs), wanted),
        loss_of(config.loss, wanted is not None, tensors_in),
        variables,
        optimizer_of(config.optimizer, variables),
    )


def build(model: TensorflowModel, batch: Inputs) -> None:
    """Call a model that has no weights yet, which are made when it is first called."""
    if not getattr(model.native, "built", True):
        model.called(batch.forward)(*batch.args, **batch.kwargs)


@contextmanager
def whole_steps(model: TensorflowModel, work: Work) -> Iterator[Callable[[], object]]:
    """Within the context: one whole step of ``work``."""
    if work.training is None:
        with model.stepping(work.batch) as step:
            yield step
        return
    with training(model, work.batch, work.targets, work.training) as phases:
        yield phases.whole if isinstance(phases, FusedTraining) else phases.all_phases


def step_phases_of(model: TensorflowModel, work: Work) -> StepPhases:
    """The task of ``work``.

    Raises:
        Unsupported: the model has no layers when it runs, or the training config does not fit it.
        Exception: whatever the model raised.
    """
    root, batch = model.native, work.batch
    if not isinstance(root, keras.Layer):
        raise Unsupported(f"a {type(root).__name__} has no layers: only a Keras model does")
    if model.mode == "xla":
        raise Unsupported(
            "not supported upstream: a compiled XLA program has no layers; mode=function has the same model with them"
        )
    if work.training is not None:
        return training_phases(model, batch, work.targets, work.training)
    build(model, batch)
    return StepPhases(root, model.called(batch.forward), (batch.args, dict(batch.kwargs), None))
