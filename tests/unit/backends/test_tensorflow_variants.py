"""Keras models run operator by operator, as a graph and by XLA, in several precisions, called with anything."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Literal

import keras
import numpy as np
import pytest
import tensorflow as tf
import torch

import sweeprof
from sweeprof.backends import Precision
from sweeprof.backends.tensorflow import adapter
from sweeprof.backends.tensorflow import model as model_module
from sweeprof.backends.tensorflow.adapter import TensorflowBackend
from sweeprof.backends.tensorflow.model import SynchronisedClock, tensors_in
from sweeprof.errors import Unsupported, UserError, described
from sweeprof.measuring.inputs import Inputs, TensorSpec
from sweeprof.measuring.timing import Timing
from sweeprof.results.observations import Lines
from sweeprof.results.record import Protocol

Mode = Literal["eager", "function", "xla"]
MODES: tuple[Mode, ...] = ("eager", "function", "xla")
X = np.random.default_rng(0).standard_normal((3, 8, 8, 2), np.float32)
SHORT = Protocol(warmup_steps=1, warmup_s=0, sample_s=0, min_samples=3, min_s=0)


def convolving() -> Any:
    model = keras.Sequential(
        [
            keras.Input((8, 8, 2)),
            keras.layers.Conv2D(4, 3, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(5),
        ]
    )
    keras.utils.set_random_seed(0)
    model.set_weights([np.random.default_rng(1).standard_normal(w.shape) / 4 for w in model.get_weights()])
    return model


def outputs(model: Any, inputs: Inputs, axis: int | None = None, **settings: Any) -> Any:
    loaded = TensorflowBackend(**settings).load(lambda: model, "cpu", axis)
    with loaded.stepping(loaded.put(inputs)) as step:
        return step()


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_computes_the_same(mode: Mode) -> None:
    model = convolving()
    expected = model(X).numpy()
    np.testing.assert_allclose(outputs(model, Inputs((X,)), mode=mode), expected, rtol=1e-4, atol=1e-5)
    loaded = TensorflowBackend(mode=mode).load(lambda: model, "cpu", 1)  # channels where torch has them
    with loaded.stepping(loaded.put(Inputs((np.moveaxis(X, -1, 1),)))) as step:
        np.testing.assert_allclose(np.asarray(loaded.host_outputs(step())), expected, rtol=1e-4, atol=1e-5)
    assert loaded.compiles == (mode != "eager")


class Raising(keras.Model):  # type: ignore[misc]
    def call(self, x: Any) -> Any:
        return of_width(x)


def of_width(x: Any) -> Any:
    raise ValueError(f"width {x.shape[-1]} is wrong")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("model", [Raising(), lambda x: of_width(x + 1)], ids=["keras", "function"])
def test_an_error_in_a_model_has_the_line_of_the_users_code(mode: Mode, model: Any) -> None:
    """Not that of AutoGraph's translation, nor the words that Keras puts before it."""
    with pytest.raises(ValueError, match="is wrong") as caught:
        outputs(model, Inputs((X,)), mode=mode)
    place = f"{Path(__file__).relative_to(Path.cwd())}:{of_width.__code__.co_firstlineno + 1} in of_width"
    assert described(caught.value) == f"ValueError: width 2 is wrong ({place})"


@pytest.mark.parametrize("mode", ["function", "xla"])
def test_a_graph_is_traced_once_and_apart(mode: Mode) -> None:
    traced = []

    def model(x: Any) -> Any:
        traced.append(x.shape)
        return x + 1

    loaded = TensorflowBackend(mode=mode).load(lambda: model, "cpu", None)
    batch = loaded.put(Inputs((X,)))
    trace = loaded.tracing(batch)
    assert trace is not None
    assert traced == []
    trace()
    assert traced == [X.shape]
    with loaded.stepping(batch) as step:
        for _ in range(3):
            np.testing.assert_array_equal(step(), X + 1)
    with loaded.stepping(loaded.put(Inputs((X[:1],)))) as step:
        step()
    assert traced == [X.shape, X[:1].shape]


def test_tracing_and_compiling_have_a_time_of_their_own() -> None:
    found = {}
    for mode in MODES:
        names = ["latency/trace", "latency/compile", "latency/first_step"]
        found[mode] = sweeprof.profile(convolving(), X, names, backend=TensorflowBackend(mode=mode), protocol=SHORT)
    eager, compiled = found["eager"], found["xla"]
    assert eager["latency/trace"].reason == "this backend does not trace a step apart from running it"
    assert eager["latency/compile"].reason == "this backend does not compile"
    for mode in MODES[1:]:
        trace, first = found[mode]["latency/trace"].value, found[mode]["latency/first_step"].value
        assert trace is not None
        assert first is not None
        assert 0 < trace < first
    assert compiled["latency/compile"].value is not None


