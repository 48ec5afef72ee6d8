"""Counts of torch modules and models by hand, and the rows and columns of their tables.

Some figures are those that other profilers publish, or ought to have published where they were wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import prune as untyped_prune

import sweeprof
from support.nets import LeNet5
from support.peer_models import ResNet18C100, SingleInputNet, toy
from support.timed_layers import MyNet
from support.torch_modules import Applied, Functional, Twice, counted, figures, resnet
from sweeprof.backends.torch.counting import count_layers
from sweeprof.backends.torch.model import copied_to_meta
from sweeprof.measuring.inputs import Inputs, TensorSpec
from sweeprof.results.layer_times import ROOT
from sweeprof.results.layers import LayerRow, LayerTable

MIB = 2**20
prune: Any = untyped_prune


def row(table: LayerTable, path: str, call: int = 0) -> LayerRow:
    (found,) = [r for r in table.rows if (r.path, r.call) == (path, call)]
    return found


def on_meta(build: Callable[[], nn.Module]) -> nn.Module:
    with torch.device("meta"):
        return build().eval()


# Numbers by hand


LAYERS: list[tuple[nn.Module, list[Any], int, int, int]] = [
    # module, inputs, MACs, FLOPs, textbook operations
    (nn.Linear(8, 32), [(1, 8)], 256, 544, 512),
    (nn.Linear(8, 32, bias=False), [(1, 8)], 256, 512, 480),
    (Twice(nn.Linear(4, 4)), [(1, 4)], 32, 72, 64),
    (nn.Bilinear(3, 4, 5), [(2, 3), (2, 4)], 160, 330, 280),
    (nn.Conv1d(2, 4, 2), [(8, 2, 9)], 1_024, 2_304, 2_048),
    (nn.Conv2d(3, 6, (3, 5), (2, 1), (1, 2)), [(2, 3, 9, 9)], 24_300, 49_140, 48_600),
    (nn.Conv2d(4, 8, 3, groups=4), [(1, 4, 8, 8)], 2_592, 5_472, 5_184),  # depthwise, two for each channel
    (nn.Conv3d(2, 3, 2), [(2, 2, 4, 5, 6)], 5_760, 11_880, 11_520),
    (nn.ConvTranspose2d(4, 6, 4, 2, 1, output_padding=1), [(2, 4, 8, 8)], 49_152, 101_772, 98_304),
    (nn.GRU(8, 16, num_layers=2), [(5, 4, 8)], 53_760, 118_400, 120_960),
    (nn.LSTM(8, 16, bidirectional=True), [(5, 4, 8)], 61_440, 136_320, 142_720),
    (nn.LSTMCell(8, 16, bias=False), [(4, 8)], 6_144, 13_120, 13_760),
    (Functional(functional.scaled_dot_product_attention), [(2, 2, 16, 8)] * 3, 16_384, 34_816, 36_288),
    (nn.EmbeddingBag(5, 3, mode="sum"), [TensorSpec((2, 4), "int64")], 0, 24, 18),
    (nn.Softmax(), [(2, 8)], 0, 16, 62),  # the axis is chosen by torch
    (nn.AdaptiveMaxPool2d(2), [(1, 1, 4, 4)], 0, 16, 4),
    (nn.BatchNorm1d(3), [(4, 3)], 0, 60, 96),
    (nn.BatchNorm1d(3).eval(), [(4, 3)], 0, 24, 54),
]


@pytest.mark.filterwarnings("ignore:Implicit dimension choice")
@pytest.mark.parametrize(
    ("module", "given", "macs", "flops", "ops"), LAYERS, ids=[f"{case[0]} {case[1]}" for case in LAYERS]
)
def test_a_layer_by_hand(module: nn.Module, given: list[Any], macs: int, flops: int, ops: int) -> None:
    table = counted(module, *given)
    assert figures(table) == (macs, flops, ops)
    assert type(table.ops) is int
    assert table.params == sum(parameter.numel() for parameter in module.parameters())
    assert counted(module.train(not module.training), *given).macs == macs
    module.train(not module.training)


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int, int]] = {
    # input, parameters, MACs
    "LeNet-5": (LeNet5, (1, 1, 32, 32), 61_706, 416_520),
    "toy": (toy, (1, 3, 32, 32), 2_432, 2_457_600),
    "torchnnprofiler's MyNet": (MyNet, (16, 10), 707, 10_304),
    "torchinfo's SingleInputNet": (SingleInputNet, (7, 1, 28, 28), 21_840, 3_363_500),
    "ResNet-18 of CIFAR-100": (ResNet18C100, (1, 3, 32, 32), 11_220_132, 555_468_800),
    "ResNet-18": (lambda: resnet([2, 2, 2, 2], 1000), (1, 3, 224, 224), 11_689_512, 1_814_073_344),
    "far larger than the machine": (lambda: nn.Linear(10**6, 10**7, bias=False), (1, 10**6), 10**13, 10**13),
}


@pytest.mark.parametrize(("build", "shape", "params", "macs"), MODELS.values(), ids=MODELS)
def test_a_model_by_hand(build: Callable[[], nn.Module], shape: tuple[int, ...], params: int, macs: int) -> None:
    table = counted(on_meta(build), shape)
    assert (table.params, table.params_bytes, table.macs) == (params, 4 * params, macs)


def test_layers_flops_and_operations_of_lenet5() -> None:
    """flops-profiler prints 845,778 FLOPs; ours adds what it leaves out, the biases of the linear layers and tanh."""
    table = counted(LeNet5().eval(), (1, 1, 32, 32))
    assert [(found.type, found.macs, found.params) for found in table.rows if found.params] == [
        ("Conv2d", 117_600, 156),
        ("Conv2d", 240_000, 2_416),
        ("Conv2d", 48_000, 48_120),
        ("Linear", 10_080, 10_164),
        ("Linear", 840, 850),
    ]
    assert table.where(lambda found: found.type != "Conv2d").macs == 10_080 + 840
    products, conv_biases, pooled, softmax = 2 * 416_520, 4_704 + 1_600 + 120, 4_704 + 1_600, 10
    assert products + conv_biases + pooled + softmax == 845_778
    linear_biases, tanh = 84 + 10, 4_704 + 1_600 + 120 + 84
    assert table.flops == 845_778 + linear_biases + tanh == 852_380
    # With a bias a sum of n products takes n additions; a window of 4 as many; tanh 7; softmax 4n - 1.
    assert table.ops == products + 4 * (6 * 14 * 14 + 16 * 5 * 5) + 7 * tanh + 39


def test_flops_of_resnet18_of_cifar100() -> None:
    table = counted(on_meta(ResNet18C100), (1, 3, 32, 32))
    norms, activations, added, pooled, bias = 614_400, 557_056, 245_760, 4 * 4 * 512, 100
    assert activations == 32 * 32 * 64 * 5 + 16 * 16 * 128 * 4 + 8 * 8 * 256 * 4 + 4 * 4 * 512 * 4
    assert table.flops == 2 * 555_468_800 + 2 * norms + activations + added + pooled + bias
    assert (round(table.params_bytes / MIB, 4), table.buffers) == (42.8014, 9_620)


def test_activations_and_live_bytes_of_a_small_network() -> None:
    table: Any = counted(toy(), (1, 3, 32, 32))
    assert (table.liveness.peak_bytes, table.liveness.input_bytes) == (MIB // 4, 4 * 3 * 32 * 32)
    conv, relu, pool, flat = 4 * 32 * 32 * 32, 4 * 32 * 32 * 32, 4 * 32 * 16 * 16, 4 * 32 * 16 * 16
    assert table.act_bytes == conv + relu + pool + flat
    assert table.params_bytes / MIB == 0.00927734375


@pytest.mark.parametrize(
    ("function", "copied"),
    [
        (lambda made: made.reshape(-1), 0),
        (lambda made: made.t().reshape(-1), 25_600),
        (lambda made: made.t().contiguous(), 25_600),
        (lambda made: made.to(torch.float64), 51_200),
    ],
)
def test_memory_of_a_result_that_is_a_view_or_a_copy(
    function: Callable[[torch.Tensor], torch.Tensor], copied: int
) -> None:
    """In inference mode torch runs these as operators whose schema says that the result is a view."""

    def forward(module: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        made = module.layer(x)  # (100, 64), 25,600 bytes
        return made, function(made)

    table: Any = counted(Applied(forward, layer=nn.Linear(64, 64)), (100, 64))
    assert table.liveness.peak_bytes == 25_600 + copied


# Parameters and rows


def test_a_row_has_parameters_bytes_and_shapes() -> None:
    table = counted(nn.Linear(8, 32), (1, 8))
    assert (table.params, table.trainable, table.params_bytes) == (288, 288, 1_152)
    (only,) = table.rows
    assert (only.path, only.type, only.depth, only.call) == (ROOT, "Linear", 0, 0)
    assert (only.input_shapes, only.output_shapes) == (((1, 8),), ((1, 32),))


def test_shapes_of_recurrent_networks() -> None:
    (lstm,) = counted(nn.LSTM(8, 16).eval(), (5, 4, 8)).rows
    assert lstm.output_shapes == ((5, 4, 16), (1, 4, 16), (1, 4, 16))
    (cell,) = counted(nn.GRUCell(8, 16), (4, 8)).rows
    assert (cell.input_shapes, cell.output_shapes) == (((4, 8),), ((4, 16),))


def test_mixed_types_are_each_counted_in_their_own_bytes() -> None:
    module = nn.Sequential(nn.Linear(2, 2), Functional(torch.Tensor.half), nn.Linear(2, 2).half())
    table = counted(module, (1, 2))
    assert 8 * table.params_bytes == 288
    whole: Any = row(table, ROOT).subtree
    assert whole.dtypes == {"float32": 6, "float16": 6}
    numbers = counted(nn.Linear(4, 2, dtype=torch.complex64), TensorSpec((3, 4), "complex64"))
    assert (numbers.params, numbers.params_bytes, numbers.flops) == (10, 80, 8 * 24 + 2 * 6)
    assert numbers.rows[0].input_dtypes == ("complex64",)


def test_a_layer_with_three_parents() -> None:
    shared = nn.Linear(100, 100)
    table = counted(nn.Sequential(*[nn.Sequential(shared) for _ in range(3)]), (1, 100))
    assert (table.macs, table.flops, table.params) == (30_000, 60_300, 10_100)
    assert [(found.path, found.call) for found in table.rows if found.macs] == [("0.0", 0), ("1.0", 0), ("2.0", 0)]
    whole = table.inclusive()
    assert whole.macs == 30_000
    assert [found.macs for found in whole.rows if found.type == "Sequential"] == [30_000, 10_000, 10_000, 10_000]


def test_tied_weights_count_once_and_compute_twice() -> None:
    module = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 10, bias=False), nn.Linear(10, 4, bias=False))
    weight: Any = module[0].weight
    module[1].weight = weight
    module[2].weight = nn.Parameter(weight.detach().t())  # tied by its storage
    table = counted(module, TensorSpec((2, 3), "int64"))
    assert (table.params, table.params_bytes, table.macs) == (40, 160, 2 * 2 * 3 * 40)
    assert [found.params for found in table.rows] == [0, 40, 0, 0]
    assert [found.params for found in table.inclusive().rows] == [40, 40, 40, 40]


def test_frozen_parameters_are_parameters() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    model[0].requires_grad_(False)
    table = counted(model, (1, 4))
    assert (table.params, table.trainable) == (20 + 10, 10)
    assert row(table, "0").trainable == 0


def test_buffers_are_those_that_are_saved() -> None:
    module = nn.Sequential(nn.BatchNorm1d(5))
    module.register_buffer("kept", torch.zeros(3))
    module.register_buffer("scratch", torch.zeros(100), persistent=False)
    table = counted(module, (2, 5))
    assert (table.params, row(table, "0").buffers) == (10, 11)  # mean, variance and the number of batches
    assert row(table, ROOT).buffers == 3


# Columns: kernel sizes, strides, groups, trainable layers, shares of parameters and pruned weights


def test_the_readme_example_of_torchinfo() -> None:
    model = SingleInputNet()
    model.conv1.requires_grad_(False)
    layers = sweeprof.profile(model, (1, 1, 28, 28), ["params/total"]).layers
    columns = ("input_shapes", "output_shapes", "params", "params_share", "kernel_size", "macs", "trainable")
    header, _, *rows = layers.tree(columns=columns).splitlines()
    assert header.split() == "layer input shape output shape params params % kernel MACs trainable".split()
    assert "1.19%" in rows[1]
    assert "5×5" in rows[1]
    assert [row.split()[-1] for row in rows[:4]] == ["Partial", "False", "True", "–"]
    assert "23.0%" in rows[2]
    # The numbers of parameters that torchinfo's README prints.
    shares = [params / 21_840 for params in (0, 260, 5_020, 0, 16_050, 510)]
    assert layers.to_frame()["params_share"].tolist() == pytest.approx(shares)


def test_kernel_stride_and_groups_of_layers() -> None:
    conv = nn.Conv2d(4, 8, (3, 1), groups=2, stride=(2, 1), padding=(1, 0))
    model = nn.Sequential(conv, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8 * 4 * 8, 5))
    layers = sweeprof.profile(model, (2, 4, 16, 16), ["params/total"]).layers
    found = [(row.kernel_size, row.stride, row.groups) for row in layers.rows]
    assert found == [((), (), None), ((3, 1), (2, 1), 2), ((2,), (2,), None), ((), (), None), ((), (), None)]
    assert "| 3×1 | 2×1 | 2 |" in layers.to_markdown(columns=["kernel_size", "stride", "groups"])
    assert layers.to_frame()["is_trainable"].tolist() == [None, "True", None, None, "True"]


def pruned_model() -> nn.Sequential:
    """PyTorch's tutorial on pruning: 30% of a layer's weights at random, its three smallest biases."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 6, 5), nn.Flatten(), nn.Linear(6 * 4 * 4, 10))
    prune.random_unstructured(model[0], name="weight", amount=0.3)
    prune.l1_unstructured(model[0], name="bias", amount=3)
    return model


