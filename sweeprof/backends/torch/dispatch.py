"""Counts every operator that reaches the dispatcher: one TorchDispatchMode, nothing of torch is patched.

An operator is counted by a formula, known to do no arithmetic, opened into its parts, or listed as uncovered; there is no
silent zero. What works in place or writes into ``out`` counts like the operator that returns a new tensor. Under
``torch.inference_mode`` operators arrive whole (``linear``, ``lstm``, ``scaled_dot_product_attention``), with gradients in the
parts that autograd sees.

Over shapes, the model's parameters may stay where they are: what is computed from meta tensors is a meta tensor, and a real
tensor that meets one is taken for its shape. Only constants, the integers and truth values among the inputs, and what follows from
these are computed for real, so that a forward may ask for their values, or remember constants for the next call (an index of
positions, a mask). They stay real where a forward moves them to the device of a meta tensor. One that the forward overwrites with
what has no values has none from then on.

Operators that take functions: control flow, attention with a score function, and what else torch calls higher-order. Their
functions are run while they are counted, so that the body of a loop counts as often as it runs, and of ``torch.cond`` the
branch that is taken. Where neither is known, because a value decides and there are only shapes, the operator cannot be counted.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial, wraps
from math import prod
from threading import RLock
from typing import Any

import torch

from sweeprof.backends.torch.callsites import CallSites, LiveBytes, tensors_in
from sweeprof.backends.torch.costs import (
    COSTS,
    HIGHER_ORDER_COSTS,
    ONE_EACH,
    TorchRule,
    argument,
    does_no_arithmetic,
    is_given,
)
from sweeprof.backends.torch.graph import GraphRecorder
from sweeprof.backends.torch.private import (
    HigherOrderOperator,
    OpOverload,
    OpOverloadPacket,
    RecordFunction,
    current_dispatch_modes,
    disable_current_modes,
    rule_in_mode,
)
from sweeprof.backends.torch.state import FOLLOWED, DispatchMode, InThread, tasks_wrapped
from sweeprof.counting.formulas import Args, Formulas, Kwargs, OperatorCost, operator_cost
from sweeprof.counting.operators import added
from sweeprof.errors import Unsupported

# --- Shape rules: what operators return on the meta device, without torch's own shape functions, which take longer ---

META = torch.device("meta")


def new(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """A contiguous tensor on meta."""
    return torch.empty_strided(shape, _strides(tuple(shape)), dtype=dtype, device=META)


@lru_cache(maxsize=4096)  # a model has few shapes and many tensors
def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of a new tensor."""
    strides = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(1, size)
    return tuple(reversed(strides))


def like(given: torch.Tensor, shape: Sequence[int]) -> torch.Tensor | None:
    """A tensor of ``shape`` in the layout of ``given``, contiguous or channels-last; None for any other."""
    layout = _layout_of(given.shape, given.stride())
    if layout is torch.contiguous_format:
        return new(shape, given.dtype)
    if layout is not torch.channels_last:
        return None
    samples, channels, height, width = shape
    return new((samples, height, width, channels), given.dtype).permute(0, 3, 1, 2)


def _windows(given: torch.Tensor, shape: Sequence[int]) -> torch.Tensor | None:
    """Return the result of a convolution or pooling: contiguous, unless strides suggest channels-last; None if it is unclear."""
    made = like(given, shape)
    if made is None and given.dim() == 4 and not _suggests_channels_last(given.shape, given.stride()):
        return new(shape, given.dtype)
    return made


@lru_cache(maxsize=4096)
def _layout_of(shape: tuple[int, ...], strides: tuple[int, ...]) -> torch.memory_format | None:
    if len(shape) == 4 and _suggests_channels_last(shape, strides):
        if torch.empty_strided(shape, strides, device=META).is_contiguous(memory_format=torch.channels_last):
            return torch.channels_last
        return None
    if strides == _strides(shape):
        return torch.contiguous_format
    return None


def is_new(tensor: torch.Tensor) -> bool:
    """True if the strides are those of a new tensor: torch treats others as another layout even where an axis has length one."""
    return tensor.stride() == _strides(tensor.shape)


