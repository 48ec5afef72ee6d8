"""ONNX files: those that a user gives, and what an export knows beside the graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal

from sweeprof.backends.model_files import MadeFile
from sweeprof.counting.file_graph import WeightRole

Channels = Literal["first", "last"]


@dataclass(frozen=True, slots=True)
class OnnxFile:
    """A model as a file: ``model.onnx._target_=sweeprof.backends.onnxruntime.files.OnnxFile model.onnx.path=net.onnx``."""

    path: str
    channels: Channels = "first"
    """Where the model wants the channels of an image; datasets give them first."""

    def known(self) -> Exported:
        """The same with all that is known beside the graph: nothing.

        Raises:
            FileNotFoundError: there is no such file.
        """
        path = Path(self.path).expanduser().absolute()
        if not path.is_file():
            raise FileNotFoundError(f"there is no ONNX file {self.path}")
        return Exported(str(path), channels=self.channels)


@dataclass(frozen=True, slots=True)
class Exported(MadeFile):
    """An ONNX file, and what its graph does not tell."""

    NAME: ClassVar[str] = "model.onnx"
    path: str
    batch: int | None = None
    """The only size of the first axes that the graph takes; None: any."""
    paths: Mapping[str, str] | None = None
    """Path of the module that a node belongs to, by the node's name; None: only the graph tells."""
    weights: Mapping[str, WeightRole] = field(default_factory=dict)
    """Role by initializer; one that is the same tensor as another has none."""
    types: Mapping[str, str] = field(default_factory=dict)
    """Class name by module path, of all modules."""
    channels: Channels = "first"
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Bytes by the initializer of the unquantized file, of what a quantized one stores in its place."""

    def size(self) -> int:
        """Bytes of the file and of what the exporter put beside it because a protobuf holds 2 GiB."""
        path = Path(self.path)
        return sum(part.stat().st_size for part in (path, path.with_name(f"{path.name}.data")) if part.exists())
