"""Backends: a framework's methods, and gaps. Only the folders below this one import a framework.

A backend is a :class:`Backend`, and its models are each a :class:`LoadedModel`. A method that a backend lacks becomes a row with a
reason, which the backend declares in its ``gaps``, in its own file; the sweep's table shows them.

Reasons for its design: docs/decisions/backends.md.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from os import PathLike
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NoReturn, TypeVar, get_args

import numpy as np
import numpy.typing as npt

from sweeprof import nested
from sweeprof.counting.formulas import EVERYTHING, Formulas, ModuleSelection
from sweeprof.errors import Problem, Unsupported, UserError, choice_problem
from sweeprof.measuring.inputs import Inputs, TensorSpec
from sweeprof.measuring.process_memory import MemoryMeter, ProcessMemory
from sweeprof.measuring.timing import Clock, FusedStep, GenerationStep, TrainingStep, WallClock
from sweeprof.measuring.training_config import GenerationConfig, TrainingConfig, Work
from sweeprof.nested import mapped
from sweeprof.paths import SAVED_MODEL, kind_of_model, user_path
from sweeprof.results.environment import Peaks, PeakSettings
from sweeprof.results.graph import Graph
from sweeprof.results.layer_times import LayerTimes
from sweeprof.results.layers import LayerTable, Training
from sweeprof.results.measurement import Artifact
from sweeprof.results.observations import (
    Allocations,
    CommandRun,
    Generation,
    Lines,
    Operators,
    OwnCounts,
    RunningServer,
)
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

GapKind = Literal["not implemented", "not supported upstream", "not applicable"]


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

    @property
    def graphs(self) -> int | None:
        """Return the number of graphs that a compiler has made of the model so far; None if it makes none, or does not tell."""
        return None

    def check_compiled(self) -> None:  # noqa: B027  # it checks nothing where nothing is compiled
        """Raise :class:`Unsupported` if the model was to be compiled, and what has run was not; to be called after its steps."""

    def weights(self) -> Sequence[object]:
        """Return objects that live as long as the memory of the weights; the model itself if it has no ``variables``."""
        return getattr(self.native, "variables", None) or [self.native]

    def clock(self) -> Clock:
        """Return the clock of the device that the model is on."""
        return WallClock()

    @abstractmethod
    def put(self, inputs: Inputs) -> Any:
        """Return ``inputs`` on the model's device, in the layout that the framework wants."""

    @abstractmethod
    def stepping(self, batch: Any) -> AbstractContextManager[Callable[[], object]]:
        """Within the context: a function that runs one forward of ``batch`` and returns its outputs when they are complete."""

    @abstractmethod
    def host_outputs(self, outputs: Any) -> HostOutputs:
        """Return a step's outputs on the host: one array ``(batch, ...)``, or every output by its name."""

    def running(self, server: RunningServer | None) -> AbstractContextManager[Callable[[bool], CommandRun]]:
        """Within the context: a function that runs a program once, while its server runs, if it needs one. For mode=command.

        Its argument: True to look at the memory, too.
        """
        raise Unsupported("mode=command: only backend=command runs programs")

    def transfers(self, inputs: Inputs, outputs: Any) -> Mapping[str, Callable[[], object]]:
        """``h2d`` brings the inputs to the device, ``d2h`` the outputs back; nothing where the model runs on the host."""
        return {}

    def tracing(self, batch: Any) -> Callable[[], None] | None:
        """Return a function that makes the graph of a step on ``batch`` and neither runs nor compiles it; None if there is none."""
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
        """Return the names of the devices that this host offers to the framework, e.g. ``["cpu", "cuda:0"]``."""
        return ["cpu"]

    def expect(self, inputs: Inputs) -> None:
        """Announce the inputs of all following steps, apart from the batch size; a model may be exported for them."""

    def ranges_from(self, samples: Callable[[int], Inputs | None]) -> None:
        """Take a function that returns a batch of at most so many samples for calibration, or None if there are none."""

    def load(self, build: Build, device: str, channel_axis: int | None) -> LoadedModel:
        """Return the model on ``device``, in inference mode; ``channel_axis`` is where the dataset has its channels."""
        raise self.lacking("load")

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Return True if the framework raised ``error`` because memory ran out."""
        return isinstance(error, MemoryError)

    def memory_meter(self) -> MemoryMeter:
        """Return the memory meter of this process."""
        return ProcessMemory()

    # A caller's model

    def input_dtype(self, model: Any) -> str:
        """Return the type of an input of which only the shape is known."""
        return "float32"

    def device_of(self, model: Any) -> str:
        """Return the device of a caller's model, e.g. ``cuda:0`` or, without weights, ``meta``."""
        return "cpu"

    def borrowed(self, model: Any, is_run: bool = False, is_trained: bool = False) -> AbstractContextManager[None]:
        """Within it a caller's model is in inference mode; afterwards it is as it was, whatever was done to it.

        Args:
            model: the caller's.
            is_run: whether it is called for real, when its forward may write to its parameters.
            is_trained: whether an optimizer will write to them then.
        """
        return nullcontext()

    def keeping_files(self) -> AbstractContextManager[None]:
        """Within it a caller's model does not change, so that a file that is made of it serves all passes."""
        return nullcontext()

    def watch(self, model: Any, selection: ModuleSelection = EVERYTHING) -> TorchTrainingHooks:
        """Return training hooks for ``model`` in the user's own loop, for the modules in ``selection``, not yet started."""
        raise self.lacking("watch")

    # From shapes alone

    def analyze(self, build: Build, inputs: Inputs, channel_axis: int | None, formulas: Formulas) -> LayerTable:
        """Return the layers of the model for ``inputs``, in inference mode."""
        raise self.lacking("analyze")

    def weights(self, build: Build, reason: str) -> LayerTable:
        """Return every layer with its parameters and buffers alone, and ``reason`` as why the forward is not counted."""
        raise self.lacking("weights")

    def analyze_training(self, build: Build, inputs: Inputs, channel_axis: int | None, formulas: Formulas) -> Training:
        """Return the counts of one training step of the model on ``inputs``."""
        raise self.lacking("analyze_training")

    def analyze_generation(
        self, build: Build, inputs: Inputs, channel_axis: int | None, formulas: Formulas, config: GenerationConfig
    ) -> Generation:
        """Return the prefill and a decode step of one generation of the model from the prompts of ``inputs``."""
        raise self.lacking("analyze_generation")

    def graph(self, build: Build, inputs: Inputs, channel_axis: int | None, formulas: Formulas) -> Graph:
        """Return the operators of one forward on ``inputs``, in inference mode, and the tensors between them."""
        raise self.lacking("graph")

    def own_counts(self, build: Build, inputs: Inputs, channel_axis: int | None) -> OwnCounts:
        """Return the framework's own counts for one forward pass in inference mode, to be shown beside ours."""
        raise self.lacking("own_counts")

    def artifact(self, build: Build, channel_axis: int | None) -> Artifact:
        """Return the file that the run-time loads; it is made if there is none yet."""
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

    def device_times(self, model: Any, work: Work, protocol: Protocol) -> tuple[float, ...]:
        """Return the seconds that the device takes for some steps whose work is queued before it begins.

        Raises:
            Unsupported: they cannot be had of this device or this step.
        """
        raise Unsupported("this backend does not tell the time of its device apart")

    def layer_times(self, model: Any, work: Work, protocol: Protocol) -> LayerTimes:
        """Return the times of every call of every layer: steps with and without probes in turns, as the protocol asks for."""
        raise self.lacking("layer_times")

    def operators(self, model: Any, work: Work) -> Operators:
        """Return the operators that a step runs, by module and operator."""
        raise self.lacking("operators")

    def allocations(self, model: Any, work: Work) -> Allocations:
        """Return the allocations of the first steps."""
        raise self.lacking("allocations")

    def lines(self, model: Any, work: Work, functions: Sequence[str]) -> Lines:
        """Return time and memory by line of Python functions; without functions those of the model's own forward."""
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
        """Run a short benchmark, with ``settings``, which are those of this process."""
        raise self.lacking("peaks")

    def allocation_meter(self, device: str) -> AllocationMeter:
        """Return what reads the allocator of an accelerator while source lines run.

        Raises:
            Unsupported: this host has no such device, or its allocator keeps no statistics.
        """
        raise self.lacking("allocation_meter")


