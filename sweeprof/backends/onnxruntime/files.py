"""ONNX files: those that a user gives, what an export knows beside the graph, and the model in one without its weights."""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from sweeprof.backends.model_files import GraphFile, ModelFile, existing

if TYPE_CHECKING:
    import onnx


@dataclass(frozen=True, slots=True)
class OnnxFile(ModelFile):
    """A model as a file: ``model.onnx._target_=sweeprof.backends.onnxruntime.files.OnnxFile model.onnx.path=net.onnx``."""

    def known(self) -> Exported:
        """Return the file as an export of which nothing is known but the graph.

        Raises:
            FileNotFoundError: there is no such file.
        """
        return Exported(existing(self.path, "ONNX file"), self.channels)


@dataclass(frozen=True, slots=True)
class Exported(GraphFile):
    """An ONNX file, and what its graph does not tell; ``weights`` are its initializers."""

    NAME: ClassVar[str] = "model.onnx"
    FORMAT: ClassVar[str] = "onnx"
    paths: Mapping[str, str] | None = None
    """Path of the module that a node belongs to, by the node's name; None: only the graph tells."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Bytes by the initializer of the unquantized file, of what a quantized one stores in its place."""

    def parts(self) -> list[Path]:
        """Return the file itself, and those that have its weights: a protobuf holds no more than two gigabytes."""
        if self.types:
            return [Path(self.path), Path(f"{self.path}.data")]  # as torch's exporter names it
        folder = Path(self.path).parent
        return [Path(self.path), *(folder / name for name in files_of_weights(without_weights(self.path)))]


LARGEST = 1 << 16
"""Bytes of a field of an initializer that is read: 16 for each element of the largest constants that a graph is computed with."""


def without_weights(path: str) -> onnx.ModelProto:
    """Return the model of a file with initializers that lack their values where these are large.

    The values are most of a file. They are skipped by the lengths that protobuf's encoding has before them
    (https://protobuf.dev/programming-guides/encoding), so that the memory that they take is never read.
    """
    import onnx  # not for a process that measures

    try:
        with Path(path).open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
            model = onnx.ModelProto()
            _merge(model, content, 0, len(content), ("graph", "initializer"))
            return model
    except (ValueError, LookupError):  # it is empty, or no protobuf
        return onnx.load(path, load_external_data=False)


def files_of_weights(model: onnx.ModelProto) -> list[str]:
    """Return the names of the other files that have values of a model, in its folder."""
    tensors = list(model.graph.initializer)
    for node in model.graph.node:
        tensors += [attribute.t for attribute in node.attribute if attribute.HasField("t")]
    places: dict[str, None] = {}
    for tensor in tensors:
        for entry in tensor.external_data:
            if entry.key == "location":
                places[entry.value] = None
    return list(places)


def _merge(message: Any, content: mmap.mmap, begin: int, end: int, within: tuple[str, ...]) -> None:
    """Add the fields of an encoded message to ``message``, without the large fields of the messages ``within`` it."""
    number = message.DESCRIPTOR.fields_by_name[within[0]].number if within else None
    merged = position = begin
    while position < end:
        first = position
        tag, inside = _varint(content, first)
        kind = tag & 7
        if kind == 2:
            length, inside = _varint(content, inside)
            position = inside + length
        elif kind == 0:
            position = _varint(content, inside)[1]
        else:
            position = inside + {1: 8, 5: 4}[kind]
        if position - inside > LARGEST and (not within or tag >> 3 == number):
            message.MergeFromString(content[merged:first])
            merged = position
            if within:
                held = getattr(message, within[0])
                part = held.add() if hasattr(held, "add") else held  # one of several, or the only one
                _merge(part, content, inside, position, within[1:])
    if position != end:
        raise ValueError("a field is longer than its message")
    message.MergeFromString(content[merged:end])


def _varint(content: mmap.mmap, position: int) -> tuple[int, int]:
    """Return a number and the position after it."""
    value = shift = 0
    while True:
        byte = content[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position
        shift += 7
