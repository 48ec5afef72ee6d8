"""The cost of every operator, defined once for all frameworks.

A definition takes sizes (numbers of elements, lengths of axes) and returns multiply-accumulates, floating-point operations and
textbook operations, for the whole batch:

* MACs: the multiply-accumulates of matrix products, convolutions, attention and the gates of recurrent networks, nothing else.
* FLOPs: two for each multiply-accumulate, one for each bias, and those of elementwise operators, norms, pooling and softmax.
  Only operators on floating-point (or complex) numbers have FLOPs: index arithmetic has none.
* Operations: multiplications and additions separately (a sum of n products has n - 1 additions); ``exp`` and similar functions one.

A backend maps each of its operators to a definition; an operator without a mapping is listed as uncovered. ``docs/generated.py``
makes the tables of docs/counting.md from this file and from :mod:`sweeprof.counting.operators`: it reads the first line of each
docstring, and its lines that begin with MACs, FLOPs, Operations, Backward and Source. In them o is the elements of the result, n
those of the input, K the product of the kernel's sizes, g the groups, C the channels, r the rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from math import ceil, log2, prod
from typing import Literal, NamedTuple

from sweeprof.counting.formulas import OperatorCost
from sweeprof.results.layers import Training

NOTHING: OperatorCost = (0, 0, 0)


class Numbers(IntEnum):
    """The kind of numbers that an operator computes with; the value is how many real numbers an element has."""

    INTEGER = 0
    """Operations on integers are no FLOPs; textbook operations of products they are."""
    REAL = 1
    COMPLEX = 2


INTEGER, REAL, COMPLEX = Numbers
_COMPLEX_MAC = 4
"""A complex multiplication and addition are 8 real operations, where a real pair is 2."""
_COMPLEX_PRODUCT = 6
"""Four multiplications and two additions."""
_COMPLEX_QUOTIENT = 11
"""A product with the conjugate (6), ``c² + d²`` (3) and two divisions."""


def added(*costs: OperatorCost) -> OperatorCost:
    """Return the sum of some costs."""
    return sum(cost[0] for cost in costs), sum(cost[1] for cost in costs), sum(cost[2] for cost in costs)


# Products


def sums_of_products(macs: int, sums: int, numbers: Numbers, *, bias: bool = False) -> OperatorCost:
    """Return the cost of ``sums`` sums that have ``macs`` products together, each begun by its bias if there is one.

    A sum of n products has n - 1 additions, with a bias n. Empty sums are zero, and are not computed.
    """
    if not macs:
        if bias and numbers is not INTEGER:
            return 0, sums, 0
        return NOTHING
    work = 2 * macs
    if numbers is COMPLEX:
        work, sums = work * _COMPLEX_MAC, 2 * sums
    flops, ops = work, work - sums
    if bias:
        flops, ops = work + sums, work
    if numbers is INTEGER:
        flops = 0
    return macs, flops, ops


def matmul(outputs: int, inner: int, numbers: Numbers, *, bias: bool = False) -> OperatorCost:
    """Matrix product: every output is a sum over the inner axis, whatever is broadcast; what is added counts as a bias.

    MACs: o · inner size, with broadcast dimensions
    FLOPs: 2 MACs + o with a bias
    Operations: 2 MACs, − o without a bias
    Backward: as many MACs for the gradient of each operand; a bias o
    """
    return sums_of_products(outputs * inner, outputs, numbers, bias=bias)


def outer(elements: int, numbers: Numbers, *, addend: bool = False) -> OperatorCost:
    """Outer product: one multiplication for each element and no accumulation, so that there is no multiply-accumulate.

    MACs: 0
    FLOPs: o, 2 o with an addend
    Operations: the same
    Source: torch computes it with ``mul`` (https://docs.pytorch.org/docs/stable/generated/torch.outer.html)
    """
    each = _COMPLEX_PRODUCT if numbers is COMPLEX else 1
    if addend:
        each += max(numbers, 1)
    if numbers is INTEGER:
        return 0, 0, each * elements
    return 0, each * elements, each * elements


def convolution(outputs: int, window: int, numbers: Numbers, *, bias: bool = False) -> OperatorCost:
    """Convolution: every output is a sum over the kernel and the input channels of its group. Products with padding count.

    MACs: o · K · in channels / g
    FLOPs: 2 MACs + o with a bias
    Operations: 2 MACs, − o without a bias
    Backward: as many MACs for the gradient of the input and for that of the weight; a bias o

    Args:
        outputs: elements of the result.
        window: products per output, K · in channels / g.
        numbers: of the result.
        bias: whether there is one.
    """
    return sums_of_products(outputs * window, outputs, numbers, bias=bias)


def transposed_convolution(
    inputs: int, window: int, outputs: int, numbers: Numbers, *, bias: bool = False
) -> OperatorCost:
    """Transposed convolution: every input is spread over the kernel and the output channels of its group.

    MACs: n · K · out channels / g
    FLOPs: 2 MACs + o with a bias
    Operations: 2 MACs, − o without a bias
    Backward: as many MACs for the gradient of the input and for that of the weight; a bias o

    Args:
        inputs: elements of the input.
        window: products per input, K · out channels / g.
        outputs: elements of the result.
        numbers: of the result.
        bias: whether there is one.
    """
    return sums_of_products(inputs * window, outputs, numbers, bias=bias)


def attention(  # noqa: PLR0913  # three numbers of rows, which only broadcasting tells apart
    rows: int,
    keys: int,
    width: int,
    value_width: int,
    numbers: Numbers,
    *,
    masks: int = 0,
    capped: bool = False,
    product_rows: int | None = None,
    result_rows: int | None = None,
) -> OperatorCost:
    """Attention in one kernel, ``softmax(q kᵀ / √d + mask) v`` of L queries and S keys of widths E and V.

    With grouped queries the heads of q count. A causal mask saves nothing: the textbook's formula computes what it hides, and only
    some kernels skip it.

    MACs: L · S · (E + V) per head
    FLOPs: 2 MACs + 2 per score, 3 with a mask; a soft cap 3 more
    Operations: the products, scaling, mask, and a softmax of 4 S − 1 per row
    Backward: twice the MACs, for the gradients of v, the scores, q and k; 4 per score. What a kernel computes again is not counted

    Args:
        rows: of the scores: batch · heads of q · L.
        keys: S.
        width: of queries and keys, E.
        value_width: of values, V.
        numbers: of the queries.
        masks: tensors that are added to the scores, or choose among them.
        capped: scores are limited by ``c · tanh(s / c)``.
        product_rows: of q kᵀ, if they are fewer than those of the scores, to which a mask with more samples or heads is added.
        result_rows: of the results, if they are more than those of the scores, as values have more samples or heads.
    """
    scores = rows * keys
    product_rows = rows if product_rows is None else product_rows
    result_rows = rows if result_rows is None else result_rows
    products = keys * (product_rows * width + result_rows * value_width)
    macs, flops, ops = sums_of_products(products, product_rows * keys + result_rows * value_width, numbers)
    beside = (masks + 3 * capped) * scores
    return macs, flops + 2 * scores + beside, ops + scores + beside + rows * max(0, 4 * keys - 1)


def linear_attention(
    tokens: int, heads: int, key_heads: int, width: int, value_width: int, *, gated: bool = False, delta: bool = False
) -> OperatorCost:
    """Linear attention, token by token: ``S ← S + k vᵀ`` and ``o = s qᵀ S`` with states S of E · V, one for each head of k and v.

    A gate multiplies the state by ``exp(g)``; the delta rule adds ``β k (v − kᵀ S)ᵀ``.

    MACs: (heads of k + heads of q) · E · V per token; the delta rule heads of k · E · V more
    FLOPs: 2 MACs + heads of q · V per token; with a gate heads of k · (E · V + 1) more, with the delta rule heads of k · 2 V
    Operations: the same, less the first addition of each sum

    Args:
        tokens: of all samples.
        heads: of the queries.
        key_heads: of keys and values.
        width: of queries and keys, E.
        value_width: of values, V.
        gated: whether the state decays.
        delta: whether the state is corrected.
    """
    state = width * value_width
    macs = tokens * state * (heads + key_heads * (1 + delta))
    beside = heads * value_width
    sums = heads * value_width
    if gated:
        beside += key_heads * (state + 1)
    if delta:
        beside += key_heads * 2 * value_width
        sums += key_heads * value_width
    return macs, 2 * macs + tokens * beside, 2 * macs + tokens * (beside - sums)


def deformable_convolution(
    outputs: int, window: int, sampled: int, numbers: Numbers, *, bias: bool, modulated: bool
) -> OperatorCost:
    """Deformable convolution: what it multiplies is interpolated between 4 neighbours, and multiplied by a mask if there is one.

    MACs: o · K · in channels / g
    FLOPs: 2 MACs + o with a bias + 7 per sampled value, with a mask 8
    Operations: those of the convolution, and as many per sampled value

    Args:
        outputs: elements of the result.
        window: products per output, K · in channels / g.
        sampled: values: in channels · K for each position of the result.
        numbers: of the result.
        bias: whether there is one.
        modulated: whether there is a mask.
    """
    cost = added(convolution(outputs, window, numbers, bias=bias), elementwise("bilinear", sampled, numbers))
    if not modulated:
        return cost
    return added(cost, elementwise("multiply", sampled, numbers))


def attention_with_projections(batch: int, length: int, source: int, width: int, heads: int) -> OperatorCost:
    """Attention with the projections of q, k, v and the result in one kernel (torch's fast path of an encoder layer).

    MACs: 2 (L + S) · E² + 2 · L · S · E per sample
    FLOPs: 2 MACs + biases + 2 per score
    Operations: 2 MACs − o + 4 per score
    """
    projected = batch * (2 * length + 2 * source) * width
    scores = batch * heads * length * source
    macs = projected * width + 2 * batch * length * source * width
    return macs, 2 * macs + projected + 2 * scores, 2 * macs - batch * length * width + 4 * scores


def bilinear(outputs: int, first: int, second: int, numbers: Numbers, *, bias: bool = False) -> OperatorCost:
    """Bilinear form ``yₖ = x₁ᵀ Aₖ x₂ + bₖ`` of widths I₁ and I₂, contracted over x₁ first.

    MACs: o · (I₁ + 1) · I₂
    FLOPs: 2 MACs + o with a bias
    Operations: 2 MACs, − o · (I₂ + 1), + o with a bias
    Backward: as many MACs for the gradient of each operand
    """
    macs, flops, ops = sums_of_products(outputs * second * (first + 1), outputs * second + outputs, numbers)
    if not bias:
        return macs, flops, ops
    biases = outputs * max(numbers, 1)
    return macs, flops + biases, ops + biases


def triangular_solve(outputs: int, size: int, numbers: Numbers, *, divides: bool) -> OperatorCost:
    """Solution of a triangular system ``A X = B`` with A (n, n) by substitution.

    Row i is B minus the products with the i rows before it, divided by the diagonal unless that is one.

    MACs: o · (n − 1) / 2
    FLOPs: 2 MACs + o
    Operations: the same
    """
    macs = outputs * max(0, size - 1) // 2
    _, work, _ = sums_of_products(macs, 0, numbers)
    if divides:
        work += outputs * (_COMPLEX_PRODUCT if numbers is COMPLEX else 1)
    return macs, work, work


def distances(pairs: int, width: int) -> OperatorCost:
    """Distances between points: a subtraction, a power and an addition for each coordinate of each pair.

    MACs: 0
    FLOPs: 3 · pairs · width
    Operations: the same
    """
    return 0, 3 * pairs * width, 3 * pairs * width


def embedding_bag(rows: int, outputs: int, numbers: Numbers, *, weighted: bool, mean: bool) -> OperatorCost:
    """Sums of the rows of a table in each bag; with weights per sample every row is multiplied first.

    MACs: rows · width with weights, else 0
    FLOPs: rows · width, with weights 2 MACs; a mean o more
    Operations: the same − o
    Backward: rows · width

    Args:
        rows: looked up, times the width of the table.
        outputs: elements of the result.
        numbers: of the table.
        weighted: whether there are weights.
        mean: whether each sum is divided.
    """
    if weighted:
        return sums_of_products(rows, outputs, numbers)
    divisions = outputs * mean
    return 0, rows + divisions, max(0, rows - outputs) + divisions


def einsum(subscripts: str, shapes: Sequence[tuple[int, ...]], result: int, numbers: Numbers) -> OperatorCost:
    """Einstein summation: two operands at a time from the left; what neither the others nor the result need is summed on the way.

    MACs: product of the sizes of all indices of the two, 0 if nothing is summed
    FLOPs: 2 MACs; one per element if nothing is summed
    Operations: 2 MACs − o of each product

    Args:
        subscripts: as ``numpy.einsum`` reads them.
        shapes: of the operands.
        result: elements of the result.
        numbers: of the result.
    """
    labels, wanted = _labels(subscripts, shapes)
    sizes: dict[str, int] = {}
    for names, shape in zip(labels, shapes, strict=True):
        for label, size in zip(names, shape, strict=True):
            sizes[label] = max(sizes.get(label, 1), size)  # one that is 1 is broadcast
    if len(labels) == 1:  # an operand by itself is turned, or summed over what the result has not
        elements = prod(shapes[0])
        if result >= elements or numbers is INTEGER:
            return NOTHING
        return reduction("sum", elements, result)
    total = NOTHING
    current = labels[0]
    for position in range(1, len(labels)):
        joint = dict.fromkeys([*current, *labels[position]])
        needed = set(wanted).union(*labels[position + 1 :])
        current = [label for label in joint if label in needed]
        outputs = prod(map(sizes.__getitem__, current))
        if len(current) == len(joint):
            total = added(total, outer(outputs, numbers))
        else:
            total = added(total, sums_of_products(prod(map(sizes.__getitem__, joint)), outputs, numbers))
    return total


def _labels(subscripts: str, shapes: Sequence[tuple[int, ...]]) -> tuple[list[list[str]], list[str]]:
    """Return the labels of every operand and of the result; an ellipsis has labels of its own, numbered from the last axis."""
    given, arrow, result = subscripts.replace(" ", "").partition("->")
    widest = 0
    spelled: list[list[str]] = []
    every: list[str] = []
    for names, shape in zip(given.split(","), shapes, strict=True):
        extra = len(shape) - len(names.replace("...", ""))
        if "..." in names:
            widest = max(widest, extra)
        spelled.append(_spelled(names, extra))
        every += spelled[-1]
    if arrow:
        return spelled, _spelled(result, widest)
    return spelled, [label for label in every if len(label) > 1 or every.count(label) == 1]


def _spelled(names: str, extra: int) -> list[str]:
    before, dots, behind = names.partition("...")
    if not dots:
        return list(names)
    return [*before, *(f"...{i}" for i in range(extra, 0, -1)), *behind]


# Elementwise operators


@dataclass(frozen=True, slots=True)
class Elementwise:
    """The cost of an operator for each element of its result."""

    flops: int
    ops: int
    definition: str
    complex_factor: int = 2
    """How many times as much an operator does for a complex element."""


ELEMENTWISE = {
    "arithmetic": Elementwise(
        1, 1, "add, subtract, power, remainder, negate, absolute value, sign, round, clamp, maximum, minimum"
    ),
    "multiply": Elementwise(1, 1, "x · y", _COMPLEX_PRODUCT),
    "divide": Elementwise(1, 1, "x / y", _COMPLEX_QUOTIENT),
    "function": Elementwise(1, 1, "exp, log, sqrt, erf, trigonometric and hyperbolic functions, reciprocal"),
    "relu": Elementwise(1, 1, "max(x, 0)"),
    "sigmoid": Elementwise(1, 3, "1 / (1 + exp(−x))"),
    "tanh": Elementwise(1, 7, "(eˣ − e⁻ˣ) / (eˣ + e⁻ˣ)"),
    "leaky_relu": Elementwise(1, 4, "max(x, 0) + a · min(x, 0); also prelu, rrelu"),
    "elu": Elementwise(1, 3, "x or a · (exp(x) − 1); also celu"),
    "selu": Elementwise(1, 7, "s · (max(x, 0) + min(0, a · (exp(x) − 1)))"),
    "softplus": Elementwise(1, 5, "log(1 + exp(βx)) / β"),
    "gelu": Elementwise(1, 5, "x / 2 · (1 + erf(x / √2))"),
    "gelu_tanh": Elementwise(1, 15, "x / 2 · (1 + tanh(√(2/π) · (x + 0.0447 x³)))"),
    "silu": Elementwise(1, 4, "x · sigmoid(x)"),
    "mish": Elementwise(1, 13, "x · tanh(softplus(x))"),
    "hardtanh": Elementwise(1, 2, "min(max(x, a), b); also relu6, hardshrink, softshrink, threshold"),
    "hardsigmoid": Elementwise(1, 4, "min(max(x + 3, 0), 6) / 6"),
    "hardswish": Elementwise(1, 5, "x · hardsigmoid(x)"),
    "log_sigmoid": Elementwise(1, 4, "log(sigmoid(x))"),
    "glu": Elementwise(1, 4, "a · sigmoid(b)"),
    "softsign": Elementwise(3, 3, "x / (1 + |x|)"),
    "tanhshrink": Elementwise(2, 8, "x − tanh(x)"),
    "squareplus": Elementwise(5, 5, "(x + √(x² + b)) / 2"),
    "sparsemax": Elementwise(7, 7, "as Keras computes it"),
    "rsqrt": Elementwise(1, 2, "1 / √x"),
    "logit": Elementwise(1, 3, "log(x / (1 − x))"),
    "hypot": Elementwise(1, 4, "√(x² + y²)"),
    "logaddexp": Elementwise(1, 5, "log(eˣ + eʸ)"),
    "squared_difference": Elementwise(2, 2, "(x − y)²"),
    "affine": Elementwise(2, 2, "a · x + b"),
    "scaled_tanh": Elementwise(3, 9, "a · tanh(b · x)"),
    "rotary": Elementwise(
        3, 3, "x · cos + y · sin, of each of the two numbers of a pair that is rotated by its position"
    ),
    "lerp": Elementwise(3, 3, "x + w · (y − x); also addcmul, addcdiv"),
    "cross": Elementwise(3, 3, "two multiplications and a subtraction for each component"),
    "polar": Elementwise(2, 2, "sine, cosine and two multiplications for each complex number"),
    "grayscale": Elementwise(5, 5, "r · R + g · G + b · B"),
    "nearest": Elementwise(0, 0, "nearest neighbour: it is read"),
    "linear": Elementwise(3, 3, "2 neighbours are weighed: as many multiplications, one addition less"),
    "bilinear": Elementwise(7, 7, "4 neighbours"),
    "trilinear": Elementwise(15, 15, "8 neighbours"),
    "bicubic": Elementwise(31, 31, "16 neighbours"),
    "lanczos3": Elementwise(71, 71, "36 neighbours"),
    "lanczos5": Elementwise(199, 199, "100 neighbours"),
}
"""Cost by name. ``multiply`` and ``divide`` take 6 and 11 times as much for complex numbers, the others twice."""
LINEAR_BY_AXES = ("linear", "bilinear", "trilinear")
"""Linear interpolation along one axis, two or three."""


def elementwise(name: str, elements: int, numbers: Numbers) -> OperatorCost:
    """Return the cost of an operator of :data:`ELEMENTWISE` for so many elements; nothing for integers."""
    if numbers is INTEGER:
        return NOTHING
    known = ELEMENTWISE[name]
    if numbers is COMPLEX:
        elements *= known.complex_factor
    return 0, known.flops * elements, known.ops * elements


def sum_of_tensors(tensors: int, elements: int, numbers: Numbers, *, mean: bool = False) -> OperatorCost:
    """Sum, maximum or mean of several tensors, element by element.

    FLOPs: (tensors − 1) · o, a mean o more
    Operations: the same
    """
    if numbers is INTEGER:
        return NOTHING
    work = (tensors - 1 + mean) * elements
    return 0, work, work


def dropout(elements: int, masked: int, *, alpha: bool = False) -> OperatorCost:
    """Dropout in training: the elements of a mask, m, are scaled, and the input is multiplied by them; alpha dropout shifts both.

    FLOPs: n + m, alpha dropout 2 n + 4 m
    Operations: the same
    Backward: n
    """
    work = elements + masked
    if alpha:
        work = 2 * elements + 4 * masked
    return 0, work, work


# Recurrent networks


@dataclass(frozen=True, slots=True)
class RecurrentCell:
    """The cost of one cell for each hidden unit, apart from its matrix products and biases."""

    gates: int
    flops: int
    ops: int


def rnn_cell(state: str = "tanh") -> RecurrentCell:
    """Return a cell of one gate, by the definition of its nonlinearity: ``h' = tanh(W x + U h)``."""
    each = ELEMENTWISE[state]
    return RecurrentCell(1, 1 + each.flops, 1 + each.ops)


def gru_cell(gate: str = "sigmoid", state: str = "tanh") -> RecurrentCell:
    """Return a GRU's cell: ``n = tanh(W x + r·(U h))`` multiplies once more; ``h' = (1 - z)·n + z·h`` takes 4."""
    gates, candidate = ELEMENTWISE[gate], ELEMENTWISE[state]
    return RecurrentCell(3, 3 + 2 * gates.flops + candidate.flops + 1 + 4, 3 + 2 * gates.ops + candidate.ops + 1 + 4)


def lstm_cell(gate: str = "sigmoid", cell: str = "tanh", state: str = "tanh") -> RecurrentCell:
    """Return an LSTM's cell: ``c' = f·c + i·g`` takes 3, ``h' = o·tanh(c')`` a multiplication and a nonlinearity."""
    gates, candidate, output = ELEMENTWISE[gate], ELEMENTWISE[cell], ELEMENTWISE[state]
    return RecurrentCell(
        4,
        4 + 3 * gates.flops + candidate.flops + 3 + 1 + output.flops,
        4 + 3 * gates.ops + candidate.ops + 3 + 1 + output.ops,
    )


TANH, RELU, GRU, LSTM = rnn_cell(), rnn_cell("relu"), gru_cell(), lstm_cell()


def recurrent(  # noqa: PLR0913  # the sizes of a cell
    cell: RecurrentCell,
    steps: int,
    inputs: int,
    hidden: int,
    projected: int,
    biases: int,
    *,
    peepholes: bool = False,
    is_quantized: bool = False,
) -> OperatorCost:
    """RNN, GRU, LSTM and their cells: per step and sample a gate is ``W x + b``, ``U h + b'``, their sum and a nonlinearity.

    With a projection to P the state has size P, and ``W h'`` is added. Fused kernels hide the matrix products, which are counted.

    MACs: steps · gates · H · (I + H), each layer and direction
    FLOPs: 2 MACs + biases + 2, 11 or 13 H per step (RNN, GRU, LSTM)
    Operations: 2 MACs − sums + biases + 8 H (tanh; relu 2), 21 or 31 H per step
    Backward: twice the forward

    Args:
        cell: which.
        steps: time steps times samples.
        inputs: I.
        hidden: H.
        projected: P, or ``hidden`` without a projection.
        biases: vectors added per gate: 0, 1 or 2.
        peepholes: the LSTM's gates also see the state: a multiplication and an addition for each of three.
        is_quantized: the products are of integers and no FLOPs; the rest is done in floating point.
    """
    outputs = steps * cell.gates * hidden
    macs = outputs * (inputs + projected)
    sums = 2 * outputs
    if projected != hidden:
        macs += steps * hidden * projected
        sums += steps * projected
    added_biases = biases * outputs
    units = steps * hidden
    seen = 2 * 3 * units * peepholes
    flops = units * cell.flops + seen
    if not is_quantized:
        flops += 2 * macs + added_biases
    return macs, flops, 2 * macs - sums + added_biases + units * cell.ops + seen


# Norms and softmax


def batch_norm(elements: int, channels: int, *, affine: bool, training: bool) -> OperatorCost:
    """Batch norm. In inference mean and deviation are constants: a scale and a shift.

    FLOPs: inference 2 n, without an affine transform n; training 5 n, without 4 n
    Operations: inference 4 n + 2 C, without 2 n + 2 C; training 7 n + 4 C, without 5 n + 4 C
    Backward: 8 n; 4 n with constant statistics
    """
    if training:
        return 0, (4 + affine) * elements, (5 + 2 * affine) * elements + 4 * channels
    return 0, (1 + affine) * elements, (2 + 2 * affine) * elements + 2 * channels


def batch_norm_statistics(elements: int, channels: int) -> OperatorCost:
    """Mean and variance of a batch norm in training, where they are an operator of their own.

    FLOPs: 3 n
    Operations: 3 n + 2 C
    """
    return 0, 3 * elements, 3 * elements + 2 * channels


def normalisation(elements: int, rows: int, *, weight: bool, bias: bool) -> OperatorCost:
    """Layer, group and instance norm: rows are normalised by their own mean and variance.

    FLOPs: 5 n, without a weight 4 n
    Operations: (5 + weight + bias) n + 4 r
    Backward: 8 n
    """
    return 0, (4 + weight) * elements, (5 + weight + bias) * elements + 4 * rows


def rms_norm(elements: int, rows: int, *, weight: bool) -> OperatorCost:
    """RMS norm: squares, their mean, a root, a division, a multiplication by the weight.

    FLOPs: 4 n, without a weight 3 n
    Operations: (3 + weight) n + 2 r
    Backward: 8 n
    """
    return 0, (3 + weight) * elements, (3 + weight) * elements + 2 * rows


def unit_norm(elements: int, rows: int) -> OperatorCost:
    """Division of rows by their norm, which is not less than an epsilon.

    FLOPs: 3 n + r
    Operations: the same
    Backward: 4 n
    """
    return 0, 3 * elements + rows, 3 * elements + rows


def local_response_norm(elements: int, size: int) -> OperatorCost:
    """Local response norm ``x / (k + a · Σ x²)^β`` of neighbouring channels: squares, sums of a window, and four more.

    FLOPs: 6 n
    Operations: (size + 4) n
    """
    return 0, 6 * elements, (size + 4) * elements


def weight_norm(elements: int, rows: int) -> OperatorCost:
    """Weight norm ``v · (g / ‖v‖)``: squares, sums, a root and a division for each row, a multiplication.

    FLOPs: 3 n + 2 r
    Operations: 3 n + r
    Backward: 5 n
    """
    return 0, 3 * elements + 2 * rows, 3 * elements + rows


def softmax(elements: int, length: int) -> OperatorCost:
    """Softmax of rows of S: subtract the maximum, exponentiate, S − 1 additions, divide.

    FLOPs: n
    Operations: 4 n − r
    Backward: 4 n
    """
    rows = elements // max(1, length)
    return 0, elements, rows * (4 * length - 1)


def log_softmax(elements: int) -> OperatorCost:
    """Log-softmax: a logarithm for each row more than a softmax.

    FLOPs: n
    Operations: 4 n
    Backward: 4 n
    """
    return 0, elements, 4 * elements


def logsumexp(elements: int, rows: int) -> OperatorCost:
    """Logarithm of a sum of exponentials: subtract the maximum, exponentiate, add up, a logarithm, add the maximum.

    FLOPs: n
    Operations: 3 n + o
    Backward: 4 n
    """
    return 0, elements, 3 * elements + rows


# Pooling


def average_pool(inputs: int, outputs: int, window: int) -> OperatorCost:
    """Average pooling: every output sums its window and divides.

    FLOPs: n
    Operations: o · window
    Backward: n
    """
    return 0, inputs, outputs * window


def adaptive_average_pool(inputs: Sequence[int], outputs: Sequence[int], channels: int) -> OperatorCost:
    """Adaptive average pooling: windows are ``floor(i·in/out) .. ceil((i+1)·in/out)`` along each axis.

    FLOPs: n
    Operations: sum of the windows
    Backward: n

    Args:
        inputs: sizes of the axes that are pooled.
        outputs: theirs in the result.
        channels: samples times channels.
    """
    windows = channels
    for size, made in zip(inputs, outputs, strict=True):
        windows *= sum(ceil((i + 1) * size / made) - i * size // made for i in range(made))
    return 0, channels * prod(inputs), windows


def norm_pool(inputs: int, outputs: int, window: int) -> OperatorCost:
    """Pooling by norms: powers, the sum of each window, and its root.

    FLOPs: 2 n + o
    Operations: n + o · window
    """
    return 0, 2 * inputs + outputs, inputs + outputs * window


def max_pool(inputs: int, outputs: int) -> OperatorCost:
    """Max pooling: every input is touched once, and finding a window's maximum is one operation.

    FLOPs: n
    Operations: o
    Backward: n
    """
    return 0, inputs, outputs


# Reductions, scans and transforms


@dataclass(frozen=True, slots=True)
class Reduction:
    """The cost of an operator that reduces axes."""

    each: int
    """Operations for each input."""
    rest: int
    """Operations more (or, negative, less) for each output."""
    definition: str


REDUCTIONS = {
    "sum": Reduction(1, -1, "sum, product, maximum, minimum"),
    "mean": Reduction(1, 0, "sum and a division; also a norm's maximum"),
    "weighted_mean": Reduction(3, 0, "every element is multiplied, and the weights are summed too"),
    "variance": Reduction(4, 0, "variance, deviation: mean, differences, squares, sum, division"),
    "norm": Reduction(2, 0, "norm of a vector: squares, sum, root"),
    "sum_of_squares": Reduction(2, -1, "also a sum of absolute values"),
    "log_sum": Reduction(1, 1, "sum and a logarithm"),
}
"""Cost by name; FLOPs are those of the inputs."""


def reduction(name: str, inputs: int, outputs: int) -> OperatorCost:
    """Return the cost of an operator of :data:`REDUCTIONS` of floating-point numbers, twice the elements if complex."""
    known = REDUCTIONS[name]
    work = known.each * inputs
    return 0, work, max(0, work + known.rest * outputs)


def trace(length: int, traces: int = 1) -> OperatorCost:
    """Trace of a matrix.

    FLOPs: length of the diagonal
    Operations: one less
    """
    return 0, traces * length, max(0, traces * (length - 1))


def scan(elements: int) -> OperatorCost:
    """Cumulative sum, product or maximum; sums into given places (scatter, index and segment sums, folding).

    FLOPs: one for each element that is added
    Operations: the same
    Backward: none for a cumulative sum, else 2 n
    """
    return 0, elements, elements


def fourier(elements: int, points: int, *, is_real: bool) -> OperatorCost:
    """Fourier transform over p points, half of a complex one where one side is real.

    FLOPs: 5 n log₂ p; half of it where one side is real
    Operations: the same
    Source: Cooley and Tukey, 1965

    Args:
        elements: of the larger side.
        points: of one transform.
        is_real: one side is.
    """
    each = 2.5 if is_real else 5
    work = round(elements * each * log2(max(1, points)))
    return 0, work, work


def short_time_fourier(frames: int, points: int, length: int) -> OperatorCost:
    """Short-time Fourier transform: every frame is multiplied by a window of ``length`` and transformed.

    FLOPs: frames · (2.5 p log₂ p + length)
    Operations: the same
    """
    work = round(frames * points * 2.5 * log2(points)) + frames * length
    return 0, work, work


# Losses


LOSSES = {
    "squared_error": 2,
    "absolute_error": 2,
    "huber": 4,
    "binary_cross_entropy": 8,
    "binary_cross_entropy_with_logits": 9,
    "negative_log_likelihood": 1,
}
"""FLOPs and operations for each element.

``-(t·log x + (1 - t)·log(1 - x))`` takes 8; ``max(x, 0) - x·t + log(1 + exp(-|x|))`` 9.
"""


def loss(each: int, elements: int, reduced_by: str | None) -> OperatorCost:
    """Losses: so many operations for each element, and one to add it up; a mean's division stands for the first addition.

    FLOPs: squared and absolute error 2 n, huber 4 n, binary cross-entropy 8 n (of logits 9 n); the sum n more
    Operations: the same, a sum one less
    Backward: 2 n, of a binary cross-entropy 6 n

    Args:
        each: of :data:`LOSSES`, one more for a weight.
        elements: that have it.
        reduced_by: ``mean``, ``sum`` or None.
    """
    work = each * elements
    if reduced_by is None:
        return 0, work, work
    if reduced_by == "mean":
        return 0, work + elements, work + elements
    return 0, work + elements, work + max(0, elements - 1)


def cross_entropy(
    elements: int, rows: int, reduced_by: str | None, *, weighted: bool, of_probabilities: bool, smoothed: bool
) -> OperatorCost:
    """Cross-entropy: a log-softmax over the classes and a negative log-likelihood.

    Of probabilities it is the sum over all classes. Smoothed labels sum over the classes too, and combine the two.

    FLOPs: n, the likelihoods and their sum
    Operations: 4 n, the likelihoods and their sum
    Backward: 4 n
    """
    work = weighted * rows
    if of_probabilities:
        work = (2 + weighted) * elements
    if smoothed:
        work += elements + 3 * rows
    return added(log_softmax(elements), (0, work, work), loss(1, rows, reduced_by))


# The bytes that an operator reads and writes at least


class Traffic(Enum):
    """How an operator accesses memory; the value is the definition."""

    EVERYTHING = "reads every operand once, and writes every result once"
    VIEW = "returns its operand under another shape, and moves nothing"
    ROWS = "gathers: reads the indices and as many elements as it returns, and writes these"
    OVERWRITE = "writes its result without reading what was there; reads its other operands"


class SizedTensor(NamedTuple):
    """The shape of a tensor and the bytes of one element."""

    shape: Sequence[int]
    itemsize: float

    @property
    def nbytes(self) -> int:
        """The bytes of its elements."""
        return round(prod(self.shape) * self.itemsize)


def bytes_moved(traffic: Traffic, operands: Sequence[SizedTensor], results: Sequence[SizedTensor]) -> tuple[int, int]:
    """Return the bytes that an operator reads, and those that it writes.

    Args:
        traffic: how it accesses memory.
        operands: its tensors in their order; of a gather the table first, of an overwriting operator the target first.
        results: the tensors that it returns or writes in place.
    """
    if traffic is Traffic.VIEW:
        return 0, 0
    written = sum(result.nbytes for result in results)
    read = sum(operand.nbytes for operand in operands[1:])
    if traffic is Traffic.ROWS:
        read += written
    elif traffic is Traffic.EVERYTHING and operands:
        read += operands[0].nbytes
    return read, written


# The operators of a backward, as torch runs them; other backends estimate the backward


@dataclass(frozen=True, slots=True)
class Gradient:
    """FLOPs of a backward, beside those of products."""

    per_element: int
    of: Literal["input", "result"]
    """Whose elements; of the result for each operand that needs a gradient."""
    definition: str


GRADIENTS = {
    "norm": Gradient(8, "input", "two sums over the gradient, three terms, and the gradients of weight and bias"),
    "weight_norm": Gradient(5, "input", "the gradients of direction and length"),
    "softmax": Gradient(4, "input", "multiply, sum, subtract, multiply; also log-softmax"),
    "pooling": Gradient(1, "input", "pooling, resampling, padding: every element is written or added to once"),
    "activation": Gradient(2, "result", "any other elementwise operator"),
    "smooth_activation": Gradient(
        6, "result", "gelu, silu, hardswish, hardsigmoid, softplus, mish, binary cross-entropy"
    ),
    "rows": Gradient(1, "result", "embedding: every row of the gradient is added to its place"),
}
"""Cost by kind of operator."""


def gradient(name: str, elements: int) -> OperatorCost:
    """Return the cost of a backward of :data:`GRADIENTS` for so many elements."""
    work = GRADIENTS[name].per_element * elements
    return 0, work, work


def product_gradients(forward_macs: int, operands: int, bias: int = 0) -> OperatorCost:
    """Return the cost of the gradients of a product's operands.

    Args:
        forward_macs: multiply-accumulates of the forward.
        operands: that need a gradient.
        bias: elements of the result whose gradients are added up for that of the bias.
    """
    macs = forward_macs * operands
    return macs, 2 * macs + bias, 2 * macs + bias


def attention_gradients(rows: int, keys: int, width: int, value_width: int) -> OperatorCost:
    """Return the cost of the backward of attention: four products, for the gradients of v, of the scores, of q and of k.

    What a fused kernel computes again of its forward is not counted, as it is not in any other recomputation.
    """
    scores = rows * keys
    macs = 2 * scores * (width + value_width)
    return macs, 2 * macs + 4 * scores, 2 * macs + 4 * scores


BACKWARD_OVER_FORWARD = 2
"""Of an estimate: a product each for the gradient of the weights and for that of the inputs."""


def estimated_training(macs: int, flops: int, reason: str, uncovered: Mapping[str, int]) -> Training:
    """Return a training step whose backward is estimated from the forward.

    Args:
        macs: of the forward.
        flops: of the forward.
        reason: why it is not counted.
        uncovered: calls by operator without a formula.
    """
    backward = BACKWARD_OVER_FORWARD * macs, BACKWARD_OVER_FORWARD * flops
    return Training(macs, flops, *backward, liveness=None, estimated=reason, uncovered=dict(uncovered))
