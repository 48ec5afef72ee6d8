"""Files in OpenVINO's format: those that a user gives, and what a conversion knows beside the graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

from sweeprof.backends.model_files import MadeFile
from sweeprof.counting.file_graph import WeightRole

MODULE, WEIGHT = "__module.model", "self.model."
"""What the names of operators and of constants begin with in a converted file, before the path of a module, or of a weight."""


@runtime_checkable
class ModelFile(Protocol):
    """What a builder returns for a model in a file."""

    path: str
    channels: Literal["first", "last"]


@dataclass(frozen=True, slots=True)
class OpenvinoFile:
    """A model as a file: ``model.openvino._target_=sweeprof.backends.openvino.files.OpenvinoFile model.openvino.path=net.xml``."""

    path: str
    """``.xml``, or any other format that OpenVINO reads (``.onnx``)."""
    channels: Literal["first", "last"] = "first"
    """Where the model wants the channels of an image; datasets give them first."""


@dataclass(frozen=True, slots=True)
class Converted(MadeFile):
    """An ``.xml`` file, and what its graph does not tell."""

    NAME: ClassVar[str] = "model.xml"

    path: str
    batch: int | None = None
    """The only batch size that it takes; None: any."""
    channels: Literal["first", "last"] = "first"
    types: Mapping[str, str] = field(default_factory=dict)
    """Class name by module path, of all modules; empty for a user's file."""
    weights: Mapping[str, WeightRole] = field(default_factory=dict)
    """Role by the name of a constant; one that is the same tensor as another has none."""
    inputs: Sequence[str] = ()
    """Names of the inputs, in the order of the model; empty: as the graph has them."""
    outputs: Sequence[str] = ()
    """Names of the outputs, in the order of the graph; empty: the graph names them."""

    def input_names(self, graph: Any) -> list[str]:
        """Return the names of the inputs of its ``openvino.Model``, in the order of the model's arguments."""
        names = [slot.get_any_name() for slot in graph.inputs]
        return list(self.inputs) if set(self.inputs) == set(names) else names

    def size(self) -> int:
        """Bytes of the graph and of its weights."""
        path = Path(self.path)
        return sum(part.stat().st_size for part in (path, path.with_suffix(".bin")) if part.exists())


def not_a_model(model: object) -> str:
    """Return the message for what is no model."""
    return f"the model's builder returned a {type(model).__name__}, not a torch or Keras model or a file"
