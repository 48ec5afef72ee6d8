"""Times of layers and operators of Keras models: known sleeps in graphs and operator by operator, calls counted by hand."""

from __future__ import annotations

import dataclasses
import gzip
import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from sweeprof.backends.tensorflow import operators as pass_module
from sweeprof.backends.tensorflow.adapter import TensorflowBackend
from sweeprof.backends.tensorflow.model import ExecutionMode, TensorflowModel, step_phases_of
from sweeprof.backends.tensorflow.operators import TRACED_STEPS, calibrated, timed_steps_of
from sweeprof.counting.formulas import DEFAULTS
from sweeprof.errors import Unsupported
from sweeprof.measuring import layer_timing
from sweeprof.measuring.inputs import Inputs
from sweeprof.measuring.layer_timing import NOT_DIFFERENTIATED, ProbeCost
from sweeprof.measuring.training_config import TrainingConfig, Work
from sweeprof.results.layer_times import OUTSIDE, ROOT, LayerTimes, Seconds
from sweeprof.results.observations import Operators
from sweeprof.results.record import Protocol

QUICK = Protocol(warmup_steps=1, warmup_s=0, sample_s=0, min_samples=3, min_s=0)
COST = ProbeCost(inside=4e-7, outside=5e-7, backward=7e-7)
"""About what is calibrated for a graph; naps do not depend on it."""
NAP = 0.02
CLOSE = 0.008
"""How near to a nap a figure must be."""
MODES: tuple[ExecutionMode, ...] = ("function", "eager")
X = np.random.default_rng(0).standard_normal((2, 4), np.float32)
TOKENS = np.array([[1, 2, 0], [3, 0, 0]], np.int32)


