"""Every module of torch.nn that computes, in random shapes, against formulas written here by hand or against naive loops.

What one element costs is the published table: a MAC is two FLOPs, a bias one, an activation one; in textbook operations
sigmoid is 3, tanh 7, a sum of n products 2n - 1, and with a bias 2n.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils.flop_counter import FlopCounterMode

from support.torch_modules import Functional, counted, figures
from sweeprof.measuring.inputs import Inputs, TensorSpec

pytestmark = [pytest.mark.filterwarnings("ignore::UserWarning"), pytest.mark.filterwarnings("ignore::FutureWarning")]
EXERCISED: set[str] = set()
DOES_NOT_COMPUTE = set("Module Container RNNBase RNNCellBase ModuleList ModuleDict ParameterList ParameterDict".split())
"""Base classes, and what only holds modules or parameters."""

few = settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
size, two, flags = st.integers(1, 3), st.integers(1, 2), st.booleans()
batches = st.sampled_from([1, 2, None])
real_types = st.sampled_from([torch.float32, torch.float64, torch.bfloat16])
all_types = st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.complex64])


def exercises(names: str) -> Callable[[Any], Any]:
    """Parametrize a test over classes of torch.nn, by name, and keep a record of them."""
    EXERCISED.update(names.split())
    return pytest.mark.parametrize("name", names.split())


def made(name: str, *args: Any, **kwargs: Any) -> Any:
    return getattr(nn, name)(*args, **kwargs)


def spec(shape: Any, dtype: torch.dtype = torch.float32) -> TensorSpec:
    return TensorSpec(tuple(shape), str(dtype).removeprefix("torch."))


def drawn(data: st.DataObject, *strategies: st.SearchStrategy[Any]) -> list[Any]:
    return [data.draw(strategy) for strategy in strategies]


def dims_of(name: str) -> int:
    return int(name[-2])


def numbers(shape: Any) -> torch.Tensor:
    """Small whole numbers, with which floating-point arithmetic is exact."""
    return (torch.arange(math.prod(shape), dtype=torch.float64) % 5 - 2).reshape(shape)


def test_every_module_is_exercised_or_known_to_do_nothing() -> None:
    every = {
        name for name in dir(nn) if isinstance(getattr(nn, name), type) and issubclass(getattr(nn, name), nn.Module)
    }
    assert every - EXERCISED == DOES_NOT_COMPUTE


# Convolutions: naive loops that give the right result, counted as they go


def positions(*sizes: int) -> Iterator[tuple[int, ...]]:
    return itertools.product(*map(range, sizes))


def correlated(
    x: torch.Tensor, weight: torch.Tensor, stride: int, dilation: int, groups: int, shape: Any
) -> tuple[torch.Tensor, int]:
    """A convolution of an input that is padded already, and the multiplications it took."""
    result, taken = torch.zeros(shape, dtype=torch.float64), 0
    source, kernel, inner = x.tolist(), weight.tolist(), weight.shape[1]
    per_group = weight.shape[0] // groups
    for sample, channel, *place in positions(*shape):
        total = 0.0
        for inputs, *offset in positions(inner, *weight.shape[2:]):
            value: Any = source[sample][channel // per_group * inner + inputs]
            factor: Any = kernel[channel][inputs]
            for at, shift in zip(place, offset, strict=True):
                value, factor = value[at * stride + shift * dilation], factor[shift]
            total += value * factor
            taken += 1
        result[(sample, channel, *place)] = total
    return result, taken


def spread(
    x: torch.Tensor, weight: torch.Tensor, stride: int, dilation: int, groups: int, shape: Any
) -> tuple[torch.Tensor, int]:
    """A transposed convolution, before its borders are cut off, and the multiplications it took."""
    result, taken = torch.zeros(shape, dtype=torch.float64), 0
    per_group, outer = x.shape[1] // groups, weight.shape[1]
    for sample, channel, *place in positions(*x.shape):
        for outputs, *offset in positions(outer, *weight.shape[2:]):
            where = [at * stride + shift * dilation for at, shift in zip(place, offset, strict=True)]
            product = x[(sample, channel, *place)] * weight[(channel, outputs, *offset)]
            result[(sample, channel // per_group * outer + outputs, *where)] += product
            taken += 1
    return result, taken


def convolution_costs(macs: int, outputs: int, bias: bool, dtype: torch.dtype) -> tuple[int, int, int]:
    """A complex multiplication is 6 operations and a complex addition 2, where a real one is 1."""
    scale, parts = (4, 2) if dtype.is_complex else (1, 1)
    flops = 2 * scale * macs + (parts * outputs if bias else 0)
    return macs, flops, 2 * scale * macs - (0 if bias else parts * outputs)


MODES = st.sampled_from(["zeros", "reflect", "replicate", "circular"])


@exercises("Conv1d Conv2d Conv3d")
@few
@given(data=st.data())
def test_convolutions(name: str, data: st.DataObject) -> None:
    dims, draw = dims_of(name), data.draw
    groups, inputs, outputs, stride, dilation = drawn(data, two, size, size, size, two)
    kernel, length = drawn(data, st.integers(1, 3 if dims < 3 else 2), st.integers(5, 6 if dims < 3 else 5))
    padding: Any = draw(st.sampled_from([0, 1, 2, "valid"] + ["same"] * (stride == 1)))
    mode = "zeros" if draw(flags) else draw(MODES.filter(lambda mode: dims < 3 or mode != "reflect"))
    bias, dtype, batch = drawn(data, flags, all_types if mode == "zeros" else real_types, batches)
    keywords = {"padding": padding, "dilation": dilation, "groups": groups, "bias": bias, "padding_mode": mode}
    module = made(name, groups * inputs, groups * outputs, kernel, stride, **keywords).double()
    shape = [batch or 1, groups * inputs, *[length] * dims]
    module.weight.data = numbers(module.weight.shape)
    total: int = {"valid": 0, "same": dilation * (kernel - 1)}[padding] if isinstance(padding, str) else 2 * padding
    around = [total // 2, total - total // 2] * dims
    x = numbers(shape)
    result = module(x) - (module.bias.view(-1, *[1] * dims) if bias else 0)
    padded = functional.pad(x, around, mode="constant" if mode == "zeros" else mode)
    naive, taken = correlated(padded, module.weight, stride, dilation, groups, tuple(result.shape))
    assert torch.allclose(naive, result)
    table = counted(module.to(dtype).eval(), spec(shape if batch else shape[1:], dtype))
    assert figures(table) == convolution_costs(taken, result.numel(), bias, dtype)


@exercises("ConvTranspose1d ConvTranspose2d ConvTranspose3d")
@few
@given(data=st.data())
def test_transposed_convolutions(name: str, data: st.DataObject) -> None:
    dims = dims_of(name)
    groups, inputs, outputs, stride, dilation = drawn(data, two, two, two, size, two)
    kernel, length, padding = drawn(data, st.integers(1, 3 if dims < 3 else 2), st.integers(2, 3), st.integers(0, 1))
    extra = data.draw(st.integers(0, max(stride, dilation) - 1))
    bias, dtype, batch = drawn(data, flags, all_types, batches)
    made_length = (length - 1) * stride - 2 * padding + dilation * (kernel - 1) + extra + 1
    assume(made_length > 0)
    options = (stride, padding, extra, groups, bias, dilation)
    module = made(name, groups * inputs, groups * outputs, kernel, *options).double()
    module.weight.data = numbers(module.weight.shape)
    shape = [batch or 1, groups * inputs, *[length] * dims]
    x = numbers(shape)
    result = module(x) - (module.bias.view(-1, *[1] * dims) if bias else 0)
    whole = [shape[0], groups * outputs, *[made_length + 2 * padding] * dims]
    naive, taken = spread(x, module.weight.detach(), stride, dilation, groups, whole)
    for axis in range(2, 2 + dims):
        naive = naive.narrow(axis, padding, made_length)
    assert torch.allclose(naive, result)
    table = counted(module.to(dtype).eval(), spec(shape if batch else shape[1:], dtype))
    assert figures(table) == convolution_costs(taken, result.numel(), bias, dtype)


@exercises("LazyConv1d LazyConv2d LazyConv3d LazyConvTranspose1d LazyConvTranspose2d LazyConvTranspose3d LazyLinear")
def test_lazy_layers(name: str) -> None:
    """Their weights come with the first batch; counting makes no difference to that."""
    shape, arguments = ((2, 3), (5,)) if name == "LazyLinear" else ((2, 3, *[4] * dims_of(name)), (4, 2))
    table = counted(made(name, *arguments), shape, complete=False)
    assert figures(table) == figures(counted(made(name.removeprefix("Lazy"), 3, *arguments), shape))


@exercises("LazyBatchNorm1d LazyBatchNorm2d LazyBatchNorm3d LazyInstanceNorm1d LazyInstanceNorm2d LazyInstanceNorm3d")
def test_lazy_norms(name: str) -> None:
    shape, arguments = (2, 3, *[4] * dims_of(name)), (1e-5, 0.1, True, True)
    lazy, plain = made(name, *arguments), made(name.removeprefix("Lazy"), 3, *arguments)
    assert figures(counted(lazy.eval(), shape, complete=False)) == figures(counted(plain.eval(), shape))


# Matrix products


@exercises("Linear")
@few
@given(lead=st.lists(size, max_size=3), inputs=size, outputs=size, bias=flags, dtype=all_types)
def test_linear(name: str, lead: list[int], inputs: int, outputs: int, bias: bool, dtype: torch.dtype) -> None:
    rows = math.prod(lead)
    table = counted(nn.Linear(inputs, outputs, bias, dtype=dtype), spec([*lead, inputs], dtype))
    assert figures(table) == convolution_costs(rows * inputs * outputs, rows * outputs, bias, dtype)


@exercises("Bilinear")
@few
@given(lead=st.lists(size, max_size=2), left=size, right=size, outputs=size, bias=flags, dtype=real_types)
def test_bilinear(
    name: str, lead: list[int], left: int, right: int, outputs: int, bias: bool, dtype: torch.dtype
) -> None:
    """For each output: each of the second input's elements is multiplied by a sum of products over the first."""
    each = math.prod(lead) * outputs
    macs = each * right * left + each * right
    ops = each * (right * (2 * left - 1) + 2 * right - 1 + bias)
    table = counted(
        nn.Bilinear(left, right, outputs, bias, dtype=dtype), spec([*lead, left], dtype), spec([*lead, right], dtype)
    )
    assert figures(table) == (macs, 2 * macs + each * bias, ops)


