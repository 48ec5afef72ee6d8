"""Counts one training step over shapes: forward, the sum of every output as loss, backward."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch.nn import functional

from sweeprof.backends import Build
from sweeprof.backends.torch.callsites import CallSites, LiveBytes, costs_of, paths_of, stored_size, tensors_in
from sweeprof.backends.torch.counting import (
    ON_SHAPES,
    count_forward,
    count_layers,
    has_compiler,
    message_of,
    slow_paths,
    uncompiled,
)
from sweeprof.backends.torch.dispatch import (
    CONSTANT_ELEMENTS,
    MASK_ELEMENTS,
    MOST_CONSTANT_ELEMENTS,
    CountingMode,
    NotOnShapes,
    apart_from_others,
)
from sweeprof.backends.torch.generation import own_generation
from sweeprof.backends.torch.model import (
    UNTIED_MODES,
    TorchModel,
    as_shapes,
    built,
    copied_to_meta,
    finished,
    first_tensor,
    inference,
    made,
    materialised,
    on_device,
    with_own_state,
)
from sweeprof.backends.torch.state import in_training_mode, parameters_kept, seen_whole, start_training
from sweeprof.counting.formulas import DEFAULTS, Formulas
from sweeprof.counting.operators import added, estimated_training
from sweeprof.errors import Unsupported
from sweeprof.measuring.inputs import Inputs
from sweeprof.measuring.timing import without_collection
from sweeprof.measuring.training_config import EPSILON, LOSSES, OPTIMIZERS, RATE, TrainingConfig, Work
from sweeprof.results.layers import Training
from sweeprof.results.observations import Phase

_ATTEMPTS = (
    (CONSTANT_ELEMENTS, MASK_ELEMENTS),
    (MOST_CONSTANT_ELEMENTS, MASK_ELEMENTS),
    (MOST_CONSTANT_ELEMENTS, 0),
    (0, 0),
)
"""Elements up to which constants, and floating-point ones on meta, have values. Into the latter a forward may write what has a
gradient, as where packed sequences are padded, and the gradient of a tensor with values cannot be one without."""
CHECKPOINT = "CheckpointFunctionBackward"
"""The node of a reentrant checkpoint, which runs a forward and a backward of its own."""


class NeedsValues(Unsupported):
    """The forward needs values, and the module is on the meta device."""


def count_built_training(build: Build, inputs: Inputs, formulas: Formulas = DEFAULTS) -> Training:
    """:func:`count_training` of the module that ``build`` makes, for real only where its forward needs values."""
    try:
        return count_training(made(build), inputs, formulas)
    except NeedsValues:
        return count_training(built(build), inputs, formulas)


def count_training(module: torch.nn.Module, inputs: Inputs, formulas: Formulas = DEFAULTS) -> Training:
    """One training step of ``module`` on ``inputs``, on a copy that is on the meta device.

    Gradients are those of every parameter that requires one, and of every input tensor that does.

    Where autograd cannot run there, the backward is estimated as twice the forward, and ``Training.estimated`` says why.

    Raises:
        Unsupported: no parameter requires a gradient; or, as NeedsValues, the module is on the meta device, and its forward needs
            values.
        Exception: whatever the module raised in its forward, for real too.
    """
    original = uncompiled(module)
    first: Exception | None = None

    def trained_copy() -> torch.nn.Module:
        return start_training(copied_to_meta(module), original)

    with torch.inference_mode(False), without_collection(), apart_from_others():
        module = materialised(original, inputs)
        if not any(parameter.requires_grad for parameter in module.parameters()):
            raise Unsupported("no parameter requires a gradient")
        for constants, masks in _ATTEMPTS:
            try:
                given = as_shapes(inputs, None) if constants else on_device(inputs, "meta")
                forward = _forward(trained_copy(), given, formulas, constants)
                had_compiler = has_compiler()
                count = partial(_counted, trained_copy, given, formulas, constants, masks)
                counted = seen_whole("counting", count)
                if has_compiler() != had_compiler:
                    counted = count()
                if forward is not None:
                    counted = replace(counted, forward_macs=forward[0], forward_flops=forward[1])
                return counted
            except Unsupported:
                raise
            except Exception as error:  # a forward or a backward may raise anything on meta
                first = first or error
        with parameters_kept(module, is_trained=False), in_training_mode(module):
            table = count_layers(module, inputs, formulas)
    assert first is not None
    if table.uncounted is not None:
        raise NeedsValues(table.uncounted)
    reason = f"the backward does not run on shapes: {message_of(first)}"
    return estimated_training(table.macs, table.flops or 0, reason, table.uncovered)


def _forward(module: torch.nn.Module, inputs: Inputs, formulas: Formulas, constants: int) -> tuple[int, int] | None:
    """MACs and FLOPs of the forward as operators arrive without gradients: whole, so that they are those of inference.

    None if the forward does not run without gradients, because it asks for some itself; it is counted by the parts then that
    autograd sees. What the forward warns of, it warns of with gradients, too.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            table = count_forward(
                module, inputs, formulas, ON_SHAPES, UNTIED_MODES, constants=constants, allows_autocast=True
            )
        except Exception:  # a forward may raise anything
            return None
    if table.uncounted is not None:
        raise Unsupported(table.uncounted)
    return table.macs, table.flops or 0


