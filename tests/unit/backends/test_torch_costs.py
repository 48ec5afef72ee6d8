"""The table of costs: what is in it, and what it says of single operators."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from support.torch_modules import Functional, counted, figures
from sweeprof.backends.torch.costs import COSTS
from sweeprof.backends.torch.costs.free import FREE, does_no_arithmetic
from sweeprof.backends.torch.costs.rule import product
from sweeprof.profiling.inputs import TensorSpec

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

OTHER_VERSIONS: frozenset[str] = frozenset()
"""Names of the table that this version of torch does not have."""


def every_operator() -> set[str]:
    return {schema.name for schema in torch._C._jit_get_all_schemas()}


def applied(function: Callable[..., Any], *given: Any, **keywords: Any) -> tuple[int, int, int]:
    return figures(counted(Functional(function), *given, **keywords))


def typed(kind: str, *shape: int) -> TensorSpec:
    return TensorSpec(shape, kind)


def test_nothing_is_both_free_and_counted() -> None:
    assert {name.removeprefix("aten::") for name in COSTS} & FREE == set()


def test_every_name_is_an_operator() -> None:
    """Every elementwise operator is entered with its twin in place, which not all of them have."""
    unknown = {name for name in COSTS if name not in every_operator()} - OTHER_VERSIONS
    assert {name for name in unknown if name.removesuffix("_") not in COSTS} == set()
    assert {name for name in unknown if name.removesuffix("_") not in every_operator()} == set()
    assert {name for name in FREE if f"aten::{name}" not in every_operator()} == set()


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
    assert product(length * sums, sums, tensor, bias=bias) == (length * sums, flops, ops)


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


def test_distances_of_all_pairs() -> None:
    assert applied(torch.cdist, (3, 4), (5, 4)) == (0, 3 * 3 * 5 * 4, 3 * 3 * 5 * 4)
    assert applied(functional.pdist, (4, 3)) == (0, 3 * 6 * 3, 3 * 6 * 3)


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


# Quantised modules: they run for real; an integer multiply-accumulate is one, and no FLOP


def quantised(kind: type[nn.Module], module: nn.Module) -> nn.Module:
    return torch.ao.quantization.quantize_dynamic(nn.Sequential(module).eval(), {kind})  # type: ignore[no-untyped-call, no-any-return]


@pytest.mark.parametrize(
    ("kind", "module", "shape", "other_flops"),
    [
        (nn.Linear, nn.Linear(4, 8), (3, 4), 0),
        (nn.LSTM, nn.LSTM(4, 8, 2, bidirectional=True), (5, 3, 4), 2 * 2 * 15 * 8 * 13),
        (nn.GRU, nn.GRU(4, 8), (5, 3, 4), 15 * 8 * 11),
        (nn.LSTMCell, nn.LSTMCell(4, 8), (3, 4), 3 * 8 * 13),
        (nn.GRUCell, nn.GRUCell(4, 8), (3, 4), 3 * 8 * 11),
        (nn.RNNCell, nn.RNNCell(4, 8), (3, 4), 3 * 8 * 2),
    ],
)
def test_dynamically_quantised_modules(
    kind: type[nn.Module], module: nn.Module, shape: tuple[int, ...], other_flops: int
) -> None:
    plain = counted(module.eval(), shape)
    table = counted(quantised(kind, module), shape, complete=False)
    assert table.uncovered == {}
    assert (table.macs, table.ops) == (plain.macs, plain.ops)
    assert table.flops == other_flops


def statically(*modules: nn.Module) -> nn.Module:
    into: Any = torch.ao.nn.quantized.Quantize(0.1, 0, torch.quint8)  # type: ignore[no-untyped-call]
    return nn.Sequential(into, *modules, torch.ao.nn.quantized.DeQuantize())  # type: ignore[no-untyped-call]


@pytest.mark.parametrize(
    ("quantised_kind", "plain", "shape"),
    [
        ("Linear", nn.Linear(4, 8), (3, 4)),
        ("Conv1d", nn.Conv1d(4, 6, 3), (2, 4, 8)),
        ("Conv2d", nn.Conv2d(4, 6, 3, 2, 1, groups=2), (2, 4, 8, 8)),
        ("ConvTranspose2d", nn.ConvTranspose2d(4, 6, 3, 2), (2, 4, 8, 8)),
    ],
)
def test_statically_quantised_modules(quantised_kind: str, plain: Any, shape: tuple[int, ...]) -> None:
    if quantised_kind == "Linear":
        arguments, keywords = (4, 8), {}
    else:
        arguments, keywords = (
            (plain.in_channels, plain.out_channels, plain.kernel_size, plain.stride, plain.padding),
            {"groups": plain.groups},
        )
    module = statically(getattr(torch.ao.nn.quantized, quantised_kind)(*arguments, **keywords))
    table, expected = counted(module, shape, complete=False), counted(plain, shape)
    assert table.uncovered == {}
    assert (table.macs, table.flops, table.ops) == (expected.macs, 0, expected.ops)
    assert table.params == expected.params


@pytest.mark.parametrize(("kind", "each"), [("BatchNorm2d", 4), ("ReLU6", 2), ("Hardswish", 5)])
def test_elementwise_quantised_modules(kind: str, each: int) -> None:
    arguments = {"BatchNorm2d": (3,), "Hardswish": (0.1, 0)}.get(kind, ())
    table = counted(statically(getattr(torch.ao.nn.quantized, kind)(*arguments)), (2, 3, 4, 4), complete=False)
    assert (table.macs, table.flops, table.ops, table.uncovered) == (0, 0, each * 96, {})


def test_a_quantised_operator_without_a_formula_is_listed() -> None:
    table = counted(statically(torch.ao.nn.quantized.Softmax(1, 0.1, 0)), (2, 3), complete=False)  # type: ignore[no-untyped-call]
    assert table.uncovered != {} or table.ops
    table = counted(statically(torch.ao.nn.quantized.ELU(0.1, 0)), (2, 3), complete=False)
    assert table.uncovered != {} or table.ops


# What has no formula


@pytest.mark.parametrize(
    "function", [torch.linalg.inv, torch.linalg.svd, torch.linalg.qr, torch.linalg.eigh, torch.linalg.matrix_exp]
)
def test_decompositions_are_listed(function: Callable[..., Any]) -> None:
    table = counted(Functional(function), (4, 4), complete=False)
    assert len(table.uncovered) == 1
    assert figures(table) == (0, 0, 0)
