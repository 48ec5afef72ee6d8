"""Models in a caller's hands on ONNX Runtime: counted like their twins in torch, stepped, timed and traced."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from torch import nn

from sweeprof import Profiler
from sweeprof.backends import named
from sweeprof.backends.onnxruntime import profiler
from sweeprof.backends.onnxruntime.adapter import OnnxruntimeBackend
from sweeprof.backends.onnxruntime.exporting import Exporter
from sweeprof.backends.onnxruntime.files import Exported, OnnxFile
from sweeprof.backends.onnxruntime.model import OnnxModel
from sweeprof.backends.torch.counting import count_layers
from sweeprof.counting.formulas import DEFAULTS
from sweeprof.errors import Unsupported
from sweeprof.measuring.inputs import Inputs, TensorSpec
from sweeprof.measuring.layer_timing import NodeRun, module_times
from sweeprof.measuring.training_config import TrainingConfig, Work
from sweeprof.results.layer_times import ROOT, LayerTimes
from sweeprof.results.layers import LayerTable
from sweeprof.results.observations import Operators
from sweeprof.results.record import Protocol

SHORT = Protocol(warmup_steps=2, warmup_s=0, min_samples=5, min_s=0, max_s=20)


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, activation="gelu")
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> Any:
        return self.head(self.encoder(x).mean(1))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(8, 16, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> Any:
        return self.head(self.rnn(x)[0][:, -1])


def zoo(name: str) -> Callable[[], Any]:
    built: Callable[[], Any] = import_module(f"sweeprof.zoo.{name}").torch_model
    return built


MODELS: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "lenet5": (zoo("lenet5"), (3, 1, 32, 32)),
    "mlp": (zoo("mlp"), (3, 1, 32, 32)),
    "digits_resnet": (zoo("digits_resnet"), (3, 1, 32, 32)),
    "transformer": (Transformer, (3, 16, 32)),
    "lstm": (Recurrent, (3, 5, 8)),
}


SLOW = ("mlp", "lstm")
NAMES = [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in MODELS]


class Sample:
    """A module, the file that was exported of it once, and the folder that it is in."""

    def __init__(self, name: str, stack: ExitStack) -> None:
        build, self.shape = MODELS[name]
        torch.manual_seed(0)
        self.module = build().eval()
        self.inputs = Inputs((TensorSpec(self.shape),))
        self.file: Exported = stack.enter_context(Exporter().converted(lambda: self.module, self.inputs, None))

    @property
    def backend(self) -> OnnxruntimeBackend:
        return OnnxruntimeBackend()

    def counted(self) -> LayerTable:
        from sweeprof.backends.onnxruntime.counting import count_file

        return count_file(self.file, [self.shape], {}, DEFAULTS)

    def loaded(self, backend: OnnxruntimeBackend | None = None) -> OnnxModel:
        """What runs the file that is there already; it tells no more than the file."""
        model: OnnxModel = (backend or self.backend).load(lambda: OnnxFile(self.file.path), "cpu", None)
        return model


@pytest.fixture(scope="module")
def sample() -> Iterator[Callable[[str], Sample]]:
    """Exports each model once, which takes a second or two."""
    made: dict[str, Sample] = {}
    with ExitStack() as stack:
        yield lambda name: made[name] if name in made else made.setdefault(name, Sample(name, stack))


@pytest.mark.parametrize("name", NAMES)
def test_counts_are_those_of_the_twin_in_torch(name: str, sample: Callable[[str], Sample]) -> None:
    """Row by row; what the graph does not have are dropouts, second outputs that nobody reads, and counters of batches."""
    found = sample(name)
    ours, twin = found.counted(), count_layers(found.module, found.inputs)
    assert (ours.uncovered, ours.coverage, ours.method) == ({}, 1.0, "shapes")
    for figure in ("macs", "flops", "ops", "params", "trainable", "params_bytes"):
        assert getattr(ours, figure) == getattr(twin, figure), figure
    counters = sum(name.endswith("num_batches_tracked") for name, _ in found.module.named_buffers())
    assert ours.buffers == twin.buffers - counters
    mine = {row.path: row for row in ours.rows}
    assert {row.path for row in twin.rows} == mine.keys()
    for row in twin.rows:
        own = mine[row.path]
        assert (own.type, own.depth) == (row.type, row.depth)
        assert (own.macs, own.flops, own.ops, own.params) == (row.macs, row.flops, row.ops, row.params), row.path
        if row.type not in ("LSTM", "MultiheadAttention", "Dropout", "ModuleList") and own.call == 0:
            assert (own.input_shapes, own.output_shapes) == (row.input_shapes, row.output_shapes)
            assert (own.act_bytes, own.output_dtypes) == (row.act_bytes, row.output_dtypes)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("batch", [1, 5])
def test_outputs_are_those_of_torch_whatever_the_batch(name: str, batch: int, sample: Callable[[str], Sample]) -> None:
    found = sample(name)
    x = torch.randn(batch, *found.shape[1:], generator=torch.Generator().manual_seed(0))
    model = found.loaded()
    with model.stepping(model.put(Inputs((x,)))) as step, torch.no_grad():
        first, again = np.asarray(model.host_outputs(step())), np.asarray(model.host_outputs(step()))
        np.testing.assert_allclose(first, found.module(x).numpy(), atol=1e-5)
    np.testing.assert_array_equal(first, again)
    assert found.file.batch is None


@pytest.mark.parametrize("optimization", ["disabled", "basic", "extended", "layout"])
def test_no_optimization_changes_the_outputs(optimization: Any, sample: Callable[[str], Sample]) -> None:
    found = sample("digits_resnet")
    model = found.loaded(OnnxruntimeBackend(optimization=optimization, threads=2, arena=False))
    x = torch.randn(2, 1, 32, 32)
    with model.stepping(model.put(Inputs((x,)))) as step, torch.no_grad():
        np.testing.assert_allclose(np.asarray(model.host_outputs(step())), found.module(x).numpy(), atol=1e-4)


def test_the_model_is_left_as_it_was(sample: Callable[[str], Sample]) -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    module[0].eval()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    table = OnnxruntimeBackend().analyze(lambda: module, Inputs((TensorSpec((2, 4)),)), None, DEFAULTS)
    assert [inner.training for inner in module.modules()] == [True, False, True]
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert (table.macs, table.rows[0].type) == (32, "Sequential")
    assert [(row.path, row.call) for row in table.rows] == [(ROOT, 0), ("0", 0), ("1", -1)], (
        "dropout is not in the graph"
    )


def test_frozen_parameters_and_shared_ones() -> None:
    module = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False), nn.Linear(4, 2))
    module[1].weight = module[0].weight
    module[2].requires_grad_(False)
    table = OnnxruntimeBackend().analyze(module.eval, Inputs((TensorSpec((2, 4)),)), None, DEFAULTS)
    assert (table.params, table.trainable, table.macs) == (16 + 10, 16, 2 * (16 + 16 + 8))


def test_keywords_and_constants_among_the_arguments() -> None:
    class Scaled(nn.Module):
        def forward(self, x: torch.Tensor, other: torch.Tensor, k: int = 1) -> Any:
            return x @ other * k

    model = OnnxruntimeBackend().load(Scaled, "cpu", None)
    x, other = torch.randn(3, 4), torch.randn(4, 2)
    inputs = Inputs((x,), {"other": other, "k": 3})
    with model.stepping(model.put(inputs)) as step:
        np.testing.assert_allclose(np.asarray(model.host_outputs(step())), (x @ other * 3).numpy(), atol=1e-6)
    with pytest.raises(Unsupported, match="the graph takes x, other, and 1 tensors are given"):
        model.put(Inputs((x,)))


@pytest.mark.slow
def test_a_recurrent_network_takes_any_length() -> None:
    """torch's exporter notes the example's length behind a GRU, and the run-time would believe it."""
    torch.manual_seed(0)
    module = nn.GRU(8, 16, bidirectional=True).eval()
    x = torch.randn(5, 4, 8)
    model = OnnxruntimeBackend().load(lambda: module, "cpu", None)
    with model.stepping(model.put(Inputs((x,)))) as step, torch.no_grad():
        first, _ = named(model.host_outputs(step())).values()
        np.testing.assert_allclose(first, module(x)[0].numpy(), atol=1e-5)


def test_what_cannot_be_exported_is_unsupported_in_the_exporters_words() -> None:
    class Branching(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return x if float(x.sum()) > 0 else -x

    with pytest.raises(Unsupported, match=r"^torch\.onnx cannot export the model: \w+: \S.+$") as raised:
        OnnxruntimeBackend().analyze(Branching, Inputs((TensorSpec((2, 4)),)), None, DEFAULTS)
    assert "\n" not in str(raised.value)
    with pytest.raises(TypeError, match="the model's builder returned a str"):
        OnnxruntimeBackend().analyze(lambda: "nothing", Inputs((TensorSpec((2, 4)),)), None, DEFAULTS)
    with pytest.raises(Unsupported, match="more than calling it cannot be exported"):
        OnnxruntimeBackend().analyze(
            nn.Identity, Inputs((TensorSpec((2, 4)),), forward=lambda m, x: m(x)), None, DEFAULTS
        )


def exported(found: Sample) -> OnnxModel:
    """With all that the export knew."""
    return OnnxModel(lambda *_: nullcontext(found.file), OnnxruntimeBackend().session_settings("cpu"), None)


def timed(found: Sample) -> LayerTimes:
    model = exported(found)
    return OnnxruntimeBackend().layer_times(model, Work(model.put(found.inputs)), SHORT)


@pytest.mark.parametrize("name", ["digits_resnet", "transformer"])
def test_layer_times_are_at_the_rows_of_the_table(
    name: str, sample: Callable[[str], Sample], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profiler, "MOST_ATTEMPTS", 1)  # a busy machine takes no more steps than an idle one
    found = sample(name)
    times = timed(found)
    assert (times.mode, times.warmup, times.backward) == ("inference", 2, None)
    assert times.repeats == len(times.forward.plain) == len(times.forward.probed) == 7
    assert set(times.probe_s) == {"inside", "outside"}
    assert all(seconds >= 0 for seconds in times.probe_s.values())
    assert times.calls[0].path == ROOT
    assert all(value >= 0 for call in times.calls for value in call.forward)
    assert all((call.parent is None) == (call.path == ROOT) for call in times.calls)
    table = found.counted().with_times(times)
    assert table.timing is not None
    assert table.timing.unplaced == ()
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


def test_a_step_of_one_node_takes_what_its_layer_takes() -> None:
    """A product that lasts milliseconds: the profiler's own cost is nothing beside it, and nothing else runs."""
    module = nn.Sequential(nn.Linear(1024, 1024)).eval()
    model = OnnxruntimeBackend().load(lambda: module, "cpu", None)
    times = OnnxruntimeBackend().layer_times(model, Work(model.put(Inputs((TensorSpec((512, 1024)),)))), SHORT)
    root, linear = times.seconds[0], dict(zip([c.path for c in times.calls], times.seconds, strict=True))["0"]
    assert linear.forward > 0.8 * root.forward
    assert 0 <= times.probe_s["inside"] <= times.probe_s["outside"] < profiler.MOST_S, "not more if a step stalls"


