"""The times of modules and operators, from ONNX Runtime's own profiler.

The profiler's file is a Chrome trace with an event per node and step, times in whole microseconds. The nodes are those of the
graph as the run-time has optimised it, which it writes.

Nodes of the optimised graph are mapped to the nodes of the exported graph that they replace. What a fused node returns keeps
the name that the last of the nodes it stands for gave it; a node in the blocked layout of images (NCHWc) is named after it.
From there everything back to what other nodes still return belongs to the node; and what has then no owner, because the name is
lost, to the owner of what it reads. The module of a node is that of the most expensive one it stands for: a convolution with
its batch norm and activation is the convolution.

For the times of modules, steps with and without the profiler alternate, each kind in its own session. What the profiler adds to
a step is subtracted, a fixed part of it from the times of the nodes. A module whose nodes are
fused into another's has no time of its own. What a step takes beside its nodes, the run-time's own walk over the graph, is the
root's.
"""

from __future__ import annotations

import gzip
import json
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import onnxruntime

from sweeprof.backends.model_files import Feed
from sweeprof.backends.onnxruntime.counting import cost_of
from sweeprof.backends.onnxruntime.graph import OnnxGraph, OnnxNode, read
from sweeprof.backends.onnxruntime.model import OnnxModel
from sweeprof.counting.formulas import DEFAULTS
from sweeprof.errors import Unsupported
from sweeprof.measuring.layer_timing import (
    MOST_ATTEMPTS,
    MOST_REPEATS,
    NodeRun,
    StepPair,
    in_turns,
    module_times,
    operator_rows,
    origin_of,
    pairs_in_turns,
)
from sweeprof.measuring.timing import lasting, without_collection
from sweeprof.results.layer_times import ROOT, LayerTimes, PhaseTimes, disagreement
from sweeprof.results.observations import Operators
from sweeprof.results.record import Protocol

NODE = "_kernel_time"
"""What the names of nodes' events end in."""
STEP = "model_run"
WITH_BODIES = ("If", "Loop", "Scan")
"""Operators whose own nodes are events too, within theirs."""


def steps_of(content: bytes) -> Iterator[tuple[Sequence[Mapping[str, Any]], float]]:
    """Yield for every step in a trace the events of the nodes that the graph itself has, in the order in which they ended, and its
    seconds.
    """
    nodes: list[Mapping[str, Any]] = []
    for event in json.loads(content):
        if event.get("name") == STEP:
            yield nodes, event["dur"] / 1e6
            nodes = []
        elif event.get("cat") == "Node" and event["name"].endswith(NODE):
            if event["args"]["op_name"] in WITH_BODIES:  # its event comes after those of its body
                nodes = [one for one in nodes if one["ts"] < event["ts"]]
            nodes.append(event)


INSIDE = 0.4
"""The part of the profiler's cost that is within the times that it records: 0.28 with one thread, 0.54 with two."""
MOST_S = 12e-6
"""Seconds that the profiler may cost for each node; three to six microseconds are usual, and more comes from an interruption."""
BLOCKED = "_nchwc"


Origin = tuple[str, int | None]
"""The module of the exported nodes that an optimised one stands for, and their FLOPs; None where these are not known."""


def origins(graph: OnnxGraph, optimised: Sequence[onnx.NodeProto]) -> dict[str, Origin]:
    """Return the origin of each node of the optimised graph, by the node's name.

    Args:
        graph: as it was exported.
        optimised: the ``NodeProto`` of the optimised graph, in their order.
    """
    returned: dict[str, str] = {}
    """The first node of the optimised graph that returns a value of the exported one; a change of layout comes after it."""
    for fused in optimised:
        for value_name in fused.output:
            returned.setdefault(value_name, fused.name)
        if fused.name.endswith(BLOCKED):
            returned.setdefault(fused.name.removesuffix(BLOCKED), fused.name)
    makers: dict[str, OnnxNode] = {}
    for node in graph.operators:
        makers.update(dict.fromkeys([value.name for value in node.outputs], node))
    owner: dict[OnnxNode, str] = {}
    for value_name, name in returned.items():
        for member in _behind(makers.get(value_name), returned, makers):
            owner.setdefault(member, name)
    for node in graph.operators:
        for value in node.inputs:
            maker = None if value is None else makers.get(value.name)
            if node not in owner and maker in owner:
                owner[node] = owner[maker]
    members: dict[str, list[OnnxNode]] = {}
    for node, name in owner.items():
        members.setdefault(name, []).append(node)
    known = {name: origin_of(nodes, partial(cost_of, formulas=DEFAULTS)) for name, nodes in members.items()}
    # What the run-time inserted, such as a change of layout, belongs to the module of the first node that reads it.
    readers: dict[str, str] = {}
    for fused in reversed(optimised):
        if fused.name not in known:
            paths = [known[readers[name]][0] for name in fused.output if name in readers]
            known[fused.name] = (paths or [ROOT])[0], None
        readers.update(dict.fromkeys(fused.input, fused.name))
    return known


def _behind(node: OnnxNode | None, returned: Mapping[str, str], makers: Mapping[str, OnnxNode]) -> list[OnnxNode]:
    """Return a node and the nodes that compute its inputs, up to values that other nodes return."""
    found: list[OnnxNode] = []
    waiting = [] if node is None else [node]
    while waiting:
        found.append(waiting.pop())
        for value in found[-1].inputs:
            if value is not None and value.name not in returned:
                maker = makers.get(value.name)
                if maker is not None and maker not in found and maker not in waiting:
                    waiting.append(maker)
    return found


