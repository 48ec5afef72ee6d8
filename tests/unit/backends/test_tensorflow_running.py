"""Keras models run and trained operator by operator, as a graph and by XLA, called with anything, and left as they were found."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import keras
import numpy as np
import pytest
import tensorflow as tf
import torch
from torch.nn import functional

import sweeprof
from sweeprof.backends import Precision
from sweeprof.backends.tensorflow import adapter
from sweeprof.backends.tensorflow.adapter import TensorflowBackend
from sweeprof.backends.tensorflow.files import SavedModel
from sweeprof.backends.tensorflow.model import EagerTraining, FusedTraining, tensors_in
from sweeprof.errors import Unsupported, UserError, described
from sweeprof.measuring.inputs import Inputs, TensorSpec
from sweeprof.measuring.training_config import LOSSES, OPTIMIZERS, TrainingConfig
from sweeprof.results.observations import Lines
from sweeprof.results.record import Protocol
from sweeprof.zoo.lenet5 import keras_model

Mode = Literal["eager", "function", "xla"]
MODES: tuple[Mode, ...] = ("eager", "function", "xla")
X = np.random.default_rng(0).standard_normal((3, 8, 8, 2), np.float32)
SHORT = Protocol(warmup_steps=1, warmup_s=0, sample_s=0, min_samples=3, min_s=0)
FEW = Protocol(warmup_steps=1, warmup_s=0, sample_s=0.001, min_samples=7, min_s=0, max_s=20)


def convolving() -> Any:
    parts = [keras.layers.Conv2D(4, 3, activation="relu"), keras.layers.Flatten(), keras.layers.Dense(5)]
    model = keras.Sequential([keras.Input((8, 8, 2)), *parts])
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


def test_a_sequence_beside_an_image_keeps_its_axes() -> None:
    image, steps = np.random.default_rng(0).random((2, 3, 6, 8)), np.random.default_rng(1).random((2, 5, 4))

    def means(image: Any, steps: Any) -> Any:
        return tf.concat([tf.reduce_mean(image, (1, 2)), tf.reduce_mean(steps, 1)], 1)

    found = outputs(means, Inputs(kwargs={"image": image, "steps": steps}), axis=1)
    np.testing.assert_allclose(found, np.concatenate([image.mean((2, 3)), steps.mean(1)], 1))


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


def test_a_mode_that_does_not_exist() -> None:
    with pytest.raises(UserError, match=r"^backend\.mode: 'jit' is not a mode\. Known: eager, function, xla\.$"):
        TensorflowBackend(mode="jit")  # type: ignore[arg-type]


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


class Slow(keras.Model):  # type: ignore[misc]
    def call(self, x: Any) -> Any:
        for _ in range(10):
            time.sleep(1e-3)
        return x + 1


@pytest.mark.slow
def test_source_lines_of_a_call() -> None:
    model = Slow()
    profiler = sweeprof.Profiler(model, inputs=np.ones((2, 4), np.float32), backend=TensorflowBackend(mode="eager"))
    lines = profiler.run("lines")
    assert isinstance(lines, Lines)
    (function,) = lines.functions
    assert function.name.endswith("Slow.call")
    slow = next(line for line in function.lines if "sleep" in line.source)
    assert slow.hits == 10 * lines.steps
    assert slow.seconds > 10e-3 * lines.steps
    assert slow.allocated_bytes is None
    assert str(lines.memory_reason).startswith("TensorFlow allocates by itself")


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


# A model in a caller's hands is left as it was found


ROWS = np.random.default_rng(0).standard_normal((4, 6), np.float32)


class Stateful(keras.Model):  # type: ignore[misc]
    """Nested, with every kind of state: weights, moving averages, a seed, a number of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first = keras.layers.Dense(5)
        parts = [keras.layers.BatchNormalization(), keras.layers.Dropout(0.5), keras.layers.Dense(3)]
        self.inner = keras.Sequential(parts)
        self.calls: list[int] = []

    def call(self, x: Any, training: bool = False) -> Any:
        self.calls.append(1)
        self.marked = True
        return self.inner(self.first(x), training=training)


def compiled() -> Any:
    model = Stateful()
    model(ROWS)
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.optimizer.build(model.trainable_variables)
    return model