def test_operators_have_the_flops_of_the_exported_graph(sample: Callable[[str], Sample]) -> None:
    """Whatever the run-time has fused; and the trace has an event for each node."""
    for name in ("digits_resnet", "transformer", "lenet5"):
        found = sample(name)
        model = exported(found)
        seen = OnnxruntimeBackend().operators(model, Work(model.put(found.inputs)))
        assert (seen.mode, seen.steps, seen.flops_reason) == ("inference", 3, None)
        assert sum(row.flops or 0 for row in seen.rows) == found.counted().flops
        assert {row.path for row in seen.rows} <= {row.path for row in found.counted().rows}
        assert 0 < sum(row.self_s for row in seen.rows) <= seen.step_s
        assert Operators.from_dict(json.loads(json.dumps(seen.to_dict()))) == replace(seen, files={})
        events = json.loads(gzip.decompress(seen.files["trace.json.gz"]))
        nodes = [event for event in events if event["name"].endswith("_kernel_time")]
        assert len(nodes) == 5 * sum(row.calls for row in seen.rows), "2 steps for warming up and 3"


def test_training_makes_no_sense(sample: Callable[[str], Sample]) -> None:
    model = sample("lenet5").loaded()
    work = Work(model.put(sample("lenet5").inputs), None, TrainingConfig())
    for ask in (
        lambda: OnnxruntimeBackend().layer_times(model, work, SHORT),
        lambda: OnnxruntimeBackend().operators(model, work),
    ):
        with pytest.raises(Unsupported, match="makes no sense: ONNX Runtime runs models, and trains none"):
            ask()


