"""Backends: the capabilities of a framework, and gaps. Only the folders below this one import a framework.

A backend builds a :class:`LoadedModel` and may have further capabilities, each a protocol of its own. Callers ask for a
capability (``isinstance(backend, Analyzes)``), never for a backend's name; one that is missing becomes a row with a reason,
which the backend declares in its ``gaps``, in its own file; the sweep's table shows them.

Reasons for its design: docs/decisions/backends.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt

from sweeprof.counting.formulas import Formulas
from sweeprof.counting.selection import EVERYTHING, ModuleSelection
from sweeprof.errors import Unsupported
from sweeprof.measuring.generation_config import GenerationConfig
from sweeprof.measuring.inputs import Inputs
from sweeprof.measuring.process_memory import MemoryMeter
from sweeprof.measuring.timing import Clock, FusedStep, GenerationStep, TrainingStep, WallClock
from sweeprof.measuring.training_config import TrainingConfig, Work
from sweeprof.results.artifact import Artifact
from sweeprof.results.generation import Generation
from sweeprof.results.graph import Graph
from sweeprof.results.iteration import Iteration
from sweeprof.results.layer_times import LayerTimes
from sweeprof.results.layers import LayerTable, Training
from sweeprof.results.lines import Lines
from sweeprof.results.memory import Allocations
from sweeprof.results.operators import Operators, OwnCounts
from sweeprof.results.peaks import Peaks, PeakSettings
from sweeprof.results.protocol import Protocol as TimingProtocol

AnyArray = npt.NDArray[Any]
Build = Callable[[], Any]
"""Makes the model: what ``model.<framework>._target_`` names, with its arguments bound."""


HostArray = npt.NDArray[np.float32]
HostOutputs = HostArray | Mapping[str, AnyArray]
"""One output ``(batch, ...)``, or several by their names: the keys of a mapping (``logits``), positions in a tuple (``0``).
Those of floating-point types are float32."""
T = TypeVar("T")


class LoadedModel(Protocol):
    """A model on its device, ready to step."""

    @property
    def native(self) -> Any:
        """The framework's own model, for metrics that ask for it."""

    @property
    def compiles(self) -> bool:
        """True if the first step compiles the model."""

    def clock(self) -> Clock:
        """The clock of the device that the model is on."""

    def put(self, inputs: Inputs) -> Any:
        """``inputs`` on the model's device, in the layout the framework wants."""

    def stepping(self, batch: Any) -> AbstractContextManager[Callable[[], object]]:
        """Within the context: a function that runs one forward of ``batch`` and returns its outputs when they are complete."""

    def host_outputs(self, outputs: object) -> HostOutputs:
        """Return a step's outputs on the host: one array ``(batch, ...)``, or every output by its name."""

    def transfers(self, inputs: Inputs, outputs: object) -> Mapping[str, Callable[[], object]]:
        """``h2d`` brings the inputs to the device, ``d2h`` the outputs back; nothing where the model runs on the host."""


class HostModel:
    """What loaded models that run on the host have in common."""

    compiles = False

    def clock(self) -> WallClock:
        return WallClock()

    def transfers(self, inputs: Inputs, outputs: Any) -> Mapping[str, Callable[[], object]]:
        return {}


def device_names(gpus: int) -> list[str]:
    """Return the names of the devices of a host with so many GPUs."""
    return ["cpu", *(["cuda", *(f"cuda:{index}" for index in range(gpus))] if gpus else [])]


@runtime_checkable
class Traces(Protocol):
    """A loaded model whose steps run a graph that is made from its Python first."""

    def tracing(self, batch: Any) -> Callable[[], None] | None:
        """A function that makes the graph of a step on ``batch`` and neither runs nor compiles it; None: there is none."""


@runtime_checkable
class TellsChanges(Protocol):
    """A loaded model of a framework whose inputs a step may change."""

    def state_of(self, batch: Any) -> int:
        """Return a number that is another one after a step has written into a batch, added to it or replaced a part of it."""


@runtime_checkable
class ChoosesInputs(Protocol):
    """A backend whose models take inputs of one type of numbers each."""

    def input_dtype(self, model: Any) -> str:
        """Return the type of an input of which only the shape is known."""


@runtime_checkable
class TakesTensors(Protocol):
    """A backend whose models take the tensors of a framework; tensors of all others reach it as NumPy arrays."""

    tensor_package: str
    """As :func:`sweeprof.tensors.package_of` calls it."""


