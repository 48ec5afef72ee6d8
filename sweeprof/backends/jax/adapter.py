"""Keras models on JAX, compiled by XLA or eager.

XLA's client makes its pools when it starts, which is when the first device is asked for, and keeps them. Measured on two cores by
the processor time of each thread (jax 0.10.2): ``NPROC=1`` leaves one computing thread, while
``--xla_cpu_multi_thread_eigen=false`` and the option of that name in a compilation change nothing, and no flag sets a number.
"""

from __future__ import annotations

import os
import random
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Literal

import jax
import keras
import numpy as np
from jax import numpy as jnp

from sweeprof.backends import (
    AnyArray,
    Build,
    Gap,
    HostOutputs,
    LoadedModel,
    array_in,
    array_of,
    channels_last,
    device_names,
    is_tensor,
    outputs_on_host,
)
from sweeprof.backends.keras.calls import (
    NO_GENERATION,
    NO_GRAPH,
    NO_PEAKS,
    KerasBackend,
    as_called,
    loss_of,
    optimizer_of,
)
from sweeprof.backends.keras.counting import count_layers, count_training
from sweeprof.backends.keras.private import is_jax_running
from sweeprof.counting.formulas import Args, Formulas, Kwargs
from sweeprof.errors import Problem, Unsupported, UserError
from sweeprof.measuring.inputs import Inputs
from sweeprof.measuring.training_config import TrainingConfig
from sweeprof.nested import named_leaves
from sweeprof.results.layers import LayerTable, Training

# ---------------------------------------------------------------------------------------------------------------------
# Arguments
# ---------------------------------------------------------------------------------------------------------------------

ARRAYS = (jax.Array, np.ndarray)


def arranged(inputs: Inputs, channel_axis: int | None, dtype: str | None = None) -> Inputs:
    """Generated where a specification is given, floating-point arrays in ``dtype``, and with the channels moved from
    ``channel_axis`` to the end.
    """
    order = channels_last(inputs, channel_axis)

    def change(leaf: object) -> object:
        if is_tensor(leaf) and not isinstance(leaf, jax.Array):
            leaf = array_of(leaf)
        if dtype is not None and isinstance(leaf, ARRAYS) and jnp.issubdtype(leaf.dtype, jnp.floating):
            leaf = leaf.astype(dtype)
        return array_in(leaf, order) if isinstance(leaf, np.ndarray) else leaf

    return inputs.map(change)


@dataclass(frozen=True, slots=True)
class Form:
    """Arguments without their arrays. Two are equal if the same compiled function can run both."""

    tree: jax.tree_util.PyTreeDef
    keys: tuple[object, ...]
    """The key of each leaf that is a constant; ``None`` for an array."""
    leaves: tuple[object, ...] = field(compare=False, repr=False)
    """The constants, and ``None`` for each array."""

    def filled(self, arrays: list[jax.Array]) -> tuple[Args, Kwargs]:
        """Positional and keyword arguments with these arrays."""
        waiting = iter(arrays)
        leaves = [next(waiting) if key is None else leaf for key, leaf in zip(self.keys, self.leaves, strict=True)]
        args, kwargs = jax.tree.unflatten(self.tree, leaves)
        return args, kwargs


def parted(batch: Inputs) -> tuple[Form, list[jax.Array]]:
    """The form of the arguments, and their arrays. Booleans, texts and numbers are constants: Python may read them."""
    leaves, tree = jax.tree.flatten((batch.args, dict(batch.kwargs)))
    arrays: list[jax.Array] = []
    keys: list[object] = []
    constants: list[object] = []
    for leaf in leaves:
        if isinstance(leaf, ARRAYS):
            arrays.append(leaf)
            keys.append(None)
            constants.append(None)
            continue
        constants.append(leaf)
        try:
            hash(leaf)
            keys.append((type(leaf), leaf))  # with the type, as True equals 1
        except TypeError:  # such as a set
            keys.append((type(leaf), "object", id(leaf)))
    return Form(tree, tuple(keys), tuple(constants)), arrays


