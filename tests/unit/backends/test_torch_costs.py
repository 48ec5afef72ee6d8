"""The table of costs: what is in it, what it says of single operators and of those that take functions, and its documentation."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import _higher_order_ops as higher_order
from torch import nn
from torch._higher_order_ops import associative_scan, scan
from torch._higher_order_ops.hints_wrap import hints_wrapper
from torch._higher_order_ops.wrap import wrap
from torch._ops import HigherOrderOperator
from torch.nn import functional
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import sweeprof
from support.peer_models import MODELS
from support.torch_modules import Applied, Functional, counted, figures
from sweeprof.backends.torch.costs import COSTS, FREE
from sweeprof.backends.torch.dispatch import known_operator
from sweeprof.backends.torch.training import count_training
from sweeprof.measuring.inputs import Inputs, TensorSpec
from sweeprof.metrics import compat
from sweeprof.metrics.metric import Metric
from sweeprof.results.layers import Training

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


def applied(function: Callable[..., Any], *given: Any, **keywords: Any) -> tuple[int, int, int]:
    return figures(counted(Functional(function), *given, **keywords))


def test_every_name_is_an_operator() -> None:
    """Every elementwise operator is entered with its twin in place, which not all of them have."""
    assert {name.removeprefix("aten::") for name in COSTS} & FREE == set()
    every_operator = {schema.name for schema in torch._C._jit_get_all_schemas()}
    unknown = COSTS.keys() - every_operator
    assert {name for name in unknown if name.removesuffix("_") not in every_operator & COSTS.keys()} == set()
    assert {name for name in FREE if f"aten::{name}" not in every_operator} == set()


# Figures by hand


# These are not typed, or for other functions than they take.
map_over: Any = importlib.import_module("torch._higher_order_ops.map").map
while_loop: Any = higher_order.while_loop


def three_times(x: torch.Tensor) -> Any:
    return while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, y @ y), (torch.tensor(0), x))


def constant_branch(x: torch.Tensor) -> Any:
    decides = torch.ones(2, dtype=torch.int64).sum() > 0
    return torch.cond(decides, square, lambda y: y + 1, (x,))


def square(x: torch.Tensor) -> torch.Tensor:
    return x @ x


def of_integers(x: torch.Tensor) -> Any:
    y = (x + x) * 3 // 2 - x.sum() + x.cumsum(0) + x.abs() + x.clamp(0, 3)
    return functional.max_pool2d(y[None, None], 2) > 1


MATRIX = (3, 4)
WHOLE, COMPLEX = TensorSpec(MATRIX, "int64"), TensorSpec(MATRIX, "complex64")
PLACES = TensorSpec((3,), "int64")
IMAGE, VOLUME = [(2, 3, 4, 4), (2, 5, 6, 2)], [(2, 3, 4, 4, 4), (2, 5, 6, 7, 3)]
strict_mode: Any = importlib.import_module("torch._higher_order_ops.strict_mode").strict_mode
ROWS = (2, 6, 4)
"""2 · 6 rows of 4 elements, or 2 · 3 of 8 with three groups: four operations of a norm for each."""
OPERATORS: dict[str, tuple[Callable[..., Any], list[Any], int, int, int]] = {
    # function, inputs, MACs, FLOPs, textbook operations
    "add": (lambda x: x + x, [MATRIX], 0, 12, 12),
    "add in place": (lambda x: x.clone().add_(x), [MATRIX], 0, 12, 12),
    "add with out": (lambda x: torch.add(x, x, out=torch.empty_like(x)), [MATRIX], 0, 12, 12),
    "add a number": (lambda x: x + 1, [MATRIX], 0, 12, 12),
    "added to a number": (lambda x: 1 + x, [MATRIX], 0, 12, 12),
    "relu in place": (lambda x: torch.relu_(x.clone()), [MATRIX], 0, 12, 12),
    "clamp": (lambda x: x.clamp(0, 1), [MATRIX], 0, 12, 12),
    "multiply in place": (lambda x: x.clone().mul_(2), [MATRIX], 0, 12, 12),
    "broadcast": (lambda x: x - x[0], [MATRIX], 0, 12, 12),
    "max of two": (lambda x: torch.max(x, x), [MATRIX], 0, 12, 12),
    "maximum": (lambda x: x.maximum(x), [MATRIX], 0, 12, 12),
    **{name: (getattr(torch, name), [MATRIX], 0, 12, 12) for name in "sqrt exp log abs neg".split()},
    **{name: (getattr(torch, name), [MATRIX] * 2, 0, 12, 12) for name in "mul div pow minimum".split()},
    **{name: (getattr(torch, name), [MATRIX] * 3, 0, 36, 36) for name in "lerp addcmul addcdiv".split()},
    "rsqrt": (torch.rsqrt, [MATRIX], 0, 12, 24),
    "product": (lambda x: torch.mm(x, x), [(4, 4)], 64, 128, 112),
    "product with out": (lambda x: torch.mm(x, x, out=torch.empty_like(x)), [(4, 4)], 64, 128, 112),
    "nothing added to a product": (lambda x: x.addmm(x, x, beta=0), [(4, 4)], 64, 128, 112),
    # products that are added to something
    "addmm": (torch.addmm, [(4,), (2, 3), (3, 4)], 24, 48 + 2 * 4, 48),
    "addmv": (torch.addmv, [(2,), (2, 3), (3,)], 6, 12 + 2, 12),
    "baddbmm": (torch.baddbmm, [(5, 2, 4), (5, 2, 3), (5, 3, 4)], 120, 240 + 5 * 2 * 4, 240),
    "addbmm": (torch.addbmm, [(2, 4), (5, 2, 3), (5, 3, 4)], 120, 240 + 2 * 4, 240),
    "addmm in place": (lambda x, *rest: x.clone().addmm_(*rest), [(2, 4), (2, 3), (3, 4)], 24, 48 + 2 * 4, 48),
    "addmm with out": (lambda *given: torch.addmm(*given, out=torch.empty(2, 4)), [(4,), (2, 3), (3, 4)], 24, 48 + 2 * 4, 48),
    # an outer product: one multiplication for each element; a complex one is four and two additions, a complex addition two
    "outer": (torch.outer, [(3,), (4,)], 0, 12, 12),
    "kron": (torch.kron, [(3,), (4,)], 0, 12, 12),
    "outer einsum": (lambda x, y: torch.einsum("bi,bj->bij", x[None], y[None]), [(3,), (4,)], 0, 12, 12),
    "outer by broadcasting": (lambda x, y: x[:, None] * y, [(3,), (4,)], 0, 12, 12),
    "nothing added to an outer product": (lambda x, y: x.new_empty(3, 4).addr_(x, y, beta=0), [(3,), (4,)], 0, 12, 12),
    "addr": (torch.addr, [(3, 4), (3,), (4,)], 0, 24, 24),
    "complex addr": (torch.addr, [COMPLEX, TensorSpec((3,), "complex64"), TensorSpec((4,), "complex64")], 0, 96, 96),
    # Fourier transforms of 8 or 16 points: 5 n log2 n by Cooley and Tukey, half of it with a real side
    "fft": (torch.fft.fft, [TensorSpec((2, 8), "complex64")], 0, 2 * 5 * 8 * 3, 2 * 5 * 8 * 3),
    "fft of reals": (torch.fft.fft, [(2, 8)], 0, 5 * 8 * 3, 5 * 8 * 3),
    "rfft": (torch.fft.rfft, [(2, 8)], 0, 5 * 8 * 3, 5 * 8 * 3),
    "irfft": (torch.fft.irfft, [TensorSpec((2, 5), "complex64")], 0, 5 * 8 * 3, 5 * 8 * 3),
    "fft2": (torch.fft.fft2, [TensorSpec((2, 4, 4), "complex64")], 0, 2 * 5 * 16 * 4, 2 * 5 * 16 * 4),
    "padded fft": (lambda x: torch.fft.fft(x, n=16), [TensorSpec((2, 8), "complex64")], 0, 2 * 5 * 16 * 4, 2 * 5 * 16 * 4),
    "list": (lambda x: torch._foreach_add([x, x[0]], 1.0), [MATRIX], 0, 16, 16),
    "list in place": (lambda x: torch._foreach_mul_([x.clone(), x[0].clone()], 2.0), [MATRIX], 0, 16, 16),
    # without a rule: one operation per element; torch tags only what returns as elementwise
    "copysign": (torch.copysign, [MATRIX] * 2, 0, 12, 12),
    "copysign in place": (lambda x, y: x.copysign_(y), [MATRIX] * 2, 0, 12, 12),
    "copysign with out": (lambda x, y: torch.ops.aten.copysign.out(x, y, out=torch.empty_like(x)), [MATRIX] * 2, 0, 12, 12),
    # types of numbers
    "integers": (of_integers, [TensorSpec((4, 4), "int64")], 0, 0, 0),
    "shifted integers": (lambda x: x << 1, [WHOLE], 0, 0, 0),
    "shifted integers with out": (lambda x: torch.ops.aten.__lshift__.Scalar_out(x, 1, out=torch.empty_like(x)), [WHOLE], 0, 0, 0),
    "product of integers": (torch.mm, [WHOLE, TensorSpec((4, 5), "int64")], 60, 0, 105),
    "complex add": (torch.add, [COMPLEX] * 2, 0, 24, 24),
    "complex sub": (torch.sub, [COMPLEX] * 2, 0, 24, 24),
    "complex mul": (torch.mul, [COMPLEX] * 2, 0, 72, 72),
    "complex div": (torch.div, [COMPLEX] * 2, 0, 132, 132),
    "complex neg": (torch.neg, [COMPLEX], 0, 24, 24),
    "complex products": (
        torch.bmm, [TensorSpec((2, 3, 4), "complex64"), TensorSpec((2, 4, 5), "complex64")],
        120, 8 * 120, 6 * 120 + 2 * 90
    ),
    "complex sum": (lambda x: x.sum(1), [COMPLEX], 0, 24, 18),
    "polar": (torch.polar, [MATRIX] * 2, 0, 48, 48),
    "complex of two": (torch.complex, [MATRIX] * 2, 0, 0, 0),
    # norms
    "layer norm": (lambda x: functional.layer_norm(x, (4,)), [ROWS], 0, 4 * 48, 5 * 48 + 4 * 12),
    "layer norm with a weight": (lambda x: functional.layer_norm(x, (4,), torch.ones(4)), [ROWS], 0, 5 * 48, 6 * 48 + 4 * 12),
    "layer norm with a bias": (
        lambda x: functional.layer_norm(x, (4,), torch.ones(4), torch.ones(4)), [ROWS], 0, 5 * 48, 7 * 48 + 4 * 12
    ),
    "group norm": (lambda x: functional.group_norm(x, 3, torch.ones(6)), [ROWS], 0, 5 * 48, 6 * 48 + 4 * 6),
    "group norm with a bias": (
        lambda x: functional.group_norm(x, 3, torch.ones(6), torch.ones(6)), [ROWS], 0, 5 * 48, 7 * 48 + 4 * 6
    ),
    "instance norm": (lambda x: functional.instance_norm(x, weight=torch.ones(6)), [ROWS], 0, 5 * 48, 6 * 48 + 4 * 12),
    # reductions
    "sum": (torch.sum, [MATRIX], 0, 12, 11),
    "sums": (lambda x: x.sum(1), [MATRIX], 0, 12, 9),
    "prod": (torch.prod, [MATRIX], 0, 12, 11),
    "mean": (torch.mean, [MATRIX], 0, 12, 12),
    "means": (lambda x: x.mean(1), [MATRIX], 0, 12, 12),
    "amax": (torch.amax, [MATRIX], 0, 12, 11),
    "max": (lambda x: x.max(1), [MATRIX], 0, 12, 9),
    "var": (torch.var, [MATRIX], 0, 48, 48),
    "vector norm": (torch.linalg.vector_norm, [MATRIX], 0, 24, 24),
    "logsumexp": (lambda x: x.logsumexp(1), [MATRIX], 0, 12, 3 * 12 + 3),
    "cumsum": (lambda x: x.cumsum(1), [MATRIX], 0, 12, 12),
    "trace": (torch.trace, [MATRIX], 0, 3, 2),
    "argmax": (torch.argmax, [MATRIX], 0, 0, 0),
    "sort": (lambda x: x.sort(1), [MATRIX], 0, 0, 0),
    "topk": (lambda x: x.topk(2), [MATRIX], 0, 0, 0),
    "greater": (lambda x: x > 0, [MATRIX], 0, 0, 0),
    "median": (torch.median, [MATRIX], 0, 0, 0),
    # checks and copies
    "all true": (lambda x: torch._is_all_true(x > 0), [MATRIX], 0, 0, 0),
    "assertion": (lambda x: torch._assert_async((x > 0).all(), "positive"), [MATRIX], 0, 0, 0),
    "isin": (lambda x: torch.isin(x, x), [MATRIX], 0, 0, 0),
    "compared in place": (lambda x: x.clone().ge_(0), [MATRIX], 0, 0, 0),
    "random numbers": (lambda x: x.new_empty(3, 4).uniform_(), [MATRIX], 0, 0, 0),
    "slice_copy": (lambda x: torch.slice_copy(x, 0, 1, 2), [MATRIX], 0, 0, 0),
    # scattering counts where it adds
    "index_add": (lambda x, i: x.new_zeros(5, 4).index_add(0, i, x), [MATRIX, PLACES], 0, 12, 12),
    "index_put that adds": (lambda x, i: x.new_zeros(5, 4).index_put((i,), x, accumulate=True), [MATRIX, PLACES], 0, 12, 12),
    "index_put in place that adds": (
        lambda x, i: x.new_zeros(5, 4).index_put_((i,), x, accumulate=True), [MATRIX, PLACES], 0, 12, 12
    ),
    "index_put": (lambda x, i: x.new_zeros(5, 4).index_put((i,), x), [MATRIX, PLACES], 0, 0, 0),
    "index_copy": (lambda x, i: x.new_zeros(5, 4).index_copy(0, i, x), [MATRIX, PLACES], 0, 0, 0),
    "scatter_add": (lambda x, i: x.new_zeros(5, 4).scatter_add(0, i[:, None].expand(3, 4), x), [MATRIX, PLACES], 0, 12, 12),
    "scatter_reduce": (
        lambda x, i: x.new_zeros(5, 4).scatter_reduce(0, i[:, None].expand(3, 4), x, "amax"), [MATRIX, PLACES], 0, 12, 12
    ),
    "scatter": (lambda x, i: x.new_zeros(5, 4).scatter(0, i[:, None].expand(3, 4), x), [MATRIX, PLACES], 0, 0, 0),
    "scatter that adds": (
        lambda x, i: x.new_zeros(5, 4).scatter(0, i[:, None].expand(3, 4), x, reduce="add"), [MATRIX, PLACES], 0, 12, 12
    ),
    "index": (lambda x, i: x[i], [MATRIX, PLACES], 0, 0, 0),
    "index_select": (lambda x, i: x.index_select(0, i), [MATRIX, PLACES], 0, 0, 0),
    # 2 · 3 · 5 · 6 places in an image, 7 times as many in a volume
    "bilinear samples": (partial(functional.grid_sample, align_corners=False), IMAGE, 0, 7 * 180, 7 * 180),
    "nearest samples": (partial(functional.grid_sample, mode="nearest", align_corners=False), IMAGE, 0, 0, 0),
    "bicubic samples": (partial(functional.grid_sample, mode="bicubic", align_corners=False), IMAGE, 0, 31 * 180, 31 * 180),
    "trilinear samples": (partial(functional.grid_sample, align_corners=False), VOLUME, 0, 15 * 1260, 15 * 1260),
    "convolution over time": (torch.conv_tbc, [(6, 2, 3), (3, 3, 4), (4,)], 4 * 2 * 4 * 9, 2 * 288 + 32, 2 * 288),
    # operators that take functions, which run as often as they are called, whatever the values
    "wrap": (lambda x: wrap(torch.mm, x, x), [(4, 4)], 64, 128, 112),
    "hints_wrapper": (lambda x: hints_wrapper(square, (x,), {}, hints={}), [(4, 4)], 64, 128, 112),
    "strict_mode": (lambda x: strict_mode(square, (x,)), [(4, 4)], 64, 128, 112),
    "checkpoint": (lambda x: checkpoint(square, x, use_reentrant=False), [(4, 4)], 64, 128, 112),
    "nested region": (torch.compiler.nested_compile_region(square), [(4, 4)], 64, 128, 112),
    "constant branch": (constant_branch, [(4, 4)], 64, 128, 112),
    "map": (lambda x: map_over(square, x), [(3, 4, 4)], 3 * 64, 3 * 128, 3 * 112),
    "scan": (lambda x: scan(lambda kept, y: (kept @ y, y.clone()), x[0], x), [(3, 4, 4)], 3 * 64, 3 * 128, 3 * 112),
    "while_loop": (three_times, [(4, 4)], 3 * 64, 3 * 128, 3 * 112),
    # eight elements in a tree: 4 + 2 + 1 products upwards, 1 + 3 downwards
    "associative_scan": (partial(associative_scan, torch.mul, dim=0, combine_mode="generic"), [(8, 4)], 0, 11 * 4, 11 * 4),
}  # fmt: skip


@pytest.mark.parametrize(("function", "given", "macs", "flops", "ops"), OPERATORS.values(), ids=OPERATORS)
def test_an_operator_by_hand(function: Callable[..., Any], given: list[Any], macs: int, flops: int, ops: int) -> None:
    assert applied(function, *given) == (macs, flops, ops)


def test_the_weight_of_a_normalised_layer_is_computed_at_every_call() -> None:
    module = torch.nn.utils.parametrizations.weight_norm(nn.Linear(4, 3, bias=False)).eval()
    rows, elements = 3, 12
    assert counted(module, (2, 4)).flops == 2 * 2 * 12 + 3 * elements + 2 * rows


def test_an_affine_grid_is_a_product_of_positions_and_a_matrix() -> None:
    table = applied(lambda x: functional.affine_grid(x, [2, 3, 4, 5], align_corners=False), (2, 2, 3))
    assert table[0] == 2 * 4 * 5 * 2 * 3


# What writes in place or into ``out``


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


# Sparse tensors: on real tensors, as on meta they do not tell how much they store

STORED = torch.tensor([[0.0, 1, 0, 2], [0, 0, 0, 3], [0, 0, 0, 0], [4, 0, 5, 0]])


@pytest.mark.parametrize("layout", ["to_sparse", "to_sparse_csr"])
@pytest.mark.parametrize(
    ("function", "other", "macs", "added"),
    [
        (lambda a, x: a @ x, (4,), 5, 0),
        (torch.sparse.mm, (4, 3), 5 * 3, 0),
        (lambda a, x: torch.addmm(torch.ones(4, 3), a, x), (4, 3), 5 * 3, 12),
        (lambda a, x: x @ a, (3, 4), 5 * 3, 0),
    ],
)
def test_only_what_a_sparse_matrix_stores_is_multiplied(
    layout: str, function: Callable[..., Any], other: tuple[int, ...], macs: int, added: int
) -> None:
    table = counted(Functional(function), getattr(STORED, layout)(), other, complete=False)
    assert table.method.startswith("real forward")
    assert (table.macs, table.flops, table.uncovered, table.buffers) == (macs, 2 * macs + added, {}, 0)


# Backwards


def trained(module: nn.Module, given_input: torch.Tensor) -> Training:
    step = count_training(module, Inputs((given_input,)))
    assert (step.estimated, step.uncovered) == (None, {})
    return step


@pytest.mark.parametrize(
    "module", [nn.Embedding(9, 3), *[nn.EmbeddingBag(9, 3, mode=mode) for mode in ("sum", "mean", "max")]]
)
def test_backwards_of_embeddings(module: nn.Module) -> None:
    step = trained(module, torch.zeros(2, 4, dtype=torch.int64))
    assert step.backward_flops == 2 * 4 * 3


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


@pytest.mark.parametrize(
    ("name", "arguments", "keywords"),
    [
        ("flash_attention", (), {}),
        ("efficient_attention", (meta(5, 5),), {}),
        ("cudnn_attention", (meta(5, 5),), {}),
        ("fused_attention_overrideable", (meta(5, 5),), {}),
        ("flash_attention_for_cpu", (), {"attn_mask": meta(5, 5)}),
    ],
)
def test_fused_attention(name: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
    query, name = meta(2, 4, 5, 8), f"_scaled_dot_product_{name}"
    mask = {"attn_mask": (5, 5)} if arguments or keywords else {}
    plain = applied(functional.scaled_dot_product_attention, *[(2, 4, 5, 8)] * 3, **mask)
    assert ruled(name, query, query, query, *arguments, output=(query,), **keywords) == plain
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
    ("function", "shapes"),
    [
        (torch.linalg.inv, [(4, 4)]),
        (torch.linalg.svd, [(4, 4)]),
        (torch.cdist, [(3, 4), (5, 4)]),
        (lambda x: torch.renorm(x, 2, 0, 1.0), [(4, 6)]),
    ],
)
def test_decompositions_and_distances_are_listed(function: Callable[..., Any], shapes: list[Any]) -> None:
    table = counted(Functional(function), *shapes, complete=False)
    assert len(table.uncovered) == 1
    assert figures(table) == (0, 0, 0)


# Operators that take functions: control flow, attention with a score function, checkpoints


def weighted(function: Callable[..., Any]) -> Any:
    """Applies a function to a layer and the inputs."""
    return Applied(lambda module, *given: function(module.layer, *given), layer=nn.Linear(4, 4, bias=False))


def test_layers_within_have_rows() -> None:
    table = counted(weighted(map_over), (3, 4, 4))
    assert [(row.path, row.call, row.macs) for row in table.rows[1:]] == [("layer", call, 64) for call in range(3)]


# Values that decide


def branch(layer: nn.Linear, x: torch.Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda y: layer(layer(y)), lambda y: y + 1, (x,))


def loop(layer: nn.Linear, x: torch.Tensor) -> Any:
    return while_loop(lambda y: y.sum() < 8, lambda y: (layer(y),), (x,))


def test_the_branch_that_runs_is_counted() -> None:
    table = counted(weighted(branch), torch.ones(4, 4), complete=False)
    assert (table.macs, table.uncovered) == (2 * 64, {})
    assert table.method == "real forward: what higher_order::cond runs depends on values"
    assert counted(weighted(branch), -torch.ones(4, 4), complete=False).macs == 0


def test_a_loop_counts_as_often_as_it_runs() -> None:
    module = weighted(loop)
    with torch.no_grad():
        module.layer.weight.copy_(2 * torch.eye(4))
    assert counted(module, torch.full((1, 4), 0.5), complete=False).macs == 2 * 16


@pytest.mark.parametrize(("function", "name"), [(branch, "cond"), (loop, "while_loop")])
def test_without_values_it_is_listed_and_the_rest_is_counted(function: Any, name: str) -> None:
    module = weighted(lambda layer, x: function(layer, layer(x))).to("meta")
    with pytest.warns(sweeprof.UncountedWarning, match=f"no formula for higher_order::{name} ×1"):
        found = sweeprof.profile(module, (4, 4), ["compute/macs", "compute/coverage", "params/total"])
    assert (found["compute/macs"].value, found["compute/macs"].estimator) == (64, "lower bound")
    assert found["params/total"].value == 16


# Attention


def causal(batch: Any, head: Any, query: Any, key: Any) -> Any:
    return query >= key


@pytest.mark.parametrize(("device", "masked"), [("cpu", True), ("meta", False)])
def test_flex_attention_is_counted_like_any_other_attention(masked: bool, device: str) -> None:
    def attended(x: torch.Tensor) -> Any:
        mask = create_block_mask(causal, 1, 1, 128, 128, device=x.device.type) if masked else None
        return flex_attention(x, x, x, block_mask=mask)

    given = torch.zeros(1, 2, 128, 16, device=device)
    dense = counted(Functional(lambda x: functional.scaled_dot_product_attention(x, x, x)), given)
    table = counted(Functional(attended), given)
    assert figures(table) == figures(dense)
    meta = given.to("meta")
    with FlopCounterMode(display=False) as counter:
        functional.scaled_dot_product_attention(meta, meta, meta)
    assert 2 * table.macs == counter.get_total_flops() == 4 * 2 * 128 * 128 * 16


def test_a_score_function_is_counted_for_every_score() -> None:
    x = torch.zeros(1, 2, 128, 16)
    plain = figures(counted(Functional(lambda x: flex_attention(x, x, x)), x))
    scored = Functional(lambda x: flex_attention(x, x, x, score_mod=lambda score, b, h, q, k: score * 2.0))
    assert figures(counted(scored, x)) == (plain[0], plain[1] + 2 * 128 * 128, plain[2] + 2 * 128 * 128)


def test_flex_attention_is_as_before_afterwards() -> None:
    import torch.nn.attention.flex_attention as flex

    before = dict(vars(flex))
    counted(Functional(lambda x: flex_attention(x, x, x)), (1, 2, 128, 16))
    assert dict(vars(flex)) == before


# Others


class Opaque(HigherOrderOperator):
    """An operator of a user's own that runs a kernel."""

    def __init__(self) -> None:
        super().__init__("opaque")  # type: ignore[no-untyped-call]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = super().__call__(x)  # type: ignore[no-untyped-call]
        return result


