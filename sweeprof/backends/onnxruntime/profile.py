"""A session under ONNX Runtime's own profiler: what each node of a step took, and which module it belongs to.

The profiler's file is a Chrome trace with an event per node and step. The nodes are those of the graph as the run-time has
optimised it, which it writes, so that ``fusion.py`` finds what they stand for.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import onnx

from sweeprof.backends.onnxruntime.fusion import Origin, origins
from sweeprof.backends.onnxruntime.model import OnnxModel, SessionFeed
from sweeprof.backends.onnxruntime.reading import read
from sweeprof.backends.onnxruntime.trace import NODE, profiling, steps_of
from sweeprof.results.layer_times import ROOT
from sweeprof.results.layers import Shapes

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

    step: Callable[[], Any]
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

        def change(options: Any) -> None:
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
