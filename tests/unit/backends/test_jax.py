"""Keras models on JAX: outputs, threads, compiling, training, arguments, against torch and against formulas by hand.

Keras takes its backend once per process, and JAX its threads: run as a program, this file makes each check in a fork of a process
that only imported, and prints what failed.
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
from sweeprof.errors import Unsupported, UserError
from sweeprof.measuring.inputs import Inputs, TensorSpec
from sweeprof.measuring.training_config import TrainingConfig
from sweeprof.profiling.profiler import Profiler
from sweeprof.results.compared_rows import deviations_of
from sweeprof.results.record import Protocol
from sweeprof.targets import builder

pytestmark = pytest.mark.slow  # a process of its own that compiles
TESTS = Path(__file__).parents[2]
SHORT = Protocol(warmup_steps=2, warmup_s=0, sample_s=1e-4, min_samples=5, min_s=0.01)
MODES: tuple[Any, ...] = ("jit", "eager")
CHECKS: dict[str, Callable[[], None]] = {}


def check(function: Callable[[], None]) -> Callable[[], None]:
    CHECKS[function.__name__] = function
    return function


def started(**settings: Any) -> JaxBackend:
    """Configured, in a process whose compiler is in a hurry."""
    jax.config.update("jax_disable_most_optimizations", True)
    backend = JaxBackend(**settings)
    backend.configure(0)
    return backend


def outputs(backend: JaxBackend, build: Any, inputs: Inputs) -> Any:
    model = backend.load(build, "cpu", None)
    with model.stepping(model.put(inputs)) as step:
        return next(iter(named(model.host_outputs(step())).values()))


def losses(
    backend: JaxBackend, build: Any, inputs: Inputs, targets: Any, config: TrainingConfig, steps: int = 1
) -> Any:
    """Of so many steps, and the first of the trained weights after them."""
    model, found = backend.load(build, "cpu", None), []
    with backend.training(model, model.put(inputs), targets, config) as step:
        for _ in range(steps):
            found.append(float(step.forward()))
            step.backward(found[-1])
            step.update()
        return found, np.asarray(step.trained[0])


def busy(threads: int) -> tuple[float, JaxBackend, Any]:
    """The share of the processor time of 20 large products that other threads than this one spend."""
    backend = started(threads=threads)
    wide = keras.Sequential([keras.Input((1024,)), layers.Dense(1024, kernel_initializer="ones")])
    model = backend.load(lambda: wide, "cpu", None)
    with model.stepping(model.put(Inputs((TensorSpec((1024, 1024)),)))) as step:
        step()
        before = processor_times()
        for _ in range(20):
            step()
        spent = {thread: time - before.get(thread, 0.0) for thread, time in processor_times().items()}
    return 1 - spent[os.getpid()] / sum(spent.values()), backend, model


def processor_times() -> dict[int, float]:
    return {thread.id: thread.user_time + thread.system_time for thread in psutil.Process().threads()}


@check
def one_thread_computes() -> None:
    """Other threads are refused afterwards, and a setting that changes while a model is measured is seen."""
    others, backend, model = busy(1)
    assert others < 0.1
    with pytest.raises(UserError, match=r"backend\.threads.* is fixed once JAX has started"):
        started(threads=2)
    settings = backend.settings_in_effect(model)
    jax.config.update("jax_default_matmul_precision", "bfloat16")
    found = deviations_of(settings, backend.settings_in_effect(model))
    assert {name: list(values) for name, values in found.items()} == {"default matmul precision": [None, "bfloat16"]}


@check
def two_threads_compute() -> None:
    assert busy(2)[0] > 0.1


@check
def gradient_descent_is_as_by_hand_and_the_model_forgets_it() -> None:
    """The BatchNorm is frozen: it divides by √(1 + its epsilon) and nothing else."""
    started()
    model = keras.Sequential([keras.Input((3,)), layers.BatchNormalization(), layers.Dense(2, name="dense")])
    model.layers[0].trainable = False
    kernel, bias = np.arange(6.0).reshape(3, 2) / 6, np.zeros(2)
    model.layers[1].set_weights([kernel, bias])
    before = model.get_weights()
    given, wanted = np.arange(12.0, dtype=np.float32).reshape(4, 3) / 12, np.array([0, 1, 1, 0])
    config = TrainingConfig(partial(keras.optimizers.SGD, 0.5), "cross_entropy")
    found = [losses(JaxBackend(mode=mode), lambda: model, Inputs((given,)), wanted, config, 2) for mode in MODES]
    x, expected = given / np.sqrt(1 + 1e-3), []
    for _ in range(2):
        exponentials = np.exp(x @ kernel + bias)
        shares = exponentials / exponentials.sum(1, keepdims=True)
        expected.append(-np.log((shares * np.eye(2)[wanted]).sum(1)).mean())
        kernel = kernel - 0.5 * x.T @ (shares - np.eye(2)[wanted]) / 4
        bias = bias - 0.5 * (shares - np.eye(2)[wanted]).mean(0)
    for each, trained in found:
        np.testing.assert_allclose(each, expected, atol=1e-5)
        np.testing.assert_allclose(trained, kernel, atol=1e-5)
    assert all((one == other).all() for one, other in zip(before, model.get_weights(), strict=True))


@check
def a_batch_norm_that_learns_is_in_training_mode() -> None:
    """What is normalised by the batch's own mean has the mean zero."""
    backend, x = started(), np.arange(12.0, dtype=np.float32).reshape(4, 3)
    model = keras.Sequential([keras.Input((3,)), layers.BatchNormalization()])
    (loss,), _ = losses(backend, lambda: model, Inputs((x,)), None, TrainingConfig("sgd", "mean"))
    assert loss == pytest.approx(0, abs=1e-5)


