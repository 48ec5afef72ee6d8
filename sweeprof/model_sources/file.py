"""Models in files: ``model=file model.path=net.onnx``, ``.keras``, ``.h5``, a SavedModel, ``.tflite``, ``.xml``, ``.pt2``."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sweeprof.datasets import ArraySpec, ModelInputs
from sweeprof.errors import Problem, SweeprofError, UserError, message_of
from sweeprof.model_sources import check_sizes, package, size
from sweeprof.paths import SAVED_MODEL, kind_of_model, user_path

if TYPE_CHECKING:
    import keras
    import torch

KERAS = (".keras", ".h5", ".hdf5")
KINDS = (".onnx", *KERAS, SAVED_MODEL, ".tflite", ".xml", ".pt2")


@dataclass(frozen=True, slots=True)
class _Array:
    """An input of a model, as its file describes it."""

    sides: Sequence[object]
    """With the batch axis; a side that the file leaves open is its name, -1 or anything else."""
    dtype: str
    rows: int | None = None
    """Of the table in which the numbers are looked up; None: it is not known."""


def _existing(path: str) -> Path:
    found, kind = user_path(path), kind_of_model(path)
    if kind not in KINDS and found.is_dir():
        problem = "is a folder without a saved_model.pb: no SavedModel."
    elif kind not in KINDS:
        problem = f"is not a model file that is known here: {', '.join(KINDS)}."
    elif kind != SAVED_MODEL and not found.is_file():
        problem = "is not a file."
    else:
        return found
    raise UserError([Problem("model.path", path, problem)])


@contextmanager
def _reading(path: str) -> Iterator[None]:
    """Raise :class:`UserError` with the path if a library cannot read the file: it may raise anything, and names no file."""
    try:
        yield
    except SweeprofError:
        raise
    except Exception as error:
        kind = kind_of_model(path)
        noun = "SavedModel" if kind == SAVED_MODEL else f"{kind} file"
        message = f"cannot be read as a {noun}: {message_of(error).rstrip('.')}."
        raise UserError([Problem("model.path", path, message)]) from error


def keras_model(path: str) -> keras.Model:
    """Return a model that Keras has saved, or a layer that runs a SavedModel of TensorFlow."""
    model: keras.Model
    saving = package("keras", "tensorflow").saving  # an error of this import is not one of the file
    with _reading(path):
        if kind_of_model(path) == SAVED_MODEL:
            model = import_module("sweeprof.backends.tensorflow.files").SavedModel(path)
        else:
            model = saving.load_model(_existing(path), compile=False)
    return model


def torch_module(path: str) -> torch.nn.Module:
    """Return the module of a program that ``torch.export.save`` has written."""
    export = package("torch.export", "torch")
    model = import_module("sweeprof.backends.torch.model")
    with _reading(path):
        module: torch.nn.Module = model.module_of_program(export.load(_existing(path)))
    return module


def inputs(path: str, sizes: Mapping[str, Any]) -> ModelInputs:
    """Return the description of the model's inputs: sizes with a name, such as ``sequence``, are those of ``inputs.NAME``.

    Whole numbers are below the number of rows of the table in which the model looks them up; masks are ones.
    """
    file = _existing(path)
    readers = {
        ".onnx": _onnx_inputs,
        **dict.fromkeys(KERAS, _keras_inputs),
        SAVED_MODEL: _saved_model_inputs,
        ".tflite": _tflite_inputs,
        ".xml": _openvino_inputs,
        ".pt2": _exported_inputs,
    }
    with _reading(path):
        return readers[kind_of_model(path)](file, sizes)


LOOKUPS = {"Gather": ((0, 1),), "GatherBlockQuantized": ((0, 1),), "EmbedLayerNormalization": ((2, 0), (4, 1))}
"""Positions of the tables that operators of ONNX files read the rows of, and of the indices."""


def _onnx_inputs(file: Path, sizes: Mapping[str, Any]) -> ModelInputs:
    graph = package("onnx", "onnxruntime").load(str(file), load_external_data=False).graph
    if not graph.output:  # which an empty file has not either, and is read without an error
        raise ValueError("it has no outputs")
    helper = package("onnx.helper", "onnxruntime")
    weights = {weight.name: weight.dims for weight in graph.initializer}
    inputs = {value.name: value.type.tensor_type for value in graph.input if value.name not in weights}
    source = {name: name for name in inputs}
    rows: dict[str, int] = {}
    for node in graph.node:
        if node.op_type in ("Cast", "Identity"):
            if node.input[0] in source:
                source[node.output[0]] = source[node.input[0]]
            continue
        if any(attribute.name in ("axis", "gather_axis") and attribute.i != 0 for attribute in node.attribute):
            continue
        for table, indices in LOOKUPS.get(node.op_type, ()):
            if max(table, indices) < len(node.input):
                dims, name = weights.get(node.input[table]), source.get(node.input[indices])
                if dims and name is not None:
                    rows[name] = min(dims[0], rows.get(name, dims[0]))
    arrays = {}
    for name, tensor in inputs.items():
        sides = [dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None for dim in tensor.shape.dim]
        dtype = str(helper.tensor_dtype_to_np_dtype(tensor.elem_type))
        arrays[name] = _Array(sides, dtype, rows.get(name))
    return _described(arrays, sizes, has_fixed_batch=True)


def _keras_inputs(file: Path, sizes: Mapping[str, Any]) -> ModelInputs:
    model = keras_model(str(file))
    embedding = package("keras.layers", "tensorflow").Embedding
    arrays = {}
    for tensor in model.inputs:
        tables = [layer for layer in model.layers if isinstance(layer, embedding) and layer.input is tensor]
        arrays[tensor.name] = _Array(tensor.shape, tensor.dtype, tables[-1].input_dim if tables else None)
    return _described(arrays, sizes)


def _saved_model_inputs(file: Path, sizes: Mapping[str, Any]) -> ModelInputs:
    model: Any = keras_model(str(file))
    arrays = {name: _Array(spec.shape, spec.dtype.name) for name, spec in model.input_specs().items()}
    return _described(arrays, sizes, "positional")


def _tflite_inputs(file: Path, sizes: Mapping[str, Any]) -> ModelInputs:
    interpreter = package("ai_edge_litert.interpreter", "litert").Interpreter(model_path=str(file))
    arrays = {}
    for detail in interpreter.get_input_details():
        arrays[detail["name"]] = _Array(detail["shape_signature"].tolist(), detail["dtype"].__name__)
    return _described(arrays, sizes)


def _openvino_inputs(file: Path, sizes: Mapping[str, Any]) -> ModelInputs:
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]  # it sends statistics of use to a server
    graph = package("openvino", "openvino").Core().read_model(str(file))
    arrays = {}
    for slot in graph.inputs:
        sides = [None if side.is_dynamic else side.get_length() for side in slot.partial_shape]
        arrays[slot.get_any_name()] = _Array(sides, str(slot.element_type.to_dtype()))
    return _described(arrays, sizes, has_fixed_batch=True)


def _exported_inputs(file: Path, sizes: Mapping[str, Any]) -> ModelInputs:
    program = package("torch.export", "torch").load(file)
    args, kwargs = program.example_inputs
    names = program.module_call_graph[0].signature.forward_arg_names or map(str, range(len(args)))
    tensors = {**dict(zip(names, args, strict=False)), **kwargs}
    rows = {}
    placeholders = []
    for node in program.graph.nodes:
        if node.name in program.graph_signature.user_inputs:
            placeholders.append(node)
        elif str(node.target) == "aten.embedding.default":
            rows[node.args[1]] = int(node.args[0].meta["val"].shape[0])
    arrays, defaults = {}, {}
    for (name, tensor), placeholder in zip(tensors.items(), placeholders, strict=True):
        sides = placeholder.meta["val"].shape
        for axis, side in enumerate(sides):
            if axis and not isinstance(side, int):
                defaults[f"size_{axis}"] = int(tensor.shape[axis])
        arrays[name] = _Array(sides, str(tensor.dtype).removeprefix("torch."), rows.get(placeholder))
    pass_as: Literal["keywords", "positional"] = "keywords" if kwargs else "positional"
    return _described(arrays, {**defaults, **sizes}, pass_as, has_fixed_batch=True)


def _described(
    arrays: Mapping[str, _Array],
    sizes: Mapping[str, Any],
    pass_as: Literal["keywords", "positional"] = "keywords",
    has_fixed_batch: bool = False,
) -> ModelInputs:
    """Return the description; the first axis of every input is the batch, and a side without a number is one of ``sizes``.

    Args:
        arrays: the inputs by their names.
        sizes: the config's ``inputs``, and defaults.
        pass_as: how the model takes them.
        has_fixed_batch: True if the model takes no other batch than that of its file, where that is a number.
    """
    sides: dict[str, list[list[str]]] = {}  # of each input, the terms of each side
    symbols: list[str] = []
    for name, array in arrays.items():
        sides[name] = []
        for axis, side in enumerate(array.sides):
            if axis == 0:
                continue
            terms = [f"size_{axis}"]
            if isinstance(side, int | str) and side != -1:
                terms = _terms(str(side))
            sides[name].append(terms)
            symbols += [term for term in terms if not term.isdigit()]
    check_sizes(sizes, symbols)
    missing = [symbol for symbol in dict.fromkeys(symbols) if symbol not in sizes]
    if missing:
        keys = " ".join(f"inputs.{symbol}=…" for symbol in missing)
        raise UserError([Problem("inputs", dict(sizes), f"lacks sizes that the file leaves open: add {keys}")])
    # Keys and values of the past may be none, as before the first token.
    used = {name: size(sizes, name, 1, may_be_empty=name.startswith("past")) for name in symbols}
    specs = {}
    batches = []
    for name, array in arrays.items():
        shape = tuple(_length(terms, used) for terms in sides[name])
        if array.dtype.startswith(("float", "bfloat", "complex")):
            specs[name] = ArraySpec(shape, array.dtype)
        elif name.lower().endswith("mask"):
            specs[name] = ArraySpec(shape, array.dtype, low=1)
        else:
            specs[name] = ArraySpec(shape, array.dtype, high=array.rows or 2)
        if has_fixed_batch and array.sides and isinstance(array.sides[0], int):
            batches.append(array.sides[0])
    only = min(batches, default=None)
    return ModelInputs(specs, pass_as, sizes=used, batch_size=only)


def _terms(side: str) -> list[str]:
    """Return the sizes and numbers whose sum a side is: ``past_sequence_length + sequence_length`` has two."""
    terms = [term.strip() for term in side.split("+")]
    if all(term.isidentifier() or term.isdigit() for term in terms):
        return terms
    return [side]


def _length(terms: list[str], sizes: Mapping[str, int]) -> int:
    return sum(int(sizes.get(term, term)) for term in terms)
