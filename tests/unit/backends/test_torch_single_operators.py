"""Layers that are counted as one operator: torch runs that operator with those arguments, and no other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import prune
from torch.utils._python_dispatch import TorchDispatchMode

from sweeprof.backends.torch.counting import count_layers
from sweeprof.backends.torch.single_operators import SINGLE_OPERATORS, operator_of
from sweeprof.measuring.inputs import Inputs

IMAGE, SEQUENCE = (2, 4, 9, 8), (2, 4, 6)
LAYERS: list[tuple[nn.Module, tuple[int, ...]]] = [
    (nn.Conv1d(4, 6, 3, stride=2, padding=1, dilation=2, groups=2), SEQUENCE),
    (nn.Conv2d(4, 6, 3), IMAGE),
    (nn.Conv2d(4, 8, (3, 2), (2, 1), (1, 0), bias=False, groups=4), IMAGE),
    (nn.Linear(6, 3), SEQUENCE),
    (nn.Linear(6, 3, bias=False), SEQUENCE),
    (nn.BatchNorm2d(4), IMAGE),
    (nn.BatchNorm2d(4, affine=False, momentum=None), IMAGE),
    (nn.LayerNorm(6), SEQUENCE),
    (nn.LayerNorm((4, 6), eps=1e-3, bias=False), SEQUENCE),
    (nn.LayerNorm(6, elementwise_affine=False), SEQUENCE),
    *((kind(inplace), IMAGE) for kind in (nn.ReLU, nn.ReLU6, nn.SiLU, nn.Hardswish, nn.Hardsigmoid) for inplace in (False, True)),
    (nn.Hardtanh(-2, 3.5), IMAGE),
    (nn.Sigmoid(), IMAGE),
    (nn.GELU(), IMAGE),
    (nn.Dropout(0.3), IMAGE),
    (nn.MaxPool2d(3, 2, 1), IMAGE),
    (nn.MaxPool2d((2, 3), dilation=2, ceil_mode=True), IMAGE),
    (nn.AvgPool2d(3, 2, 1, ceil_mode=True, count_include_pad=False, divisor_override=2), IMAGE),
    (nn.AdaptiveAvgPool2d(2), IMAGE),
    (nn.AdaptiveAvgPool2d((1, 3)), IMAGE),
]  # fmt: skip


class Seen(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes what arrives at the dispatcher."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.runs: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []

    def __torch_dispatch__(self, func: Any, types: object, args: Any = (), kwargs: Any = None) -> Any:
        self.runs.append((func, args, kwargs or {}))
        return func(*args, **(kwargs or {}))


def complete(func: Any, args: tuple[Any, ...]) -> list[Any]:
    """All positional arguments, with defaults; an integer stands for a list of as many as the kernel has axes."""
    values: list[Any] = []
    for argument, value in zip(func._schema.arguments, (*args, *[None] * len(func._schema.arguments)), strict=False):
        if argument.kwarg_only:
            break
        given = value if len(values) < len(args) else argument.default_value
        if str(argument.type) == "List[int]":
            axes = 1 if func is torch.ops.aten.conv1d.default else 2
            given = [given] * axes if isinstance(given, int) else list(given)
            if not given and argument.name == "stride":  # that of the kernel
                given = values[1]
        values.append(given)
    return values


def described(module: nn.Module, shape: tuple[int, ...]) -> str:
    return f"{module} {shape}".replace(" ", "")


@pytest.mark.parametrize(("layer", "shape"), LAYERS, ids=[described(*case) for case in LAYERS])
def test_torch_runs_that_operator_with_those_arguments(layer: nn.Module, shape: tuple[int, ...]) -> None:
    layer.eval()
    rule = operator_of(layer)
    assert rule is not None
    with torch.inference_mode():
        given = torch.rand(shape)
        found = rule(layer, given)
        with Seen() as seen:
            layer(given)
    assert found is not None
    func, args = found
    ((ran, with_args, kwargs),) = seen.runs
    assert ran is func
    assert not kwargs
    pairs = list(zip(complete(func, args), complete(ran, with_args), strict=True))
    assert all(a is b if isinstance(a, torch.Tensor) else a == b for a, b in pairs), pairs


def test_every_such_layer_is_tested() -> None:
    assert {type(layer) for layer, _ in LAYERS} == set(SINGLE_OPERATORS)


def with_circular_padding() -> nn.Module:
    return nn.Conv2d(4, 6, 3, padding=1, padding_mode="circular")


def with_a_mask() -> nn.Module:
    layer = nn.Conv2d(4, 6, 3)
    prune.random_unstructured(layer, "weight", amount=0.5)  # type: ignore[no-untyped-call]
    return layer


def in_training() -> nn.Module:
    return nn.BatchNorm2d(4).train()


@pytest.mark.parametrize("make", [with_circular_padding, with_a_mask, in_training])
def test_other_settings_are_run(make: Callable[[], nn.Module]) -> None:
    layer = make()
    rule = operator_of(layer)
    assert rule is not None
    assert rule(layer, torch.rand(IMAGE)) is None
    counted = count_layers(layer, Inputs((torch.rand(IMAGE),)))
    assert counted.operator_calls > 0


def test_a_function_that_a_program_replaced_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    linear: Any = functional.linear
    monkeypatch.setattr(functional, "linear", lambda *args: linear(*args).relu())
    model = nn.Sequential(nn.Linear(4, 3))
    counted = count_layers(model, Inputs((torch.rand(2, 4),)))
    assert [operator.name for operator in counted.rows[1].operators] == ["linear", "relu"]


def test_a_formula_of_the_user_counts() -> None:
    from sweeprof.counting.formulas import Cost, Formulas

    formulas = Formulas({"aten::linear": lambda args, kwargs, output: Cost(macs=7)})
    counted = count_layers(nn.Sequential(nn.Linear(4, 3)), Inputs((torch.rand(2, 4),)), formulas)
    assert counted.macs == 7


class Vectorised(nn.Module):
    """Calls a layer for each sample by ``torch.vmap``."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 3), nn.ReLU())

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.vmap(self.inner)(given)
        return result


def test_the_samples_of_a_vectorised_layer_count() -> None:
    counted = count_layers(Vectorised(), Inputs((torch.rand(5, 4),)))
    assert counted.macs == 5 * 4 * 3
    assert counted.rows[0].output_shapes == ((5, 3),)