@pytest.mark.slow
def test_the_library_takes_it_by_name(sample: Callable[[str], Sample]) -> None:
    profiler = Profiler(sample("mlp").module, inputs=sample("mlp").inputs, backend="onnxruntime", protocol=SHORT)
    assert profiler.compute("compute/macs").value == 3 * 139_904
    assert profiler.layers.rows[1].type == "Flatten"
    size = profiler.compute("size/artifact_bytes").value or 0
    assert 4 * 140_106 < size < 1.1 * 4 * 140_106


def test_a_file_is_run_as_it_is(sample: Callable[[str], Sample]) -> None:
    """An exported one, but without what the export knew: paths come from nowhere, so that everything is the root's."""
    found = sample("digits_resnet")
    backend = OnnxruntimeBackend()
    backend.expect(found.inputs)
    build = lambda: OnnxFile(found.file.path)  # noqa: E731
    table = backend.analyze(build, found.inputs, 1, DEFAULTS)
    assert (table.macs, table.params, table.buffers) == (36_620_160, 77_754, 672)
    assert backend.artifact(build, 1).bytes == Path(found.file.path).stat().st_size
    assert backend.artifact(build, 1).format == "onnx"


def test_a_file_that_wants_channels_last(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4, 5, 3])
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4, 5, 3])
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "negative", [value], [result])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    model = OnnxruntimeBackend().load(lambda: OnnxFile(str(path), channels="last"), "cpu", 1)
    images = np.arange(2 * 3 * 4 * 5, dtype=np.float32).reshape(2, 3, 4, 5)
    with model.stepping(model.put(Inputs((images,)))) as step:
        np.testing.assert_array_equal(np.asarray(model.host_outputs(step())), -np.moveaxis(images, 1, -1))


def test_a_provider_that_is_not_there() -> None:
    with pytest.raises(Unsupported, match=r"this ONNX Runtime has no NoSuchProvider, only .*CPUExecutionProvider"):
        OnnxruntimeBackend(provider="NoSuchProvider").load(nn.ReLU, "cpu", None)


def test_running_out_of_memory() -> None:
    backend = OnnxruntimeBackend()
    assert backend.is_out_of_memory(MemoryError())
    assert backend.is_out_of_memory(RuntimeError("Failed to allocate memory for requested buffer of size 1"))
    assert not backend.is_out_of_memory(RuntimeError("no luck"))


def test_the_threads_of_a_session_are_what_is_told(tmp_path: Path) -> None:
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "one", ends[:1], ends[1:])
    path = str(tmp_path / "one.onnx")
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    backend = OnnxruntimeBackend(threads=2)
    model = backend.load(lambda: OnnxFile(path), "cpu", None)
    assert backend.settings_in_effect() == backend.settings_in_effect(model) == {}, "there is no session yet"
    model.put(Inputs((np.ones(1, np.float32),)))
    assert backend.settings_in_effect(model) == {"threads": 2, "inter-op threads": 1}