SMALL = 1024
"""Bytes; larger weights are not written into the optimised graph, but beside it."""


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
def profiled(model: OnnxModel, batch: Feed) -> Iterator[Profiled]:
    """Within the context steps are profiled; what was seen is there after it."""
    with TemporaryDirectory(prefix="sweeprof-profile-") as folder:
        optimised = Path(folder) / "optimised.onnx"

        def change(options: onnxruntime.SessionOptions) -> None:
            options.enable_profiling = True
            options.profile_file_prefix = str(Path(folder) / "trace")
            options.optimized_model_filepath = str(optimised)
            external = "session.optimized_model_external_initializers"
            options.add_session_config_entry(f"{external}_file_name", "weights")
            options.add_session_config_entry(f"{external}_min_size_in_bytes", str(SMALL))

        session = model.settings.open(model.file.path, model.device, change)
        graph = onnx.load(str(optimised), load_external_data=False).graph
        seen = Profiled(model.steps_of(session, batch), len(graph.node))
        try:
            yield seen
        finally:
            content = Path(session.end_profiling()).read_bytes()
        shapes = {}
        for name, value in batch.values.items():
            shapes[name] = value.shape if isinstance(value, np.ndarray) else tuple(value.shape())
        known = origins(read(model.file, (), shapes), list(graph.node))
        for events, seconds in steps_of(content):
            seen.seconds.append(seconds)
            nodes = []
            for event in events:
                about = event["args"]
                path, flops = known.get(event["name"].removesuffix(NODE), (ROOT, None))
                allocated = int(about.get("mem_in_use_delta", about["output_size"]))
                given: tuple[tuple[int, ...], ...] = ()
                for kind in about["input_type_shape"]:
                    given += tuple(map(tuple, filter(None, kind.values())))
                nodes.append(NodeRun(about["op_name"], path, flops, event["dur"] / 1e6, allocated, given))
            seen.steps.append(tuple(nodes))
        seen.chrome = gzip.compress(content, mtime=0)


MOST_EVENTS = 60_000
"""Nodes in a trace: the profiler keeps them in memory, and writes about 600 bytes each."""
FEWEST_REPEATS = 3
"""After warming up, however large the model."""


def layer_times(model: OnnxModel, batch: Feed, protocol: Protocol) -> LayerTimes:
    """Return the modules' times of inference; as many repeats as the protocol asks of a round.

    More are taken, at most :data:`MOST_ATTEMPTS` times as many, while the steps with and without the profiler disagree.

    Raises:
        Unsupported: the graph has no nodes.
        Exception: whatever ONNX Runtime raised.
    """
    clock = model.clock()
    with model.stepping(batch) as plain, without_collection(), profiled(model, batch) as seen:
        if not seen.nodes:
            raise Unsupported("the optimised graph has no nodes: its results are constants")
        most = max(FEWEST_REPEATS, min(MOST_REPEATS, MOST_EVENTS // seen.nodes // 2))
        pair = in_turns(partial(lasting, plain, 1, clock), partial(lasting, seen.step, 1, clock))
        warmup = pairs_in_turns(pair, clock, protocol.warmup_steps, protocol.warmup_s, protocol.max_s, most=most)
        kept: list[StepPair] = []
        begin = clock.now()
        for _ in range(MOST_ATTEMPTS):
            longest = protocol.max_s - (clock.now() - begin)
            if kept and longest <= 0:
                break
            if kept:
                plain_s, probed_s = zip(*kept, strict=True)
                if disagreement(plain_s, [seconds - _added(kept) for seconds in probed_s]) is None:
                    break
            kept += pairs_in_turns(pair, clock, protocol.min_samples, protocol.min_s, longest, most=most)
    cost = min(MOST_S, _added([*warmup[protocol.warmup_steps :], *kept]) / max(1, len(seen.steps[0])))
    inside, outside = INSIDE * cost, (1 - INSIDE) * cost
    warmup_kept = warmup[: protocol.warmup_steps]
    pairs = [*warmup_kept, *kept]
    steps = [*seen.steps[: len(warmup_kept)], *seen.steps[len(warmup) :]]
    plain_s, probed_s = zip(*pairs, strict=True)
    unmet = () if len(kept) >= protocol.min_samples else (f"min_samples={protocol.min_samples}",)
    return LayerTimes(
        mode="inference",
        calls=module_times(steps, probed_s, model.file.types, inside, outside),
        warmup=len(warmup_kept),
        forward=PhaseTimes(plain_s, probed_s),
        probe_s={"inside": inside, "outside": outside},
        unmet=unmet,
    )


def _added(pairs: Sequence[StepPair]) -> float:
    """Return what the profiler adds to a step, in seconds; never less than nothing."""
    return max(0.0, statistics.median(probed - plain for plain, probed in pairs))


UNTRACED_STEPS = 2
TRACED_STEPS = 3


def operators(model: OnnxModel, batch: Feed) -> Operators:
    """Return the operators that a step runs: nodes of the optimised graph by module, with times of a few steps.

    FLOPs are those of docs/counting.md, counted on the graph as it was exported; a node that the run-time has made of several has
    theirs, and one that it has put in has none.

    Raises:
        Exception: whatever ONNX Runtime raised.
    """
    with profiled(model, batch) as seen:
        for _ in range(UNTRACED_STEPS + TRACED_STEPS):
            seen.step()
    nodes = chain.from_iterable(seen.steps[UNTRACED_STEPS:])
    return Operators(
        mode="inference",
        rows=operator_rows(nodes, TRACED_STEPS, on_device=not model.device.startswith("cpu")),
        steps=TRACED_STEPS,
        step_s=sum(seen.seconds[UNTRACED_STEPS:]) / TRACED_STEPS,
        files={"trace.json.gz": seen.chrome},
    )
