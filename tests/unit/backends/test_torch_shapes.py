"""What operators and recurrent networks return on meta, against the real ones on real tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

from support.torch_modules import Applied, counted
from sweeprof.backends.torch.dispatch import SHORTCUTS

Draw = Callable[[st.SearchStrategy[Any]], Any]
Call = tuple[tuple[Any, ...], dict[str, Any]]

FLOATS = (torch.float32, torch.float64, torch.bfloat16)
TYPES = (*FLOATS, torch.complex64, torch.int64)
quick = settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))

sizes, two = st.integers(1, 4), st.integers(1, 2)
size_or_none = st.integers(0, 3)
few_sizes = st.lists(sizes, min_size=1, max_size=4)
one_float = st.sampled_from(FLOATS)
some_type = st.sampled_from(TYPES)
some_shape = st.lists(size_or_none, max_size=4)


def drawn(draw: Draw, *strategies: st.SearchStrategy[Any]) -> list[Any]:
    return [draw(strategy) for strategy in strategies]


LAYOUTS = st.sampled_from(["contiguous", "contiguous", "permuted", "sliced", "broadcast", "channels last"])


@st.composite
def tensors(draw: Draw, shape: Any = some_shape, dtype: Any = some_type) -> torch.Tensor:
    """A tensor in one of the layouts that a model may meet."""
    wanted = list(draw(shape)) if isinstance(shape, st.SearchStrategy) else list(shape)
    kind = draw(dtype) if isinstance(dtype, st.SearchStrategy) else dtype
    layout, axes = draw(LAYOUTS), range(len(wanted))
    if layout == "permuted":
        order = draw(st.permutations(axes))
        return torch.ones([wanted[axis] for axis in order], dtype=kind).permute([order.index(axis) for axis in axes])
    if layout in ("sliced", "broadcast") and wanted:
        axis, stored = draw(st.sampled_from(axes)), list(wanted)
        if layout == "broadcast":
            stored[axis] = 1
            return torch.ones(stored, dtype=kind).expand(wanted)
        stored[axis] *= 2
        return torch.ones(stored, dtype=kind)[tuple(slice(None, None, 1 + (i == axis)) for i in axes)]
    if layout == "channels last" and len(wanted) == 4:
        samples, channels, height, width = wanted
        return torch.ones((samples, height, width, channels), dtype=kind).permute(0, 3, 1, 2)
    return torch.ones(wanted, dtype=kind)


def shorter(draw: Draw, arguments: list[Any], required: int) -> tuple[Any, ...]:
    """The dispatcher leaves trailing defaults out; so here, any number of arguments."""
    return tuple(arguments[: draw(st.integers(required, len(arguments)))])


EXTRA: dict[str, st.SearchStrategy[Any]] = {
    "hardtanh": st.tuples(st.just(-1), st.just(1)),
    "leaky_relu": st.tuples(st.just(0.2)),
    "elu": st.tuples(st.just(0.5), st.just(2.0), st.just(1.0)),
    "softplus": st.tuples(st.just(2), st.just(10)),
}
UNARY = (
    "relu sigmoid tanh gelu silu hardswish hardsigmoid hardtanh relu6 leaky_relu elu mish selu "
    "exp sqrt rsqrt neg log erf abs sin cos"
).split()
BINARY = "add sub mul div".split()


def unary(draw: Draw, name: str) -> Call:
    given = draw(tensors())
    extra = draw(EXTRA.get(name, st.just(())))
    keywords = {}
    if name == "gelu" and draw(st.booleans()):
        keywords["approximate"] = draw(st.sampled_from(["none", "tanh"]))
    return (given, *extra[: draw(st.integers(0, len(extra)))]), keywords


def binary(draw: Draw, name: str) -> Call:
    left = draw(tensors())
    shape = draw(st.one_of(st.just(left.shape), broadcast_with(left.shape), some_shape))
    right = draw(st.one_of(tensors(shape, st.sampled_from([left.dtype, *TYPES])), st.sampled_from([2, 0.5, True, 1j])))
    keywords = {"alpha": 2} if name in ("add", "sub") and draw(st.booleans()) else {}
    return (left, right), keywords


def broadcast_with(shape: Any) -> st.SearchStrategy[list[int]]:
    """Shapes that broadcast with ``shape``: axes of one, leading axes left out or added."""
    ones = st.tuples(*[st.sampled_from([1, size]) for size in shape]).map(list)
    return st.one_of(ones, ones.map(lambda made: made[1:]), ones.map(lambda made: [2, *made]))


def grouped_product(draw: Draw, name: str) -> Call:
    """Two groups in rows, columns, the inner axis, or an axis of their own; weights may be transposed."""
    dtype = draw(st.sampled_from([torch.float32, torch.float16, torch.bfloat16]))
    rows, inner, columns = drawn(draw, *[st.sampled_from([8, 16, 24])] * 3)
    offsets = torch.tensor([8, 8], dtype=torch.int32)  # the second group has what is left, or nothing
    left_groups, right_groups = drawn(draw, st.booleans(), st.booleans())
    left = torch.ones((2, rows, inner) if left_groups else (rows, inner), dtype=dtype)
    right = torch.ones((2, inner, columns) if right_groups else (inner, columns), dtype=dtype)
    if draw(st.booleans()):
        narrow = draw(st.sampled_from([columns, 6]))
        right = right.transpose(-2, -1)[..., :narrow, :].contiguous().transpose(-2, -1)
    if left_groups and right_groups:
        return (left, right), {}
    divided = rows if right_groups else right.shape[-1] if left_groups else inner
    return (left, right, torch.clamp(offsets, max=divided).add_(torch.tensor([0, divided - 8])).int()), {}


def convolution(spatial: int) -> Callable[[Draw, str], Call]:
    def draw_call(draw: Draw, name: str) -> Call:
        groups, inputs, outputs, samples = drawn(draw, two, two, two, two)
        dtype = draw(st.sampled_from(TYPES[:4]))
        shape = [samples, groups * inputs, *draw(st.tuples(*[st.integers(1, 7)] * spatial))]
        kernel = draw(st.tuples(*[st.integers(1, 3)] * spatial))
        given = draw(tensors(draw(st.sampled_from([shape, shape, shape, shape[1:]])), dtype))
        weight_type = draw(st.sampled_from([dtype] * 5 + [torch.float64]))
        weight = draw(tensors([groups * outputs, inputs, *kernel], weight_type))
        bias = draw(st.sampled_from([None, torch.ones(groups * outputs, dtype=dtype)]))
        one = st.lists(sizes, min_size=1, max_size=1)
        each = st.one_of(st.lists(two, min_size=spatial, max_size=spatial), one)
        pad = st.lists(st.integers(0, 2), min_size=spatial, max_size=spatial)
        rest = [*drawn(draw, each, pad, each), groups]
        return (given, weight, *shorter(draw, [bias, *rest], 0 if groups == 1 else 5)), {}

    return draw_call


def linear(draw: Draw, name: str) -> Call:
    dtype = draw(st.sampled_from(TYPES[:4]))
    inner, outer = drawn(draw, size_or_none, size_or_none)
    given = draw(tensors([*draw(st.lists(size_or_none, max_size=3)), inner], dtype))
    weight = draw(tensors(draw(st.sampled_from([[outer, inner], [outer, inner], [inner]])), dtype))
    bias = draw(st.sampled_from([None, torch.ones(outer, dtype=dtype)])) if weight.dim() == 2 else None
    return (given, weight, *shorter(draw, [bias], 0)), {}


def product(dims: st.SearchStrategy[int]) -> Callable[[Draw, str], Call]:
    def draw_call(draw: Draw, name: str) -> Call:
        dtype, count = drawn(draw, some_type, dims)
        batch = draw(st.tuples(*[size_or_none] * (count - 2)))
        rows, inner, columns = drawn(draw, size_or_none, size_or_none, size_or_none)
        left, right = drawn(draw, tensors([*batch, rows, inner], dtype), tensors([*batch, inner, columns], dtype))
        if name == "matmul" and right.shape[0] and columns and draw(st.booleans()):
            right = draw(st.sampled_from([right[0], right[..., 0], right]))
        return (left, right), {}

    return draw_call


def added_product(draw: Draw, name: str) -> Call:
    (left, right), _ = product(st.just(2))(draw, name)
    shape = draw(st.sampled_from([[right.shape[1]], [left.shape[0], right.shape[1]], [1]]))
    bias = draw(tensors(shape, left.dtype))
    return (bias, left, right), draw(st.sampled_from([{}, {"beta": 1, "alpha": 2}]))


def attention(draw: Draw, name: str) -> Call:
    dtype, width, values = drawn(draw, one_float, sizes, st.sampled_from([None, None, 3]))
    batch, heads, length, keys = drawn(draw, *[st.integers(1, 3)] * 4)
    grouped = draw(st.sampled_from([False, False, heads > 1]))
    lead = draw(st.sampled_from([[batch, heads], [batch, heads], [batch], [2, batch, heads]]))
    fewer = [*lead[:-1], 1] if grouped and len(lead) > 1 else lead
    shapes = [*lead, length, width], [*fewer, keys, width], [*fewer, keys, values or width]
    query, key, value = drawn(draw, *[tensors(shape, dtype) for shape in shapes])
    causal, mask = draw(st.booleans()), None
    if not causal:
        masks = [torch.ones(length, keys, dtype=kind) for kind in (torch.bool, dtype)]
        mask = draw(st.sampled_from([None, *masks, torch.ones(*lead[1:], length, keys, dtype=dtype)]))
    keywords: dict[str, Any] = {"enable_gqa": True} if fewer != lead else draw(st.sampled_from([{}, {"scale": 0.5}]))
    return (query, key, value, *shorter(draw, [mask, draw(st.sampled_from([0.0, 0.0, 0.5])), causal], 0)), keywords


def batch_norm(draw: Draw, name: str) -> Call:
    dtype = draw(one_float)
    given = draw(tensors(st.lists(sizes, min_size=2, max_size=5), dtype))
    assume(given.numel() > given.shape[1])
    channels = torch.ones(given.shape[1], dtype=draw(st.sampled_from([dtype, dtype, torch.float32])))
    weight = draw(st.sampled_from([None, channels]))
    return (given, weight, weight, channels.clone(), channels.clone(), draw(st.booleans()), 0.1, 1e-5, True), {}


def group_norm(draw: Draw, name: str) -> Call:
    dtype = draw(one_float)
    given = draw(tensors(st.lists(sizes, min_size=2, max_size=5), dtype))
    weight = draw(st.sampled_from([None, torch.ones(given.shape[1], dtype=dtype)]))
    groups = draw(st.sampled_from([n for n in (1, 2, 3, 4) if given.shape[1] % n == 0]))
    return (given, groups, *shorter(draw, [weight, weight], 0)), {}


def layer_norm(draw: Draw, name: str) -> Call:
    given = draw(tensors(st.lists(size_or_none, min_size=1, max_size=4), one_float))
    normalized = list(given.shape[draw(st.integers(0, given.dim() - 1)) :])
    weight = draw(st.sampled_from([None, torch.ones(normalized, dtype=given.dtype)]))
    bias = draw(st.sampled_from([None, weight]))
    return (given, normalized, *shorter(draw, [weight, bias], 0)), {}


def dropout(draw: Draw, name: str) -> Call:
    shape = st.lists(size_or_none, min_size=2, max_size=4)
    return (draw(tensors(shape, one_float)), 0.5, draw(st.booleans())), {}


def softmax(draw: Draw, name: str) -> Call:
    given = draw(tensors(some_shape, one_float))
    axis = draw(st.integers(-given.dim(), given.dim() - 1)) if given.dim() else 0
    return (given, axis, *shorter(draw, [draw(st.sampled_from([None, given.dtype, torch.float64]))], 0)), {}


def concatenation(draw: Draw, name: str) -> Call:
    shape = draw(st.lists(size_or_none, min_size=1, max_size=4))
    axis = draw(st.integers(-len(shape), len(shape) - 1))
    dtype = draw(st.sampled_from(TYPES))
    parts = []
    for _ in range(draw(st.integers(1, 3))):
        own = list(shape)
        own[axis] = draw(size_or_none)
        parts.append(draw(tensors(own, draw(st.sampled_from([dtype] * 4 + [torch.float64])))))
    return (parts, *((axis,) if axis or draw(st.booleans()) else ())), {}


def pool(draw: Draw, name: str) -> Call:
    lead = draw(st.lists(sizes, min_size=1, max_size=2))
    given = draw(tensors([*lead, 6, 5], st.sampled_from((*FLOATS, torch.int64))))
    window = st.lists(st.integers(1, 3), min_size=1, max_size=2)
    kernel = draw(window)
    padding = [draw(st.integers(0, side // 2)) for side in kernel]
    rest = [draw(st.one_of(st.just([]), window)), padding]
    if name == "max_pool2d":
        rest += [draw(st.sampled_from([[1, 1], [1], [2, 1]])), draw(st.booleans())]
    else:
        rest += [draw(st.booleans()), draw(st.booleans()), draw(st.sampled_from([None, 3]))]
    return (given, kernel, *shorter(draw, rest, 0)), {}


def adaptive_pool(draw: Draw, name: str) -> Call:
    given = draw(tensors([*draw(st.lists(sizes, min_size=1, max_size=2)), 6, 5], one_float))
    return (given, draw(st.lists(st.integers(1, 7), min_size=2, max_size=2))), {}


def mean(draw: Draw, name: str) -> Call:
    given = draw(tensors(some_shape, st.sampled_from((*FLOATS, torch.complex64))))
    axes = []
    if given.dim():
        axes = draw(st.lists(st.integers(-given.dim(), given.dim() - 1), unique_by=lambda axis: axis % given.dim()))
    keywords = draw(st.sampled_from([{}, {}, {"dtype": torch.float64}]))
    return (given, draw(st.sampled_from([axes, axes, None])), *shorter(draw, [draw(st.booleans())], 0)), keywords


def roll(draw: Draw, name: str) -> Call:
    given = draw(tensors(few_sizes))
    axes = draw(st.lists(st.integers(0, given.dim() - 1), min_size=1, max_size=2))
    return (given, [draw(st.integers(-2, 2)) for _ in axes], axes), {}


def contiguous(draw: Draw, name: str) -> Call:
    keywords = draw(st.sampled_from([{}, {}, {"memory_format": torch.contiguous_format}]))
    return (draw(tensors()),), keywords


def reshape(draw: Draw, name: str) -> Call:
    """Axes that are merged, divided, left out or exchanged; one of them may be what is left, and the sizes may be wrong."""
    given = draw(tensors(st.lists(st.sampled_from([0, 1, 1, 2, 3, 4, 6]), max_size=4)))
    parts: list[int] = []
    for size in draw(st.one_of(st.just(given.shape), st.permutations(given.shape))):
        inner = draw(st.sampled_from([1, 2, 3]))
        parts += [size // inner, inner] if size and size % inner == 0 else [size]
    shape = [1] * draw(st.integers(0, 1))
    for part in parts:
        if shape and draw(st.booleans()):
            shape[-1] *= part
        else:
            shape.append(part)
    if shape and draw(st.booleans()):
        shape[draw(st.integers(0, len(shape) - 1))] = draw(st.sampled_from([-1, -1, -1, 5]))
    return (given, shape), {}


def view(draw: Draw, name: str) -> Call:
    """With arguments that are valid, as those that reach the dispatcher."""
    given = draw(tensors(few_sizes))
    axis = st.integers(-given.dim(), given.dim() - 1)
    arguments: dict[str, st.SearchStrategy[tuple[Any, ...]]] = {
        "permute": st.tuples(st.permutations(range(given.dim()))),
        "transpose": st.tuples(axis, axis),
        "view": st.sampled_from([([-1, given.shape[-1]],), ([1, *given.shape],)]),
        "unsqueeze": st.tuples(st.integers(-given.dim() - 1, given.dim())),
        "squeeze": st.tuples(axis),
        "select": st.tuples(axis, st.just(0)),
        "expand": st.sampled_from([([2, *given.shape],), ([-1] * given.dim(),)]),
        "flatten": st.tuples(st.integers(0, given.dim() - 1)),
    }
    if name == "view":  # other layouts may have no view of that shape
        given = given.contiguous()
    return (given, *draw(arguments[name])), {}


def index(draw: Draw, name: str) -> Call:
    """Along one or two axes, with positions that every axis has."""
    given = draw(tensors(st.lists(st.integers(1, 3), min_size=1, max_size=4), one_float))
    axes = draw(st.sets(st.integers(0, given.dim() - 1), min_size=1, max_size=2))
    positions = draw(tensors(st.lists(size_or_none, max_size=3), st.sampled_from([torch.int64, torch.int32])))
    last = draw(st.integers(max(axes), given.dim() - 1))
    return (given, [torch.zeros_like(positions) if axis in axes else None for axis in range(last + 1)]), {}


def ones(*shape: int) -> torch.Tensor:
    return torch.ones(shape)


WINDOWS: Any = [2, 2], [1, 1], [1, 1]
OFFSETS, PLACES = torch.tensor([3, 8], dtype=torch.int32), torch.zeros((3, 2), dtype=torch.int64)
CALLS: dict[str, tuple[Callable[[Draw, str], Call], tuple[Any, ...]]] = {
    # a generator of its arguments, and those of an ordinary call, which must be answered
    **{f"aten::{name}{suffix}": (unary, (ones(2, 3),)) for name in UNARY for suffix in ("", "_")},
    "aten::softplus": (unary, (ones(2, 3),)),
    **{f"aten::{name}{suffix}.Tensor": (binary, (ones(2, 3), ones(2, 3))) for name in BINARY for suffix in ("", "_")},
    "aten::conv1d": (convolution(1), (ones(2, 3, 8), ones(4, 3, 3), ones(4))),
    "aten::conv2d": (convolution(2), (ones(2, 4, 8, 8), ones(6, 2, 3, 3), None, *WINDOWS, 2)),
    "aten::conv3d": (convolution(3), (ones(2, 3, 8, 8, 8), ones(4, 3, 3, 3, 3))),
    "aten::linear": (linear, (ones(2, 5, 8), ones(4, 8), ones(4))),
    "aten::matmul": (product(st.integers(2, 4)), (ones(2, 4, 5, 8), ones(2, 4, 8, 5))),
    "aten::bmm": (product(st.just(3)), (ones(2, 5, 8), ones(2, 8, 5))),
    "aten::mm": (product(st.just(2)), (ones(5, 8), ones(8, 5))),
    "aten::addmm": (added_product, (ones(5), ones(3, 8), ones(8, 5))),
    "aten::_grouped_mm": (grouped_product, (ones(8, 16), ones(2, 16, 8), OFFSETS)),
    "aten::scaled_dot_product_attention": (attention, (ones(2, 4, 5, 8), ones(2, 4, 5, 8), ones(2, 4, 5, 8))),
    "aten::batch_norm": (batch_norm, (ones(2, 3, 8, 8), ones(3), ones(3), ones(3), ones(3), False, 0.1, 1e-5, True)),
    "aten::layer_norm": (layer_norm, (ones(2, 5, 8), [8], ones(8), ones(8), 1e-5)),
    "aten::group_norm": (group_norm, (ones(2, 4, 8, 8), 2, ones(4), ones(4), 1e-5)),
    "aten::dropout": (dropout, (ones(2, 3), 0.5, False)),
    "aten::feature_dropout": (dropout, (ones(2, 3, 4, 4), 0.5, False)),
    "aten::softmax.int": (softmax, (ones(2, 3), -1)),
    "aten::cat": (concatenation, ([ones(2, 3), ones(2, 4)], 1)),
    "aten::max_pool2d": (pool, (ones(2, 3, 8, 8), [3, 3], [2, 2], [1, 1])),
    "aten::avg_pool2d": (pool, (ones(2, 3, 8, 8), [2, 2], [2, 2])),
    "aten::adaptive_avg_pool2d": (adaptive_pool, (ones(2, 3, 8, 8), [1, 1])),
    "aten::mean.dim": (mean, (ones(2, 3, 8, 8), [2, 3])),
    "aten::sum.dim_IntList": (mean, (ones(2, 3, 8, 8), [2, 3])),
    "aten::index.Tensor": (index, (ones(5, 4), [None, PLACES])),
    "aten::roll": (roll, (ones(2, 3, 4), [1], [1])),
    "aten::contiguous": (contiguous, (ones(3, 2).t(),)),
    "aten::reshape": (reshape, (ones(2, 6, 4), [-1, 3, 8])),
    "aten::permute": (view, (ones(2, 6, 4), [2, 0, 1])),
    "aten::transpose.int": (view, (ones(2, 6, 4), 1, 2)),
    "aten::view": (view, (ones(2, 6, 4), [12, -1])),
    "aten::unsqueeze": (view, (ones(2, 6, 4), 1)),
    "aten::squeeze.dim": (view, (ones(2, 1, 4), 1)),
    "aten::select.int": (view, (ones(2, 6, 4), 1, 3)),
    "aten::expand": (view, (ones(2, 1, 4), [2, 6, -1])),
    "aten::flatten.using_ints": (view, (ones(2, 6, 4), 1)),
}


def on_meta(item: Any) -> Any:
    if isinstance(item, torch.Tensor):
        return torch.empty_strided(item.shape, item.stride(), dtype=item.dtype, device="meta")
    return [on_meta(part) for part in item] if isinstance(item, list) else item


def real(name: str) -> Any:
    name, _, overload = name.removeprefix("aten::").partition(".")
    return getattr(getattr(torch.ops.aten, name), overload or "default")


def described(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Shape, type, and the strides that mean something: of axes longer than one, of a tensor that has elements."""
    strides = [step for step, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1]
    return tuple(tensor.shape), tensor.dtype, strides if tensor.numel() else []


