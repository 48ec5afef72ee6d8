"""ONNX Runtime's own profiler: its trace, its overhead, what each node of a step took, and the module of each node.

The profiler's file is a Chrome trace with an event per node and step, times in whole microseconds. The nodes are those of the
graph as the run-time has optimised it, which it writes.

Nodes of the optimised graph are mapped to the nodes of the exported graph that they replace. What a fused node returns keeps
the name that the last of the nodes it stands for gave it; a node in the blocked layout of images (NCHWc) is named after it.
From there everything back to what other nodes still return belongs to the node; and what has then no owner, because the name is
lost, to the owner of what it reads. The module of a node is that of the most expensive one it stands for: a convolution with
its batch norm and activation is the convolution.

The overhead is measured on a chain of nodes that do next to nothing: without the profiler a node takes a fraction of a
microsecond, and all that its window notes beyond that is the profiler's. Real nodes have more inputs to write down, so the sum
of both is then taken from what the profiler added to real steps, in the same proportion.
"""

from __future__ import annotations

import gzip
import json
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

from sweeprof.backends.onnxruntime.benchmarks import IR_VERSION, OPSET
from sweeprof.backends.onnxruntime.costs import COSTS, FREE
from sweeprof.backends.onnxruntime.graph import read
from sweeprof.backends.onnxruntime.model import OnnxModel, SessionFeed
from sweeprof.counting.formulas import DEFAULTS
from sweeprof.counting.graph import GraphNode, OperatorGraph, cost_by
from sweeprof.measuring.layer_timing import seconds_added
from sweeprof.measuring.timing import Clock
from sweeprof.results.layer_times import ROOT
from sweeprof.results.layers import Shapes

NODE = "_kernel_time"
"""What the names of nodes' events end in."""
STEP = "model_run"
WITH_BODIES = ("If", "Loop", "Scan")
"""Operators whose own nodes are events too, within theirs."""


@dataclass(frozen=True, slots=True)
class TracedStep:
    """One run of a session."""

    nodes: tuple[Mapping[str, Any], ...]
    """The events of the nodes that the graph itself has, in the order in which they ended."""
    seconds: float


def profiling(options: onnxruntime.SessionOptions, folder: Path) -> None:
    """Set the options of a session that is to be profiled; the trace is written into ``folder`` when profiling ends."""
    options.enable_profiling = True
    options.profile_file_prefix = str(folder / "trace")


def steps_of(content: bytes) -> Iterator[TracedStep]:
    """Every step in a trace."""
    nodes: list[Mapping[str, Any]] = []
    for event in json.loads(content):
        if event.get("name") == STEP:
            yield TracedStep(tuple(nodes), event["dur"] / 1e6)
            nodes = []
        elif event.get("cat") == "Node" and event["name"].endswith(NODE):
            if event["args"]["op_name"] in WITH_BODIES:  # its event comes after those of its body
                nodes = [one for one in nodes if one["ts"] < event["ts"]]
            nodes.append(event)


NODES, STEPS, WARMUP_STEPS = 100, 31, 30
MOST = 3.0
"""A real node has more inputs to write down than one of the chain; twice as much is usual."""


@dataclass(frozen=True, slots=True)
class ProfilerOverhead:
    """Seconds for each node."""

    inside: float
    outside: float

    def refined(self, together: float) -> ProfilerOverhead:
        """The same proportion with another sum, within reason: a step that stalled tells nothing of the profiler."""
        known = self.inside + self.outside
        scale = min(together / known, MOST) if known else 0.0
        return ProfilerOverhead(self.inside * scale, self.outside * scale)


def calibrated(model: OnnxModel) -> ProfilerOverhead:
    """Return the profiler's overhead for each node on the model's device."""
    settings, chain = replace(model.settings, optimization="disabled"), _chain()
    place, _, number = model.device.partition(":")
    given = np.ones(1, np.float32)
    batch = SessionFeed(
        {"x0": onnxruntime.OrtValue.ortvalue_from_numpy(given, place, int(number or 0))}, {"x0": given.shape}
    )
    plain = model.steps_of(settings.open(chain, model.device), batch)
    with TemporaryDirectory(prefix="sweeprof-profile-") as folder:
        session = settings.open(chain, model.device, partial(profiling, folder=Path(folder)))
        profiled = model.steps_of(session, batch)
        for step in (plain, profiled):
            for _ in range(WARMUP_STEPS):
                step()
        bare_steps: list[float] = []

        def bare_step() -> float:
            bare_steps.append(_lasting(plain, model.clock()))
            return bare_steps[-1]

        whole = seconds_added(bare_step, lambda: _lasting(profiled, model.clock()), STEPS) / NODES
        bare = statistics.median(bare_steps) / NODES
        traced = list(steps_of(Path(session.end_profiling()).read_bytes()))[-STEPS:]
    window = statistics.median(sum(node["dur"] for node in step.nodes) / 1e6 for step in traced) / NODES
    inside = max(0.0, window - bare)
    return ProfilerOverhead(inside, max(0.0, whole - inside))


def _lasting(step: Callable[[], object], clock: Clock) -> float:
    begin = clock.mark()
    step()
    return clock.between(begin, clock.mark())


def _chain() -> bytes:
    nodes = [helper.make_node("Neg", [f"x{i}"], [f"x{i + 1}"], f"neg{i}") for i in range(NODES)]
    ends = [helper.make_tensor_value_info(f"x{i}", TensorProto.FLOAT, [1]) for i in (0, NODES)]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    serialised: bytes = model.SerializeToString()
    return serialised


BLOCKED = "_nchwc"


