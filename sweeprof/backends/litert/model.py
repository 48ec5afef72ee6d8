"""A TFLite file in its interpreter, ready to step. What a process has loaded by then is the interpreter and numpy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from ai_edge_litert.interpreter import Interpreter, OpResolverType

from sweeprof.backends import AnyArray
from sweeprof.backends.file_backend import Feed, FileModel, fitting, is_fitting
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
