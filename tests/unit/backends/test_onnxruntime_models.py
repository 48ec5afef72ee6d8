"""Models in a caller's hands on ONNX Runtime: counted like their twins in torch, stepped for any batch, timed and traced."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from support.onnx_graphs import floats, node, saved
from sweeprof.backends import named
from sweeprof.backends.onnxruntime import profiler
from sweeprof.backends.onnxruntime.adapter import OnnxruntimeBackend
from sweeprof.backends.onnxruntime.counting import count_file
from sweeprof.backends.onnxruntime.exporting import Exporter
from sweeprof.backends.onnxruntime.files import OnnxFile
from sweeprof.backends.onnxruntime.model import OnnxModel
from sweeprof.backends.torch.counting import count_layers
from sweeprof.counting.formulas import DEFAULTS
from sweeprof.errors import Unsupported
from sweeprof.measuring.inputs import Inputs, TensorSpec
from sweeprof.measuring.layer_timing import NodeRun, module_times
from sweeprof.measuring.training_config import Work
from sweeprof.results.layer_times import ROOT
from sweeprof.results.layers import LayerTable
from sweeprof.results.record import Protocol
from sweeprof.zoo import digits_resnet

SHORT = Protocol(warmup_steps=2, warmup_s=0, min_samples=5, min_s=0, max_s=20)


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, activation="gelu")
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> Any:
        return self.head(self.encoder(x).mean(1))


MODELS: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "digits_resnet": (digits_resnet.torch_model, (3, 1, 32, 32)),
    "transformer": (Transformer, (3, 16, 32)),
}


def outputs(model: OnnxModel, *args: Any, **kwargs: Any) -> Any:
    with model.stepping(model.put(Inputs(args, kwargs))) as step:
        return model.host_outputs(step())


def loaded(build: Callable[[], Any], **settings: Any) -> OnnxModel:
    model: OnnxModel = OnnxruntimeBackend(**settings).load(build, "cpu", None)
    return model


@pytest.fixture(scope="module", params=MODELS)
def found(request: pytest.FixtureRequest) -> Iterator[tuple[LayerTable, LayerTable, OnnxModel, Inputs]]:
    """The counts of an exported model and of its module, and the model with all that the export knew."""
    build, shape = MODELS[request.param]
    torch.manual_seed(0)
    module, inputs = build().eval(), Inputs((TensorSpec(shape),))
    with Exporter().converted(lambda: module, inputs, None) as file:
        model = OnnxModel(lambda *_: nullcontext(file), OnnxruntimeBackend().session_settings("cpu"), None)
        yield count_file(file, [shape], {}, DEFAULTS), count_layers(module, inputs), model, inputs


@pytest.mark.slow(rows=1)
def test_counts_are_those_of_the_twin_in_torch(found: Any) -> None:
    """Row by row; what the graph does not have are dropouts, second outputs that nobody reads, and counters of batches."""
    ours, twin, *_ = found
    assert (ours.uncovered, ours.coverage, ours.method) == ({}, 1.0, "shapes")
    for figure in ("macs", "flops", "ops", "params", "trainable", "params_bytes"):
        assert getattr(ours, figure) == getattr(twin, figure), figure
    assert ours.buffers == twin.buffers - sum(row.type == "BatchNorm2d" for row in twin.rows)
    mine = {row.path: row for row in ours.rows}
    assert {row.path for row in twin.rows} == mine.keys()
    for row in twin.rows:
        own = mine[row.path]
        assert (own.type, own.depth) == (row.type, row.depth)
        assert (own.macs, own.flops, own.ops, own.params) == (row.macs, row.flops, row.ops, row.params), row.path
        if row.type not in ("MultiheadAttention", "Dropout", "ModuleList") and own.call == 0:
            assert (own.input_shapes, own.output_shapes) == (row.input_shapes, row.output_shapes)
            assert (own.act_bytes, own.output_dtypes) == (row.act_bytes, row.output_dtypes)


def analyzed(build: Callable[[], Any], *shape: int) -> LayerTable:
    return OnnxruntimeBackend().analyze(build, Inputs((TensorSpec(shape),)), None, DEFAULTS)


def test_the_model_is_left_as_it_was() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    module[0].eval()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    table = analyzed(lambda: module, 2, 4)
    assert [inner.training for inner in module.modules()] == [True, False, True]
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert (table.macs, table.rows[0].type) == (32, "Sequential")
    # dropout is not in the graph
    assert [(row.path, row.call) for row in table.rows] == [(ROOT, 0), ("0", 0), ("1", -1)]


@pytest.mark.thorough
def test_frozen_parameters_and_shared_ones() -> None:
    module = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False), nn.Linear(4, 2))
    module[1].weight = module[0].weight
    module[2].requires_grad_(False)
    table = analyzed(module.eval, 2, 4)
    assert (table.params, table.trainable, table.macs) == (16 + 10, 16, 2 * (16 + 16 + 8))


@pytest.mark.thorough
def test_keywords_and_constants_among_the_arguments() -> None:
    class Scaled(nn.Module):
        def forward(self, x: torch.Tensor, other: torch.Tensor, k: int = 1) -> Any:
            return x @ other * k

    model, x, other = loaded(Scaled), torch.randn(3, 4), torch.randn(4, 2)
    np.testing.assert_allclose(np.asarray(outputs(model, x, other=other, k=3)), (x @ other * 3).numpy(), atol=1e-6)


@pytest.mark.thorough
def test_a_recurrent_network_takes_any_length() -> None:
    """torch's exporter notes the example's length behind a GRU, and the run-time would believe it."""
    torch.manual_seed(0)
    module = nn.GRU(8, 16, bidirectional=True).eval()
    x = torch.randn(5, 4, 8)
    first, _ = named(outputs(loaded(lambda: module), x)).values()
    with torch.no_grad():
        np.testing.assert_allclose(first, module(x)[0].numpy(), atol=1e-5)


def test_what_cannot_be_exported_is_unsupported_in_the_exporters_words() -> None:
    class Branching(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return x if float(x.sum()) > 0 else -x

    with pytest.raises(Unsupported, match=r"^torch\.onnx cannot export the model: \w+: \S.+$") as raised:
        analyzed(Branching, 2, 4)
    assert "\n" not in str(raised.value)
    called = Inputs((TensorSpec((2, 4)),), forward=lambda m, x: m(x))
    with pytest.raises(Unsupported, match="more than calling it cannot be exported"):
        OnnxruntimeBackend().analyze(nn.Identity, called, None, DEFAULTS)


# Times and operators


@pytest.mark.slow
def test_layer_times_are_at_the_rows_of_the_table(found: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiler, "MOST_ATTEMPTS", 1)  # a busy machine takes no more steps than an idle one
    counts, _, model, inputs = found
    times = OnnxruntimeBackend().layer_times(model, Work(model.put(inputs)), SHORT)
    assert (times.mode, times.warmup, times.repeats, times.backward) == ("inference", 2, 7, None)
    table = counts.with_times(times)
    timed_rows = {row.path: row.forward_s for row in table.rows if row.forward_s is not None}
    assert timed_rows[ROOT] == pytest.approx(sum(row.forward_self_s or 0 for row in table.rows if row.call == 0))
    heavy = {row.path for row in table.rows if (row.macs or 0) > 0.05 * table.macs}
    assert heavy <= {call.path for call in times.calls}, "fused nodes are at their products"


def test_a_profiler_that_is_said_to_cost_more_than_the_nodes_took_leaves_no_row_without_time() -> None:
    nodes = [NodeRun("Relu", "act", None, 2e-6, 0, ()), NodeRun("Conv", "conv", None, 60e-6, 0, ())]
    types = {"act": "ReLU", "conv": "Conv2d"}
    calls = module_times([nodes, nodes], [80e-6, 90e-6], types, inside=101e-6, outside=3e-6)
    assert {call.path: min(call.forward) > 0 for call in calls} == {ROOT: True, "act": True, "conv": True}
    assert sum(call.forward[0] for call in calls) > 0.2 * 80e-6
    fair = module_times([nodes], [80e-6], types, inside=0.5e-6, outside=3e-6)
    assert {call.path: call.forward[0] for call in fair} == pytest.approx({ROOT: 12e-6, "act": 1.5e-6, "conv": 59.5e-6})


@pytest.mark.slow
def test_a_step_of_one_node_takes_what_its_layer_takes() -> None:
    """A product that lasts milliseconds: the profiler's own cost is nothing beside it, and nothing else runs."""
    module = nn.Sequential(nn.Linear(1024, 1024)).eval()
    model = loaded(lambda: module)
    times = OnnxruntimeBackend().layer_times(model, Work(model.put(Inputs((TensorSpec((512, 1024)),)))), SHORT)
    root, linear = times.seconds[0], dict(zip([c.path for c in times.calls], times.seconds, strict=True))["0"]
    assert linear.forward > 0.8 * root.forward
    assert 0 <= times.probe_s["inside"] <= times.probe_s["outside"] < profiler.MOST_S, "not more if a step stalls"


