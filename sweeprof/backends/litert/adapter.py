"""LiteRT, formerly TensorFlow Lite: models as files, from a Keras model or as they are given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from sweeprof.backends import Gap
from sweeprof.backends.call_signature import shapes_of
from sweeprof.backends.file_backend import FileBackend, gaps_of
from sweeprof.backends.litert.convert import LitertConverter, Quantization
from sweeprof.backends.litert.model import InterpreterSettings, LitertModel, TfliteFile
from sweeprof.counting.formulas import Formulas
from sweeprof.measuring.inputs import Inputs
from sweeprof.results.layers import LayerTable

UNSEEN = Gap(
    "not possible upstream", "the interpreter's profiler cannot be switched on from Python, nor one operator run alone"
)


@dataclass(slots=True)
class LitertBackend(FileBackend):
    """TFLite files in LiteRT's interpreter, one for each shape of inputs; ``fp16`` stores weights in 16 bits.

    ``static`` of ``int8`` computes in 8 bits, inputs and outputs too; ``dynamic`` stores weights in 8 bits.
    """

    gaps: ClassVar[Mapping[str, Gap]] = {
        **gaps_of("LiteRT"),
        "layer_times": UNSEEN,
        "operators": UNSEEN,
        "allocations": Gap(
            "not possible upstream", "tensors are planned into one arena when they are allocated, before any step"
        ),
    }
    precision_methods: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "fp32": ("convert",),
        "fp16": ("convert",),
        "int8": ("static", "dynamic"),
    }
    precision_gaps: ClassVar[Mapping[str, str]] = {"bf16": "its converter has no bfloat16"}
    MODEL: ClassVar[type[LitertModel]] = LitertModel
    out_of_memory: ClassVar[tuple[str, ...]] = ("failed to allocate",)
    quantization: Quantization = "none"
    """The setting of the last release, instead of the precision: ``dynamic``, ``float16`` or ``int8`` (static)."""
    xnnpack: bool = True
    """True: the XNNPACK delegate runs every operator that it supports, as by default; false: LiteRT's own kernels."""

    def converter(self) -> LitertConverter:
        quantization = self.quantization
        if quantization == "none" and self.precision is not None:
            quantization = _QUANTIZATIONS[self.precision, self.method()]
        return LitertConverter(self.seed, self.cache, self.samples, quantization)

    def session_settings(self, device: str) -> InterpreterSettings:
        return InterpreterSettings(self.threads, self.xnnpack)

    def counted(
        self, file: TfliteFile, stored: TfliteFile, inputs: Inputs, axis: int | None, formulas: Formulas
    ) -> LayerTable:
        from sweeprof.backends.litert.counting import count_file

        shapes, named = shapes_of(inputs, axis)
        return count_file(file, [*shapes, *named.values()], formulas)


_QUANTIZATIONS: dict[tuple[str, str | None], Quantization] = {
    ("fp32", "convert"): "none",
    ("fp16", "convert"): "float16",
    ("int8", "dynamic"): "dynamic",
    ("int8", "static"): "int8",
}
"""Of the converter, by precision and method."""
