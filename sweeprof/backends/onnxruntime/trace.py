"""The file of ONNX Runtime's profiler: a Chrome trace with an event for each node of each step, times in whole microseconds."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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


def profiling(options: Any, folder: Path) -> None:
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
