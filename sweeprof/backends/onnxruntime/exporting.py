"""From a builder to an ONNX file: exported once, by another process, and kept; also with weights of 8 bits.

A measured process has nothing in memory but the run-time, and a forked one may not run torch. So a model that a config describes
is exported by a child, which runs this file and gets the description as JSON. The file is kept under what it was made from. A
model in a caller's hands has no description, and is exported in its process, where its framework is loaded already.

ONNX Runtime's own tool makes a quantized file from the exported one, in another child. ``dynamic``: products of constant weights
(MatMul, Gemm), a scale per column; ranges of activations come from each batch. ``static``: convolutions, too, and ranges of
activations from samples.
"""

from __future__ import annotations

import copy
import json
import logging
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sweeprof.backends import AnyArray, Build
from sweeprof.backends.call_signature import CallSignature, arrays, by_name, moved_last, signature_of
from sweeprof.backends.model_files import (
    ChildFailure,
    ChildRequest,
    Maker,
    answer,
    batches_of,
    built,
    described,
    digest_of,
    key_of,
    made_once,
    stored_arrays,
    temporary_folder,
)
from sweeprof.backends.onnxruntime.files import Exported, OnnxFile
from sweeprof.counting.file_graph import WeightRole
from sweeprof.errors import Unsupported
from sweeprof.measuring.inputs import Inputs
from sweeprof.paths import cache_folder
from sweeprof.results.layer_times import ROOT

if TYPE_CHECKING:
    import onnx

CHILD = "sweeprof.backends.onnxruntime.exporting"
EXPORTER_REFUSAL = "torch.onnx cannot export the model"
QUANTIZER = Maker(CHILD, "ONNX Runtime cannot quantize the model")
FLOATS = {"fp32": "float32", "fp16": "float16"}
"""Data types by the precisions that a model is exported in."""
EXPORTERS = ("torch", "onnx", "onnxscript", "onnx-ir", "keras", "sweeprof")
FORMAT = 2
"""The version of the exported files. If it changes, every model is exported again."""
QUANTIZED_FORMAT = 2
"""The same of quantized files."""
REFUSED = "refused.txt"
"""The file that replaces a graph for any batch size if the exporter supports only a single size: its message."""
ONNX_FILE = f"{OnnxFile.__module__}.{OnnxFile.__qualname__}"


@dataclass(frozen=True, slots=True)
class Exporter:
    """Exports models to files."""

    opset: int
    seed: int
    cache: str | None
    """The folder of the files; None: that of the user."""
    precision: str | None = None
    """``fp32``, ``fp16`` or ``int8``; None: as the model is."""
    method: str | None = None
    """``dynamic`` or ``static`` for ``int8``."""
    samples: Inputs | None = None
    """One batch of samples, channels first as datasets have them, for the ranges of ``static``; None: there are none."""

    @contextmanager
    def exported(self, build: Build, inputs: Inputs, channel_axis: int | None) -> Iterator[Exported]:
        """The file of what ``build`` makes; within the context it exists.

        Raises:
            Unsupported: the model cannot be exported; the reason is the exporter's.
            TypeError: the builder made no model that can be.
            Exception: whatever the builder raised.
        """
        with temporary_folder("sweeprof-onnx-") as folder:
            if self.precision == "int8":
                with replace(self, precision="fp32").exported(build, inputs, channel_axis) as file:
                    yield self._quantized(file, channel_axis, folder)
                return
            node = described(build)
            if node is None or node.get("_target_") == ONNX_FILE:
                yield self._live(build(), inputs, channel_axis, folder)
            else:
                cache = cache_folder("onnx", self.cache) or folder
                yield self._kept(node, self._signature(inputs), channel_axis, cache)

    def _signature(self, inputs: Inputs) -> CallSignature:
        signature = signature_of(inputs)
        return signature if self.precision is None else signature.in_floats(FLOATS[self.precision])

    def _quantized(self, file: Exported, axis: int | None, temporary: Path) -> Exported:
        """The quantized file; it is kept beside the exported one, of a user's file in ``temporary``."""
        samples: list[AnyArray] = []
        names: list[str] = []
        if self.method == "static":
            if self.samples is None:
                raise Unsupported("precision_method=static takes its ranges from samples, and there are none")
            positional, named = arrays(self.samples)
            if file.channels == "last" and axis is not None:
                positional = [moved_last(array, axis) for array in positional]
            samples, names = [*positional, *named.values()], list(named)
        known = json.dumps([QUANTIZED_FORMAT, version("onnxruntime"), self.method, digest_of(samples), names])
        above = temporary if file.paths is None else Path(file.path).parent
        folder = above / f"int8-{sha256(known.encode()).hexdigest()[:24]}"

        request = {"file": asdict(file), "method": self.method, "names": names}
        return made_once(Exported, folder, QUANTIZER, request, samples)

    def _live(self, model: Any, inputs: Inputs, channel_axis: int | None, folder: Path) -> Exported:
        if isinstance(model, OnnxFile):
            if self.precision == "fp16":
                raise Unsupported("an ONNX file runs with the data types that it has; precision=int8 quantizes it")
            return model.known()
        signature = self._signature(inputs)
        keras = sys.modules.get("keras")
        if keras is not None and isinstance(model, keras.Layer):
            if self.precision == "fp16":
                raise Unsupported("a Keras model that is made already has the precision that it has")
            saved = str(folder / "model.keras")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Keras's own, about numpy
                model.save(saved)
            node = {"_target_": "keras.saving.load_model", "filepath": saved}
            return self._made(node, signature, channel_axis, folder / "saved")

        from sweeprof.backends.onnxruntime.torch_export import exported_module, is_module  # which imports torch

        if not is_module(model):
            raise TypeError(_not_a_model(model))

        if self.precision is not None:
            model = _converted(model, FLOATS[self.precision])

        def made(wanted: CallSignature) -> Exported:
            try:
                return exported_module(model, wanted, folder, self.opset)
            except MemoryError:
                raise
            except Exception as error:  # the exporter may raise anything
                raise Unsupported(f"{EXPORTER_REFUSAL}: {message_of(error)}") from error

        return _first_fitting(made, signature)[0]

    def _kept(self, node: Mapping[str, object], signature: CallSignature, axis: int | None, folder: Path) -> Exported:
        """The file in the cache, made where it is not there; for one batch size alone where the graph takes no other.

        That the exporter refused to make one for any is kept once that for the single one is there.
        """

        def entry(wanted: CallSignature) -> Path:
            precision = [] if self.precision is None else [self.precision]
            return folder / key_of(node, EXPORTERS, FORMAT, wanted.described(), axis, self.opset, self.seed, *precision)

        def cached(wanted: CallSignature) -> Exported:
            return self._made(node, wanted, axis, entry(wanted))

        note = entry(signature.varying()) / REFUSED
        if note.exists():
            return cached(signature)
        found, refusal = _first_fitting(cached, signature)
        if refusal is not None:
            note.parent.mkdir(parents=True, exist_ok=True)
            note.write_text(str(refusal))
        return found

    def _made(self, node: Mapping[str, object], signature: CallSignature, axis: int | None, folder: Path) -> Exported:
        request = {
            "node": dict(node),
            "signature": signature.described(),
            "channel_axis": axis,
            "opset": self.opset,
            "seed": self.seed,
            "dtype": None if self.precision is None else FLOATS[self.precision],
        }
        variables = {"KERAS_BACKEND": "torch"}
        if self.precision == "fp16":
            variables["KERAS_FLOATX"] = FLOATS[self.precision]

        return made_once(Exported, folder, Maker(CHILD, EXPORTER_REFUSAL, variables), request)