def _counted(
    trained_copy: Callable[[], torch.nn.Module], inputs: Inputs, formulas: Formulas, constants: int, masks: int
) -> Training:
    """Of a copy on meta, of its own: a forward may keep what it computes, and it may be counted again."""
    module = trained_copy()
    inputs = with_own_state(inputs)
    given = tensors_in((inputs.args, inputs.kwargs))
    sites = CallSites(paths_of(module), formulas)
    live = LiveBytes(sites.where, [*given, *module.parameters(), *module.buffers()])
    sites.remember_gradients()
    mode = CountingMode(sites, live, formulas, on_shapes=True, constants=constants, most_filled=masks)
    following = mode.following_threads(torch.enable_grad)
    with torch.random.fork_rng(devices=()), torch.enable_grad(), slow_paths(), sites.tracking(), following, mode:
        outputs = finished(inputs.call(module))
        # Torch compiles their functions for a backward, and what these close over is not seen here.
        if mode.higher_order:
            raise NotOnShapes(f"the backward of {', '.join(sorted(mode.higher_order))} is not known")
        forward = _totals(sites)
        loss = _sum_of(torch.sum, outputs)
        begun = _totals(sites)
        _differentiate(loss)
        done = _totals(sites)
    return Training(
        forward_macs=forward[0],
        forward_flops=forward[1],
        backward_macs=done[0] - begun[0],
        backward_flops=done[1] - begun[1],
        liveness=live.result(sum(stored_size(tensor)[1] for tensor in given)),
        uncovered=sites.uncovered,
    )


def _sum_of(reduced: Callable[[torch.Tensor], torch.Tensor], outputs: object) -> torch.Tensor:
    """The sum of what every output that has a gradient is reduced to.

    Raises:
        Unsupported: no output has one.
    """
    parts = [reduced(tensor) for tensor in tensors_in(outputs) if tensor.requires_grad]
    if not parts:
        raise Unsupported("no output depends on a parameter that requires a gradient")
    total = sum(parts[1:], start=parts[0])
    if total.is_complex():
        return total.real
    return total


def _differentiate(loss: torch.Tensor) -> None:
    """Run the backward to whatever wants a gradient: parameters and inputs, also such that the forward got elsewhere.

    It leaves no gradients, but those of parameters that only a reentrant checkpoint sees.
    """
    found: list[torch.Tensor] = []
    waiting: list[Any] = [loss.grad_fn]
    seen = {loss.grad_fn, None}
    while waiting:
        node = waiting.pop()
        if hasattr(node, "variable"):
            found.append(node.variable)
        following = {after for after, _ in node.next_functions} - seen
        seen |= following
        waiting.extend(following)
    if not any(node.name() == CHECKPOINT for node in seen if node is not None):
        torch.autograd.grad(loss, found)
        return
    before = [tensor.grad for tensor in found]
    loss.backward()  # type: ignore[no-untyped-call]  # grad() is not possible here
    for tensor, gradient in zip(found, before, strict=True):
        tensor.grad = gradient


def _totals(sites: CallSites) -> tuple[int, int]:
    """MACs and FLOPs so far."""
    macs, flops, _ = added(*map(costs_of, sites.counted_calls))
    return macs, flops


@dataclass(frozen=True, slots=True)
class TorchTraining:
    """Forward, backward and update of a module that is in training mode."""

    step: Callable[[], object]
    """One forward of the batch."""
    loss: Callable[[object], torch.Tensor]
    """Of what a step returns."""
    optimizer: Any
    """It need not know every parameter; None: nothing is updated."""
    parameters: list[torch.nn.Parameter]
    """Those whose gradients are cleared, beside the optimizer's."""

    def forward(self) -> torch.Tensor:
        if self.optimizer is not None:
            self.optimizer.zero_grad(set_to_none=True)
        _clear_gradients(self.parameters)
        return self.loss(finished(self.step()))

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()  # type: ignore[no-untyped-call]

    def update(self) -> None:
        if self.optimizer is not None:
            self.optimizer.step()