def device_names(gpus: int) -> list[str]:
    """Return the names of the devices of a host with so many GPUs."""
    if not gpus:
        return ["cpu"]
    return ["cpu", "cuda", *(f"cuda:{index}" for index in range(gpus))]


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


# ---------------------------------------------------------------------------------------------------------------
# Precisions: one vocabulary for all backends, and which of them a backend supports by which methods
# ---------------------------------------------------------------------------------------------------------------

Precision = Literal["fp32", "fp16", "bf16", "int8", "fp8", "int4"]
PrecisionMethod = Literal["convert", "autocast", "dynamic", "static", "torchao"]
"""``convert``: weights, computation and inputs; ``autocast``: the computation alone, weights stay in 32 bits; ``dynamic``:
weights of 8 bits, ranges of activations from each batch; ``static``: ranges from samples of the training data; ``torchao``:
the package that quantizes a model of torch."""

Methods = Mapping[str, tuple[str, ...]]


def unsupported_reason(
    name: str, methods: Methods, gaps: Mapping[str, str], precision: object, method: object
) -> str | None:
    """Return why a backend does not run in a precision by a method; None if it does.

    Args:
        name: of the backend, for the reason.
        methods: by the precisions that it supports.
        gaps: reasons by the precisions that it does not support.
        precision: one of :data:`Precision`; None: as the model is.
        method: one of :data:`PrecisionMethod`; None: the default.
    """
    if precision is not None and precision not in methods:
        return f"{name} does not support precision={precision}: {gaps.get(str(precision), 'it is not implemented')}"
    if precision == "fp32":  # it has only one method, which others of a sweep need not be
        return None
    known, spelled = "a method needs a precision", "null"
    if precision is not None:
        known, spelled = f"only {', '.join(methods[str(precision)])}", str(precision)
        if method in methods[str(precision)]:
            return None
    if method is None:
        return None
    return f"{name} does not support precision_method={method} for precision={spelled} ({known})"


