"""Models in files: ``model=file model.path=net.onnx``, ``.keras``, ``.h5``, a SavedModel, ``.tflite``, ``.xml``, ``.pt2``."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sweeprof.datasets.auto import ArraySpec, ModelInputs
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

    shape: Sequence[int | str]
    """With the batch axis; a side that the file leaves open is its name."""
    dtype: str
    rows: int | None = None
    """Of the table in which the numbers are looked up; None: it is not known."""


def _existing(path: str) -> Path:
    found, kind = user_path(path), kind_of_model(path)
    if found.is_dir() and kind not in KINDS:
        raise UserError([Problem("model.path", path, "is a folder without a saved_model.pb: no SavedModel.")])
    if kind not in KINDS:
        allowed = f"is not a model file that is known here: {', '.join(KINDS)}."
        raise UserError([Problem("model.path", path, allowed)])
    if not found.is_file() and kind != SAVED_MODEL:
        raise UserError([Problem("model.path", path, "is not a file.")])
    return found


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
    if kind_of_model(path) == SAVED_MODEL:
        with _reading(path):
            loaded: keras.Model = import_module("sweeprof.backends.tensorflow.files").load(path)
        return loaded
    saving = package("keras", "tensorflow").saving
    with _reading(path):
        model: keras.Model = saving.load_model(_existing(path), compile=False)
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
    tables = {weight.name: weight.dims[0] for weight in graph.initializer if weight.dims}
    same = {value.name: value.name for value in graph.input}
    rows: dict[str, int] = {}
    for node in graph.node:
        if node.op_type in ("Cast", "Identity") and node.input[0] in same:
            same[node.output[0]] = same[node.input[0]]
        elif any(attribute.name in ("axis", "gather_axis") and attribute.i != 0 for attribute in node.attribute):
            continue
        for table, indices in LOOKUPS.get(node.op_type, ()):
            if max(table, indices) < len(node.input) and node.input[table] in tables and node.input[indices] in same:
                name, count = same[node.input[indices]], tables[node.input[table]]
                rows[name] = min(count, rows.get(name, count))
    weights = {weight.name for weight in graph.initializer}
    arrays = {}
    for value in graph.input:
        if value.name in weights:
            continue
        tensor = value.type.tensor_type
        shape = [
            dim.dim_value if dim.HasField("dim_value") else dim.dim_param or f"size_{axis}"
            for axis, dim in enumerate(tensor.shape.dim)
        ]
        dtype = str(helper.tensor_dtype_to_np_dtype(tensor.elem_type))
        arrays[value.name] = _Array(shape, dtype, rows.get(value.name))
    return _described(arrays, sizes, has_fixed_batch=True)


def _keras_inputs(file: Path, sizes: Mapping[str, Any]) -> ModelInputs:
    model = keras_model(str(file))
    embedding = package("keras.layers", "tensorflow").Embedding
    rows = {
        layer.input.name: layer.input_dim
        for layer in model.layers
        if isinstance(layer, embedding) and any(layer.input is tensor for tensor in model.inputs)
    }
    arrays = {
        tensor.name: _Array(
            [f"size_{axis}" if side is None else side for axis, side in enumerate(tensor.shape)],
            tensor.dtype,
            rows.get(tensor.name),
        )
        for tensor in model.inputs
    }
    return _described(arrays, sizes)


def _saved_model_inputs(file: Path, sizes: Mapping[str, Any]) -> ModelInputs:
    model: Any = keras_model(str(file))
    arrays = {
        name: _Array(
            [f"size_{axis}" if side is None else side for axis, side in enumerate(spec.shape)], spec.dtype.name
        )
        for name, spec in model.input_specs().items()
    }
    return _described(arrays, sizes, "positional")


def _tflite_inputs(file: Path, sizes: Mapping[str, Any]) -> ModelInputs:
    interpreter = package("ai_edge_litert.interpreter", "litert").Interpreter(model_path=str(file))
    arrays = {}
    for detail in interpreter.get_input_details():
        shape = [f"size_{axis}" if side == -1 else int(side) for axis, side in enumerate(detail["shape_signature"])]
        arrays[detail["name"]] = _Array(shape, detail["dtype"].__name__)
    return _described(arrays, sizes)


def _openvino_inputs(file: Path, sizes: Mapping[str, Any]) -> ModelInputs:
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]  # it sends statistics of use to a server
    graph = package("openvino", "openvino").Core().read_model(str(file))
    arrays = {}
    for slot in graph.inputs:
        shape = [
            f"size_{axis}" if side.is_dynamic else side.get_length() for axis, side in enumerate(slot.partial_shape)
        ]
        arrays[slot.get_any_name()] = _Array(shape, str(slot.element_type.to_dtype()))
    return _described(arrays, sizes, has_fixed_batch=True)


def _exported_inputs(file: Path, sizes: Mapping[str, Any]) -> ModelInputs:
    program = package("torch.export", "torch").load(file)
    args, kwargs = program.example_inputs
    signature = program.module_call_graph[0].signature
    names = [*signature.forward_arg_names] if signature.forward_arg_names else [str(i) for i in range(len(args))]
    tensors = {**dict(zip(names, args, strict=False)), **kwargs}
    nodes = {node.name: node for node in program.graph.nodes}
    placeholders = [nodes[name] for name in program.graph_signature.user_inputs]
    rows = {
        node.args[1]: int(node.args[0].meta["val"].shape[0])
        for node in program.graph.nodes
        if str(node.target) == "aten.embedding.default"
    }
    arrays, defaults = {}, {}
    for (name, tensor), placeholder in zip(tensors.items(), placeholders, strict=True):
        shape: list[int | str] = []
        for axis, side in enumerate(placeholder.meta["val"].shape):
            shape.append(side if isinstance(side, int) else f"size_{axis}")
            if axis and not isinstance(side, int):
                defaults[f"size_{axis}"] = int(tensor.shape[axis])
        arrays[name] = _Array(shape, str(tensor.dtype).removeprefix("torch."), rows.get(placeholder))
    return _described(arrays, {**defaults, **sizes}, "keywords" if kwargs else "positional", has_fixed_batch=True)


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
    sides = [side for array in arrays.values() for side in array.shape[1:] if isinstance(side, str)]
    symbols = {name: None for side in sides for name in _names_in(side)}
    check_sizes(sizes, symbols)
    missing = [symbol for symbol in symbols if symbol not in sizes]
    if missing:
        keys = " ".join(f"inputs.{symbol}=…" for symbol in missing)
        raise UserError([Problem("inputs", dict(sizes), f"lacks sizes that the file leaves open: add {keys}")])
    specs = {}
    for name, array in arrays.items():
        shape = tuple(_length(side, sizes) for side in array.shape[1:])
        if array.dtype.startswith(("float", "bfloat", "complex")):
            specs[name] = ArraySpec(shape, array.dtype)
        elif name.lower().endswith("mask"):
            specs[name] = ArraySpec(shape, array.dtype, low=1)
        else:
            specs[name] = ArraySpec(shape, array.dtype, high=array.rows or 2)
    used = {symbol: _size(symbol, sizes) for symbol in symbols}
    batches = {array.shape[0] for array in arrays.values() if array.shape and isinstance(array.shape[0], int)}
    only = min(batches) if has_fixed_batch and batches else None
    return ModelInputs(specs, pass_as, sizes=used, batch_size=only)


def _names_in(side: str) -> list[str]:
    """Return the names of the sizes that a side depends on: ``past_sequence_length + sequence_length`` has two."""
    terms = [term.strip() for term in side.split("+")]
    if not all(term.isidentifier() or term.isdigit() for term in terms):
        return [side]
    return [term for term in terms if not term.isdigit()]


def _length(side: int | str, sizes: Mapping[str, Any]) -> int:
    """Return the length of a side that is a number, one of the sizes, or a sum of such."""
    if isinstance(side, int):
        return side
    if _names_in(side) == [side]:
        return _size(side, sizes)
    terms = [term.strip() for term in side.split("+")]
    return sum(int(term) if term.isdigit() else _size(term, sizes) for term in terms)


def _size(name: str, sizes: Mapping[str, Any]) -> int:
    """Return the size of that name; keys and values of the past may be none, as before the first token."""
    return size(sizes, name, 1, may_be_empty=name.startswith("past"))
