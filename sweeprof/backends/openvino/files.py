"""Files in OpenVINO's format: those that a user gives, and what a conversion knows beside the graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from sweeprof.backends.model_files import GraphFile, ModelFile

MODULE, WEIGHT = "__module.model", "self.model."
"""What the names of operators and of constants begin with in a converted file, before the path of a module, or of a weight."""


@dataclass(frozen=True, slots=True)
class OpenvinoFile(ModelFile):
    """A model as a file: ``model.openvino._target_=sweeprof.backends.openvino.files.OpenvinoFile model.openvino.path=net.xml``.

    The file is an ``.xml``, or of any other format that OpenVINO reads (``.onnx``).
    """


@dataclass(frozen=True, slots=True)
class Converted(GraphFile):
    """An ``.xml`` file, and what its graph does not tell; ``weights`` are its constants."""

    NAME: ClassVar[str] = "model.xml"
    FORMAT: ClassVar[str] = "openvino"
    inputs: Sequence[str] = ()
    """Names of the inputs, in the order of the model; empty: as the graph has them."""
    is_of_onnx: bool = False
    """True if it was converted from a user's ONNX file, in which scales and zero points are no parameters."""

    def input_names(self, graph: Any) -> list[str]:
        """Return the names of the inputs of its ``openvino.Model``, in the order of the model's arguments."""
        names = [slot.get_any_name() for slot in graph.inputs]
        return list(self.inputs) if set(self.inputs) == set(names) else names

    def parts(self) -> list[Path]:
        return [Path(self.path), Path(self.path).with_suffix(".bin")]
