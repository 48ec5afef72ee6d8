"""TFLite files: those that a user gives, and those that a conversion leaves."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sweeprof.results.artifact import Artifact


@dataclass(frozen=True, slots=True)
class TfliteFile:
    """A model as a file: ``model.litert._target_=sweeprof.backends.litert.files.TfliteFile model.litert.path=net.tflite``."""

    path: str
    channels: Literal["first", "last"] = "last"
    """Where the model wants the channels of an image; datasets give them first."""

    def found(self) -> TfliteFile:
        """The same with its full path.

        Raises:
            FileNotFoundError: there is no such file.
        """
        path = Path(self.path).expanduser().absolute()
        if not path.is_file():
            raise FileNotFoundError(f"there is no TFLite file {self.path}")
        return TfliteFile(str(path), self.channels)

    def artifact(self) -> Artifact:
        """The length of the file: what is downloaded, and neither a Python object nor what it takes in memory."""
        return Artifact(Path(self.path).stat().st_size, "tflite")
