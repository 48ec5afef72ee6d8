"""The file that a run-time loads."""

from __future__ import annotations

from sweeprof.metrics.metric import metric
from sweeprof.results.artifact import Artifact


@metric(name="size/artifact_bytes", unit="B", better="lower")
def artifact_bytes(artifact: Artifact) -> int:
    """Length of the serialised model that the run-time loads, all of its files together."""
    return artifact.bytes
