"""Training steps on TensorFlow: every optimizer and loss, in every mode, against the same steps written out on torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import keras
import numpy as np
import pytest
import tensorflow as tf
import torch
from torch.nn import functional

from sweeprof.backends.tensorflow.adapter import TensorflowBackend
from sweeprof.backends.tensorflow.model import EagerTraining, FusedTraining
from sweeprof.errors import Unsupported
from sweeprof.measuring.inputs import Inputs
from sweeprof.measuring.timing import Timing
from sweeprof.measuring.training_config import LOSSES, OPTIMIZERS, TrainingConfig
from sweeprof.profiling.profiler import Profiler
from sweeprof.results.record import Protocol

Mode = Literal["eager", "function", "xla"]
MODES: tuple[Mode, ...] = ("eager", "function", "xla")
RANDOM = np.random.default_rng(1)
X = RANDOM.standard_normal((8, 4), np.float32)
CLASSES = np.array([0, 1, 2, 0, 1, 2, 0, 1])
KERNELS = [RANDOM.standard_normal(shape, np.float32) for shape in ((4, 5), (5, 3))]
BIASES = [RANDOM.standard_normal(size, np.float32) for size in (5, 3)]


def net() -> Any:
    model = keras.Sequential([keras.layers.Dense(5, "tanh"), keras.layers.Dense(3)])
    model.build((None, 4))
    model.set_weights([KERNELS[0], BIASES[0], KERNELS[1], BIASES[1]])
    return model


def torch_net() -> torch.nn.Sequential:
    first, last = torch.nn.Linear(4, 5), torch.nn.Linear(5, 3)
    with torch.no_grad():
        for layer, kernel, bias in zip((first, last), KERNELS, BIASES, strict=True):
            layer.weight.copy_(torch.from_numpy(kernel.T))
            layer.bias.copy_(torch.from_numpy(bias))
    return torch.nn.Sequential(first, torch.nn.Tanh(), last)


def training(model: Any, config: TrainingConfig, targets: Any, mode: Mode, inputs: Any = X) -> Any:
    loaded = TensorflowBackend(mode=mode).load(lambda: model, "cpu", None)
    return TensorflowBackend(mode=mode).training(loaded, loaded.put(Inputs.of(inputs)), targets, config)


def steps(model: Any, config: TrainingConfig, targets: Any = CLASSES, mode: Mode = "eager", count: int = 3) -> None:
    """So many whole steps."""
    with training(model, config, targets, mode) as step:
        for _ in range(count):
            once(step)


def once(step: EagerTraining | FusedTraining) -> None:
    if isinstance(step, FusedTraining):
        step.whole()
    else:
        step.backward(step.forward())
        step.update()


def loss_in(model: Any, config: TrainingConfig, targets: Any = CLASSES, inputs: Any = X) -> float:
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
    model, twin = net(), torch_net()
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.5, momentum=0.9)
    for _ in range(3):
        optimizer.zero_grad()
        LOSS_BY_HAND[loss](twin(torch.from_numpy(X))).backward()  # type: ignore[no-untyped-call]
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
    fitted.fit(X, CLASSES, batch_size=8, epochs=2, verbose=0, shuffle=False)
    steps(model, TrainingConfig(lambda _: keras.optimizers.SGD(0.5), "cross_entropy"), mode=mode, count=2)
    assert_equal_weights(model, fitted)


def test_the_model_is_in_training_mode() -> None:
    dropping = keras.Sequential([keras.layers.Dropout(0.5, seed=0)])
    with pytest.raises(Unsupported, match="no variable of the model is trainable"):
        steps(dropping, TrainingConfig())
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
    expected = functional.cross_entropy(torch.tensor(model.dense(X).numpy()), torch.tensor(CLASSES))
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
        ((net()(X).numpy() - goal) ** 2).mean(), rel=1e-5
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
    fitted.fit(X, CLASSES, batch_size=8, epochs=3, verbose=0, shuffle=False)
    steps(model, config, mode="function")
    assert_equal_weights(model, fitted)
    assert loss_in(net(), TrainingConfig(loss=lambda outputs, targets: tf.reduce_sum(outputs))) == pytest.approx(
        float(net()(X).numpy().sum()), rel=1e-5
    )


@pytest.mark.parametrize("mode", MODES)
def test_nothing_to_train(mode: Mode) -> None:
    frozen = net()
    frozen.trainable = False
    with pytest.raises(Unsupported, match="no variable of the model is trainable"):
        steps(frozen, TrainingConfig(), mode=mode)
    with pytest.raises(Unsupported, match=r"^no output depends on a trainable variable"):
        steps(net(), TrainingConfig(loss=lambda outputs, targets: tf.constant(1.0)), mode=mode)


SHORT = Protocol(warmup_steps=1, warmup_s=0, sample_s=0.001, min_samples=7, min_s=0, max_s=20)


def profiler(model: Any, data: Any, **settings: Any) -> Profiler:
    return Profiler(model, data, protocol=SHORT, mode="training", **settings)


def timed(mode: Mode, model: Any) -> Timing:
    data = [(RANDOM.standard_normal((4, 256), np.float32), np.zeros(4, int))]
    settings = {"backend": TensorflowBackend(mode=mode), "optimizer": "adam", "loss": "cross_entropy"}
    found = profiler(model, data, **settings).run("timing")
    assert isinstance(found, Timing)
    return found


@pytest.mark.parametrize("mode", ["eager", "function", pytest.param("xla", marks=pytest.mark.slow)])
def test_phases_of_a_step(mode: Mode) -> None:
    """Of a wide layer: two products in its forward, twice that in the backward, and Adam's three arrays in the update."""
    model = keras.Sequential([keras.layers.Dense(1024), keras.layers.Dense(256), keras.layers.Dense(10)])
    model.build((None, 256))
    timing = timed(mode, model)
    for _ in range(2):
        if "update" in timing.phases:
            break
        # while other processes run, the time of a step may vary by more than its update takes
        timing = timed(mode, model)
    assert list(timing.phases) == ["forward", "backward", "update"]
    for phase in timing.phases.values():
        assert len(phase) == len(timing.samples) == 7
        assert all(seconds > 0 for seconds in phase)
    parts = [sum(phases) for phases in zip(*timing.phases.values(), strict=True)]
    assert parts == pytest.approx(timing.samples, rel=1e-6 if mode != "eager" else 0.2)
    assert sum(timing.phases["update"]) > 0.05 * sum(timing.samples)  # half a million weights, and a batch of four
    assert timing.compiles == (mode != "eager")
    assert (timing.trace_s is None) == (mode == "eager")
    assert timing.trace_s is None or 0 < timing.trace_s < timing.first_step_s


def test_a_phase_that_cannot_be_told_has_a_reason() -> None:
    asked = profiler(net(), [(X, CLASSES)], backend=TensorflowBackend(), optimizer="none")
    timing = asked.seen("timing")
    assert isinstance(timing, Timing)
    update = asked.compute("latency/update")
    if "update" in timing.phases:  # by chance: the third program is the second once more
        assert sum(timing.phases["update"]) < 0.5 * sum(timing.samples)
    else:
        assert update.reason == "the step is one program, and what its update adds is less than its time varies"
