"""TFLite files: those that a user gives and those that a conversion leaves, with what they contain.

Source of the format, a FlatBuffer: tensorflow/lite/schema/schema.fbs, whose Python reader comes with the interpreter.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from sweeprof.backends.model_files import Channels, MadeFile, existing
from sweeprof.counting.file_graph import FileGraph
from sweeprof.counting.mapping import CallTensor, OperatorCall, itemsize, numbers_of
from sweeprof.counting.operators import REAL


@dataclass(frozen=True, slots=True)
class TfliteFile(MadeFile):
    """A model as a file: ``model.litert._target_=sweeprof.backends.litert.files.TfliteFile model.litert.path=net.tflite``."""

    NAME: ClassVar[str] = "model.tflite"
    FORMAT: ClassVar[str] = "tflite"
    channels: Channels = "last"

    def found(self) -> TfliteFile:
        """The same with its full path.

        Raises:
            FileNotFoundError: there is no such file.
        """
        return replace(self, path=existing(self.path, "TFLite file"))


NAMESPACE = "litert"
"""Of the names of its operators, for a user's formulas."""
FUSED = {0: "", 1: "RELU", 2: "RELU_N1_TO_1", 3: "RELU6", 4: "TANH", 5: "SIGN_BIT"}
"""``fusedActivationFunction`` of an operator's options."""


@dataclass(slots=True, eq=False)
class TfliteTensor(CallTensor):
    """A tensor of the file. Quantized ones represent real numbers."""

    source: TfliteTensor | None = None
    """The constant that it is a copy of: weights of 16 bits are widened before they are used."""


@dataclass(slots=True, eq=False)
class TfliteOperator(OperatorCall[TfliteTensor]):
    """An operator of the file."""

    bodies: tuple[TfliteGraph, ...] = ()
    """The other graphs of the file that it may run: of a loop its condition and its body, of a condition its branches."""

    @property
    def activation(self) -> str:
        """The activation that is fused into it; empty: none."""
        return FUSED.get(self.attributes.get("fusedActivationFunction", 0), "an activation")


TfliteGraph = FileGraph[TfliteOperator, TfliteTensor]


def read(path: str, shapes: Mapping[int, tuple[int, ...]] | None = None) -> TfliteGraph:
    """The main graph of a file.

    Args:
        path: of the file.
        shapes: those that hold instead of the file's, by the position of a tensor.
    """
    from ai_edge_litert import schema_py_generated as schema

    with Path(path).open("rb") as stream:
        content = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)  # so that no weight is read
    model = schema.Model.GetRootAs(content)
    buffers = [model.Buffers(index) for index in range(model.BuffersLength())]
    stored = [bool(buffer.DataLength() or buffer.Size()) for buffer in buffers]
    codes = [_name(model.OperatorCodes(index)) for index in range(model.OperatorCodesLength())]

    def graph(position: int, known: Mapping[int, tuple[int, ...]]) -> TfliteGraph:
        part = model.Subgraphs(position)
        tensors = [_tensor(part.Tensors(index), stored) for index in range(part.TensorsLength())]
        for index, shape in known.items():
            if index < len(tensors):
                tensors[index].shape = shape
        operators = [_operator(part.Operators(index), codes, tensors) for index in range(part.OperatorsLength())]
        for operator in operators:
            inner = [body for name, body in operator.attributes.items() if name.endswith("SubgraphIndex")]
            operator.bodies = tuple(graph(body, {}) for body in inner)
        inputs, outputs = _positions(part.InputsAsNumpy()), _positions(part.OutputsAsNumpy())
        return FileGraph(tuple(operators), tuple(tensors[i] for i in inputs), tuple(tensors[i] for i in outputs))

    return graph(0, shapes or {})


@cache
def _names(kind: str) -> dict[int, str]:
    """The names of an enumeration of the schema by their values."""
    from ai_edge_litert import schema_py_generated as schema

    return {value: name for name, value in vars(getattr(schema, kind)).items() if isinstance(value, int)}


def _name(code: Any) -> str:
    # Either field may have it, by the age of the file.
    name = _names("BuiltinOperator")[max(code.BuiltinCode(), code.DeprecatedBuiltinCode())]
    return f"custom {code.CustomCode().decode()}" if name == "CUSTOM" else name


def _positions(vector: Any) -> list[int]:
    # FlatBuffers returns 0 for a vector that is left out.
    return [] if isinstance(vector, int) else list(map(int, vector))


def _tensor(tensor: Any, stored: list[bool]) -> TfliteTensor:
    dtype = _names("TensorType")[tensor.Type()].lower()
    quantization = tensor.Quantization()
    is_quantized = quantization is not None and quantization.ScaleLength() > 0
    return TfliteTensor(
        tensor.Name().decode(),
        tuple(_positions(tensor.ShapeAsNumpy())),
        dtype,
        itemsize(dtype),
        REAL if is_quantized else numbers_of(dtype),
        stored[tensor.Buffer()],
    )


def _operator(operator: Any, codes: list[str], tensors: list[TfliteTensor]) -> TfliteOperator:
    op = codes[operator.OpcodeIndex()]
    inputs = tuple(tensors[i] if i >= 0 else None for i in _positions(operator.InputsAsNumpy()))
    outputs = tuple(tensors[i] for i in _positions(operator.OutputsAsNumpy()))
    if op == "DEQUANTIZE" and inputs[0] is not None and inputs[0].is_constant:
        outputs[0].source, outputs[0].is_constant = inputs[0], True
    return TfliteOperator(op, _path(op, inputs, outputs), inputs, outputs, _options(operator), namespace=NAMESPACE)


def _options(operator: Any) -> Mapping[str, Any]:
    from ai_edge_litert import schema_py_generated as schema

    options = schema.BuiltinOptionsCreator(operator.BuiltinOptionsType(), operator.BuiltinOptions())
    return {} if options is None else vars(options)


_WEIGHED = re.compile("conv|depthwise|matmul|einsum", re.IGNORECASE)
_WORKING = re.compile("^(?!Relu|Tanh|Sigmoid)")


def _path(op: str, inputs: Sequence[CallTensor | None], outputs: Sequence[CallTensor]) -> str:
    """The layer, by the scopes in the name of what the operator returns; of several layers fused into one the one with weights,
    or one that is more than an activation.

    The last tensor of a file is renamed: then the names of its weights tell. A model that has been traced before has its scopes
    numbered, which is taken off.
    """
    parts = _scoped(outputs) or _scoped(inputs[1:])
    if not parts:
        return op.lower()
    ranked = [part for pattern in (_WEIGHED, _WORKING) for part in parts if pattern.search(part.rpartition("/")[2])]
    model, *scopes = [*ranked, parts[0]][0].split("/")[:-1]
    return ".".join(scope.removesuffix("_1") if model.endswith("_1") else scope for scope in scopes)


def _scoped(tensors: Sequence[CallTensor | None]) -> list[str]:
    """Names with a model and a layer in them; what was fused has several in one."""
    names = [part for tensor in tensors if tensor is not None for part in tensor.name.split(";")]
    return [name for name in names if name.count("/") >= 2]
