"""The graph of a forward: every operator that the dispatcher sees, with the tensors that it takes and returns.

Tensors with the same memory and the same place in it are one tensor, also if there are several Python objects. The source of memory
that is written in place is the last operator that wrote to it, for every view of this memory.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from sweeprof.backends.torch.callsites import CallSites, LiveBytes, ModuleCall, dtype_name, tensors_in
from sweeprof.backends.torch.costs import GATHERS, OVERWRITES
from sweeprof.counting.formulas import Args, Kwargs, OperatorCost
from sweeprof.counting.operators import SizedTensor, Traffic, bytes_moved
from sweeprof.results.graph import Graph, GraphNode, GraphTensor, ModuleCost

Place = tuple[object, ...]
"""Where in its memory a tensor lies."""


@dataclass(slots=True)
class _Memory:
    """A storage, or a tensor without one of its own, and the nodes that made what is in it."""

    reference: weakref.ref[torch.UntypedStorage | torch.Tensor]
    maker: int | None
    """The node that made it; None for a weight and for what was there before the forward."""
    views: dict[Place, int] = field(default_factory=dict)
    writer: int = -1
    """The last node that wrote to it in place."""


class GraphRecorder:
    """Notes each operator while a module is counted."""

    def __init__(self, module: torch.nn.Module, sites: CallSites, live: LiveBytes, inputs: list[torch.Tensor]) -> None:
        self._sites, self._live = sites, live
        self._memory: dict[int, _Memory] = {}
        self._nodes: list[GraphNode] = []
        self._calls: list[ModuleCall] = []
        """Per node, the call that ran it."""
        self._names: Counter[str] = Counter()
        self._weights: dict[int, str] = {}
        for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
            self._weights.setdefault(_storage(tensor), name)
        for tensor in inputs:
            self._add(GraphNode(self._name("input"), "input", seconds_reason=None), [tensor], is_new=False)

    def ran(
        self,
        name: str,
        cost: OperatorCost | None,
        arguments: tuple[Args, Kwargs],
        output: object,
        written: Iterable[torch.Tensor],
    ) -> None:
        """Add an operator.

        Args:
            name: of the operator.
            cost: None if it has no formula.
            arguments: positional ones and keywords.
            output: what it returned.
            written: the tensors that it wrote to in place.
        """
        macs = flops = ops = None
        reason: str | None = f"no formula for {name}"
        if cost is not None:
            macs, flops, ops = cost
            reason = None
        written = list(written)
        read_bytes, written_bytes = _bytes_moved(name, tensors_in(arguments), tensors_in(output), written)
        node = GraphNode(
            self._name(name.rpartition("::")[2]),
            "operator",
            name,
            arguments=self._described(arguments),
            bytes_read=read_bytes,
            bytes_written=written_bytes,
            macs=macs,
            flops=flops,
            ops=ops,
            reason=reason,
        )
        position = len(self._nodes)
        self._add(node, tensors_in(output))
        for tensor in written:
            self._known(tensor).writer = position
        made = self._live.alive()
        active = []
        for key, memory in self._memory.items():
            if key in made and memory.maker is not None:
                active.append(memory.maker)
        self._nodes[position] = replace(self._nodes[position], active=tuple(active), live_bytes=self._live.live)

    def returned(self, outputs: object) -> None:
        """Add what the model returned."""
        node = GraphNode(self._name("output"), "output", arguments=self._described(outputs))
        self._add(node, [])

    def graph(self, method: str) -> Graph:
        """Return what was recorded."""
        numbers: dict[ModuleCall, int] = {}
        seen: Counter[str] = Counter()
        for call in self._sites.calls:
            numbers[call] = seen[call.path]
            seen[call.path] += 1
        nodes = []
        for node, call in zip(self._nodes, self._calls, strict=True):
            if node.kind != "operator":
                nodes.append(node)
                continue
            kind = ""
            if call.module is not None:
                kind = type(call.module).__name__
            node = replace(node, scope=call.path, call=numbers.get(call, 0), type=kind)  # noqa: PLW2901
            counted = call.counted
            if call.is_excluded:
                node = replace(node, macs=None, flops=None, ops=None, reason="the module is excluded")  # noqa: PLW2901
            elif counted is not None:
                replaced: dict[str, Any] = {}
                for figure in ("macs", "flops", "ops"):
                    if getattr(counted, figure) is not None:
                        replaced |= {figure: None, "reason": f"counted by the formula of {kind}"}
                node = replace(node, **replaced)  # noqa: PLW2901
            nodes.append(node)
        formulas = [
            ModuleCost(call.path, numbers[call], call.counted.macs, call.counted.flops, call.counted.ops)
            for call in self._sites.calls
            if call.counted is not None
        ]
        return Graph(tuple(nodes), tuple(formulas), method)

    def _name(self, name: str) -> str:
        count = self._names[name]
        self._names[name] += 1
        if count:
            return f"{name}_{count}"
        return name

    def _add(self, node: GraphNode, made: list[torch.Tensor], is_new: bool = True) -> None:
        position = len(self._nodes)
        outputs = [GraphTensor(tuple(tensor.shape), dtype_name(tensor.dtype)) for tensor in made]
        self._nodes.append(replace(node, outputs=tuple(outputs)))
        self._calls.append(self._sites.current)
        for tensor in made:
            self._known(tensor, position if is_new else None).views[_place(tensor)] = position

    def _described(self, tree: object) -> tuple[GraphTensor, ...]:
        found = []
        for tensor in tensors_in(tree):
            key = _storage(tensor)
            memory = self._memory.get(key)
            source = None
            if memory is not None:
                source = max(memory.views.get(_place(tensor), -1), memory.writer)
                if source < 0 and memory.views:  # another part of what a node made
                    source = max(memory.views.values())
                if source < 0:
                    source = None
            found.append(GraphTensor(tuple(tensor.shape), dtype_name(tensor.dtype), self._weights.get(key), source))
        return tuple(found)

    def _known(self, tensor: torch.Tensor, maker: int | None = None) -> _Memory:
        """Return what is known of a tensor's memory; if nothing is, ``maker`` made it."""
        key = _storage(tensor)
        memory = self._memory.get(key)
        if memory is None:
            held: torch.UntypedStorage | torch.Tensor = tensor
            if tensor.layout == torch.strided:
                held = tensor.untyped_storage()
            memory = _Memory(weakref.ref(held, lambda _: self._memory.pop(key, None)), maker)
            self._memory[key] = memory
        return memory


