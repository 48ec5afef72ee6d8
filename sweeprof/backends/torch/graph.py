"""The graph of a forward: every operator that the dispatcher sees, with the tensors that it takes and returns.

Tensors with the same memory and the same place in it are one tensor, also if there are several Python objects. The source of memory
that is written in place is the last operator that wrote to it, for every view of this memory.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

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
            self._weights.setdefault(self._key(tensor), name)
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
        macs, flops, ops = (None, None, None) if cost is None else cost
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
            reason=f"no formula for {name}" if cost is None else None,
        )
        position = len(self._nodes)
        self._add(node, tensors_in(output))
        for tensor in written:
            self._known(tensor).writer = position
        made = self._live.alive()
        active = [memory.maker for key, memory in self._memory.items() if key in made and memory.maker is not None]
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
            kind = "" if call.module is None else type(call.module).__name__
            if node.kind != "operator":
                nodes.append(node)
                continue
            placed = replace(node, scope=call.path, call=numbers.get(call, 0), type=kind)
            if call.is_excluded:
                placed = replace(placed, macs=None, flops=None, ops=None, reason="the module is excluded")
            elif call.counted is not None:
                counted = call.counted
                is_replaced = any(value is not None for value in (counted.macs, counted.flops, counted.ops))
                placed = replace(
                    placed,
                    macs=node.macs if counted.macs is None else None,
                    flops=node.flops if counted.flops is None else None,
                    ops=node.ops if counted.ops is None else None,
                    reason=f"counted by the formula of {kind}" if is_replaced else node.reason,
                )
            nodes.append(placed)
        formulas = [
            ModuleCost(call.path, numbers[call], call.counted.macs, call.counted.flops, call.counted.ops)
            for call in self._sites.calls
            if call.counted is not None
        ]
        return Graph(tuple(nodes), tuple(formulas), method)

    def _name(self, name: str) -> str:
        count = self._names[name]
        self._names[name] += 1
        return f"{name}_{count}" if count else name

    def _add(self, node: GraphNode, made: list[torch.Tensor], is_new: bool = True) -> None:
        position = len(self._nodes)
        outputs = tuple(GraphTensor(tuple(tensor.shape), dtype_name(tensor.dtype)) for tensor in made)
        self._nodes.append(replace(node, outputs=outputs))
        self._calls.append(self._sites.current)
        for tensor in made:
            self._known(tensor, position if is_new else None).views[_place(tensor)] = position

    def _described(self, tree: object) -> tuple[GraphTensor, ...]:
        found = []
        for tensor in tensors_in(tree):
            key = self._key(tensor)
            memory = self._memory.get(key)
            source = None
            if memory is not None:
                source = max(memory.views.get(_place(tensor), -1), memory.writer)
                if source < 0 and memory.views:  # another part of what a node made
                    source = max(memory.views.values())
            weight = self._weights.get(key)
            found.append(
                GraphTensor(tuple(tensor.shape), dtype_name(tensor.dtype), weight, source if source != -1 else None)
            )
        return tuple(found)

    def _known(self, tensor: torch.Tensor, maker: int | None = None) -> _Memory:
        """Return what is known of a tensor's memory; if nothing is, ``maker`` made it."""
        key = self._key(tensor)
        memory = self._memory.get(key)
        if memory is None:
            held = tensor.untyped_storage() if tensor.layout == torch.strided else tensor
            memory = _Memory(weakref.ref(held, lambda _: self._memory.pop(key, None)), maker)
            self._memory[key] = memory
        return memory

    def _key(self, tensor: torch.Tensor) -> int:
        if tensor.layout == torch.strided:
            return int(tensor.untyped_storage()._cdata)
        return -id(tensor)


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
    elif not written and outputs and _are_views(outputs, arguments):
        traffic = Traffic.VIEW
    return bytes_moved(traffic, list(map(_sized, arguments)), list(map(_sized, written or outputs)))


def _are_views(outputs: list[torch.Tensor], arguments: list[torch.Tensor]) -> bool:
    held = {tensor.untyped_storage()._cdata for tensor in arguments if tensor.layout == torch.strided}
    return all(tensor.layout == torch.strided and tensor.untyped_storage()._cdata in held for tensor in outputs)


def _sized(tensor: torch.Tensor) -> SizedTensor:
    """Return the shape of the elements that a tensor has in memory: an expanded one has fewer than its shape tells."""
    if tensor.layout != torch.strided:
        return SizedTensor(tensor.shape, tensor.itemsize)
    sizes = [size if stride else 1 for size, stride in zip(tensor.shape, tensor.stride(), strict=True)]
    return SizedTensor(sizes if 0 not in tensor.shape else (0,), tensor.itemsize)


def _place(tensor: torch.Tensor) -> Place:
    if tensor.layout != torch.strided:
        return ()
    return tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.dtype
