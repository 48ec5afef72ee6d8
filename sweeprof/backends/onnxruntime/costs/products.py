"""Matrix products, convolutions and attention."""

from __future__ import annotations

from math import prod

from sweeprof.backends.onnxruntime.costs.rule import Cost, Rule, argument, is_added, product, shape_of
from sweeprof.backends.onnxruntime.graph import OnnxNode, OnnxValue


def _gemm(node: OnnxNode) -> Cost:
    """``Y = A B + C``; the scalars alpha and beta are left out."""
    left, result = shape_of(argument(node)), node.outputs[0]
    inner = left[0] if node.attributes.get("transA") else left[1]
    return product(result.elements * inner, result.elements, result, bias=is_added(node.input(2)))


def _matmul(node: OnnxNode) -> Cost:
    """Each output element is a sum over the last axis of the left operand, whatever is broadcast."""
    result = node.outputs[0]
    return product(result.elements * shape_of(argument(node))[-1], result.elements, result, bias=False)


def _convolution(weight: int, bias: int) -> Rule:
    """Each output element is a sum over the kernel and its group's input channels: weight ``(out, in/groups, *kernel)``.

    Products with padding are counted, as is usual.
    """

    def rule(node: OnnxNode) -> Cost:
        result = node.outputs[0]
        each = prod(shape_of(argument(node, weight))[1:])
        return product(result.elements * each, result.elements, result, bias=is_added(node.input(bias)))

    return rule


def _transposed(node: OnnxNode) -> Cost:
    """Each input element is spread over the kernel and its group's output channels: weight ``(in, out/groups, *kernel)``."""
    result = node.outputs[0]
    macs = argument(node).elements * prod(shape_of(argument(node, 1))[1:])
    return product(macs, result.elements, result, bias=is_added(node.input(2)))


def _einsum(node: OnnxNode) -> Cost:
    """From left to right, two operands at a time; each such product takes every index of the two once."""
    terms, arrow, target = node.attributes["equation"].decode().replace(" ", "").partition("->")
    operands = [_sizes(term, value) for term, value in zip(terms.split(","), node.inputs, strict=True) if value]
    wanted = set(target) if arrow else {label for label in terms if terms.count(label) == 1}
    if len(operands) == 1:
        return _summed(node)
    result, left, total = node.outputs[0], operands[0], (0, 0, 0)
    for index, right in enumerate(operands[1:], start=2):
        joint = {label: max(left.get(label, 1), right.get(label, 1)) for label in {**left, **right}}
        later = {label for operand in operands[index:] for label in operand}
        left = {label: size for label, size in joint.items() if label in later | wanted or label.startswith(".")}
        outputs = prod(left.values())
        if left == joint:  # an outer product: nothing is summed
            macs, flops, ops = 0, outputs if result.is_floating else 0, outputs
        else:
            macs, flops, ops = product(prod(joint.values()), outputs, result, bias=False)
        total = (total[0] + macs, total[1] + flops, total[2] + ops)
    return total


def _summed(node: OnnxNode) -> Cost:
    """An operand by itself is turned, or summed over what the result has not."""
    value, result = argument(node), node.outputs[0]
    work = value.elements if result.elements < value.elements and result.is_floating else 0
    return 0, work, max(0, work - result.elements)


def _sizes(term: str, value: OnnxValue) -> dict[str, int]:
    """Size by label; what the dots stand for is labelled ``.0``, ``.1`` … from the last."""
    shape = shape_of(value)
    extra = len(shape) - len(term.replace("...", ""))
    before, dots, after = term.partition("...")
    labels = [*before, *(f".{extra - 1 - i}" for i in range(extra) if dots), *after]
    return dict(zip(labels, shape, strict=True))


def _attention(node: OnnxNode) -> Cost:
    """``softmax(Q Kᵀ · scale + mask) V`` for ``(batch, heads, L, E)``, or ``(batch, L, heads · E)`` with the heads as attributes.

    With fewer heads of keys than of queries each is used by several: the heads of the queries count. A causal mask saves nothing.
    """
    query, key, value = (shape_of(argument(node, position)) for position in range(3))
    heads = query[1] if len(query) == 4 else int(node.attributes["q_num_heads"])
    key_heads = key[1] if len(key) == 4 else int(node.attributes["kv_num_heads"])
    width, value_width = (
        shape[3] if len(shape) == 4 else shape[2] // count for shape, count in ((key, key_heads), (value, key_heads))
    )
    past = node.input(4)
    keys = key[-2] + (shape_of(past)[2] if past is not None else 0)
    rows = query[0] * heads * query[-2]
    scores = rows * keys
    macs, flops, ops = product(scores * (width + value_width), scores + rows * value_width, argument(node), bias=False)
    masked = scores if node.input(3) is not None else 0
    capped = 3 * scores if node.attributes.get("softcap") else 0  # a division, a tanh, a multiplication
    softmax = rows * max(0, 4 * keys - 1)
    return macs, flops + 2 * scores + masked + capped, ops + scores + masked + capped + softmax


RULES: dict[str, Rule] = {
    "onnx::Gemm": _gemm,
    "onnx::MatMul": _matmul,
    "onnx::MatMulInteger": _matmul,
    "onnx::Conv": _convolution(1, 2),
    "onnx::ConvInteger": _convolution(1, 4),
    "onnx::QLinearConv": _convolution(3, 8),
    "onnx::ConvTranspose": _transposed,
    "onnx::Einsum": _einsum,
    "onnx::Attention": _attention,
}
