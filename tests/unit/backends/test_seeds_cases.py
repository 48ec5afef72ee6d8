"""Models whose counts are known by hand, and defects of other profilers that sweeprof must not have.

Keras and TFLite models, conventions of other profilers (``compat.*``) and times are tested elsewhere.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from support.torch_modules import (
    Bert,
    Functional,
    MyNet,
    SingleInputNet,
    Twice,
    alexnet,
    counted,
    efficientnet_b0,
    figures,
    lenet5,
    resnet18,
    resnet18_cifar100,
    resnet152,
    toy,
)
from sweeprof.backends.torch.counting import count_layers
from sweeprof.backends.torch.training import count_training
from sweeprof.counting.formulas import DEFAULTS, Cost, Formulas
from sweeprof.measuring.inputs import Inputs, TensorSpec
from sweeprof.results.layer_times import ROOT
from sweeprof.results.layers import LayerTable

MIB = 2**20


def macs(module: nn.Module, *shapes: Any) -> int:
    return counted(module, *shapes).macs


def applied(function: Callable[..., Any], *shapes: Any) -> LayerTable:
    return counted(Functional(function), *shapes)


def on_meta(build: Callable[[], nn.Module]) -> nn.Module:
    with torch.device("meta"):
        return build().eval()


# Section 3


def test_case_1_parameters_of_lenet5() -> None:
    table = counted(lenet5(), (1, 1, 32, 32))
    assert (table.params, table.params_bytes) == (61_706, 246_824)


@pytest.mark.parametrize(("batch", "expected"), [(1, 416_520), (1024, 426_516_480)])
def test_case_2_macs_of_lenet5(batch: int, expected: int) -> None:
    assert macs(lenet5(), (batch, 1, 32, 32)) == expected


def test_case_4_layers_of_lenet5() -> None:
    rows = counted(lenet5(), (1, 1, 32, 32)).rows
    computing = [(row.type, row.macs, row.params) for row in rows if row.params]
    assert computing == [
        ("Conv2d", 117_600, 156),
        ("Conv2d", 240_000, 2_416),
        ("Conv2d", 48_000, 48_120),
        ("Linear", 10_080, 10_164),
        ("Linear", 840, 850),
    ]


def test_case_7_flops_of_lenet5() -> None:
    """F2 prints 845,778; ours adds what it leaves out, the biases of the linear layers and tanh."""
    products, conv_biases, pooled, softmax = 2 * 416_520, 4_704 + 1_600 + 120, 4_704 + 1_600, 10
    assert products + conv_biases + pooled + softmax == 845_778
    linear_biases, tanh = 84 + 10, 4_704 + 1_600 + 120 + 84
    assert counted(lenet5(), (1, 1, 32, 32)).flops == 845_778 + linear_biases + tanh == 852_380


def test_operations_of_lenet5() -> None:
    """With a bias a sum of n products takes n additions; a window of 4 as many; tanh 7; softmax 4n - 1."""
    expected = 2 * 416_520 + 4 * (6 * 14 * 14 + 16 * 5 * 5) + 7 * (4_704 + 1_600 + 120 + 84) + 39
    assert counted(lenet5(), (1, 1, 32, 32)).ops == expected


def test_cases_9_10_12_linear() -> None:
    table = counted(nn.Linear(8, 32), (1, 8))
    assert (table.params, table.params_bytes, 8 * table.params_bytes) == (288, 1_152, 9_216)
    assert table.ops == 512 == 256 + 224 + 32
    (row,) = table.rows
    assert (row.path, row.input_shapes, row.output_shapes) == ("__root__", ((1, 8),), ((1, 32),))


def test_case_11_linear_without_bias() -> None:
    assert figures(counted(nn.Linear(8, 32, bias=False), (1, 8))) == (256, 512, 480)


class PlusOne(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


def test_case_13_custom_operations() -> None:
    own = Formulas({PlusOne: lambda module, inputs, outputs: Cost(ops=10 * outputs.numel())}, DEFAULTS)
    given = Inputs((TensorSpec((1, 8)),))
    assert count_layers(PlusOne(), given).ops == 8
    assert count_layers(PlusOne(), given, own).ops == 80
    assert DEFAULTS.of_module(PlusOne()) is None
    assert count_layers(PlusOne(), given).ops == 8


@pytest.mark.parametrize(
    ("number", "module", "shape", "expected_macs", "expected_ops"),
    [
        (14, nn.Linear(4, 8), (2, 3, 4), 192, 384),
        (15, nn.Conv1d(2, 4, 2), (8, 2, 9), 1_024, 2_048),
        (16, nn.Conv2d(2, 4, 2, groups=2, bias=False), (8, 2, 8, 8), 6_272, 10_976),
        (17, nn.Conv2d(3, 4, 3), (3, 8, 8), 3_888, 7_776),
        (19, nn.GRUCell(8, 16), (4, 8), 4_608, 10_560),
        (19, nn.GRUCell(8, 16, bias=False), (4, 8), 4_608, 10_176),
        (20, nn.GRU(8, 16), (5, 4, 8), 23_040, 52_800),
        (20, nn.GRU(8, 16, num_layers=2), (5, 4, 8), 53_760, 120_960),
        (21, nn.LSTM(8, 16, bidirectional=True), (5, 4, 8), 61_440, 142_720),
    ],
)
def test_cases_14_to_21_operations(
    number: int, module: nn.Module, shape: tuple[int, ...], expected_macs: int, expected_ops: int
) -> None:
    table = counted(module.eval(), shape)
    assert (table.macs, table.ops) == (expected_macs, expected_ops), f"case {number}"


def test_case_18_transposed_convolution_and_its_backward() -> None:
    module = nn.ConvTranspose2d(4, 6, 4, 2, 1)
    assert macs(module, (2, 4, 8, 8)) == 49_152
    step = count_training(module, Inputs((torch.ones(2, 4, 8, 8, requires_grad=True),)))
    assert step.estimated is None
    assert 2 * (step.forward_macs + step.backward_macs) == 294_912


def test_cases_23_24_toy() -> None:
    table = counted(toy(), (1, 3, 32, 32))
    assert (table.params, table.params_bytes / MIB, table.macs) == (2_432, 0.00927734375, 2_457_600)
    assert table.liveness is not None
    assert (table.liveness.peak_bytes, table.liveness.input_bytes) == (262_144, 4 * 3 * 32 * 32)
    conv, relu, pool, flat = 4 * 32 * 32 * 32, 4 * 32 * 32 * 32, 4 * 32 * 16 * 16, 4 * 32 * 16 * 16
    assert table.act_bytes == conv + relu + pool + flat


class TwoBits(nn.Conv2d):
    """A convolution that says of itself that its weights take two bits each."""

    def compute_module_complexity(self, inputs: Any, outputs: Any) -> dict[str, Any]:
        return {"flops": 77, "param_size": {"weight": 2 / 8}}


def test_case_26_weights_of_two_bits() -> None:
    module = toy()
    module[0] = TwoBits(3, 32, 5, padding=2)  # type: ignore[operator]
    table = counted(module, (1, 3, 32, 32))
    assert table.params == 2_432
    assert table.params_bytes / MIB == 0.00927734375 - 2_400 * (4 - 2 / 8) / MIB
    assert [(row.flops, row.macs) for row in table.rows if row.type == "TwoBits"] == [(77, 2_457_600)]


def test_cases_28_29_30_resnet18_of_cifar100() -> None:
    table = counted(on_meta(resnet18_cifar100), (1, 3, 32, 32))
    assert (table.params, table.params_bytes, table.buffers) == (11_220_132, 44_880_528, 9_620)
    assert round(table.params_bytes / MIB, 4) == 42.8014
    norms, activations, added = 614_400, 557_056, 245_760
    assert table.macs == 555_468_800
    relu = 32 * 32 * 64 * 5 + 16 * 16 * 128 * 4 + 8 * 8 * 256 * 4 + 4 * 4 * 512 * 4
    assert relu == activations
    pooled, bias = 4 * 4 * 512, 100
    assert table.flops == 2 * 555_468_800 + 2 * norms + activations + added + pooled + bias


def test_cases_32_33_34_36_networks_of_imagenet() -> None:
    expected = {
        resnet18: (11_689_512, 1_814_073_344),
        resnet152: (60_192_808, 11_513_626_624),
        alexnet: (61_100_840, 714_188_480),
        efficientnet_b0: (5_288_548, 385_814_752),
    }
    for build, numbers in expected.items():
        table = counted(on_meta(build), (1, 3, 224, 224))
        assert (table.params, table.macs) == numbers


@pytest.mark.parametrize("build", [resnet18, alexnet, efficientnet_b0])
def test_networks_of_imagenet_against_torchs_own_counter(build: Callable[[], nn.Module]) -> None:
    module = on_meta(build)
    with FlopCounterMode(display=False) as oracle:
        module(torch.empty(2, 3, 224, 224, device="meta"))
    assert 2 * macs(module, (2, 3, 224, 224)) == oracle.get_total_flops()


def test_case_35_bert_base() -> None:
    """F2 prints 22,363,078,656 FLOPs; ours are those of the table, derived here for each part."""
    table = counted(on_meta(Bert), TensorSpec((1, 128), "int64"))
    assert (table.params, table.macs) == (109_482_240, 11_174_215_680)
    width, length, heads = 768, 128, 12
    x, scores, inner = length * width, heads * length**2, 4 * length * width
    biases = 5 * x + inner
    layer = 2 * 931_135_488 + biases + 2 * scores + 2 * x + 2 * 5 * x + inner  # scale, softmax; two sums, norms; gelu
    embedded = 2 * x + 5 * x
    pooler = 2 * width**2 + 2 * width
    assert table.flops == 12 * layer + embedded + pooler
    assert sum(row.macs or 0 for row in table.rows if row.path.startswith("layers.0")) == 931_135_488


def test_case_37_four_convolutions() -> None:
    module = nn.Sequential(*[nn.Conv2d(3, 3, 3, padding=1) for _ in range(4)])
    table = counted(module, (1, 3, 224, 224))
    assert (table.params, table.macs, table.flops) == (336, 16_257_024, 2 * 16_257_024 + 602_112)


def test_case_38_mynet() -> None:
    table = counted(MyNet().eval(), (16, 10))
    assert (table.params, table.macs) == (707, 10_304)
    assert table.rows[0].macs == 160
    kinds = {"linear3": "ModuleList", "linear4": "Sequential", "linear5": "ModuleDict"}
    assert {row.path: row.type for row in table.rows if row.path in kinds} == kinds


def test_case_51_a_reused_layer() -> None:
    table = counted(Twice(nn.Linear(4, 4)), (1, 4))
    assert (table.macs, table.params) == (32, 20)
    assert [row.call for row in table.rows if row.path == "layer"] == [0, 1]


def test_case_52_a_layer_with_three_parents() -> None:
    shared = nn.Linear(100, 100)
    table = counted(nn.Sequential(*[nn.Sequential(shared) for _ in range(3)]), (1, 100))
    assert (table.macs, table.params) == (30_000, 10_100)
    assert [row.path for row in table.rows if row.macs] == ["0.0", "1.0", "2.0"]


def test_case_53_attention_on_the_cpu() -> None:
    table = applied(functional.scaled_dot_product_attention, *[(2, 2, 16, 8)] * 3)
    scores = 2 * 2 * 16 * 16
    assert (table.macs, table.flops) == (16_384, 32_768 + 2 * scores)


def test_case_54_mixed_types() -> None:
    module = nn.Sequential(nn.Linear(2, 2), Functional(torch.Tensor.half), nn.Linear(2, 2).half())
    table = counted(module, (1, 2))
    assert 8 * table.params_bytes == 288
    (whole,) = [row.subtree for row in table.rows if row.path == ROOT]
    assert whole is not None
    assert whole.dtypes == {"float32": 6, "float16": 6}


def test_case_55_single_input_net() -> None:
    table = counted(SingleInputNet().eval(), (7, 1, 28, 28))
    assert (table.params, table.macs) == (21_840, 3_363_500)


# Case 49: a model and torch itself are left as they were


class Cached(nn.Module):
    """Remembers what it saw, moves its statistics, draws random numbers, and may fail in the end."""

    def __init__(self, fails: bool, needs_values: bool) -> None:
        super().__init__()
        self.linear, self.norm, self.drop = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout()
        self.attention = nn.MultiheadAttention(4, 2)
        self.fails, self.needs_values = fails, needs_values
        self.cache: dict[str, torch.Tensor] = {}
        self.seen = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.drop(self.norm(self.linear(x)))
        y = self.attention(y, y, y)[0] + torch.rand(1, device=y.device)
        self.cache["last"], self.last, self.seen = y, y, self.seen + 1
        if self.needs_values:
            y.sum().item()
        if self.fails:
            raise ArithmeticError("no luck")
        return y


IDENTITIES: list[tuple[Any, str]] = [
    (torch, "bmm"),
    (torch, "matmul"),
    (functional, "linear"),
    (torch.Tensor, "__matmul__"),
    (nn.Module, "__call__"),
    (nn.Linear, "forward"),
]


def state_of(module: nn.Module) -> dict[str, Any]:
    """Everything that could be disturbed; tensors by identity and by value."""
    hooks = [
        {name: list(value) for name, value in vars(m).items() if name.endswith("_hooks")} for m in module.modules()
    ]
    tensors = [
        (name, id(t), t.data_ptr(), t.device, t.requires_grad, t._version) for name, t in module.named_parameters()
    ]
    return {
        "attributes": [{name: id(value) for name, value in vars(m).items()} for m in module.modules()],
        "hooks": hooks,
        "tensors": tensors,
        "gradients": [(id(p.grad), None if p.grad is None else p.grad.tolist()) for p in module.parameters()],
        "values": {name: value.tolist() for name, value in module.state_dict().items()},
        "buffers": [id(buffer) for buffer in module.buffers()],
        "modes": [m.training for m in module.modules()],
        "cache": list(getattr(module, "cache", {})),
        "random": torch.get_rng_state().tolist(),
        "torch": [getattr(owner, name) for owner, name in IDENTITIES],
        "grad": torch.is_grad_enabled(),
        "device": torch.get_default_device(),
        "modes of torch": torch._C._len_torch_dispatch_stack(),
    }


@contextmanager
def undisturbed(module: nn.Module) -> Iterator[None]:
    before = state_of(module)
    yield
    after = state_of(module)
    assert {name: after[name] for name in before if after[name] != before[name]} == {}


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("needs_values", [False, True])
def test_case_49_nothing_is_left_behind(fails: bool, needs_values: bool, fast: bool) -> None:
    module = Cached(fails, needs_values).train()
    module.attention.eval()
    module.norm.weight.requires_grad_(False)
    module.linear.weight.grad = torch.ones(4, 4)
    calls: list[str] = []
    module.register_forward_hook(lambda *_: calls.append("after"))
    module.linear.register_forward_pre_hook(lambda *_: calls.append("before"))
    plain = module.drop.forward
    module.drop.forward = lambda *given: plain(given[0])  # type: ignore[method-assign]  # as accelerate does
    torch.backends.mha.set_fastpath_enabled(fast)
    try:
        with undisturbed(module):
            if fails:
                with pytest.raises(ArithmeticError, match="no luck"):
                    count_layers(module, Inputs((TensorSpec((3, 4)),)))
            else:
                assert count_layers(module, Inputs((TensorSpec((3, 4)),))).macs == 3 * 16 + 3 * 4 * 16 + 2 * 3 * 3 * 4
        assert torch.backends.mha.get_fastpath_enabled() is fast
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
    assert "before" in calls  # the user's hooks ran


def test_case_49_gradients_that_a_forward_switches_off() -> None:
    module = nn.Linear(4, 4)

    def forward(x: torch.Tensor) -> torch.Tensor:
        module.requires_grad_(False)
        return functional.linear(x, module.weight)

    whole = Functional(forward)
    whole.inner = module
    with undisturbed(whole):
        count_layers(whole, Inputs((TensorSpec((1, 4)),)))


def test_case_49_random_numbers_that_a_forward_draws() -> None:
    module = Functional(lambda x: x + torch.rand(1))
    with undisturbed(module):
        count_layers(module, Inputs((TensorSpec((1, 4)),)))


def test_case_49_training_leaves_the_model_alone() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout()).eval()
    module[1].train()
    with undisturbed(module):
        count_training(module, Inputs((TensorSpec((3, 4)),)))


# Section 2, the defects of others


def test_defect_1_a_bias_that_is_not_there() -> None:
    without, having = nn.Conv2d(3, 8, 3, bias=False), nn.Conv2d(3, 8, 3)
    assert figures(counted(without, (1, 3, 8, 8)))[:2] == (7_776, 2 * 7_776)
    assert counted(having, (1, 3, 8, 8)).flops == 2 * 7_776 + 8 * 36


def test_defect_2_transposed_convolutions_by_output_positions() -> None:
    assert macs(nn.ConvTranspose2d(4, 6, 4, 2, 1), (1, 4, 8, 8)) == 24_576


def test_defect_3_a_silent_zero() -> None:
    table = counted(Functional(lambda x: torch.linalg.inv(x) @ x), (4, 4), complete=False)
    assert "linalg_inv_ex" in table.uncovered
    assert table.coverage is not None
    assert 0 < table.coverage < 1
    assert table.macs == 64
    assert applied(functional.scaled_dot_product_attention, *[(1, 1, 4, 4)] * 3).macs == 2 * 64


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_defect_4_transposed_convolutions_crash_or_confuse_channels(dims: int) -> None:
    kind: Any = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)[dims - 1]
    assert macs(kind(4, 6, 3), (1, 4, *[5] * dims)) == 4 * 5**dims * 6 * 3**dims
    assert macs(kind(4, 6, 3, groups=2), (1, 4, *[5] * dims)) == 4 * 5**dims * 3 * 3**dims


def test_defect_5_torch_is_damaged() -> None:
    before = [getattr(owner, name) for owner, name in IDENTITIES]
    counted(lenet5(), (1, 1, 32, 32))
    assert [getattr(owner, name) for owner, name in IDENTITIES] == before
    assert torch.bmm is not torch.matmul


def test_defect_6_padding_same() -> None:
    assert macs(nn.Conv2d(3, 4, 3, padding="same"), (1, 3, 8, 8)) == 4 * 64 * 27


@pytest.mark.parametrize(
    ("function", "shapes", "expected"),
    [
        (torch.matmul, [(8,), (8,)], 8),
        (torch.matmul, [(4, 8), (8,)], 32),
        (torch.matmul, [(2, 1, 4, 8), (3, 8, 5)], 960),
        (lambda x, y: x @ y, [(3, 4), (4, 5)], 60),
        (lambda x, y: torch.einsum("bij,bjk->bik", x, y), [(2, 3, 4), (2, 4, 5)], 120),
    ],
)
def test_defect_7_matrix_products(function: Callable[..., Any], shapes: list[Any], expected: int) -> None:
    assert applied(function, *shapes).macs == expected


def test_defect_7_broadcasting_and_interpolation() -> None:
    assert applied(torch.add, (2, 3, 4), (3, 4)).flops == 24
    up = applied(lambda x: functional.interpolate(x, scale_factor=2, mode="bilinear"), (1, 1, 4, 4))
    assert up.flops == 7 * 64


def test_defect_8_what_the_root_does_itself_is_lost() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.inner(x) * 2
            return result

    module = Scaled()
    alone, within = counted(module, (1, 4)), counted(nn.Sequential(module), (1, 4))
    through_forward = counted(Functional(module.forward), (1, 4))
    assert alone.rows[0].flops == 4
    assert alone.flops == within.flops == through_forward.flops == 2 * 16 + 4


def test_defect_9_an_ignored_type_lands_in_its_parent() -> None:
    table = counted(lenet5(), (1, 1, 32, 32))
    assert table.where(lambda row: row.type != "Conv2d").macs == 10_080 + 840


def test_defect_10_a_layer_shared_across_parents_counts_three_times_three() -> None:
    shared = nn.Linear(100, 100, bias=False)
    table = counted(nn.Sequential(*[nn.Sequential(shared) for _ in range(3)]), (1, 100))
    assert table.flops == 60_000
    assert table.inclusive().macs == 30_000


@pytest.mark.parametrize("batch_first", [False, True])
def test_defect_11_recurrent_networks(batch_first: bool) -> None:
    module = nn.LSTM(10, 20, batch_first=batch_first, bias=False).eval()
    shape = (3, 5, 10) if batch_first else (5, 3, 10)
    table = counted(module, shape)
    assert table.macs == 36_000
    assert table.flops == 72_000 + 15 * 20 * (4 + 4 + 3 + 2)


def test_defect_12_a_second_time_and_models_without_parameters(capsys: pytest.CaptureFixture[str]) -> None:
    model = lenet5()
    assert counted(model, (1, 1, 32, 32)) == counted(model, (1, 1, 32, 32))
    assert (counted(nn.ReLU(), (3,)).params, counted(nn.ReLU(), (3,)).flops) == (0, 3)
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""


def test_defect_12_a_count_within_a_count() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        inner.append(count_layers(nn.Linear(4, 4, bias=False), Inputs((TensorSpec((1, 4)),))).macs)
        return x @ x

    inner: list[int] = []
    assert applied(forward, (4, 4)).macs == 64
    assert inner == [16]


def test_defect_13_cells() -> None:
    assert counted(nn.GRUCell(8, 16, bias=False), (4, 8)).ops == 10_176
    lstm = counted(nn.LSTMCell(8, 16), (4, 8))
    assert (lstm.ops, type(lstm.ops)) == (8 * 4 * 16 * (8 + 16) + 4 * 31 * 16, int)


class Subclass(nn.Linear):
    pass


@pytest.mark.filterwarnings("ignore:Implicit dimension choice")
def test_defect_14_shapes() -> None:
    assert macs(nn.Conv2d(3, 4, 3), (3, 8, 8)) == 3_888
    assert macs(nn.ConvTranspose1d(4, 6, 3), (4, 8)) == macs(nn.ConvTranspose1d(4, 6, 3), (1, 4, 8)) == 4 * 8 * 18
    assert counted(nn.AvgPool2d(2), (1, 3, 8, 8)).ops == counted(nn.AvgPool2d((2, 2)), (1, 3, 8, 8)).ops == 3 * 16 * 4
    assert counted(nn.ConvTranspose2d(4, 6, 4, 2, 1), (2, 4, 8, 8)).ops == 98_304
    padded = counted(nn.ConvTranspose2d(4, 6, 4, 2, 1, output_padding=1), (2, 4, 8, 8))
    assert padded.flops == 2 * 49_152 + 2 * 6 * 17 * 17
    assert counted(nn.Softmax(), (2, 8)).ops == 2 * 31  # the axis is chosen by torch
    assert counted(nn.AdaptiveAvgPool2d(2), (1, 1, 4, 4)).ops == 16
    assert counted(nn.AdaptiveMaxPool2d(2), (1, 1, 4, 4)).ops == 4
    assert counted(nn.BatchNorm1d(3).eval(), (4, 3)).ops == 3 * (4 * 4 + 2)
    assert counted(nn.BatchNorm1d(3).train(), (4, 3)).ops == 3 * (7 * 4 + 4)
    assert counted(Subclass(4, 4), (1, 4)).ops == 32
    assert counted(Twice(nn.Linear(4, 4)), (1, 4)).ops == 64


def test_defect_15_shapes_of_recurrent_networks() -> None:
    (lstm,) = counted(nn.LSTM(8, 16).eval(), (5, 4, 8)).rows
    assert lstm.output_shapes == ((5, 4, 16), (1, 4, 16), (1, 4, 16))
    (cell,) = counted(nn.GRUCell(8, 16), (4, 8)).rows
    assert (cell.input_shapes, cell.output_shapes) == (((4, 8),), ((4, 16),))


@pytest.mark.parametrize(
    ("module", "given", "expected"),
    [
        (Functional(functional.scaled_dot_product_attention), [(2, 2, 16, 8)] * 3, 16_384),
        (nn.LSTM(8, 16, bidirectional=True), [(5, 4, 8)], 61_440),
        (nn.MultiheadAttention(16, 4, batch_first=True), [(2, 5, 16)] * 3, 2 * 5 * 4 * 16 * 16 + 2 * 2 * 5 * 5 * 16),
        (nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), [(2, 5, 16)], 10 * 4 * 256 + 1_600 + 10 * 2 * 512),
        (nn.Bilinear(3, 4, 5), [(2, 3), (2, 4)], 2 * 5 * (3 * 4 + 4)),
        (Functional(torch.mv), [(3, 4), (4,)], 12),
        (Functional(torch.dot), [(4,), (4,)], 4),
        (Functional(torch.addmv), [(3,), (3, 4), (4,)], 12),
    ],
)
@pytest.mark.parametrize("training", [False, True])
def test_defect_18_what_torchs_own_counter_does_not_see(
    module: nn.Module, given: list[Any], expected: int, training: bool
) -> None:
    assert macs(copy.deepcopy(module).train(training), *given) == expected


def test_defect_18_embedding_bag() -> None:
    given = TensorSpec((2, 4), "int64")
    assert counted(nn.EmbeddingBag(5, 3, mode="sum"), given).flops == 2 * 4 * 3
    weighed = counted(nn.EmbeddingBag(5, 3, mode="sum"), given, None, (2, 4))
    assert weighed.macs == 2 * 4 * 3


def test_defect_28_bytes_of_bytes() -> None:
    live = counted(toy(), (1, 3, 32, 32)).liveness
    assert live is not None
    assert live.peak_bytes / MIB == 0.25
