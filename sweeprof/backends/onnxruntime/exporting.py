"""From a builder to an ONNX file: exported once, by another process, and kept; also with weights of 8 bits.

ONNX Runtime's own tool makes a quantized file from the exported one, in another child. ``dynamic``: products of constant weights
(MatMul, Gemm), a scale per column; ranges of activations come from each batch. ``static``: convolutions, too, and ranges of
activations from samples.
"""

from __future__ import annotations

import copy
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from sweeprof.backends import in_floats, signature_of, specs_in
from sweeprof.backends.model_files import (
    ChildFailure,
    Converter,
    Samples,
    batches_of,
    is_keras,
    is_module,
    saved_keras,
)
from sweeprof.backends.onnxruntime.files import Exported, OnnxFile
from sweeprof.errors import Unsupported
from sweeprof.measuring.inputs import Inputs
from sweeprof.results.layer_times import ROOT

if TYPE_CHECKING:
    import onnx

FLOATS = {"fp32": "float32", "fp16": "float16", "int8": "float32"}
"""Data types by the precisions; ``int8`` is made of 32 bits."""


@dataclass(frozen=True, slots=True)
class Exporter(Converter[Exported]):
    """Exports models to ONNX files by torch's exporter."""

    NAME: ClassVar[str] = "onnx"
    KIND: ClassVar[type[Exported]] = Exported
    PACKAGES: ClassVar[tuple[str, ...]] = ("torch", "onnx", "onnxscript", "onnx-ir", "keras", "sweeprof")
    LOWERED_BY: ClassVar[tuple[str, ...]] = ("onnxruntime",)
    ACCEPTED: ClassVar[str] = "a torch or Keras model or an OnnxFile"
    VERSION: ClassVar[int] = 4
    opset: int = 23
    precision: str | None = None
    """``fp32``, ``fp16`` or ``int8``; None: as the model is."""
    method: str | None = None
    """``dynamic`` or ``static`` for ``int8``."""
    open_axes: tuple[tuple[int, ...], ...] = ()
    """For each tensor the axes whose sizes stay open besides the first; none: those of all tensors are fixed."""

    @property
    def dtype(self) -> str | None:
        """The data type of the exported weights and inputs; None: as they are."""
        return None if self.precision is None else FLOATS[self.precision]

    def refusal(self) -> str:
        if self.precision == "int8":
            return "ONNX Runtime cannot quantize the model"
        return "torch.onnx cannot export the model"

    def variables(self) -> Mapping[str, str]:
        if self.precision == "fp16":
            return {"KERAS_BACKEND": "torch", "KERAS_FLOATX": "float16"}
        return {"KERAS_BACKEND": "torch"}

    def plain(self) -> Exporter:
        if self.precision == "int8":
            return replace(self, precision="fp32", method="convert")
        return self

    def for_further(self, inputs: Inputs, first: Inputs) -> Exporter:
        """Return the exporter that leaves the axes open in which both differ, such as the length of a text."""
        specs, others = (specs_in((given.args, dict(given.kwargs))) for given in (inputs, first))
        differing = []
        for spec, other in zip(specs, others, strict=False):
            axes = range(1, min(len(spec.shape), len(other.shape)))
            differing.append(tuple(axis for axis in axes if spec.shape[axis] != other.shape[axis]))
        return replace(self, open_axes=tuple(differing))

    def takes_samples(self) -> bool:
        return self.method == "static"

    def signature(self, inputs: Inputs, axis: int | None) -> Inputs:
        return in_floats(signature_of(inputs), self.dtype)

    def given(self, model: object) -> Exported | None:
        if not isinstance(model, OnnxFile):
            return None
        if self.precision == "fp16":
            raise Unsupported("an ONNX file runs with the data types that it has; precision=int8 quantizes it")
        return model.known()

    def node_of(self, model: Any, folder: Path) -> Mapping[str, object] | None:
        if not is_keras(model):
            return None
        if self.precision == "fp16":
            raise Unsupported("a Keras model that is made already has the precision that it has")
        return saved_keras(model, folder)

    def accepts(self, model: Any) -> bool:
        return is_module(model) or is_keras(model)

    def convert(self, model: Any, signature: Inputs, axis: int | None, samples: Samples, folder: Path) -> Exported:
        from sweeprof.backends.onnxruntime.torch_export import exported_keras, exported_module  # which imports torch

        if self.dtype is not None and is_module(model):
            import torch

            wanted = getattr(torch, self.dtype)
            weights = [*model.parameters(), *model.buffers()]
            if any(weight.is_floating_point() and weight.dtype != wanted for weight in weights):
                model = copy.deepcopy(model).to(wanted)
        if is_keras(model):  # on torch it is a module, too
            return exported_keras(model, signature, axis, folder, self.opset, self.open_axes)
        return exported_module(model, signature, folder, self.opset, self.open_axes)

    def lower(self, file: Exported, samples: Samples, folder: Path) -> Exported:
        assert self.method is not None
        return quantized(file, self.method, samples, folder)

    def failed(self, error: BaseException) -> ChildFailure:
        """Describe what an error was raised from: the exporter's own introduces a page of advice."""
        while error.__cause__ is not None:
            error = error.__cause__
        return ChildFailure.of("export", error)