CompileMode = Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]
"""As ``torch.compile(mode=…)`` calls them."""
MatmulPrecision = Literal["highest", "high", "medium"]
"""As :func:`torch.set_float32_matmul_precision` calls them."""


def uncompilable_reason(settings: Mapping[str, object], device: str) -> str | None:
    """Return why a model is not compiled as the settings of a backend ask for; None if it is, or if they ask for nothing.

    Args:
        settings: ``compile`` and ``compile_mode``, ``compile_dynamic``, ``compile_fullgraph``, each where it is given.
        device: where the model runs.
    """
    compiler, mode = settings.get("compile"), settings.get("compile_mode")
    if not compiler:
        for name, default in (("compile_mode", None), ("compile_dynamic", None), ("compile_fullgraph", False)):
            value = settings.get(name, default)
            if value != default:
                return f"{name}={str(value).lower()} needs backend.compile=true: the model is not compiled"
        return None
    if mode is not None and compiler not in (True, "inductor"):
        return f"compile_mode={mode} is a mode of inductor, not of compile={compiler}"
    if device == "cpu" and (mode == "reduce-overhead" or compiler == "cudagraphs"):
        asked = "compile=cudagraphs" if compiler == "cudagraphs" else f"compile_mode={mode}"
        return f"{asked} launches CUDA graphs, and device={device} has none"
    return None


