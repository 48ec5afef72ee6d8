"""Which output is the first on JAX, and arguments that are no arrays; seen in a process whose Keras runs on JAX."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

pytestmark = pytest.mark.slow  # a process of its own that compiles

pytest.importorskip("jax")

PROGRAM = """
import json
import jax, keras
import numpy as np
from sweeprof.backends.jax.adapter import JaxBackend
from sweeprof.backends.jax.adapter import parted
from sweeprof.measuring.inputs import Inputs, TensorSpec
from sweeprof.measuring.training_config import TrainingConfig

jax.config.update("jax_disable_most_optimizations", True)

class Switched(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense, self.traced = keras.layers.Dense(2, kernel_initializer="ones"), 0

    def call(self, x, flag=False, how="sum", times=1, training=None):
        self.traced += 1
        y = self.dense(x)
        for _ in range(times):
            y = 2 * y if flag else y
        return {"sum": y, "difference": -y}[how]

def outputs(model, inputs):
    with model.stepping(model.put(inputs)) as step:
        found = model.host_outputs(step())
        return next(iter(found.values())) if isinstance(found, dict) else found

def loss(backend, build, inputs, targets, named):
    model = backend.load(build, "cpu", None)
    with backend.training(model, model.put(inputs), targets, TrainingConfig("sgd", named)) as step:
        found = step.forward()
        step.backward(found)
        return float(found)

def two_outputs():
    x = keras.Input((4,))
    logits = keras.layers.Dense(3, kernel_initializer="zeros", name="logits")(x)
    return keras.Model(x, {"logits": logits, "aux": keras.layers.Dense(5, name="aux")(x)})

backend, found, ones = JaxBackend(), {}, np.ones((1, 3), np.float32)
backend.configure(0)
for mode in ("jit", "eager"):
    backend = JaxBackend(mode=mode)
    rows = Inputs((TensorSpec((2, 4)),))
    plain = backend.load(lambda: lambda x: {"z": [x + 1], "a": x, "text": None}, "cpu", None)
    switched = backend.load(Switched, "cpu", None)
    calls = [{}, {"flag": True}, {"flag": True, "times": 3}, {"how": "difference"}, {"flag": 1}, {"flag": True}]
    answers = [outputs(switched, Inputs((ones,), kwargs)).tolist() for kwargs in calls]
    seen = switched.native.traced
    outputs(switched, Inputs((ones + 1,), {"flag": True}))
    found[mode] = {
        "functional": outputs(backend.load(two_outputs, "cpu", None), rows).shape,
        "plain": outputs(plain, Inputs((ones,))).tolist(),
        "cross_entropy": loss(backend, two_outputs, rows, np.zeros(2, int), "cross_entropy"),
        "mean": loss(backend, Switched, Inputs((ones,), {"flag": True}), None, "mean"),
        "answers": answers,
        "traced again": switched.native.traced - seen,
    }
one, two, yes, number, again = (parted(Inputs((), {"some": some}))[0] for some in ({1}, {2}, True, 1, 1))
found["equal"] = [one == one, one == two, yes == number, number == again, len({one, two, yes, number, again})]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def seen() -> Any:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False,
        env={**os.environ, "KERAS_BACKEND": "jax"}, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("mode", ["jit", "eager"])
def test_the_first_output_is_the_first_that_a_mapping_lists(seen: Any, mode: str) -> None:
    """Not the first of its sorted keys, which JAX would take: other frameworks' answers are compared with it."""
    assert seen[mode]["functional"] == [2, 3]
    assert seen[mode]["plain"] == [[2, 2, 2]]


@pytest.mark.parametrize("mode", ["jit", "eager"])
def test_a_loss_is_of_the_same_output(seen: Any, mode: str) -> None:
    """Of three logits of 0, its classes are equally likely; of the five others they would not be."""
    assert seen[mode]["cross_entropy"] == pytest.approx(1.0986123, abs=1e-5)


@pytest.mark.parametrize("mode", ["jit", "eager"])
def test_constants_among_the_arguments_are_for_the_models_python(seen: Any, mode: str) -> None:
    """A kernel of ones makes 3 of three ones; ``flag`` doubles that as often as ``times`` says."""
    assert seen[mode]["answers"] == [[[value] * 2] for value in (3, 6, 24, -3, 6, 6)]
    assert seen[mode]["mean"] == 6


def test_a_batch_of_the_same_form_is_not_compiled_anew(seen: Any) -> None:
    assert [seen["jit"]["traced again"], seen["eager"]["traced again"]] == [0, 1]
    assert seen["equal"] == [True, False, False, True, 4]
