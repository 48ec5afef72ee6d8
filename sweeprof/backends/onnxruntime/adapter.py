"""ONNX Runtime: models as graphs, from a torch module, a Keras model or an ``.onnx`` file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import onnxruntime

from sweeprof.backends import Build, Gap
from sweeprof.backends.onnxruntime.exporting import Exporter
from sweeprof.backends.onnxruntime.model import OnnxModel, Optimization, SessionSettings, kernel, peaks
from sweeprof.backends.precision import Precision, PrecisionMethod, checked_method
from sweeprof.counting.formulas import Formulas
from sweeprof.errors import Unsupported
from sweeprof.measuring.calibration import Kernel, KernelName
from sweeprof.measuring.inputs import Inputs
from sweeprof.measuring.process_memory import ProcessMemory
from sweeprof.measuring.training_config import Work
from sweeprof.results.artifact import Artifact
from sweeprof.results.layer_times import LayerTimes
from sweeprof.results.layers import LayerTable
from sweeprof.results.operators import Operators
from sweeprof.results.peaks import Peaks, PeakSettings
from sweeprof.results.protocol import Protocol

SAMPLES = 128
"""Of the data, for the ranges of ``static``."""
GENERATION = Gap("not implemented", "a forward is exported, and not the loop over the tokens with its cache")
INFERENCE = Gap("makes no sense", "ONNX Runtime runs models, and trains none")


@dataclass(slots=True)
class OnnxruntimeBackend:
    """Graphs in ONNX Runtime; a model of another framework is exported once, and remembered."""

    gaps: ClassVar[Mapping[str, Gap]] = {
        "AnalyzesTraining": INFERENCE,
        "Trains": INFERENCE,
        "Generates": GENERATION,
        "AnalyzesGeneration": GENERATION,
        "TracesGraph": Gap(
            "not implemented",
            "the nodes of the exported file are counted by module; open the file in a viewer to see its graph",
        ),
        "CountsItself": Gap("not possible upstream", "ONNX Runtime counts no operations"),
        "Borrows": Gap("makes no sense", "a model in a caller's hands is exported, and the file is what runs"),
        "Watches": Gap("makes no sense", "a loop of the user's own calls the model and not its exported graph"),
        "TracksAllocations": Gap("not implemented", "the profiler's bytes per node are not made a timeline of yet"),
        "ProfilesLines": Gap("makes no sense", "a graph has no source lines"),
    }
    precision_methods: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "fp32": ("convert",),
        "fp16": ("convert",),
        "int8": ("dynamic", "static"),
    }
    precision_gaps: ClassVar[Mapping[str, str]] = {
        "bf16": "its provider for the CPU has no kernels for products of bfloat16, and for other providers none is exported",
    }
    threads: int = 1
    """Threads within an operator."""
    optimization: Optimization = "all"
    """Optimisations that the run-time may apply to the graph: none, folding and fusing (``basic``), also kernels of its own
    (``extended``), also other memory layouts (``layout``), or all."""
    provider: str | None = None
    """The execution provider, e.g. ``OpenVINOExecutionProvider``; None: that of the device."""
    opset: int = 23
    """Version of the operators that models are exported to; the first with attention as one operator."""
    arena: bool = True
    """True: allocate host memory in growing blocks and keep it, as ONNX Runtime does by default."""
    cache: str | None = None
    """Folder of exported models; None: ``sweeprof/onnx`` in the user's cache."""
    precision: Precision | None = None
    """Of the exported model, its weights and inputs; ``int8`` is a quantized file; None: as the model is."""
    precision_method: PrecisionMethod | None = None
    """For ``int8``: ``dynamic`` quantizes products, ``static`` convolutions, too, with ranges from the first samples of the
    training data; None: dynamic."""
    seed: int = field(default=0, init=False)
    expected: Inputs | None = field(default=None, init=False)

    samples: Callable[[int], Inputs | None] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._method()

    def configure(self, seed: int) -> None:
        self.seed = seed  # of the process that builds and exports; threads are an option of each session

    def expect(self, inputs: Inputs) -> None:
        self.expected = inputs

    def ranges_from(self, samples: Callable[[int], Inputs | None]) -> None:
        self.samples = samples

    def settings_in_effect(self, model: OnnxModel | None = None) -> Mapping[str, Any]:
        # They belong to each session; a model's builder, which makes the graph, has no influence on them.
        if model is None or model.native is None:
            return {}
        options = model.native.get_session_options()
        method = self._method()
        return {
            "threads": options.intra_op_num_threads,
            "inter-op threads": options.inter_op_num_threads,
            **({} if method is None else {"precision method": method}),
        }

    def devices(self) -> list[str]:
        gpus = [device for device in onnxruntime.get_ep_devices() if device.ep_name == "CUDAExecutionProvider"]
        return ["cpu", *(["cuda", *(f"cuda:{i}" for i in range(len(gpus)))] if gpus else [])]

    def load(self, build: Build, device: str, channel_axis: int | None) -> OnnxModel:
        exporter, settings = self._exporter(), self._settings()
        settings.provider_on(device)  # before anything is exported for it
        model = OnnxModel(lambda inputs: exporter.exported(build, inputs, channel_axis), settings, device, channel_axis)
        if self.expected is not None:
            model.meet(self.expected)
        return model

    def analyze(self, build: Build, inputs: Inputs, channel_axis: int | None, formulas: Formulas) -> LayerTable:
        from sweeprof.backends.call_signature import shapes_of
        from sweeprof.backends.onnxruntime.counting import count_file

        exporter = self._exporter()
        with ExitStack() as stack:
            file = stack.enter_context(exporter.exported(build, inputs, channel_axis))
            if self.precision == "int8":  # the same computation, with fewer bytes
                plain = replace(exporter, precision="fp32").exported(build, inputs, channel_axis)
                file = replace(stack.enter_context(plain), sizes=file.sizes)
            shapes, named = shapes_of(inputs, channel_axis if file.channels == "last" else None)
            return count_file(file, shapes, named, formulas)

    def artifact(self, build: Build, channel_axis: int | None) -> Artifact:
        if self.expected is None:
            raise Unsupported("the model is exported for its inputs, and they are not known")
        with self._exporter().exported(build, self.expected, channel_axis) as file:
            return Artifact(file.size(), "onnx")

    def memory_meter(self) -> ProcessMemory:
        return ProcessMemory()

    # What these need is imported when they run: measured processes do not carry it.

    def kernel(self, model: OnnxModel, wanted: KernelName | None) -> Kernel:
        return kernel(model, wanted)

    def layer_times(self, model: OnnxModel, work: Work, protocol: Protocol) -> LayerTimes:
        from sweeprof.backends.onnxruntime.profiler import layer_times

        self._check_inference(work)
        return layer_times(model, work.batch, protocol)

    def operators(self, model: OnnxModel, work: Work) -> Operators:
        from sweeprof.backends.onnxruntime.profiler import operators

        self._check_inference(work)
        return operators(model, work.batch)

    def peak_settings(self, device: str, model: object = None) -> PeakSettings:
        return PeakSettings("float32", device, self.threads, (f"provider {self.provider}",))

    def peaks(self, settings: PeakSettings) -> Peaks:
        return peaks(settings, self._settings())

    def is_out_of_memory(self, error: BaseException) -> bool:
        message = str(error)
        return isinstance(error, MemoryError) or "bad_alloc" in message or "Failed to allocate memory" in message

    def _settings(self) -> SessionSettings:
        return SessionSettings(self.threads, self.optimization, self.provider, self.arena)

    def _method(self) -> str | None:
        return checked_method(type(self), self.precision, self.precision_method)

    def _exporter(self) -> Exporter:
        method = self._method()
        samples = self.samples(SAMPLES) if self.samples is not None and method == "static" else None
        return Exporter(self.opset, self.seed, self.cache, self.precision, method, samples)

    @staticmethod
    def _check_inference(work: Work) -> None:
        if work.training is not None:
            raise Unsupported(str(INFERENCE))