def named_arrays(outputs: object) -> dict[str, jax.Array]:
    """The arrays in what a model returned by name, in the order in which the model has them."""
    found: dict[str, jax.Array] = {}
    for name, leaf in named_leaves(outputs).items():
        if isinstance(leaf, ARRAYS):
            found[name] = leaf
            continue
        for index, array in enumerate(jax.tree.leaves(leaf)):  # of a container that only JAX knows
            if isinstance(array, ARRAYS):
                found[f"{name}.{index}" if name else str(index)] = array
    return found


# ---------------------------------------------------------------------------------------------------------------------
# Models
# ---------------------------------------------------------------------------------------------------------------------


class JaxModel(LoadedModel):
    """Ready to step. The weights are arguments of what is compiled: as constants XLA would fold them, which no user's model has."""

    def __init__(
        self, model: Any, device: jax.Device, is_compiled: bool, channel_axis: int | None, dtype: str | None = None
    ) -> None:
        """Args:
        model: a Keras layer or a function of arrays.
        device: JAX's.
        is_compiled: whether a step is one compiled function, or runs operator by operator.
        channel_axis: where the dataset has its channels, which the model expects last; None: nothing is moved.
        dtype: of floating-point inputs; None: their own.
        """
        self.native = model
        self.device, self._is_compiled, self._channel_axis, self._dtype = device, is_compiled, channel_axis, dtype
        self._forwards: dict[Form, Callable[..., object]] = {}

    @property
    def compiles(self) -> bool:
        return self._is_compiled

    def put(self, inputs: Inputs) -> Inputs:
        if inputs.forward is not None:
            raise Unsupported("on JAX a step is a call of the model; inputs.forward is not possible")
        batch = as_called(self.native, arranged(inputs, self._channel_axis, self._dtype))
        return batch.map(lambda leaf: jax.device_put(leaf, self.device) if isinstance(leaf, ARRAYS) else leaf)

    @contextmanager
    def stepping(self, batch: Inputs) -> Iterator[Callable[[], object]]:
        with jax.default_device(self.device):
            weights, (form, arrays) = weights_of(self.native, batch), parted(batch)
            if form not in self._forwards:  # a new function would be compiled again
                self._forwards[form] = self.compiled(partial(_inference, self.native, form))
            forward = self._forwards[form]

            def step() -> object:
                return jax.block_until_ready(forward(weights, arrays))

            yield step

    def compiled(self, function: Callable[..., object]) -> Callable[..., object]:
        """The function as this model's variant runs it."""
        return jax.jit(function) if self.compiles else function

    def transfers(self, inputs: Inputs, outputs: object) -> Mapping[str, Callable[[], object]]:
        if self.device.platform == "cpu":
            return {}
        return {
            "h2d": lambda: jax.block_until_ready(parted(self.put(inputs))[1]),
            "d2h": lambda: self.host_outputs(outputs),
        }

    def host_outputs(self, outputs: object) -> HostOutputs:
        def on_host(array: jax.Array) -> AnyArray:
            copied = np.asarray(array)
            return copied.astype(np.float32) if "float" in str(array.dtype) else copied

        return outputs_on_host(outputs, named_arrays(outputs), on_host)


JaxWeights = tuple[list[jax.Array], list[jax.Array]]
"""Values of what is trained, and of everything else that a model remembers."""


def weights_of(model: object, batch: Inputs) -> JaxWeights:
    """The model's, which is built for ``batch`` if it was not; of a plain function none."""
    if not isinstance(model, keras.Layer):
        return [], []
    if not model.built:
        model(*batch.args, **{"training": False, **batch.kwargs})
    return [v.value for v in model.trainable_variables], [v.value for v in model.non_trainable_variables]


def _inference(model: Any, form: Form, weights: JaxWeights, arrays: list[jax.Array]) -> object:
    """The outputs in inference mode; the model is left as it is.

    These are the arrays among the outputs by name, in their order: of a dict that leaves a compiled function the keys are sorted.
    """
    args, kwargs = form.filled(arrays)
    if isinstance(model, keras.Layer):
        outputs, _ = called(model, weights, args, {"training": False, **kwargs})
    else:
        outputs = model(*args, **kwargs)
    return OrderedDict(named_arrays(outputs)) or outputs


