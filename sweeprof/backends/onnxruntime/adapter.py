"""ONNX Runtime: models as graphs, from a torch module, a Keras model or an ``.onnx`` file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import onnxruntime

from sweeprof.backends import Build, Gap
from sweeprof.backends.file_backend import FileBackend, gaps_of
from sweeprof.backends.onnxruntime.exporting import Exporter
from sweeprof.backends.onnxruntime.model import OnnxModel, Optimization, SessionSettings, kernel, peaks
from sweeprof.counting.formulas import Formulas
from sweeprof.measuring.calibration import Kernel, KernelName
from sweeprof.measuring.inputs import Inputs
from sweeprof.measuring.training_config import Work
from sweeprof.results.layer_times import LayerTimes
from sweeprof.results.layers import LayerTable
from sweeprof.results.operators import Operators
from sweeprof.results.peaks import Peaks, PeakSettings
from sweeprof.results.protocol import Protocol


@dataclass(slots=True)
class OnnxruntimeBackend(FileBackend):
    """Graphs in ONNX Runtime; ``precision`` is of the exported model, its weights and inputs, and of ``int8`` a quantized file."""

    gaps: ClassVar[Mapping[str, Gap]] = {
        **gaps_of("ONNX Runtime"),
        "TracksAllocations": Gap("not implemented", "the profiler's bytes per node are not made a timeline of yet"),
    }
    precision_methods: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "fp32": ("convert",),
        "fp16": ("convert",),
        "int8": ("dynamic", "static"),
    }
    precision_gaps: ClassVar[Mapping[str, str]] = {
        "bf16": "its provider for the CPU has no kernels for products of bfloat16, and for other providers none is exported",
    }
    out_of_memory: ClassVar[tuple[str, ...]] = ("bad_alloc", "failed to allocate memory")
    optimization: Optimization = "all"
    """Optimisations that the run-time may apply to the graph: none, folding and fusing (``basic``), also kernels of its own
    (``extended``), also other memory layouts (``layout``), or all."""
    provider: str | None = None
    """The execution provider, e.g. ``OpenVINOExecutionProvider``; None: that of the device."""
    opset: int = 23
    """Version of the operators that models are exported to; the first with attention as one operator."""
    arena: bool = True
    """True: allocate host memory in growing blocks and keep it, as ONNX Runtime does by default."""

    def devices(self) -> list[str]:
        gpus = [device for device in onnxruntime.get_ep_devices() if device.ep_name == "CUDAExecutionProvider"]
        return ["cpu", *(["cuda", *(f"cuda:{i}" for i in range(len(gpus)))] if gpus else [])]

    def converter(self) -> Exporter:
        method = self.method()
        samples = self.taken_samples(method == "static")
        return Exporter(self.seed, self.cache, samples, self.opset, self.precision, method)

    def settings(self) -> SessionSettings:
        """Return the settings of a session."""
        return SessionSettings(self.threads, self.optimization, self.provider, self.arena)

    def model_of(
        self, conversion: Callable[[Inputs], AbstractContextManager[Any]], device: str, channel_axis: int | None
    ) -> OnnxModel:
        settings = self.settings()
        settings.provider_on(device)  # before anything is exported for it
        return OnnxModel(conversion, settings, channel_axis, device)

    def settings_of(self, native: onnxruntime.InferenceSession) -> dict[str, Any]:
        options = native.get_session_options()
        return {"threads": options.intra_op_num_threads, "inter-op threads": options.inter_op_num_threads}

    def analyze(self, build: Build, inputs: Inputs, channel_axis: int | None, formulas: Formulas) -> LayerTable:
        from sweeprof.backends.call_signature import shapes_of
        from sweeprof.backends.onnxruntime.counting import count_file

        exporter = self.converter()
        with ExitStack() as stack:
            file = stack.enter_context(exporter.converted(build, inputs, channel_axis))
            if self.precision == "int8":  # the same computation, with fewer bytes
                plain = replace(exporter, precision="fp32").converted(build, inputs, channel_axis)
                file = replace(stack.enter_context(plain), sizes=file.sizes)
            shapes, named = shapes_of(inputs, channel_axis if file.channels == "last" else None)
            return count_file(file, shapes, named, formulas)

    # What these need is imported when they run: measured processes do not carry it.

    def kernel(self, model: OnnxModel, wanted: KernelName | None) -> Kernel:
        return kernel(model, wanted)

    def layer_times(self, model: OnnxModel, work: Work, protocol: Protocol) -> LayerTimes:
        from sweeprof.backends.onnxruntime.profiler import layer_times

        self.check_inference(work)
        return layer_times(model, work.batch, protocol)

    def operators(self, model: OnnxModel, work: Work) -> Operators:
        from sweeprof.backends.onnxruntime.profiler import operators

        self.check_inference(work)
        return operators(model, work.batch)

    def peak_settings(self, device: str, model: object = None) -> PeakSettings:
        return PeakSettings("float32", device, self.threads, (f"provider {self.provider}",))

    def peaks(self, settings: PeakSettings) -> Peaks:
        return peaks(settings, self.settings())
