"""How many bytes of tensors are alive at once while a graph runs in its order: each from its operator to its last reader."""

from __future__ import annotations

from sweeprof.backends.onnxruntime.graph import Graph, Node, Value
from sweeprof.results.layers import Liveness
from sweeprof.results.paths import ROOT

VIEWS = {"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity"}
"""Operators whose result is their input under another shape: no memory of its own."""


def liveness(graph: Graph) -> Liveness | None:
    """The peak; None where a shape is not known. What depends on no input is a weight, and in no peak."""
    if not all(node.is_known for node in graph.nodes):
        return None
    held = _held(graph)
    last: dict[Value, Node | None] = {}
    for node in graph.nodes:
        for value in node.inputs:
            if value is not None:
                last[held.get(value, value)] = node
    for value in graph.outputs:
        last[held.get(value, value)] = None
    gone: dict[Node, int] = {}
    made = {value for node in graph.nodes for value in node.outputs if value not in held and not value.is_constant}
    for value, reader in last.items():
        if value in made and reader is not None:
            gone[reader] = gone.get(reader, 0) + value.nbytes
    live = peak = 0
    where = ROOT
    for node in graph.nodes:
        live += sum(value.nbytes for value in node.outputs if value in made and value in last)
        if live > peak:
            peak, where = live, node.path
        live -= gone.get(node, 0)
    return Liveness(peak, where, sum(value.nbytes for value in graph.inputs))


def _held(graph: Graph) -> dict[Value, Value]:
    """What a view is a view of."""
    held: dict[Value, Value] = {}
    for node in graph.nodes:
        source = node.input(0)
        if node.op in VIEWS and source is not None:
            held[node.outputs[0]] = held.get(source, source)
    return held
