"""Maps nodes of the optimised graph to the nodes of the exported graph that they replace.

The run-time can write the graph as it has optimised it. What a fused node returns keeps the name that the last of the nodes it
stands for gave it; a node in the blocked layout of images (NCHWc) is named after it. From there everything back to what other nodes
still return belongs to the node; and what has then no owner, because the name is lost, to the owner of what it reads. The module of
a node is that of the most expensive one it stands for: a convolution with its batch norm and activation is the convolution.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sweeprof.backends.onnxruntime.counting import cost_of
from sweeprof.backends.onnxruntime.graph import OnnxGraph, OnnxNode
from sweeprof.counting.formulas import DEFAULTS
from sweeprof.results.layer_times import ROOT

BLOCKED = "_nchwc"


@dataclass(slots=True)
class Origin:
    """The exported node or module that a node of the optimised graph comes from."""

    path: str
    """Of its module."""
    flops: int | None
    """Of all that it stands for; None where that is not known, or it does none."""


def origins(graph: OnnxGraph, optimised: Sequence[Any]) -> dict[str, Origin]:
    """Return the origin of each node of the optimised graph, by the node's name.

    Args:
        graph: as it was exported.
        optimised: the ``NodeProto`` of the optimised graph, in their order.
    """
    returned = {name: node.name for node in optimised for name in _returns(node)}
    makers = {value.name: node for node in graph.nodes for value in node.outputs}
    owner: dict[OnnxNode, str] = {}
    for node in optimised:
        for name in _returns(node):
            for member in _behind(makers.get(name), returned, makers):
                owner.setdefault(member, node.name)
    for node in graph.nodes:
        readable = (makers.get(value.name) for value in node.inputs if value is not None)
        found = next((owner[maker] for maker in readable if maker in owner), None)
        if node not in owner and found is not None:
            owner[node] = found
    members: dict[str, list[OnnxNode]] = {}
    for node, name in owner.items():
        members.setdefault(name, []).append(node)
    known = {name: _origin(nodes) for name, nodes in members.items()}
    _inherit(known, optimised)
    return known


def _returns(node: Any) -> Iterator[str]:
    """The values of the exported graph that a node of the optimised one returns."""
    yield from node.output
    if node.name.endswith(BLOCKED):
        yield node.name.removesuffix(BLOCKED)


def _behind(node: OnnxNode | None, returned: Mapping[str, str], makers: Mapping[str, OnnxNode]) -> Iterator[OnnxNode]:
    """A node, and what it is made of, as far back as to what is returned by others."""
    waiting = [] if node is None else [node]
    seen = set(waiting)
    while waiting:
        found = waiting.pop()
        yield found
        for value in found.inputs:
            maker = None if value is None or value.name in returned else makers.get(value.name)
            if maker is not None and maker not in seen:
                seen.add(maker)
                waiting.append(maker)


def _origin(nodes: Sequence[OnnxNode]) -> Origin:
    costs = [cost_of(node, DEFAULTS) for node in nodes]
    known = [cost for cost in costs if cost is not None]
    heaviest = max(range(len(nodes)), key=lambda index: costs[index] or (0, 0, 0))
    flops = sum(cost[1] for cost in known) if len(known) == len(costs) else 0
    return Origin(nodes[heaviest].path, flops or None)


def _inherit(known: dict[str, Origin], optimised: Sequence[Any]) -> None:
    """Assign nodes that the run-time inserted, such as a change of layout, to the module of the first node that reads them."""
    readers: dict[str, str] = {}
    for node in reversed(optimised):
        if node.name not in known:
            path = next((known[readers[name]].path for name in node.output if name in readers), ROOT)
            known[node.name] = Origin(path, None)
        readers.update(dict.fromkeys(node.input, node.name))