PRODUCTS: list[tuple[str, Callable[..., Any], str, int]] = [
    # operands by the letters of their axes; sizes are a=2, b=3, c=4, d=5; then the MACs
    ("matrices", torch.mm, "ab bc", 2 * 3 * 4),
    ("at sign", lambda x, y: x @ y, "ab bc", 2 * 3 * 4),
    ("batch", torch.bmm, "abc acd", 2 * 3 * 4 * 5),
    ("broadcast", torch.matmul, "abc cd", 2 * 3 * 4 * 5),
    ("broadcast over two", torch.matmul, "a1bc dcb", 2 * 5 * 3 * 4 * 3),
    ("vector first", torch.matmul, "b abc", 2 * 3 * 4),
    ("vector last", torch.matmul, "abc c", 2 * 3 * 4),
    ("mv", torch.mv, "ab b", 6),
    ("dot", torch.dot, "a a", 2),
    ("vdot", torch.vdot, "c c", 4),
    ("inner", torch.inner, "ab cb", 2 * 3 * 4),
    ("tensordot", lambda x, y: torch.tensordot(x, y, 2), "abc bcd", 2 * 3 * 4 * 5),
    ("chain", torch.chain_matmul, "ab bc cd", 2 * 3 * 4 + 2 * 4 * 5),
    ("multi_dot", lambda *x: torch.linalg.multi_dot(x), "ab bc cd", 2 * 3 * 4 + 2 * 4 * 5),
    ("einsum", lambda x, y: torch.einsum("aib,ajb->aij", x, y), "abc adc", 2 * 3 * 4 * 5),
    ("einsum of three", lambda x, y, z: torch.einsum("ab,bc,cd->ad", x, y, z), "ab bc cd", 2 * 3 * 4 + 2 * 4 * 5),
    ("vecdot", torch.linalg.vecdot, "abc abc", 2 * 3 * 4),
    ("power", lambda x: torch.linalg.matrix_power(x, 3), "cc", 2 * 64),
]