def test_operators_have_the_flops_of_the_exported_graph(found: Any) -> None:
    """Whatever the run-time has fused; and the trace has an event for each node."""
    counts, _, model, inputs = found
    seen = OnnxruntimeBackend().operators(model, Work(model.put(inputs)))
    assert (seen.mode, seen.steps, seen.flops_reason) == ("inference", 3, None)
    assert sum(row.flops or 0 for row in seen.rows) == counts.flops
    assert {row.path for row in seen.rows} <= {row.path for row in counts.rows}
    assert 0 < sum(row.self_s for row in seen.rows) <= seen.step_s
    events = json.loads(gzip.decompress(seen.files["trace.json.gz"]))
    nodes = [event for event in events if event["name"].endswith("_kernel_time")]
    assert len(nodes) == 5 * sum(row.calls for row in seen.rows), "2 steps for warming up and 3"


# Files


def test_a_file_that_wants_channels_last(tmp_path: Path) -> None:
    path = saved(tmp_path, [node("Neg", "x", "y")], {"x": (2, 4, 5, 3)}, {}, opset=17)
    model = OnnxruntimeBackend().load(lambda: OnnxFile(path, channels="last"), "cpu", 1)
    images = np.arange(2 * 3 * 4 * 5, dtype=np.float32).reshape(2, 3, 4, 5)
    np.testing.assert_array_equal(np.asarray(outputs(model, images)), -np.moveaxis(images, 1, -1))


