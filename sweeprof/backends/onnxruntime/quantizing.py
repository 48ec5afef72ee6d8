"""An ONNX file with 8-bit weights, by ONNX Runtime's own tool, in a process of its own: a measured process has the run-time alone.

``dynamic``: products of constant weights (MatMul, Gemm), a scale per column; ranges of activations come from each batch.
``static``: convolutions, too, and ranges of activations from samples.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from sweeprof.backends import AnyArray
from sweeprof.backends.call_signature import by_name
from sweeprof.backends.model_files import ChildFailure, ChildRequest, answer
from sweeprof.backends.onnxruntime.files import MODEL, Exported
from sweeprof.counting.graph import WeightRole
from sweeprof.errors import Unsupported
from sweeprof.results.layer_times import ROOT

OPERATORS = {"dynamic": ["MatMul", "Gemm"], "static": ["Conv", "MatMul", "Gemm"]}
_PART = re.compile(r"(?P<weight>.+?)(?P<is_transposed>_transposed)?_(?P<part>quantized|scale|zero_point)")
BATCH = 32
"""Samples that are run at a time for their ranges, where the graph takes any number."""


def quantized(file: Exported, method: str, samples: Sequence[AnyArray], names: Sequence[str], folder: Path) -> Exported:
    """Write the quantized model into ``folder``.

    Args:
        file: in 32 bits.
        method: ``dynamic`` or ``static``.
        samples: for ``static``, ``(n, ...)`` for each input of the graph.
        names: of those of the samples that have one, the last.
        folder: of the new file.

    Raises:
        Unsupported: the model has nothing that can be quantized.
        Exception: whatever the tool raised.
    """
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_dynamic, quantize_static

    model = onnx.load(file.path)
    _fold_transposes(model.graph)
    del model.graph.value_info[:]  # the tool transposes weights, and trusts the shapes that were
    given = {initializer.name for initializer in model.graph.initializer}
    path = str(folder / MODEL)
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
        reader = _Samples(model.graph, file.batch, samples, names)
        # For the same reason weights of 7 bits, as convolutions have signed ones.
        quantize_static(model, path, reader, quant_format=QuantFormat.QDQ, reduce_range=True, **options)
    made = onnx.load(path)
    new = {item.name: numpy_helper.to_array(item) for item in made.graph.initializer if item.name not in given}
    sizes, roles = _stored(new, file.weights)
    if not any(array.dtype in (np.int8, np.uint8) and array.ndim > 1 for array in new.values()):
        raise Unsupported("the model has no product of constant weights that ONNX Runtime could quantize")
    paths = None if file.paths is None else _paths(made.graph, file.paths)
    return replace(file, path=path, paths=paths, weights=roles, sizes=sizes)


def _stored(
    new: Mapping[str, AnyArray], before: Mapping[str, WeightRole]
) -> tuple[dict[str, int], dict[str, WeightRole]]:
    """Return the bytes of each weight that was quantized, scales and zero points included, and the roles of all weights."""
    sizes: dict[str, int] = {}
    roles = dict(before)
    for name, array in new.items():
        found = _PART.fullmatch(name)
        if found is None:
            continue
        weight = found["weight"]
        sizes[weight] = sizes.get(weight, 0) + array.nbytes
        if found["part"] == "quantized" and weight in roles:
            roles[name] = roles.pop(weight)
    return sizes, roles


def _fold_transposes(graph: onnx.GraphProto) -> None:
    """Replace transposed weights by weights that are stored so: an exported linear layer multiplies by the transpose of its own."""
    weights = {initializer.name: initializer for initializer in graph.initializer}
    for node in [node for node in graph.node if node.op_type == "Transpose" and node.input[0] in weights]:
        readers = [other for other in graph.node if node.output[0] in other.input]
        if not all(other.op_type == "MatMul" and other.input[1] == node.output[0] for other in readers):
            continue
        axes = next((list(attribute.ints) for attribute in node.attribute if attribute.name == "perm"), None)
        array = np.ascontiguousarray(numpy_helper.to_array(weights[node.input[0]]).transpose(axes))
        name = f"{node.input[0]}_transposed"
        graph.initializer.append(numpy_helper.from_array(array, name))
        for other in readers:
            other.input[1] = name
        graph.node.remove(node)
    read = {name for node in graph.node for name in node.input}
    for initializer in [item for item in graph.initializer if item.name not in read]:
        graph.initializer.remove(initializer)


def _paths(graph: onnx.GraphProto, known: Mapping[str, str]) -> dict[str, str]:
    """Return the module of every node: of a new one that of the node it is named after, or of the node that reads it."""
    readers: dict[str, onnx.NodeProto] = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, node)
    found: dict[str, str] = {}
    for node in reversed(graph.node):
        named = [name for name in known if node.name == name or node.name.startswith(f"{name}_")]
        reader = next((readers[name] for name in node.output if name in readers), None)
        if named:
            found[node.name] = known[max(named, key=len)]
        else:
            found[node.name] = ROOT if reader is None else found.get(reader.name, ROOT)
    return found


class _Samples:
    """The samples in batches, as ONNX Runtime's tool asks for them."""

    def __init__(
        self, graph: onnx.GraphProto, batch: int | None, samples: Sequence[AnyArray], names: Sequence[str]
    ) -> None:
        weights = {initializer.name for initializer in graph.initializer}
        slots = [slot.name for slot in graph.input if slot.name not in weights]
        positional = samples[: len(samples) - len(names)]
        given = by_name(slots, positional, dict(zip(names, samples[len(positional) :], strict=True)))
        self._batches = _batches(given, batch or BATCH)

    def get_next(self) -> dict[str, AnyArray] | None:
        """Return the next batch by the names of the inputs; None after the last."""
        return next(self._batches, None)


def _batches(arrays: Mapping[str, AnyArray], size: int) -> Iterator[dict[str, AnyArray]]:
    """Every sample in batches of one size, the last one filled up with the first samples."""
    number = len(next(iter(arrays.values())))
    for begin in range(0, number, size):
        chosen = np.arange(begin, begin + size) % number
        yield {name: array[chosen] for name, array in arrays.items()}


def quantized_file(request: ChildRequest) -> ChildFailure | None:
    """Quantize, and say what failed."""
    folder = Path(request["folder"])
    samples: list[AnyArray] = []
    if request["samples"] is not None:
        with np.load(request["samples"]) as stored:
            samples = [stored[f"arr_{index}"] for index in range(len(stored.files))]
    try:
        quantized(Exported(**request["file"]), request["method"], samples, request["names"], folder).write_facts()
    except Exception as error:  # the tool may raise anything
        return ChildFailure.of("quantize", error)
    return None


if __name__ == "__main__":
    answer(quantized_file)
