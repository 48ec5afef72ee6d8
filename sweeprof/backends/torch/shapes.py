"""Output shapes and memory layouts of operators on the meta device, without torch's own shape functions.

The most frequent operators, and whole recurrent networks, where torch itself would run every time step.

Torch's own shape functions are Python references that take up to a millisecond a call, and most of a model is a handful of
operators. A rule here answers only where it is exactly right (``tests/unit/backends/test_torch_shapes.py`` holds it against the
real one) and returns None everywhere else: other layouts, type promotion, anything broadcast that is not contiguous.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import prod
from typing import Any

import torch

from sweeprof.counting.formulas import Args, Kwargs

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
        step *= size if size > 1 else 1
    return tuple(reversed(strides))


def _channels_last(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """A tensor ``(N, C, H, W)`` on meta whose channels are side by side in memory."""
    samples, channels, height, width = shape
    return new((samples, height, width, channels), dtype).permute(0, 3, 1, 2)


def like(given: torch.Tensor, shape: Sequence[int]) -> torch.Tensor | None:
    """A tensor of ``shape`` in the layout of ``given``, contiguous or channels-last; None for any other."""
    layout = _layout_of(given.shape, given.stride())
    if layout is torch.contiguous_format:
        return new(shape, given.dtype)
    return _channels_last(shape, given.dtype) if layout is torch.channels_last else None


def _windows(given: torch.Tensor, shape: Sequence[int]) -> torch.Tensor | None:
    """Return the result of a convolution or pooling: contiguous, unless strides suggest channels-last; None if it is unclear."""
    made = like(given, shape)
    if made is None and given.dim() == 4 and not _suggests_channels_last(given.shape, given.stride()):
        return new(shape, given.dtype)
    return made


@lru_cache(maxsize=4096)
def _layout_of(shape: tuple[int, ...], strides: tuple[int, ...]) -> torch.memory_format | None:
    if len(shape) == 4 and _suggests_channels_last(shape, strides):
        is_packed = torch.empty_strided(shape, strides, device=META).is_contiguous(memory_format=torch.channels_last)
        return torch.channels_last if is_packed else None
    return torch.contiguous_format if strides == _strides(shape) else None


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
        least = strides[axis] * shape[axis] if shape[axis] > 1 else strides[axis]
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


def is_dense(tensor: torch.Tensor) -> bool:
    """True if the elements lie in memory without gaps or overlaps, in any order of the axes."""
    return tensor.is_contiguous() or packed_strides(tensor) == list(tensor.stride())


Shortcut = Callable[[Args, Kwargs], Any]
"""From the arguments and keyword arguments of an operator to what it returns; None where that is not certain."""

_NUMBERS = (int, float)


def _weighs(tensor: torch.Tensor, given: torch.Tensor) -> bool:
    """True if ``tensor`` can be a weight for ``given``; it may still be on a real device."""
    return tensor.dtype == given.dtype and is_new(tensor)


def _same(args: Args, kwargs: Kwargs) -> torch.Tensor | None:
    """Elementwise with one tensor whose floating-point type the result keeps."""
    given = args[0]
    if not given.is_meta or not given.is_floating_point():
        return None
    strides = packed_strides(given)
    return None if strides is None else torch.empty_strided(given.shape, strides, dtype=given.dtype, device=META)


def _same_contiguous(args: Args, kwargs: Kwargs) -> torch.Tensor | None:
    """The shape and type of the first argument; contiguous."""
    given = args[0]
    return new(given.shape, given.dtype) if given.is_meta and given.is_floating_point() else None


def _in_place(args: Args, kwargs: Kwargs) -> torch.Tensor | None:
    """Elementwise on the first argument, which is returned; the other one, a number or a tensor, must fit into it."""
    given = args[0]
    if not given.is_meta or not given.is_floating_point() or not is_dense(given):
        return None
    other = args[1] if len(args) > 1 else 0
    if isinstance(other, torch.Tensor):
        return given if other.dtype == given.dtype and other.shape == given.shape else None
    return given if type(other) in _NUMBERS else None


def _binary(args: Args, kwargs: Kwargs) -> torch.Tensor | None:
    """Elementwise with a number or a tensor of the same type, broadcast where both are contiguous."""
    left, right = args[0], args[1]
    if type(right) in _NUMBERS:
        return _same(args, kwargs)
    if not isinstance(right, torch.Tensor) or left.dtype != right.dtype or not left.is_floating_point():
        return None
    if not (left.is_meta or right.is_meta) or not left.dim() or not right.dim():
        return None
    return _broadcasted(left, right)


def _broadcasted(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor | None:
    shape = left.shape if left.shape == right.shape else _broadcast(left.shape, right.shape)
    if shape is None:
        return None
    if left.is_contiguous() and right.is_contiguous():
        return new(shape, left.dtype)
    strides = None
    if tuple(shape) == tuple(left.shape):  # the first operand decides the order of the axes
        strides = packed_strides(left)
    elif tuple(shape) == tuple(right.shape) and _leaves_order_open(left, shape):
        strides = packed_strides(right)
    return None if strides is None else torch.empty_strided(shape, strides, dtype=left.dtype, device=META)


def _leaves_order_open(tensor: torch.Tensor, shape: Sequence[int]) -> bool:
    """True if a tensor has at most one axis that is not broadcast to ``shape``, so that it has no order of axes."""
    sizes = zip(tensor.shape, shape[len(shape) - tensor.dim() :], strict=True)
    return sum(own != 1 or size == 1 for own, size in sizes) <= 1


def _broadcast(left: Sequence[int], right: Sequence[int]) -> list[int] | None:
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
    return value if len(value) == spatial else tuple(value) * spatial


def _conv(spatial: int) -> Shortcut:
    def shortcut(args: Args, kwargs: Kwargs) -> torch.Tensor | None:
        given, weight = args[0], args[1]
        if not given.is_meta or not _weighs(weight, given):
            return None
        # An integer stands for a list of one; the dispatcher leaves trailing defaults out.
        rest = tuple([value if isinstance(value, int) else tuple(value) for value in args[3:]])
        made = _convolved(spatial, given.shape, weight.shape, rest)
        return None if made is None else _windows(given, made)

    return shortcut


@lru_cache(maxsize=4096)
def _convolved(spatial: int, shape: tuple[int, ...], kernel: tuple[int, ...], rest: Args) -> tuple[int, ...] | None:
    """Shape of a convolution's result; ``rest`` is stride, padding, dilation and groups, as far as given."""
    if len(shape) != spatial + 2 or len(kernel) != spatial + 2:
        return None
    stride, padding, dilation, groups = rest + (1, 0, 1, 1)[len(rest) :]
    if shape[1] != kernel[1] * groups or kernel[0] % groups:
        return None
    stride, padding, dilation = (_pair(value, spatial) for value in (stride, padding, dilation))
    made = [shape[0], kernel[0]]
    for axis in range(spatial):
        reach = dilation[axis] * (kernel[axis + 2] - 1)
        made.append((shape[axis + 2] + 2 * padding[axis] - reach - 1) // stride[axis] + 1)
    return tuple(made) if min(made) > 0 else None


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

    That kernel takes four axes, a mask of two or four, no dropout, and keys and values of the query's width; the rest is left to
    plain matrix products, whose result is contiguous.
    """
    query, key, value = args[0], args[1], args[2]
    mask, dropout = args[3] if len(args) > 3 else None, args[4] if len(args) > 4 else 0.0
    if not query.is_meta or not query.dtype == key.dtype == value.dtype or not query.numel() or not key.numel():
        return None
    if dropout or (mask is not None and mask.dtype not in (torch.bool, query.dtype)) or key.shape != value.shape:
        return None
    if query.dim() != 4 or (mask is not None and mask.dim() not in (2, 4)):
        return _attention_by_products(query, key, mask, kwargs)
    samples, heads, _, width = query.shape
    shared = key.dim() == 4 and key.shape[1] and kwargs.get("enable_gqa") and heads % key.shape[1] == 0
    if key.shape[:2] != (samples, key.shape[1] if shared else heads) or key.shape[3:] != (width,):
        return None
    if {query.stride(3), key.stride(3), value.stride(3)} != {1}:
        return None
    strides = packed_strides(query)
    return None if strides is None else torch.empty_strided(query.shape, strides, dtype=query.dtype, device=META)


def _attention_by_products(
    query: torch.Tensor, key: torch.Tensor, mask: torch.Tensor | None, kwargs: Kwargs
) -> torch.Tensor | None:
    if kwargs.get("enable_gqa") or query.shape[:-2] != key.shape[:-2] or query.shape[-1] != key.shape[-1]:
        return None
    if mask is not None and _broadcast(query.shape[:-2], mask.shape[:-2]) != list(query.shape[:-2]):
        return None
    return new(query.shape, query.dtype)


def _grouped_matmul(args: Args, kwargs: Kwargs) -> torch.Tensor | None:
    """``(a, b, offsets, ...)`` of types other than bfloat16, which torch's shape function rejects and its kernels accept.

    Kernels need rows (or columns) that begin at multiples of 16 bytes, and leave the rows of the result so.
    """
    left, right = args[0], args[1]
    offsets = kwargs.get("offs", args[2] if len(args) > 2 else None)
    if left.dtype == torch.bfloat16 or left.dtype != right.dtype or not left.is_floating_point():
        return None
    if not left.is_meta and not right.is_meta:
        return None
    if len(args) > 3 or kwargs.get("bias") is not None or kwargs.get("out_dtype") is not None:
        return None
    a, b = left.shape, right.shape
    each = 16 // left.itemsize
    aligned = all(1 in tensor.stride()[-2:] and max(tensor.stride()[-2:]) % each == 0 for tensor in (left, right))
    if not aligned or not {len(a), len(b)} <= {2, 3} or (offsets is None) != (len(a) == len(b) == 3):
        return None
    if len(a) == len(b) == 2:
        shape = [offsets.shape[0], a[0], b[1]]
    elif a[-1] != b[-2] or (len(a) == len(b) and a[0] != b[0]):
        return None
    else:
        shape = [*(a[:1] if len(a) == len(b) else ()), a[-2], b[-1]]
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
    weight = args[2] if len(args) > 2 else None
    return None if weight is not None and weight.dtype != given.dtype else _same_contiguous(args, kwargs)


def _dropout(args: Args, kwargs: Kwargs) -> torch.Tensor | None:
    """In inference the very tensor that was given."""
    return args[0] if not args[2] else None


def _softmax(args: Args, kwargs: Kwargs) -> torch.Tensor | None:
    return _same_contiguous(args, kwargs) if len(args) < 3 or args[2] in (None, args[0].dtype) else None


def _concatenation(args: Args, kwargs: Kwargs) -> torch.Tensor | None:
    """Contiguous unless the strides of every tensor suggest channels-last."""
    tensors = args[0]
    axis = args[1] if len(args) > 1 else 0
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
        if not is_contiguous:
            suggests_other = (
                _suggests_channels_last(tensor.shape, tensor.stride()) if len(shape) == 4 else not is_new(tensor)
            )
            is_contiguous = len(shape) < 4 or not suggests_other
    shape[axis] = total
    return new(shape, dtype) if is_contiguous else None


def _average_pool(args: Args, kwargs: Kwargs) -> torch.Tensor | None:
    """``(input, kernel, stride, padding, ceil_mode, ...)``."""
    return _pooled(args, len(args) > 4 and args[4])


def _max_pool(args: Args, kwargs: Kwargs) -> torch.Tensor | None:
    """``(input, kernel, stride, padding, dilation, ceil_mode)``."""
    dilated = len(args) > 4 and any(step != 1 for step in _pair(args[4], 2))
    return None if dilated else _pooled(args, len(args) > 5 and args[5])


def _pooled(args: Args, ceil_mode: bool) -> torch.Tensor | None:
    given = args[0]
    shape = given.shape
    if len(shape) != 4 or not given.is_meta:
        return None
    kernel = _pair(args[1], 2)
    stride = _pair(args[2], 2) if len(args) > 2 and args[2] else kernel
    padding = _pair(args[3], 2) if len(args) > 3 else (0, 0)
    if any(2 * pad > size for pad, size in zip(padding, kernel, strict=True)):
        return None
    made = []
    for size, window, step, pad in zip(shape[2:], kernel, stride, padding, strict=True):
        windows = (size + 2 * pad - window + (step - 1 if ceil_mode else 0)) // step + 1
        begins_outside = ceil_mode and (windows - 1) * step >= size + pad
        made.append(windows - 1 if begins_outside else windows)
    return _windows(given, (shape[0], shape[1], *made)) if min(made) > 0 else None


def _adaptive_pool(args: Args, kwargs: Kwargs) -> torch.Tensor | None:
    given, size = args[0], args[1]
    if given.dim() != 4 or not given.is_meta or len(size) != 2 or None in size:
        return None
    return like(given, (*given.shape[:2], *size))


def _mean(args: Args, kwargs: Kwargs) -> torch.Tensor | None:
    """``(input, axes, keep)`` of a floating-point type; in whatever order the axes lie in memory, the result is contiguous."""
    given, axes = args[0], args[1] if len(args) > 1 else None
    if not axes or not given.is_meta or not given.is_floating_point() or kwargs.get("dtype"):
        return None
    keep = len(args) > 2 and args[2]
    folded = {axis % given.dim() for axis in axes}
    kept = [1 if i in folded else size for i, size in enumerate(given.shape) if keep or i not in folded]
    return new(kept, given.dtype)


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
    given = args[0]
    return new(given.shape, given.dtype) if given.is_meta and is_new(given) else None


def _contiguous(args: Args, kwargs: Kwargs) -> torch.Tensor | None:
    """The very tensor where it is contiguous."""
    given = args[0]
    if kwargs or len(args) > 1 or not given.is_meta:
        return None
    return given if given.is_contiguous() else new(given.shape, given.dtype)


def _reshape(args: Args, kwargs: Kwargs) -> torch.Tensor | None:
    """``(input, shape)``: a view if the elements lie in memory in the order of the new shape; else a new tensor."""
    given, wanted = args
    if not given.is_meta or not given.dim() or not given.numel():
        return None
    shape = _complete(tuple(wanted), given.numel())
    if shape is None:
        return None
    strides = _view_strides(given.shape, given.stride(), shape)
    return new(shape, given.dtype) if strides is None else given.as_strided(shape, strides)


@lru_cache(maxsize=4096)
def _complete(shape: tuple[int, ...], elements: int) -> tuple[int, ...] | None:
    """Return a shape with the size of its axis of -1; None if it cannot have so many elements."""
    known = prod([size for size in shape if size != -1])
    if shape.count(-1) == 1 and known > 0:
        shape = tuple([elements // known if size == -1 else size for size in shape])
    return shape if min(shape, default=1) > 0 and prod(shape) == elements else None


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
_VIEWS = "permute transpose.int swapaxes view unsqueeze squeeze.dim select.int expand flatten.using_ints reshape_as"
_BINARY = "add.Tensor sub.Tensor mul.Tensor div.Tensor"

SHORTCUTS: dict[str, Shortcut] = {
    **{f"aten::{name}": _same for name in f"{_UNARY} softplus".split()},
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
    "aten::group_norm": lambda args, kwargs: _batch_norm((args[0], args[2] if len(args) > 2 else None), kwargs),
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
    longest = max(lengths.tolist() if isinstance(lengths, torch.Tensor) else lengths)
    return new((samples,), given.dtype), new((samples, steps, 2 * longest + 1), given.dtype)


def _ctc_loss_backward(args: Args, kwargs: Kwargs) -> torch.Tensor | None:
    """``(gradient, logarithms, ...)``."""
    return new(args[1].shape, args[1].dtype) if args[1].is_meta else None


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
    hidden = states if isinstance(states, torch.Tensor) else states[0]
    width = hidden.shape[-1] * (2 if bidirectional else 1)
    samples, steps = given.shape[:2] if batch_first else reversed(given.shape[:2])
    output = new((steps, samples, width), given.dtype)
    return (output.transpose(0, 1) if batch_first else output, *_final(states, given))


def _packed(args: Args, kwargs: Kwargs) -> tuple[torch.Tensor, ...] | None:
    """``(data, batch_sizes, hx, params, has_biases, layers, dropout, train, bidirectional)``."""
    data, states, bidirectional = args[0], args[2], args[8]
    if not data.is_meta:
        return None
    hidden = states if isinstance(states, torch.Tensor) else states[0]
    output = new((data.shape[0], hidden.shape[-1] * (2 if bidirectional else 1)), data.dtype)
    return (output, *_final(states, data))


def _final(states: torch.Tensor | Sequence[torch.Tensor], given: torch.Tensor) -> list[torch.Tensor]:
    """States after the last step, in the shapes of those before the first."""
    before = [states] if isinstance(states, torch.Tensor) else states
    return [new(tuple(state.shape), given.dtype) for state in before]


RECURRENT = {
    **{f"aten::{kind}.input": _padded for kind in ("lstm", "gru", "rnn_tanh", "rnn_relu")},
    **{f"aten::{kind}.data": _packed for kind in ("lstm", "gru", "rnn_tanh", "rnn_relu")},
}
"""Shortcut by qualified name of the overload, like those of shapes.py."""
