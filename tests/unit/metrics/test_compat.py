"""Other profilers' published conventions, against what the profilers themselves reported."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from support.peer_models import MODELS, LeNet5, ResNet18C100, SingleInputNet, toy
from sweeprof.backends.torch.counting import count_layers
from sweeprof.measuring.inputs import Inputs, TensorSpec
from sweeprof.metrics import compat
from sweeprof.metrics.compat import KINDS
from sweeprof.metrics.metric import Metric, Missing
from sweeprof.results.layer_times import ROOT
from sweeprof.results.layers import LayerRow, LayerTable

PEERS: dict[str, dict[str, int]] = json.loads((Path(__file__).parents[2] / "golden" / "peers.json").read_text())
"""Model → convention → what the profiler reported (tests/published/README.md says which releases)."""

DIFFERENT: dict[tuple[str, str], tuple[int, str]] = {
    ("conv_transpose_4_6", "d1"): (26_112, "it counts output positions, which a transposed convolution does not have"),
    ("conv_transpose_4_6", "d2"): (26_112, "the same"),
    ("conv_transpose_4_6", "f1"): (26_112, "it takes the input's channels for the output's, and a convolution's size"),
    ("conv_transpose_4_6", "moduleprofiler"): (49_152, "it counts output positions"),
    ("conv_transpose_4_6", "torchinfo"): (26_112, "it counts output positions"),
    ("functional_net", "d1_footprint_bytes"): (25_568, "it misses parameters of LayerNorm and of the model itself"),
    ("functional_net", "d2"): (72_576, "it misses einsum"),
    ("functional_net", "f2"): (65_536, "it misses @ and einsum"),
    ("functional_net", "f2_flops"): (143_232, "it misses @ and torch.softmax, and counts torch.add and upsampling"),
    ("functional_net", "ptflops"): (80_640, "it misses @, einsum and torch.softmax, and counts torch.add"),
    ("lstm_2l_bidir", "d1_footprint_bytes"): (40_912, "it misses the LSTM's parameters"),
    ("lstm_2l_bidir", "f2"): (46_720, "it has no MACs for the LSTM"),
    ("lstm_2l_bidir", "f2_flops"): (100_160, "it counts the LSTM's MACs as FLOPs"),
    ("encoder_layer", "d1_footprint_bytes"): (49_536, "it misses parameters of attention and LayerNorm"),
    ("encoder_layer", "d2"): (83_200, "its trace has four multiplications of scalars"),
    ("encoder_layer", "f2"): (81_920, "torch's fused layer hid the projections from it"),
    ("encoder_layer", "f2_flops"): (167_680, "the same"),
    ("encoder_layer", "ptflops"): (92_560, "the layer holds relu from before ptflops replaced it"),
}
"""Where a figure differs from the profiler's: ours, and what the profiler does wrong or otherwise."""


def value(name: str, table: LayerTable, **options: Any) -> Any:
    metric: Metric = getattr(compat, name)
    return metric({"layers": table}, **options)


def counted(module: nn.Module, *shapes: tuple[int, ...], training: bool = False) -> LayerTable:
    table = count_layers(module.train(training), Inputs(tuple(TensorSpec(shape) for shape in shapes)))
    assert not table.uncovered
    return table


def model(name: str) -> LayerTable:
    make, shape = MODELS[name]
    return counted(make(), shape)


@pytest.mark.parametrize(("name", "peer"), [(name, peer) for name, peers in PEERS.items() for peer in peers])
def test_a_convention_gives_what_its_profiler_reported(name: str, peer: str) -> None:
    ours = value(peer, model(name))
    if (name, peer) in DIFFERENT:
        assert (ours, ours != PEERS[name][peer]) == (DIFFERENT[name, peer][0], True)
    else:
        assert ours == PEERS[name][peer]


def four_convolutions() -> nn.Module:
    return nn.Sequential(*(nn.Conv2d(3, 3, 3, padding=1) for _ in range(4)))


@pytest.mark.parametrize(
    ("make", "shape", "name", "expected"),
    [
        (LeNet5, (1024, 1, 32, 32), "f2", 426_516_480),
        (toy, (1, 3, 32, 32), "d1_footprint_bytes", 0.33349609375 * 2**20),
        (toy, (1, 3, 32, 32), "d1", 2_555_904),
        (toy, (1, 3, 32, 32), "d2", 2_555_904),
        (SingleInputNet, (7, 1, 28, 28), "torchinfo", 3_413_200),
        (SingleInputNet, (7, 1, 28, 28), "f2", 3_363_500),
        (four_convolutions, (1, 3, 224, 224), "f2", 16_257_024),
        (four_convolutions, (1, 3, 224, 224), "f1", 16_257_024 + 602_112),
        (lambda: nn.Linear(8, 32), (4, 8), "d1", 264),
        (lambda: nn.Linear(8, 32), (1, 8), "d1", 288),
        (lambda: nn.Linear(8, 32, bias=False), (1, 8), "moduleprofiler", 480),
        (lambda: nn.Linear(4, 8), (2, 3, 4), "moduleprofiler", 384),
        (lambda: nn.Conv1d(2, 4, 2), (8, 2, 9), "moduleprofiler", 2_048),
        (lambda: nn.Conv2d(2, 4, 2, groups=2, bias=False), (8, 2, 8, 8), "moduleprofiler", 10_976),
        (lambda: nn.GRU(8, 16), (5, 4, 8), "moduleprofiler", 52_800),
        (lambda: nn.LSTM(8, 16, bidirectional=True), (5, 4, 8), "moduleprofiler", 142_720),
    ],
)
def test_a_published_figure(make: Callable[[], nn.Module], shape: tuple[int, ...], name: str, expected: float) -> None:
    assert value(name, counted(make(), shape)) == expected