@check
def what_cannot_be_has_a_reason() -> None:
    backend, x, config = started(), Inputs((TensorSpec((4, 3)),)), TrainingConfig("sgd", "mean")
    frozen = keras.Sequential([keras.Input((3,)), layers.Dense(2)])
    frozen.trainable = False
    with pytest.raises(Unsupported, match=r"^no parameter requires a gradient"):
        losses(backend, lambda: frozen, x, None, config)
    with pytest.raises(Unsupported, match=r"^a plain function has no parameters to train"):
        losses(backend, lambda: lambda x: x * 2, x, None, config)
    with pytest.raises(Unsupported, match=r"^on JAX a step is a call of the model"):
        outputs(backend, lambda: frozen, Inputs(x.args, forward=lambda m, x: m(x)))
    keras.backend.backend = lambda: "tensorflow"
    with pytest.raises(Unsupported, match=r"^Keras runs on tensorflow in this process; set KERAS_BACKEND=jax"):
        backend.load(lambda: frozen, "cpu", None)


class Later(keras.Model):  # type: ignore[misc]
    """Has no weights before it is called."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = layers.Dense(2, kernel_initializer="ones")

    def call(self, x: Any) -> Any:
        return {"answer": self.dense(x)}


@check
def any_shape_of_inputs_and_outputs() -> None:
    """Several tensors, by name; a model that is built by its first call; a plain function."""
    backend = started()
    a, b = keras.Input((2,), name="a"), keras.Input((2,), name="b")
    two = keras.Model({"a": a, "b": b}, layers.Subtract()([a, b]))
    pair = keras.Model([a, b], layers.Subtract()([a, b]))
    ones = np.ones((1, 2), np.float32)
    assert outputs(backend, lambda: two, Inputs(({"a": 3 * ones, "b": ones},))).tolist() == [[2, 2]]
    assert outputs(backend, lambda: pair, Inputs((5 * ones, ones))).tolist() == [[4, 4]]
    assert outputs(backend, Later, Inputs((3 * ones,))).tolist() == [[6, 6]]
    assert outputs(backend, lambda: lambda x: (x + 1, x), Inputs((ones,))).tolist() == [[2, 2]]


@check
def a_model_in_a_callers_hands_is_told_by_its_keras_and_keeps_its_weights() -> None:
    jax.config.update("jax_disable_most_optimizations", True)
    model = keras.Sequential([keras.Input((4,)), layers.BatchNormalization(), layers.Dense(3)])
    before = model.get_weights()
    profiler = Profiler(model, inputs=(2, 4), mode="training", protocol=SHORT)
    assert all((profiler.compute(name).value or 0) > 0 for name in ("latency/forward", "latency/backward"))
    assert isinstance(profiler.session.backend, JaxBackend)
    assert all((one == other).all() for one, other in zip(before, model.get_weights(), strict=True))


@check
def bfloat16() -> None:
    """Other precisions are those of Keras on TensorFlow."""
    started()
    backend, build = JaxBackend(precision="bf16"), builder({"_target_": "support.keras_models.dense"})
    assert {str(weight.dtype) for weight in backend.load(build, "cpu", None).native.weights} == {"bfloat16"}
    x = np.random.default_rng(0).standard_normal((4, 16)).astype(np.float32)
    weight = np.random.default_rng(1).standard_normal((16, 8)).astype(np.float32)
    bias = np.random.default_rng(2).standard_normal(8).astype(np.float32)
    np.testing.assert_allclose(outputs(backend, build, Inputs((x,))), x @ weight + bias, rtol=0.05, atol=0.1)


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


ONES = np.ones((1, 3), np.float32)


@check
def constants_among_the_arguments_are_for_the_models_python() -> None:
    """A kernel of ones makes 3 of three ones; ``flag`` doubles that as often as ``times`` says.

    A batch of the same form is not compiled anew.
    """
    started()
    calls: list[tuple[dict[str, Any], int]] = [
        *(({}, 3), ({"flag": True}, 6), ({"flag": True, "times": 3}, 24), ({"how": "difference"}, -3), ({"flag": 1}, 6))
    ]
    for mode, traced_again in zip(MODES, (0, 1), strict=True):
        backend = JaxBackend(mode=mode)
        model: Any = backend.load(Switched, "cpu", None)
        for kwargs, value in calls:
            with model.stepping(model.put(Inputs((ONES,), kwargs))) as step:
                assert model.host_outputs(step()).tolist() == [[value] * 2]
        seen = model.native.traced
        with model.stepping(model.put(Inputs((ONES + 1,), {"flag": True}))) as step:
            step()
        assert model.native.traced - seen == traced_again
        mean = losses(backend, Switched, Inputs((ONES,), {"flag": True}), None, TrainingConfig("sgd", "mean"))
        assert mean[0] == [6]


def two_outputs() -> Any:
    x = keras.Input((4,))
    logits = layers.Dense(3, kernel_initializer="zeros", name="logits")(x)
    return keras.Model(x, {"logits": logits, "aux": layers.Dense(5, name="aux")(x)})


@check
def the_first_output_is_the_first_that_a_mapping_lists() -> None:
    """Not the first of its sorted keys, which JAX would take: other frameworks' answers are compared with it, and a loss is of it.

    Of three logits of 0, its classes are equally likely; of the five others they would not be.
    """
    started()
    rows, config = Inputs((TensorSpec((2, 4)),)), TrainingConfig("sgd", "cross_entropy")
    for mode in MODES:
        backend = JaxBackend(mode=mode)
        assert outputs(backend, two_outputs, rows).shape == (2, 3)
        mapping = outputs(backend, lambda: lambda x: {"z": [x + 1], "a": x, "text": None}, Inputs((ONES,)))
        assert mapping.tolist() == [[2, 2, 2]]
        (loss,), _ = losses(backend, two_outputs, rows, np.zeros(2, int), config)
        assert loss == pytest.approx(1.0986123, abs=1e-5)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name, checks in CHECKS.items():
            if os.fork() == 0:
                failed = "it ended early"
                try:
                    checks()
                    failed = ""
                except BaseException:
                    failed = traceback.format_exc()
                finally:
                    (Path(folder) / name).write_text(failed)
                    os._exit(0)
            os.wait()
        json.dump({path.name: path.read_text() for path in Path(folder).iterdir()}, sys.stdout)


@pytest.fixture(scope="module")
def failures() -> Any:
    """By check, how it failed."""
    environment = {**os.environ, "KERAS_BACKEND": "jax", "OPENBLAS_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(TESTS), environment.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, __file__], capture_output=True, text=True, check=True, env=environment, timeout=280
    )
    assert "os.fork()" not in done.stderr  # JAX warns when a process forks that has begun to use it
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.thorough if "thread" in name else ()) for name in CHECKS]
)
def test_on_jax(name: str, failures: Any) -> None:
    assert not failures[name], failures[name]


if __name__ == "__main__":
    main()
