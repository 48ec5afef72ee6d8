"""The table of costs: what is in it, and what it says of single operators."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from support.torch_modules import Functional, counted, figures
from sweeprof.backends.torch.costs import COSTS, FREE, does_no_arithmetic, numbers_of
from sweeprof.backends.torch.dispatch import known_operator
from sweeprof.backends.torch.training import count_training
from sweeprof.counting.operators import sums_of_products
from sweeprof.measuring.inputs import Inputs, TensorSpec
from sweeprof.results.layers import Training

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

OTHER_VERSIONS: frozenset[str] = frozenset()
"""Names of the table that this version of torch does not have."""


@pytest.fixture(scope="module")
def every_operator() -> set[str]:
    return {schema.name for schema in torch._C._jit_get_all_schemas()}


def applied(function: Callable[..., Any], *given: Any, **keywords: Any) -> tuple[int, int, int]:
    return figures(counted(Functional(function), *given, **keywords))


def typed(kind: str, *shape: int) -> TensorSpec:
    return TensorSpec(shape, kind)


def test_nothing_is_both_free_and_counted() -> None:
    assert {name.removeprefix("aten::") for name in COSTS} & FREE == set()


def test_every_name_is_an_operator(every_operator: set[str]) -> None:
    """Every elementwise operator is entered with its twin in place, which not all of them have."""
    unknown = COSTS.keys() - every_operator - OTHER_VERSIONS
    assert {name for name in unknown if name.removesuffix("_") not in every_operator & COSTS.keys()} == set()
    assert {name for name in FREE if f"aten::{name}" not in every_operator} == set()


@pytest.mark.parametrize(
    "name", ["transpose", "view.default", "select.int", "split.Tensor", "cat", "embedding", "where.self"]
)
def test_views_and_what_moves_data_are_free(name: str) -> None:
    operator, _, overload = name.partition(".")
    assert does_no_arithmetic(
        getattr(getattr(torch.ops.aten, operator), overload or getattr(torch.ops.aten, operator).overloads()[0])
    )


@pytest.mark.parametrize("name", ["add.Tensor", "conv2d.default", "sum.default", "linalg_inv_ex.default"])
def test_what_computes_is_not_free(name: str) -> None:
    operator, _, overload = name.partition(".")
    assert not does_no_arithmetic(getattr(getattr(torch.ops.aten, operator), overload))


@pytest.mark.parametrize("factor", [1, 4])
@settings(max_examples=30, deadline=None)
@given(length=st.integers(1, 9), sums=st.integers(1, 9), bias=st.booleans())
def test_a_sum_of_products_counted_one_by_one(factor: int, length: int, sums: int, bias: bool) -> None:
    """A complex product is 4 multiplications and 2 additions, a complex sum 2 additions."""
    multiplication, addition = (1, 1) if factor == 1 else (6, 2)
    ops = 0
    for _ in range(sums):
        for index in range(length):
            ops += multiplication + (addition if index or bias else 0)
    tensor = torch.empty(1, dtype=torch.float32 if factor == 1 else torch.complex64)
    flops = 2 * factor * length * sums + (sums * addition if bias else 0)
    assert sums_of_products(length * sums, sums, numbers_of(tensor), bias=bias) == (length * sums, flops, ops)


# Overloads


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x + x,
        lambda x: x.clone().add_(x),
        lambda x: torch.add(x, x, out=torch.empty_like(x)),
        lambda x: x + 1,
        lambda x: 1 + x,
        lambda x: torch.relu_(x.clone()),
        lambda x: x.clamp(0, 1),
        lambda x: x.clone().mul_(2),
        lambda x: x - x[0],
        lambda x: torch.max(x, x),
        lambda x: x.maximum(x),
    ],
)
def test_in_place_and_out_and_scalar_overloads(function: Callable[..., Any]) -> None:
    assert applied(function, (3, 4)) == (0, 12, 12)


@pytest.mark.parametrize(
    "function",
    [lambda x: torch.mm(x, x), lambda x: torch.mm(x, x, out=torch.empty_like(x)), lambda x: x.addmm(x, x, beta=0)],
)
def test_products_with_out_or_with_nothing_added(function: Callable[..., Any]) -> None:
    assert applied(function, (4, 4)) == (64, 128, 112)


def overloads(name: str) -> Iterator[Any]:
    """Every overload of an operator that a dispatcher may meet; none of one that only TorchScript has."""
    namespace, _, plain = name.partition("::")
    packet = getattr(getattr(torch.ops, namespace), plain, None)
    for overload in () if packet is None else packet.overloads():
        with suppress(AttributeError):
            func = getattr(packet, overload)
            if torch._C._dispatch_has_kernel(func.name()):
                yield func


def test_what_writes_in_place_or_into_out_has_the_rule_of_what_returns() -> None:
    writing = {func: name for name in COSTS for twin in (name, f"{name}_") for func in overloads(twin)}
    writing = {func: name for func, name in writing.items() if func._schema.is_mutable}
    assert len(writing) > 400
    different = [str(func) for func, name in writing.items() if known_operator(func).cost is not COSTS[name]]
    assert different == []


def functional_of(func: Any) -> Any:
    """The overload that returns what ``func`` writes in place or into ``out``; None where there is none."""
    if not func._schema.is_mutable:
        return None
    namespace, _, name = func._schema.name.partition("::")
    packet = getattr(getattr(torch.ops, namespace), name.removesuffix("_"), None)
    if packet is None:
        return None
    wanted = [(given.name, str(given.type)) for given in func._schema.arguments if not given.is_out]
    for overload in (getattr(packet, overload) for overload in packet.overloads()):
        given = [(argument.name, str(argument.type)) for argument in overload._schema.arguments]
        if not overload._schema.is_mutable and given == wanted:
            return overload
    return None


def test_what_writes_in_place_or_into_out_is_known_where_what_returns_is(every_operator: set[str]) -> None:
    pairs = [
        (func, functional_of(func)) for name in every_operator if name.startswith("aten::") for func in overloads(name)
    ]
    pairs = [(func, functional) for func, functional in pairs if functional is not None]
    assert len(pairs) > 1000

    covered = [func for func, functional in pairs if known_operator(functional).is_covered]
    operators = {func: known_operator(func) for func in covered}
    assert [str(func) for func, known in operators.items() if not known.is_covered and not known.is_composite] == []


@pytest.mark.parametrize(
    "write",
    [
        torch.copysign,
        lambda x, y: x.copysign_(y),  # torch tags only what returns as elementwise
        lambda x, y: torch.ops.aten.copysign.out(x, y, out=torch.empty_like(x)),
    ],
)
def test_an_elementwise_operator_without_a_rule_takes_one_operation_per_element(
    write: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> None:
    assert applied(write, (3, 4), (3, 4)) == (0, 12, 12)


def test_a_shift_that_writes_into_out_is_covered() -> None:
    def shifted(x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.ops.aten.__lshift__.Scalar_out(x, 1, out=torch.empty_like(x))
        return result

    assert applied(shifted, typed("int64", 3, 4)) == applied(lambda x: x << 1, typed("int64", 3, 4)) == (0, 0, 0)


@pytest.mark.parametrize(
    "check",
    [
        lambda x: torch._is_all_true(x > 0),
        lambda x: torch._is_any_true(x > 0),
        lambda x: torch._assert_async((x > 0).all(), "positive"),
        lambda x: torch.ops.aten._functional_assert_async.msg((x > 0).all(), "positive", x),
        lambda x: torch.isin(x, x),
        lambda x: x.is_same_size(x),
        lambda x: x.clone().ge_(0),
        lambda x: x.new_empty(3, 4).uniform_(),
        lambda x: torch.slice_copy(x, 0, 1, 2),
    ],
)
def test_checks_and_copies_do_no_arithmetic(check: Callable[[torch.Tensor], Any]) -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        check(x)
        return x + 1

    assert applied(forward, (3, 4)) == (0, 12, 12)


def test_lists_of_tensors() -> None:
    assert applied(lambda x: torch._foreach_add([x, x[0]], 1.0), (3, 4)) == (0, 16, 16)

    def in_place(x: torch.Tensor) -> torch.Tensor:
        parts = [x.clone(), x[0].clone()]
        torch._foreach_mul_(parts, 2.0)
        return parts[0]

    assert applied(in_place, (3, 4)) == (0, 16, 16)


# Types of numbers


def test_integers_take_no_floating_point_operations() -> None:
    def forward(x: torch.Tensor) -> Any:
        y = (x + x) * 3 // 2 - x.sum() + x.cumsum(0) + x.abs() + x.clamp(0, 3)
        return functional.max_pool2d(y[None, None], 2) > 1

    assert applied(forward, typed("int64", 4, 4)) == (0, 0, 0)


def test_integer_products_are_multiply_accumulates_and_no_flops() -> None:
    assert applied(torch.mm, typed("int64", 3, 4), typed("int64", 4, 5)) == (60, 0, 105)


COMPLEX = [
    (torch.add, 2, 2), (torch.sub, 2, 2), (torch.mul, 2, 6), (torch.div, 2, 11), (torch.neg, 1, 2),
]  # fmt: skip


@pytest.mark.parametrize(("function", "operands", "each"), COMPLEX)
def test_complex_elements(function: Callable[..., Any], operands: int, each: int) -> None:
    assert applied(function, *[typed("complex64", 3, 4)] * operands) == (0, 12 * each, 12 * each)


def test_complex_products_sums_and_polar_numbers() -> None:
    given_types = typed("complex64", 2, 3, 4), typed("complex64", 2, 4, 5)
    assert applied(torch.bmm, *given_types) == (120, 8 * 120, 6 * 120 + 2 * 90)
    assert applied(lambda x: x.sum(1), typed("complex64", 3, 4)) == (0, 24, 18)
    assert applied(torch.polar, (3, 4), (3, 4)) == (0, 48, 48)
    assert applied(torch.complex, (3, 4), (3, 4)) == (0, 0, 0)


# Norms


@pytest.mark.parametrize(
    ("function", "affine", "ops"),
    [
        (lambda x: functional.layer_norm(x, (4,)), 4, 5),
        (lambda x: functional.layer_norm(x, (4,), torch.ones(4)), 5, 6),
        (lambda x: functional.layer_norm(x, (4,), torch.ones(4), torch.ones(4)), 5, 7),
        (lambda x: functional.group_norm(x, 3, torch.ones(6)), 5, 6),
        (lambda x: functional.group_norm(x, 3, torch.ones(6), torch.ones(6)), 5, 7),
        (lambda x: functional.instance_norm(x, weight=torch.ones(6)), 5, 6),
    ],
)
def test_norms_with_a_weight_alone(function: Callable[..., Any], affine: int, ops: int) -> None:
    """Of 2 · 6 · 4 elements in 2 · 6 rows, with three groups in 2 · 3; four operations more for each row."""
    rows = 2 * 3 if "group_norm" in function.__code__.co_names else 2 * 6
    assert applied(function, (2, 6, 4)) == (0, affine * 48, ops * 48 + 4 * rows)


# Reductions


@pytest.mark.parametrize(
    ("function", "flops", "ops"),
    [
        (torch.sum, 12, 11),
        (lambda x: x.sum(1), 12, 9),
        (torch.prod, 12, 11),
        (torch.mean, 12, 12),
        (lambda x: x.mean(1), 12, 12),
        (torch.amax, 12, 11),
        (lambda x: x.max(1), 12, 9),
        (torch.var, 48, 48),
        (torch.linalg.vector_norm, 24, 24),
        (lambda x: x.logsumexp(1), 12, 3 * 12 + 3),
        (lambda x: x.cumsum(1), 12, 12),
        (torch.trace, 3, 2),
        (torch.argmax, 0, 0),
        (lambda x: x.sort(1), 0, 0),
        (lambda x: x.topk(2), 0, 0),
        (lambda x: x > 0, 0, 0),
        (torch.median, 0, 0),
    ],
)
def test_reductions(function: Callable[..., Any], flops: int, ops: int) -> None:
    assert applied(function, (3, 4)) == (0, flops, ops)


def test_the_weight_of_a_normalised_layer_is_computed_at_every_call() -> None:
    module = torch.nn.utils.parametrizations.weight_norm(nn.Linear(4, 3, bias=False)).eval()
    rows, elements = 3, 12
    assert counted(module, (2, 4)).flops == 2 * 2 * 12 + 3 * elements + 2 * rows


@pytest.mark.parametrize(
    ("function", "work"),
    [
        (lambda x, i: x.new_zeros(5, 4).index_add(0, i, x), 12),
        (lambda x, i: x.new_zeros(5, 4).index_put((i,), x, accumulate=True), 12),
        (lambda x, i: x.new_zeros(5, 4).index_put_((i,), x, accumulate=True), 12),
        (lambda x, i: x.new_zeros(5, 4).index_put((i,), x), 0),
        (lambda x, i: x.new_zeros(5, 4).index_copy(0, i, x), 0),
        (lambda x, i: x.new_zeros(5, 4).scatter_add(0, i[:, None].expand(3, 4), x), 12),
        (lambda x, i: x.new_zeros(5, 4).scatter_reduce(0, i[:, None].expand(3, 4), x, "amax"), 12),
        (lambda x, i: x.new_zeros(5, 4).scatter(0, i[:, None].expand(3, 4), x), 0),
        (lambda x, i: x.new_zeros(5, 4).scatter(0, i[:, None].expand(3, 4), x, reduce="add"), 12),
        (lambda x, i: x[i], 0),
        (lambda x, i: x.index_select(0, i), 0),
    ],
)
def test_scattering_counts_where_it_adds(function: Callable[..., Any], work: int) -> None:
    assert applied(function, (3, 4), typed("int64", 3)) == (0, work, work)


@pytest.mark.parametrize(("mode", "each"), [("bilinear", 7), ("nearest", 0), ("bicubic", 31)])
def test_sampling_a_grid(mode: str, each: int) -> None:
    def sampled(x: torch.Tensor, grid: torch.Tensor) -> Any:
        return functional.grid_sample(x, grid, mode=mode, align_corners=False)

    assert applied(sampled, (2, 3, 4, 4), (2, 5, 6, 2))[1] == each * 2 * 3 * 5 * 6
    if mode == "bilinear":
        assert applied(sampled, (2, 3, 4, 4, 4), (2, 5, 6, 7, 3))[1] == 15 * 2 * 3 * 5 * 6 * 7


def test_an_affine_grid_is_a_product_of_positions_and_a_matrix() -> None:
    table = applied(lambda x: functional.affine_grid(x, [2, 3, 4, 5], align_corners=False), (2, 2, 3))
    assert table[0] == 2 * 4 * 5 * 2 * 3


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (torch.cdist, [(3, 4), (5, 4)]),
        (functional.pdist, [(4, 3)]),
        (torch.dist, [(3, 4), (3, 4)]),
        (lambda x: torch.renorm(x, 2, 0, 1.0), [(4, 6)]),
    ],
)
def test_rare_operators_are_listed(function: Callable[..., Any], shapes: list[tuple[int, ...]]) -> None:
    table = counted(Functional(function), *shapes, complete=False)
    assert len(table.uncovered) == 1


def test_a_temporal_convolution() -> None:
    assert applied(torch.conv_tbc, (6, 2, 3), (3, 3, 4), (4,)) == (4 * 2 * 4 * 9, 2 * 288 + 32, 2 * 288)


# Fourier transforms


@pytest.mark.parametrize(
    ("function", "kind", "shape", "share", "points"),
    [
        (torch.fft.fft, "complex64", (2, 8), 5.0, 8),
        (torch.fft.fft, "float32", (2, 8), 2.5, 8),
        (torch.fft.rfft, "float32", (2, 8), 2.5, 8),
        (torch.fft.irfft, "complex64", (2, 5), 2.5, 8),
        (torch.fft.fft2, "complex64", (2, 4, 4), 5.0, 16),
        (lambda x: torch.fft.fft(x, n=16), "complex64", (2, 8), 5.0, 16),
        (torch.fft.fft, "complex64", (2, 1), 5.0, 1),
    ],
)
def test_fourier_transforms(
    function: Callable[..., Any], kind: str, shape: tuple[int, ...], share: float, points: int
) -> None:
    """``5 n log2 n`` by Cooley and Tukey, half of it with a real side."""
    expected = 2 * round(share * points * math.log2(points))
    assert applied(function, typed(kind, *shape))[1] == expected


# Sparse tensors: on real tensors, as on meta they do not tell how much they store

STORED = torch.tensor([[0.0, 1, 0, 2], [0, 0, 0, 3], [0, 0, 0, 0], [4, 0, 5, 0]])


@pytest.mark.parametrize("layout", ["to_sparse", "to_sparse_csr"])
@pytest.mark.parametrize(
    ("function", "other", "macs"),
    [
        (lambda a, x: a @ x, (4, 3), 5 * 3),
        (torch.mm, (4, 3), 5 * 3),
        (lambda a, x: a @ x, (4,), 5),
        (torch.sparse.mm, (4, 3), 5 * 3),
        (lambda a, x: torch.addmm(torch.ones(4, 3), a, x), (4, 3), 5 * 3),
        (lambda a, x: x @ a, (3, 4), 5 * 3),
    ],
)
def test_only_what_a_sparse_matrix_stores_is_multiplied(
    layout: str, function: Callable[..., Any], other: tuple[int, ...], macs: int
) -> None:
    table = counted(Functional(function), getattr(STORED, layout)(), other, complete=False)
    assert table.method.startswith("real forward")
    assert (table.macs, table.uncovered) == (macs, {})
    assert table.flops is not None
    assert table.flops >= 2 * macs
    assert table.ops is not None
    assert table.ops >= 0


def test_quantised_operators_are_listed() -> None:
    """Those of torch.ao, which torch is going to remove; the modules run for real."""
    into: Any = torch.ao.nn.quantized.Quantize(0.1, 0, torch.quint8)  # type: ignore[no-untyped-call]
    linear: Any = torch.ao.nn.quantized.Linear(4, 8)  # type: ignore[no-untyped-call]
    static = nn.Sequential(into, linear, torch.ao.nn.quantized.DeQuantize())
    table = counted(static, (3, 4), complete=False)
    assert (table.uncovered, table.macs, table.params) == ({"quantized::linear": 1}, 0, 4 * 8 + 8)
    dynamic = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(4, 8)).eval(), {nn.Linear})  # type: ignore[no-untyped-call]
    table = counted(dynamic, (3, 4), complete=False)
    assert (table.uncovered, table.macs, table.params) == ({"quantized::linear_dynamic": 1}, 0, 4 * 8 + 8)


# Backwards


class Trained(nn.Module):
    """Has a parameter, whatever it applies."""

    def __init__(self, applied: Callable[..., Any]) -> None:
        super().__init__()
        self.factor, self.applied = nn.Parameter(torch.ones(1)), applied

    def forward(self, x: torch.Tensor) -> Any:
        return self.applied(x * self.factor)


def trained(module: nn.Module, given_input: torch.Tensor) -> Training:
    step = count_training(module, Inputs((given_input,)))
    assert (step.estimated, step.uncovered) == (None, {})
    return step


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.Linear(8, 5), (2, 3, 8)),
        (nn.Conv1d(4, 6, 3, groups=2), (2, 4, 8)),
        (nn.Conv2d(4, 6, 3, padding=1, stride=2), (2, 4, 8, 8)),
        (nn.Conv3d(4, 6, 3, dilation=2), (2, 4, 6, 6, 6)),
        (nn.ConvTranspose1d(4, 6, 3), (2, 4, 8)),
        (nn.ConvTranspose2d(4, 6, 3, 2, groups=2), (2, 4, 8, 8)),
        (nn.ConvTranspose3d(4, 6, 3), (2, 4, 4, 4, 4)),
        (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), (2, 5, 8)),
        (Trained(lambda x: functional.scaled_dot_product_attention(x, x, x)), (2, 4, 5, 8)),
        (Trained(lambda x: x @ x.transpose(1, 2)), (2, 5, 8)),
    ],
)
def test_a_backward_takes_twice_the_products(module: nn.Module, shape: tuple[int, ...]) -> None:
    """One for the gradient of each operand."""
    step = trained(module, torch.ones(shape, requires_grad=True))
    assert step.forward_macs > 0
    assert step.backward_macs == 2 * step.forward_macs
    assert step.backward_flops >= 2 * step.backward_macs


KINDS = (
    "ELU GELU Hardshrink Hardsigmoid Hardswish Hardtanh LeakyReLU LogSigmoid Mish PReLU RReLU ReLU SELU SiLU Sigmoid Softplus "
    "Softshrink Tanh Tanhshrink GLU Softmin LogSoftmax BatchNorm2d InstanceNorm2d AvgPool2d MaxPool2d AdaptiveAvgPool2d "
    "AdaptiveMaxPool2d ReflectionPad2d ReplicationPad2d LayerNorm GroupNorm RMSNorm LocalResponseNorm LPPool2d "
    "UpsamplingBilinear2d UpsamplingNearest2d L1Loss MSELoss SmoothL1Loss HuberLoss BCELoss BCEWithLogitsLoss"
).split()
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys("BatchNorm2d InstanceNorm2d".split(), (4,)),
    **dict.fromkeys("AvgPool2d MaxPool2d AdaptiveAvgPool2d AdaptiveMaxPool2d ReflectionPad2d ReplicationPad2d".split(), (2,)),
    "LayerNorm": (8,), "RMSNorm": (8,), "GroupNorm": (2, 4), "LocalResponseNorm": (3,), "LPPool2d": (2, 2),
    "UpsamplingBilinear2d": (None, 2), "UpsamplingNearest2d": (None, 2),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_every_backward_is_covered(kind: str) -> None:
    module = getattr(nn, kind)(*ARGUMENTS.get(kind, ()))
    apply = (lambda x: module(x, x.detach())) if kind.endswith("Loss") else module
    step = trained(Trained(apply), torch.ones(2, 4, 8, 8, requires_grad=True))
    assert step.backward_macs == 0
    assert step.backward_flops > 0


@pytest.mark.parametrize(
    "module", [nn.Embedding(9, 3), *[nn.EmbeddingBag(9, 3, mode=mode) for mode in ("sum", "mean", "max")]]
)
def test_backwards_of_embeddings(module: nn.Module) -> None:
    step = trained(module, torch.zeros(2, 4, dtype=torch.int64))
    assert step.backward_flops == 2 * 4 * 3


def test_backwards_of_sampling() -> None:
    sampled = Trained(lambda x: functional.grid_sample(x, x[:, :2].permute(0, 2, 3, 1), align_corners=False))
    assert trained(sampled, torch.ones(2, 4, 8, 8, requires_grad=True)).backward_flops >= 2 * 4 * 8 * 8


@pytest.mark.parametrize("kind", ["RNN", "GRU", "LSTM"])
def test_backwards_of_recurrent_networks(kind: str) -> None:
    """Twice the products but for the first state, which needs no gradient, and none is there."""
    module = getattr(nn, kind)(8, 6, bidirectional=True)
    step = trained(module, torch.ones(5, 3, 8, requires_grad=True))
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}[kind]
    assert step.forward_macs == 2 * 5 * 3 * gates * 6 * (8 + 6)
    assert step.backward_macs == 2 * step.forward_macs - 2 * 3 * gates * 6 * 6


# Operators that other devices or versions run in place of those above, called here with shapes alone


def ruled(name: str, *args: Any, output: Any, **kwargs: Any) -> tuple[int, int, int]:
    return COSTS[f"aten::{name}"](args, kwargs, output)


def meta(*shape: int) -> torch.Tensor:
    return torch.empty(shape, device="meta")


@pytest.mark.parametrize("kind", "flash efficient cudnn fused_attention_overrideable flash_attention_for_cpu".split())
@pytest.mark.parametrize("masked", [False, True])
def test_fused_attention(kind: str, masked: bool) -> None:
    name = f"_scaled_dot_product_{kind}" if "attention" in kind else f"_scaled_dot_product_{kind}_attention"
    query, mask = meta(2, 4, 5, 8), meta(5, 5)
    arguments: tuple[Any, ...] = (query, query, query)
    keywords: dict[str, Any] = {}
    if masked:
        keywords = {"attn_mask": mask} if kind.endswith("cpu") else {}
        arguments = arguments if kind.endswith("cpu") or kind == "flash" else (*arguments, mask)
    plain = applied(functional.scaled_dot_product_attention, *[(2, 4, 5, 8)] * 3)
    adds = 2 * 4 * 25 if masked and kind != "flash" else 0
    assert ruled(name, *arguments, output=(query,), **keywords) == (plain[0], plain[1] + adds, plain[2] + adds)
    backward = ruled(f"{name}_backward", query, query, query, query, output=(query,) * 3)
    assert backward[0] == 2 * plain[0]


@pytest.mark.parametrize(
    ("name", "extra"),
    [
        ("cudnn_convolution", ([0, 0], [1, 1], [1, 1], 1, False, False, True)),
        ("mkldnn_convolution", (None, [0, 0], [1, 1], [1, 1], 1)),
        ("miopen_convolution", (None, [0, 0], [1, 1], [1, 1], 1, False, False)),
        ("_conv_depthwise2d", ([3, 3], None, [1, 1], [0, 0], [1, 1])),
        ("slow_conv_dilated2d", ([3, 3], None, [1, 1])),
        ("convolution_overrideable", (None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)),
    ],
)
def test_convolutions_of_other_devices(name: str, extra: tuple[Any, ...]) -> None:
    expected = figures(counted(nn.Conv2d(3, 4, 3, bias=False), (2, 3, 8, 8)))
    assert ruled(name, meta(2, 3, 8, 8), meta(4, 3, 3, 3), *extra, output=meta(2, 4, 6, 6)) == expected
    having = tuple(meta(4) if value is None else value for value in extra)
    outputs = 2 * 4 * 36 if having != extra else 0
    with_bias = ruled(name, meta(2, 3, 8, 8), meta(4, 3, 3, 3), *having, output=meta(2, 4, 6, 6))
    assert with_bias == (expected[0], expected[1] + outputs, expected[2] + outputs)


@pytest.mark.parametrize("name", ["slow_conv_transpose2d", "cudnn_convolution_transpose"])
def test_transposed_convolutions_of_other_devices(name: str) -> None:
    expected = figures(counted(nn.ConvTranspose2d(3, 4, 3, bias=False), (2, 3, 8, 8)))
    assert ruled(name, meta(2, 3, 8, 8), meta(3, 4, 3, 3), [3, 3], None, output=meta(2, 4, 10, 10)) == expected


def test_batch_norms_of_other_devices() -> None:
    given_input, held = meta(2, 3, 8, 8), meta(3)
    for training in (False, True):
        expected = figures(counted(nn.BatchNorm2d(3).train(training), (2, 3, 8, 8)))
        arguments = (given_input, held, held, held, held, training, 0.1, 1e-5)
        for name in ("native_batch_norm", "_native_batch_norm_legit", "cudnn_batch_norm", "_batch_norm_impl_index"):
            assert ruled(name, *arguments, output=(given_input,)) == expected
    statistics = ruled("batch_norm_stats", given_input, 1e-5, output=(held, held))
    elements = ruled("batch_norm_elemt", given_input, held, held, held, held, 1e-5, output=given_input)
    assert tuple(map(sum, zip(statistics, elements, strict=True))) == expected
    inference = ruled("_native_batch_norm_legit_no_training", given_input, held, held, held, held, 0.1, 1e-5, output=())
    assert inference == figures(counted(nn.BatchNorm2d(3).eval(), (2, 3, 8, 8)))


def test_recurrent_networks_of_other_kernels() -> None:
    """One layer and direction in oneDNN; on CUDA the gates are left after the products."""
    module = nn.LSTM(8, 6).eval()
    expected = figures(counted(module, (5, 3, 8)))
    weights = meta(24, 8), meta(24, 6), meta(24), meta(24)
    tail: tuple[Any, ...] = (meta(1, 3, 6), meta(1, 3, 6), False, [], 2, 6, 1, True, False, False, False)
    assert ruled("mkldnn_rnn_layer", meta(5, 3, 8), *weights, *tail, output=()) == expected
    cell = counted(nn.LSTMCell(8, 6), (3, 8))
    gates = ruled("_thnn_fused_lstm_cell", meta(3, 24), meta(3, 24), meta(3, 6), meta(24), meta(24), output=())
    assert cell.flops == 2 * cell.macs + gates[1]


def test_a_native_multi_head_attention_takes_the_products_of_its_parts() -> None:
    given_input = meta(2, 5, 16)
    weights = meta(48, 16), meta(48), meta(16, 16), meta(16)
    cost = ruled("_native_multi_head_attention", given_input, given_input, given_input, 16, 4, *weights, output=())
    assert cost[0] == 2 * 5 * 4 * 16 * 16 + 2 * 2 * 5 * 5 * 16


def test_a_triangular_system_is_solved_by_substitution() -> None:
    """By hand for n = 4 and 3 columns: row i needs i multiply-accumulates and a division for each column."""
    macs = 3 * (0 + 1 + 2 + 3)
    for shape, left in (((2, 4, 3), True), ((2, 3, 4), False)):
        for unit, divisions in ((False, 4 * 3), (True, 0)):
            solve = partial(torch.linalg.solve_triangular, upper=False, left=left, unitriangular=unit)
            each = 2 * macs + divisions
            assert applied(solve, (2, 4, 4), shape) == (2 * macs, 2 * each, 2 * each)


# What has no formula


@pytest.mark.parametrize(
    "function", [torch.linalg.inv, torch.linalg.svd, torch.linalg.qr, torch.linalg.eigh, torch.linalg.matrix_exp]
)
def test_decompositions_are_listed(function: Callable[..., Any]) -> None:
    table = counted(Functional(function), (4, 4), complete=False)
    assert len(table.uncovered) == 1
    assert figures(table) == (0, 0, 0)
