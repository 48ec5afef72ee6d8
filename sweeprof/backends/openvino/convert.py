"""From a builder to a file in OpenVINO's format (``.xml`` with its ``.bin``): converted once by another process, and kept.

A torch module is traced and a Keras model is exported from TensorFlow; OpenVINO's frontend of the framework converts either. The
graph is saved before OpenVINO optimizes it, which it does when it loads it too: so operators keep the names of their modules.
Files with fewer bits are made from the file in 32 bits.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import io
import re
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, Literal

import numpy as np
import openvino

from sweeprof.backends import array_of, batch_of, filled, is_tensor, signature_of, with_specs
from sweeprof.backends.model_files import (
    LONGEST,
    ChildFailure,
    Converter,
    GraphFile,
    ModelFile,
    Samples,
    batches_of,
    existing,
    is_keras,
    is_module,
    saved_keras,
)
from sweeprof.errors import message_of
from sweeprof.measuring.inputs import Inputs
from sweeprof.nested import named_leaves
from sweeprof.paths import user_path

MODULE, WEIGHT = "__module.model", "self.model."
"""What the names of operators and of constants begin with in a converted file, before the path of a module, or of a weight."""


@dataclass(frozen=True, slots=True)
class OpenvinoFile(ModelFile):
    """A model as a file: ``model.openvino._target_=sweeprof.backends.openvino.convert.OpenvinoFile model.openvino.path=net.xml``.

    The file is an ``.xml``, or of any other format that OpenVINO reads (``.onnx``).
    """


@dataclass(frozen=True, slots=True)
class Converted(GraphFile):
    """An ``.xml`` file, and what its graph does not tell; ``weights`` are its constants."""

    NAME: ClassVar[str] = "model.xml"
    FORMAT: ClassVar[str] = "openvino"
    inputs: Sequence[str] = ()
    """Names of the inputs, in the order of the model; empty: as the graph has them."""
    is_of_onnx: bool = False
    """True if it was converted from a user's ONNX file, in which scales and zero points are no parameters."""

    def input_names(self, graph: Any) -> list[str]:
        """Return the names of the inputs of its ``openvino.Model``, in the order of the model's arguments."""
        names = [slot.get_any_name() for slot in graph.inputs]
        return list(self.inputs) if set(self.inputs) == set(names) else names

    def parts(self) -> list[Path]:
        return [Path(self.path), Path(self.path).with_suffix(".bin")]


