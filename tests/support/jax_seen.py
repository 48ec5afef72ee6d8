"""What the JAX backend does, seen in processes of its own: ``python -m support.jax_seen`` prints JSON.

Keras takes its backend once per process, and JAX its threads, so each question is asked in a fork of a process that only imported.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import keras
import numpy as np
import psutil
from keras import layers

from sweeprof.backends import named
from sweeprof.backends.jax.adapter import JaxBackend
from sweeprof.measuring.inputs import Inputs, TensorSpec
from sweeprof.measuring.timing import measure
from sweeprof.measuring.training_config import TrainingConfig
from sweeprof.profiling.profiler import Profiler
from sweeprof.results.compared_rows import deviations_of
from sweeprof.results.record import Protocol
from sweeprof.targets import builder
from sweeprof.zoo import mlp

SHORT = Protocol(warmup_steps=2, warmup_s=0, sample_s=1e-4, min_samples=5, min_s=0.01)


def started(**settings: Any) -> JaxBackend:
    """Configured, in a process whose compiler is in a hurry."""
    jax.config.update("jax_disable_most_optimizations", True)
    backend = JaxBackend(**settings)
    backend.configure(0)
    return backend


def outputs(backend: JaxBackend, build: Any, inputs: Inputs, axis: int | None = None) -> Any:
    model = backend.load(build, "cpu", axis)
    with model.stepping(model.put(inputs)) as step:
        return next(iter(named(model.host_outputs(step())).values()))


def raised(function: Callable[[], object]) -> str:
    try:
        function()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def threads(number: int) -> Any:
    """Seconds of processor time of the thread that calls, and of all others, during 20 large products."""
    backend = started(threads=number)
    wide = keras.Sequential([keras.Input((1024,)), layers.Dense(1024, kernel_initializer="ones")])
    model = backend.load(lambda: wide, "cpu", None)
    with model.stepping(model.put(Inputs((TensorSpec((1024, 1024)),)))) as step:
        step()
        before = processor_times()
        for _ in range(20):
            step()
        spent = {thread: time - before.get(thread, 0.0) for thread, time in processor_times().items()}
    own = spent.pop(os.getpid())
    settings = backend.settings_in_effect(model)
    jax.config.update("jax_default_matmul_precision", "bfloat16")
    return {
        "own": own,
        "others": sum(spent.values()),
        "again": raised(lambda: started(threads=number + 1)),
        "deviations": deviations_of(settings, backend.settings_in_effect(model)),
    }


def processor_times() -> dict[int, float]:
    return {thread.id: thread.user_time + thread.system_time for thread in psutil.Process().threads()}


def times() -> Any:
    """What is compiled has a first step of its own."""
    backend = started()
    model = backend.load(mlp.keras_model, "cpu", 1)
    with model.stepping(model.put(Inputs((TensorSpec((1, 1, 32, 32)),)))) as step:
        timing = measure(step, SHORT, model.clock())
    eager = JaxBackend(mode="eager").load(lambda: lambda x: x, "cpu", None)
    compiles = [model.compiles, eager.compiles]
    return {"compiles": compiles, "first": timing.first_step_s, "median": timing.median_s}


def training() -> Any:
    """Two steps of gradient descent of a linear model, and what is left of them in the model."""
    started()
    dense = keras.Sequential([keras.Input((3,)), layers.BatchNormalization(), layers.Dense(2, name="dense")])
    dense.layers[0].trainable = False
    dense.layers[1].set_weights([np.arange(6.0).reshape(3, 2) / 6, np.zeros(2)])
    before = [weights.tolist() for weights in dense.get_weights()]
    x, y = np.arange(12.0, dtype=np.float32).reshape(4, 3) / 12, np.array([0, 1, 1, 0])
    found = {}
    for mode in ("jit", "eager"):
        backend = started(mode=mode)
        model = backend.load(lambda: dense, "cpu", None)
        config = TrainingConfig(partial(keras.optimizers.SGD, 0.5), "cross_entropy")
        with backend.training(model, model.put(Inputs((x,))), y, config) as step:
            losses = []
            for _ in range(2):
                losses.append(float(step.forward()))
                step.backward(losses[-1])
                step.update()
            found[mode] = {"losses": losses, "kernel": np.asarray(step.trained[0]).tolist()}
    normalising = backend.load(lambda: keras.Sequential([keras.Input((3,)), layers.BatchNormalization()]), "cpu", None)
    with backend.training(normalising, normalising.put(Inputs((x,))), None, TrainingConfig("sgd", "mean")) as step:
        normalised = float(step.forward())
    after = [weights.tolist() for weights in dense.get_weights()]
    return {**found, "before": before, "after": after, "normalised": normalised}


def refusals() -> Any:
    """What cannot be, and what is said."""
    backend = started()
    frozen = keras.Sequential([keras.Input((3,)), layers.Dense(2)])
    frozen.trainable = False
    x = Inputs((TensorSpec((4, 3)),))

    def train(build: Any) -> str:
        model = backend.load(build, "cpu", None)

        def step() -> None:
            with backend.training(model, model.put(x), None, TrainingConfig("sgd", "mean")) as found:
                found.forward()

        return raised(step)

    def plain() -> Any:
        return keras.Sequential([keras.Input((3,)), layers.Dense(2)])

    said = {
        "frozen": train(lambda: frozen),
        "function": train(lambda: lambda x: x * 2),
        "forward": raised(lambda: outputs(backend, plain, Inputs(x.args, forward=lambda m, x: m(x)))),
        "nothing": raised(lambda: outputs(backend, lambda: lambda x: None, x)),
    }
    keras.backend.backend = lambda: "tensorflow"
    return {**said, "elsewhere": raised(lambda: backend.load(plain, "cpu", None))}


class Later(keras.Model):  # type: ignore[misc]
    """Has no weights before it is called."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = layers.Dense(2, kernel_initializer="ones")

    def call(self, x: Any) -> Any:
        return {"answer": self.dense(x)}


