"""Training steps on torch: every optimizer and loss, against the same steps written out by hand."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import sweeprof
from support.torch_modules import Applied, Sleeping
from sweeprof.backends.torch.model import TorchModel, TorchVariant
from sweeprof.backends.torch.training import training
from sweeprof.errors import Unsupported
from sweeprof.measuring.inputs import Inputs
from sweeprof.measuring.training_config import LOSSES, OPTIMIZERS, TrainingConfig
from sweeprof.profiling.profiler import Profiler
from sweeprof.results.record import Protocol

CPU = torch.device("cpu")
BATCH = 8
X = torch.randn(BATCH, 4, generator=torch.Generator().manual_seed(1))
CLASSES = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1])


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).eval()


def steps(
    module: nn.Module, config: TrainingConfig, targets: Any = CLASSES, batch: Any = X, count: int = 3
) -> list[float]:
    """The losses of so many steps."""
    losses = []
    with training(TorchModel(module, CPU), Inputs((batch,)), targets, config) as step:
        for _ in range(count):
            loss = step.forward()
            losses.append(loss.item())
            step.backward(loss)
            step.update()
    return losses


def by_hand(loss_of: Callable[[torch.Tensor], torch.Tensor], optimizer_of: Any) -> tuple[nn.Module, list[float]]:
    module, losses = net().train(), []
    optimizer = optimizer_of(module.parameters())
    for _ in range(3):
        loss = loss_of(module(X))
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return module, losses


pytestmark = pytest.mark.usefixtures("one_thread")


ONE_HOT = functional.one_hot(CLASSES, 3).float()
LOSS_BY_HAND: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "mean": lambda y: y.sum() / (BATCH * 3),
    "cross_entropy": lambda y: -(y.exp() / y.exp().sum(1, keepdim=True)).log()[range(BATCH), CLASSES].sum() / BATCH,
    "mse": lambda y: ((y - ONE_HOT) ** 2).sum() / (BATCH * 3),
}


@pytest.mark.parametrize("loss", LOSS_BY_HAND)
def test_a_named_loss_is_the_formula(loss: str) -> None:
    module = net()
    found = steps(module, TrainingConfig(lambda parameters: torch.optim.SGD(parameters, lr=0.5), loss))
    expected, losses = by_hand(LOSS_BY_HAND[loss], lambda parameters: torch.optim.SGD(parameters, lr=0.5))
    assert found == pytest.approx(losses, rel=1e-5)
    torch.testing.assert_close(list(module.parameters()), list(expected.parameters()))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_named_optimizer_keeps_its_states_for_each_parameter(name: str) -> None:
    states = {"none": 0, "sgd": 0, "momentum": 1, "adam": 2, "adamw": 2}[name]
    module = net()
    before = [parameter.detach().clone() for parameter in module.parameters()]
    with training(TorchModel(module, CPU), Inputs((X,)), CLASSES, TrainingConfig(name, "cross_entropy")) as step:
        for _ in range(20):
            step.backward(step.forward())
            step.update()
        for parameter in module.parameters():
            kept = [] if name == "none" else step.optimizer.state[parameter].values()
            assert sum(torch.is_tensor(value) and value.shape == parameter.shape for value in kept) == states
    assert all(map(torch.equal, module.parameters(), before)) == (name == "none")
    assert all(parameter.grad is None for parameter in module.parameters())


@pytest.mark.parametrize(("name", "count"), [("momentum", 1000), ("adamw", 20)])
def test_many_steps_in_half_precision_leave_the_weights_finite(name: str, count: int) -> None:
    """Steep on purpose: without norms, and pulled without end by the mean of its outputs."""
    torch.manual_seed(0)
    layers: list[nn.Module] = [layer for _ in range(3) for layer in (nn.Linear(4, 4), nn.ReLU())]
    variant = TorchVariant("fp16")
    module = variant.of(nn.Sequential(*layers, nn.Linear(4, 3)))
    loaded = TorchModel(module, CPU, variant)
    with training(loaded, loaded.put(Inputs((10 * X,))), None, TrainingConfig(name, "mean")) as step:
        for _ in range(count):
            step.backward(step.forward())
            step.update()
    assert all(torch.isfinite(parameter).all() for parameter in module.parameters())


@dataclass
class Output:
    loss: torch.Tensor | None
    logits: torch.Tensor


def labelled(pack: Callable[[Any, Any], Any]) -> Any:
    """Returns its own loss beside its logits, in one of the usual ways."""

    def forward(module: Any, x: torch.Tensor) -> Any:
        logits = module.inner(x)
        return pack(functional.cross_entropy(logits, CLASSES), logits)

    return Applied(forward, inner=net())


@pytest.mark.parametrize(
    "pack",
    [
        Output,
        lambda loss, logits: {"logits": logits, "loss": loss},
        lambda loss, logits: (loss, logits),
        lambda loss, logits: loss,
    ],
    ids=["dataclass", "dict", "tuple", "scalar"],
)
def test_the_models_own_loss(pack: Callable[[Any, Any], Any]) -> None:
    module = labelled(pack)
    (found,) = steps(module, TrainingConfig("none", "own"), None, count=1)
    assert found == pytest.approx(functional.cross_entropy(module.inner(X), CLASSES).item())


@pytest.mark.parametrize("pack", [lambda loss, logits: logits, lambda loss, logits: Output(None, logits)])
def test_a_model_without_a_loss_of_its_own(pack: Callable[[Any, Any], Any]) -> None:
    with pytest.raises(Unsupported, match="the model returned no loss; give it labels among its inputs"):
        steps(labelled(pack), TrainingConfig(loss="own"), None)


@pytest.mark.parametrize("loss", LOSSES[1:3])
def test_a_loss_that_needs_targets(loss: str) -> None:
    with pytest.raises(Unsupported, match=f"training.loss={loss} needs targets, and the data have none"):
        steps(net(), TrainingConfig(loss=loss), None)


@pytest.mark.parametrize(
    ("module", "goal"),
    [
        (net(), torch.randn(BATCH, 3).numpy()),
        (nn.Linear(4, 1), torch.randn(BATCH)),  # which only lacks an axis
    ],
)
def test_targets_are_compared_as_they_are(module: nn.Module, goal: Any) -> None:
    (found,) = steps(module, TrainingConfig("none", "mse"), goal, count=1)
    assert found == pytest.approx(((module(X).view(goal.shape) - torch.as_tensor(goal)) ** 2).mean().item())


def test_targets_are_never_stretched() -> None:
    """Three float targets for eight rows of three outputs would be repeated by torch, with a warning at best."""
    message = r"targets of shape \(3,\) and the outputs of \(8, 3\) do not belong together"
    with pytest.raises(Unsupported, match=message):
        steps(net(), TrainingConfig(loss="mse"), torch.zeros(3))


def test_ones_own_loss_and_optimizer() -> None:
    config = TrainingConfig.from_config(
        {
            "optimizer": {"_target_": "torch.optim.RMSprop", "lr": 0.01},
            "loss": {"_target_": "torch.nn.functional.cross_entropy", "label_smoothing": 0.1},
        }
    )
    module = net()
    found = steps(module, config)
    expected, losses = by_hand(
        lambda y: functional.cross_entropy(y, CLASSES, label_smoothing=0.1),
        lambda parameters: torch.optim.RMSprop(parameters, lr=0.01),
    )
    assert found == losses
    assert all(map(torch.equal, module.parameters(), expected.parameters()))


def test_a_loss_may_be_a_class() -> None:
    node = {"optimizer": "none", "loss": {"_target_": "torch.nn.CrossEntropyLoss", "label_smoothing": 0.1}}
    (found,) = steps(net(), TrainingConfig.from_config(node), count=1)
    assert found == functional.cross_entropy(net()(X), CLASSES, label_smoothing=0.1).item()
    (found,) = steps(net(), TrainingConfig("none", nn.CrossEntropyLoss), count=1)
    assert found == functional.cross_entropy(net()(X), CLASSES).item()


def test_a_keyword_that_the_optimizer_has_not() -> None:
    config = TrainingConfig.from_config({"optimizer": {"_target_": "torch.optim.RMSprop", "lrr": 1}, "loss": "mean"})
    with pytest.raises(TypeError, match="lrr"):
        steps(net(), config)


def test_nothing_to_train() -> None:
    with pytest.raises(Unsupported, match="no parameter requires a gradient"):
        steps(net().requires_grad_(False), TrainingConfig())
    with pytest.raises(Unsupported, match="no output depends on a parameter"):
        steps(Applied(lambda module, x: module.inner(x).detach(), inner=net()), TrainingConfig())
    quantized = TorchModel(net(), CPU, TorchVariant("int8"))
    with (
        pytest.raises(Unsupported, match="a quantized model has no gradients"),
        training(quantized, Inputs((X,)), None, TrainingConfig()),
    ):
        pass


def first_alone(parameters: Any) -> torch.optim.Optimizer:
    """Knows the first parameter only."""
    return torch.optim.SGD(parameters[:1], lr=0.0)


@pytest.mark.parametrize("optimizer", ["none", first_alone])
def test_gradients_do_not_add_up(optimizer: Any) -> None:
    module = net()
    with training(TorchModel(module, CPU), Inputs((X,)), None, TrainingConfig(optimizer)) as step:
        step.backward(step.forward())
        once = [copy.deepcopy(parameter.grad) for parameter in module.parameters()]
        step.backward(step.forward())
        assert None not in once
        torch.testing.assert_close([parameter.grad for parameter in module.parameters()], once)


def test_a_lazy_layer_with_loaded_weights_still_runs() -> None:
    lazy = nn.LazyLinear(3)
    lazy.load_state_dict(nn.Linear(4, 3).state_dict())
    with ThreadPoolExecutor(1) as pool:
        pool.submit(int).result()  # in a thread that begins here
        # Where a thread from before works meanwhile, the operators are counted twice.
        model = nn.Sequential(lazy, Applied(lambda _, x: pool.submit(sum, range(100_000)).result() and x))
        assert sweeprof.profile(model, (2, 4), ["compute/macs", "params/total"])["compute/macs"].value == 24
        assert type(lazy) is nn.LazyLinear
        assert model(torch.ones(2, 4)).shape == (2, 3)


def test_within_inference_mode_a_model_is_trained_as_outside() -> None:
    module = net()
    with torch.inference_mode():
        made = Profiler(module, inputs=torch.ones(2, 4), mode="training", protocol=Protocol(max_s=0.1))
        timing: Any = made.seen("timing")
    assert timing.is_training


def test_frozen_parameters_stay_and_have_no_gradient() -> None:
    module = net()
    frozen = next(module.parameters()).requires_grad_(False)
    before = frozen.clone()
    steps(module, TrainingConfig(lambda parameters: torch.optim.SGD(parameters, lr=1.0)))
    assert torch.equal(frozen, before)
    assert frozen.grad is None


PAUSE = 0.02


class SleepingSGD(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        time.sleep(PAUSE)
        return super().step(closure)


@pytest.mark.parametrize("phase", ["forward", "backward", "update"])
def test_a_phase_that_sleeps_is_seen_in_that_phase(phase: str) -> None:
    pauses = PAUSE * (phase == "forward"), PAUSE * (phase == "backward")
    model = Applied(lambda module, x: Sleeping.apply(module.inner(x), *pauses), inner=net())  # type: ignore[no-untyped-call]
    protocol = Protocol(warmup_steps=1, warmup_s=0, sample_s=0, min_samples=7, min_s=0)
    optimizer = SleepingSGD if phase == "update" else torch.optim.SGD
    timing: Any = Profiler(model, inputs=X, protocol=protocol, mode="training", optimizer=optimizer).seen("timing")
    seconds = {name: min(samples) for name, samples in timing.phases.items()}
    assert PAUSE <= seconds[phase] < 2 * PAUSE
    assert all(value < PAUSE for name, value in seconds.items() if name != phase)
