"""Models that are given as the path of a file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from onnx import helper

import sweeprof
from support.onnx_graphs import floats, saved
from sweeprof.errors import UserError


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
