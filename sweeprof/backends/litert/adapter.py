"""LiteRT, formerly TensorFlow Lite: models as files, from a Keras model or as they are given."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

from sweeprof.backends import Build, Gap
from sweeprof.backends.litert.convert import Converter, Quantization
from sweeprof.backends.litert.files import arrays
from sweeprof.backends.litert.model import InterpreterSettings, LitertModel, kernel
from sweeprof.backends.precision import Precision, PrecisionMethod, checked_method
from sweeprof.counting.formulas import Formulas
from sweeprof.errors import Unsupported
from sweeprof.measuring.calibration import Kernel, KernelName
from sweeprof.measuring.inputs import Inputs
from sweeprof.measuring.process_memory import ProcessMemory
from sweeprof.results.artifact import Artifact
from sweeprof.results.layers import LayerTable

GENERATION = Gap("not implemented", "a forward is converted, and not the loop over the tokens with its cache")
INFERENCE = Gap("makes no sense", "LiteRT runs a file that a converter has made for inference, and trains none")
UNSEEN = Gap(
    "not possible upstream", "the interpreter's profiler cannot be switched on from Python, nor one operator run alone"
)
SAMPLES = 128
"""Of the data, for the ranges of int8."""


@dataclass(slots=True)
class LitertBackend:
    """TFLite files in LiteRT's interpreter; a Keras model is converted once for its shape of inputs, and remembered."""

    gaps: ClassVar[Mapping[str, Gap]] = {
        "AnalyzesTraining": INFERENCE,
        "Trains": INFERENCE,
        "Generates": GENERATION,
        "AnalyzesGeneration": GENERATION,
        "TracesGraph": Gap(
            "not implemented",
            "the operators of the file are counted by module; open the file in a viewer to see its graph",
        ),
        "CountsItself": Gap("not possible upstream", "the interpreter counts no operations"),
        "Watches": Gap("makes no sense", "a loop of the user's own calls the model and not its converted file"),
        "TimesLayers": UNSEEN,
        "TracesOperators": UNSEEN,
        "TracksAllocations": Gap(
            "not possible upstream", "tensors are planned into one arena when they are allocated, before any step"
        ),
        "MeasuresPeaks": Gap(
            "not implemented", "there is no benchmark of the machine in LiteRT; torch's has the same hardware"
        ),
        "ProfilesLines": Gap("makes no sense", "a file has no source lines"),
    }
    precision_methods: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "fp32": ("convert",),
        "fp16": ("convert",),
        "int8": ("static", "dynamic"),
    }
    precision_gaps: ClassVar[Mapping[str, str]] = {
        "bf16": "its converter has no bfloat16",
    }
    threads: int = 1
    """Threads within an operator."""
    precision: Precision | None = None
    """Of a converted model: ``fp16`` stores weights in 16 bits; None: 32 bits."""
    precision_method: PrecisionMethod | None = None
    """For ``int8``: ``static`` computes in 8 bits, inputs and outputs too, with ranges from the first samples of the training
    data; ``dynamic`` stores weights in 8 bits; None: static."""
    quantization: Quantization = "none"
    """The setting of the last release, instead of the two above: ``dynamic``, ``float16`` or ``int8`` (static)."""
    xnnpack: bool = True
    """True: the XNNPACK delegate runs every operator that it supports, as by default; false: LiteRT's own kernels."""
    cache: str | None = None
    """Folder of converted models; None: ``sweeprof/litert`` in the user's cache."""
    seed: int = field(default=0, init=False)
    expected: Inputs | None = field(default=None, init=False)
    samples: Callable[[int], Inputs | None] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._method()

    def configure(self, seed: int) -> None:
        self.seed = seed  # of the process that builds and converts; threads are an option of each interpreter

    def expect(self, inputs: Inputs) -> None:
        self.expected = inputs

    def ranges_from(self, samples: Callable[[int], Inputs | None]) -> None:
        self.samples = samples

    def settings_in_effect(self, model: LitertModel | None = None) -> Mapping[str, Any]:
        method = self._method()
        return {} if model is None or method is None else {"precision method": method}

    def devices(self) -> list[str]:
        return ["cpu"]

    def load(self, build: Build, device: str, channel_axis: int | None) -> LitertModel:
        converter = self._converter()
        model = LitertModel(
            lambda inputs: converter.converted(build, inputs, channel_axis),
            InterpreterSettings(self.threads, self.xnnpack),
            channel_axis,
        )
        if self.expected is not None:
            model.meet(self.expected)
        return model

    def analyze(self, build: Build, inputs: Inputs, channel_axis: int | None, formulas: Formulas) -> LayerTable:
        from sweeprof.backends.litert.counting import count_file

        with self._converter().converted(build, inputs, channel_axis) as file:
            axis = channel_axis if file.channels == "last" else None
            return count_file(file, [array.shape for array in arrays(inputs, axis)])

    def artifact(self, build: Build, channel_axis: int | None) -> Artifact:
        if self.expected is None:
            raise Unsupported("the model is converted for its inputs, and they are not known")
        with self._converter().converted(build, self.expected, channel_axis) as file:
            return file.artifact()

    def device_of(self, model: object) -> str:
        return "cpu"

    @contextmanager
    def borrowed(self, model: object, is_trained: bool = False) -> Iterator[None]:
        yield  # what runs is a file, and the model that it was converted from is only read

    def memory_meter(self) -> ProcessMemory:
        return ProcessMemory()

    def kernel(self, model: LitertModel, wanted: KernelName | None) -> Kernel:
        return kernel(model, wanted)

    def is_out_of_memory(self, error: BaseException) -> bool:
        return isinstance(error, MemoryError) or "Failed to allocate" in str(error)

    def _method(self) -> str | None:
        return checked_method(type(self), self.precision, self.precision_method)

    def _converter(self) -> Converter:
        quantization = self.quantization
        if quantization == "none" and self.precision is not None:
            quantization = _QUANTIZATIONS[self.precision, self._method()]
        samples = self.samples(SAMPLES) if self.samples is not None and quantization == "int8" else None
        return Converter(quantization, samples, self.seed, self.cache)


_QUANTIZATIONS: dict[tuple[str, str | None], Quantization] = {
    ("fp32", "convert"): "none",
    ("fp16", "convert"): "float16",
    ("int8", "dynamic"): "dynamic",
    ("int8", "static"): "int8",
}
"""Of the converter, by precision and method."""