def shapes_of_inputs() -> Any:
    """Several tensors, by name, of whole numbers; a model that is built by its first call; a plain function."""
    backend = started()
    a, b = keras.Input((2,), name="a"), keras.Input((2,), name="b")
    two = keras.Model({"a": a, "b": b}, layers.Subtract()([a, b]))
    pair = keras.Model([a, b], layers.Subtract()([a, b]))
    ones, words = np.ones((1, 2), np.float32), np.array([[1, 2, 0]])
    embedding = keras.Sequential([keras.Input((3,), dtype="int32"), layers.Embedding(4, 1, "ones")])
    return {
        "dict": outputs(backend, lambda: two, Inputs(({"a": 3 * ones, "b": ones},))).tolist(),
        "two arguments": outputs(backend, lambda: pair, Inputs((5 * ones, ones))).tolist(),
        "words": outputs(backend, lambda: embedding, Inputs((words,))).tolist(),
        "later": outputs(backend, Later, Inputs((3 * ones,))).tolist(),
        "function": outputs(backend, lambda: lambda x: (x + 1, x), Inputs((ones,))).tolist(),
    }


def borrowing() -> Any:
    """A model in a caller's hands, of Keras on JAX."""
    jax.config.update("jax_disable_most_optimizations", True)
    model = keras.Sequential([keras.Input((4,)), layers.BatchNormalization(), layers.Dense(3)])
    before = model.get_weights()
    profiler = Profiler(model, inputs=(2, 4), mode="training", protocol=SHORT)
    found = {name: profiler.compute(name).value for name in ("latency/forward", "latency/backward")}
    kept = all((a == b).all() for a, b in zip(before, model.get_weights(), strict=True))
    return {"backend": type(profiler.session.backend).__name__, "kept": kept, "values": found}


