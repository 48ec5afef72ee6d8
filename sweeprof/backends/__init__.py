"""Backends: what a framework can do. The only rooms that import a framework are the folders below this one.

A backend builds a :class:`LoadedModel` and may have further capabilities, each a protocol of its own. Callers ask for a
capability (``isinstance(backend, Analyzes)``), never for a backend's name; one that is missing becomes a row with a reason.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from sweeprof.profiling.formulas import Formulas
from sweeprof.profiling.inputs import Inputs
from sweeprof.profiling.memory import MemoryMeter
from sweeprof.profiling.timing import Clock
from sweeprof.results.layers import LayerTable, Training

Array = npt.NDArray[Any]
Build = Callable[[], Any]
"""Makes the model: what ``model.<framework>._target_`` names, with its arguments bound."""


class LoadedModel(Protocol):
    """A model on its device, ready to step."""

    @property
    def native(self) -> Any:
        """The framework's own model, for metrics that ask for it."""

    def put(self, inputs: Inputs) -> Any:
        """``inputs`` on the model's device, in the layout the framework wants."""

    def stepping(self, batch: Any) -> AbstractContextManager[Callable[[], Any]]:
        """Within the context: a function that runs one forward of ``batch`` and returns its outputs when they are complete."""

    def host_outputs(self, outputs: Any) -> npt.NDArray[np.float32]:
        """What a step returned, as one array ``(batch, ...)``; of several outputs the first."""


class Backend(Protocol):
    """A framework; constructed from ``conf/backend/NAME.yaml`` without touching the framework's run-time."""

    def configure(self, seed: int) -> None:
        """Set threads and seeds; the first thing that happens in a fresh process."""

    def devices(self) -> list[str]:
        """Names of the devices that this host offers to the framework, e.g. ``["cpu", "cuda:0"]``."""

    def load(self, build: Build, device: str, channel_axis: int | None) -> LoadedModel:
        """The model on ``device``, in inference mode; ``channel_axis`` is where the dataset has its channels."""

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Whether the framework raised ``error`` because memory ran out."""

    def clock(self) -> Clock:
        """The clock that times this backend's steps."""


@runtime_checkable
class Analyzes(Protocol):
    """Can count parameters, operations and activations from shapes alone."""

    def analyze(self, build: Build, inputs: Inputs, channel_axis: int | None, formulas: Formulas) -> LayerTable:
        """The layers of the model for ``inputs``, in inference mode."""


@runtime_checkable
class AnalyzesTraining(Protocol):
    """Can count a training step from shapes alone."""

    def analyze_training(self, build: Build, inputs: Inputs, channel_axis: int | None, formulas: Formulas) -> Training:
        """One training step of the model on ``inputs``."""


@runtime_checkable
class Borrows(Protocol):
    """Can profile a model that a caller has in hands, and leaves it as it was."""

    def device_of(self, model: Any) -> str:
        """Where the model is, e.g. ``cuda:0`` or, without weights, ``meta``."""

    def borrowed(self, model: Any) -> AbstractContextManager[None]:
        """Within it the model is in inference mode; afterwards it is as it was, whatever was done to it."""


@runtime_checkable
class MeasuresMemory(Protocol):
    """Can tell how much memory the process of a loaded model takes."""

    def memory_meter(self) -> MemoryMeter:
        """The meter of this process."""
