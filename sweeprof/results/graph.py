"""Graph: the operators of one forward in their order, and the tensors that pass between them."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from sweeprof.display import Displayed, FilePath, Rows, written
from sweeprof.results.files import damaged, validated
from sweeprof.results.layer_times import Host, with_host
from sweeprof.results.layers import Shapes
from sweeprof.results.observations import Operators
from sweeprof.results.record import Json, Stored

if TYPE_CHECKING:
    import networkx
    import pandas

NodeKind = Literal["input", "operator", "output"]
UNTIMED = "the operators of a step were not timed"

FRAME_COLUMNS = [
    *("name", "kind", "operator", "scope", "call", "type", "weights", "weight_shapes", "weight_dtypes"),
    *("input_shapes", "input_dtypes", "output_shapes", "output_dtypes", "in_nodes", "out_nodes", "active_nodes"),
    *("live_bytes", "bytes_read", "bytes_written", "macs", "flops", "ops", "seconds", "reason"),
]


@dataclass(frozen=True, slots=True)
class GraphTensor:
    """A tensor that an operator takes or returns."""

    shape: tuple[int, ...]
    dtype: str
    weight: str | None = None
    """Path of the parameter or buffer that it is, or is a view of; None for any other tensor."""
    source: int | None = None
    """Position of the node that made it or wrote to it last; None for a weight as it is, a constant of the model, and an output."""


@dataclass(frozen=True, slots=True)
class GraphNode(Displayed):
    """One operator that ran, or an input or the outputs of the model."""

    name: str
    """Unique in the graph: ``conv2d``, ``relu``, ``relu_1``."""
    kind: NodeKind
    operator: str = ""
    """The framework's name, e.g. ``conv2d``; empty for inputs and outputs."""
    scope: str = ""
    """Path of the module that ran it; ``__root__`` for the model itself, ``__outside__`` for code outside any module."""
    call: int = 0
    """Which call of that module: 0 for the first one, as in :class:`sweeprof.LayerRow`."""
    type: str = ""
    """Class name of the module."""
    arguments: tuple[GraphTensor, ...] = ()
    """Every tensor that it takes, weights included, in the order of its arguments."""
    outputs: tuple[GraphTensor, ...] = ()
    active: tuple[int, ...] = ()
    """Positions of the nodes whose tensors are in memory when it has run; of tensors that share memory, the node of the first."""
    live_bytes: int | None = None
    """Bytes of these tensors, without weights and inputs of the model; None for inputs and outputs."""
    bytes_read: int | None = None
    """Bytes that it has to read: each tensor that it takes once, of a table the rows that it returns, of a view nothing. None for
    inputs and outputs."""
    bytes_written: int | None = None
    """Bytes that it has to write: each tensor that it returns, or writes in place, once."""
    macs: int | None = 0
    """None where there is no formula, or where a formula of the whole module counts."""
    flops: int | None = 0
    ops: int | None = 0
    reason: str | None = None
    """Why a count is missing."""
    seconds: float | None = None
    """Of one run, the operators within it included: the mean over the traced runs of the same operator in this module on tensors of
    the same shapes."""
    seconds_reason: str | None = UNTIMED
    """Why there are no seconds."""

    @property
    def inputs(self) -> tuple[GraphTensor, ...]:
        """Arguments that are not weights."""
        return tuple(tensor for tensor in self.arguments if tensor.weight is None)

    @property
    def weights(self) -> tuple[GraphTensor, ...]:
        """Arguments that are parameters or buffers, or views of them."""
        return tuple(tensor for tensor in self.arguments if tensor.weight is not None)


@dataclass(frozen=True, slots=True)
class GraphEdge(Displayed):
    """The tensors that one node takes from another one."""

    source: int
    """Position of the node that made them."""
    target: int
    tensors: tuple[GraphTensor, ...]


@dataclass(frozen=True, slots=True)
class ModuleCost:
    """The cost of one call of a module by a formula of its type, in place of that of the operators that it runs itself."""

    scope: str
    call: int
    macs: int | None
    """None: the formula leaves the MACs to the operators."""
    flops: int | None
    ops: int | None