def test_what_xla_cannot_compile_is_unsupported() -> None:
    with pytest.raises(Unsupported, match=r"XLA does not compile this model: .*AsString"):
        outputs(lambda x: tf.strings.length(tf.strings.as_string(x)), Inputs((X,)), mode="xla")


def test_an_error_is_the_models_own_also_from_a_graph() -> None:
    def failing(x: Any) -> Any:
        if tf.reduce_sum(x) > 0:  # a branch that only AutoGraph can follow
            x = x + 1
        raise LookupError("no luck")

    for mode in MODES:
        with pytest.raises(LookupError, match=r"^'?no luck"):
            outputs(failing, Inputs((X,)), mode=mode)


@pytest.mark.parametrize(("precision", "dtype"), [("fp32", "float32"), ("bf16", "bfloat16"), ("fp16", "float16")])
def test_a_precision_holds_for_weights_inputs_and_outputs(precision: Precision, dtype: str) -> None:
    backend = TensorflowBackend(precision=precision)
    loaded = backend.load(convolving, "cpu", None)
    assert {variable.dtype for variable in loaded.native.weights} == {dtype}
    batch = loaded.put(Inputs((X, np.arange(3))))
    assert [leaf.dtype.name for leaf in batch.args[0]] == [dtype, "int64"]
    with loaded.stepping(loaded.put(Inputs((X,)))) as step:
        found = step()
    assert found.dtype.name == dtype
    assert np.asarray(loaded.host_outputs(found)).dtype == np.float32
    np.testing.assert_allclose(np.asarray(loaded.host_outputs(found)), convolving()(X), atol=0.15)
    assert keras.config.dtype_policy().name == "float32"


def test_a_model_that_has_another_precision_of_its_own() -> None:
    model = convolving()
    with pytest.raises(Unsupported, match=r"builder makes weights of float32, and backend\.precision=bf16"):
        TensorflowBackend(precision="bf16").load(lambda: model, "cpu", None)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mode": "jit"}, "backend.mode: 'jit' is not a mode. Known: eager, function, xla."),
        (
            {"precision": "f64"},
            "backend.precision: 'f64' is not a precision. Known: bf16, fp16, fp32, int8.",
        ),
        (
            {"precision": "bf16", "precision_method": "autocats"},
            "backend.precision_method: 'autocats' is not a method of a precision. Did you mean 'autocast'? "
            "Known: autocast, convert, dynamic, static, torchao.",
        ),
    ],
)
def test_settings_that_do_not_exist(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as raised:
        TensorflowBackend(**settings)
    assert str(raised.value) == message


class Called(keras.Model):  # type: ignore[misc]
    def call(self, x: Any, scale: Any = 1.0, *, shift: Any = None, training: bool = False) -> Any:
        y = x["a"] + x["b"][0] if isinstance(x, dict) else x
        return {"first": (y * scale, None), "second": [y if shift is None else y + shift]}


ONE, TWO = np.ones((2, 3), np.float32), np.full((2, 3), 2, np.float32)


@pytest.mark.parametrize("mode", MODES[:2])
@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        (Inputs((ONE, np.float32(3))), [3 * ONE, ONE]),
        (Inputs((TWO,), {"shift": ONE}), [TWO, TWO + 1]),
        (Inputs(({"a": ONE, "b": [TWO]},)), [TWO + 1, TWO + 1]),
        (Inputs((torch.from_numpy(TWO),), {"scale": tf.constant(2.0)}), [2 * TWO, TWO]),
        (Inputs((ONE,), forward=lambda model, x: (model(x)["second"], x)), [ONE, ONE]),
    ],
    ids=["positional", "keyword", "nested", "of torch", "forward"],
)
def test_inputs_and_outputs_in_any_form(inputs: Inputs, expected: Any, mode: Mode) -> None:
    found = tensors_in(outputs(Called(), inputs, mode=mode))
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_what_is_only_specified_is_generated_alike() -> None:
    spec = Inputs((TensorSpec((1000, 2)),), {"ids": TensorSpec((2, 2), "int32")})
    loaded = TensorflowBackend().load(Called, "cpu", None)
    first, again = loaded.put(spec), loaded.put(spec)
    np.testing.assert_array_equal(first.args[0], again.args[0])
    assert abs(float(tf.reduce_mean(first.args[0]))) < 0.1
    assert float(tf.math.reduce_std(first.args[0])) == pytest.approx(1, abs=0.1)
    assert (first.kwargs["ids"].dtype, int(tf.reduce_sum(first.kwargs["ids"]))) == (tf.int32, 0)


def test_only_what_has_channels_is_moved() -> None:
    loaded = TensorflowBackend().load(Called, "cpu", 1)
    image, number = loaded.put(Inputs((X, np.arange(3)))).args
    assert (tuple(image.shape), tuple(number.shape)) == ((3, 8, 2, 8), (3,))


