"""Any function of tensors is profiled; the modules and parameters that it uses are its own."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import sweeprof

NET = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
SCALE = nn.Parameter(torch.ones(4, 4))


def scaled_net(x: torch.Tensor) -> Any:
    return (NET(x) @ SCALE).softmax(-1)


class Pipeline:
    """An object with modules of its own, which is no module."""

    def __init__(self) -> None:
        self.first = nn.Linear(8, 8)
        self.rest = [nn.Linear(8, 2)]

    def __call__(self, x: torch.Tensor) -> Any:
        return self.rest[0](self.first(x))

    def embed(self, x: torch.Tensor) -> Any:
        return self.first(x)


def test_a_function_of_a_global_model() -> None:
    layers = sweeprof.profile(scaled_net, (2, 8)).layers
    assert [(row.path, row.type) for row in layers.rows] == [
        ("__root__", "scaled_net"),
        ("NET", "Sequential"),
        ("NET.0", "Linear"),
        ("NET.1", "ReLU"),
        ("NET.2", "Linear"),
    ]
    assert layers.macs == 2 * (8 * 16 + 16 * 4 + 4 * 4)
    assert layers.params == 8 * 16 + 16 + 16 * 4 + 4 + 16
    assert NET.training


@pytest.mark.parametrize(
    ("function", "macs", "params"),
    [
        (Pipeline(), 2 * (64 + 16), 64 + 8 + 16 + 2),
        (Pipeline().embed, 2 * 64, 64 + 8 + 16 + 2),
        (NET.forward, 2 * (8 * 16 + 16 * 4), 8 * 16 + 16 + 16 * 4 + 4),
        (partial(torch.matmul, other=torch.ones(8, 3)), 2 * 8 * 3, 0),
        (lambda x, net=NET: net(x), 2 * (8 * 16 + 16 * 4), 8 * 16 + 16 + 16 * 4 + 4),
        (functional.gelu, 0, 0),
    ],
)
def test_whatever_can_be_called(function: object, macs: int, params: int) -> None:
    profile = sweeprof.profile(function, (2, 8))
    assert (profile["compute/macs"].value, profile["params/total"].value) == (macs, params)
    assert profile["compute/flops"].value


def test_a_function_of_several_tensors() -> None:
    given = torch.ones(1, 2, 8, 4)
    layers = sweeprof.profile(lambda q, k: functional.scaled_dot_product_attention(q, k, k), (given, given)).layers
    assert layers.macs == 2 * 2 * 8 * 8 * 4


def test_its_training_step_is_estimated() -> None:
    measurement = sweeprof.profile(scaled_net, (2, 8), ["compute/macs_backward"])["compute/macs_backward"]
    assert measurement.value == 2 * 2 * (8 * 16 + 16 * 4 + 4 * 4)
    assert "a function cannot be copied" in measurement.warnings[0].text


def test_a_class_is_not_a_model() -> None:
    with pytest.raises(sweeprof.UserError, match="model: 'type' is not a model of a framework"):
        sweeprof.profile(nn.Linear, (2, 8))