def unsupported_device_reason(precision: object, device: str, kinds: Sequence[str]) -> str | None:
    """Return why a precision does not run on a device; None if it does.

    Args:
        device: its kind, which a number may follow (``cuda:1``).
        kinds: the only kinds of devices that have the precision; empty if all have it.
    """
    if not kinds or device.partition(":")[0] in kinds:
        return None
    return f"precision={precision} has no kernels for device={device} (only for {', '.join(kinds)})"


def checked_method(backend: type, precision: str | None, method: str | None) -> str | None:
    """Return the method by which ``backend`` runs in a precision; None with no precision.

    Raises:
        UserError: there is no such precision or method.
        Unsupported: the backend does not support it.
    """
    declared: Any = backend
    problems = []
    if precision is not None and precision not in get_args(Precision):
        problems.append(choice_problem("backend.precision", precision, "precision", get_args(Precision)))
    if method is not None and method not in get_args(PrecisionMethod):
        problems.append(
            choice_problem("backend.precision_method", method, "method of a precision", get_args(PrecisionMethod))
        )
    if problems:
        raise UserError(problems)
    name = backend.__name__.removesuffix("Backend").lower()
    reason = unsupported_reason(name, declared.precision_methods, declared.precision_gaps, precision, method)
    if reason is not None:
        raise Unsupported(reason)
    if precision is None or (method is not None and precision != "fp32"):
        return method
    default: str = declared.precision_methods[precision][0]
    return default


# ---------------------------------------------------------------------------------------------------------------
# The backend of a caller's model, by the packages of its classes
# ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BackendHome:
    """One of sweeprof's own backends: where it is, and what it needs."""

    module: str
    kind: str
    """Name of its class."""
    framework: str
    """Name of the model's builder that it runs first."""
    packages: tuple[str, ...] = ()
    """The packages that it needs, as they are imported, its framework first."""
    extra: str = ""
    """The extra of sweeprof that installs the package."""


def _home(name: str, *packages: str, framework: str = "") -> BackendHome:
    adapter = f"sweeprof.backends.{name}.adapter"
    return BackendHome(adapter, f"{name.capitalize()}Backend", framework or name, packages or (name,), name)


HOMES = {
    "torch": _home("torch"),
    "keras": _home("tensorflow", "tensorflow", "keras"),
    "tensorflow": _home("tensorflow", "tensorflow", "keras"),
    "onnxruntime": _home("onnxruntime", "onnxruntime", "onnx", framework="onnx"),
    "jax": _home("jax", "jax", "jaxlib", "keras"),
    "litert": _home("litert", "ai_edge_litert"),
    "openvino": _home("openvino"),
    "command": BackendHome("sweeprof.backends.command", "CommandBackend", "command"),
    "fake": BackendHome("sweeprof.backends.fake", "FakeBackend", "fake"),
}
"""By the name that a caller gives."""
TARGETS = tuple(dict.fromkeys(f"{home.module}.{home.kind}" for home in HOMES.values()))
"""The dotted names of sweeprof's own backends."""
_PACKAGES = {
    **{name: name for name in ("torch", "keras", "tensorflow")},
    **{f"sweeprof.backends.{name}": name for name in ("onnxruntime", "litert", "openvino", "fake")},
}


FILES = {
    ".onnx": "sweeprof.backends.onnxruntime.files.OnnxFile",
    ".xml": "sweeprof.backends.openvino.convert.OpenvinoFile",
    ".tflite": "sweeprof.backends.litert.model.TfliteFile",
    ".keras": "sweeprof.model_sources.file.keras_model",
    ".h5": "sweeprof.model_sources.file.keras_model",
    ".hdf5": "sweeprof.model_sources.file.keras_model",
    SAVED_MODEL: "sweeprof.model_sources.file.keras_model",
    ".pt2": "sweeprof.model_sources.file.torch_module",
}
"""The function or class that makes a model of the path of a file, by its kind (:func:`sweeprof.paths.kind_of_model`)."""