@pytest.fixture(autouse=True)
def uncalibrated(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(pass_module, "calibrated", lambda *_: COST)
    monkeypatch.setattr(layer_timing, "MOST_ATTEMPTS", 1)  # so that a busy machine takes no more steps than an idle one
    yield
    assert keras.Layer.__call__.__module__.startswith("keras.")


def loaded(model: Any, mode: ExecutionMode = "function") -> TensorflowModel:
    return TensorflowBackend(mode=mode).load(lambda: model, "cpu", None)


def work(inputs: Any = X, trains: bool = True, targets: Any = None, loss: str = "mean") -> Work:
    return Work(Inputs.of(inputs), targets, TrainingConfig("none", loss) if trains else None)


def timed(model: Any, mode: ExecutionMode = "function", protocol: Protocol = QUICK, **given: Any) -> LayerTimes:
    held, asked = loaded(model, mode), work(**given)
    of_model = dataclasses.replace(asked, batch=held.put(asked.batch))
    return TensorflowBackend(mode=mode).layer_times(held, of_model, protocol)


def seconds_of(times: LayerTimes) -> dict[tuple[str, int], Seconds]:
    return {(call.path, call.call): seconds for call, seconds in zip(times.calls, times.seconds, strict=True)}


def slept(values: Any, seconds: float, naps: list[float]) -> Any:
    """The values, after a nap of which the real length is noted: on a busy machine it may oversleep."""

    def sleep(values: Any) -> Any:
        begin = time.monotonic()
        time.sleep(seconds)
        naps.append(time.monotonic() - begin)
        return values

    outputs = tf.py_function(sleep, [values], values.dtype)
    outputs.set_shape(values.shape)
    return outputs


class Sleeper(keras.Layer):  # type: ignore[misc]
    """A layer without weights that sleeps."""

    def __init__(self, forward_s: float = NAP, backward_s: float = 1.5 * NAP, **given: Any) -> None:
        super().__init__(**given)
        self.forward_s, self.backward_s = forward_s, backward_s
        self.naps = SimpleNamespace(forward=[], backward=[])

    def call(self, x: Any) -> Any:
        @tf.custom_gradient  # type: ignore[untyped-decorator]
        def nap(values: Any) -> Any:
            def backward(gradient: Any) -> Any:
                return slept(gradient, self.backward_s, self.naps.backward)

            return slept(values, self.forward_s, self.naps.forward), backward

        return nap(x)

    def compute_output_shape(self, shape: Any) -> Any:
        return shape


def own_of(times: LayerTimes) -> dict[tuple[str, int], tuple[float, float]]:
    """What each call took itself in its quickest repeat, forward and backward: another process disturbs some, but not each."""
    return {(call.path, call.call): (min(call.forward), min(call.backward, default=0.0)) for call in times.calls}


def dense(name: str, units: int = 4) -> Any:
    return layers.Dense(units, name=name)


# Known times


@pytest.mark.parametrize("mode", MODES)
def test_a_layer_that_sleeps_takes_as_long_as_it_slept_forward_and_backward(mode: ExecutionMode) -> None:
    inner = keras.Sequential([dense("first"), Sleeper(name="sleeper")], name="inner")
    times = timed(keras.Sequential([keras.Input((4,)), dense("before"), inner, dense("after")]), mode)
    found, own, naps = seconds_of(times), own_of(times), inner.layers[1].naps
    assert [path for path, _ in found] == [OUTSIDE, ROOT, "before", "inner", "inner.first", "inner.sleeper", "after"]
    assert times.mode == "training"
    for seconds, slept_s in zip(own["inner.sleeper", 0], (min(naps.forward), min(naps.backward)), strict=True):
        assert slept_s - 0.001 <= seconds <= slept_s + CLOSE
    for path in (ROOT, "inner"):
        assert found[path, 0].forward >= found["inner.sleeper", 0].forward >= NAP
        assert (found[path, 0].backward or 0) >= (found["inner.sleeper", 0].backward or 0) >= 1.5 * NAP
    assert {key for key, seconds in own.items() if max(seconds) > NAP / 2} == {("inner.sleeper", 0)}
    if mode == "function":  # operator by operator probes cost more than what is taken off here
        assert times.forward_covered == pytest.approx(1, abs=0.25)
        assert times.backward_covered == pytest.approx(1, abs=0.25)
    assert times.probe_s.keys() == dataclasses.asdict(COST).keys()


@pytest.mark.parametrize("mode", MODES)
def test_inference_has_no_backward_and_gives_no_reason_for_that(mode: ExecutionMode) -> None:
    sleeper = Sleeper(name="sleeper")
    times = timed(keras.Sequential([keras.Input((4,)), dense("first"), sleeper]), mode, trains=False)
    found = seconds_of(times)["sleeper", 0]
    assert (times.mode, times.backward, times.backward_covered) == ("inference", None, None)
    assert (found.backward, found.backward_self, found.reason) == (None, None, None)
    assert 0 <= own_of(times)["sleeper", 0][0] - min(sleeper.naps.forward) + 0.001 <= CLOSE


class Products(keras.Layer):  # type: ignore[misc]
    """So many matrix products."""

    def __init__(self, count: int, **given: Any) -> None:
        super().__init__(**given)
        self.count = count

    def build(self, shape: Any) -> None:
        self.weight = self.add_weight(shape=(shape[-1], shape[-1]), initializer="orthogonal")

    def call(self, x: Any) -> Any:
        for _ in range(self.count):
            x = x @ self.weight
        return x


@pytest.mark.slow
def test_of_layers_that_differ_in_work_alone_each_has_its_share_of_the_time() -> None:
    counts = {"one": 10, "slow": 40, "two": 10}
    model = keras.Sequential([keras.Input((64,)), *(Products(count, name=name) for name, count in counts.items())])
    protocol, shares = dataclasses.replace(QUICK, min_samples=40), []
    for _ in range(10):  # another process may take the processor, but not each time
        found = seconds_of(timed(model, inputs=np.ones((64, 64), np.float32), protocol=protocol))
        forward = {name: found[name, 0].forward_self for name in counts}
        backward = {name: found[name, 0].backward_self or 0.0 for name in counts}
        shares.append([each["slow"] / sum(each.values()) for each in (forward, backward)])
        if all(abs(share - 40 / 60) < 0.07 for share in shares[-1]):
            return
    pytest.fail(f"of 40 in 60 products the shares of time are {shares}")


# Which calls there are


class Chained(keras.Model):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.embedding = layers.Embedding(9, 8, mask_zero=True, name="embedding")
        self.recurrent = layers.Bidirectional(layers.SimpleRNN(4, return_sequences=True), name="both")
        self.attention = layers.MultiHeadAttention(2, 4, name="attention")
        self.scale = layers.Rescaling(0.5, name="scale")
        self.frozen = dense("frozen", 8)
        self.frozen.trainable = False

    def call(self, tokens: Any) -> Any:
        x = self.recurrent(self.embedding(tokens))
        return self.frozen(self.attention(x, x)), self.scale(tf.cast(tokens, tf.float32))


@pytest.mark.slow(rows=1)
@pytest.mark.parametrize("mode", MODES)
def test_recurrent_layers_are_marked_as_a_whole_and_masks_arrive(mode: ExecutionMode) -> None:
    model, tokens = Chained(), TOKENS
    times = timed(model, mode, inputs=tokens)
    found, wrapped = seconds_of(times), model.recurrent
    paths = {path for path, _ in found}
    assert {path for path in paths if path.startswith("both.")} == {
        f"both.{layer.name}" for layer in (wrapped.forward_layer, wrapped.backward_layer)
    }
    assert {"attention.query", "attention.key", "embedding", "frozen"} <= paths
    assert found["frozen", 0].reason is None  # what is before it learns
    assert found["scale", 0].reason == NOT_DIFFERENTIATED
    assert found["scale", 0].backward is None
    assert all(seconds.forward_self >= 0 for seconds in found.values())


@pytest.mark.thorough
@pytest.mark.parametrize("mode", MODES)
def test_probes_change_no_result(mode: ExecutionMode) -> None:
    keras.utils.set_random_seed(0)
    model, tokens = Chained(), TOKENS
    held = loaded(model, mode)
    task = step_phases_of(held, work(held.put(Inputs.of(tokens))))
    steps = timed_steps_of(task, is_eager=mode == "eager")
    flat = [tf.nest.flatten(steps.run_step(is_probed).results, expand_composites=True) for is_probed in (False, True)]
    assert len(flat[0]) == len(flat[1]) == 1 + len(task.parameters) + 2  # the embedding's has three parts
    for one, other in zip(*flat, strict=True):  # a graph adds up in another order where it fuses other operators
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-7)