def called(model: keras.Layer, weights: JaxWeights, args: Args, kwargs: Kwargs) -> tuple[object, list[jax.Array]]:
    """Outputs of a Keras layer with these weights, and what it then remembers beside what is trained.

    As ``stateless_call`` of Keras, which goes past ``__call__`` and so past its casts and defaults.
    """
    remembered = model.non_trainable_variables
    values = zip([*model.trainable_variables, *remembered], [*weights[0], *weights[1]], strict=True)
    with keras.StatelessScope(state_mapping=list(values)) as scope:
        outputs = model(*args, **kwargs)
    after = []
    for variable in remembered:
        value = scope.get_current_value(variable)
        after.append(variable.value if value is None else value)
    return outputs, after


# ---------------------------------------------------------------------------------------------------------------------
# Training
# ---------------------------------------------------------------------------------------------------------------------


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
        self._backward = model.compiled(lambda back, loss: back(jnp.ones_like(loss))[0])
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


@contextmanager
def training(model: JaxModel, batch: Inputs, targets: object, config: TrainingConfig) -> Iterator[JaxTraining]:
    """The model trains on one batch again and again; what it learns is forgotten afterwards.

    Raises:
        Unsupported: nothing can be trained, or the loss needs targets that there are not.
        Exception: whatever the constructor of a user-defined optimizer raised.
    """
    with jax.default_device(model.device):
        if not isinstance(model.native, keras.Layer):
            raise Unsupported("a plain function has no parameters to train")
        weights_of(model.native, batch)
        variables = model.native.trainable_variables
        if not variables:
            raise Unsupported("no parameter requires a gradient")
        wanted = None if targets is None else jnp.asarray(targets)
        loss = loss_of(config.loss, wanted is not None, lambda outputs: list(named_arrays(outputs).values()))
        optimizer = optimizer_of(config.optimizer, variables)
        yield JaxTraining(model, batch, lambda outputs: loss(outputs, wanted), optimizer)


# ---------------------------------------------------------------------------------------------------------------------
# The backend
# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JaxBackend(KerasBackend):
    """Keras models called with ``training=False``; ``KERAS_BACKEND=jax`` must be set before Keras is imported."""

    tensor_package: ClassVar[str] = "jax"
    gaps: ClassVar[Mapping[str, Gap]] = {
        "graph": NO_GRAPH,
        "own_counts": Gap("not implemented", "XLA's analysis of costs is not read"),
        "artifact": Gap("not applicable", "JAX runs the model that its builder makes, and loads no file of it"),
        "generating": NO_GENERATION,
        "analyze_generation": NO_GENERATION,
        "watch": Gap("not implemented", "what runs is one compiled function, which no call of a layer can be seen in"),
        "layer_times": Gap("not implemented", "XLA fuses layers; its profiler's trace is not taken apart by layer"),
        "operators": Gap("not implemented", "the trace of JAX's profiler is not read"),
        "allocations": Gap("not supported upstream", "XLA plans one arena per program, and reports no allocation"),
        "peaks": NO_PEAKS,
        "lines": Gap("not applicable", "the model's Python runs once, while it is traced, and not in a step"),
    }
    mode: Literal["jit", "eager"] = "jit"
    """``jit`` compiles the model once per input shape, ``eager`` runs (and compiles) operator by operator."""

    def configure(self, seed: int) -> None:
        start(self.threads)
        # Not `keras.utils.set_random_seed`, which imports TensorFlow; Keras draws its seeds from Python's generator.
        random.seed(seed)
        np.random.seed(seed)

    def settings_in_effect(self, model: JaxModel | None = None) -> Mapping[str, Any]:
        # Threads are fixed when JAX starts, and it does not tell their number.
        settings = {
            "64 bits": bool(jax.config.jax_enable_x64),
            "default matmul precision": jax.config.jax_default_matmul_precision,
            "jit disabled": bool(jax.config.jax_disable_jit),
            "default device": None if jax.config.jax_default_device is None else str(jax.config.jax_default_device),
            "dtype policy": keras.config.dtype_policy().name,
            "floatx": keras.config.floatx(),
        }
        if model is not None and self.precision is not None:
            settings["precision method"] = self.method()
        return settings

    def devices(self) -> list[str]:
        return device_names(len(_gpus()))

    def load(self, build: Build, device: str, channel_axis: int | None) -> JaxModel:
        place = device_named(device)
        with jax.default_device(place), _quickly_built(self.mode == "jit"):
            model = _checked(self.built(build))
        return JaxModel(model, place, self.mode == "jit", self.moved(channel_axis), self.dtype)

    def analyze(self, build: Build, inputs: Inputs, channel_axis: int | None, formulas: Formulas) -> LayerTable:
        return count_layers(*self.described(build, inputs, channel_axis), formulas)

    def analyze_training(self, build: Build, inputs: Inputs, channel_axis: int | None, formulas: Formulas) -> Training:
        return count_training(*self.described(build, inputs, channel_axis), formulas)

    def training(
        self, model: JaxModel, batch: Inputs, targets: object, config: TrainingConfig
    ) -> AbstractContextManager[JaxTraining]:
        return training(model, batch, targets, config)

    def device_of(self, model: object) -> str:
        weights = model.weights if isinstance(model, keras.Layer) else ()
        device = min(weights[0].value.devices(), key=lambda device: device.id) if weights else jax.local_devices()[0]
        if device.platform == "cpu":
            return "cpu"
        kind = "cuda" if device.platform == "gpu" else device.platform
        return f"{kind}:{device.id}"

    def is_out_of_memory(self, error: BaseException) -> bool:
        return isinstance(error, jax.errors.JaxRuntimeError) and str(error).startswith("RESOURCE_EXHAUSTED")

    def described(self, build: Build, inputs: Inputs, channel_axis: int | None) -> tuple[object, Inputs]:
        with _quickly_built(is_compiled=True):
            model, called = KerasBackend.described(self, build, inputs, channel_axis)
        return _checked(model), called