def state(model: Any) -> list[Any]:
    optimizer = getattr(model, "optimizer", None)
    variables = [*model.variables, *(optimizer.variables if optimizer is not None else ())]
    return [(variable.path, variable.numpy().tolist()) for variable in variables]


def attributes(model: Any) -> list[Any]:
    """Of every layer: names, identities, and how much its containers hold."""
    return [
        {
            name: (id(value), len(value) if isinstance(value, list | dict | set) else None)
            for name, value in vars(thing).items()
        }
        for layer in model._flatten_layers()
        for thing in (layer, layer._tracker)
    ]


@pytest.mark.slow(rows=1)
@pytest.mark.parametrize("mode", MODES[:2])
def test_a_trained_model_is_as_it_was(mode: Any) -> None:
    model = compiled()
    before, held = state(model), attributes(model)
    settings: dict[str, Any] = {"mode": "training", "optimizer": lambda variables: model.optimizer, "protocol": SHORT}
    names = ["latency/forward", "latency/iteration", "latency/update"]
    sweeprof.profile(model, ROWS, names, backend=TensorflowBackend(mode=mode), **settings)
    assert state(model) == before
    assert attributes(model) == held
    model.fit(ROWS, np.zeros(4), verbose=0)  # its own compiled functions are whole
    assert state(model) != before


def test_a_model_that_was_never_called_is_not_built_afterwards() -> None:
    model = Stateful()
    before = attributes(model)
    found = sweeprof.profile(model, (4, 6), ["latency/forward"], protocol=SHORT)
    assert found["latency/forward"].value is not None
    assert attributes(model) == before
    assert (model.built, model.weights, model.calls) == (False, [], [])
    assert model(np.ones((2, 9), np.float32)).shape == (2, 3)  # it may still become one for another shape
    assert len(model.weights) == 2 + 4 + 2


def test_also_after_an_error() -> None:
    model = compiled()
    before, held = state(model), attributes(model)
    with pytest.raises(ValueError, match=r"^Exception encountered when calling"):  # as Keras says it, and not AutoGraph
        sweeprof.profile(model, (4, 7), ["latency/forward"], protocol=SHORT)
    assert (state(model), attributes(model)) == (before, held)


@pytest.mark.parametrize("has_generator", [True, False])
def test_the_callers_random_numbers_stay(has_generator: bool) -> None:
    """Also where Keras makes its generator only within."""
    model = compiled()

    def drawn(between: Callable[[], object]) -> list[float]:
        keras.utils.set_random_seed(3)
        if has_generator:
            keras.random.uniform(())
        between()
        return [random.random(), float(np.random.rand()), float(keras.random.uniform(()))]

    def disturbed() -> None:
        with TensorflowBackend().borrowed(model):
            drawing = keras.layers.Dropout(0.5)(np.ones((2, 2), np.float32), training=True)
            keras.random.uniform(tf.shape(drawing))
            random.random()
            np.random.rand()
        eager = TensorflowBackend(mode="eager")
        sweeprof.profile(model, ROWS, ["latency/iteration"], backend=eager, mode="training", protocol=SHORT)

    assert drawn(disturbed) == drawn(lambda: None)


# Models from files, against the models that were saved


