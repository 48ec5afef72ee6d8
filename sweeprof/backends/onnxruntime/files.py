"""ONNX files: those that a user gives, and what an export knows beside the graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from sweeprof.backends.model_files import GraphFile, ModelFile, existing


@dataclass(frozen=True, slots=True)
class OnnxFile(ModelFile):
    """A model as a file: ``model.onnx._target_=sweeprof.backends.onnxruntime.files.OnnxFile model.onnx.path=net.onnx``."""

    def known(self) -> Exported:
        """The same with all that is known beside the graph: nothing.

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
        from sweeprof.backends.onnxruntime.model_proto import files_of_weights, without_weights

        folder = Path(self.path).parent
        return [Path(self.path), *(folder / name for name in files_of_weights(without_weights(self.path)))]
