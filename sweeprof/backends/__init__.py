"""Backends: a framework's methods, and gaps. Only the folders below this one import a framework.

A backend is a :class:`Backend`, and its models are each a :class:`LoadedModel`. A method that a backend lacks becomes a row with a
reason, which the backend declares in its ``gaps``, in its own file; the sweep's table shows them.

Reasons for its design: docs/decisions/backends.md.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from sweeprof.counting.formulas import EVERYTHING, Formulas, ModuleSelection
from sweeprof.errors import Unsupported
from sweeprof.measuring.inputs import Inputs
from sweeprof.measuring.process_memory import MemoryMeter, ProcessMemory
from sweeprof.measuring.timing import Clock, FusedStep, GenerationStep, TrainingStep, WallClock
from sweeprof.measuring.training_config import GenerationConfig, TrainingConfig, Work
from sweeprof.results.environment import Peaks, PeakSettings
from sweeprof.results.generation import Generation
from sweeprof.results.graph import Graph
from sweeprof.results.layer_times import LayerTimes
from sweeprof.results.layers import LayerTable, Training
from sweeprof.results.lines import Lines
from sweeprof.results.measurement import Artifact
from sweeprof.results.memory import Allocations
from sweeprof.results.operators import Operators, OwnCounts
from sweeprof.results.record import Protocol

if TYPE_CHECKING:
    from sweeprof.backends.torch.layer_times import TorchTrainingHooks
    from sweeprof.measuring.line_profile import AllocationMeter

AnyArray = npt.NDArray[Any]
Build = Callable[[], Any]
"""Makes the model: what ``model.<framework>._target_`` names, with its arguments bound."""


HostArray = npt.NDArray[np.float32]
HostOutputs = HostArray | Mapping[str, AnyArray]
"""One output ``(batch, ...)``, or several by their names: the keys of a mapping (``logits``), positions in a tuple (``0``).
Those of floating-point types are float32."""
T = TypeVar("T")

Compiler = Literal["inductor", "openvino", "cudagraphs", "tensorrt", "openxla", "tvm", "aot_eager", "eager"]
"""As ``torch.compile(backend=…)`` calls them. ``eager`` and ``aot_eager`` capture the graph, and run it without generating code."""

GapKind = Literal["not implemented", "not possible upstream", "makes no sense"]


@dataclass(frozen=True, slots=True)
class Gap:
    """The kind and reason of a missing capability."""

    kind: GapKind
    reason: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.reason}"


CAPABILITIES = (
    *("analyze", "analyze_training", "analyze_generation", "graph", "own_counts", "artifact", "training", "generating"),
    *("layer_times", "operators", "allocations", "lines", "peaks", "watch"),
)
"""The methods that a backend has or declares a gap for."""


class LoadedModel(ABC):
    """A model on its device, ready to step; by default on the host."""

    native: Any
    """The framework's own model, for metrics that ask for it."""

    @property
    def compiles(self) -> bool:
        """True if the first step compiles the model."""
        return False

    def clock(self) -> Clock:
        """The clock of the device that the model is on."""
        return WallClock()

    @abstractmethod
    def put(self, inputs: Inputs) -> Any:
        """``inputs`` on the model's device, in the layout the framework wants."""

    @abstractmethod
    def stepping(self, batch: Any) -> AbstractContextManager[Callable[[], object]]:
        """Within the context: a function that runs one forward of ``batch`` and returns its outputs when they are complete."""

    @abstractmethod
    def host_outputs(self, outputs: Any) -> HostOutputs:
        """Return a step's outputs on the host: one array ``(batch, ...)``, or every output by its name."""

    def transfers(self, inputs: Inputs, outputs: Any) -> Mapping[str, Callable[[], object]]:
        """``h2d`` brings the inputs to the device, ``d2h`` the outputs back; nothing where the model runs on the host."""
        return {}

    def tracing(self, batch: Any) -> Callable[[], None] | None:
        """A function that makes the graph of a step on ``batch`` and neither runs nor compiles it; None: there is none."""
        return None

    def state_of(self, batch: Any) -> int:
        """Return a number that is another one after a step has written into a batch, added to it or replaced a part of it."""
        return 0