def test_a_provider_that_is_not_there() -> None:
    with pytest.raises(Unsupported, match=r"this ONNX Runtime has no NoSuchProvider, only .*CPUExecutionProvider"):
        loaded(nn.ReLU, provider="NoSuchProvider")


def test_the_threads_of_a_session_are_what_is_told(tmp_path: Path) -> None:
    path = saved(tmp_path, [node("Neg", "x", "y")], {"x": floats(1)}, {}, opset=17)
    backend = OnnxruntimeBackend(threads=2)
    model = backend.load(lambda: OnnxFile(path), "cpu", None)
    assert backend.settings_in_effect() == backend.settings_in_effect(model) == {}, "there is no session yet"
    model.put(Inputs((floats(1),)))
    assert backend.settings_in_effect(model) == {"threads": 2, "inter-op threads": 1}


# Graphs for one batch size alone: made where there is no other, and given smaller batches too


@pytest.mark.thorough
def test_a_graph_for_one_batch_size_alone_is_made_for_that() -> None:
    """Where a forward makes a constant of the size."""

    class Fixed(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return x + torch.tensor([[float(i)] for i in range(x.shape[0])])

    model = loaded(Fixed)
    np.testing.assert_array_equal(np.asarray(outputs(model, torch.zeros(4, 1))), [[0], [1], [2], [3]])
    assert model.file.batch == 4


def test_a_smaller_batch_than_the_only_one_of_a_file_is_filled_up(tmp_path: Path) -> None:
    given = {"x": floats(4, 2), "state": floats(1, 4, 2), "bias": np.ones(2, np.float32)}
    nodes = [node("Add", "x state", "s"), node("Squeeze", "s first", "q"), node("Add", "q bias", "y")]
    path = saved(tmp_path, nodes, given, {"first": np.array([0])}, opset=17)
    model, random = loaded(lambda: OnnxFile(path)), np.random.default_rng(0)
    for batch in (4, 3, 1):
        x = random.standard_normal((batch, 2)).astype(np.float32)
        put = model.put(Inputs((x, x[None], given["bias"])))
        assert {name: tuple(value.shape()) for name, value in put.values.items()} == {
            n: v.shape for n, v in given.items()
        }
        assert put.rows == (None if batch == 4 else batch)
        np.testing.assert_allclose(np.asarray(outputs(model, x, x[None], given["bias"])), 2 * x + 1, atol=1e-6)