def bfloat16() -> Any:
    """The types of the weights of a dense layer, and its outputs."""
    started()
    backend, build = JaxBackend(precision="bf16"), builder({"_target_": "support.keras_models.dense"})
    types = sorted({str(weight.dtype) for weight in backend.load(build, "cpu", None).native.weights})
    x = np.random.default_rng(0).standard_normal((4, 16)).astype(np.float32)
    return [types, outputs(backend, build, Inputs((x,))).tolist()]


class Switched(keras.Model):  # type: ignore[misc]
    """What it computes is chosen by arguments that are no arrays; it knows how often it was traced."""

    def __init__(self) -> None:
        super().__init__()
        self.dense, self.traced = layers.Dense(2, kernel_initializer="ones"), 0

    def call(self, x: Any, flag: Any = False, how: str = "sum", times: int = 1, training: Any = None) -> Any:
        self.traced += 1
        y = self.dense(x)
        for _ in range(times):
            y = 2 * y if flag else y
        return {"sum": y, "difference": -y}[how]


def two_outputs() -> Any:
    x = keras.Input((4,))
    logits = layers.Dense(3, kernel_initializer="zeros", name="logits")(x)
    return keras.Model(x, {"logits": logits, "aux": layers.Dense(5, name="aux")(x)})


def arguments() -> Any:
    """Which output is the first, and arguments that are no arrays; jit and eager."""
    started()
    found: dict[str, Any] = {}
    ones, rows = np.ones((1, 3), np.float32), Inputs((TensorSpec((2, 4)),))
    for mode in ("jit", "eager"):
        backend = JaxBackend(mode=mode)
        switched = backend.load(Switched, "cpu", None)

        def answer(inputs: Inputs, model: Any = switched) -> Any:
            with model.stepping(model.put(inputs)) as step:
                return model.host_outputs(step()).tolist()

        def loss(build: Any, inputs: Inputs, targets: Any, name: str, backend: Any = backend) -> float:
            model = backend.load(build, "cpu", None)
            with backend.training(model, model.put(inputs), targets, TrainingConfig("sgd", name)) as step:
                value = step.forward()
                step.backward(value)
                return float(value)

        calls: list[dict[str, Any]] = [
            {},
            {"flag": True},
            {"flag": True, "times": 3},
            {"how": "difference"},
            {"flag": 1},
        ]
        answers = [answer(Inputs((ones,), kwargs)) for kwargs in calls]
        seen = switched.native.traced
        answer(Inputs((ones + 1,), {"flag": True}))
        found[mode] = {
            "functional": outputs(backend, two_outputs, rows).shape,
            "plain": outputs(backend, lambda: lambda x: {"z": [x + 1], "a": x, "text": None}, Inputs((ones,))).tolist(),
            "cross_entropy": loss(two_outputs, rows, np.zeros(2, int), "cross_entropy"),
            "mean": loss(Switched, Inputs((ones,), {"flag": True}), None, "mean"),
            "answers": answers,
            "traced again": switched.native.traced - seen,
        }
    return found


ASKED = (
    times,
    training,
    refusals,
    shapes_of_inputs,
    borrowing,
    bfloat16,
    arguments,
)
QUESTIONS: dict[str, Callable[[], Any]] = {
    "one_thread": partial(threads, 1),
    "two_threads": partial(threads, 2),
    **{function.__name__: function for function in ASKED},
}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name, asked in QUESTIONS.items():
            if os.fork() == 0:
                try:
                    (Path(folder) / name).write_text(json.dumps(asked()))
                except BaseException:
                    (Path(folder) / name).write_text(json.dumps({"trace": traceback.format_exc()}))
                finally:
                    os._exit(0)
            os.wait()
        json.dump({path.name: json.loads(path.read_text()) for path in Path(folder).iterdir()}, sys.stdout)


if __name__ == "__main__":
    main()