class Backend:
    """A framework; constructed from ``conf/backend/NAME.yaml`` without touching the framework's run-time.

    Only :meth:`load` is required. The methods in :data:`CAPABILITIES` raise the declared gap unless a backend overrides them.
    """

    gaps: ClassVar[Mapping[str, Gap]] = {}
    """Why a method of :data:`CAPABILITIES` is missing."""
    tensor_package: ClassVar[str | None] = None
    """The framework whose tensors models take, as :func:`sweeprof.nested.package_of` calls it; all others reach them as NumPy
    arrays."""
    selects_modules: ClassVar[bool] = False
    """True: it neither counts nor times modules outside the selection of the formulas, the work or the training hooks."""

    @classmethod
    def has(cls, method: str) -> bool:
        """Return whether the backend overrides a method."""
        return getattr(cls, method) is not getattr(Backend, method)

    def require(self, method: str) -> None:
        """Raise :class:`Unsupported` if the backend lacks a method."""
        if not self.has(method):
            raise self.lacking(method)

    def lacking(self, method: str) -> Unsupported:
        """Return the error of a method that the backend lacks."""
        if method in self.gaps:
            return Unsupported(str(self.gaps[method]))
        return Unsupported(f"{type(self).__name__} has no method {method}")

    # The process and the model

    def configure(self, seed: int) -> None:
        """Set threads and seeds; the first thing that happens in a fresh process."""

    def settings_in_effect(self, model: Any = None) -> Mapping[str, Any]:
        """Return the settings of the framework that influence what is measured, as JSON values by name; a model can change them.

        ``threads`` is the number of threads within an operator, which is compared with ``backend.threads``.

        Args:
            model: as it was measured, for settings that are its own, such as ``device``; None before it is loaded.
        """
        return {}

    def devices(self) -> list[str]:
        """Names of the devices that this host offers to the framework, e.g. ``["cpu", "cuda:0"]``."""
        return ["cpu"]

    def expect(self, inputs: Inputs) -> None:
        """Announce the inputs of all following steps, apart from the batch size; a model may be exported for them."""

    def ranges_from(self, samples: Callable[[int], Inputs | None]) -> None:
        """Take a function that returns a batch of at most so many samples for calibration, or None if there are none."""

    def load(self, build: Build, device: str, channel_axis: int | None) -> LoadedModel:
        """The model on ``device``, in inference mode; ``channel_axis`` is where the dataset has its channels."""
        raise self.lacking("load")

    def is_out_of_memory(self, error: BaseException) -> bool:
        """True if the framework raised ``error`` because memory ran out."""
        return isinstance(error, MemoryError)

    def memory_meter(self) -> MemoryMeter:
        """The meter of this process."""
        return ProcessMemory()

    # A caller's model

    def input_dtype(self, model: Any) -> str:
        """Return the type of an input of which only the shape is known."""
        return "float32"

    def device_of(self, model: Any) -> str:
        """Return the device of a caller's model, e.g. ``cuda:0`` or, without weights, ``meta``."""
        return "cpu"

    def borrowed(self, model: Any, is_trained: bool = False) -> AbstractContextManager[None]:
        """Within it a caller's model is in inference mode; afterwards it is as it was, whatever was done to it.

        Args:
            model: the caller's.
            is_trained: whether an optimizer will write to its parameters.
        """
        return nullcontext()

    def watch(self, model: Any, selection: ModuleSelection = EVERYTHING) -> TorchTrainingHooks:
        """A watch on ``model`` in a loop of the user's own, of the modules in ``selection``, not yet started."""
        raise self.lacking("watch")

    # From shapes alone

    def analyze(self, build: Build, inputs: Inputs, channel_axis: int | None, formulas: Formulas) -> LayerTable:
        """The layers of the model for ``inputs``, in inference mode."""
        raise self.lacking("analyze")

    def weights(self, build: Build, reason: str) -> LayerTable:
        """Return every layer with its parameters and buffers alone, and ``reason`` as why the forward is not counted."""
        raise self.lacking("weights")

    def analyze_training(self, build: Build, inputs: Inputs, channel_axis: int | None, formulas: Formulas) -> Training:
        """One training step of the model on ``inputs``."""
        raise self.lacking("analyze_training")

    def analyze_generation(
        self, build: Build, inputs: Inputs, channel_axis: int | None, formulas: Formulas, config: GenerationConfig
    ) -> Generation:
        """The prefill and a decode step of one generation of the model from the prompts of ``inputs``."""
        raise self.lacking("analyze_generation")

    def graph(self, build: Build, inputs: Inputs, channel_axis: int | None, formulas: Formulas) -> Graph:
        """The operators of one forward on ``inputs``, in inference mode, and the tensors between them."""
        raise self.lacking("graph")

    def own_counts(self, build: Build, inputs: Inputs, channel_axis: int | None) -> OwnCounts:
        """Return the framework's own counts for one forward pass in inference mode, to be shown beside ours."""
        raise self.lacking("own_counts")

    def artifact(self, build: Build, channel_axis: int | None) -> Artifact:
        """The file that the run-time loads; it is made where there is none yet."""
        raise self.lacking("artifact")

    # Steps of a loaded model

    def training(
        self, model: Any, batch: Any, targets: object, config: TrainingConfig
    ) -> AbstractContextManager[TrainingStep | FusedStep]:
        """Within the context the model is in training mode; its weights learn, and are the caller's to restore."""
        raise self.lacking("training")

    def generating(self, model: Any, batch: Any, config: GenerationConfig) -> AbstractContextManager[GenerationStep]:
        """Within the context the model generates from the prompts of ``batch``; raises what does not fit the model."""
        raise self.lacking("generating")

    def concurrently(self, model: Any, batch: Any, seconds: float) -> tuple[int, int, float]:
        """Run forwards of ``batch``, several at a time, for so long; return the requests in flight, the forwards completed, and
        their seconds.
        """
        raise self.lacking("concurrently")

    def layer_times(self, model: Any, work: Work, protocol: Protocol) -> LayerTimes:
        """Times of every call of every layer: steps with and without probes in turns, as many as the protocol asks for."""
        raise self.lacking("layer_times")

    def operators(self, model: Any, work: Work) -> Operators:
        """Return the operators that a step runs, by module and operator."""
        raise self.lacking("operators")

    def allocations(self, model: Any, work: Work) -> Allocations:
        """The allocations of the first steps."""
        raise self.lacking("allocations")

    def lines(self, model: Any, work: Work, functions: Sequence[str]) -> Lines:
        """Time and memory by line of Python functions; without functions those of the model's own forward."""
        raise self.lacking("lines")

    # The machine

    def peak_settings(self, device: str, model: Any = None) -> PeakSettings:
        """Return the settings of a peak benchmark in this process: the number of threads, and the data type of this backend.

        Args:
            device: as :meth:`devices` calls it.
            model: the caller's, where there is one: its data type counts, unless this backend runs it in another one.
        """
        raise self.lacking("peaks")

    def peaks(self, settings: PeakSettings) -> Peaks:
        """A short benchmark, with ``settings``, which are those of this process."""
        raise self.lacking("peaks")

    def allocation_meter(self, device: str) -> AllocationMeter:
        """Return what reads the allocator of an accelerator while source lines run.

        Raises:
            Unsupported: this host has no such device, or its allocator keeps no statistics.
        """
        raise self.lacking("allocation_meter")


def device_names(gpus: int) -> list[str]:
    """Return the names of the devices of a host with so many GPUs."""
    return ["cpu", *(["cuda", *(f"cuda:{index}" for index in range(gpus))] if gpus else [])]


def outputs_on_host(outputs: object, tensors: Mapping[str, T], on_host: Callable[[T], AnyArray]) -> HostOutputs:
    """Return every output by its name; one without a name is alone.

    Args:
        outputs: what the model returned.
        tensors: those in it by name.
        on_host: copies a tensor to the host, one of a floating-point type as float32.

    Raises:
        Unsupported: there are no tensors.
    """
    if not tensors:
        raise Unsupported(f"the model returned a {type(outputs).__name__} without a tensor")
    found = {name: on_host(tensor) for name, tensor in tensors.items()}
    return found.get("", found)


def named(outputs: HostOutputs) -> Mapping[str, AnyArray]:
    """Return the outputs by name; a single one has the name ``""``."""
    return outputs if isinstance(outputs, Mapping) else {"": outputs}