@pytest.mark.slow
def test_every_call_that_is_timed_has_a_row_in_the_layer_table() -> None:
    model = Chained()
    times = timed(model, inputs=TOKENS, trains=False)
    table = TensorflowBackend().analyze(lambda: model, Inputs.of(TOKENS), None, DEFAULTS).with_times(times)
    assert table.timing is not None
    assert table.timing.unplaced == ()


# What there is no time of


def test_what_cannot_be_timed_or_traced_is_said(tmp_path: Path) -> None:
    model = keras.Sequential([keras.Input((4,)), dense("only")])
    with pytest.raises(Unsupported, match="only a Keras model does"):
        timed(lambda x: x)
    with pytest.raises(Unsupported, match="no variable of the model is trainable"):
        timed(keras.Sequential([keras.Input((4,)), layers.ReLU()]))
    on_gpu = dataclasses.replace(loaded(model), device="gpu:0")
    with pytest.raises(Unsupported, match="layers are timed on the CPU"):
        pass_module.layer_times(on_gpu, work(trains=False), QUICK)
    with pytest.raises(Unsupported, match="not implemented: the profiler's events of an accelerator"):
        TensorflowBackend().operators(on_gpu, work(trains=False))
    tf.profiler.experimental.start(str(tmp_path))
    try:
        with pytest.raises(Unsupported, match="a profiler of TensorFlow is running"):
            traced(model)
    finally:
        tf.profiler.experimental.stop(save=False)


@pytest.mark.parametrize("mode", MODES)
def test_keras_is_as_it_was_after_an_error(mode: ExecutionMode) -> None:
    class Failing(keras.Layer):  # type: ignore[misc]
        def call(self, x: Any) -> Any:
            raise ValueError("mine")

    before = keras.Layer.__call__
    with pytest.raises(ValueError, match="mine"):
        timed(keras.Sequential([Failing()]), mode, trains=False)
    assert keras.Layer.__call__ is before


@pytest.mark.parametrize("mode", MODES)
def test_probes_cost_more_than_nothing_and_less_than_their_calibration(mode: ExecutionMode) -> None:
    """A graph's clock counts microseconds: a quicker probe shows only in the whole step, where a busy machine may hide it once."""
    began = time.perf_counter()
    costs = [calibrated(mode == "eager", with_backward=True) for _ in range(3)]
    parts = [seconds for cost in costs for seconds in (cost.inside, cost.outside, cost.backward)]
    assert min(parts) >= 0
    assert max(parts) < time.perf_counter() - began
    assert any(cost.inside + cost.outside for cost in costs)


# Operators


def traced(model: Any, mode: ExecutionMode = "function", trains: bool = True, inputs: Any = X) -> Operators:
    held, config = loaded(model, mode), TrainingConfig("sgd", "mean") if trains else None
    return TensorflowBackend(mode=mode).operators(held, Work(held.put(Inputs.of(inputs)), None, config))


def calls_of(found: Operators, part: str, phase: str) -> dict[str, float]:
    """Calls in a step of the operators with ``part`` in their names, which TensorFlow decorates, by layer."""
    calls: dict[str, float] = {}
    for row in found.rows:
        if part in row.operator and row.phase == phase:
            calls[row.path] = calls.get(row.path, 0) + row.calls
    return calls


class Tangled(keras.Model):  # type: ignore[misc]
    """One layer is called twice, and layers have the names that TensorFlow would give to other calls."""

    def __init__(self) -> None:
        super().__init__()
        self.twice = layers.Dense(4, name="dense")
        self.inner = keras.Sequential([layers.Dense(4, name="dense"), layers.Softmax(name="soft")], name="dense_1")
        self.sleeper = Sleeper(NAP, 2 * NAP, name="sleeper")
        self.recurrent = layers.SimpleRNN(4, name="recurrent")

    def call(self, x: Any) -> Any:
        x = self.sleeper(self.inner(self.twice(self.twice(x))))
        return self.recurrent(tf.stack([x] * 5, axis=1))


@pytest.mark.slow(rows=1)
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
