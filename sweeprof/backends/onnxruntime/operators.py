"""The operators that a step runs: nodes of the optimised graph by module, with times from ONNX Runtime's profiler over a few steps.

FLOPs are those of docs/counting.md, counted on the graph as it was exported; a node that the run-time has made of several has
theirs, and one that it has put in has none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from sweeprof.backends.onnxruntime.model import OnnxModel, SessionFeed
from sweeprof.backends.onnxruntime.profiler import NodeRun, profiled
from sweeprof.results.layers import Shapes
from sweeprof.results.operators import OperatorRow, Operators

WARMUP_STEPS = 2
TRACED_STEPS = 3

NodeKey = tuple[str, str, Shapes]
"""Path, operator, input shapes."""


def operators(model: OnnxModel, batch: SessionFeed) -> Operators:
    """Return the operators that a step runs.

    Raises:
        Exception: whatever ONNX Runtime raised.
    """
    with profiled(model, batch) as seen:
        for _ in range(WARMUP_STEPS + TRACED_STEPS):
            seen.step()
    return Operators(
        mode="inference",
        rows=_rows(seen.steps[WARMUP_STEPS:], on_device=not model.device.startswith("cpu")),
        steps=TRACED_STEPS,
        step_s=sum(seen.seconds[WARMUP_STEPS:]) / TRACED_STEPS,
        files={"trace.json.gz": seen.chrome},
    )


@dataclass(slots=True)
class _NodeSums:
    """Sums over all nodes of one row and all steps."""

    calls: int = 0
    seconds: float = 0.0
    allocated: int = 0
    flops: int | None = 0


def _rows(steps: Sequence[Sequence[NodeRun]], *, on_device: bool) -> tuple[OperatorRow, ...]:
    """One per path, operator and input shapes, in the order in which they first ran."""
    sums: defaultdict[NodeKey, _NodeSums] = defaultdict(_NodeSums)
    for ran in (ran for step in steps for ran in step):
        row = sums[ran.path, ran.op, ran.input_shapes]
        row.calls += 1
        row.seconds += ran.seconds
        row.allocated += ran.allocated
        row.flops = None if row.flops is None or ran.flops is None else row.flops + ran.flops
    count = len(steps)
    return tuple(
        OperatorRow(
            path=path,
            operator=op,
            phase="forward",
            calls=row.calls / count,
            self_s=row.seconds / count,
            total_s=row.seconds / count,
            device_self_s=row.seconds / count if on_device else None,
            device_total_s=row.seconds / count if on_device else None,
            flops=None if row.flops is None else row.flops // count,
            allocated_bytes=round(row.allocated / count),
            input_shapes=shapes,
        )
        for (path, op, shapes), row in sums.items()
    )
