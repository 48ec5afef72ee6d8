"""Keras models on JAX: outputs, threads, compiling, training, arguments, against torch and against formulas by hand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

pytestmark = pytest.mark.slow  # a process of its own that compiles

pytest.importorskip("jax")
TESTS = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def seen() -> Any:
    """The answers to all questions of ``support.jax_seen``."""
    environment = {**os.environ, "KERAS_BACKEND": "jax", "OPENBLAS_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(TESTS), environment.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "support.jax_seen"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env=environment, cwd=TESTS.parent, timeout=280
    )
    assert "os.fork()" not in done.stderr  # JAX warns when a process forks that has begun to use it
    found = json.loads(done.stdout)
    assert not [answer["trace"] for answer in found.values() if "trace" in answer]
    return found


def test_threads_are_those_that_compute(seen: Any) -> None:
    one, two = seen["one_thread"], seen["two_threads"]
    assert one["others"] < 0.1 * (one["own"] + one["others"])
    assert two["others"] > 0.1 * (two["own"] + two["others"])
    assert "backend.threads" in one["again"]
    assert "is fixed once JAX has started" in one["again"]


def test_a_setting_that_changes_while_a_model_is_measured_is_seen(seen: Any) -> None:
    assert seen["one_thread"]["deviations"] == {"default matmul precision": [None, "bfloat16"]}


def test_the_first_step_compiles_and_no_later_one(seen: Any) -> None:
    found = seen["times"]
    assert found["compiles"] == [True, False]
    assert found["first"] > 10 * found["median"]


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
        ("nothing", "Unsupported: the model returned a NoneType without a tensor"),
        ("elsewhere", "Unsupported: Keras runs on tensorflow in this process; set KERAS_BACKEND=jax"),
    ],
)
def test_what_cannot_be_has_a_reason(seen: Any, what: str, said: str) -> None:
    assert seen["refusals"][what].startswith(said)


def test_any_shape_of_inputs_and_outputs(seen: Any) -> None:
    assert seen["shapes_of_inputs"] == {
        "dict": [[2, 2]],
        "two arguments": [[4, 4]],
        "words": [[[1], [1], [1]]],
        "later": [[6, 6]],
        "function": [[2, 2]],
    }


def test_a_model_in_a_callers_hands_is_told_by_its_keras_and_keeps_its_weights(seen: Any) -> None:
    found = seen["borrowing"]
    assert (found["backend"], found["kept"]) == ("JaxBackend", True)
    assert all(value > 0 for value in found["values"].values())


def test_bfloat16(seen: Any) -> None:
    """Against the product of numbers that are rounded by hand; other precisions are those of Keras on TensorFlow."""
    types, found = seen["bfloat16"]
    x = np.random.default_rng(0).standard_normal((4, 16)).astype(np.float32)
    weight = np.random.default_rng(1).standard_normal((16, 8)).astype(np.float32)
    bias = np.random.default_rng(2).standard_normal(8).astype(np.float32)
    rounded = [array.astype(ml_dtypes.bfloat16).astype(np.float32) for array in (x, weight, bias)]
    assert types == ["bfloat16"]
    np.testing.assert_allclose(found, rounded[0] @ rounded[1] + rounded[2], rtol=0.02, atol=0.05)
    assert np.abs(np.array(found) - (x @ weight + bias)).max() > 1e-4


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
