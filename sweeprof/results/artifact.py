"""Artifact: the file of a model that a run-time loads."""

from __future__ import annotations

from dataclasses import dataclass

from sweeprof.results.record import Stored


@dataclass(frozen=True, slots=True)
class Artifact(Stored):
    """A serialised model."""

    bytes: int
    """Length of its file or files."""
    format: str
    """E.g. ``onnx``."""
