"""A TFLite file in its interpreter, ready to step. What a process has loaded by then is the interpreter and numpy.

Beside it the calibration kernel: a file of one operator, one layer's work of a middling model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from ai_edge_litert.interpreter import Interpreter, OpResolverType

from sweeprof.backends import AnyArray
from sweeprof.backends.litert.files import TfliteFile, arrays, one_operator, read
from sweeprof.backends.outputs import HostOutputs, floating_outputs
from sweeprof.errors import Unsupported
from sweeprof.measuring.calibration import CHANNELS, ROWS, SIDE, Kernel, KernelName, resembling
from sweeprof.measuring.inputs import Inputs
from sweeprof.measuring.timing import WallClock

Conversion = Callable[[Inputs], AbstractContextManager[TfliteFile]]


@dataclass(frozen=True, slots=True)
class InterpreterSettings:
    """Settings of an interpreter."""

    threads: int = 1
    xnnpack: bool = True

    def open(self, **model: Any) -> Any:
        """An interpreter of ``model_path`` or ``model_content``, whose tensors are not allocated yet."""
        kind = OpResolverType.BUILTIN if self.xnnpack else OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
        return Interpreter(num_threads=self.threads, experimental_op_resolver_type=kind, **model)


@dataclass(frozen=True, slots=True)
class InterpreterFeed:
    """A batch in the types and the shapes of the file's inputs."""

    arrays: tuple[AnyArray, ...]
    rows: int
    """Of the batch, which a file for a larger one is filled up to."""


class LitertModel:
    """A file in an interpreter; it is converted when it meets its first inputs, whose shapes a converter needs."""

    compiles = False

    def __init__(self, conversion: Conversion, settings: InterpreterSettings, channel_axis: int | None) -> None:
        self._conversion, self.settings, self._axis = conversion, settings, channel_axis
        self._held: AbstractContextManager[TfliteFile] | None = None
        self.file: TfliteFile | None = None
        self._interpreter: Any = None

    @property
    def native(self) -> Any:
        """The ``Interpreter``; None before the first inputs."""
        return self._interpreter

    def meet(self, inputs: Inputs) -> None:
        """Convert the model for such inputs and allocate its tensors, where that has not been done.

        Raises:
            Unsupported: it cannot be converted, or takes no such inputs.
            Exception: whatever the builder raised, or the interpreter.
        """
        if self.file is not None:
            return
        self._held = self._conversion(inputs)  # a temporary file is there as long as this object
        self.file = self._held.__enter__()
        self._interpreter = self.settings.open(model_path=self.file.path)
        sized(self._interpreter, [array.shape for array in self._arrays(inputs)])

    def clock(self) -> WallClock:
        return WallClock()

    def put(self, inputs: Inputs) -> InterpreterFeed:
        self.meet(inputs)
        given = self._arrays(inputs)
        rows = len(given[0]) if given[0].ndim else 1
        wanted = inputs_of(self._interpreter)
        return InterpreterFeed(
            tuple(_fitting(array, detail) for array, detail in zip(given, wanted, strict=True)), rows
        )

    def _arrays(self, inputs: Inputs) -> list[AnyArray]:
        assert self.file is not None
        return arrays(inputs, self._axis if self.file.channels == "last" else None)

    @contextmanager
    def stepping(self, batch: InterpreterFeed) -> Iterator[Callable[[], object]]:
        """The inputs are set once, as a model on an accelerator has them there; outputs are copied out in every step."""
        interpreter = self._interpreter
        for detail, array in zip(inputs_of(interpreter), batch.arrays, strict=True):
            interpreter.set_tensor(detail["index"], array)
        wanted = [detail["index"] for detail in interpreter.get_output_details()]

        def step() -> Any:
            interpreter.invoke()
            return batch.rows, [interpreter.get_tensor(index) for index in wanted]

        yield step

    def transfers(self, inputs: Inputs, outputs: object) -> Mapping[str, Callable[[], object]]:
        return {}

    def host_outputs(self, outputs: Any) -> HostOutputs:
        rows, tensors = outputs
        found = {}
        for index, (tensor, detail) in enumerate(zip(tensors, self._interpreter.get_output_details(), strict=True)):
            scale, zero = detail["quantization"]
            kept = tensor[:rows] if tensor.ndim else tensor
            name = self.file.outputs[index] if self.file is not None and self.file.outputs else str(index)
            found[name] = (kept.astype(np.float32) - zero) * np.float32(scale) if scale else kept
        return floating_outputs(
            tensors, found, lambda array: array.dtype.kind == "f", lambda array: np.asarray(array, np.float32)
        )


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
    shape = tuple(map(int, detail["shape"]))
    if array.shape[1:] != shape[1:] or array.ndim != len(shape) or (shape and len(array) > shape[0]):
        raise Unsupported(f"the file takes a {shape}, not a {array.shape}")
    if shape and len(array) < shape[0]:
        array = array[np.arange(shape[0]) % len(array)]
    return np.ascontiguousarray(array, dtype=detail["dtype"])


_CONVOLUTIONS = ("CONV_2D", "CONV_3D", "DEPTHWISE_CONV_2D", "TRANSPOSE_CONV", "CONV_3D_TRANSPOSE")


def kernel(model: LitertModel, wanted: KernelName | None) -> Kernel:
    """The kernel with the model's threads and delegate; always in single precision, so that variants have the same.

    Args:
        model: which has met its inputs.
        wanted: which; None: the one that resembles the model.
    """
    from ai_edge_litert import schema_py_generated as schema

    assert model.file is not None
    names = [operator.op for operator in read(model.file.path).operators]
    convolutions = sum(name in _CONVOLUTIONS for name in names)
    name = wanted or resembling(convolutions, names.count("FULLY_CONNECTED"))
    if name == "convolution":
        options = schema.Conv2DOptionsT()
        options.padding, options.strideH, options.strideW = schema.Padding.SAME, 1, 1
        given = np.ones((1, SIDE, SIDE, CHANNELS), np.float32)
        weights = np.full((CHANNELS, 3, 3, CHANNELS), 1e-3, np.float32)
        content = one_operator("CONV_2D", given, weights, "Conv2DOptions", options, given.shape)
    else:
        given = np.full((ROWS, ROWS), 1e-3, np.float32)
        options = schema.FullyConnectedOptionsT()
        content = one_operator("FULLY_CONNECTED", given, given, "FullyConnectedOptions", options, given.shape)
    interpreter = model.settings.open(model_content=content)
    interpreter.allocate_tensors()
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], given)
    interpreter.invoke()
    return Kernel(name, interpreter.invoke)
