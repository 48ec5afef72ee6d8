"""Figures of other profilers by layer and by type, and the rows of what modules do outside their submodules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import sweeprof
from support.peer_models import LeNet5, ResNet18C100
from sweeprof.metrics.metric import builtin_metrics
from sweeprof.profiling.layers import Layers

MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "lenet5": (LeNet5, (1, 1, 32, 32)),
    "resnet18": (ResNet18C100, (2, 3, 32, 32)),
    "encoder": (lambda: nn.TransformerEncoderLayer(32, 4, batch_first=True), (2, 5, 32)),
    "lstm": (lambda: nn.LSTM(8, 8), (5, 2, 8)),
}
CONVENTIONS = sorted(
    name.removeprefix("compat/")
    for name, metric in builtin_metrics().items()
    if name.startswith("compat/") and "layers" in metric.reads
)


def layers_of(name: str) -> Layers:
    make, shape = MODELS[name]
    return sweeprof.profile(make().eval(), shape).layers


def test_the_published_figures_of_lenet5() -> None:
    figures = layers_of("lenet5").compat("f1")
    assert [value for _, value in figures.rows if value] == [122_304, 4_704, 241_600, 1_600, 48_120, 10_080, 840]
    assert list(figures.by_type().items())[:3] == [("Conv2d", 412_024), ("Linear", 10_920), ("AvgPool2d", 6_304)]
    assert round(100 * figures.within("feature_extractor") / figures.total, 3) == 97.456
    assert "122.3 KMACs" in str(figures)
    frame = figures.to_frame()
    assert frame["compat/f1"].sum() == 429_248
    assert frame["share"].sum() == pytest.approx(1)


@pytest.mark.parametrize("model", MODELS)
def test_figures_by_layer_add_up_to_the_metric(model: str) -> None:
    make, shape = MODELS[model]
    profile = sweeprof.profile(make().eval(), shape, [f"compat/{name}" for name in CONVENTIONS])
    for name in CONVENTIONS:
        figures = profile.layers.compat(name)
        assert sum(value for _, value in figures.rows) + figures.rest == pytest.approx(figures.total, rel=1e-12)
        assert figures.total == profile[f"compat/{name}"].value


def test_a_module_that_is_called_twice_counts_as_its_profiler_counts_it() -> None:
    layer = nn.Linear(8, 8)
    layers = sweeprof.profile(nn.Sequential(layer, layer, nn.Linear(8, 8)), (1, 8)).layers
    assert [value for _, value in layers.compat("f1").rows] == [0, 0, 64, 64]  # the last call of each module
    assert [value for _, value in layers.compat("f2").rows] == [0, 64, 64, 64]


def test_a_convention_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(sweeprof.UserError, match="ptflops"):
        layers_of("lenet5").compat("ptflop")
    with pytest.raises(sweeprof.UserError, match="feature_extractor"):
        layers_of("lenet5").compat("f1").within("feature_extracter")


def test_what_a_module_does_outside_its_submodules() -> None:
    layers = layers_of("resnet18")
    split = Layers.of(layers.with_functional())
    for name in ("macs", "flops", "ops", "params", "act_bytes", "buffers"):
        assert getattr(split, name) == getattr(layers, name)
    block = next(row for row in split.rows if row.path == "layer1.0.(functional)")
    assert {operator.name for operator in block.operators} == {"add", "relu"}
    assert block.flops == 2 * 3 * 64 * 32 * 32  # an addition and two activations
    assert next(row for row in split.rows if row.path == "layer1.0").flops == 0
    whole = {row.path: row for row in split.inclusive().rows if row.type != "(functional)"}
    assert {path: row.flops for path, row in whole.items()} == {row.path: row.flops for row in layers.inclusive().rows}
    assert "├─(functional)" in split.tree(depth=1)
    assert next(flops for kind, flops, _ in split.by_type(column="flops") if kind == "(functional)")


def test_a_table_without_functional_operators_stays_as_it_is() -> None:
    layers = sweeprof.profile(nn.Sequential(nn.Linear(8, 8), nn.ReLU()), (1, 8)).layers
    assert layers.with_functional().rows == layers.rows
    with pytest.raises(ValueError, match="inclusive"):
        layers.inclusive().with_functional()


def test_operators_of_a_module_with_those_of_the_modules_within_it() -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

        def forward(self, x: torch.Tensor) -> Any:
            q, k, v = (block(x) for block in self.blocks)
            return (q @ k.transpose(-1, -2)).softmax(-1) @ v

    whole = {row.path: row for row in sweeprof.profile(Attention(), (2, 4, 8)).layers.inclusive().rows}
    calls = {operator.name: operator.calls for operator in whole["__root__"].operators}
    assert calls == {"matmul": 2, "softmax": 1, "linear": 3}
    macs = {operator.name: operator.macs for operator in whole["__root__"].operators}
    assert macs == {"matmul": 2 * 2 * 4 * 4 * 8, "softmax": 0, "linear": 3 * 2 * 4 * 8 * 8}
    assert [(operator.name, operator.calls) for operator in whole["blocks"].operators] == [("linear", 3)]


@pytest.mark.parametrize("chosen", [{"exclude": "layer1.*.conv1"}, {"include": ["conv1", "Linear"]}])
def test_figures_of_the_modules_that_are_counted(chosen: dict[str, Any]) -> None:
    profile = sweeprof.profile(ResNet18C100().eval(), (1, 3, 32, 32), ["compat/ptflops"], **chosen)
    figures = profile.layers.compat("ptflops")
    assert figures.total == profile["compat/ptflops"].value == sum(value for _, value in figures.rows) + figures.rest
    assert profile.layers.with_functional().macs == profile.layers.macs
