"""Training steps: optimizers and losses by name, and the three phases of a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch.nn import functional

from sweeprof.backends.torch.callsites import tensors_in
from sweeprof.backends.torch.counting import uncompiled
from sweeprof.backends.torch.feeding import on_device
from sweeprof.backends.torch.model import TorchModel, first_tensor
from sweeprof.backends.torch.state import modules_of
from sweeprof.backends.torch.variants import INT8
from sweeprof.errors import Unsupported
from sweeprof.profiling.inputs import Inputs
from sweeprof.profiling.recipe import LOSSES, OPTIMIZERS, Recipe

RATE = 1e-8
"""Learning rate of the named optimizers: an update costs the same at any, and at this one thousands of timed steps, which
pull at the same batch again and again, leave the weights finite."""
EPSILON = 1e-4
"""Of Adam's denominator: not zero in half precision, where the default of 1e-8 is."""


class TorchTraining:
    """Forward, backward and update of a module that is in training mode."""

    def __init__(
        self,
        step: Callable[[], Any],
        loss: Callable[[Any], torch.Tensor],
        optimizer: Any,
        parameters: list[torch.nn.Parameter],
    ) -> None:
        """Args:
        step: one forward of the batch.
        loss: of what a step returns.
        optimizer: it need not know every parameter.
        parameters: those whose gradients are cleared, beside the optimizer's.
        """
        self.step, self.loss, self.optimizer, self._parameters = step, loss, optimizer, parameters

    def forward(self) -> torch.Tensor:
        self.optimizer.zero_grad(set_to_none=True)
        _clear_gradients(self._parameters)
        return self.loss(self.step())

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()  # type: ignore[no-untyped-call]

    def update(self) -> None:
        self.optimizer.step()


@contextmanager
def training(model: TorchModel, batch: Inputs, targets: Any, recipe: Recipe) -> Iterator[TorchTraining]:
    """The module trains on one batch again and again; what it learns is its owner's to take back.

    Afterwards its modes are what they were, and its parameters have no gradients.

    Raises:
        Unsupported: nothing can be trained, or the loss needs targets that there are not.
        Exception: whatever the constructor of the caller's own optimizer raised.
    """
    if model.variant.precision == INT8:
        raise Unsupported("a dynamically quantized model has no gradients")
    module = uncompiled(model.module)
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    if not parameters:
        raise Unsupported("no parameter requires a gradient")
    before = {inner: inner.training for inner in modules_of(module)}
    try:
        for inner in before:
            inner.__dict__["training"] = (
                True  # as `borrowed` does: what a model's own `train()` does could not be undone
            )
        with torch.inference_mode(False), torch.enable_grad():
            loss = _loss(recipe.loss, on_device(Inputs((targets,)), model.device).args[0])
            optimizer = _optimizer(recipe.optimizer, parameters)
            yield TorchTraining(model.forward_of(batch), loss, optimizer, parameters)
    finally:
        for inner, mode in before.items():
            inner.__dict__["training"] = mode
        _clear_gradients(parameters)


def _clear_gradients(parameters: list[torch.nn.Parameter]) -> None:
    for parameter in parameters:
        parameter.grad = None


class _NoOptimizer:
    """Changes nothing."""

    def zero_grad(self, set_to_none: bool) -> None:
        """Nothing: gradients are cleared without it."""

    def step(self) -> None:
        """Nothing."""


_OPTIMIZERS: dict[str, Callable[[list[torch.nn.Parameter]], Any]] = {
    "sgd": partial(torch.optim.SGD, lr=RATE),
    "momentum": partial(torch.optim.SGD, lr=RATE, momentum=0.9),
    "adam": partial(torch.optim.Adam, lr=RATE, eps=EPSILON),
    "adamw": partial(torch.optim.AdamW, lr=RATE, eps=EPSILON),
    "none": lambda _: _NoOptimizer(),
}


def _optimizer(given: str | Callable[[Any], Any], parameters: list[torch.nn.Parameter]) -> Any:
    return _OPTIMIZERS[given](parameters) if isinstance(given, str) else given(parameters)


def _loss(given: str | Callable[[Any, Any], Any], targets: Any) -> Callable[[Any], torch.Tensor]:
    if not isinstance(given, str):
        return lambda outputs: given(outputs, targets)
    if given in _UNTARGETED:
        return _UNTARGETED[given]
    if targets is None:
        raise Unsupported(f"training.loss={given} needs targets, and the data have none")
    compare, wanted = _TARGETED[given], torch.as_tensor(targets)
    return lambda outputs: compare(first_tensor(outputs), wanted)


def _mse(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The mean squared error; where targets are classes, against 1 for the class and 0 for the others."""
    if targets.shape != outputs.shape and targets.numel() == outputs.numel():
        targets = targets.reshape(outputs.shape)
    elif targets.shape == outputs.shape[:-1] and not targets.is_floating_point():
        targets = functional.one_hot(targets.long(), outputs.shape[-1])
    if targets.shape != outputs.shape:  # torch would stretch one along the other
        shapes = f"{tuple(targets.shape)} and the outputs of {tuple(outputs.shape)}"
        raise Unsupported(f"training.loss=mse: targets of shape {shapes} do not belong together")
    return functional.mse_loss(outputs, targets.to(outputs.dtype))


_TARGETED: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "cross_entropy": functional.cross_entropy,
    "mse": _mse,
}


def _mean(outputs: Any) -> torch.Tensor:
    """The sum of the means of every output that has a gradient."""
    means = [tensor.mean() for tensor in tensors_in(outputs) if tensor.requires_grad]
    if not means:
        raise Unsupported("no output depends on a parameter that requires a gradient")
    total = sum(means[1:], start=means[0])
    return total.real if total.is_complex() else total


def _own(outputs: Any) -> torch.Tensor:
    """The loss that a model such as those of Hugging Face returns when it is given labels: by its name, or first of a tuple."""
    found = outputs.get("loss") if isinstance(outputs, Mapping) else getattr(outputs, "loss", None)
    if found is None and isinstance(outputs, torch.Tensor | tuple):
        found = next((tensor for tensor in tensors_in(outputs)[:1] if tensor.dim() == 0), None)
    if not isinstance(found, torch.Tensor):
        raise Unsupported("training.loss=own: the model returned no loss; give it labels among its inputs")
    return found


_UNTARGETED: dict[str, Callable[[Any], torch.Tensor]] = {"mean": _mean, "own": _own}


assert set(_OPTIMIZERS) == set(OPTIMIZERS)
assert {*_TARGETED, *_UNTARGETED} == set(LOSSES)