class TrainingHooks(Protocol):
    """Sees a model being used by somebody else; a step begins when the model itself is called."""

    def start(self) -> None:
        """Begin to see."""

    def stop(self) -> None:
        """Leave the model as it was."""

    def paused(self) -> AbstractContextManager[None]:
        """Within it the model may be called without being seen."""

    def reset(self) -> None:
        """Forget every step."""

    @property
    def inputs(self) -> Inputs | None:
        """The shapes of the first step's inputs; None before the first step."""

    def layer_times(self) -> LayerTimes:
        """The times of every layer so far; raises :class:`~sweeprof.errors.Unsupported` before the first step."""

    def iteration(self) -> Iteration:
        """Everything since the start, or since this was last asked, as one step of the loop."""


class Backend(Protocol):
    """A framework; constructed from ``conf/backend/NAME.yaml`` without touching the framework's run-time."""

    def configure(self, seed: int) -> None:
        """Set threads and seeds; the first thing that happens in a fresh process."""

    def devices(self) -> list[str]:
        """Names of the devices that this host offers to the framework, e.g. ``["cpu", "cuda:0"]``."""

    def load(self, build: Build, device: str, channel_axis: int | None) -> LoadedModel:
        """The model on ``device``, in inference mode; ``channel_axis`` is where the dataset has its channels."""

    def is_out_of_memory(self, error: BaseException) -> bool:
        """True if the framework raised ``error`` because memory ran out."""


@runtime_checkable
class Expects(Protocol):
    """A backend that must know what a model will be called with before it loads one: it is exported for that."""

    def expect(self, inputs: Inputs) -> None:
        """Announce the inputs of all following steps, apart from the batch size."""


@runtime_checkable
class Quantizes(Protocol):
    """A backend that may need samples of the data before it loads a model: ranges of what it quantizes come from them."""

    def ranges_from(self, samples: Callable[[int], Inputs | None]) -> None:
        """Take a function that returns a batch of at most so many samples for calibration, or None if there are none."""


@runtime_checkable
class RunsRequests(Protocol):
    """A backend whose run-time takes several requests at the same time, and computes them side by side or in turns."""

    def concurrently(self, model: LoadedModel, batch: Any, seconds: float) -> tuple[int, int, float]:
        """Run forwards of ``batch`` for so long; return the requests in flight, the forwards completed, and their seconds."""


@runtime_checkable
class SelectsModules(Protocol):
    """A backend that neither counts nor times modules outside the selection of the formulas, the work or the training hooks."""

    selects_modules: bool


@runtime_checkable
class ReportsSettings(Protocol):
    """A backend whose framework tells which of its settings are in effect; a model can change them."""

    def settings_in_effect(self, model: LoadedModel | None = None) -> Mapping[str, Any]:
        """Return the settings of the framework that influence what is measured, as JSON values by name.

        ``threads`` is the number of threads within an operator, which is compared with ``backend.threads``.

        Args:
            model: as it was measured, for settings that are its own, such as ``device``; None before it is loaded.
        """


@runtime_checkable
class Analyzes(Protocol):
    """Can count parameters, operations and activations from shapes alone."""

    def analyze(self, build: Build, inputs: Inputs, channel_axis: int | None, formulas: Formulas) -> LayerTable:
        """The layers of the model for ``inputs``, in inference mode."""


@runtime_checkable
class ListsWeights(Protocol):
    """Can tell a model's parameters and buffers without a forward, for one whose forward raises."""

    def weights(self, build: Build, reason: str) -> LayerTable:
        """Return every layer with its parameters and buffers alone, and ``reason`` as why the forward is not counted."""


@runtime_checkable
class AnalyzesTraining(Protocol):
    """Can count a training step from shapes alone."""

    def analyze_training(self, build: Build, inputs: Inputs, channel_axis: int | None, formulas: Formulas) -> Training:
        """One training step of the model on ``inputs``."""


@runtime_checkable
class TracesGraph(Protocol):
    """Can trace the operators of a forward and the tensors between them, over shapes."""

    def graph(self, build: Build, inputs: Inputs, channel_axis: int | None, formulas: Formulas) -> Graph:
        """The graph of one forward on ``inputs``, in inference mode."""


@runtime_checkable
class CountsItself(Protocol):
    """Has a counter of the framework's own, to be shown beside ours."""

    def own_counts(self, build: Build, inputs: Inputs, channel_axis: int | None) -> OwnCounts:
        """Return the framework's own counts for one forward pass in inference mode."""


@runtime_checkable
class HasArtifact(Protocol):
    """Runs a model from a file."""

    def artifact(self, build: Build, channel_axis: int | None) -> Artifact:
        """The file that its run-time loads; it is made where there is none yet."""


