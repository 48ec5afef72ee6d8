"""Graphs for one batch size alone: made where there is no other, and given smaller batches too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from torch import nn

from sweeprof.backends import model_files
from sweeprof.backends.onnxruntime.adapter import OnnxruntimeBackend
from sweeprof.backends.onnxruntime.files import OnnxFile
from sweeprof.counting.formulas import DEFAULTS
from sweeprof.measuring.inputs import Inputs, TensorSpec
from sweeprof.targets import builder


@pytest.mark.slow
def test_a_graph_for_one_batch_size_alone_is_made_for_that() -> None:
    """Where a forward makes a constant of the size."""

    class Fixed(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return x + torch.tensor([[float(i)] for i in range(x.shape[0])])

    model = OnnxruntimeBackend().load(Fixed, "cpu", None)
    with model.stepping(model.put(Inputs((torch.zeros(4, 1),)))) as step:
        np.testing.assert_array_equal(np.asarray(model.host_outputs(step())), [[0], [1], [2], [3]])
    assert model.file.batch == 4
    last = model.put(Inputs((torch.full((3, 1), 5.0),)))
    assert (last.rows, last.values["x"].shape()) == (3, [4, 1])
    with model.stepping(last) as step:
        np.testing.assert_array_equal(np.asarray(model.host_outputs(step())), [[5], [6], [7]])


class Stateful(nn.Module):
    """A state that has its batch on the second axis, which no export for any batch size is told."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.gru = nn.GRU(8, 16, batch_first=True)

    def forward(self, x: torch.Tensor, h: torch.Tensor) -> Any:
        return self.gru(x, h)[0]


@pytest.mark.slow
def test_a_network_with_a_state_is_made_for_one_batch_size() -> None:
    module = Stateful().eval()
    model = OnnxruntimeBackend().load(lambda: module, "cpu", None)
    for batch in (4, 3):
        x, h = torch.randn(batch, 5, 8), torch.randn(1, batch, 16)
        with model.stepping(model.put(Inputs((x, h)))) as step, torch.no_grad():
            np.testing.assert_allclose(np.asarray(model.host_outputs(step())), module(x, h).numpy(), atol=1e-5)
    assert model.file.batch == 4


@pytest.mark.slow
@pytest.mark.usefixtures("converted_in_forks")
def test_the_same_from_a_config_in_a_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = {"_target_": "torch.nn.GRU", "input_size": 8, "hidden_size": 16, "batch_first": True}
    inputs = Inputs((TensorSpec((4, 5, 8)), TensorSpec((1, 4, 16))))
    backend = OnnxruntimeBackend(cache=str(tmp_path))
    first = backend.analyze(builder(node), inputs, None, DEFAULTS)
    monkeypatch.setattr(model_files, "run_child", None)
    assert backend.analyze(builder(node), inputs, None, DEFAULTS).macs == first.macs == 4 * 5 * 3 * 16 * (8 + 16)


def test_a_smaller_batch_than_the_only_one_of_a_file_is_filled_up(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    shapes = {"x": [4, 2], "state": [1, 4, 2], "bias": [2]}
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    nodes = [helper.make_node("Add", ["x", "state"], ["s"]), helper.make_node("Squeeze", ["s", "first"], ["q"])]
    nodes.append(helper.make_node("Add", ["q", "bias"], ["y"]))
    first = helper.make_tensor("first", TensorProto.INT64, [1], [0])
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 2])
    graph = helper.make_graph(nodes, "sum", values, [result], [first])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    model = OnnxruntimeBackend().load(lambda: OnnxFile(str(path)), "cpu", None)
    random, bias = np.random.default_rng(0), np.ones(2, np.float32)
    for batch in (4, 3, 1):
        x = random.standard_normal((batch, 2)).astype(np.float32)
        given = model.put(Inputs((x, x[None], bias)))
        assert {name: value.shape() for name, value in given.values.items()} == shapes
        assert given.rows == (None if batch == 4 else batch)
        with model.stepping(given) as step:
            np.testing.assert_allclose(np.asarray(model.host_outputs(step())), 2 * x + 1, atol=1e-6)
