"""ONNX files: those that a user gives, and what an export knows beside the graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from sweeprof.counting.graph import WeightRole
from sweeprof.results.files import read_json, write_json

Channels = Literal["first", "last"]

MODEL, FACTS = "model.onnx", "facts.json"
"""The files of an export, in a folder of its own."""


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
class Exported:
    """An ONNX file, and what its graph does not tell."""

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

    def write_facts(self) -> None:
        """Keep what is known beside the file."""
        known = asdict(self)
        del known["path"]
        write_json(Path(self.path).with_name(FACTS), known)

    @classmethod
    def within(cls, folder: Path) -> Exported:
        """The export in a folder.

        Raises:
            FileNotFoundError: there is none.
        """
        return cls(str(folder / MODEL), **read_json(folder / FACTS))

    def size(self) -> int:
        """Bytes of the file and of what the exporter put beside it because a protobuf holds 2 GiB."""
        path = Path(self.path)
        return sum(part.stat().st_size for part in (path, path.with_name(f"{path.name}.data")) if part.exists())