def _first_fitting(
    make: Callable[[CallSignature], Exported], signature: CallSignature
) -> tuple[Exported, Unsupported | None]:
    """The file for any batch size, or for the signature's alone where there is no other; and what spoke against the former.

    Which axes are a batch's is a guess: the state of a recurrent network has it on its second, and the exporter refuses then.

    Raises:
        Unsupported: there is neither.
    """
    varying, refusal = signature.varying(), None
    try:
        found = make(varying)
        if found.batch in (None, signature.batch):
            return found, None
    except Unsupported as error:
        if varying == signature:
            raise
        refusal = error
    return make(signature), refusal


def _converted(model: Any, dtype: str) -> Any:
    """Return a module of a caller with its floating-point weights in ``dtype``: a copy where they are of another."""
    import torch

    wanted = getattr(torch, dtype)
    weights = [*model.parameters(), *model.buffers()]
    if all(weight.dtype == wanted for weight in weights if weight.is_floating_point()):
        return model
    return copy.deepcopy(model).to(wanted)


def message_of(error: BaseException) -> str:
    """The first line of what an error says, or of what it was raised from: the exporter's own introduces a page of advice."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}"[:300] if lines else type(error).__name__


def _not_a_model(model: object) -> str:
    return f"the model's builder returned a {type(model).__name__}, not a torch or Keras model or an OnnxFile"


def exported_file(request: ChildRequest) -> ChildFailure | None:
    """Build, export, and say what failed."""
    import torch  # before the model is built, so that its generator has the seed

    from sweeprof.backends.onnxruntime.torch_export import exported_keras, exported_module, is_keras, is_module

    dtype, given, folder = request["dtype"], request["signature"], Path(request["folder"])
    try:
        model = built(request["node"], request["seed"])
        if not is_module(model) and not is_keras(model):
            raise TypeError(_not_a_model(model))
        if is_module(model) and dtype is not None:
            model = model.to(getattr(torch, dtype))
    except Exception as error:  # a builder may raise anything
        return ChildFailure.of("build", error)
    signature = CallSignature(tuple(given["args"]), given["kwargs"])
    try:
        if is_keras(model):  # on torch it is a module, too
            file = exported_keras(model, signature, request["channel_axis"], folder, request["opset"])
        else:
            file = exported_module(model, signature, folder, request["opset"])
        file.write_facts()
    except Exception as error:  # and so may the exporter
        kind, _, message = message_of(error).partition(": ")
        return ChildFailure("export", kind, message)
    return None


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
    from onnx import numpy_helper

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
        self._batches = (
            dict(zip(given, arrays, strict=True)) for arrays in batches_of(list(given.values()), batch or BATCH)
        )

    def get_next(self) -> dict[str, AnyArray] | None:
        """Return the next batch by the names of the inputs; None after the last."""
        return next(self._batches, None)


def quantized_file(request: ChildRequest) -> ChildFailure | None:
    """Quantize, and say what failed."""
    file, samples = Exported(**request["file"]), stored_arrays(request["samples"])
    try:
        quantized(file, request["method"], samples, request["names"], Path(request["folder"])).write_facts()
    except Exception as error:  # the tool may raise anything
        return ChildFailure.of("quantize", error)
    return None


if __name__ == "__main__":
    answer(lambda request: quantized_file(request) if "method" in request else exported_file(request))