def backend_named(name: str) -> Backend:
    """Return the backend of that name with its default settings.

    Raises:
        UserError: there is none, or a package that it needs is not installed.
    """
    if name not in HOMES:
        raise UserError([choice_problem("backend", name, "backend", HOMES)])
    home = HOMES[name]
    missing = missing_package(home.packages)
    if missing is not None:
        raise UserError(
            [Problem("backend", name, f"needs the package {missing}: pip install 'sweeprof[{home.extra}]'.")]
        )
    made: Backend = getattr(import_module(home.module), home.kind)()
    return made


def missing_package(names: Iterable[str]) -> str | None:
    """Return the first of these packages that is not installed; None if all are."""
    return next((name for name in names if find_spec(name) is None), None)


def backend_of(model: object) -> Backend:
    """Return the backend of the framework that ``model`` comes from.

    Raises:
        UserError: it comes from none that sweeprof knows, or is no model, such as an optimizer.
    """
    for kind in type(model).__mro__:
        for package, name in _PACKAGES.items():
            if kind.__module__ == package or kind.__module__.startswith(f"{package}."):
                if package == "torch" and not isinstance(model, sys.modules["torch"].nn.Module):
                    continue
                if package in ("keras", "tensorflow") and not callable(model):
                    continue
                if package == "keras" and sys.modules["keras"].config.backend() == "jax":
                    return backend_named("jax")
                return backend_named(name)
    allowed = f"is not a model of a framework that sweeprof knows ({', '.join(HOMES)}); say which backend runs it."
    raise UserError([Problem("model", type(model).__name__, allowed)])


def model_in(path: str | PathLike[str]) -> object:
    """Return the model in a file.

    Raises:
        UserError: there is no such file, or its suffix is unknown.
    """
    place, kind = user_path(path), kind_of_model(path)
    if place.is_dir() and kind not in FILES:
        raise UserError([Problem("model", str(path), "is a folder without a saved_model.pb: no SavedModel.")])
    if kind not in FILES:
        raise UserError([Problem("model", str(path), f"is not a model, nor a file of one: {', '.join(FILES)}.")])
    if not place.exists():
        raise UserError([Problem("model", str(path), "is not a file.")])
    module, _, name = FILES[kind].rpartition(".")
    found: object = getattr(import_module(module), name)(str(place))
    return found


def is_function(model: object) -> bool:
    """Return True for what can be called and is neither a class nor a model of a framework that sweeprof knows."""
    if isinstance(model, type) or not callable(model):
        return False
    try:
        backend_of(model)
    except UserError:
        return True
    return False


def as_model(function: object) -> object:
    """Return a PyTorch module that calls the function."""
    return import_module("sweeprof.backends.torch.model").module_of(function)


# ---------------------------------------------------------------------------------------------------------------
# Private interfaces of frameworks, which any release may change or drop
# ---------------------------------------------------------------------------------------------------------------


def interface(name: str) -> Any:
    """Return a private interface of a framework.

    Args:
        name: ``module:attribute``, such as ``torch._C:_current_autograd_node``, or a module.

    Returns:
        what has that name; where the installed release lacks it, an object that raises :class:`Unsupported` however it is used.
    """
    try:
        return resolve_name(name)
    except (ImportError, AttributeError):
        return _Missing(_reason(name.partition(".")[0].partition(":")[0], name.replace(":", ".")))


def attribute(owner: object, name: str) -> Any:
    """Return a private attribute of a framework's object or class.

    Raises:
        Unsupported: the installed release of the framework lacks it.
    """
    try:
        return getattr(owner, name)
    except AttributeError:
        kind = owner if isinstance(owner, type) else type(owner)
        raise Unsupported(_reason(kind.__module__.partition(".")[0], f"{kind.__name__}.{name}")) from None


def _reason(package: str, name: str) -> str:
    version = getattr(import_module(package), "__version__", "")
    return f"{package} {version} has no {name}, a private interface that this needs"


