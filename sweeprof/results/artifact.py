"""Artifact: the file of a model that a run-time loads."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from sweeprof.results.record import Json
from sweeprof.results.validation import validated


@dataclass(frozen=True, slots=True)
class Artifact:
    """A serialised model."""

    bytes: int
    """Length of its file or files."""
    format: str
    """E.g. ``onnx``."""

    def to_dict(self) -> Json:
        """Plain JSON data."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, object]) -> Artifact:
        """Read the data of :meth:`to_dict`."""
        return validated(cls, data)