OPERATORS = {"dynamic": ["MatMul", "Gemm"], "static": ["Conv", "MatMul", "Gemm"]}
PART = re.compile(r"(?P<weight>.+?)(?P<is_transposed>_transposed)?_(?P<part>quantized|scale|zero_point)")
BATCH = 32
"""Samples that are run at a time for their ranges, where the graph takes any number."""


def quantized(file: Exported, method: str, samples: Samples, folder: Path) -> Exported:
    """Write the quantized model into ``folder``.

    Args:
        file: in 32 bits.
        method: ``dynamic`` or ``static``.
        samples: for ``static``, ``(n, ...)`` for each input of the graph.
        folder: of the new file.

    Raises:
        Unsupported: the model has nothing that can be quantized.
        Exception: whatever the tool raised.
    """
    import onnx
    from onnx import numpy_helper
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_dynamic, quantize_static

    model = onnx.load(file.path)
    _fold_transposes(model.graph)
    del model.graph.value_info[:]  # the tool transposes weights, and trusts the shapes that were
    given = {initializer.name for initializer in model.graph.initializer}
    path = str(folder / Exported.NAME)
    options: dict[str, Any] = {
        "op_types_to_quantize": OPERATORS[method],
        "per_channel": True,
        "extra_options": {"MatMulConstBOnly": True},
    }
    logging.disable(logging.WARNING)  # of the tool, about preparing a model
    if method == "dynamic":
        # Processors without VNNI add pairs of products in 16 bits: that of unsigned and signed numbers overflows.
        quantize_dynamic(model, path, weight_type=QuantType.QUInt8, **options)
    else:
        slots = [slot.name for slot in model.graph.input if slot.name not in given]
        batches = batches_of(slots, samples, file.batch or BATCH)
        reader = SimpleNamespace(get_next=lambda: next(batches, None))
        # For the same reason weights of 7 bits, as convolutions have signed ones.
        quantize_static(model, path, reader, quant_format=QuantFormat.QDQ, reduce_range=True, **options)
    made = onnx.load(path)
    sizes: dict[str, int] = {}
    """Bytes of each weight that was quantized, scales and zero points included."""
    roles = dict(file.weights)
    is_quantized = False
    for initializer in made.graph.initializer:
        if initializer.name in given:
            continue
        array = numpy_helper.to_array(initializer)
        is_quantized = is_quantized or (array.dtype in (np.int8, np.uint8) and array.ndim > 1)
        found = PART.fullmatch(initializer.name)
        if found is not None:
            weight = found["weight"]
            sizes[weight] = sizes.get(weight, 0) + array.nbytes
            if found["part"] == "quantized" and weight in roles:
                roles[initializer.name] = roles.pop(weight)
    if not is_quantized:
        raise Unsupported("the model has no product of constant weights that ONNX Runtime could quantize")
    paths = None if file.paths is None else _paths(made.graph, file.paths)
    return replace(file, path=path, paths=paths, weights=roles, sizes=sizes)


def _fold_transposes(graph: onnx.GraphProto) -> None:
    """Replace transposed weights by weights that are stored so: an exported linear layer multiplies by the transpose of its own."""
    from onnx import numpy_helper

    weights = {initializer.name: initializer for initializer in graph.initializer}
    for node in list(graph.node):
        if node.op_type != "Transpose" or node.input[0] not in weights:
            continue
        readers = [other for other in graph.node if node.output[0] in other.input]
        if not all(other.op_type == "MatMul" and other.input[1] == node.output[0] for other in readers):
            continue
        axes = None
        for attribute in node.attribute:
            if attribute.name == "perm":
                axes = list(attribute.ints)
        array = np.ascontiguousarray(numpy_helper.to_array(weights[node.input[0]]).transpose(axes))
        name = f"{node.input[0]}_transposed"
        graph.initializer.append(numpy_helper.from_array(array, name))
        for other in readers:
            other.input[1] = name
        graph.node.remove(node)
    read = set[str]().union(*(node.input for node in graph.node))
    for initializer in list(graph.initializer):
        if initializer.name not in read:
            graph.initializer.remove(initializer)


def _paths(graph: onnx.GraphProto, known: Mapping[str, str]) -> dict[str, str]:
    """Return the module of every node: of a new one that of the node it is named after, or of the node that reads it."""
    readers: dict[str, onnx.NodeProto] = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, node)
    found: dict[str, str] = {}
    for node in reversed(graph.node):
        found[node.name] = ROOT
        named = [name for name in known if node.name == name or node.name.startswith(f"{name}_")]
        read_by = [readers[name].name for name in node.output if name in readers]
        if named:
            found[node.name] = known[max(named, key=len)]
        elif read_by:
            found[node.name] = found.get(read_by[0], ROOT)
    return found
