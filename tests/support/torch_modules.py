"""Torch models whose counts are known from elsewhere, each written from its published architecture."""

from __future__ import annotations

import gc
import math
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


def convolved(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return [convolution, nn.BatchNorm2d(outputs)]


class Residual(nn.Module):
    """``relu(body(x) + shortcut(x))``, the shortcut a projection where shapes change."""

    def __init__(self, body: list[nn.Module], inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(*body)
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same else nn.Sequential(*convolved(inputs, outputs, 1, stride))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(self.body(x) + self.shortcut(x))


def basic(inputs: int, width: int, stride: int) -> tuple[nn.Module, int]:
    body = [*convolved(inputs, width, 3, stride), nn.ReLU(), *convolved(width, width, 3)]
    return Residual(body, inputs, width, stride), width


def bottleneck(inputs: int, width: int, stride: int) -> tuple[nn.Module, int]:
    outputs = 4 * width
    middle = [*convolved(width, width, 3, stride), nn.ReLU()]
    body = [*convolved(inputs, width, 1), nn.ReLU(), *middle, *convolved(width, outputs, 1)]
    return Residual(body, inputs, outputs, stride), outputs


def resnet(
    block: Callable[[int, int, int], tuple[nn.Module, int]], depths: list[int], stem: list[nn.Module], classes: int
) -> nn.Module:
    layers, width = [*stem], 64
    for stage, depth in enumerate(depths):
        for index in range(depth):
            layer, width = block(width, 64 * 2**stage, 2 if stage and not index else 1)
            layers.append(layer)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes)).eval()


def imagenet_stem() -> list[nn.Module]:
    return [*convolved(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]


def resnet18() -> nn.Module:
    return resnet(basic, [2, 2, 2, 2], imagenet_stem(), 1000)


def resnet152() -> nn.Module:
    return resnet(bottleneck, [3, 8, 36, 3], imagenet_stem(), 1000)


def alexnet() -> nn.Module:
    features = [
        nn.Conv2d(3, 64, 11, 4, 2), nn.ReLU(), nn.MaxPool2d(3, 2),
        nn.Conv2d(64, 192, 5, padding=2), nn.ReLU(), nn.MaxPool2d(3, 2),
        nn.Conv2d(192, 384, 3, padding=1), nn.ReLU(),
        nn.Conv2d(384, 256, 3, padding=1), nn.ReLU(),
        nn.Conv2d(256, 256, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, 2),
    ]  # fmt: skip
    head = [nn.Dropout(), nn.Linear(9216, 4096), nn.ReLU(), nn.Dropout(), nn.Linear(4096, 4096), nn.ReLU()]
    return nn.Sequential(*features, nn.AdaptiveAvgPool2d(6), nn.Flatten(), *head, nn.Linear(4096, 1000)).eval()


class Excitation(nn.Module):
    """Channels weighed by what a small network makes of their means."""

    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(channels, squeezed, 1), nn.Conv2d(squeezed, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = self.up(functional.silu(self.down(functional.adaptive_avg_pool2d(x, 1))))
        return x * torch.sigmoid(scale)


class Inverted(nn.Module):
    """A widened depthwise convolution with excitation, added to its input where shapes allow."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = inputs * expansion
        widening = [*convolved(inputs, wide, 1), nn.SiLU()] if expansion > 1 else []
        depthwise = [*convolved(wide, wide, kernel, stride, groups=wide), nn.SiLU()]
        self.body = nn.Sequential(*widening, *depthwise, Excitation(wide, inputs // 4), *convolved(wide, outputs, 1))
        self.adds = inputs == outputs and stride == 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.body(x)
        return x + made if self.adds else made


def efficientnet_b0() -> nn.Module:
    layers: list[nn.Module] = [*convolved(3, 32, 3, 2), nn.SiLU()]
    width = 32
    stages = [
        (16, 3, 1, 1, 1), (24, 3, 2, 6, 2), (40, 5, 2, 6, 2), (80, 3, 2, 6, 3), (112, 5, 1, 6, 3), (192, 5, 2, 6, 4),
        (320, 3, 1, 6, 1),
    ]  # fmt: skip
    for outputs, kernel, stride, expansion, depth in stages:
        for index in range(depth):
            layers.append(Inverted(width, outputs, kernel, 1 if index else stride, expansion))
            width = outputs
    head = [*convolved(320, 1280, 1), nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2)]
    return nn.Sequential(*layers, *head, nn.Linear(1280, 1000)).eval()


class BertLayer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.attended, self.norm = nn.Linear(width, width), nn.LayerNorm(width)
        self.inner, self.outer = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.last = nn.LayerNorm(width)

    def split(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(*x.shape[:-1], self.heads, -1).transpose(1, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (self.split(layer(x)) for layer in (self.query, self.key, self.value))
        scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
        mixed = (scores.softmax(-1) @ value).transpose(1, 2).flatten(2)
        x = self.norm(x + self.attended(mixed))
        return self.last(x + self.outer(functional.gelu(self.inner(x))))  # type: ignore[no-any-return]


class Bert(nn.Module):
    """BERT-base as Hugging Face has it: token, position and type embeddings, 12 layers, a pooler."""

    def __init__(self, width: int = 768, depth: int = 12) -> None:
        super().__init__()
        self.tokens, self.positions, self.types = (nn.Embedding(n, width) for n in (30522, 512, 2))
        self.norm = nn.LayerNorm(width)
        self.layers = nn.ModuleList(BertLayer(width, 12) for _ in range(depth))
        self.pooler = nn.Linear(width, width)

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        places = torch.arange(ids.shape[1], device=ids.device)
        x = self.norm(self.tokens(ids) + self.positions(places) + self.types(torch.zeros_like(ids)))
        for layer in self.layers:
            x = layer(x)
        return x, torch.tanh(self.pooler(x[:, 0]))


class MyNet(nn.Module):
    """The example of torchnnprofiler's fork: lists of layers, and a product that no module makes."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(10, 1))
        self.linear1, self.linear2 = nn.Linear(10, 11), nn.Linear(10, 10)
        self.linear3 = nn.ModuleList([nn.Linear(11, 12), nn.Linear(12, 11)])
        self.linear4 = nn.Sequential(nn.Linear(11, 7), nn.Tanh(), nn.Linear(7, 8))
        self.linear5 = nn.ModuleDict({"a": nn.Linear(8, 3), "b": nn.Linear(3, 1)})

    def forward(self, x: torch.Tensor) -> Any:
        x = torch.tanh(self.linear2(x) @ self.weight) + self.linear3[0](self.linear1(x))
        x = self.linear4(self.linear3[1](x))
        return self.linear5["b"](self.linear5["a"](x))


class Twice(nn.Module):
    """One layer called twice."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> Any:
        return self.layer(self.layer(x))