def test_a_model_without_a_tensor_in_its_outputs() -> None:
    loaded = TensorflowBackend().load(Called, "cpu", None)
    with pytest.raises(Unsupported, match="the model returned a str without a tensor"):
        np.asarray(loaded.host_outputs("none"))


def test_threads_that_can_be_set_no_more() -> None:
    tf.constant(1.0)  # the run-time has started
    threads = tf.config.threading.get_intra_op_parallelism_threads()
    with pytest.raises(UserError, match=rf"backend\.threads: {threads + 3} cannot be set: TensorFlow already runs"):
        TensorflowBackend(threads=threads + 3).configure(0)


def test_the_memory_of_gpus_grows_as_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    growing: dict[str, bool] = {"GPU:0": True, "GPU:1": False}
    monkeypatch.setattr(adapter, "INTER_OP_THREADS", tf.config.threading.get_inter_op_parallelism_threads())
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: list(growing))
    monkeypatch.setattr(tf.config.experimental, "get_memory_growth", growing.get)
    monkeypatch.setattr(tf.config.experimental, "set_memory_growth", growing.__setitem__)
    backend = TensorflowBackend(threads=tf.config.threading.get_intra_op_parallelism_threads())
    backend.configure(0)
    assert growing == {"GPU:0": True, "GPU:1": True}
    assert backend.devices() == ["cpu", "cuda", "cuda:0", "cuda:1"]


def test_names_of_devices() -> None:
    assert adapter.tensorflow_name("cuda:1") == "gpu:1"
    assert model_module.sweeprof_name("/job:localhost/replica:0/task:0/device:GPU:1") == "cuda:1"
    assert (
        model_module.sweeprof_name("/job:localhost/replica:0/task:0/device:CPU:0")
        == model_module.sweeprof_name("")
        == "cpu"
    )
    assert TensorflowBackend().device_of(convolving()) == TensorflowBackend().device_of(Called()) == "cpu"


def test_a_mark_of_an_accelerators_clock_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    clock = SynchronisedClock()
    monkeypatch.setattr(tf.test.experimental, "sync_devices", lambda: waits.append(clock.now()))
    begin, end = clock.mark(), clock.mark()
    assert len(waits) == 2
    assert waits[0] <= begin <= waits[1] <= end
    assert clock.between(begin, end) == end - begin


class Slow(keras.Model):  # type: ignore[misc]
    def call(self, x: Any) -> Any:
        for _ in range(50):
            time.sleep(1e-3)
        return x + 1


def test_source_lines_of_a_call() -> None:
    model = Slow()
    profiler = sweeprof.Profiler(model, inputs=np.ones((2, 4), np.float32), backend=TensorflowBackend(mode="eager"))
    lines = profiler.run("lines")
    assert isinstance(lines, Lines)
    (function,) = lines.functions
    assert function.name.endswith("Slow.call")
    slow = next(line for line in function.lines if "sleep" in line.source)
    assert slow.hits == 50 * lines.steps
    assert slow.seconds > 50e-3 * lines.steps
    assert slow.allocated_bytes is None
    assert str(lines.memory_reason).startswith("TensorFlow allocates by itself")
    graph = sweeprof.Profiler(model, inputs=np.ones((2, 4), np.float32))
    with pytest.raises(Unsupported, match="mode=function: the source lines run once, when the graph is traced"):
        graph.run("lines")


def test_timing_of_a_model_in_hands() -> None:
    timing = sweeprof.Profiler(convolving(), inputs=X, protocol=SHORT).run("timing")
    assert isinstance(timing, Timing)
    assert len(timing.samples) >= 3
    assert timing.transfers == {}


class MixedLater(keras.Model):  # type: ignore[misc]
    """Changes the data types of all layers that are made after it is called, and how graphs are run."""

    def call(self, x: Any) -> Any:
        keras.config.set_dtype_policy("mixed_bfloat16")
        tf.config.optimizer.set_jit(True)
        return x


def test_a_model_that_changes_settings_is_noticed() -> None:
    profiler = sweeprof.Profiler(MixedLater(), inputs=(2, 4), protocol=SHORT)
    jit = tf.config.optimizer.get_jit()
    try:
        warnings = profiler.compute("latency/forward").warnings
    finally:
        keras.config.set_dtype_policy("float32")
        tf.config.optimizer.set_jit(jit)
    found = {warning.text.partition(" while")[0] for warning in warnings if warning.code == "settings_differ"}
    assert {"dtype policy was mixed_bfloat16"} < found
    assert any(text.startswith("XLA was ") for text in found)
    assert not any(text.startswith("threads") for text in found)


def test_a_generation_is_a_gap() -> None:
    names = ["generation/time_per_token", "generation/kv_cache_bytes", "compute/macs_decode", "layers/slowest_self_s"]
    found = sweeprof.profile(convolving(), X, names, mode="generation", backend=TensorflowBackend(), protocol=SHORT)
    for name in names:
        assert found[name].value is None
        assert "not measured: choose backend=torch" in str(found[name].reason)
