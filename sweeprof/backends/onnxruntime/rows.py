"""From the counts of modules to the rows of a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from sweeprof.backends.onnxruntime.files import Exported, Role
from sweeprof.backends.onnxruntime.graph import Graph, Node, Value
from sweeprof.profiling.weights import added
from sweeprof.results.layers import LayerRow, Shapes, Weights
from sweeprof.results.paths import ROOT, above

if TYPE_CHECKING:
    from sweeprof.backends.onnxruntime.counting import Counts

NEVER_CALLED = ("ModuleList", "ModuleDict")
"""Modules that only hold others."""
STATISTICS = (3, 4)
"""Inputs of a BatchNormalization that are its moving mean and variance."""


def rows_of(graph: Graph, file: Exported, counts: Mapping[str, Counts]) -> tuple[LayerRow, ...]:
    """One row per module, in the order of the nodes, each after the module it is in; a graph does not tell its calls apart.

    A module that no node belongs to is one that was never called: dropout is no part of a graph for inference.
    """
    weights = _weights(graph, file)
    paths = list(ordered(node.path for node in graph.nodes))
    absent = [path or ROOT for path in file.types if (path or ROOT) not in paths]
    absent += [path for path in weights if path not in paths and path not in absent]
    position = {path: index for index, path in enumerate([*paths, *absent])}
    borders = _borders(graph)
    rows = []
    for path in position:
        own = weights.get(path, Weights())
        row = _row(path, file, own, counts.get(path), borders.get(path), is_leaf=not _has_below(path, paths))
        row.subtree = added(
            [w for other, w in weights.items() if path in (other, ROOT) or other.startswith(f"{path}.")]
        )
        parents = above(path)
        row.parent = position[parents[-1]] if parents and path in paths else None
        if path in absent:
            row.call = -1
        rows.append(row)
    return tuple(rows)


def ordered(paths: Iterable[str]) -> dict[str, None]:
    """Every path once, in their order, the root first and each after the modules that it is in."""
    return dict.fromkeys([ROOT, *(one for path in paths for one in [*above(path), path])])


def _has_below(path: str, paths: Iterable[str]) -> bool:
    return any(other != ROOT if path == ROOT else other.startswith(f"{path}.") for other in paths)


def _row(
    path: str, file: Exported, own: Weights, counts: Counts | None, border: _Border | None, *, is_leaf: bool
) -> LayerRow:
    kind = file.types.get("" if path == ROOT else path, "Graph" if path == ROOT else "")
    crossing = border or _Border()
    outputs = crossing.outputs.values()
    return LayerRow(
        path=path,
        type=kind,
        depth=0 if path == ROOT else path.count(".") + 1,
        call=-1 if kind in NEVER_CALLED else 0,
        params=own.params,
        trainable=own.trainable,
        params_bytes=own.params_bytes,
        buffers=own.buffers,
        macs=counts.macs if counts else 0,
        input_shapes=_shapes(crossing.inputs.values()),
        output_shapes=_shapes(outputs),
        flops=counts.flops if counts else 0,
        ops=counts.ops if counts else 0,
        act_bytes=_bytes(outputs) if is_leaf else 0,
        input_bytes=_bytes(crossing.inputs.values()),
        output_bytes=_bytes(outputs),
        input_dtypes=tuple(value.dtype for value in crossing.inputs.values()),
        output_dtypes=tuple(value.dtype for value in outputs),
        buffers_bytes=own.buffers_bytes,
        dtypes=own.dtypes,
        operators=tuple(counts.operators.values()) if counts else (),
    )


def _shapes(values: Iterable[Value]) -> Shapes:
    return tuple(value.shape for value in values if value.shape is not None)


def _bytes(values: Iterable[Value]) -> int | None:
    known = list(values)
    return sum(value.nbytes for value in known) if all(value.shape is not None for value in known) else None


class _Border:
    """What goes into a module and comes out of it: values that depend on the inputs, each once, in the order of the nodes."""

    def __init__(self) -> None:
        self.inputs: dict[str, Value] = {}
        self.outputs: dict[str, Value] = {}


def _borders(graph: Graph) -> dict[str, _Border]:
    maker = {value: node for node in graph.nodes for value in node.outputs}
    results = set(graph.outputs)
    borders: dict[str, _Border] = {}
    for node in graph.nodes:
        around = {*above(node.path), node.path}
        for value in node.inputs:
            if value is None or value.is_constant:
                continue
            made_in = _around(maker.get(value))
            for path in [p for p in [*above(node.path), node.path] if p not in made_in]:
                borders.setdefault(path, _Border()).inputs[value.name] = value
        for value in node.outputs:
            readers = [_around(reader) for reader in graph.consumers.get(value, [])]
            for path in around:
                if not value.is_constant and (value in results or any(path not in reader for reader in readers)):
                    borders.setdefault(path, _Border()).outputs[value.name] = value
    root = borders.setdefault(ROOT, _Border())
    root.inputs = {value.name: value for value in graph.inputs}
    root.outputs = {value.name: value for value in graph.outputs}
    return borders


def _around(node: Node | None) -> set[str]:
    return set() if node is None else {*above(node.path), node.path}


def _weights(graph: Graph, file: Exported) -> dict[str, Weights]:
    """Weights by the path of the module that holds them: told by an initializer's name, else the first that reads it."""
    roles = file.weights or _guessed(graph)
    found: dict[str, list[tuple[Value, Role]]] = {}
    for value in graph.weights:
        role = roles.get(value.name)
        if role is not None:
            readers = graph.consumers.get(value, [])
            path = value.name.rpartition(".")[0] if file.weights else readers[0].path if readers else ROOT
            found.setdefault(path or ROOT, []).append((value, role))
    return {path: _of(values) for path, values in found.items()}


def _guessed(graph: Graph) -> dict[str, Role]:
    """Of a file that does not tell: arrays that are no settings; a batch norm's statistics are no parameters."""
    statistics = {
        value.name
        for node in graph.nodes
        if node.op == "BatchNormalization"
        for value in (node.input(position) for position in STATISTICS)
        if value is not None
    }
    candidates = [value for value in graph.weights if value.shape and (value.is_floating or value.dtype in _QUANTISED)]
    return {value.name: "buffer" if value.name in statistics else "parameter" for value in candidates}


_QUANTISED = ("int8", "uint8", "int4", "uint4")


def _of(values: Iterable[tuple[Value, Role]]) -> Weights:
    return added([_weight(value, role) for value, role in values])


def _weight(value: Value, role: Role) -> Weights:
    if role == "buffer":
        return Weights(buffers=value.elements, buffers_bytes=value.nbytes)
    trainable = value.elements if role == "parameter" else 0
    return Weights(value.elements, trainable, value.nbytes, dtypes={value.dtype: value.elements})
