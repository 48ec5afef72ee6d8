"""A TFLite file in its interpreter, ready to step. What a process has loaded by then is the interpreter and numpy."""

from __future__ import annotations

import mmap
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from ai_edge_litert.interpreter import Interpreter, OpResolverType

from sweeprof.backends import AnyArray
from sweeprof.backends.model_files import Channels, Feed, FileModel, MadeFile, existing, fitting, is_fitting
from sweeprof.counting.file_graph import FileGraph
from sweeprof.counting.mapping import CallTensor, OperatorCall, itemsize, numbers_of
from sweeprof.counting.operators import REAL
from sweeprof.errors import Unsupported
from sweeprof.measuring.inputs import Inputs


@dataclass(frozen=True, slots=True)
class InterpreterSettings:
    """Settings of an interpreter."""

    threads: int = 1
    xnnpack: bool = True

    def open(self, **model: Any) -> Any:
        """An interpreter of ``model_path`` or ``model_content``, whose tensors are not allocated yet."""
        kind = OpResolverType.BUILTIN if self.xnnpack else OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
        return Interpreter(num_threads=self.threads, experimental_op_resolver_type=kind, **model)


class LitertModel(FileModel):
    """A file in an interpreter."""

    settings: InterpreterSettings

    def open(self, inputs: Inputs) -> None:
        self.native = self.settings.open(model_path=self.file.path)
        sized(self.native, [array.shape for array in self._given(inputs)])

    def fits(self, inputs: Inputs) -> bool:
        positional, named = self.shapes(inputs)
        wanted = [tuple(map(int, detail["shape"])) for detail in inputs_of(self.native)]
        return all(map(is_fitting, [*positional, *named.values()], wanted))

    def _given(self, inputs: Inputs) -> list[AnyArray]:
        positional, named = self.arrays(inputs)
        return [*positional, *named.values()]

    def feed(self, inputs: Inputs) -> Feed:
        given, wanted = self._given(inputs), inputs_of(self.native)
        rows = len(given[0]) if given[0].ndim else None
        return Feed(tuple(map(_fitting, given, wanted)), rows)

    def step_of(self, batch: Feed) -> Callable[[], object]:
        """The inputs are set once, as a model on an accelerator has them there; outputs are copied out in every step."""
        interpreter = self.native
        for detail, array in zip(inputs_of(interpreter), batch.values, strict=True):
            interpreter.set_tensor(detail["index"], array)
        wanted = [detail["index"] for detail in interpreter.get_output_details()]

        def step() -> Any:
            interpreter.invoke()
            return batch.rows, [interpreter.get_tensor(index) for index in wanted]

        return step

    def named_outputs(self, values: Any) -> dict[str, AnyArray]:
        details = self.native.get_output_details()
        found = {}
        for name, array, detail in zip(self.file.outputs or map(str, range(len(values))), values, details, strict=True):
            scale, zero = detail["quantization"]
            found[name] = (array.astype(np.float32) - zero) * np.float32(scale) if scale else array
        return found


def inputs_of(interpreter: Any) -> list[AnyArray]:
    """Details of the inputs, in the order of the arguments: what was converted here has names that count them."""
    details = interpreter.get_input_details()
    names = [detail["name"].removeprefix("serving_default_").partition(":")[0] for detail in details]
    if all(name.startswith("input_") and name[6:].isdigit() for name in names):
        return [detail for _, detail in sorted(zip(names, details, strict=True), key=lambda pair: int(pair[0][6:]))]
    return list(details)


def sized(interpreter: Any, shapes: Sequence[tuple[int, ...]]) -> None:
    """Allocate the tensors, for such inputs where the file leaves their sizes open.

    Raises:
        Unsupported: the file takes another number of inputs, or others.
    """
    details = inputs_of(interpreter)
    if len(details) != len(shapes):
        raise Unsupported(f"the file takes {len(details)} inputs, not {len(shapes)}")
    for detail, shape in zip(details, shapes, strict=True):
        if tuple(detail["shape"]) != tuple(shape) and -1 in detail["shape_signature"]:
            interpreter.resize_tensor_input(detail["index"], shape)
    interpreter.allocate_tensors()


def _fitting(array: AnyArray, detail: Any) -> Any:
    """In the type of the file, quantized where it is, and filled up to its batch with the rows there are."""
    scale, zero = detail["quantization"]
    if scale and not np.issubdtype(array.dtype, np.integer):
        limits = np.iinfo(detail["dtype"])
        array = np.clip(np.round(array / scale) + zero, limits.min, limits.max)
    fitted = fitting(array, tuple(map(int, detail["shape"])), "the file takes")
    return np.ascontiguousarray(fitted, dtype=detail["dtype"])


# TFLite files: those that a user gives and those that a conversion leaves, with what they contain.


@dataclass(frozen=True, slots=True)
class TfliteFile(MadeFile):
    """A model as a file: ``model.litert._target_=sweeprof.backends.litert.model.TfliteFile model.litert.path=net.tflite``."""

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