class _Missing:
    """Stands for an interface that is not there, also as the second argument of ``isinstance``."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise Unsupported(self._reason)

    __call__ = __getattr__ = __instancecheck__ = _refuse


# ---------------------------------------------------------------------------------------------------------------
# The call that a model is exported or converted for: its tensors as specifications, which JSON can hold, and as arrays
# ---------------------------------------------------------------------------------------------------------------


VARYING = 2
"""The batch size that a graph for any batch size is traced with: a tracer takes one for a constant."""
Shape = tuple[int, ...]


def is_tensor(value: object) -> bool:
    """Return True for a specification, an array, and a tensor of any framework."""
    return hasattr(value, "shape") and hasattr(value, "dtype")


def signature_of(inputs: Inputs, axis: int | None = None, *, is_nested: bool = False) -> Inputs:
    """Return the call with a specification for each tensor.

    Args:
        inputs: the call.
        axis: of the channels, which the model wants last; None: nothing is moved.
        is_nested: True: an argument may be a container.

    Raises:
        Unsupported: an argument is of a kind that a graph cannot have, or a step is more than a call.
    """
    if inputs.forward is not None:
        raise Unsupported("a graph is the model's own forward: a step that is more than calling it cannot be exported")

    order = channels_last(inputs, axis)

    def specified(value: Any) -> Any:
        if is_tensor(value):
            return TensorSpec(shape_in(value.shape, order), str(value.dtype).rpartition(".")[2])
        if value is None or isinstance(value, bool | int | float | str):
            return value
        raise Unsupported(f"an argument of a graph is a tensor or a constant, not a {type(value).__name__}")

    if is_nested:
        return inputs.map(specified)
    return Inputs(tuple(map(specified, inputs.args)), {key: specified(value) for key, value in inputs.kwargs.items()})


def channels_last(inputs: Inputs, axis: int | None) -> Callable[[int], list[int]]:
    """Return the order in which a model that wants the channels of images last takes the axes of an array, by the number of axes.

    Images are the arrays with the most axes of the call; others, such as a sequence beside an image, stay as they are.

    Args:
        inputs: the call, with its axes as the dataset has them.
        axis: of the channels; None: nothing is moved.
    """
    most = max(map(len, inputs.shapes()), default=0)

    def order(axes: int) -> list[int]:
        found = list(range(axes))
        if axis is not None and axes == most > axis:
            found.append(found.pop(axis))
        return found

    return order


def shape_in(shape: Sequence[int], order: Callable[[int], list[int]]) -> Shape:
    """Return a shape with its axes in the order of :func:`channels_last`."""
    return tuple(int(shape[axis]) for axis in order(len(shape)))


def specs_in(tree: object) -> list[TensorSpec]:
    """Return the tensors of a signature, or of a part of it, in their order."""
    found: list[Any] = []
    mapped(tree, found.append)
    return [leaf for leaf in found if is_tensor(leaf)]


def batch_of(signature: Inputs) -> int | None:
    """Return the size of the first tensor's first axis; None for a scalar."""
    specs = specs_in((signature.args, dict(signature.kwargs)))
    if not specs or not specs[0].shape:
        return None
    return specs[0].shape[0]


def with_specs(signature: Inputs, change: Callable[[TensorSpec], object]) -> Inputs:
    """Return a signature with every tensor changed."""
    return signature.map(lambda leaf: change(leaf) if is_tensor(leaf) else leaf)


def filled(signature: Inputs, tensors: Iterable[object]) -> Inputs:
    """Return the call with these tensors, in the order of the signature's, and its constants."""
    waiting = iter(tensors)
    return with_specs(signature, lambda _: next(waiting))


def varying(signature: Inputs) -> Inputs:
    """Return a signature for any batch size: an example of it in every tensor whose first axis is as long as the first one's."""
    size = batch_of(signature)

    def example(spec: TensorSpec) -> TensorSpec:
        if not spec.shape or spec.shape[0] != size:
            return spec
        return replace(spec, shape=(VARYING, *spec.shape[1:]))

    return with_specs(signature, example)


