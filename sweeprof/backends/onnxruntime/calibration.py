"""The overhead of ONNX Runtime's profiler for each node: within the time window that it records, and outside of it.

Measured on a chain of nodes that do next to nothing: without the profiler a node takes a fraction of a microsecond, and all that
its window notes beyond that is the profiler's. Real nodes have more inputs to write down, so the sum of both is then taken from
what the profiler added to real steps, in the same proportion.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnxruntime
from onnx import TensorProto, helper

from sweeprof.backends.onnxruntime.kernel import IR_VERSION, OPSET
from sweeprof.backends.onnxruntime.model import OnnxModel, SessionFeed
from sweeprof.backends.onnxruntime.trace import profiling, steps_of
from sweeprof.measuring.layer_timing import seconds_added
from sweeprof.measuring.timing import Clock

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