@dataclass(slots=True)
class Origin:
    """The exported node or module that a node of the optimised graph comes from."""

    path: str
    """Of its module."""
    flops: int | None
    """Of all that it stands for; None where that is not known, or it does none."""


def origins(graph: OperatorGraph, optimised: Sequence[onnx.NodeProto]) -> dict[str, Origin]:
    """Return the origin of each node of the optimised graph, by the node's name.

    Args:
        graph: as it was exported.
        optimised: the ``NodeProto`` of the optimised graph, in their order.
    """
    returned = {name: fused.name for fused in optimised for name in _returns(fused)}
    makers = {value.name: node for node in graph.nodes for value in node.outputs}
    owner: dict[GraphNode, str] = {}
    for fused in optimised:
        for name in _returns(fused):
            for member in _behind(makers.get(name), returned, makers):
                owner.setdefault(member, fused.name)
    for node in graph.nodes:
        readable = (makers.get(value.name) for value in node.inputs if value is not None)
        found = next((owner[maker] for maker in readable if maker in owner), None)
        if node not in owner and found is not None:
            owner[node] = found
    members: dict[str, list[GraphNode]] = {}
    for node, name in owner.items():
        members.setdefault(name, []).append(node)
    known = {name: _origin(nodes) for name, nodes in members.items()}
    _inherit(known, optimised)
    return known


def _returns(node: onnx.NodeProto) -> Iterator[str]:
    """The values of the exported graph that a node of the optimised one returns."""
    yield from node.output
    if node.name.endswith(BLOCKED):
        yield node.name.removesuffix(BLOCKED)


def _behind(
    node: GraphNode | None, returned: Mapping[str, str], makers: Mapping[str, GraphNode]
) -> Iterator[GraphNode]:
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


def _origin(nodes: Sequence[GraphNode]) -> Origin:
    costs = [cost_by(node, DEFAULTS, COSTS, FREE) for node in nodes]
    known = [cost for cost in costs if cost is not None]
    heaviest = max(range(len(nodes)), key=lambda index: costs[index] or (0, 0, 0))
    flops = sum(cost[1] for cost in known) if len(known) == len(costs) else 0
    return Origin(nodes[heaviest].path, flops or None)


def _inherit(known: dict[str, Origin], optimised: Sequence[onnx.NodeProto]) -> None:
    """Assign nodes that the run-time inserted, such as a change of layout, to the module of the first node that reads them."""
    readers: dict[str, str] = {}
    for node in reversed(optimised):
        if node.name not in known:
            path = next((known[readers[name]].path for name in node.output if name in readers), ROOT)
            known[node.name] = Origin(path, None)
        readers.update(dict.fromkeys(node.input, node.name))


SMALL = 1024
"""Bytes; larger weights are not written into the optimised graph, but beside it."""


@dataclass(frozen=True, slots=True)
class NodeRun:
    """One node that ran once."""

    name: str
    op: str
    path: str
    """Of its module."""
    flops: int | None
    """As counted on the graph that was exported; None where that is not known, or it does none."""
    seconds: float
    """In whole microseconds, as the profiler has them."""
    allocated: int
    """Bytes that it took from the allocator, less those that were given back while it ran."""
    input_shapes: Shapes


@dataclass(slots=True)
class Profiled:
    """A session that is being profiled, and after it what was seen."""

    step: Callable[[], object]
    nodes: int
    """Of the optimised graph."""
    steps: list[tuple[NodeRun, ...]] = field(default_factory=list)
    """Each step's nodes in the order in which they ran; filled when the session has ended."""
    seconds: list[float] = field(default_factory=list)
    """The duration of each step by the profiler's own clock."""
    chrome: bytes = b""
    """The trace in Chrome's format, compressed with gzip."""


@contextmanager
def profiled(model: OnnxModel, batch: SessionFeed) -> Iterator[Profiled]:
    """Within the context steps are profiled; what was seen is there after it."""
    with TemporaryDirectory(prefix="sweeprof-profile-") as folder:
        optimised = Path(folder) / "optimised.onnx"

        def change(options: onnxruntime.SessionOptions) -> None:
            profiling(options, Path(folder))
            options.optimized_model_filepath = str(optimised)
            for key, value in (("file_name", "weights"), ("min_size_in_bytes", str(SMALL))):
                options.add_session_config_entry(f"session.optimized_model_external_initializers_{key}", value)

        session = model.settings.open(model.file.path, model.device, change)
        graph = onnx.load(str(optimised), load_external_data=False).graph
        seen = Profiled(model.steps_of(session, batch), len(graph.node))
        try:
            yield seen
        finally:
            content = Path(session.end_profiling()).read_bytes()
        known = origins(read(model.file, (), batch.shapes), list(graph.node))
        traced = list(steps_of(content))
        seen.steps = [tuple(_ran(event, known) for event in step.nodes) for step in traced]
        seen.seconds = [step.seconds for step in traced]
        seen.chrome = gzip.compress(content, mtime=0)


def _ran(event: Mapping[str, Any], known: Mapping[str, Origin]) -> NodeRun:
    name, about = event["name"].removesuffix(NODE), event["args"]
    origin = known.get(name, Origin(ROOT, None))
    shapes = [tuple(shape) for kind in about["input_type_shape"] for shape in kind.values() if shape]
    return NodeRun(
        name=name,
        op=about["op_name"],
        path=origin.path,
        flops=origin.flops,
        seconds=event["dur"] / 1e6,
        allocated=int(about.get("mem_in_use_delta", about["output_size"])),
        input_shapes=tuple(shapes),
    )