def in_floats(signature: Inputs, dtype: str | None) -> Inputs:
    """Return a signature with every floating-point tensor in another data type, if one is given."""

    def changed(spec: TensorSpec) -> TensorSpec:
        if dtype is None or "float" not in spec.dtype:
            return spec
        return replace(spec, dtype=dtype)

    return with_specs(signature, changed)


def to_json(signature: Inputs) -> dict[str, Any]:
    """Return a signature as JSON; a tensor is a ``{"shape": […], "dtype": "float32"}``."""
    given = with_specs(signature, lambda spec: {"shape": list(spec.shape), "dtype": spec.dtype})
    return {"args": list(given.args), "kwargs": dict(given.kwargs)}


def from_json(data: Mapping[str, Any]) -> Inputs:
    """Return what :func:`to_json` was given."""
    return Inputs(tuple(_specified(data["args"])), _specified(data["kwargs"]))


def _specified(tree: Any) -> Any:
    if isinstance(tree, list):
        return [_specified(branch) for branch in tree]
    if not isinstance(tree, dict):
        return tree
    if set(tree) == {"shape", "dtype"}:
        return TensorSpec(tuple(tree["shape"]), tree["dtype"])
    return {key: _specified(branch) for key, branch in tree.items()}


def arrays(inputs: Inputs, axis: int | None = None) -> tuple[list[AnyArray], dict[str, AnyArray]]:
    """Return the tensors of a call as arrays: positional ones in their order, and those with a name; constants are in the graph.

    Args:
        inputs: the call; what is specified is generated.
        axis: of the channels, which the model wants last; None: nothing is moved.
    """
    order = channels_last(inputs, axis)
    return _tensors(inputs, lambda value: array_in(array_of(value), order))


def shapes_of(inputs: Inputs, axis: int | None = None) -> tuple[list[Shape], dict[str, Shape]]:
    """Return the shapes of what :func:`arrays` returns."""
    order = channels_last(inputs, axis)
    return _tensors(inputs, lambda value: shape_in(value.shape, order))


def values_of(inputs: Inputs, axis: int | None) -> tuple[list[AnyArray | None], dict[str, AnyArray | None]]:
    """Return the integers and truth values among what :func:`arrays` returns; None for other tensors and specifications."""
    order = channels_last(inputs, axis)

    def known(value: Any) -> AnyArray | None:
        if isinstance(value, TensorSpec) or "float" in str(value.dtype) or getattr(value, "is_meta", False):
            return None
        return array_in(array_of(value), order)

    return _tensors(inputs, known)


def _tensors(inputs: Inputs, made: Callable[[Any], T]) -> tuple[list[T], dict[str, T]]:
    positional = list(map(made, specs_in(inputs.args)))
    named = {}
    for key, value in inputs.kwargs.items():
        for index, leaf in enumerate(specs_in(value)):
            named[f"{key}.{index}" if index else key] = made(leaf)
    return positional, named


def array_of(value: Any) -> AnyArray:
    """Return a tensor of any framework as an array; one that is specified is generated."""
    if isinstance(value, TensorSpec):
        if "float" in value.dtype:
            return np.random.default_rng(0).standard_normal(value.shape).astype(value.dtype)
        return np.zeros(value.shape, value.dtype)
    return nested.array_of(value)


def array_in(array: AnyArray, order: Callable[[int], list[int]]) -> AnyArray:
    """Return an array with its axes in the order of :func:`channels_last`."""
    return array.transpose(order(array.ndim))


def by_name(names: Sequence[str], positional: Sequence[T], named: Mapping[str, T]) -> dict[str, T]:
    """Return the value for each of a graph's inputs, in their order: positional values fill the inputs that are not named.

    Raises:
        Unsupported: there are not as many as the graph has.
    """
    if len(positional) + len(named) != len(names) or not set(named) <= set(names):
        raise Unsupported(f"the graph takes {', '.join(names)}, and {len(positional) + len(named)} tensors are given")
    waiting = iter(positional)
    found = {}
    for name in names:
        found[name] = named[name] if name in named else next(waiting)
    return found
