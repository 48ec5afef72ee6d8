"""ONNX Runtime: models as graphs, from a torch module, a Keras model or an ``.onnx`` file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import onnxruntime

from sweeprof.backends import Gap, device_names, shapes_of, values_of
from sweeprof.backends.model_files import FileBackend, gaps_of
from sweeprof.backends.onnxruntime.exporting import Exporter
from sweeprof.backends.onnxruntime.files import Exported
from sweeprof.backends.onnxruntime.model import OnnxModel, Optimization, SessionSettings
from sweeprof.counting.formulas import Formulas
from sweeprof.measuring.inputs import Inputs
from sweeprof.measuring.training_config import Work
from sweeprof.results.layer_times import LayerTimes
from sweeprof.results.layers import LayerTable
from sweeprof.results.observations import Operators
from sweeprof.results.record import Protocol

STATIC_OPSET = 20
"""The latest for files with activations of 8 bits: of later ones ONNX Runtime's optimiser moves the quantization of a transposed
array with the wrong data type, as between the convolutions of a Keras model, and then refuses the graph."""


@dataclass(slots=True)
class OnnxruntimeBackend(FileBackend):
    """Graphs in ONNX Runtime; ``precision`` is of the exported model, its weights and inputs, and of ``int8`` a quantized file."""

    gaps: ClassVar[Mapping[str, Gap]] = {
        **gaps_of("ONNX Runtime"),
        "allocations": Gap("not implemented", "the profiler's bytes per node are not made a timeline of yet"),
    }
    precision_methods: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "fp32": ("convert",),
        "fp16": ("convert",),
        "int8": ("dynamic", "static"),
    }
    precision_gaps: ClassVar[Mapping[str, str]] = {
        "bf16": "its provider for the CPU has no kernels for products of bfloat16, and for other providers none is exported",
    }
    MODEL: ClassVar[type[OnnxModel]] = OnnxModel
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
        found = onnxruntime.get_ep_devices()
        return device_names(sum(device.ep_name == "CUDAExecutionProvider" for device in found))

    def converter(self) -> Exporter:
        method, opset = self.method(), self.opset
        if method == "static":
            opset = min(opset, STATIC_OPSET)
        return Exporter(self.seed, self.cache, self.samples, opset, self.precision, method, kept=self.kept)

    def session_settings(self, device: str) -> SessionSettings:
        settings = SessionSettings(self.threads, self.optimization, self.provider, self.arena)
        settings.provider_on(device)
        return settings

    def settings_of(self, native: onnxruntime.InferenceSession) -> dict[str, Any]:
        options = native.get_session_options()
        return {"threads": options.intra_op_num_threads, "inter-op threads": options.inter_op_num_threads}

    # What these need is imported when they run: measured processes do not carry it.

    def counted(
        self, file: Exported, stored: Exported, inputs: Inputs, axis: int | None, formulas: Formulas
    ) -> LayerTable:
        from sweeprof.backends.onnxruntime.counting import count_file

        sized = replace(file, sizes=stored.sizes)
        return count_file(sized, *shapes_of(inputs, axis), formulas, values_of(inputs, axis))

    def layer_times(self, model: OnnxModel, work: Work, protocol: Protocol) -> LayerTimes:
        from sweeprof.backends.onnxruntime.profiler import layer_times

        self.check_inference(work)
        return layer_times(model, work.batch, protocol)

    def operators(self, model: OnnxModel, work: Work) -> Operators:
        from sweeprof.backends.onnxruntime.profiler import operators

        self.check_inference(work)
        return operators(model, work.batch)
