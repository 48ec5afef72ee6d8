"""Models in files: ``model=file model.path=net.onnx``, ``.keras``, ``.tflite`` or ``.pt2`` (``torch.export``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweeprof.datasets.auto import ArraySpec, ModelInputs
from sweeprof.errors import Problem, UserError
from sweeprof.model_sources import check_sizes, package, size

if TYPE_CHECKING:
    import keras
    import torch

SUFFIXES = (".onnx", ".keras", ".tflite", ".pt2")


def _existing(path: str) -> Path:
    found = Path(path).expanduser()
    if found.suffix not in SUFFIXES:
        allowed = f"is not a model file that is known here: {', '.join(SUFFIXES)}."
        raise UserError([Problem("model.path", path, allowed)])
    if not found.is_file():
        raise UserError([Problem("model.path", path, "is not a file.")])
    return found


def keras_model(path: str) -> keras.Model:
    """Return a model that Keras has saved."""
    model: keras.Model = package("keras", "tensorflow").saving.load_model(_existing(path), compile=False)
    return model


def torch_module(path: str) -> torch.nn.Module:
    """Return the module of a program that ``torch.export.save`` has written."""
    export = package("torch.export", "torch")
    module: torch.nn.Module = export.load(_existing(path)).module()
    for inner in module.modules():  # it has one mode, that of the export, and refuses to be told of it
        inner.training = False
    return module


def inputs(path: str, sizes: Mapping[str, Any]) -> ModelInputs:
    """Return the description of the model's inputs: sizes with a name, such as ``sequence``, are those of ``inputs.NAME``."""
    file = _existing(path)
    readers = {".onnx": _onnx_inputs, ".keras": _keras_inputs, ".tflite": _tflite_inputs, ".pt2": _exported_inputs}
    return readers[file.suffix](file, sizes)


def _onnx_inputs(file: Path, sizes: Mapping[str, Any]) -> ModelInputs:
    graph = package("onnx", "onnxruntime").load(str(file), load_external_data=False).graph
    helper = package("onnx.helper", "onnxruntime")
    weights = {weight.name for weight in graph.initializer}
    shapes: dict[str, Sequence[int | str]] = {}
    dtypes: dict[str, str] = {}
    for value in graph.input:
        if value.name in weights:
            continue
        tensor = value.type.tensor_type
        shapes[value.name] = [dim.dim_value if dim.HasField("dim_value") else dim.dim_param for dim in tensor.shape.dim]
        dtypes[value.name] = str(helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    return _described(shapes, dtypes, sizes)


def _keras_inputs(file: Path, sizes: Mapping[str, Any]) -> ModelInputs:
    model = keras_model(str(file))
    shapes = {
        tensor.name: [f"size_{axis}" if side is None else side for axis, side in enumerate(tensor.shape)]
        for tensor in model.inputs
    }
    return _described(shapes, {tensor.name: tensor.dtype for tensor in model.inputs}, sizes)


def _tflite_inputs(file: Path, sizes: Mapping[str, Any]) -> ModelInputs:
    interpreter = package("ai_edge_litert.interpreter", "litert").Interpreter(model_path=str(file))
    details = interpreter.get_input_details()
    shapes = {
        detail["name"]: [
            f"size_{axis}" if side == -1 else int(side) for axis, side in enumerate(detail["shape_signature"])
        ]
        for detail in details
    }
    return _described(shapes, {detail["name"]: detail["dtype"].__name__ for detail in details}, sizes)


def _exported_inputs(file: Path, sizes: Mapping[str, Any]) -> ModelInputs:
    program = package("torch.export", "torch").load(file)
    args, kwargs = program.example_inputs
    signature = program.module_call_graph[0].signature
    names = [*signature.forward_arg_names] if signature.forward_arg_names else [str(i) for i in range(len(args))]
    tensors = {**dict(zip(names, args, strict=False)), **kwargs}
    shapes = {name: [int(side) for side in tensor.shape] for name, tensor in tensors.items()}
    dtypes = {name: str(tensor.dtype).removeprefix("torch.") for name, tensor in tensors.items()}
    return _described(shapes, dtypes, sizes, "keywords" if kwargs else "positional")


def _described(
    shapes: Mapping[str, Sequence[int | str]],
    dtypes: Mapping[str, str],
    sizes: Mapping[str, Any],
    pass_as: str = "keywords",
) -> ModelInputs:
    """Return the description; the first axis of every input is the batch, and a size without a number is one of ``sizes``."""
    symbols = {side: None for shape in shapes.values() for side in shape[1:] if isinstance(side, str)}
    check_sizes(sizes, symbols)
    missing = [symbol for symbol in symbols if symbol not in sizes]
    if missing:
        keys = " ".join(f"inputs.{symbol}=…" for symbol in missing)
        raise UserError([Problem("inputs", dict(sizes), f"lacks sizes that the file leaves open: add {keys}")])
    specs = {}
    for name, shape in shapes.items():
        sides = tuple(size(sizes, side, 1) if isinstance(side, str) else int(side) for side in shape[1:])
        is_float = dtypes[name].startswith(("float", "bfloat"))
        specs[name] = ArraySpec(sides, dtypes[name], high=None if is_float else 2)
    used = {symbol: int(sizes[symbol]) for symbol in symbols}
    return ModelInputs(specs, "positional" if pass_as == "positional" else "keywords", sizes=used)