CASES = [
    pytest.param(*row[1:], dtype, id=f"{row[0]}, {dtype}")
    for row in PRODUCTS
    for dtype in (torch.float32, torch.complex64, torch.int64)
    if (row[0], dtype) != ("vecdot", torch.int64)  # which torch does not have for integers
]


@pytest.mark.parametrize(("function", "operands", "macs", "dtype"), CASES)
def test_matrix_products(function: Callable[..., Any], operands: str, macs: int, dtype: torch.dtype) -> None:
    sizes = {"a": 2, "b": 3, "c": 4, "d": 5, "1": 1}
    shapes = [tuple(sizes[letter] for letter in operand) for operand in operands.split()]
    table = counted(Functional(function), *[spec(shape, dtype) for shape in shapes])
    assert table.macs == macs
    assert table.flops == {torch.float32: 2 * macs, torch.complex64: 8 * macs, torch.int64: 0}[dtype]
    if dtype == torch.float32:
        products = sum(count.outputs for row in table.rows for count in row.operators)
        assert table.ops == 2 * macs - products


@pytest.mark.parametrize(
    ("left", "right", "macs"),
    [
        ((24, 16), (2, 16, 8), 24 * 16 * 8),
        ((2, 8, 16), (16, 24), 8 * 16 * 24),
        ((16, 24), (24, 8), 16 * 24 * 8),
        ((2, 8, 16), (2, 16, 8), 2 * 8 * 16 * 8),
    ],
)
def test_products_of_groups(left: tuple[int, ...], right: tuple[int, ...], macs: int) -> None:
    """A group's part of the rows, columns or inner axis is in the offsets; all groups together take each once."""
    offsets = None if len(left) == len(right) == 3 else torch.tensor([8, 24], dtype=torch.int32)
    table = counted(Functional(lambda x, y: functional.grouped_mm(x, y, offs=offsets)), left, right)
    assert (table.macs, table.flops) == (macs, 2 * macs)


# Recurrent networks


def recurrent_costs(
    kind: str, cells: int, inputs: int, hidden: int, fed_back: int, biases: int, relu: bool
) -> tuple[int, int, int]:
    """``cells`` cells; beside its products and biases a cell adds the two of each gate, and does what its equations say."""
    gates, flops, ops = {
        "RNN": (1, 2, 2 if relu else 8),
        "GRU": (3, 3 + 3 + 1 + 4, 3 + 3 + 3 + 7 + 1 + 4),
        "LSTM": (4, 4 + 4 + 3 + 2, 4 + 3 * 3 + 7 + 3 + 7 + 1),
    }[kind]
    macs = gates * hidden * (inputs + fed_back)
    scalar = gates * hidden * (2 * inputs - 1 + 2 * fed_back - 1 + biases)
    if fed_back != hidden:
        macs += hidden * fed_back
        scalar += fed_back * (2 * hidden - 1)
    return cells * macs, cells * (2 * macs + gates * hidden * biases + hidden * flops), cells * (scalar + hidden * ops)


@exercises("RNN GRU LSTM")
@few
@given(data=st.data())
def test_recurrent_networks(name: str, data: st.DataObject) -> None:
    draw = data.draw
    inputs, hidden, layers, bias, both = draw(size), draw(st.integers(2, 4)), draw(size), draw(flags), draw(flags)
    batch, steps, first = draw(st.sampled_from([None, 1, 3])), draw(size), draw(flags)
    keywords: dict[str, Any] = {"bias": bias, "bidirectional": both, "batch_first": first}
    keywords["dropout"] = 0.5 if layers > 1 else 0.0
    projected = hidden
    if name == "LSTM" and draw(flags):
        projected = keywords["proj_size"] = hidden - 1
    if name == "RNN":
        keywords["nonlinearity"] = draw(st.sampled_from(["tanh", "relu"]))
    dtype = draw(real_types)
    module = made(name, inputs, hidden, layers, dtype=dtype, **keywords).train(draw(flags))
    shape = [steps, inputs] if batch is None else [batch, steps, inputs] if first else [steps, batch, inputs]
    directions, relu = 1 + both, keywords.get("nonlinearity") == "relu"
    expected = [0, 0, 0]
    for layer in range(layers):
        given_size = inputs if layer == 0 else directions * projected
        cost = recurrent_costs(name, (batch or 1) * steps * directions, given_size, hidden, projected, 2 * bias, relu)
        expected = [a + b for a, b in zip(expected, cost, strict=True)]
    assert figures(counted(module, spec(shape, dtype))) == tuple(expected)


