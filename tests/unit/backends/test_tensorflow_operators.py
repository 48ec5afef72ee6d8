"""Operators of Keras models on TensorFlow: calls counted by hand, known sleeps, the layers and phases that they belong to."""

from __future__ import annotations

import dataclasses
import gzip
import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from sweeprof.backends.tensorflow.adapter import TensorflowBackend
from sweeprof.backends.tensorflow.model import ExecutionMode
from sweeprof.backends.tensorflow.operators import TRACED_STEPS
from sweeprof.errors import Unsupported
from sweeprof.measuring.inputs import Inputs
from sweeprof.measuring.training_config import TrainingConfig, Work
from sweeprof.report.operators import operators_csv
from sweeprof.results.layer_times import OUTSIDE, ROOT
from sweeprof.results.observations import Operators

MODES: tuple[ExecutionMode, ...] = ("function", "eager")
NAP = 0.01
X = np.random.default_rng(0).standard_normal((2, 4), np.float32)


def traced(model: Any, mode: ExecutionMode = "function", trains: bool = True, inputs: Any = X) -> Operators:
    backend = TensorflowBackend(mode=mode)
    held = backend.load(lambda: model, "cpu", None)
    return backend.operators(
        held, Work(held.put(Inputs.of(inputs)), None, TrainingConfig("sgd", "mean") if trains else None)
    )


def calls_of(found: Operators, part: str, phase: str) -> dict[str, float]:
    """Calls in a step of the operators with ``part`` in their names, which TensorFlow decorates, by layer."""
    calls: Counter[str] = Counter()
    for row in found.rows:
        if part in row.operator and row.phase == phase:
            calls[row.path] += row.calls  # type: ignore[assignment]
    return dict(calls)


class Sleeper(keras.Layer):  # type: ignore[misc]
    """An identity layer whose forward and backward sleep."""

    def call(self, x: Any) -> Any:
        @tf.custom_gradient  # type: ignore[untyped-decorator]
        def nap(values: Any) -> Any:
            return self.sleep(NAP, values), lambda gradient: self.sleep(2 * NAP, gradient)

        return nap(x)

    def sleep(self, seconds: float, values: Any) -> Any:
        def function(given: Any) -> Any:
            time.sleep(seconds)
            return given

        outputs = tf.py_function(function, [values], values.dtype)
        outputs.set_shape(values.shape)
        return outputs

    def compute_output_shape(self, shape: Any) -> Any:
        return shape


class Tangled(keras.Model):  # type: ignore[misc]
    """One layer is called twice, and layers have the names that TensorFlow would give to other calls."""

    def __init__(self) -> None:
        super().__init__()
        self.twice = layers.Dense(4, name="dense")
        self.inner = keras.Sequential([layers.Dense(4, name="dense"), layers.Softmax(name="soft")], name="dense_1")
        self.sleeper = Sleeper(name="sleeper")
        self.recurrent = layers.SimpleRNN(4, name="recurrent")

    def call(self, x: Any) -> Any:
        x = self.sleeper(self.inner(self.twice(self.twice(x))))
        return self.recurrent(tf.stack([x] * 5, axis=1))