OTHER_BATCH = 3
"""Times the batch size that a model is traced with."""
BATCH = 32
"""Samples that are run at a time for their ranges, where the graph takes any number."""
VARIABLES = {"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
OPENVINO_FILE = f"{OpenvinoFile.__module__}.{OpenvinoFile.__qualname__}"


@dataclass(frozen=True, slots=True)
class OpenvinoConverter(Converter[Converted]):
    """Converts models to OpenVINO's format."""

    NAME: ClassVar[str] = "openvino"
    KIND: ClassVar[type[Converted]] = Converted
    PACKAGES: ClassVar[tuple[str, ...]] = ("torch", "tensorflow", "keras", "openvino", "sweeprof")
    LOWERED_BY: ClassVar[tuple[str, ...]] = ("openvino", "nncf")
    ACCEPTED: ClassVar[str] = "a torch or Keras model or a file"
    VERSION: ClassVar[int] = 4
    storage: Literal["fp32", "fp16", "int8"] = "fp32"
    """Of the weights; ``int8`` also quantizes activations."""

    def refusal(self) -> str:
        verb = {"fp32": "convert", "fp16": "compress", "int8": "quantize"}[self.storage]
        return f"OpenVINO cannot {verb} the model"

    def variables(self) -> Mapping[str, str]:
        return VARIABLES

    def plain(self) -> OpenvinoConverter:
        return replace(self, storage="fp32")

    def takes_samples(self) -> bool:
        return self.storage == "int8"

    def given(self, model: object) -> Converted | None:
        if not isinstance(model, ModelFile):
            return None
        path = existing(model.path)
        if path.endswith(".xml"):
            return Converted(path, model.channels)
        return None

    def node_of(self, model: Any, folder: Path) -> Mapping[str, object] | None:
        if isinstance(model, ModelFile):
            return {"_target_": OPENVINO_FILE, "path": model.path, "channels": model.channels}
        if is_keras(model):
            return saved_keras(model, folder)
        return None

    def accepts(self, model: Any) -> bool:
        return isinstance(model, ModelFile) or is_module(model) or (is_keras(model) and hasattr(model, "export"))

    def copied(self, model: Any) -> Any:
        return copy.deepcopy(model).cpu()

    def convert(self, model: Any, signature: Inputs, axis: int | None, samples: Samples, folder: Path) -> Converted:
        """Write the model in 32 bits, or in the data types that its file has."""
        path = str(folder / Converted.NAME)
        outputs: tuple[str, ...]
        roles: dict[str, Any]
        if isinstance(model, ModelFile):
            graph = openvino.Core().read_model(user_path(model.path))
            file = Converted(path, model.channels, is_of_onnx=model.path.endswith(".onnx"))
        elif is_keras(model):
            from openvino.frontend import FrontEndManager

            from sweeprof.backends.keras.calls import as_called  # which imports Keras
            from sweeprof.backends.keras.private import layer_types

            frontend = FrontEndManager().load_by_framework("tf")
            with TemporaryDirectory(prefix="sweeprof-saved-") as saved, warnings.catch_warnings():
                warnings.simplefilter("ignore")
                with contextlib.redirect_stdout(io.StringIO()):
                    model.export(saved, verbose=False)
                graph = frontend.convert(frontend.load(saved))
            called = as_called(model, with_specs(signature_of(signature, axis), array_of))
            outputs = tuple(named_leaves(model(*called.args, training=False, **called.kwargs)))
            results = {result.get_friendly_name(): result for result in graph.get_results()}
            if set(outputs) == set(results):  # a mapping, whose keys the export has sorted
                graph = openvino.Model([results[name] for name in outputs], graph.get_parameters())
            else:
                outputs = ()
            names = tuple(tensor.name for tensor in model.inputs)
            roles = _name_layers(graph, model)
            file = Converted(path, "last", outputs, types=layer_types(model), weights=roles, inputs=names)
        else:
            types = {name: type(inner).__name__ for name, inner in model.named_modules()}
            roles = dict.fromkeys([name for name, _ in model.named_buffers()], "buffer")
            for name, tensor in model.named_parameters():  # one with several names has a role under the first
                roles[name] = "parameter" if tensor.requires_grad else "frozen"
            graph, outputs = _traced(model.eval(), signature)
            file = Converted(path, "first", outputs, _only_batch(graph, batch_of(signature)), types, roles)
        openvino.save_model(graph, path, compress_to_fp16=False)
        return file

    def lower(self, file: Converted, samples: Samples, folder: Path) -> Converted:
        """Write a file with weights of 16 bits, or one that computes in 8 bits with ranges from samples."""
        graph = openvino.Core().read_model(file.path)
        if self.storage == "int8":
            import nncf

            batches = list(batches_of(file.input_names(graph), samples, file.batch or BATCH))
            graph = nncf.quantize(graph, nncf.Dataset(batches), subset_size=len(batches))
        path = str(folder / Converted.NAME)
        openvino.save_model(graph, path, compress_to_fp16=self.storage == "fp16")
        return replace(file, path=path)

    def failed(self, error: Exception) -> ChildFailure:
        """Describe what the tracer raised, or the end of OpenVINO's summary, which names the operators that it does not know."""
        if error.__cause__ is not None:
            return replace(ChildFailure.of("convert", error), message=message_of(error.__cause__))
        lines = [line.removeprefix("-- ").strip() for line in str(error).splitlines() if line.strip()]
        unknown = [line for line in lines if line.startswith("No conversion rule")]
        return replace(ChildFailure.of("convert", error), message=[*lines, *unknown, ""][-2][:LONGEST])


def _traced(module: Any, signature: Inputs) -> tuple[openvino.Model, tuple[str, ...]]:
    """Return the graph of a module, its inputs named by their keywords, and the names of its outputs."""
    import torch
    from openvino.frontend import FrontEndManager
    from openvino.frontend.pytorch.ts_decoder import TorchScriptPythonDecoder

    tensors = {f"input_{index}": leaf for index, leaf in enumerate(signature.args) if is_tensor(leaf)}
    tensors |= {name: leaf for name, leaf in signature.kwargs.items() if is_tensor(leaf)}
    outputs: list[str] = []

    class Call(torch.nn.Module):
        """The module as a function of tensors alone; constants are part of it."""

        def __init__(self) -> None:
            super().__init__()
            self.model = module

        def forward(self, *values: torch.Tensor) -> Any:
            results = named_leaves(filled(signature, values).call(self.model))
            found = {name: value for name, value in results.items() if isinstance(value, torch.Tensor)}
            outputs[:] = found
            return tuple(found.values())

    examples = tuple(torch.zeros(leaf.shape, dtype=getattr(torch, leaf.dtype)) for leaf in tensors.values())
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the tracer, about Python values
        decoder = TorchScriptPythonDecoder(Call(), example_input=examples)
        frontend = FrontEndManager().load_by_framework("pytorch")
        graph = frontend.convert(frontend.load(decoder))
    for slot, (name, leaf) in zip(graph.inputs, tensors.items(), strict=True):
        slot.get_tensor().set_names({name})
        shape = list(leaf.shape)
        if shape and shape[0] == batch_of(signature):
            shape[0] = -1
        slot.get_node().set_partial_shape(openvino.PartialShape(shape))
    graph.validate_nodes_and_infer_types()
    return graph, tuple(outputs)


def _only_batch(graph: openvino.Model, size: int | None) -> int | None:
    """Return the batch size, of which the tracer made a constant; None if the outputs grow with the batch."""
    if size is None:
        return None
    lengths = []
    try:
        for batch in (size, OTHER_BATCH * size):
            sized = graph.clone()
            shapes = {}
            for slot in sized.inputs:
                shapes[slot] = slot.get_partial_shape()
                if shapes[slot].is_dynamic:  # only the first axis is
                    shapes[slot][0] = batch
            sized.reshape(shapes)
            lengths.append([list(slot.shape)[:1] for slot in sized.outputs])
    except RuntimeError:  # shapes that do not fit
        return size
    for few, many in zip(*lengths, strict=True):
        if [OTHER_BATCH * length for length in few] != many:
            return size
    return None


def _name_layers(graph: openvino.Model, model: Any) -> dict[str, Any]:
    """Name operators after the layers of a Keras model, and constants after its variables; returns the roles of these.

    OpenVINO drops most names when it moves the channels to where its kernels want them. A constant is the variable with the same
    values, in any order; an operator belongs to the layer whose variable it reads, to that in its name, or to that of its input.
    """
    from sweeprof.backends.keras.private import named_layers, own_parameters, own_state

    variables: dict[bytes, list[tuple[str, str, str]]] = {}
    layers = dict(named_layers(model))
    for path, layer in layers.items():
        for own, role in ((own_parameters(layer), "parameter"), (own_state(layer), "frozen")):
            for variable in own:
                known = variables.setdefault(_content(variable), [])
                known.append((path, f"{path}.{variable.name}", role))
    places: dict[str, str] = {}
    roles: dict[str, Any] = {}
    for node in graph.get_ordered_ops():
        name = node.get_friendly_name()
        if node.get_type_name() == "Constant":
            found = variables.get(_content(node.data), []) if node.get_element_type().is_real() else []
            if len(found) == 1:
                layer_path, weight, roles[weight] = found[0]
                node.set_friendly_name(WEIGHT + weight)
                places[WEIGHT + weight] = layer_path
            continue
        place = _layer_of(node, places, layers)
        if place is None:
            continue
        for slot in node.input_values():
            source = slot.get_node()
            # An array that OpenVINO computed from variables, such as the scale of a batch norm.
            label = source.get_friendly_name()
            is_array = source.get_type_name() == "Constant" and source.get_element_type().is_real()
            if is_array and source.data.size > 1 and not label.startswith(WEIGHT):
                source.set_friendly_name(f"{WEIGHT}{place}.{label}")
                roles[f"{place}.{label}"] = "parameter"
        if node.get_type_name() not in ("Parameter", "Result"):
            node.set_friendly_name(f"{MODULE}.{place}/{name}")
            places[node.get_friendly_name()] = place
    return roles


def _layer_of(node: openvino.Node, places: Mapping[str, str], layers: Collection[str]) -> str | None:
    """Return the layer whose variable an operator reads, that in its name, or that of its input; None if there is none."""
    sources = [slot.get_node() for slot in node.input_values()]
    for source in sources:
        if source.get_type_name() in ("Constant", "Convert") and source.get_friendly_name() in places:
            return places[source.get_friendly_name()]
    for part in reversed(node.get_friendly_name().split("/")):
        for layer in (part, re.sub(r"_\d+$", "", part)):
            if layer in layers:
                return layer
    for source in sources:
        if source.get_friendly_name() in places:
            return places[source.get_friendly_name()]
    return None


def _content(array: Any) -> bytes:
    """Return a hash of the values of an array, whatever their order."""
    return hashlib.sha256(np.sort(np.asarray(array, np.float64), axis=None).tobytes()).digest()
