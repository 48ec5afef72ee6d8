"""Torch modules that several tests use, counts of them, and whether anything has changed them."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from sweeprof.backends.torch.counting import count_layers
from sweeprof.measuring.inputs import Inputs, TensorSpec
from sweeprof.results.layers import LayerTable


def counted(module: nn.Module, *given: Any, complete: bool = True, **keywords: Any) -> LayerTable:
    """The table of ``module`` for some inputs, tuples of ints being shapes; over shapes and with every operator known."""
    table = count_layers(module, Inputs.of((*map(specified, given),)) if not keywords else arguments(given, keywords))
    if complete:
        assert table.method == "shapes"
        assert table.uncovered == {}
    return table


def arguments(given: tuple[Any, ...], keywords: dict[str, Any]) -> Inputs:
    return Inputs(tuple(map(specified, given)), {name: specified(value) for name, value in keywords.items()})


def specified(value: Any) -> Any:
    is_shape = type(value) is tuple and value and all(type(size) is int for size in value)
    return TensorSpec(value) if is_shape else value


def figures(table: LayerTable) -> tuple[int, int, int]:
    """MACs, FLOPs and operations."""
    assert table.flops is not None
    assert table.ops is not None
    return table.macs, table.flops, table.ops


class Functional(nn.Module):
    """A module without parameters that applies a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


class Applied(nn.Module):
    """Layers by name, and a function of them and the inputs as the forward: ``Applied(lambda module, x: …, layer=…)``."""

    def __init__(self, function: Callable[..., Any], **layers: nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(self, *args, **kwargs)


IDENTITIES: list[tuple[Any, str]] = [
    (torch, "bmm"),
    (torch, "matmul"),
    (functional, "linear"),
    (torch.Tensor, "__matmul__"),
    (nn.Module, "__call__"),
    (nn.Linear, "forward"),
]


HOOKS_OF_TENSORS = ("_backward_hooks", "_post_accumulate_grad_hooks")
HOOKS_OF_OPTIMIZERS = (_global_optimizer_pre_hooks, _global_optimizer_post_hooks)


def state_of(module: nn.Module) -> dict[str, Any]:
    """Everything of a module and of torch that could be disturbed; tensors by identity and, where they have values, by value."""
    modules, parameters = list(module.modules()), list(module.named_parameters())
    values = [*parameters, *module.named_buffers()]
    held = [{name: value for name, value in vars(m).items() if not name.startswith("__")} for m in modules]
    return {
        "attributes": [{name: id(value) for name, value in own.items()} for own in held],
        "contents": [{n: list(own[n]) for n in own if isinstance(own[n], dict | list | set)} for own in held],
        "tensors": [(name, id(t), t.data_ptr(), t.device, t.requires_grad) for name, t in parameters],
        "versions": [t._version for _, t in parameters],
        "gradients": [(id(p.grad), None if p.grad is None else p.grad.tolist()) for _, p in parameters],
        "values": {name: value.tolist() for name, value in values if not value.is_meta},
        "buffers": [id(buffer) for buffer in module.buffers()],
        "modes": [(m.training, type(m)) for m in modules],
        "random": torch.get_rng_state().tolist(),
        "torch": [getattr(owner, name) for owner, name in IDENTITIES],
        "hooks": [
            [len(getattr(t, name, None) or ()) for name in HOOKS_OF_TENSORS]
            for t in (*module.parameters(), *module.buffers())
        ],
        "hooks of optimizers": [len(hooks) for hooks in HOOKS_OF_OPTIMIZERS],
        "grad": torch.is_grad_enabled(),
        "collector": gc.isenabled(),
        "device": torch.get_default_device(),
        "modes of torch": torch._C._len_torch_dispatch_stack(),
    }


@contextmanager
def undisturbed(module: nn.Module, *besides: str) -> Iterator[None]:
    """Fails if anything of the module or of torch, ``besides`` some keys, is another object or has another value afterwards."""
    before = state_of(module)
    yield
    after = state_of(module)
    assert {name: after[name] for name in before if name not in besides and after[name] != before[name]} == {}


def convolved(inputs: int, outputs: int, kernel: int, stride: int = 1) -> list[nn.Module]:
    return [nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(outputs)]


class Residual(nn.Module):
    """ResNet's basic block: ``relu(body(x) + shortcut(x))``, the shortcut a projection where shapes change."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(*convolved(inputs, outputs, 3, stride), nn.ReLU(), *convolved(outputs, outputs, 3))
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same else nn.Sequential(*convolved(inputs, outputs, 1, stride))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(self.body(x) + self.shortcut(x))


def resnet(depths: list[int], classes: int) -> nn.Module:
    """ResNet of so many blocks in each stage, for ImageNet: ResNet-18 is ``resnet([2, 2, 2, 2], 1000)``."""
    layers, inputs = [*convolved(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)], 64
    for stage, depth in enumerate(depths):
        width = 64 * 2**stage
        for index in range(depth):
            layers.append(Residual(inputs, width, 2 if stage and not index else 1))
            inputs = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes)).eval()


class Sleeping(torch.autograd.Function):
    """Doubles its input, and sleeps so many seconds in its forward and its backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, forward_s: float, backward_s: float) -> torch.Tensor:
        time.sleep(forward_s)
        ctx.backward_s = backward_s
        return x * 2

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        time.sleep(ctx.backward_s)
        return gradients[0] * 2, None, None


class Twice(nn.Module):
    """One layer called twice."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> Any:
        return self.layer(self.layer(x))