@pytest.mark.parametrize("mode", MODES)
def test_every_operator_is_counted_in_the_layer_and_phase_that_it_belongs_to(mode: ExecutionMode) -> None:
    found = traced(Tangled(), mode)
    # A step of the recurrent layer multiplies its input and its state; Keras makes the first one twice, to see what it returns, and
    # a graph leaves that out again.
    forward, backward = calls_of(found, "MatMul", "forward"), calls_of(found, "MatMul", "backward")
    assert forward == {"dense": 2, "dense_1.dense": 1, "recurrent": 10 if mode == "function" else 12}
    # The gradient of the weights and of the inputs, but that the model's own input needs none.
    assert {path: backward[path] for path in ("dense", "dense_1.dense")} == {"dense": 3, "dense_1.dense": 2}
    assert calls_of(found, "Softmax", "forward") == {"dense_1.soft": 1}
    assert calls_of(found, "AssignSubVariableOp", "update") == {
        OUTSIDE: 7
    }  # parameters of two dense and a recurrent layer
    assert calls_of(found, "MatMul", "update") == {}
    naps: dict[str, Any] = {
        row.phase: row for row in found.rows if row.path == "sleeper" and row.operator == "EagerPyFunc"
    }
    for phase, seconds in (("forward", NAP), ("backward", 2 * NAP)):
        assert naps[phase].calls == 1
        assert seconds <= naps[phase].self_s <= naps[phase].total_s < found.step_s
    assert (found.mode, found.steps) == ("training", TRACED_STEPS)
    assert 3 * NAP < sum(row.self_s for row in found.rows) < found.step_s * 1.1
    assert all(row.self_s >= 0 for row in found.rows)
    if mode == "function":
        (stack,) = (row for row in found.rows if row.operator == "Pack" and row.path == ROOT)
        assert stack.input_shapes == ((2, 4),) * 5


@pytest.mark.parametrize("mode", MODES)
def test_inference_has_one_phase_and_what_is_not_known_is_left_out(mode: ExecutionMode) -> None:
    found = traced(keras.Sequential([keras.Input((4,)), layers.Dense(3, "relu", name="only")]), mode, trains=False)
    assert {row.phase for row in found.rows} == {"forward"}
    assert {row.path for row in found.rows if "MatMul" in row.operator} == {"only"}
    assert all((row.flops, row.allocated_bytes, row.device_self_s) == (None, None, None) for row in found.rows)
    assert found.flops_reason is not None
    assert Operators.from_dict(json.loads(json.dumps(found.to_dict()))) == dataclasses.replace(found, files={})
    assert len(operators_csv(found).splitlines()) == len(found.rows) + 1


def test_a_function_that_is_compiled_anew_at_every_call_has_one_row() -> None:
    """As Keras does with grouped convolutions; TensorFlow numbers each trace of it."""
    model = keras.Sequential([keras.Input((8, 8, 4)), layers.Conv2D(4, 3, groups=2, name="grouped")])
    found = traced(model, "eager", trains=False, inputs=np.ones((1, 8, 8, 4), np.float32))
    (row,) = (row for row in found.rows if row.operator.startswith("__"))
    assert (row.path, row.calls) == ("grouped", 1)
    assert not row.operator[-1].isdigit()


def test_the_trace_can_be_opened_where_chromes_are() -> None:
    found = traced(keras.Sequential([keras.Input((4,)), layers.Dense(3, name="only")]))
    events = json.loads(gzip.decompress(found.files["trace.json.gz"]))["traceEvents"]
    names = Counter(event["name"] for event in events if event["ph"] == "X")
    assert names["sweeprof step"] == TRACED_STEPS
    assert sum(number for name, number in names.items() if "only" in name and "MatMul" in name) >= 2 * TRACED_STEPS
    assert all(event["dur"] >= 0 and event["ts"] >= 0 for event in events if event["ph"] == "X")
    assert {event["tid"] for event in events} == {event["tid"] for event in events if event["ph"] == "M"}


def test_what_cannot_be_traced_is_said(tmp_path: Path) -> None:
    model = keras.Sequential([keras.Input((4,)), layers.Dense(3)])
    with pytest.raises(Unsupported, match="a compiled XLA program has no layers"):
        traced(model, "xla")
    backend = TensorflowBackend()
    held = dataclasses.replace(backend.load(lambda: model, "cpu", None), device="gpu:0")
    with pytest.raises(Unsupported, match="not implemented: the profiler's events of an accelerator"):
        backend.operators(held, Work(Inputs.of(X)))
    tf.profiler.experimental.start(str(tmp_path))
    try:
        with pytest.raises(Unsupported, match="a profiler of TensorFlow is running"):
            traced(model)
    finally:
        tf.profiler.experimental.stop(save=False)
