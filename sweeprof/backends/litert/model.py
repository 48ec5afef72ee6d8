"""TFLite files: what they contain, and a file in its interpreter, ready to step.

What a process has loaded by then is the interpreter and numpy.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
from ai_edge_litert.interpreter import Interpreter, OpResolverType

from sweeprof.backends import AnyArray, by_name
from sweeprof.backends.model_files import Channels, Feed, FileModel, MadeFile, existing, fitting, is_fitting
from sweeprof.counting.file_graph import CallTensor, FileGraph, OperatorCall, itemsize, numbers_of
from sweeprof.counting.operators import REAL
from sweeprof.errors import Unsupported
from sweeprof.measuring.inputs import Inputs

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class InterpreterSettings:
    """Settings of an interpreter."""

    threads: int = 1
    xnnpack: bool = True

    def open(self, path: str) -> Any:
        """Return an interpreter of a file, whose tensors are not allocated yet."""
        kind = OpResolverType.BUILTIN if self.xnnpack else OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
        return Interpreter(path, num_threads=self.threads, experimental_op_resolver_type=kind)


class LitertModel(FileModel):
    """A file in an interpreter."""

    settings: InterpreterSettings

    def open(self, inputs: Inputs) -> None:
        self.native = self.settings.open(self.file.path)
        sized(self.native, [array.shape for array in self._given(inputs)])

    def fits(self, inputs: Inputs) -> bool:
        shapes = in_order(self.file, self.native, *self.shapes(inputs))
        wanted = [tuple(map(int, detail["shape"])) for detail in inputs_of(self.native)]
        return all(map(is_fitting, shapes, wanted))

    def _given(self, inputs: Inputs) -> list[AnyArray]:
        return in_order(self.file, self.native, *self.arrays(inputs))

    def feed(self, inputs: Inputs) -> Feed:
        given = self._given(inputs)
        rows = len(given[0]) if given[0].ndim else None
        tensors = []
        for array, detail in zip(given, inputs_of(self.native), strict=True):
            fitted = fitting(array, tuple(map(int, detail["shape"])), "the file takes")
            scale, zero = detail["quantization"]
            if scale and array.dtype != detail["dtype"]:
                limits = np.iinfo(detail["dtype"])
                fitted = np.clip(np.round(fitted / scale) + zero, limits.min, limits.max)
            tensors.append(np.ascontiguousarray(fitted, dtype=detail["dtype"]))
        return Feed(tuple(tensors), rows)

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
        found = {}
        names = self.file.outputs or map(str, range(len(values)))
        for name, array, detail in zip(names, values, self.native.get_output_details(), strict=True):
            scale, zero = detail["quantization"]
            found[name] = array
            if scale:
                found[name] = (array.astype(np.float32) - zero) * np.float32(scale)
        return found


def inputs_of(interpreter: Any) -> list[AnyArray]:
    """Return the details of the inputs in the order of the arguments, which the names of a file converted here count."""
    details = interpreter.get_input_details()
    numbered = {}
    for detail in details:
        found = re.fullmatch(r"(serving_default_)?input_(\d+)(:.*)?", detail["name"])
        if found is None:
            return list(details)
        numbered[int(found[2])] = detail
    return [numbered[number] for number in sorted(numbered)]


def in_order(file: TfliteFile, interpreter: Any, positional: Sequence[T], named: Mapping[str, T]) -> list[T]:
    """Return what is given for each input, in the order of :func:`inputs_of`: positional values fill the inputs that are not named.

    Only a file converted here, and a signature, name the inputs; without one, or with several, named values keep their order.

    Raises:
        Unsupported: the file has no inputs of these names, or another number of them.
    """
    names = list(file.inputs)
    if named and not names and len(interpreter.get_signature_list()) == 1:
        signed = interpreter.get_signature_runner().get_input_details()
        known = {detail["index"]: name for name, detail in signed.items()}
        names = [known.get(detail["index"], detail["name"]) for detail in inputs_of(interpreter)]
    if not named or not names:
        return [*positional, *named.values()]
    return list(by_name(names, positional, named).values())


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


# ---------------------------------------------------------------------------------------------------------------
# Files that a user gives and those that a conversion leaves, with what they contain
# ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TfliteFile(MadeFile):
    """A model as a file: ``model.litert._target_=sweeprof.backends.litert.model.TfliteFile model.litert.path=net.tflite``."""

    NAME: ClassVar[str] = "model.tflite"
    FORMAT: ClassVar[str] = "tflite"
    channels: Channels = "last"
    inputs: Sequence[str] = ()
    """Names of the inputs, in the order of the arguments; empty: as the file's signature has them."""

    def found(self) -> TfliteFile:
        """Return the file with its full path.

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
    """Return the main graph of a file.

    Args:
        path: of the file.
        shapes: those that hold instead of the file's, by the position of a tensor.
    """
    from ai_edge_litert import schema_py_generated as schema

    with Path(path).open("rb") as stream:
        content = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)  # so that no weight is read
    model = schema.Model.GetRootAs(content)

    def graph(position: int, known: Mapping[int, tuple[int, ...]]) -> TfliteGraph:
        part = model.Subgraphs(position)
        tensors = []
        for index in range(part.TensorsLength()):
            tensor = part.Tensors(index)
            dtype = _names("TensorType")[tensor.Type()].lower()
            quantization, buffer = tensor.Quantization(), model.Buffers(tensor.Buffer())
            is_quantized = quantization is not None and quantization.ScaleLength() > 0
            shape = known.get(index, tuple(_positions(tensor.ShapeAsNumpy())))
            numbers = REAL if is_quantized else numbers_of(dtype)
            is_stored = bool(buffer.DataLength() or buffer.Size())
            tensors.append(TfliteTensor(tensor.Name().decode(), shape, dtype, itemsize(dtype), numbers, is_stored))
        operators = []
        for index in range(part.OperatorsLength()):
            operator = part.Operators(index)
            code = model.OperatorCodes(operator.OpcodeIndex())
            # Either field may have it, by the age of the file.
            op = _names("BuiltinOperator")[max(code.BuiltinCode(), code.DeprecatedBuiltinCode())]
            if op == "CUSTOM":
                op = f"custom {code.CustomCode().decode()}"
            inputs = tuple(tensors[i] if i >= 0 else None for i in _positions(operator.InputsAsNumpy()))
            outputs = tuple(tensors[i] for i in _positions(operator.OutputsAsNumpy()))
            if op == "DEQUANTIZE" and inputs[0] is not None and inputs[0].is_constant:
                outputs[0].source, outputs[0].is_constant = inputs[0], True
            options = schema.BuiltinOptionsCreator(operator.BuiltinOptionsType(), operator.BuiltinOptions())
            attributes = {} if options is None else vars(options)
            inner = [graph(body, {}) for name, body in attributes.items() if name.endswith("SubgraphIndex")]
            path = path_of(op, inputs, outputs)
            operators.append(
                TfliteOperator(op, path, inputs, outputs, attributes, namespace=NAMESPACE, bodies=tuple(inner))
            )
        given, made = _positions(part.InputsAsNumpy()), _positions(part.OutputsAsNumpy())
        return FileGraph(tuple(operators), tuple(tensors[i] for i in given), tuple(tensors[i] for i in made))

    return graph(0, shapes or {})


@cache
def _names(kind: str) -> dict[int, str]:
    """Return the names of an enumeration of the schema by their values."""
    from ai_edge_litert import schema_py_generated as schema

    return {value: name for name, value in vars(getattr(schema, kind)).items() if isinstance(value, int)}


def _positions(vector: Any) -> list[int]:
    # FlatBuffers returns 0 for a vector that is left out.
    return [] if isinstance(vector, int) else list(map(int, vector))


_WEIGHED = re.compile("conv|depthwise|matmul|einsum", re.IGNORECASE)
_WORKING = re.compile("^(?!Relu|Tanh|Sigmoid)")


def path_of(op: str, inputs: Sequence[CallTensor | None], outputs: Sequence[CallTensor]) -> str:
    """Return the layer, by the scopes in the name of what the operator returns; of several fused layers the one with weights,
    or one that is more than an activation.

    The last tensor of a file is renamed: then the names of its weights tell. A model that has been traced before has its scopes
    numbered, which is taken off.
    """
    parts = _scoped(outputs) or _scoped(inputs[1:])
    if not parts:
        return op.lower()
    ranked = []
    for pattern in (_WEIGHED, _WORKING):
        ranked += [part for part in parts if pattern.search(part.rpartition("/")[2])]
    model, *scopes = [*ranked, parts[0]][0].split("/")[:-1]
    if model.endswith("_1"):
        scopes = [scope.removesuffix("_1") for scope in scopes]
    return ".".join(scopes)


def _scoped(tensors: Sequence[CallTensor | None]) -> list[str]:
    """Return the names with a model and a layer in them; what was fused has several in one."""
    names: list[str] = []
    for tensor in tensors:
        if tensor is not None:
            names += tensor.name.split(";")
    return [name for name in names if name.count("/") >= 2]