opaque = Opaque()


@opaque.py_impl(torch._C.DispatchKey.CompositeExplicitAutograd)
def _opaque(x: torch.Tensor) -> torch.Tensor:
    return x.sin()


def test_one_without_functions_is_listed_by_its_name() -> None:
    table = counted(Functional(lambda x: opaque(x) @ x), (4, 4), complete=False)
    assert (table.macs, table.uncovered, table.coverage) == (64, {"higher_order::opaque": 1}, 0.5)


def test_a_formula_says_what_an_operator_costs_in_place_of_its_functions() -> None:
    formulas = {
        "higher_order::opaque": lambda args, kwargs, output: sweeprof.Cost(macs=5),
        "higher_order::map_impl": lambda args, kwargs, output: sweeprof.Cost(macs=7),
    }
    module = Functional(lambda x: (opaque(x), map_over(lambda y: y @ y, x)))
    found = sweeprof.profile(module, (3, 4, 4), ["compute/macs"], formulas=formulas, strict="error")
    assert found["compute/macs"].value == 12


def test_its_backward_is_estimated_with_the_reason() -> None:
    """Torch compiles such functions for a backward; what they close over is not among the operator's arguments."""
    module = weighted(lambda layer, x: scan(lambda c, y: (c + layer(y), y.clone()), x[0], x))
    step = count_training(module, Inputs((torch.ones(3, 4, 4),)))
    assert (step.forward_macs, step.backward_macs) == (192, 2 * 192)
    assert step.estimated == "the backward does not run on shapes: the backward of higher_order::scan is not known"


# docs/counting.md says what the code does


PAGE = (Path(__file__).parents[3] / "docs" / "counting.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(("model", "column"), [("lenet5", 1), ("resnet18_c100_functional_relu", 2)])
def test_the_conventions_have_the_figures_of_the_page(model: str, column: int) -> None:
    make, shape = MODELS[model]
    table = counted(make().eval(), shape)
    shown = dict(re.findall(rf"^\| `compat/(\w+)` \|.*?(?:\| ([\d,]+)[^|]*){{{column}}}", PAGE, re.MULTILINE))
    conventions = {name: value for name, value in vars(compat).items() if isinstance(value, Metric)}
    ours = {name: f"{convention({'layers': table}):,}" for name, convention in conventions.items()}
    assert shown == ours