@dataclass(frozen=True, slots=True)
class Graph(Stored):
    """The operators of one forward as nodes, in the order in which they ran, and the tensors between them as edges."""

    NOT_STORED = ("host",)

    nodes: tuple[GraphNode, ...]
    formulas: tuple[ModuleCost, ...] = ()
    """What modules with a formula of their own cost; the nodes of these calls have no costs."""
    method: str = "shapes"
    """How the forward was traced, as in :class:`sweeprof.LayerTable`."""
    host: Host = field(default_factory=dict, repr=False, compare=False)
    """The host on which it was traced, by the columns of :meth:`to_frame`; empty if it is not known."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "nodes", Rows(self.nodes))

    @property
    def edges(self) -> Rows[GraphEdge]:
        """One for each pair of nodes of which the second takes tensors that the first made."""
        between: defaultdict[tuple[int, int], dict[GraphTensor, None]] = defaultdict(dict)
        for target, node in enumerate(self.nodes):
            for tensor in node.arguments:
                if tensor.source is not None:
                    between[tensor.source, target][tensor] = None
        return Rows(GraphEdge(*ends, tuple(tensors)) for ends, tensors in between.items())

    @property
    def macs(self) -> int:
        """Multiply-accumulates of the whole batch, as ``LayerTable.macs``."""
        return sum(node.macs or 0 for node in self.nodes) + sum(cost.macs or 0 for cost in self.formulas)

    @property
    def flops(self) -> int:
        return sum(node.flops or 0 for node in self.nodes) + sum(cost.flops or 0 for cost in self.formulas)

    @property
    def peak(self) -> GraphNode | None:
        """The node at which the most bytes are alive; None for a graph without operators."""
        measured = [node for node in self.nodes if node.live_bytes is not None]
        return max(measured, key=lambda node: node.live_bytes or 0, default=None)

    def with_times(self, operators: Operators) -> Graph:
        """Return the graph with the seconds of its nodes, as they were traced in a step of the same inputs.

        An operator of a graph has the time of the traced operators of the same name, module and input shapes, if there are as many
        of them; kernels that a backend chooses only when it runs, and the forward of a training step, may have others.
        """
        traced_calls: defaultdict[tuple[str, str, Shapes], float] = defaultdict(float)
        traced_s: defaultdict[tuple[str, str, Shapes], float] = defaultdict(float)
        for row in operators.rows:
            if row.phase == "forward":
                key = (row.path, _plain_name(row.operator), row.input_shapes)
                traced_calls[key] += row.calls
                traced_s[key] += row.total_s
        expected = Counter(_time_key(node) for node in self.nodes if node.kind == "operator")
        nodes = []
        for before in self.nodes:
            node, key = before, _time_key(before)
            if node.kind == "operator" and traced_calls[key] == expected[key]:
                node = replace(node, seconds=traced_s[key] / expected[key], seconds_reason=None)
            elif node.kind == "operator":
                reason = f"the traced step ran it {traced_calls[key]:g} times in this module, the graph {expected[key]} times"
                node = replace(node, seconds=None, seconds_reason=reason)
            nodes.append(node)
        return replace(self, nodes=tuple(nodes))

    def to_networkx(self) -> networkx.DiGraph:
        """Return a ``networkx.DiGraph``: nodes by name with the columns of :meth:`to_frame`, edges with shapes and data types.

        Raises:
            ModuleNotFoundError: networkx is not installed.
        """
        import networkx

        graph = networkx.DiGraph()
        for line in self._lines():
            graph.add_node(line.pop("name"), **line)
        for edge in self.edges:
            ends = (self.nodes[edge.source].name, self.nodes[edge.target].name)
            graph.add_edge(*ends, shapes=_shapes(edge.tensors), dtypes=_dtypes(edge.tensors))
        return graph

    def to_frame(self, host: bool = False) -> pandas.DataFrame:
        """Return a row per node, in the columns of :data:`FRAME_COLUMNS`; bytes, counts and seconds in base units.

        Args:
            host: also columns that describe the host, ``host_name``, ``host_cpu``, ``host_threads`` …, the same in each row.
        """
        import pandas

        return with_host(pandas.DataFrame(self._lines(), columns=FRAME_COLUMNS, dtype=object), self.host, host)

    def _lines(self) -> list[Json]:
        consumers: defaultdict[int, list[str]] = defaultdict(list)
        for edge in self.edges:
            consumers[edge.source].append(self.nodes[edge.target].name)
        names = [node.name for node in self.nodes]
        lines = []
        for position, node in enumerate(self.nodes):
            line: Json = {column: getattr(node, column, None) for column in FRAME_COLUMNS}
            line["weights"] = [tensor.weight for tensor in node.weights]
            line["weight_shapes"], line["weight_dtypes"] = _shapes(node.weights), _dtypes(node.weights)
            line["input_shapes"], line["input_dtypes"] = _shapes(node.inputs), _dtypes(node.inputs)
            line["output_shapes"], line["output_dtypes"] = _shapes(node.outputs), _dtypes(node.outputs)
            sources = dict.fromkeys(tensor.source for tensor in node.arguments if tensor.source is not None)
            line["in_nodes"] = [names[source] for source in sources]
            line["out_nodes"] = consumers[position]
            line["active_nodes"] = [names[maker] for maker in node.active]
            untimed = node.seconds_reason if node.kind == "operator" else "it is not an operator"
            line["reason"] = "; ".join(filter(None, (node.reason, untimed))) or None
            lines.append(line)
        return lines

    def to_dict(self) -> Json:
        """Return plain JSON data: nodes and edges; ``source``, ``target`` and ``active`` are positions in the list of nodes."""
        edges = []
        for edge in self.edges:
            tensors = [{"shape": list(tensor.shape), "dtype": tensor.dtype} for tensor in edge.tensors]
            edges.append({"source": edge.source, "target": edge.target, "tensors": tensors})
        return {**Stored.to_dict(self), "edges": edges}

    def to_json(self, path: FilePath | None = None, indent: int | None = None) -> str:
        """Return :meth:`to_dict` as text; with a ``path`` also write it to a file."""
        return written(json.dumps(self.to_dict(), indent=indent), path)

    @classmethod
    def from_dict(cls, data: Mapping[str, object]) -> Graph:
        """Return the graph that :meth:`to_dict` wrote; edges follow from the nodes."""
        graph = validated(cls, data)
        for place, node in enumerate(graph.nodes):
            for tensor in node.arguments:
                if tensor.source is not None and not 0 <= tensor.source < place:
                    raise damaged(tensor.source, "the position of an earlier node", ["nodes", place, "arguments"])
            if any(not 0 <= maker <= place for maker in node.active):
                raise damaged(node.active, "positions of nodes up to this one", ["nodes", place, "active"])
        return graph


def _shapes(tensors: Iterable[GraphTensor]) -> list[tuple[int, ...]]:
    return [tensor.shape for tensor in tensors]


def _dtypes(tensors: Iterable[GraphTensor]) -> list[str]:
    return [tensor.dtype for tensor in tensors]


def _time_key(node: GraphNode) -> tuple[str, str, Shapes]:
    return node.scope, _plain_name(node.operator), tuple(tensor.shape for tensor in node.arguments if tensor.shape)


def _plain_name(operator: str) -> str:
    return operator.removeprefix("aten::").removesuffix("_")