@exercises("RNN GRU LSTM")
@pytest.mark.parametrize("lengths", [[4, 4, 4], [4, 3, 1]])
def test_packed_sequences_and_torchs_own_counter(name: str, lengths: list[int]) -> None:
    """Unrolled, as torch does it where no fused kernel is at hand, they are ordinary matrix products."""
    module = made(name, 5, 6, 2, bidirectional=True).eval()
    packed = pack_padded_sequence(torch.ones(4, 3, 5), lengths)
    table = counted(module, *Inputs((packed,)).args, complete=False)
    expected = [recurrent_costs(name, 2 * sum(lengths), inputs, 6, 6, 2, False) for inputs in (5, 12)]
    assert table.macs == sum(cost[0] for cost in expected)
    with torch.backends.mkldnn.flags(enabled=False), torch.no_grad(), FlopCounterMode(display=False) as oracle:
        module(packed)
    assert oracle.get_total_flops() == 2 * table.macs


@exercises("RNNCell GRUCell LSTMCell")
@few
@given(
    inputs=size, hidden=st.integers(1, 4), bias=flags, batch=st.sampled_from([None, 1, 3]), dtype=real_types, relu=flags
)
def test_cells(
    name: str, inputs: int, hidden: int, bias: bool, batch: int | None, dtype: torch.dtype, relu: bool
) -> None:
    keywords = {"nonlinearity": "relu"} if name == "RNNCell" and relu else {}
    module = made(name, inputs, hidden, bias, dtype=dtype, **keywords)
    shape = [inputs] if batch is None else [batch, inputs]
    expected = recurrent_costs(name.removesuffix("Cell"), batch or 1, inputs, hidden, hidden, 2 * bias, bool(keywords))
    assert figures(counted(module, spec(shape, dtype))) == expected


# Attention


def attention_costs(rows: int, keys: int, width: int, values: int, masked: bool) -> tuple[int, int, int]:
    """``rows`` queries, each against ``keys`` keys: products, a scale, a mask, softmax, products."""
    macs = rows * keys * (width + values)
    flops = 2 * macs + rows * keys * (1 + masked + 1)
    ops = rows * (keys * (2 * width - 1) + keys * (1 + masked) + 4 * keys - 1 + values * (2 * keys - 1))
    return macs, flops, ops


@few
@given(
    lead=st.sampled_from([(), (2,), (2, 4), (2, 3, 4)]), length=size, keys=size, width=size, values=size,
    kind=st.sampled_from(["none", "causal", "additive", "boolean"]), dtype=real_types, grouped=flags,
)  # fmt: skip
def test_scaled_dot_product_attention(  # noqa: PLR0917
    lead: tuple[int, ...], length: int, keys: int, width: int, values: int, kind: str, dtype: torch.dtype, grouped: bool
) -> None:
    fewer = (*lead[:-1], 2) if grouped and len(lead) == 2 else lead
    masks = {"additive": spec([length, keys], dtype), "boolean": spec([length, keys], torch.bool)}
    keywords: dict[str, Any] = {"attn_mask": masks[kind]} if kind in masks else {"is_causal": kind == "causal"}
    if fewer != lead:
        keywords["enable_gqa"] = True
    shapes = [(*lead, length, width), (*fewer, keys, width), (*fewer, keys, values)]
    module = Functional(functional.scaled_dot_product_attention)
    table = counted(module, *[spec(shape, dtype) for shape in shapes], **keywords)
    assert figures(table) == attention_costs(math.prod(lead) * length, keys, width, values, kind in masks)
    assert table.rows[0].output_shapes == ((*lead, length, values),)


