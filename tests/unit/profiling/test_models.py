"""What can be profiled: modules, any function of tensors, files of models, and the builders of a configuration."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from onnx import helper
from torch import nn
from torch.nn import functional

import sweeprof
from support.onnx_graphs import floats, saved
from sweeprof.errors import Unsupported, UserError
from sweeprof.targets import builders_of, chosen_builder

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


# Models that are given as the path of a file


@pytest.fixture
def onnx_file(tmp_path: Path) -> str:
    return saved(
        tmp_path, [helper.make_node("MatMul", ["a", "w"], ["y"], "product")], {"a": (3, 8)}, {"w": floats(8, 5)}
    )


@pytest.mark.parametrize("backend", ["auto", "onnxruntime", "openvino"])
def test_an_onnx_file(backend: str, onnx_file: str) -> None:
    for path in (onnx_file, Path(onnx_file)):
        profile = sweeprof.profile(path, (3, 8), backend=backend)
        assert (profile["compute/macs"].value, profile["params/total"].value) == (120, 40)


def test_an_exported_program(tmp_path: Path) -> None:
    path = tmp_path / "net.pt2"
    torch.export.save(torch.export.export(torch.nn.Linear(8, 5), (torch.ones(3, 8),)), path)
    assert sweeprof.profile(path, (3, 8))["compute/macs"].value == 120


def test_what_is_no_file_of_a_model(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"model: 'nowhere\.onnx' is not a file"):
        sweeprof.profile("nowhere.onnx", (3, 8))
    with pytest.raises(
        UserError, match=r"model: 'resnet18' is not a model, nor a file of one: \.onnx, \.xml, \.tflite"
    ):
        sweeprof.profile("resnet18", (3, 8))


# Which of a model's builders a backend runs


TORCH, KERAS = {"_target_": "a.torch_model"}, {"_target_": "a.keras_model"}


SEVERAL = {"framework": "onnx", "builders": ["onnx", "torch", "tensorflow"]}


@pytest.mark.parametrize(
    ("backend", "model", "chosen"),
    [
        ({"framework": "torch"}, {"tensorflow": KERAS, "torch": TORCH}, "torch"),
        (SEVERAL, {"tensorflow": KERAS, "torch": TORCH}, "torch"),
        (SEVERAL, {"torch": None, "tensorflow": KERAS}, "tensorflow"),
    ],
)
def test_the_first_that_the_model_has(backend: dict[str, Any], model: dict[str, Any], chosen: str) -> None:
    assert chosen_builder(backend, model) == (chosen, model[chosen])


def test_a_backend_runs_its_own_framework_unless_it_says_more() -> None:
    assert builders_of({"framework": "torch"}) == ["torch"]
    with pytest.raises(Unsupported, match=r"^the model names no builder for jax$"):
        chosen_builder({"framework": "jax"}, {"torch": TORCH})
    with pytest.raises(Unsupported, match=r"^the model names no builder for onnx, torch or tensorflow$"):
        chosen_builder({"builders": ["onnx", "torch", "tensorflow"]}, {"fake": {}})