@pytest.mark.parametrize("place", [nn.Module.eval, copied_to_meta])
def test_pruned_weights_are_counted_separately(place: Callable[[nn.Module], nn.Module]) -> None:
    model = pruned_model()
    zeros = sum(int((mask == 0).sum()) for name, mask in model.named_buffers() if name.endswith("_mask"))
    table = count_layers(place(model), Inputs.of((1, 3, 8, 8)))
    assert zeros == table.pruned == 135 + 3
    assert table.params == 450 + 6 + 960 + 10
    assert [found.pruned for found in table.rows] == [0, zeros, 0, 0]
    assert table.inclusive().rows[0].pruned == zeros
    assert table.where(lambda found: found.type != "Conv2d").inclusive().rows[0].pruned == 0


def test_pruned_weights_as_a_column_and_a_metric() -> None:
    profile = sweeprof.profile(pruned_model(), (1, 3, 8, 8), ["params/total", "params/pruned"])
    assert (profile["params/total"].value, profile["params/pruned"].value) == (1426, 138)
    assert "pruned       138" in profile.layers.tree(columns=["params", "pruned"])
    built = on_meta(lambda: prune.identity(nn.Linear(4, 2), "weight"))
    missing = sweeprof.profile(built, (1, 4), ["params/pruned"])["params/pruned"]
    assert missing.value is None
    assert "without values" in str(missing.reason)


def test_a_training_step_of_a_pruned_model_is_counted() -> None:
    dense = nn.Sequential(nn.Conv2d(3, 6, 5), nn.Flatten(), nn.Linear(6 * 4 * 4, 10))
    models = pruned_model(), dense
    pruned, plain = (cast(Any, sweeprof.Profiler(model, inputs=(1, 3, 8, 8)).seen("training")) for model in models)
    assert pruned.estimated is None
    assert (pruned.forward_macs, pruned.backward_macs) == (plain.forward_macs, plain.backward_macs)


def test_what_pruning_made_permanent_is_not_pruned() -> None:
    model = pruned_model()
    prune.remove(model[0], "weight")
    prune.remove(model[0], "bias")
    assert sweeprof.profile(model, (1, 3, 8, 8), ["params/pruned"])["params/pruned"].value == 0