@runtime_checkable
class Borrows(Protocol):
    """Can profile a model that a caller has in hands, and leaves it as it was."""

    def device_of(self, model: object) -> str:
        """Return the device of the model, e.g. ``cuda:0`` or, without weights, ``meta``."""

    def borrowed(self, model: object, is_trained: bool = False) -> AbstractContextManager[None]:
        """Within it the model is in inference mode; afterwards it is as it was, whatever was done to it.

        Args:
            model: the caller's.
            is_trained: whether an optimizer will write to its parameters.
        """


@runtime_checkable
class MeasuresMemory(Protocol):
    """Can tell how much memory the process of a loaded model takes."""

    def memory_meter(self) -> MemoryMeter:
        """The meter of this process."""


@runtime_checkable
class Trains(Protocol):
    """Can train a loaded model."""

    def training(
        self, model: LoadedModel, batch: Any, targets: object, config: TrainingConfig
    ) -> AbstractContextManager[TrainingStep | FusedStep]:
        """Within the context the model is in training mode; its weights learn, and are the caller's to restore."""


@runtime_checkable
class Generates(Protocol):
    """Can generate text, token by token, with a loaded model."""

    def generating(
        self, model: LoadedModel, batch: Any, config: GenerationConfig
    ) -> AbstractContextManager[GenerationStep]:
        """Within the context the model generates from the prompts of ``batch``; raises what does not fit the model."""


@runtime_checkable
class AnalyzesGeneration(Protocol):
    """Can count the prefill and a decode step of a generation from shapes alone."""

    def analyze_generation(
        self, build: Build, inputs: Inputs, channel_axis: int | None, formulas: Formulas, config: GenerationConfig
    ) -> Generation:
        """One generation of the model from the prompts of ``inputs``."""


@runtime_checkable
class Watches(Protocol):
    """Can watch a model in a loop of the user's own."""

    def watch(self, model: object, selection: ModuleSelection = EVERYTHING) -> TrainingHooks:
        """A watch on ``model``, of the modules in ``selection``, not yet started."""


@runtime_checkable
class TimesLayers(Protocol):
    """Can time every call of every layer."""

    def layer_times(self, model: LoadedModel, work: Work, protocol: TimingProtocol) -> LayerTimes:
        """Steps with and without probes in turns, as many as the protocol asks for."""


@runtime_checkable
class TracesOperators(Protocol):
    """Can trace what the framework runs."""

    def operators(self, model: LoadedModel, work: Work) -> Operators:
        """Return the operators that a step runs, by module and operator."""


@runtime_checkable
class TracksAllocations(Protocol):
    """Can follow what a step allocates."""

    def allocations(self, model: LoadedModel, work: Work) -> Allocations:
        """The allocations of the first steps."""


@runtime_checkable
class MeasuresPeaks(Protocol):
    """Can tell how fast the machine is at its best."""

    def peak_settings(self, device: str, model: object = None) -> PeakSettings:
        """Return the settings of a peak benchmark in this process: the number of threads, and the data type of this backend.

        Args:
            device: as :meth:`Backend.devices` calls it.
            model: the caller's, where there is one: its data type counts, unless this backend runs it in another one.
        """

    def peaks(self, settings: PeakSettings) -> Peaks:
        """A short benchmark, with ``settings``, which are those of this process."""


@runtime_checkable
class ProfilesLines(Protocol):
    """Can watch the source lines of Python functions."""

    def lines(self, model: LoadedModel, work: Work, functions: Sequence[str]) -> Lines:
        """Time and memory by line; without functions those of the model's own forward."""


LACKS: Mapping[type, str] = {
    Analyzes: "count layers",
    AnalyzesTraining: "count a training step",
    TracesGraph: "trace the graph of a forward",
    CountsItself: "be asked for a count of the framework's own",
    HasArtifact: "tell the size of the file that its run-time loads",
    Borrows: "profile a model in a caller's hands",
    MeasuresMemory: "measure memory",
    Trains: "train",
    Generates: "generate text",
    AnalyzesGeneration: "count a generation",
    Watches: "watch a model in a loop",
    TimesLayers: "time layers",
    TracesOperators: "trace operators",
    TracksAllocations: "follow allocations",
    MeasuresPeaks: "benchmark the machine",
    ProfilesLines: "watch source lines",
}
"""What a backend without a capability cannot do."""
CAPABILITIES = tuple(LACKS)
"""What a backend has or declares a gap for."""


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


def lacking(backend: object, capability: type) -> Unsupported:
    """The error of a pass that needs the capability."""
    gaps: Mapping[str, Gap] = getattr(backend, "gaps", {})
    name = capability.__name__
    if name in gaps:
        return Unsupported(str(gaps[name]))
    return Unsupported(
        f"this backend cannot {LACKS[capability]}" if capability in LACKS else f"this backend does not have {name}"
    )


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
