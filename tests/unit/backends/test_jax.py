"""Keras models on JAX: outputs, threads, compiling, training, arguments, against torch and against formulas by hand.

Keras takes its backend once per process, and JAX its threads: run as a program, this file answers each question in a fork of a
process that only imported, and prints JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
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
import pytest
from keras import layers

from sweeprof.backends import named
from sweeprof.backends.jax.adapter import JaxBackend
from sweeprof.measuring.inputs import Inputs, TensorSpec
from sweeprof.measuring.training_config import TrainingConfig
from sweeprof.profiling.profiler import Profiler
from sweeprof.results.compared_rows import deviations_of
from sweeprof.results.record import Protocol
from sweeprof.targets import builder

pytestmark = pytest.mark.slow  # a process of its own that compiles
TESTS = Path(__file__).parents[2]
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

    said = {
        "frozen": train(lambda: frozen),
        "function": train(lambda: lambda x: x * 2),
        "forward": raised(lambda: outputs(backend, lambda: frozen, Inputs(x.args, forward=lambda m, x: m(x)))),
    }
    keras.backend.backend = lambda: "tensorflow"
    return {**said, "elsewhere": raised(lambda: backend.load(lambda: frozen, "cpu", None))}


class Later(keras.Model):  # type: ignore[misc]
    """Has no weights before it is called."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = layers.Dense(2, kernel_initializer="ones")

    def call(self, x: Any) -> Any:
        return {"answer": self.dense(x)}


def shapes_of_inputs() -> Any:
    """Several tensors, by name; a model that is built by its first call; a plain function."""
    backend = started()
    a, b = keras.Input((2,), name="a"), keras.Input((2,), name="b")
    two = keras.Model({"a": a, "b": b}, layers.Subtract()([a, b]))
    pair = keras.Model([a, b], layers.Subtract()([a, b]))
    ones = np.ones((1, 2), np.float32)
    return {
        "dict": outputs(backend, lambda: two, Inputs(({"a": 3 * ones, "b": ones},))).tolist(),
        "two arguments": outputs(backend, lambda: pair, Inputs((5 * ones, ones))).tolist(),
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


@pytest.fixture(scope="module")
def seen() -> Any:
    """The answers to all questions."""
    environment = {**os.environ, "KERAS_BACKEND": "jax", "OPENBLAS_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(TESTS), environment.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, __file__], capture_output=True, text=True, check=True, env=environment, timeout=280
    )
    assert "os.fork()" not in done.stderr  # JAX warns when a process forks that has begun to use it
    found = json.loads(done.stdout)
    assert not [answer["trace"] for answer in found.values() if "trace" in answer]
    return found


@pytest.mark.thorough
def test_threads_are_those_that_compute(seen: Any) -> None:
    one, two = seen["one_thread"], seen["two_threads"]
    assert one["others"] < 0.1 * (one["own"] + one["others"])
    assert two["others"] > 0.1 * (two["own"] + two["others"])
    assert "backend.threads" in one["again"]
    assert "is fixed once JAX has started" in one["again"]


def test_a_setting_that_changes_while_a_model_is_measured_is_seen(seen: Any) -> None:
    assert seen["one_thread"]["deviations"] == {"default matmul precision": [None, "bfloat16"]}


def test_gradient_descent_is_as_by_hand_and_the_model_forgets_it(seen: Any) -> None:
    """The BatchNorm is frozen: it divides by √(1 + its epsilon) and nothing else."""
    found = seen["training"]
    x = np.arange(12.0).reshape(4, 3) / 12 / np.sqrt(1 + 1e-3)
    wanted, kernel, bias = np.eye(2)[[0, 1, 1, 0]], np.arange(6.0).reshape(3, 2) / 6, np.zeros(2)
    losses = []
    for _ in range(2):
        exponentials = np.exp(x @ kernel + bias)
        shares = exponentials / exponentials.sum(1, keepdims=True)
        losses.append(-np.log((shares * wanted).sum(1)).mean())
        kernel, bias = kernel - 0.5 * x.T @ (shares - wanted) / 4, bias - 0.5 * (shares - wanted).mean(0)
    for mode in ("jit", "eager"):
        np.testing.assert_allclose(found[mode]["losses"], losses, atol=1e-5)
        np.testing.assert_allclose(found[mode]["kernel"], kernel, atol=1e-5)
    assert found["before"] == found["after"]


def test_a_batch_norm_that_learns_is_in_training_mode(seen: Any) -> None:
    """What is normalised by the batch's own mean has the mean zero."""
    assert seen["training"]["normalised"] == pytest.approx(0, abs=1e-5)


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("frozen", "Unsupported: no parameter requires a gradient"),
        ("function", "Unsupported: a plain function has no parameters to train"),
        ("forward", "Unsupported: on JAX a step is a call of the model"),
        ("elsewhere", "Unsupported: Keras runs on tensorflow in this process; set KERAS_BACKEND=jax"),
    ],
)
def test_what_cannot_be_has_a_reason(seen: Any, what: str, said: str) -> None:
    assert seen["refusals"][what].startswith(said)


def test_any_shape_of_inputs_and_outputs(seen: Any) -> None:
    assert seen["shapes_of_inputs"] == {
        "dict": [[2, 2]],
        "two arguments": [[4, 4]],
        "later": [[6, 6]],
        "function": [[2, 2]],
    }


def test_a_model_in_a_callers_hands_is_told_by_its_keras_and_keeps_its_weights(seen: Any) -> None:
    found = seen["borrowing"]
    assert (found["backend"], found["kept"]) == ("JaxBackend", True)
    assert all(value > 0 for value in found["values"].values())


def test_bfloat16(seen: Any) -> None:
    """Other precisions are those of Keras on TensorFlow."""
    types, found = seen["bfloat16"]
    x = np.random.default_rng(0).standard_normal((4, 16)).astype(np.float32)
    weight = np.random.default_rng(1).standard_normal((16, 8)).astype(np.float32)
    bias = np.random.default_rng(2).standard_normal(8).astype(np.float32)
    assert types == ["bfloat16"]
    np.testing.assert_allclose(found, x @ weight + bias, rtol=0.05, atol=0.1)


modes = pytest.mark.parametrize("mode", ["jit", "eager"])


@modes
def test_the_first_output_is_the_first_that_a_mapping_lists(seen: Any, mode: str) -> None:
    """Not the first of its sorted keys, which JAX would take: other frameworks' answers are compared with it."""
    assert seen["arguments"][mode]["functional"] == [2, 3]
    assert seen["arguments"][mode]["plain"] == [[2, 2, 2]]


@modes
def test_a_loss_is_of_the_same_output(seen: Any, mode: str) -> None:
    """Of three logits of 0, its classes are equally likely; of the five others they would not be."""
    assert seen["arguments"][mode]["cross_entropy"] == pytest.approx(1.0986123, abs=1e-5)


@modes
def test_constants_among_the_arguments_are_for_the_models_python(seen: Any, mode: str) -> None:
    """A kernel of ones makes 3 of three ones; ``flag`` doubles that as often as ``times`` says."""
    assert seen["arguments"][mode]["answers"] == [[[value] * 2] for value in (3, 6, 24, -3, 6)]
    assert seen["arguments"][mode]["mean"] == 6


def test_a_batch_of_the_same_form_is_not_compiled_anew(seen: Any) -> None:
    assert [seen["arguments"][mode]["traced again"] for mode in ("jit", "eager")] == [0, 1]


if __name__ == "__main__":
    main()