@pytest.mark.parametrize("name", sorted(SHORTCUTS))
@quick
@given(data=st.data())
def test_an_answer_is_what_the_real_operator_returns(name: str, data: st.DataObject) -> None:
    arguments, keywords = CALLS[name][0](data.draw, real(name)._schema.name.removeprefix("aten::"))
    shapes = tuple(map(on_meta, arguments))
    answer = SHORTCUTS[name](shapes, keywords)
    if answer is None:
        return
    if real(name)._schema.is_mutable:
        assert answer is shapes[0]
    else:
        assert answer.is_meta
    with torch.inference_mode():
        result = real(name)(*arguments, **keywords)
    assert described(answer) == described(result)
    if isinstance(arguments[0], torch.Tensor):
        assert is_view_of(answer, shapes[0]) == is_view_of(result, arguments[0])


def is_view_of(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    return bool(tensor.untyped_storage()._cdata == other.untyped_storage()._cdata)


@pytest.mark.parametrize("name", ["aten::conv1d", "aten::conv2d", "aten::conv3d", "aten::linear"])
@quick
@given(data=st.data())
def test_weights_may_be_on_a_real_device(name: str, data: st.DataObject) -> None:
    arguments, _ = CALLS[name][0](data.draw, "")
    mixed = (on_meta(arguments[0]), *arguments[1:])
    answer, other = SHORTCUTS[name](mixed, {}), SHORTCUTS[name](tuple(map(on_meta, arguments)), {})
    assert (answer is None) == (other is None)
    if answer is not None:
        assert answer.is_meta
        assert described(answer) == described(other)


@pytest.mark.parametrize("name", sorted(CALLS))
def test_the_ordinary_case_is_answered(name: str) -> None:
    _, arguments = CALLS[name]
    answer: Any = SHORTCUTS[name](tuple(map(on_meta, arguments)), {})
    assert described(answer) == described(real(name)(*arguments))


@pytest.mark.parametrize("name", "conv2d batch_norm group_norm max_pool2d avg_pool2d adaptive_avg_pool2d relu".split())
def test_channels_last_is_answered_too(name: str) -> None:
    arguments = CALLS[f"aten::{name}"][1] if name != "relu" else (ones(2, 3, 4, 4),)
    given = arguments[0].contiguous(memory_format=torch.channels_last)
    answer: Any = SHORTCUTS[f"aten::{name}"](tuple(map(on_meta, (given, *arguments[1:]))), {})
    assert answer.is_contiguous(memory_format=torch.channels_last)


def test_what_fits_both_layouts_is_concatenated_like_channels_last() -> None:
    pixels = ones(1, 1, 1, 2).permute(0, 3, 1, 2)
    assert pixels.is_contiguous()
    assert SHORTCUTS["aten::cat"](([on_meta(pixels), on_meta(pixels)], -1), {}) is None
    either = SHORTCUTS["aten::cat"](([on_meta(pixels), on_meta(ones(1, 2, 1, 1))], -1), {})
    assert described(either) == described(torch.cat([pixels, ones(1, 2, 1, 1)], -1))


@pytest.mark.parametrize("shape", [[8, 3], [2, 4, 3], [1, 4, 2, 1, 3, 1], [24]])
def test_a_part_of_a_tensor_is_reshaped_as_a_view_from_where_it_begins(shape: list[int]) -> None:
    part = torch.ones(3, 4, 2, 3)[1:2]
    answer = SHORTCUTS["aten::reshape"]((torch.ones(3, 4, 2, 3, device="meta")[1:2], shape), {})
    result = part.reshape(shape)
    assert described(answer) == described(result)
    assert answer.storage_offset() == result.storage_offset() == 24


# Whole recurrent networks


KINDS = {"RNN": nn.RNN, "GRU": nn.GRU, "LSTM": nn.LSTM}


def viewed(module: Any, given: torch.Tensor) -> Any:
    output, state = module.inner(given)
    return output.view(*output.shape, 1), state


def shapes(tree: Any) -> list[tuple[int, ...]]:
    if isinstance(tree, torch.Tensor):
        return [tuple(tree.shape)]
    return [shape for part in tree if part is not None for shape in shapes(part)]


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize("kind", KINDS)
@settings(quick, max_examples=25)
@given(data=st.data())
def test_any_network_returns_what_the_real_one_does(kind: str, data: st.DataObject) -> None:
    inputs, hidden, layers, steps, samples = drawn(data.draw, *[sizes] * 5)
    options: dict[str, Any] = {name: data.draw(st.booleans()) for name in ("bias", "batch_first", "bidirectional")}
    if kind == "LSTM" and hidden > 1 and data.draw(st.booleans()):
        options["proj_size"] = hidden - 1
    network = KINDS[kind](inputs, hidden, layers, **options).eval()
    lead = (steps,) if data.draw(st.booleans()) else (samples, steps) if options["batch_first"] else (steps, samples)
    given = torch.randn(*lead, inputs)
    # Its output is taken apart by ``view``, which only the right strides allow.
    table = counted(Applied(viewed, inner=network), given)
    with torch.inference_mode():
        assert list(table.rows[1].output_shapes) == shapes(network(given))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bidirectional", [False, True])
def test_a_packed_sequence_has_the_shapes_of_the_real_one(kind: str, bidirectional: bool) -> None:
    network = KINDS[kind](3, 4, 2, bidirectional=bidirectional).eval()
    packed = pack_padded_sequence(torch.randn(5, 3, 3), [5, 3, 2])
    table = counted(network, packed)
    with torch.inference_mode():
        output, state = network(packed)
    assert isinstance(output, PackedSequence)
    assert list(table.rows[0].output_shapes) == shapes([output.data, output.batch_sizes, state])


def test_a_long_sequence_takes_no_longer_than_a_short_one() -> None:
    """Counted, not timed: one operator, however many time steps."""
    calls = [counted(nn.LSTM(4, 4), torch.empty(steps, 1, 4, device="meta")).operator_calls for steps in (1, 5000)]
    assert calls[0] == calls[1]