@pytest.mark.parametrize(
    ("module_relu", "weights", "mib"), [(False, True, "48.4389"), (True, True, "49.6264"), (False, False, "5.6375")]
)
def test_the_footprint_that_deeplite_published(module_relu: bool, weights: bool, mib: str) -> None:
    found = value("d1_footprint_bytes", counted(ResNet18C100(module_relu), (1, 3, 32, 32)), include_weights=weights)
    assert isinstance(found, int)
    assert f"{found / 2**20:.4f}" == mib


def test_deeplite_counts_per_sample() -> None:
    one, eight = (counted(ResNet18C100(), (batch, 3, 32, 32)) for batch in (1, 8))
    assert value("d1", eight) == 556_697_600 + 100 / 8  # a linear layer's bias once a call
    assert value("d2", eight) == 8 * 557_255_168
    weights = 4 * one.trainable
    per_sample = [
        value("d1_footprint_bytes", table) - weights - 4 * batch * 3072 for table, batch in ((one, 1), (eight, 8))
    ]
    assert per_sample[0] == per_sample[1]


def test_a_shared_module_counts_once_a_call() -> None:
    shared = nn.Linear(100, 100)
    table = counted(nn.Sequential(*(nn.Sequential(shared) for _ in range(3))), (1, 100))
    assert [value(name, table) for name in ("f2", "torchinfo", "ptflops")] == [30_000, 30_300, 30_300]


def test_a_module_called_twice_has_two_calls_and_deeplite_sees_the_last() -> None:
    linear = nn.Linear(4, 4)
    table = counted(nn.Sequential(linear, linear), (1, 4))
    assert [value(name, table) for name in ("f2", "torchinfo", "d1", "f1", "moduleprofiler")] == [32, 40, 20, 16, 32]


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("affine", [False, True])
def test_batch_norm(training: bool, affine: bool) -> None:
    table = counted(nn.BatchNorm2d(6, affine=affine), (2, 6, 4, 4), training=training)
    elements = 2 * 6 * 4 * 4
    assert value("f2_flops", table) == ((4 if training else 1) + affine) * elements
    assert value("d1", table) == (1 + affine) * elements / 2
    assert value("d2", table) == (elements if affine else 0)
    assert value("f1", table) == 2 * elements
    assert value("moduleprofiler", table) == (7 if affine else 5) * elements + 4 * 6


GATED = {"RNN": (nn.RNN, 1, 1), "GRU": (nn.GRU, 3, 7), "LSTM": (nn.LSTM, 4, 10)}


@pytest.mark.parametrize("kind", GATED)
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("bias", [False, True])
def test_recurrent_networks(kind: str, layers: int, bias: bool) -> None:
    make, gates, each = GATED[kind]
    table = counted(make(8, 16, num_layers=layers, bias=bias), (5, 3, 8))
    weights = gates * 16 * (8 + 16 + (layers - 1) * 32)
    biases = 2 * gates * 16 * layers if bias else 0
    counted_by_both = 15 * (weights + biases + each * 16 * layers)
    assert value("f1", table) == counted_by_both
    assert value("ptflops", table) == counted_by_both / 5
    assert value("f2", table) == 15 * weights


@pytest.mark.parametrize(("mode", "d2"), [("nearest", 0), ("bilinear", 4 * 384)])
def test_upsampling(mode: str, d2: int) -> None:
    table = counted(nn.Upsample(scale_factor=2, mode=mode), (2, 3, 4, 4))
    names = ("d1", "d2", "f1", "f2_flops", "ptflops")
    assert [value(name, table) for name in names] == [192, d2, 96, 384, 192 + 384]


def test_a_backend_that_tells_no_operators_has_no_conventions() -> None:
    table = LayerTable((LayerRow(ROOT, "Dense", 0, 0, 10, 10, 40, 0, 100),))
    missing = value("f1", table)
    assert isinstance(missing, Missing)
    assert "operators" in missing.reason


def test_a_forward_for_real_gives_the_same() -> None:
    """Its operators have other names, because autograd takes them apart."""

    class Asking(LeNet5):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) if bool(x.sum() < 1e9) else x

    table = counted(Asking(), (1, 1, 32, 32))
    assert table.method.startswith("real forward")
    ours = {name: value(name, table) for name in PEERS["lenet5"]}
    assert ours == PEERS["lenet5"]


def test_names_of_operators_are_those_of_the_count() -> None:
    from sweeprof.backends.torch.costs import COSTS

    unknown = [name for name in KINDS if f"aten::{name}" not in COSTS]
    assert unknown == []
