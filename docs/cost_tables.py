"""The tables of operators in docs/counting.md, made from the definitions in ``sweeprof.counting``."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator

from sweeprof.counting import operators
from sweeprof.counting.operators import Traffic

PRODUCTS = (
    operators.matmul,
    operators.outer,
    operators.convolution,
    operators.transposed_convolution,
    operators.deformable_convolution,
    operators.attention,
    operators.linear_attention,
    operators.attention_with_projections,
    operators.recurrent,
    operators.bilinear,
    operators.einsum,
    operators.embedding_bag,
    operators.triangular_solve,
    operators.distances,
)
COMBINING = (
    operators.batch_norm,
    operators.batch_norm_statistics,
    operators.normalisation,
    operators.rms_norm,
    operators.unit_norm,
    operators.local_response_norm,
    operators.weight_norm,
    operators.softmax,
    operators.log_softmax,
    operators.logsumexp,
    operators.average_pool,
    operators.adaptive_average_pool,
    operators.norm_pool,
    operators.max_pool,
    operators.trace,
    operators.scan,
    operators.sum_of_tensors,
    operators.dropout,
    operators.fourier,
    operators.short_time_fourier,
    operators.loss,
    operators.cross_entropy,
)


def _part(definition: Callable[..., object], name: str) -> str:
    found = re.search(rf"^{name}: (.*)$", inspect.getdoc(definition) or "", re.MULTILINE)
    return found[1] if found else "–"


def _of_definitions(definitions: tuple[Callable[..., object], ...], columns: tuple[str, ...]) -> Iterator[str]:
    yield f"| operator | {' | '.join(columns)} |"
    yield f"|---|{'---|' * len(columns)}"
    for definition in definitions:
        first = (inspect.getdoc(definition) or "").split("\n")[0].removesuffix(".")
        yield f"| {first} | {' | '.join(_part(definition, column) for column in columns)} |"


def tables() -> Iterator[str]:
    """Return the lines of the tables."""
    yield "### Products"
    yield ""
    yield from _of_definitions(PRODUCTS, ("MACs", "FLOPs", "Operations", "Backward"))
    yield from ("", "### Elementwise operators", "", "For each element of the result.", "")
    yield from ("| operator | definition | FLOPs | operations |", "|---|---|--:|--:|")
    for name, each in operators.ELEMENTWISE.items():
        definition = each.definition.replace("|", "\\|")
        yield f"| {name} | {definition} | {each.flops} | {each.ops} |"
    yield from ("", "### Operators that combine elements", "")
    yield from _of_definitions(COMBINING, ("FLOPs", "Operations", "Backward"))
    yield from ("", "### Reductions", "", "| operator | definition | FLOPs | operations |", "|---|---|---|---|")
    for name, one in operators.REDUCTIONS.items():
        work = "n" if one.each == 1 else f"{one.each} n"
        rest = {-1: " − o", 0: "", 1: " + o"}[one.rest]
        yield f"| {name.replace('_', ' ')} | {one.definition} | {work} | {work}{rest} |"
    yield from ("", "### Backward", "", "FLOPs and operations beside those of products.", "")
    yield from ("| of | definition | for each element of | FLOPs |", "|---|---|---|--:|")
    for name, gradient in operators.GRADIENTS.items():
        yield f"| {name.replace('_', ' ')} | {gradient.definition} | {gradient.of} | {gradient.per_element} |"
    yield from ("", "### Bytes read and written", "", "| operator | definition |", "|---|---|")
    for traffic in Traffic:
        yield f"| {traffic.name.lower()} | {traffic.value} |"