@contextmanager
def training(model: TorchModel, batch: Inputs, targets: object, config: TrainingConfig) -> Iterator[TorchTraining]:
    """The module trains on one batch again and again; what it learns is its owner's to take back.

    Afterwards its modes are what they were, and its parameters have no gradients.

    Raises:
        Unsupported: nothing can be trained, or the loss needs targets that there are not.
        Exception: whatever the constructor of the caller's own optimizer raised.
    """
    if model.variant.is_quantized:
        raise Unsupported("a quantized model has no gradients")
    module = uncompiled(model.native)
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    if not parameters:
        raise Unsupported("no parameter requires a gradient")
    try:
        with in_training_mode(module), torch.inference_mode(False), torch.enable_grad():
            loss = _loss_function(config.loss, on_device(Inputs((targets,)), model.device).args[0])
            make = config.optimizer
            if isinstance(make, str):
                make = _OPTIMIZERS[make]
            optimizer = make(parameters)
            closure = None
            if optimizer is not None:
                closure = inspect.signature(optimizer.step).parameters.get("closure")
            if closure is not None and closure.default is closure.empty:  # as of LBFGS
                raise Unsupported(
                    f"training.optimizer={type(optimizer).__name__}: its step needs a closure, by which it runs the forward and "
                    "the backward itself as often as it likes; measured is an optimizer that updates once after a backward, such "
                    "as adam"
                )
            yield TorchTraining(model.forward_of(batch), model.within_autocast(loss), optimizer, parameters)
    finally:
        _clear_gradients(parameters)


def _clear_gradients(parameters: list[torch.nn.Parameter]) -> None:
    for parameter in parameters:
        parameter.grad = None


_OPTIMIZERS: dict[str, Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer | None]] = {
    "sgd": partial(torch.optim.SGD, lr=RATE),
    "momentum": partial(torch.optim.SGD, lr=RATE, momentum=0.9),
    "adam": partial(torch.optim.Adam, lr=RATE, eps=EPSILON),
    "adamw": partial(torch.optim.AdamW, lr=RATE, eps=EPSILON),
    "none": lambda _: None,
}


def _loss_function(
    given: str | Callable[[object, object], torch.Tensor], targets: object
) -> Callable[[object], torch.Tensor]:
    if not isinstance(given, str):
        return lambda outputs: given(outputs, targets)
    if given in _UNTARGETED:
        return _UNTARGETED[given]
    if targets is None:
        raise Unsupported(f"training.loss={given} needs targets, and the data have none")
    compare, wanted = _TARGETED[given], torch.as_tensor(targets)
    return lambda outputs: compare(first_tensor(outputs), wanted)


def _cross_entropy(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The cross entropy; classes may be of any integer type, as other frameworks have 32 bits."""
    if not targets.is_floating_point():
        targets = targets.long()
    return functional.cross_entropy(outputs, targets)


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
    "cross_entropy": _cross_entropy,
    "mse": _mse,
}


def _own(outputs: object) -> torch.Tensor:
    """The loss that a model such as those of Hugging Face returns when it is given labels: by its name, or first of a tuple."""
    found = getattr(outputs, "loss", None)
    if isinstance(outputs, Mapping):
        found = outputs.get("loss")
    if found is None and isinstance(outputs, torch.Tensor | tuple):
        tensors = tensors_in(outputs)
        if tensors and tensors[0].dim() == 0:
            found = tensors[0]
    if not isinstance(found, torch.Tensor):
        raise Unsupported("training.loss=own: the model returned no loss; give it labels among its inputs")
    return found


_UNTARGETED: dict[str, Callable[[Any], torch.Tensor]] = {"mean": partial(_sum_of, torch.mean), "own": _own}


assert set(_OPTIMIZERS) == set(OPTIMIZERS)
assert {*_TARGETED, *_UNTARGETED} == set(LOSSES)


Within = Callable[[Phase], AbstractContextManager[Any]]
"""What a phase runs within."""


@dataclass(frozen=True, slots=True)
class Steps:
    """The phases of a step, none of which waits for the device; of inference it is the first alone."""

    device: torch.device
    forward: Callable[[], Any]
    """Returns the outputs, or of training the loss."""
    training: TorchTraining | None = None
    """None: there is no other phase."""

    def whole(self, within: Within = lambda _: nullcontext()) -> None:
        """All phases, until the device is done; what they return is not kept."""
        self.queue(within)
        if self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)

    def queue(self, within: Within = lambda _: nullcontext()) -> None:
        """All phases; the device may still be at work on them."""
        with within("forward"):
            outputs = self.forward()
        if self.training is not None:
            with within("backward"):
                self.training.backward(outputs)
            with within("update"):
                self.training.update()


@contextmanager
def stepping(model: TorchModel, work: Work) -> Iterator[Steps]:
    """The steps of ``work``; what training does to the weights is their owner's to take back.

    Raises:
        Unsupported: the training config does not fit the model.
    """
    if work.training is not None:
        with training(model, work.batch, work.targets, work.training) as phases:
            yield Steps(model.device, phases.forward, phases)
        return
    if work.generation is not None:
        with torch.inference_mode():
            yield Steps(model.device, own_generation(model, work.batch, work.generation))
        return
    with inference(model, work.batch) as forward:
        yield Steps(model.device, forward)