def _checked(model: object) -> object:
    """The model, if it is one.

    Raises:
        Unsupported: Keras runs on another framework in this process.
    """
    if isinstance(model, keras.Layer) and keras.backend.backend() != "jax":
        message = f"Keras runs on {keras.backend.backend()} in this process"
        raise Unsupported(f"{message}; set KERAS_BACKEND=jax before it is imported")
    return model


@contextmanager
def _quickly_built(is_compiled: bool) -> Iterator[None]:
    """Within it XLA optimizes little: each initialiser of a weight is a program of its own, which takes seconds to optimize and
    microseconds to run, once. Weights differ in their last bit. What is compiled later, inner functions included, is optimized.

    Args:
        is_compiled: else a step would reuse what was compiled here.
    """
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", is_compiled or before)
    try:
        yield
    finally:
        jax.config.update("jax_disable_most_optimizations", before)


# ---------------------------------------------------------------------------------------------------------------------
# JAX itself
# ---------------------------------------------------------------------------------------------------------------------

VARIABLE = "NPROC"
"""Where XLA looks first for the number of processors (``DefaultThreadPoolSize``); it has no other switch."""

_started: list[int] = []
"""The number of threads that this process's client was started with by :func:`start`; nothing before."""


def start(threads: int) -> None:
    """Start the client with that many threads within an operator, at least 1.

    A call returns when its work is done. By default another thread does it, which takes 5 to 10 µs more where a step waits anyway.

    Raises:
        UserError: this process's client was started with another number.
    """
    if _started == [threads]:
        return
    if _started or is_jax_running():
        message = "is fixed once JAX has started; set it in a fresh process."
        raise UserError([Problem("backend.threads", threads, message)])
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = str(threads)
    try:
        jax.local_devices(backend="cpu")
    finally:
        del os.environ[VARIABLE]
        if before is not None:
            os.environ[VARIABLE] = before
    _started.append(threads)


def device_named(name: str) -> jax.Device:
    """JAX's device of that name."""
    kind, _, index = name.partition(":")
    found = _gpus() if kind == "cuda" else jax.local_devices(backend=kind)
    return found[int(index or 0)]


def _gpus() -> list[jax.Device]:
    return [device for device in jax.local_devices() if device.platform == "gpu"]