@exercises("MultiheadAttention")
@few
@given(data=st.data())
def test_multi_head_attention(name: str, data: st.DataObject) -> None:
    draw = data.draw
    heads, batch, length, keys, bias, needs, first, training = drawn(
        data, two, batches, size, size, flags, flags, flags, flags
    )
    width = heads * draw(size)
    key_width, value_width = draw(st.sampled_from([(width, width), (2, 3)]))
    extra, zero, dtype = drawn(data, flags, flags, real_types)
    options = (0.0, bias, extra, zero, key_width, value_width, first)
    module = nn.MultiheadAttention(width, heads, *options, dtype=dtype).train(training)

    def shape(steps: int, size: int) -> list[int]:
        return [steps, size] if batch is None else [batch, steps, size] if first else [steps, batch, size]

    given_specs = [spec(shape(*pair), dtype) for pair in ((length, width), (keys, key_width), (keys, value_width))]
    mask = draw(st.sampled_from([None, torch.zeros(length, keys, dtype=torch.bool)]))
    table = counted(module, *given_specs, need_weights=needs, attn_mask=mask)
    samples, all_keys = batch or 1, keys + extra + zero
    rows, scores = samples * length, samples * heads * length * all_keys
    macs = rows * width * width * 2 + samples * keys * (key_width + value_width) * width + 2 * scores * (width // heads)
    assert table.macs == macs
    if mask is None:
        biases = (2 * rows + 2 * samples * keys) * width if bias else 0
        # Where weights are asked for, the query is scaled, and the heads' weights averaged.
        others = rows * width + 2 * scores if needs else 2 * scores
        assert table.flops == 2 * macs + biases + others
    with torch.no_grad(), FlopCounterMode(display=False) as oracle:
        real_given = [torch.zeros(one.shape, dtype=dtype) for one in given_specs]
        module.train()(*real_given, need_weights=True, attn_mask=mask)
    assert oracle.get_total_flops() == 2 * macs


def layer_costs(batch: int, length: int, memory: int | None, width: int, inner: int, training: bool) -> tuple[int, int]:
    """MACs and FLOPs of a layer with four heads: self-attention, attention to a memory in a decoder, two linear layers.

    In training, dropout follows each of these parts and the activation; that of the attention is within its operator.
    """
    rows = batch * length
    macs, flops = 2 * rows * width * inner, rows * (inner + width) + rows * inner
    for keys in (length, *([] if memory is None else [memory])):
        macs += 2 * rows * width**2 + 2 * batch * keys * width**2 + 2 * rows * keys * width
        flops += 2 * (rows + batch * keys) * width + 2 * batch * 4 * length * keys
    sublayers = 2 if memory is None else 3
    if training:
        flops += 2 * rows * (sublayers * width + inner)
    return macs, 2 * macs + flops + sublayers * rows * width * (1 + 5)


@exercises("TransformerEncoderLayer TransformerDecoderLayer TransformerEncoder TransformerDecoder Transformer")
@few
@given(data=st.data())
def test_transformers(name: str, data: st.DataObject) -> None:
    batch, length, memory, inner, layers = drawn(data, size, size, size, st.integers(1, 8), two)
    first, norm_first, training, activation = drawn(data, flags, flags, flags, st.sampled_from(["relu", "gelu"]))
    width = 4 * data.draw(size)
    keywords: dict[str, Any] = {"batch_first": first, "norm_first": norm_first, "activation": activation}
    encoder = nn.TransformerEncoderLayer(width, 4, inner, **keywords)
    decoder = nn.TransformerDecoderLayer(width, 4, inner, **keywords)
    builders: dict[str, Callable[[], nn.Module]] = {
        "TransformerEncoderLayer": lambda: encoder,
        "TransformerDecoderLayer": lambda: decoder,
        "TransformerEncoder": lambda: nn.TransformerEncoder(encoder, layers, enable_nested_tensor=False),
        "TransformerDecoder": lambda: nn.TransformerDecoder(decoder, layers),
        "Transformer": lambda: nn.Transformer(width, 4, layers, layers, inner, **keywords),
    }
    module = builders[name]().train(training)

    def shape(steps: int) -> tuple[int, ...]:
        return (batch, steps, width) if first else (steps, batch, width)

    depth = 1 if name.endswith("Layer") else layers
    parts = []
    if not name.startswith("TransformerEncoder"):
        parts += [layer_costs(batch, length, memory, width, inner, training)] * depth
    if "Decoder" not in name:
        parts += [layer_costs(batch, memory if name == "Transformer" else length, None, width, inner, training)] * depth
    flops = sum(part[1] for part in parts)
    given_shapes = [shape(length)] if "Encoder" in name else [shape(length), shape(memory)]
    if name == "Transformer":
        given_shapes.reverse()
        flops += 5 * batch * (length + memory) * width  # a norm at the end of each stack
    table = counted(module, *given_shapes)
    assert (table.macs, table.flops) == (sum(part[0] for part in parts), flops)


# What moves data


@exercises("EmbeddingBag")
@few
@given(bags=size, each=size, width=size, mode=st.sampled_from(["sum", "mean", "max"]), offsets=flags, weighed=flags)
def test_embedding_bags(name: str, bags: int, each: int, width: int, mode: str, offsets: bool, weighed: bool) -> None:
    weighed = weighed and mode == "sum"
    module = nn.EmbeddingBag(7, width, mode=mode)
    shape = (bags * each,) if offsets else (bags, each)
    places = torch.arange(bags) * each if offsets else None
    table = counted(module, spec(shape, torch.int64), places, spec(shape) if weighed else None)
    rows, outputs = bags * each * width, bags * width
    mean = outputs if mode == "mean" else 0
    expected = (rows, 2 * rows, 2 * rows - outputs) if weighed else (0, rows + mean, rows - outputs + mean)
    assert figures(table) == expected


@exercises(
    "Identity Flatten Unflatten Embedding Unfold PixelShuffle PixelUnshuffle ChannelShuffle UpsamplingNearest2d "
    "MaxUnpool1d MaxUnpool2d MaxUnpool3d "
    "ReflectionPad1d ReflectionPad2d ReflectionPad3d ReplicationPad1d ReplicationPad2d ReplicationPad3d CircularPad1d "
    "CircularPad2d CircularPad3d ZeroPad1d ZeroPad2d ZeroPad3d ConstantPad1d ConstantPad2d ConstantPad3d"
)
@pytest.mark.parametrize("training", [False, True])
def test_what_only_moves_data(name: str, training: bool) -> None:
    dims = {"1d": 1, "3d": 3}.get(name[-2:], 2)
    arguments: dict[str, tuple[Any, ...]] = {
        "Unflatten": (1, (2, 2)), "Embedding": (9, 3), "Unfold": (2,), "ChannelShuffle": (2,), "UpsamplingNearest2d": (None, 2),
        "PixelShuffle": (2,), "PixelUnshuffle": (2,), **{f"MaxUnpool{n}d": (2,) for n in (1, 2, 3)},
        **{f"ConstantPad{n}d": (1, 2.0) for n in (1, 2, 3)},
    }  # fmt: skip
    given_size = arguments.get(name, (1,) if "Pad" in name else ())
    shape = (2, 4, *[4] * dims)
    inputs: list[Any] = [spec(shape, torch.int64 if name == "Embedding" else torch.float32)]
    if "Unpool" in name:
        inputs.append(torch.arange(4**dims).reshape(1, 1, *[4] * dims).expand(shape).contiguous())
    table = counted(made(name, *given_size).train(training), *inputs)
    assert figures(table) == (0, 0, 0)
    assert table.rows[0].output_shapes


@exercises("Dropout Dropout1d Dropout2d Dropout3d AlphaDropout FeatureAlphaDropout")
def test_dropout(name: str) -> None:
    """A mask is scaled (of alpha dropout shifted and scaled, with its own two factors), and applied."""
    shape = (2, 4, *[4] * {"1d": 1, "3d": 3}.get(name[-2:], 2))
    elements = math.prod(shape)
    masked = elements if name in ("Dropout", "AlphaDropout") else 2 * 4
    flops = 2 * elements + 4 * masked if "Alpha" in name else elements + masked
    assert figures(counted(made(name).eval(), shape)) == (0, 0, 0)
    assert figures(counted(made(name).train(), shape)) == (0, flops, flops)
    assert figures(counted(made(name, 0.0).train(), shape)) == (0, 0, 0)


@pytest.mark.slow
@exercises("Upsample UpsamplingBilinear2d")
@few
@given(data=st.data())
def test_upsampling(name: str, data: st.DataObject) -> None:
    """Linear interpolation weighs 2, 4 or 8 neighbours, a cubic one 16: as many multiplications, one addition less."""
    every = [(2, 4, "bilinear"), (1, 2, "linear"), (2, 16, "bicubic"), (3, 8, "trilinear"), (2, 0, "nearest")]
    dims, neighbours, mode = data.draw(st.sampled_from(every if name == "Upsample" else every[:1]))
    lengths = data.draw(st.lists(st.integers(1, 5), min_size=dims, max_size=dims))
    module = made(name, tuple(lengths), **({"mode": mode} if name == "Upsample" else {}))
    dtype = data.draw(real_types)
    work = 2 * 3 * math.prod(lengths) * max(0, 2 * neighbours - 1)
    assert figures(counted(module, spec([2, 3, *[3] * dims], dtype))) == (0, work, work)


# Activations, norms, pooling

ACTIVATIONS = {
    "ReLU": (1, 1), "ReLU6": (1, 2), "Hardtanh": (1, 2), "Threshold": (1, 2), "Hardshrink": (1, 2), "Softshrink": (1, 2),
    "LeakyReLU": (1, 4), "PReLU": (1, 4), "RReLU": (1, 4), "ELU": (1, 3), "CELU": (1, 3), "SELU": (1, 7), "Softplus": (1, 5),
    "Sigmoid": (1, 3), "Tanh": (1, 7), "GELU": (1, 5), "SiLU": (1, 4), "Mish": (1, 13), "Hardsigmoid": (1, 4),
    "Hardswish": (1, 5), "LogSigmoid": (1, 4), "Softsign": (3, 3), "Tanhshrink": (2, 8),
}  # fmt: skip
"""FLOPs and operations for each element; those of two or three are made of other operators by torch itself."""


@exercises(" ".join(ACTIVATIONS))
@few
@given(shape=st.lists(st.integers(0, 3), min_size=1, max_size=5), dtype=real_types, training=flags)
def test_activations(name: str, shape: list[int], dtype: torch.dtype, training: bool) -> None:
    arguments = (0.1, 2.0) if name == "Threshold" else ()
    flops, ops = ACTIVATIONS[name]
    table = counted(made(name, *arguments).to(dtype).train(training), spec(shape, dtype))
    elements = math.prod(shape)
    assert figures(table) == (0, flops * elements, ops * elements)


@exercises("Softmax LogSoftmax Softmin Softmax2d")
@few
@given(shape=st.lists(size, min_size=4, max_size=4), axis=st.integers(-4, 3), dtype=real_types)
def test_softmax(name: str, shape: list[int], axis: int, dtype: torch.dtype) -> None:
    module = nn.Softmax2d() if name == "Softmax2d" else made(name, axis)
    length = shape[1] if name == "Softmax2d" else shape[axis]
    elements = math.prod(shape)
    rows = elements // length
    negative = elements if name == "Softmin" else 0
    ops = 4 * elements if name == "LogSoftmax" else rows * (4 * length - 1)
    assert figures(counted(module, spec(shape, dtype))) == (0, elements + negative, ops + negative)


@exercises("BatchNorm1d BatchNorm2d BatchNorm3d SyncBatchNorm InstanceNorm1d InstanceNorm2d InstanceNorm3d")
@few
@given(data=st.data())
def test_norms_over_channels(name: str, data: st.DataObject) -> None:
    draw = data.draw
    dims = 2 if name.startswith("Sync") else dims_of(name)
    shape = [draw(st.integers(2, 3)), draw(size), *[draw(st.integers(2, 3)) for _ in range(dims)]]
    if name == "BatchNorm1d" and draw(flags):
        shape.pop()
    affine, tracks, training, dtype = draw(flags), draw(flags), draw(flags), draw(real_types)
    module = made(name, shape[1], affine=affine, track_running_stats=tracks).to(dtype).train(training)
    if name.startswith("Instance") and draw(flags):
        shape = [1, *shape[1:]]
        table = counted(module, spec(shape[1:], dtype))
    else:
        table = counted(module, spec(shape, dtype))
    elements = math.prod(shape)
    groups = shape[1] if not name.startswith("Instance") else shape[0] * shape[1]
    if training or not tracks:
        expected = (5 if affine else 4) * elements, (7 if affine else 5) * elements + 4 * groups
    else:
        expected = (2 if affine else 1) * elements, (4 if affine else 2) * elements + 2 * shape[1]
    assert figures(table) == (0, *expected)


@exercises("LayerNorm GroupNorm RMSNorm")
@few
@given(data=st.data())
def test_norms_over_rows(name: str, data: st.DataObject) -> None:
    draw = data.draw
    shape = [draw(size), 2 * draw(size), draw(size), draw(st.integers(2, 3))]
    affine, bias, dtype = draw(flags), draw(flags), draw(real_types)
    if name == "GroupNorm":
        module: nn.Module = nn.GroupNorm(2, shape[1], affine=affine)
        rows, bias = shape[0] * 2, affine
    else:
        axes = draw(st.integers(1, 3))
        rows, bias = math.prod(shape[:-axes]), affine and bias and name == "LayerNorm"
        keywords = {"bias": bias} if name == "LayerNorm" else {}
        module = made(name, shape[-axes:], elementwise_affine=affine, **keywords)
    elements = math.prod(shape)
    if name == "RMSNorm":  # squares, sums, a division; a mean and a root for each row; the weight
        expected = (3 + affine) * elements, (3 + affine) * elements + 2 * rows
    else:
        expected = (4 + affine) * elements, (5 + affine + bias) * elements + 4 * rows
    assert figures(counted(module.to(dtype).eval(), spec(shape, dtype))) == (0, *expected)


@exercises("AvgPool1d AvgPool2d AvgPool3d MaxPool1d MaxPool2d MaxPool3d LPPool1d LPPool2d LPPool3d")
@few
@given(data=st.data())
def test_pools(name: str, data: st.DataObject) -> None:
    dims, draw = dims_of(name), data.draw
    kernel, stride, ceil = draw(st.integers(2, 3)), draw(size), draw(flags)
    keywords: dict[str, Any] = {"ceil_mode": ceil}
    if not name.startswith("LP"):
        keywords["padding"] = draw(st.integers(0, 1))
    if name.startswith("Max"):
        keywords |= {"dilation": draw(st.integers(1, 2)), "return_indices": draw(flags)}
    module = made(name, *((2,) if name.startswith("LP") else ()), kernel, stride, **keywords)
    shape = [*draw(st.sampled_from([[2, 3], [3]])), *[draw(st.integers(6, 8)) for _ in range(dims)]]
    result = module(torch.zeros(shape))
    outputs = (result[0] if isinstance(result, tuple) else result).numel()
    elements, window = math.prod(shape), kernel**dims
    expected = {
        "Avg": (elements, outputs * window),
        "Max": (elements, outputs),
        # powers, mean, sign, size, root
        "LPP": (2 * elements + 6 * outputs, elements + outputs * window + 6 * outputs),
    }[name[:3]]
    assert figures(counted(module, spec(shape, draw(real_types)))) == (0, *expected)


@exercises(
    "AdaptiveAvgPool1d AdaptiveAvgPool2d AdaptiveAvgPool3d AdaptiveMaxPool1d AdaptiveMaxPool2d AdaptiveMaxPool3d"
)
@few
@given(data=st.data())
def test_adaptive_pools(name: str, data: st.DataObject) -> None:
    """The windows of a mean are found by asking which inputs each output depends on."""
    dims, draw = dims_of(name), data.draw
    lengths = [draw(st.integers(1, 7 if dims < 3 else 4)) for _ in range(dims)]
    outputs = [draw(st.integers(1, 4)) for _ in range(dims)]
    module, lead = made(name, tuple(outputs) if dims > 1 else outputs[0]), draw(st.sampled_from([[2, 3], [3]]))
    channels, made_elements = math.prod(lead), math.prod(lead) * math.prod(outputs)
    ops = made_elements
    if "Avg" in name:
        jacobian: Any = torch.func.jacrev(module)(torch.zeros(1, 1, *lengths))
        ops = channels * int(jacobian.count_nonzero())
    assert figures(counted(module, spec([*lead, *lengths]))) == (0, channels * math.prod(lengths), ops)


# Distances and losses


@exercises("CosineSimilarity PairwiseDistance")
@few
@given(rows=size, length=size, dtype=real_types)
def test_distances(name: str, rows: int, length: int, dtype: torch.dtype) -> None:
    elements = rows * length
    expected = {
        "PairwiseDistance": (4 * elements, 4 * elements),  # a difference, a small number added, a norm
        # norms, clamped; divisions; products, summed
        "CosineSimilarity": (8 * elements + 2 * rows, 8 * elements + rows),
    }
    assert figures(counted(made(name), *[spec([rows, length], dtype)] * 2)) == (0, *expected[name])


REDUCTIONS = pytest.mark.parametrize("reduction", ["none", "mean", "sum"])


def reduced(elements: int, reduction: str) -> tuple[int, int]:
    return {"none": (0, 0), "mean": (elements, elements), "sum": (elements, elements - 1)}[reduction]


LOSSES = {
    "L1Loss": 2, "MSELoss": 2, "SmoothL1Loss": 4, "HuberLoss": 4, "BCELoss": 8, "BCEWithLogitsLoss": 9,
    "KLDivLoss": 3, "PoissonNLLLoss": 3, "HingeEmbeddingLoss": 3,
}  # fmt: skip
"""Operations for each element, before they are added up."""


@exercises(" ".join(LOSSES))
@REDUCTIONS
@few
@given(shape=st.lists(size, min_size=1, max_size=3), dtype=real_types)
def test_elementwise_losses(name: str, reduction: str, shape: list[int], dtype: torch.dtype) -> None:
    elements = math.prod(shape)
    flops, ops = reduced(elements, reduction)
    table = counted(made(name, reduction=reduction), *[spec(shape, dtype)] * 2)
    assert figures(table) == (0, LOSSES[name] * elements + flops, LOSSES[name] * elements + ops)


@exercises("CrossEntropyLoss NLLLoss NLLLoss2d")
@REDUCTIONS
@pytest.mark.parametrize("weighed", [False, True])
def test_losses_of_classes(name: str, reduction: str, weighed: bool) -> None:
    shape, rows, classes = ((4, 5, 3, 3), 36, 5) if name == "NLLLoss2d" else ((4, 5), 4, 5)
    module = made(name, weight=torch.ones(classes) if weighed else None, reduction=reduction)
    table = counted(module, shape, spec((shape[0], *shape[2:]), torch.int64))
    flops, ops = reduced(rows, reduction)
    picked = rows * (1 + weighed)
    softmax = (rows * classes, 4 * rows * classes) if name == "CrossEntropyLoss" else (0, 0)
    assert figures(table) == (0, softmax[0] + picked + flops, softmax[1] + picked + ops)


ROW_LOSSES: dict[str, tuple[list[Any], int, int]] = {
    # inputs, and FLOPs and operations before rows are added up; a distance is a difference, a small number, squares, sums
    "MarginRankingLoss": ([(4,)] * 3, 5 * 4, 5 * 4),
    "TripletMarginLoss": ([(4, 5)] * 3, 2 * 4 * 20 + 3 * 4, 2 * 4 * 20 + 3 * 4),
    "TripletMarginWithDistanceLoss": ([(4, 5)] * 3, 2 * 4 * 20 + 3 * 4, 2 * 4 * 20 + 3 * 4),
    "CosineEmbeddingLoss": ([(4, 5), (4, 5), (4,)], 6 * 20 + 9 * 4, 6 * 20 - 3 * 4 + 9 * 4),  # three sums of products
    "MultiLabelSoftMarginLoss": ([(4, 5)] * 2, 8 * 20 + 20 + 4, 14 * 20 + 20 - 4 + 4),  # log-sigmoid is 4 operations
}


@exercises(" ".join(ROW_LOSSES))
@REDUCTIONS
def test_losses_of_rows(name: str, reduction: str) -> None:
    shapes, flops, ops = ROW_LOSSES[name]
    added = reduced(4, reduction)
    assert figures(counted(made(name, reduction=reduction), *shapes)) == (0, flops + added[0], ops + added[1])


@exercises("GaussianNLLLoss")
def test_a_loss_that_looks_at_its_values_is_counted_for_real(name: str) -> None:
    table = counted(nn.GaussianNLLLoss(), torch.ones(4, 5), torch.ones(4, 5), torch.ones(4, 5), complete=False)
    assert table.method.startswith("real forward")
    each = 7  # a clamp, a logarithm, a difference, a square, a division, a sum, a half
    assert (table.flops, table.uncovered) == (20 * each + 20, {})


@exercises("CTCLoss")
def test_a_loss_whose_work_depends_on_the_labels_is_listed(name: str) -> None:
    lengths = torch.full((4,), 6), torch.full((4,), 2)
    given_inputs: list[Any] = [torch.zeros(6, 4, 5), torch.ones(4, 2, dtype=torch.int64), *lengths]
    table = counted(made(name), *given_inputs, complete=False)
    assert list(table.uncovered) == ["_ctc_loss"]


RARE_LOSSES = {
    "SoftMarginLoss": (spec((4, 5)), "soft_margin_loss"),
    "MultiMarginLoss": (spec((4,), torch.int64), "multi_margin_loss"),
    "MultiLabelMarginLoss": (spec((4, 5), torch.int64), "multilabel_margin_loss"),
}


@exercises(" ".join(RARE_LOSSES))
def test_rare_losses_are_listed(name: str) -> None:
    targets, operator = RARE_LOSSES[name]
    (uncovered,) = counted(made(name), (4, 5), targets, complete=False).uncovered
    assert uncovered.removesuffix("_forward") == operator


@exercises("AdaptiveLogSoftmaxWithLoss")
def test_adaptive_softmax(name: str) -> None:
    """All targets in the first cluster: the head has its 4 classes and one for each of the two others."""
    module = nn.AdaptiveLogSoftmaxWithLoss(8, 10, [4, 7])
    table = counted(module, torch.zeros(3, 8), torch.zeros(3, dtype=torch.int64), complete=False)
    assert (table.macs, table.uncovered) == (3 * 8 * (4 + 2), {})


# Single shapes

MAP, CLASSES = (2, 4, 8, 8), spec((4,), torch.int64)
"""512 elements in planes of 128; four rows of five classes."""
FIXED: list[tuple[nn.Module, list[Any], int, int, int]] = [
    # module, inputs, MACs, FLOPs, textbook operations
    (nn.Sequential(nn.Linear(4, 4)), [(2, 4)], 32, 64 + 8, 64),
    (nn.DataParallel(nn.Linear(4, 4)), [(2, 4)], 32, 64 + 8, 64),
    (nn.GLU(), [(3, 8)], 0, 12, 12 * (3 + 1)),
    # every element of a block is added to its place
    (nn.Fold((4, 5), 2), [(2, 3 * 4, 12)], 0, 2 * 12 * 12, 2 * 12 * 12),
    # squares, a window of 3 with one zero at each end, scale, shift, power, division
    (nn.LocalResponseNorm(3), [MAP], 0, 5 * 512 + 6 * 128, 5 * 512 + 3 * 512),
    # squares, a window of 3 moved along: 5 additions of planes; scale, shift, power, product
    (nn.CrossMapLRN2d(3), [MAP], 0, 5 * 512 + 5 * 128, 5 * 512 + 5 * 128),
    (nn.FractionalMaxPool2d(2, output_size=3), [(2, 3, 6, 6)], 0, 6 * 6**2, 6 * 3**2),
    (nn.FractionalMaxPool3d(2, output_size=3), [(2, 3, 6, 6, 6)], 0, 6 * 6**3, 6 * 3**3),
    (nn.BCELoss(torch.ones(5)), [(4, 5)] * 2, 0, (8 + 1) * 20 + 20, (8 + 1) * 20 + 20),
    (nn.CrossEntropyLoss(), [(4, 5)] * 2, 0, 20 + 2 * 20 + 4 + 4, 80 + 2 * 20 + 4 + 4),  # of probabilities
    (
        nn.CrossEntropyLoss(label_smoothing=0.1),
        *([(4, 5), CLASSES], 0, 20 + 4 + 20 + 3 * 4 + 4, 80 + 4 + 20 + 3 * 4 + 4),
    ),
    (nn.LinearCrossEntropyLoss(8, 10), [(4, 8), CLASSES], 320, 2 * 320 + 40 + 8, 2 * 320 - 40 + 4 * 40 + 8),
]
EXERCISED.update(type(module).__name__ for module, *_ in FIXED)


@pytest.mark.parametrize(("module", "given", "macs", "flops", "ops"), FIXED, ids=[str(case[0]) for case in FIXED])
def test_a_module_by_hand(module: nn.Module, given: list[Any], macs: int, flops: int, ops: int) -> None:
    assert figures(counted(module, *given)) == (macs, flops, ops)