def _bytes_moved(
    name: str, arguments: list[torch.Tensor], outputs: list[torch.Tensor], written: list[torch.Tensor]
) -> tuple[int, int]:
    """Return the bytes that an operator has to read and to write; it reads what it writes in place, unless it overwrites it."""
    plain = name.rpartition("::")[2].removesuffix("_")
    traffic = Traffic.EVERYTHING
    if plain in GATHERS:
        traffic = Traffic.ROWS
    elif written and plain in OVERWRITES:
        traffic = Traffic.OVERWRITE
    elif not written and outputs:
        held = set(map(_storage, arguments))
        if all(tensor.layout == torch.strided and _storage(tensor) in held for tensor in outputs):
            traffic = Traffic.VIEW
    return bytes_moved(traffic, list(map(_sized, arguments)), list(map(_sized, written or outputs)))


def _storage(tensor: torch.Tensor) -> int:
    """Return what tells one memory from another; of a tensor without a storage, the negative id."""
    if tensor.layout == torch.strided:
        return int(tensor.untyped_storage()._cdata)
    return -id(tensor)


def _sized(tensor: torch.Tensor) -> SizedTensor:
    """Return the shape of the elements that a tensor has in memory: an expanded one has fewer than its shape tells."""
    sizes = list(tensor.shape)
    if tensor.layout == torch.strided and 0 not in sizes:
        for axis, stride in enumerate(tensor.stride()):
            if stride == 0:
                sizes[axis] = 1
    return SizedTensor(sizes, tensor.itemsize)


def _place(tensor: torch.Tensor) -> Place:
    if tensor.layout != torch.strided:
        return ()
    return tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.dtype