def _suggests_channels_last(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """True if torch reads channels-last from the strides; with a single sample, channel or pixel they fit both layouts."""
    least = strides[1]
    if not least:
        return False
    for axis in (1, 3, 2, 0):
        if not shape[axis] or strides[axis] < least or (axis == 0 and least == strides[1]):
            return False
        least = strides[axis] * max(1, shape[axis])
    return True


def packed_strides(tensor: torch.Tensor) -> Sequence[int] | None:
    """Strides of a new tensor with the axes in the order that they have in memory; None where elements may overlap.

    That is the layout that torch gives to what has a result for each element of ``tensor``.
    """
    if tensor.is_contiguous():
        return tensor.stride()
    strides = list(tensor.stride())
    expected = least = 1
    for stride, size, axis in sorted(zip(tensor.stride(), tensor.shape, range(tensor.dim()), strict=True)):
        if size > 1:
            if stride < least:
                return None
            least = stride * size
            strides[axis] = expected
            expected *= size
    return strides


def _like_packed(given: torch.Tensor) -> torch.Tensor | None:
    """A new tensor of the shape of ``given`` with its axes in the same order in memory; None where its elements may overlap."""
    strides = packed_strides(given)
    if strides is None:
        return None
    return torch.empty_strided(given.shape, strides, dtype=given.dtype, device=META)


def is_dense(tensor: torch.Tensor) -> bool:
    """True if the elements lie in memory without gaps or overlaps, in any order of the axes."""
    return tensor.is_contiguous() or packed_strides(tensor) == list(tensor.stride())


Shortcut = Callable[[Args, Kwargs], Any]
"""From the arguments and keyword arguments of an operator to what it returns; None where that is not certain."""

_NUMBERS = (int, float)


def _weighs(tensor: torch.Tensor, given: torch.Tensor) -> bool:
    """True if ``tensor`` can be a weight for ``given``; it may still be on a real device."""
    return tensor.dtype == given.dtype and is_new(tensor)


def _same_shape(args: Args, kwargs: Kwargs) -> torch.Tensor | None:
    """Elementwise with one tensor whose floating-point type the result keeps."""
    given = args[0]
    if not given.is_meta or not given.is_floating_point():
        return None
    return _like_packed(given)


def _same_contiguous(args: Args, kwargs: Kwargs) -> torch.Tensor | None:
    """The shape and type of the first argument; contiguous."""
    given = args[0]
    if not given.is_meta or not given.is_floating_point():
        return None
    return new(given.shape, given.dtype)


def _in_place(args: Args, kwargs: Kwargs) -> torch.Tensor | None:
    """Elementwise on the first argument, which is returned; the other one, a number or a tensor, must fit into it."""
    given = args[0]
    if not given.is_meta or not given.is_floating_point() or not is_dense(given):
        return None
    other = argument(args, 1, 0)
    if type(other) in _NUMBERS:
        return given  # type: ignore[no-any-return]
    if isinstance(other, torch.Tensor) and other.dtype == given.dtype and other.shape == given.shape:
        return given  # type: ignore[no-any-return]
    return None


def _binary(args: Args, kwargs: Kwargs) -> torch.Tensor | None:
    """Elementwise with a number or a tensor of the same type, broadcast where both are contiguous."""
    left, right = args[0], args[1]
    if type(right) in _NUMBERS:
        return _same_shape(args, kwargs)
    if not isinstance(right, torch.Tensor) or left.dtype != right.dtype or not left.is_floating_point():
        return None
    if not (left.is_meta or right.is_meta) or not left.dim() or not right.dim():
        return None
    shape = _broadcast(left.shape, right.shape)
    if shape is None:
        return None
    if left.is_contiguous() and right.is_contiguous():
        return new(shape, left.dtype)
    if shape == list(left.shape):  # the first operand decides the order of the axes
        return _like_packed(left)
    # A tensor with at most one axis that is not broadcast has no order of axes.
    own = zip(left.shape, shape[len(shape) - left.dim() :], strict=True)
    if shape == list(right.shape) and sum(size != 1 or made == 1 for size, made in own) <= 1:
        return _like_packed(right)
    return None


def _broadcast(left: Sequence[int], right: Sequence[int]) -> list[int] | None:
    if left == right:
        return list(left)
    if len(left) < len(right):
        left, right = right, left
    shape = list(left)
    offset = len(left) - len(right)
    for axis, size in enumerate(right):
        own = shape[offset + axis]
        if own == 1:
            shape[offset + axis] = size
        elif size not in (1, own):
            return None
    return shape


def _pair(value: int | Sequence[int], spatial: int) -> Sequence[int]:
    if isinstance(value, int):
        return (value,) * spatial
    if len(value) == spatial:
        return value
    return tuple(value) * spatial


def _conv(spatial: int) -> Shortcut:
    def shortcut(args: Args, kwargs: Kwargs) -> torch.Tensor | None:
        given, weight = args[0], args[1]
        if not given.is_meta or not _weighs(weight, given):
            return None
        # An integer stands for a list of one; the dispatcher leaves trailing defaults out.
        rest = tuple([value if isinstance(value, int) else tuple(value) for value in args[3:]])
        made = _convolved(spatial, given.shape, weight.shape, rest)
        if made is None:
            return None
        return _windows(given, made)

    return shortcut


@lru_cache(maxsize=4096)
def _convolved(spatial: int, shape: tuple[int, ...], kernel: tuple[int, ...], rest: Args) -> tuple[int, ...] | None:
    """Shape of a convolution's result; ``rest`` is stride, padding, dilation and groups, as far as given."""
    if len(shape) != spatial + 2 or len(kernel) != spatial + 2:
        return None
    stride, padding, dilation, groups = rest + (1, 0, 1, 1)[len(rest) :]
    if shape[1] != kernel[1] * groups or kernel[0] % groups:
        return None
    stride, padding, dilation = _pair(stride, spatial), _pair(padding, spatial), _pair(dilation, spatial)
    made = [shape[0], kernel[0]]
    for axis in range(spatial):
        reach = dilation[axis] * (kernel[axis + 2] - 1)
        made.append((shape[axis + 2] + 2 * padding[axis] - reach - 1) // stride[axis] + 1)
    if min(made) <= 0:
        return None
    return tuple(made)


def _linear(args: Args, kwargs: Kwargs) -> torch.Tensor | None:
    given, weight = args[0], args[1]
    shape = given.shape
    if not given.is_meta or not _weighs(weight, given) or weight.dim() != 2 or not shape:
        return None
    if shape[-1] != weight.shape[1]:
        return None
    return new((*shape[:-1], weight.shape[0]), given.dtype)


def _matmul(args: Args, kwargs: Kwargs) -> torch.Tensor | None:
    left, right = args[0], args[1]
    a, b = left.shape, right.shape
    if len(a) != len(b) or len(a) < 2 or a[:-2] != b[:-2] or a[-1] != b[-2]:
        return None
    if left.dtype != right.dtype or not left.is_meta or not right.is_meta:
        return None
    return new((*a[:-1], b[-1]), left.dtype)


def _addmm(args: Args, kwargs: Kwargs) -> torch.Tensor | None:
    bias, left, right = args[0], args[1], args[2]
    if bias.dtype != left.dtype or bias.shape != right.shape[1:]:
        return None
    return _matmul((left, right), kwargs)


def _attention(args: Args, kwargs: Kwargs) -> torch.Tensor | None:
    """The query's layout, as the fused CPU kernel leaves it: in most models ``(N, L, heads, E)`` in memory.

    That kernel takes four axes, a mask of two or four, no dropout, and keys and values of the query's width.
    """
    query, key, value = args[0], args[1], args[2]
    mask, dropout = argument(args, 3), argument(args, 4, 0.0)
    if not query.is_meta or not query.dtype == key.dtype == value.dtype or not query.numel() or not key.numel():
        return None
    if dropout or (mask is not None and mask.dtype not in (torch.bool, query.dtype)) or key.shape != value.shape:
        return None
    if query.dim() != 4 or (mask is not None and mask.dim() not in (2, 4)):
        return None
    samples, heads, _, width = query.shape
    if key.dim() == 4 and key.shape[1] and kwargs.get("enable_gqa") and heads % key.shape[1] == 0:
        heads = key.shape[1]
    if key.shape[:2] != (samples, heads) or key.shape[3:] != (width,):
        return None
    if {query.stride(3), key.stride(3), value.stride(3)} != {1}:
        return None
    return _like_packed(query)


def _grouped_matmul(args: Args, kwargs: Kwargs) -> torch.Tensor | None:
    """``(a, b, offsets, ...)`` of types other than bfloat16, which torch's shape function rejects and its kernels accept.

    Kernels need rows (or columns) that begin at multiples of 16 bytes, and leave the rows of the result so.
    """
    left, right = args[0], args[1]
    offsets = kwargs.get("offs", argument(args, 2))
    if left.dtype == torch.bfloat16 or left.dtype != right.dtype or not left.is_floating_point():
        return None
    if not left.is_meta and not right.is_meta:
        return None
    if len(args) > 3 or kwargs.get("bias") is not None or kwargs.get("out_dtype") is not None:
        return None
    a, b = left.shape, right.shape
    each = 16 // left.itemsize
    if not {len(a), len(b)} <= {2, 3} or (offsets is None) != (len(a) == len(b) == 3):
        return None
    for tensor in (left, right):
        if 1 not in tensor.stride()[-2:] or max(tensor.stride()[-2:]) % each:
            return None
    if len(a) == len(b) == 2:
        shape = [offsets.shape[0], a[0], b[1]]
    elif a[-1] != b[-2] or (len(a) == len(b) and a[0] != b[0]):
        return None
    else:
        shape = [a[-2], b[-1]]
        if len(a) == len(b):
            shape.insert(0, a[0])
    width = -(-shape[-1] // each) * each
    strides = (shape[-2] * width, width, 1)[-len(shape) :]
    return torch.empty_strided(shape, strides, dtype=left.dtype, device=META)


def _batch_norm(args: Args, kwargs: Kwargs) -> torch.Tensor | None:
    """``(input, weight, bias, mean, ...)``: the layout is kept."""
    given = args[0]
    if not given.is_meta or not given.is_floating_point():
        return None
    for held in (args[1], *args[3:4]):
        if held is not None and held.dtype != given.dtype:
            return None
    return like(given, given.shape)


def _layer_norm(args: Args, kwargs: Kwargs) -> torch.Tensor | None:
    given, normalized = args[0], args[1]
    if tuple(given.shape[-len(normalized) :]) != tuple(normalized):
        return None
    if is_given(args, 2) and args[2].dtype != given.dtype:
        return None
    return _same_contiguous(args, kwargs)


def _dropout(args: Args, kwargs: Kwargs) -> torch.Tensor | None:
    """In inference the very tensor that was given."""
    if args[2]:
        return None
    return args[0]  # type: ignore[no-any-return]


def _softmax(args: Args, kwargs: Kwargs) -> torch.Tensor | None:
    if is_given(args, 2) and args[2] != args[0].dtype:
        return None
    return _same_contiguous(args, kwargs)


def _concatenation(args: Args, kwargs: Kwargs) -> torch.Tensor | None:
    """Contiguous unless the strides of every tensor suggest channels-last."""
    tensors = args[0]
    axis = argument(args, 1, 0)
    dtype, shape = tensors[0].dtype, list(tensors[0].shape)
    if axis < 0:
        axis += len(shape)
    total = 0
    is_contiguous = False
    for tensor in tensors:
        other = list(tensor.shape)
        if not tensor.is_meta or tensor.dtype != dtype or len(other) != len(shape):
            return None
        total += other[axis]
        other[axis] = shape[axis]
        if other != shape:
            return None
        if len(shape) < 4:
            is_contiguous = True
        elif len(shape) == 4:
            is_contiguous = is_contiguous or not _suggests_channels_last(tensor.shape, tensor.stride())
        else:
            is_contiguous = is_contiguous or is_new(tensor)
    if not is_contiguous:
        return None
    shape[axis] = total
    return new(shape, dtype)


def _average_pool(args: Args, kwargs: Kwargs) -> torch.Tensor | None:
    """``(input, kernel, stride, padding, ceil_mode, ...)``."""
    return _pooled(args, argument(args, 4, False))


def _max_pool(args: Args, kwargs: Kwargs) -> torch.Tensor | None:
    """``(input, kernel, stride, padding, dilation, ceil_mode)``."""
    if len(args) > 4 and set(_pair(args[4], 2)) != {1}:
        return None
    return _pooled(args, argument(args, 5, False))


def _pooled(args: Args, ceil_mode: bool) -> torch.Tensor | None:
    given = args[0]
    shape = given.shape
    if len(shape) != 4 or not given.is_meta:
        return None
    kernel = _pair(args[1], 2)
    stride = _pair(argument(args, 2) or kernel, 2)
    padding = _pair(argument(args, 3, 0), 2)
    made = []
    for size, window, step, pad in zip(shape[2:], kernel, stride, padding, strict=True):
        span = size + 2 * pad - window
        windows = span // step + 1
        if ceil_mode:
            windows = -(-span // step) + 1
            if (windows - 1) * step >= size + pad:  # the last one would begin outside
                windows -= 1
        if windows <= 0 or 2 * pad > window:
            return None
        made.append(windows)
    return _windows(given, (shape[0], shape[1], *made))


def _adaptive_pool(args: Args, kwargs: Kwargs) -> torch.Tensor | None:
    given, size = args[0], args[1]
    if given.dim() != 4 or not given.is_meta or len(size) != 2 or None in size:
        return None
    return like(given, (*given.shape[:2], *size))


def _mean(args: Args, kwargs: Kwargs) -> torch.Tensor | None:
    """``(input, axes, keep)`` of a floating-point type; in whatever order the axes lie in memory, the result is contiguous."""
    given, axes = args[0], argument(args, 1)
    if not axes or not given.is_meta or not given.is_floating_point() or kwargs.get("dtype"):
        return None
    shape = list(given.shape)
    for axis in sorted({axis % given.dim() for axis in axes}, reverse=True):
        if argument(args, 2, False):
            shape[axis] = 1
        else:
            del shape[axis]
    return new(shape, given.dtype)


def _index(args: Args, kwargs: Kwargs) -> torch.Tensor | None:
    """One tensor of integers as the index along one axis, such as the positions that a bias of an attention has."""
    given, indices = args
    chosen = [(axis, index) for axis, index in enumerate(indices) if index is not None]
    if len(chosen) != 1 or not given.is_meta or not given.is_contiguous():
        return None
    axis, index = chosen[0]
    if index.dtype != torch.int64 or not index.is_contiguous() or 1 in given.shape or 1 in index.shape:
        return None
    return new((*given.shape[:axis], *index.shape, *given.shape[axis + 1 :]), given.dtype)


def _roll(args: Args, kwargs: Kwargs) -> torch.Tensor | None:
    """Without this rule and that of ``index``, counting shifted-window blocks takes three times as long."""
    given = args[0]
    if not given.is_meta or not is_new(given):
        return None
    return new(given.shape, given.dtype)


def _contiguous(args: Args, kwargs: Kwargs) -> torch.Tensor | None:
    """The very tensor where it is contiguous."""
    given = args[0]
    if kwargs or len(args) > 1 or not given.is_meta:
        return None
    if given.is_contiguous():
        return given  # type: ignore[no-any-return]
    return new(given.shape, given.dtype)


def _reshape(args: Args, kwargs: Kwargs) -> torch.Tensor | None:
    """``(input, shape)``: a view if the elements lie in memory in the order of the new shape; else a new tensor."""
    given, wanted = args
    if not given.is_meta or not given.dim() or not given.numel():
        return None
    shape = list(wanted)
    if -1 in shape:
        known = -prod(shape)
        if known > 0:
            shape[shape.index(-1)] = given.numel() // known
    if min(shape, default=1) <= 0 or prod(shape) != given.numel():
        return None
    strides = _view_strides(given.shape, given.stride(), tuple(shape))
    if strides is None:
        return new(shape, given.dtype)
    return given.as_strided(shape, strides)  # type: ignore[no-any-return]


@lru_cache(maxsize=4096)
def _view_strides(sizes: tuple[int, ...], strides: tuple[int, ...], wanted: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the strides of a view of another shape; None if only a copy can have it. Follows torch's ``computeStride``."""
    made: list[int] = []  # from the last axis to the first, like all that follows
    axes = list(wanted)
    elements, step = 1, strides[-1]
    for axis in reversed(range(len(sizes))):
        elements *= sizes[axis]
        if axis and (sizes[axis - 1] == 1 or strides[axis - 1] == elements * step):
            continue  # it lies in memory like one axis together with the axis before it
        filled = 1
        while axes and (filled < elements or axes[-1] == 1):
            made.append(filled * step)
            filled *= axes.pop()
        if filled != elements:
            return None
        if axis:
            elements, step = 1, strides[axis - 1]
    return tuple(reversed(made))


def _method(name: str) -> Shortcut:
    """Return the rule of a view: the method of tensors, which torch calls quicker than an operator's overload."""
    method = getattr(torch.Tensor, name)
    return lambda args, kwargs: method(*args, **kwargs) if args[0].is_meta else None


_UNARY = (
    "relu sigmoid tanh gelu silu hardswish hardsigmoid hardtanh relu6 leaky_relu elu mish selu "
    "exp sqrt rsqrt neg log erf abs sin cos"
)
_VIEWS = "permute transpose.int view unsqueeze squeeze.dim select.int expand flatten.using_ints"
_BINARY = "add.Tensor sub.Tensor mul.Tensor div.Tensor"

SHORTCUTS: dict[str, Shortcut] = {
    **{f"aten::{name}": _same_shape for name in f"{_UNARY} softplus".split()},
    **{f"aten::{name}_": _in_place for name in _UNARY.split()},
    **{f"aten::{name}": _binary for name in _BINARY.split()},
    **{f"aten::{name.replace('.', '_.')}": _in_place for name in _BINARY.split()},
    "aten::conv1d": _conv(1),
    "aten::conv2d": _conv(2),
    "aten::conv3d": _conv(3),
    "aten::linear": _linear,
    "aten::matmul": _matmul,
    "aten::bmm": _matmul,
    "aten::mm": _matmul,
    "aten::addmm": _addmm,
    "aten::_grouped_mm": _grouped_matmul,
    "aten::scaled_dot_product_attention": _attention,
    "aten::batch_norm": _batch_norm,
    "aten::layer_norm": _layer_norm,
    "aten::group_norm": lambda args, kwargs: _batch_norm((args[0], argument(args, 2)), kwargs),
    "aten::dropout": _dropout,
    "aten::feature_dropout": _dropout,
    "aten::softmax.int": _softmax,
    "aten::cat": _concatenation,
    "aten::max_pool2d": _max_pool,
    "aten::avg_pool2d": _average_pool,
    "aten::adaptive_avg_pool2d": _adaptive_pool,
    "aten::mean.dim": _mean,
    "aten::sum.dim_IntList": _mean,
    "aten::index.Tensor": _index,
    "aten::roll": _roll,
    "aten::contiguous": _contiguous,
    "aten::reshape": _reshape,
    **{f"aten::{name}": _method(name.partition(".")[0]) for name in _VIEWS.split()},
}
"""Shortcut by qualified name of the overload, e.g. ``aten::add.Tensor``; a default overload has no suffix."""


def _ctc_loss(args: Args, kwargs: Kwargs) -> tuple[torch.Tensor, torch.Tensor] | None:
    """``(logarithms (T, N, classes), targets, input_lengths, target_lengths, ...)``.

    Returns a loss for each sample, and the scores of the T steps for all places of the longest target and between them.
    """
    given, lengths = args[0], args[3]
    if not given.is_meta or (isinstance(lengths, torch.Tensor) and lengths.is_meta):
        return None
    steps, samples, _ = given.shape
    if isinstance(lengths, torch.Tensor):
        lengths = lengths.tolist()
    longest = max(lengths)
    return new((samples,), given.dtype), new((samples, steps, 2 * longest + 1), given.dtype)


def _ctc_loss_backward(args: Args, kwargs: Kwargs) -> torch.Tensor | None:
    """``(gradient, logarithms, ...)``."""
    if not args[1].is_meta:
        return None
    return new(args[1].shape, args[1].dtype)


UNKNOWN_TO_TORCH: dict[str, Shortcut] = {
    **{f"aten::{name}": _ctc_loss for name in ("_ctc_loss", "_ctc_loss.Tensor")},
    **{f"aten::{name}": _ctc_loss_backward for name in ("_ctc_loss_backward", "_ctc_loss_backward.Tensor")},
}
"""The same for operators that do not run on meta without it."""


def _padded(args: Args, kwargs: Kwargs) -> tuple[torch.Tensor, ...] | None:
    """``(input, hx, params, has_biases, layers, dropout, train, bidirectional, batch_first)``; an LSTM's ``hx`` is a pair.

    The output lies in memory time step by time step, also where the batch comes first.
    """
    given, states, bidirectional, batch_first = args[0], args[1], args[7], args[8]
    if not given.is_meta or given.dim() != 3:
        return None
    final = _final(states, given)
    width = final[0].shape[-1] * (1 + bidirectional)
    if not batch_first:
        steps, samples, _ = given.shape
        return new((steps, samples, width), given.dtype), *final
    samples, steps, _ = given.shape
    return new((steps, samples, width), given.dtype).transpose(0, 1), *final


def _packed(args: Args, kwargs: Kwargs) -> tuple[torch.Tensor, ...] | None:
    """``(data, batch_sizes, hx, params, has_biases, layers, dropout, train, bidirectional)``."""
    data, states, bidirectional = args[0], args[2], args[8]
    if not data.is_meta:
        return None
    final = _final(states, data)
    return new((data.shape[0], final[0].shape[-1] * (1 + bidirectional)), data.dtype), *final


def _final(states: torch.Tensor | Sequence[torch.Tensor], given: torch.Tensor) -> list[torch.Tensor]:
    """States after the last step, in the shapes of those before the first."""
    if isinstance(states, torch.Tensor):
        states = [states]
    return [new(state.shape, given.dtype) for state in states]


RECURRENT = {
    **{f"aten::{kind}.input": _padded for kind in ("lstm", "gru", "rnn_tanh", "rnn_relu")},
    **{f"aten::{kind}.data": _packed for kind in ("lstm", "gru", "rnn_tanh", "rnn_relu")},
}
"""Shortcut by qualified name of the overload, like :data:`SHORTCUTS`."""


# --- The mode that counts ---


def _is_unknown(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.is_meta


CONSTANT_ELEMENTS = 2**22
"""Tensors up to this size that depend on no weight and no floating-point input are computed for real."""
MOST_CONSTANT_ELEMENTS = 2**26
"""The same for a forward that asked for the values of a larger one, such as a mask of every token by every other."""
MASK_ELEMENTS = 2**16
"""The same for floating-point numbers that a forward makes on meta: a mask is small, and what is filled later may be large."""
WEIGHT_ELEMENTS = 4096
"""What depends on weights alone is computed for real from up to so many elements."""

_NUMBER: Any = torch.ops.aten.scalar_tensor.default
"""Makes a tensor of one number."""
_SHORTCUTS: dict[str, Shortcut] = {**SHORTCUTS, **RECURRENT, **UNKNOWN_TO_TORCH}
_NO_FUNCTIONS = (type, OpOverload, OpOverloadPacket, HigherOrderOperator)
"""What can be called, and is none of the functions that an operator takes."""


class NotOnShapes(Exception):
    """The forward needs values, which shapes do not have."""


class AutocastOnShapes(NotOnShapes):
    """The forward runs within autocast, which leaves tensors on the meta device as they are."""


@dataclass(frozen=True, slots=True)
class _Operator:
    """Properties of an operator overload, looked up once."""

    name: str
    cost: TorchRule | None
    shortcut: Shortcut | None
    is_composite: bool
    is_covered: bool
    allocates: bool
    """True if its results have memory of their own."""
    may_copy: bool
    """True if its result is a view where that is possible, and else a copy."""
    written: tuple[tuple[int, str], ...]
    """Position and name of the arguments that it writes to."""
    takes_device: bool


class CountingMode(DispatchMode):
    """Adds each operator's cost to the call that is running."""

    def __init__(  # noqa: PLR0913  # one argument for each way to treat what has no values
        self,
        sites: CallSites,
        live: LiveBytes,
        formulas: Formulas,
        on_shapes: bool,
        protected: Iterable[torch.Tensor] = (),
        *,
        constants: int = CONSTANT_ELEMENTS,
        skips_branches: bool = False,
        most_filled: int = MASK_ELEMENTS,
    ) -> None:
        """Args:
        on_shapes: compute on meta; else run every operator as it comes.
        protected: real tensors that must not be written to.
        constants: compute tensors that depend on no floating-point input for real up to so many elements, so that the forward may
            ask for their values; 0: none.
        skips_branches: list control flow that depends on values as uncovered; else it raises :class:`NotOnShapes`.
        most_filled: the same number for floating-point tensors that the forward makes on meta, such as masks.
        """
        super().__init__()  # type: ignore[no-untyped-call]
        self.operator_calls = 0
        self.higher_order: set[str] = set()
        """Operators that take functions, which ran."""
        self._sites, self._live, self._formulas, self._on_shapes = sites, live, formulas, on_shapes
        self._most, self._skips_branches, self._most_filled = constants, skips_branches, most_filled
        self.recorder: GraphRecorder | None = None
        """Notes every operator that is counted."""
        self._is_silent = False
        """True if operators run without being counted."""
        protected = [tensor for tensor in protected if tensor.layout == torch.strided]
        self._protected = {tensor.untyped_storage()._cdata: tensor.untyped_storage() for tensor in protected}
        self._host = protected[0].device if protected else torch.device("cpu")
        """Where constants are that the forward makes on meta."""
        self._overwritten: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        """Memory of constants that have no values any more, until nothing refers to it."""
        self._operators: dict[Any, _Operator] = {}
        self._lock = RLock()
        """Of the thread whose operator is counted."""

    def __torch_dispatch__(
        self, func: OpOverload, types: Sequence[type], args: Args = (), kwargs: Kwargs | None = None
    ) -> Any:
        if types and any(kind.__name__ == "NestedTensor" for kind in types):
            return NotImplemented  # it runs operators on the values of all its parts, which are counted
        with self._lock:
            return self._dispatched(func, args, kwargs or {})

    def _in_turn(self, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
        with self._lock:
            return self._dispatched(func, args, kwargs)

    @contextmanager
    def following_threads(self, gradients: Callable[[], AbstractContextManager[Any]]) -> Iterator[None]:
        """Within it, operators that run in other threads are counted too, for the module call that had them run.

        These are threads that are started, functions that pools of threads get, and calls of modules in any other thread.

        Args:
            gradients: the gradient mode, which each thread has of its own.
        """
        sites = self._sites

        def followed(function: Callable[..., Any]) -> Callable[..., Any]:
            call = sites.thread.call

            def run(*args: Any, **kwargs: Any) -> Any:
                if sites.thread.is_followed or sites.in_thread is None:
                    with sites.running(call):
                        return function(*args, **kwargs)
                sites.thread.is_followed = True
                try:
                    with RecordFunction(FOLLOWED), gradients(), InThread(self._in_turn), sites.running(call):
                        return function(*args, **kwargs)
                finally:
                    sites.thread.is_followed = False

            return run

        sites.in_thread, sites.thread.is_followed = followed, True
        try:
            with tasks_wrapped(followed):
                yield
        finally:
            sites.in_thread = None

    def _dispatched(self, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
        operator = self._operators.get(func)
        if operator is None:
            if isinstance(func, HigherOrderOperator):
                return self._higher_order(func, args, kwargs)
            operator = self._operators[func] = self._looked_up(func)
        if operator.is_composite:
            with self:  # counted by its parts
                return func.decompose(*args, **kwargs)
        output = None
        if self._on_shapes:
            if operator.shortcut is not None:
                output = operator.shortcut(args, kwargs)
            if output is None:
                output = self._on_meta(func, operator, args, kwargs)
        else:
            output = func(*args, **kwargs)
        cost = None
        is_excluded = self._sites.is_excluded
        if not self._is_silent and not is_excluded:
            cost = self._counted(operator, args, kwargs, output)
        if operator.allocates or (operator.may_copy and _is_copy(args, output)):
            self._live.saw(output)
        if self.recorder is not None and not self._is_silent:
            if cost is None and operator.is_covered and not is_excluded:
                cost = (0, 0, 0)
            self.recorder.ran(operator.name, cost, (args, kwargs), output, _targets(operator, args, kwargs))
        return output

    def _counted(self, operator: _Operator, args: Args, kwargs: Kwargs, output: object) -> OperatorCost | None:
        """Count an operator that ran, and return its cost; None if it has no formula."""
        self.operator_calls += 1
        if operator.cost is None:
            if not operator.is_covered:
                self._sites.miss(operator.name)
            return None
        if self._on_shapes:
            cost = operator.cost(args, kwargs, output)
        else:
            cost = added(*(operator.cost(*parts) for parts in _without_nesting(args, kwargs, output)))
        self._sites.count(operator.name, cost, args, output)
        return cost

    def _higher_order(self, func: HigherOrderOperator, args: Args, kwargs: Kwargs) -> Any:
        """Run an operator that takes functions, in which operators are counted as they come.

        Raises:
            NotOnShapes: what it does depends on values.
        """
        name = f"{func.namespace}::{func.name()}"  # type: ignore[no-untyped-call]
        self.higher_order.add(name)
        written = self._formulas.of_operator(name)
        cost = HIGHER_ORDER_COSTS.get(name)
        if written is not None:
            cost = partial(operator_cost, written)
        ran = False

        def counting(argument: Any) -> Any:
            if not callable(argument) or isinstance(argument, _NO_FUNCTIONS):
                return argument

            @wraps(argument)
            def counted(*args: object, **kwargs: object) -> object:
                nonlocal ran
                ran = True
                with self:
                    return argument(*args, **kwargs)

            return counted

        args, kwargs = _mapped(args, counting), _mapped(kwargs, counting)
        with self._silently() if written is not None else nullcontext():
            output = None
            if self._on_shapes:
                output = self._skipped(name, args)
            if output is None:
                output = func(*args, **kwargs)
            elif written is None:
                ran = False
        is_excluded = self._sites.is_excluded
        figures = None
        if cost is not None and not is_excluded:
            figures = cost(args, kwargs, output)
        if figures is not None:
            self.operator_calls += 1
            self._sites.count(name, figures, args, output)
        elif not ran and not is_excluded:
            self.operator_calls += 1
            self._sites.miss(name)
        self._live.saw(output)
        if self.recorder is not None and (cost is not None or not ran):
            self.recorder.ran(name, figures, (args, kwargs), output, ())
        return output

    def _skipped(self, name: str, args: Args) -> Any:
        """Return the result of control flow that depends on values, without counting it; None for any other operator."""
        with self._silently():
            if name == "higher_order::cond":
                depends = _is_unknown(args[0])
            elif name == "higher_order::while_loop":
                depends = _is_unknown(args[0](*args[2], *args[3]))
            else:
                return None
            if not depends:
                return None
            if not self._skips_branches:
                raise NotOnShapes(f"what {name} runs depends on values")
            if name == "higher_order::cond":
                _, branch, _, operands = args
                return branch(*operands)
            # The results of a loop are like what it began with.
            return _mapped(
                tuple(args[2]), lambda item: torch.empty_like(item) if isinstance(item, torch.Tensor) else item
            )

    @contextmanager
    def _silently(self) -> Iterator[None]:
        was_silent, self._is_silent = self._is_silent, True
        try:
            yield
        finally:
            self._is_silent = was_silent

    def _looked_up(self, func: OpOverload) -> _Operator:
        known = known_operator(func)
        written = self._formulas.of_operator(func._schema.name)
        if written is None:
            return known
        return replace(known, cost=partial(operator_cost, written), is_composite=False, is_covered=True)

    def _on_meta(self, func: OpOverload, operator: _Operator, args: Args, kwargs: Kwargs) -> Any:
        targets = _targets(operator, args, kwargs)
        if self._overwritten:
            if func.is_view and self._is_overwritten(args[0]):
                return self._viewed(func, operator, args, kwargs)
            args, kwargs = _mapped(args, self._without_values), _mapped(kwargs, self._without_values)
        real, meta = _devices(args, kwargs)
        if targets and (real or self._overwritten):
            if not meta and not self._is_of_model(targets):
                return func(*args, **kwargs)
            return self._written(func, targets, args, kwargs)
        if not real and not meta:
            return self._constant(func, operator, args, kwargs)
        if not real:
            return func(*_shapes_of(args), **_shapes_of(kwargs)) if operator.takes_device else func(*args, **kwargs)
        if not meta and operator.takes_device and self._most:
            args, kwargs = _mapped(args, self._off_meta), _mapped(kwargs, self._off_meta)
        if not meta and (func.is_view or _elements(args) <= WEIGHT_ELEMENTS):
            return func(*args, **kwargs)
        shapes, keywords = _shapes_of(args), _shapes_of(kwargs)
        output = None
        if operator.shortcut is not None:
            output = operator.shortcut(shapes, keywords)
        if output is None:
            try:
                output = func(*shapes, **keywords)
            except RuntimeError as error:
                output = self._from_values(func, args, kwargs, error)
        if not meta and _elements((output,)) <= self._most and not self._is_of_model(args):
            return func(*args, **kwargs)
        return output

    def _from_values(self, func: OpOverload, args: Args, kwargs: Kwargs, error: RuntimeError) -> Any:
        """The result of an operator whose shape depends on the values of real arguments, such as a mask that selects rows.

        Raises:
            RuntimeError: ``error``, which it raised on meta, for any other operator.
        """
        try:
            if func is torch.ops.aten.index.Tensor:
                return func(_shape_of(args[0]), _shapes_of(_positions(args[1])))
            if func is torch.ops.aten.masked_select.default:
                return func(torch.empty(1).expand(args[0].shape), args[1]).to(META, args[0].dtype)
            if func._can_decompose():
                with self, self._silently():
                    return func.decompose(*args, **kwargs)
            return func(*args, **kwargs)  # lengths on the host, beside data on meta
        except RuntimeError:
            raise error from None

    def _is_of_model(self, args: Sequence[object]) -> bool:
        """True if a tensor of the model is among the real arguments."""
        storages = {tensor.untyped_storage()._cdata for tensor in tensors_in(args) if tensor.layout == torch.strided}
        return not storages.isdisjoint(self._protected)

    def _constant(self, func: OpOverload, operator: _Operator, args: Args, kwargs: Kwargs) -> Any:
        """A new tensor that depends on no other: for real where it is small, also if it is asked for on meta."""
        if not operator.takes_device:
            return func(*args, **kwargs)
        if func is _NUMBER and self._most:
            return func(*args, **_mapped(kwargs, self._off_meta))
        output = func(*args, **{**kwargs, "device": META})
        if not self._most or not isinstance(output, torch.Tensor):
            return output
        most = self._most
        if kwargs.get("device") == META and output.is_floating_point():  # it is filled later
            most = self._most_filled
        if output.numel() > most:
            return output
        return func(*args, **_mapped(kwargs, self._off_meta))

    def _off_meta(self, item: object) -> object:
        """Return the device of constants instead of the meta device; any other argument as it is."""
        if isinstance(item, torch.device) and item == META:
            return self._host
        return item

    def _written(self, func: OpOverload, targets: list[torch.Tensor], args: Args, kwargs: Kwargs) -> Any:
        """Write into tensors in form only: those of the model keep their values, constants have none any more."""
        for target in targets:
            if not target.is_meta and target.untyped_storage()._cdata not in self._protected:
                storage = target.untyped_storage()
                # It is called with the reference, which `pop` takes for its default.
                forget = partial(self._overwritten.pop, storage._cdata)
                self._overwritten[storage._cdata] = weakref.ref(storage, forget)
        output = func(*_shapes_of(args), **_shapes_of(kwargs))
        returns = func._schema.returns
        if not returns or any(given.alias_info is None for given in returns):
            return output
        if len(returns) == 1:
            return targets[0]
        return tuple(targets)

    def _without_values(self, item: object) -> object:
        """The shape of a constant that was overwritten; anything else as it is."""
        if self._is_overwritten(item):
            return _shape_of(item)
        return item

    def _is_overwritten(self, item: object) -> bool:
        if not isinstance(item, torch.Tensor) or item.is_meta or item.layout != torch.strided:
            return False
        return item.untyped_storage()._cdata in self._overwritten

    def _viewed(self, func: OpOverload, operator: _Operator, args: Args, kwargs: Kwargs) -> Any:
        """A view of a constant that was overwritten, which has no values either.

        Raises:
            NotOnShapes: the forward reads them: NumPy and lists are made of a tensor that is resolved.
        """
        if operator.name in ("resolve_conj", "resolve_neg"):
            raise NotOnShapes("the forward asks for values that it computed from shapes")
        return _mapped(func(*args, **kwargs), lambda made: made if self._is_overwritten(made) else _shape_of(made))


@contextmanager
def apart_from_others() -> Iterator[None]:
    """Within it, a count that is running sees no operators: a forward that is counted may count another model."""
    is_within_another = any(isinstance(mode, CountingMode) for mode in current_dispatch_modes())
    with disable_current_modes() if is_within_another else nullcontext():
        yield


def _is_copy(args: Args, output: object) -> bool:
    """True if a result is one tensor that shares no memory with the first argument."""
    given = args[0]
    if not isinstance(output, torch.Tensor) or not isinstance(given, torch.Tensor):
        return False
    if output.layout is not torch.strided or given.layout is not torch.strided:
        return False
    return output is not given and output.untyped_storage()._cdata != given.untyped_storage()._cdata


@cache
def known_operator(func: OpOverload) -> _Operator:
    """Return the properties of an overload, independent of user formulas."""
    qualified = func._schema.name
    namespace, _, name = qualified.partition("::")
    cost = COSTS.get(qualified) or COSTS.get(f"{qualified}_") or COSTS.get(qualified.removesuffix("_"))
    is_free = does_no_arithmetic(func)
    is_composite = cost is None and not is_free and func._can_decompose()
    if cost is None and not is_free and not is_composite and _is_pointwise(namespace, name):
        cost = ONE_EACH
    written = []
    takes_device = False
    for index, parameter in enumerate(func._schema.arguments):
        if parameter.alias_info is not None and parameter.alias_info.is_write:
            written.append((index, parameter.name))
        if str(parameter.type) in ("Device", "Optional[Device]"):
            takes_device = True
    if namespace != "aten":
        name = qualified
    return _Operator(
        name=name.removesuffix("_") or name,
        cost=cost,
        shortcut=_SHORTCUTS.get(func.name()),  # type: ignore[no-untyped-call]
        is_composite=is_composite,
        is_covered=cost is not None or is_free,
        allocates=not func.is_view and not func._schema.is_mutable,
        may_copy=func.is_view and func._can_decompose(),
        written=tuple(written),
        takes_device=takes_device,
    )


def _is_pointwise(namespace: str, name: str) -> bool:
    """True if torch tags an overload of an operator as elementwise, or one of the operator that it is the in-place variant of."""
    for known in (name, name.removesuffix("_")):
        packet = getattr(getattr(torch.ops, namespace), known, None)
        if packet is None:
            continue
        if any(torch.Tag.pointwise in getattr(packet, overload).tags for overload in packet.overloads()):
            return True
    return False


def _targets(operator: _Operator, args: Args, kwargs: Kwargs) -> list[torch.Tensor]:
    """The tensors that an operator writes to."""
    found: list[torch.Tensor] = []
    for position, name in operator.written:
        given = argument(args, position, kwargs.get(name))
        if isinstance(given, list | tuple):
            found += given
        elif given is not None:
            found.append(given)
    return found


def _positions(indices: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
    """Indices with real masks replaced by the positions that they select."""
    found: list[torch.Tensor | None] = []
    for index in indices:
        if index is None or index.is_meta or index.dtype not in (torch.bool, torch.uint8):
            found.append(index)
        else:
            found += index.nonzero(as_tuple=True)
    return found


def _devices(args: Args, kwargs: Kwargs) -> tuple[bool, bool]:
    """Return whether the arguments contain real tensors, and whether they contain meta tensors."""
    real = meta = False
    if kwargs:
        args = (*args, *kwargs.values())
    for given in args:
        for item in given if isinstance(given, list | tuple) else (given,):
            if isinstance(item, torch.Tensor):
                if item.is_meta:
                    meta = True
                else:
                    real = True
    return real, meta


def _without_nesting(args: Args, kwargs: Kwargs, output: object) -> Iterator[tuple[Args, Kwargs, Any]]:
    """Yield arguments and result of an operator; if they are nested tensors, those of each sample, which has its own sizes."""
    call = (args, kwargs, output)
    sizes = [tensor.size(0) for tensor in tensors_in(call) if tensor.is_nested]
    if not sizes:
        yield call
        return
    for sample in range(sizes[0]):

        def of_sample(item: object, sample: int = sample) -> object:
            if isinstance(item, torch.Tensor) and item.is_nested:
                return item.unbind()[sample].unsqueeze(0)
            return item

        yield _mapped(call, of_sample)


def _elements(args: Args) -> int:
    total = 0
    for given in args:
        for item in given if isinstance(given, list | tuple) else (given,):
            if isinstance(item, torch.Tensor):
                total += item.numel()
    return total


def _mapped(tree: object, change: Callable[[Any], object]) -> Any:
    if isinstance(tree, list | tuple):
        return type(tree)(_mapped(item, change) for item in tree)
    if isinstance(tree, dict):
        return {key: _mapped(item, change) for key, item in tree.items()}
    return change(tree)


def _shapes_of(tree: object) -> Any:
    return _mapped(tree, _shape_of)


def _shape_of(item: object) -> Any:
    if isinstance(item, torch.Tensor) and not item.is_meta:
        return torch.empty_strided(item.shape, item.stride(), dtype=item.dtype, device=META)
    if isinstance(item, torch.device):
        return META
    return item


def _look_up_all() -> None:
    """Look the most frequent operators up, here and in torch's own tables: once, and not in each process that is forked."""
    for qualified in _SHORTCUTS:
        name, _, overload = qualified.removeprefix("aten::").partition(".")
        packet = getattr(torch.ops.aten, name, None)
        if packet is not None:  # a release of torch may not have it yet
            func = getattr(packet, overload or "default")
            known_operator(func)
            with suppress(Unsupported):  # a release without these tables
                rule_in_mode(func, CountingMode)


_look_up_all()  # takes about 5 ms