DIGITS = np.random.default_rng(0).standard_normal((2, 32, 32, 1), np.float32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("models")
    model = keras_model()
    model.export(made / "exported", verbose=False)
    np.save(made / "outputs.npy", model(DIGITS).numpy())
    return made


@pytest.mark.slow
def test_a_saved_model_is_profiled_and_trained_as_it_is(folder: Path) -> None:
    model = SavedModel(str(folder / "exported"))
    before, answers = model.get_weights(), np.load(folder / "outputs.npy")
    np.testing.assert_allclose(model(DIGITS), answers, atol=1e-5)
    data = [(DIGITS, np.array([3, 4]))]
    settings: dict[str, Any] = {"mode": "training", "loss": "cross_entropy", "protocol": SHORT}
    profiler = sweeprof.Profiler(model, data, optimizer=lambda _: keras.optimizers.SGD(0.5), **settings)
    assert profiler.compute("latency/iteration").value is not None
    assert profiler.compute("quality/accuracy").value in (0.0, 0.5, 1.0)
    for found, expected in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(found, expected)
    loaded = TensorflowBackend(mode="eager").load(lambda: model, "cpu", None)
    with TensorflowBackend(mode="eager").training(
        loaded, loaded.put(profiler.session.inputs()), data[0][1], profiler.session.training_config
    ) as step:
        step.backward(step.forward())  # type: ignore[union-attr]
        step.update()  # type: ignore[union-attr]
    assert not np.allclose(model(DIGITS), answers)  # what is trained is what is run


class Two(tf.Module):  # type: ignore[misc]
    @tf.function(input_signature=[tf.TensorSpec((None, 2), name="b"), tf.TensorSpec((None, 2), name="a")])  # type: ignore[untyped-decorator]
    def less(self, b: Any, a: Any) -> dict[str, Any]:
        return {"difference": b - a, "sum": b + a}


def test_several_tensors_by_position_or_by_name(tmp_path: Path) -> None:
    module = Two()
    tf.saved_model.save(module, tmp_path, signatures={"less": module.less})
    a, b = np.ones((1, 2), np.float32), np.full((1, 2), 3, np.float32)
    model = SavedModel(str(tmp_path))
    np.testing.assert_array_equal(model(a=a, b=b)["difference"], b - a)
    assert set(model(a=a, b=b)) == {"difference", "sum"}
    assert SavedModel(str(tmp_path), "less").name == "saved_model"


NO_MODELS: list[tuple[str, str | None, str]] = [
    ("absent", None, "is not the folder of a SavedModel: it has no saved_model.pb."),
    ("exported", "predict", "has no function or signature predict. Its signatures: serve, serving_default."),
]


@pytest.mark.parametrize(("name", "endpoint", "says"), NO_MODELS)
def test_what_is_no_model(name: str, endpoint: str | None, says: str, folder: Path) -> None:
    with pytest.raises(UserError) as raised:
        SavedModel(str(folder / name), endpoint)
    assert str(raised.value) == f"model.tensorflow.path: '{folder / name}' {says}"


# Training steps: every optimizer and loss, in every mode, against the same steps written out on torch


RANDOM = np.random.default_rng(1)
SAMPLES = RANDOM.standard_normal((8, 4), np.float32)
CLASSES = np.array([0, 1, 2, 0, 1, 2, 0, 1])
KERNELS = [RANDOM.standard_normal(shape, np.float32) for shape in ((4, 5), (5, 3))]
BIASES = [RANDOM.standard_normal(size, np.float32) for size in (5, 3)]


def net() -> Any:
    model = keras.Sequential([keras.layers.Dense(5, "tanh"), keras.layers.Dense(3)])
    model.build((None, 4))
    model.set_weights([KERNELS[0], BIASES[0], KERNELS[1], BIASES[1]])
    return model


def training(model: Any, config: TrainingConfig, targets: Any, mode: Mode, inputs: Any = SAMPLES) -> Any:
    loaded = TensorflowBackend(mode=mode).load(lambda: model, "cpu", None)
    return TensorflowBackend(mode=mode).training(loaded, loaded.put(Inputs.of(inputs)), targets, config)


def steps(model: Any, config: TrainingConfig, targets: Any = CLASSES, mode: Mode = "eager", count: int = 3) -> None:
    """So many whole steps."""
    with training(model, config, targets, mode) as step:
        for _ in range(count):
            if isinstance(step, FusedTraining):
                step.whole()
            else:
                step.backward(step.forward())
                step.update()


def loss_in(model: Any, config: TrainingConfig, targets: Any = CLASSES, inputs: Any = SAMPLES) -> float:
    with training(model, config, targets, "eager", inputs) as step:
        assert isinstance(step, EagerTraining)
        return float(step.forward())


def assert_equal_weights(model: Any, fitted: Any) -> None:
    for found, expected in zip(model.get_weights(), fitted.get_weights(), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


ONE_HOT = functional.one_hot(torch.from_numpy(CLASSES), 3).float()
LOSS_BY_HAND: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "mean": lambda y: y.sum() / 24,
    "cross_entropy": lambda y: -(y.exp() / y.exp().sum(1, keepdim=True)).log()[range(8), CLASSES].sum() / 8,
    "mse": lambda y: ((y - ONE_HOT) ** 2).sum() / 24,
}


@pytest.mark.parametrize(
    ("loss", "mode"),
    [
        *((loss, mode) for loss in LOSS_BY_HAND for mode in MODES[:2]),
        pytest.param("cross_entropy", "xla", marks=pytest.mark.slow),
    ],
)
def test_steps_are_those_of_torch(loss: str, mode: Mode) -> None:
    model, twin = net(), torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))
    weights = dict(zip(twin.state_dict(), (KERNELS[0].T, BIASES[0], KERNELS[1].T, BIASES[1]), strict=True))
    twin.load_state_dict({name: torch.from_numpy(values.copy()) for name, values in weights.items()})
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.5, momentum=0.9)
    for _ in range(3):
        optimizer.zero_grad()
        LOSS_BY_HAND[loss](twin(torch.from_numpy(SAMPLES))).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    steps(model, TrainingConfig(lambda _: keras.optimizers.SGD(0.5, momentum=0.9), loss), mode=mode)
    for found, (name, expected) in zip(model.get_weights(), twin.named_parameters(), strict=True):
        values = expected.detach().numpy()
        np.testing.assert_allclose(found, values.T if "weight" in name else values, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_named_optimizer_takes_its_steps(name: str) -> None:
    model = net()
    model.set_weights([np.zeros_like(values) for values in model.get_weights()])  # which the smallest step moves
    before = model.get_weights()
    steps(model, TrainingConfig(name, "cross_entropy"), mode="function", count=20)
    moved = [not np.array_equal(one, other) for one, other in zip(model.get_weights(), before, strict=True)]
    assert any(moved) == (name != "none")
    assert all(np.isfinite(values).all() for values in model.get_weights())


@pytest.mark.parametrize("mode", ["eager", "function"])
def test_frozen_layers_stay_and_moving_averages_move(mode: Mode) -> None:
    """As Keras's own ``fit`` with the same frozen layer leaves them."""

    def built() -> Any:
        parts = [keras.layers.Dense(5, name="frozen"), keras.layers.BatchNormalization(), keras.layers.Dense(3)]
        model = keras.Sequential(parts)
        model.build((None, 4))
        model.get_layer("frozen").trainable = False
        return model

    model, fitted = built(), built()
    fitted.set_weights(model.get_weights())
    fitted.compile(keras.optimizers.SGD(0.5), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    fitted.fit(SAMPLES, CLASSES, batch_size=8, epochs=2, verbose=0, shuffle=False)
    steps(model, TrainingConfig(lambda _: keras.optimizers.SGD(0.5), "cross_entropy"), mode=mode, count=2)
    assert_equal_weights(model, fitted)


def test_the_model_is_in_training_mode() -> None:
    model = keras.Sequential([keras.layers.Dropout(0.5, seed=0), keras.layers.Dense(1, use_bias=False)])
    model.build((None, 4))
    model.set_weights([np.ones((4, 1), np.float32)])
    assert loss_in(model, TrainingConfig(), inputs=np.ones((8, 4), np.float32)) != pytest.approx(4.0)


class Labelled(keras.Model):  # type: ignore[misc]
    """Returns its own loss beside its logits, in one of the usual ways."""

    def __init__(self, pack: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.dense, self.pack = keras.layers.Dense(3), pack

    def call(self, x: Any) -> Any:
        logits = self.dense(x)
        return self.pack(tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(CLASSES, logits, True)), logits)


PACKS: dict[str, Callable[[Any, Any], Any]] = {
    "dict": lambda loss, logits: {"logits": logits, "loss": loss},
    "tuple": lambda loss, logits: (loss, logits),
    "scalar": lambda loss, logits: loss,
}


@pytest.mark.parametrize("pack", PACKS)
def test_the_models_own_loss(pack: str) -> None:
    model = Labelled(PACKS[pack])
    found = loss_in(model, TrainingConfig("none", "own"), None)
    expected = functional.cross_entropy(torch.tensor(model.dense(SAMPLES).numpy()), torch.tensor(CLASSES))
    assert found == pytest.approx(float(expected))


@pytest.mark.parametrize("mode", ["eager", "function"])
def test_a_model_without_a_loss_of_its_own(mode: Mode) -> None:
    """Also as its reason where a graph is traced, which gives errors another message."""
    with pytest.raises(Unsupported, match=r"^training\.loss=own: the model returned no loss; give it labels"):
        steps(Labelled(lambda loss, logits: (logits, loss)), TrainingConfig(loss="own"), None, mode=mode)


def test_targets_in_the_forms_that_keras_has() -> None:
    plain = loss_in(net(), TrainingConfig(loss="cross_entropy"))
    assert loss_in(net(), TrainingConfig(loss="cross_entropy"), CLASSES[:, None]) == pytest.approx(plain)
    assert loss_in(net(), TrainingConfig(loss="cross_entropy"), ONE_HOT) == pytest.approx(plain)
    goal = RANDOM.standard_normal((8, 3), np.float32)
    assert loss_in(net(), TrainingConfig(loss="mse"), goal) == pytest.approx(
        ((net()(SAMPLES).numpy() - goal) ** 2).mean(), rel=1e-5
    )


UNFIT = r"targets of shape \(3,\) and the outputs of \(8, 3\) do not belong"
REFUSED: list[tuple[str, Any, str]] = [
    *((loss, None, f"training.loss={loss} needs targets, and the data have none") for loss in LOSSES[1:3]),
    ("mse", np.zeros(3, np.float32), UNFIT),
    ("cross_entropy", np.zeros(3, int), UNFIT),
]


@pytest.mark.parametrize(("loss", "targets", "says"), REFUSED)
def test_targets_are_needed_and_never_stretched(loss: str, targets: Any, says: str) -> None:
    with pytest.raises(Unsupported, match=says):
        steps(net(), TrainingConfig(loss=loss), targets)


def test_ones_own_loss_and_optimizer() -> None:
    config = TrainingConfig.from_config(
        {
            "optimizer": {"_target_": "keras.optimizers.RMSprop", "learning_rate": 0.01},
            "loss": {"_target_": "keras.losses.SparseCategoricalCrossentropy", "from_logits": True},
        }
    )
    model, fitted = net(), net()
    fitted.compile(keras.optimizers.RMSprop(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    fitted.fit(SAMPLES, CLASSES, batch_size=8, epochs=3, verbose=0, shuffle=False)
    steps(model, config, mode="function")
    assert_equal_weights(model, fitted)
    assert loss_in(net(), TrainingConfig(loss=lambda outputs, targets: tf.reduce_sum(outputs))) == pytest.approx(
        float(net()(SAMPLES).numpy().sum()), rel=1e-5
    )


@pytest.mark.parametrize("mode", MODES)
def test_nothing_to_train(mode: Mode) -> None:
    frozen = net()
    frozen.trainable = False
    with pytest.raises(Unsupported, match="no variable of the model is trainable"):
        steps(frozen, TrainingConfig(), mode=mode)
    with pytest.raises(Unsupported, match=r"^no output depends on a trainable variable"):
        steps(net(), TrainingConfig(loss=lambda outputs, targets: tf.constant(1.0)), mode=mode)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_the_update_of_a_step_has_its_time(mode: Mode) -> None:
    """Adam's three arrays of half a million weights, beside a batch of four."""
    model = keras.Sequential([keras.layers.Dense(1024), keras.layers.Dense(256), keras.layers.Dense(10)])
    model.build((None, 256))
    data = [(RANDOM.standard_normal((4, 256), np.float32), np.zeros(4, int))]
    settings: dict[str, Any] = {"mode": "training", "optimizer": "adam", "loss": "cross_entropy", "protocol": FEW}
    for _ in range(3):  # while other processes run, the time of a step may vary by more than its update takes
        timing: Any = sweeprof.Profiler(model, data, backend=TensorflowBackend(mode=mode), **settings).run("timing")
        if "update" in timing.phases:
            break
    assert sum(timing.phases["update"]) > 0.05 * sum(timing.samples)
    assert timing.compiles == (mode != "eager")
    if mode == "eager":
        assert timing.trace_s is None
    else:  # a graph tells the times of its phases, and takes longer to make than to run
        assert min(timing.samples) < timing.trace_s < timing.first_step_s
        assert list(map(sum, zip(*timing.phases.values(), strict=True))) == pytest.approx(timing.samples, rel=1e-6)
