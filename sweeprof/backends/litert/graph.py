"""The content of a TFLite file: its operators and tensors, by the schema of the format (a FlatBuffer).

Source: tensorflow/lite/schema/schema.fbs, whose Python reader comes with the interpreter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

from ai_edge_litert import schema_py_generated as schema

from sweeprof.counting.operators import INTEGER, REAL, Numbers

BITS = {
    **dict.fromkeys(("FLOAT64", "INT64", "UINT64", "COMPLEX64"), 64),
    **dict.fromkeys(("FLOAT32", "INT32", "UINT32"), 32),
    **dict.fromkeys(("FLOAT16", "BFLOAT16", "INT16", "UINT16"), 16),
    **dict.fromkeys(("INT8", "UINT8", "BOOL"), 8),
    "COMPLEX128": 128,
    "INT4": 4,
    "INT2": 2,
}
"""Of an element, by type; what is not here (strings, handles) has no size of its own."""
FLOATING = {"FLOAT64", "FLOAT32", "FLOAT16", "BFLOAT16"}
FUSED = {0: "", 1: "RELU", 2: "RELU_N1_TO_1", 3: "RELU6", 4: "TANH", 5: "SIGN_BIT"}
"""``fusedActivationFunction`` of an operator's options."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of the file."""

    name: str
    shape: tuple[int, ...]
    type: str
    """E.g. ``FLOAT32``."""
    is_constant: bool
    """True if the file holds the tensor's values."""
    is_quantized: bool

    @property
    def sizes(self) -> tuple[int, ...]:
        """The shape."""
        return self.shape

    @property
    def elements(self) -> int:
        """The number of elements."""
        return prod(self.shape)

    @property
    def numbers(self) -> Numbers:
        """The kind of numbers that the elements represent."""
        return REAL if self.is_real else INTEGER

    @property
    def bytes(self) -> float:
        """The bytes of its elements, fractional if they are smaller than a byte; zero for strings and handles."""
        return self.elements * BITS.get(self.type, 0) / 8

    @property
    def is_real(self) -> bool:
        """True if the elements represent real numbers: of a floating-point type, or quantized."""
        return self.type in FLOATING or self.is_quantized


@dataclass(frozen=True, slots=True)
class TfliteOperator:
    """An operator of the file, with its tensors; an input that is left out is None."""

    name: str
    """E.g. ``CONV_2D``."""
    inputs: tuple[int | None, ...]
    outputs: tuple[int, ...]
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def activation(self) -> str:
        """The activation that is fused into it; empty: none."""
        return FUSED.get(self.options.get("fusedActivationFunction", 0), "an activation")


@dataclass(frozen=True, slots=True)
class TfliteGraph:
    """The main subgraph; others are the bodies of its loops and conditions."""

    tensors: tuple[Tensor, ...]
    operators: tuple[TfliteOperator, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


def read(path: str) -> TfliteGraph:
    """The graph of a file."""
    model = schema.ModelT.InitFromPackedBuf(Path(path).read_bytes(), 0)
    main = model.subgraphs[0]
    names = {value: name for name, value in vars(schema.BuiltinOperator).items() if isinstance(value, int)}
    codes = [_named(code, names) for code in model.operatorCodes]
    return TfliteGraph(
        tuple(_tensor(tensor, model.buffers) for tensor in main.tensors),
        tuple(_operator(operator, codes) for operator in main.operators),
        tuple(map(int, main.inputs)),
        tuple(map(int, main.outputs)),
    )


def _named(code: Any, names: Mapping[int, str]) -> str:
    name = names[max(code.builtinCode, code.deprecatedBuiltinCode)]  # either field may have it, by the age of the file
    return f"custom {code.customCode.decode()}" if name == "CUSTOM" else name


def _operator(operator: Any, codes: list[str]) -> TfliteOperator:
    inputs = [] if operator.inputs is None else operator.inputs
    options = vars(operator.builtinOptions) if operator.builtinOptions is not None else {}
    return TfliteOperator(
        codes[operator.opcodeIndex],
        tuple(int(index) if index >= 0 else None for index in inputs),
        tuple(map(int, operator.outputs)),
        dict(options),
    )


_TYPES = {value: name for name, value in vars(schema.TensorType).items() if isinstance(value, int)}


def _tensor(tensor: Any, buffers: list[Any]) -> Tensor:
    scale = None if tensor.quantization is None else tensor.quantization.scale
    buffer = buffers[tensor.buffer]
    has_data = (buffer.data is not None and len(buffer.data) > 0) or bool(buffer.size)
    return Tensor(
        tensor.name.decode(),
        () if tensor.shape is None else tuple(map(int, tensor.shape)),
        _TYPES[tensor.type],
        has_data,
        scale is not None and len(scale) > 0,
    )
