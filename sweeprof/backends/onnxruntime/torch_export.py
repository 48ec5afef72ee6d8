"""A torch module, or a Keras model through torch, as an ONNX file.

Imports torch, which a measured process must not have in memory: a process that :mod:`sweeprof.backends.onnxruntime.exporting`
starts imports this module.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx_ir
import torch
from onnx_ir.passes.common import RemoveUnusedNodesPass
from onnxscript.optimizer import fold_constants_ir
from torch.export.graph_signature import OutputKind, TensorArgument

from sweeprof.backends import VARYING, channels_last, signature_of, specs_in, with_specs
from sweeprof.backends.model_files import Channels
from sweeprof.backends.onnxruntime.files import Exported
from sweeprof.backends.onnxruntime.graph import SCOPES, path_of_scopes
from sweeprof.counting.file_graph import WeightRole
from sweeprof.measuring.inputs import Inputs, TensorSpec
from sweeprof.nested import named_leaves

if TYPE_CHECKING:
    import keras


OpenAxes = Sequence[Sequence[int]]


def exported_module(
    module: torch.nn.Module, signature: Inputs, folder: Path, opset: int, open_axes: OpenAxes = ()
) -> Exported:
    """Return the file of a module, which is left as it was found.

    Raises:
        Exception: whatever the exporter raised.
    """
    with _in_inference(module):
        program = traced(module, signature, opset, open_axes)
    types = {path: type(inner).__name__ for path, inner in module.named_modules()}
    parameters = dict(module.named_parameters(remove_duplicate=False))
    buffers = dict(module.named_buffers(remove_duplicate=False))
    roles: dict[str, WeightRole] = {}
    seen: set[int] = set()
    for name in program.model.graph.initializers:
        tensor = parameters.get(name, buffers.get(name))
        if tensor is None or id(tensor) in seen:  # one with several names has a role under the first
            continue
        seen.add(id(tensor))
        if name not in parameters:
            roles[name] = "buffer"
        else:
            roles[name] = "parameter" if tensor.requires_grad else "frozen"
    return _exported(program, "first", types, roles, folder)


def _exported(
    program: torch.onnx.ONNXProgram,
    channels: Channels,
    types: Mapping[str, str],
    weights: Mapping[str, WeightRole],
    folder: Path,
) -> Exported:
    """Write the file of a traced graph, and return it with what its graph does not tell."""
    paths, batch = tidy(program.model, weights), fixed_batch(program)
    # Without what the exporter notes at every node, source lines for example: more than a small model weighs. Shapes within the
    # graph are left out too: those of recurrent networks are the example's, and the run-time believes them.
    graph = program.model.graph
    for node in graph.all_nodes():
        node.metadata_props.clear()
        for value in node.outputs:
            value.metadata_props.clear()
            value.shape = None
    for value in (*graph.inputs, *graph.initializers.values()):
        value.metadata_props.clear()
    path = str(folder / Exported.NAME)
    program.save(path)
    return Exported(path, channels, batch=batch, types=types, weights=weights, paths=paths)


def tidy(model: onnx_ir.Model, weights: Collection[str]) -> dict[str, str]:
    """Fold the constants of a traced graph in place; returns the path of the module of every node, by the node's name.

    Args:
        model: the graph.
        weights: initializers that are the model's own, and stay as they are.
    """
    scopes: dict[str | None, str] = {}
    """By the name of a result; the node that replaces another one has its results."""
    for node in model.graph:
        if SCOPES in node.metadata_props:
            scopes.update(dict.fromkeys([value.name for value in node.outputs], node.metadata_props[SCOPES]))

    def should_fold(node: onnx_ir.Node) -> bool | None:
        if any(value is not None and value.name in weights for value in node.inputs):
            return False
        return None

    fold_constants_ir(model, onnx_shape_inference=True, should_fold=should_fold)
    for node in model.graph:
        bias = node.inputs[2] if node.op_type in ("Conv", "ConvTranspose") and len(node.inputs) == 3 else None
        if bias is not None and bias.name not in weights:
            constant = onnx_ir.convenience.get_const_tensor(bias)
            if constant is not None and not constant.numpy().any():  # where there is none
                node.replace_input_with(2, None)
    RemoveUnusedNodesPass()(model)
    paths = {}
    for node in model.graph.all_nodes():
        scope = node.metadata_props.get(SCOPES)
        for value in node.outputs:
            scope = scope or scopes.get(value.name)
        paths[str(node.name)] = path_of_scopes(scope)
    return paths


def traced(module: torch.nn.Module, signature: Inputs, opset: int, open_axes: OpenAxes = ()) -> torch.onnx.ONNXProgram:
    """Return the graph of a module in the mode it is in; sizes of first axes stay open where the forward allows it.

    Args:
        module: of torch.
        signature: of the call.
        opset: of the graph.
        open_axes: further axes that stay open, for each tensor.
    """
    parameter = next(module.parameters(), None)
    device = None if parameter is None else parameter.device
    opened = iter(open_axes)
    axes_of: dict[torch.Tensor, tuple[int, ...]] = {}

    def made(spec: TensorSpec) -> torch.Tensor:
        axes = next(opened, ())
        shape = list(spec.shape)
        for axis in axes:
            shape[axis] = max(shape[axis], VARYING)
        tensor = torch.zeros(shape, dtype=getattr(torch, spec.dtype), device=device)
        axes_of[tensor] = (0, *axes)
        return tensor

    example = with_specs(signature, made)
    args, kwargs = example.args, dict(example.kwargs)
    shapes: Any = torch.export.ShapesCollection()  # type: ignore[no-untyped-call]
    for tensor in (*args, *kwargs.values()):
        if isinstance(tensor, torch.Tensor) and tensor.dim():
            shapes[tensor] = dict.fromkeys(axes_of[tensor], torch.export.Dim.AUTO)
    with _named_arguments(module, kwargs), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch, about torch itself
        program = torch.onnx.export(
            module,
            args,
            kwargs=kwargs,
            dynamo=True,
            dynamic_shapes=shapes.dynamic_shapes(module, args, kwargs),
            opset_version=opset,
            optimize=False,
            verbose=False,
        )
    assert program is not None
    _name_outputs(program)
    return program


@contextmanager
def _named_arguments(module: torch.nn.Module, kwargs: Mapping[str, object]) -> Iterator[None]:
    """Within the context, the forward declares each keyword argument: ``torch.export`` fails on those that ``**kwargs`` takes."""
    signature = inspect.signature(module.forward)
    declared = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    missing = set(kwargs) - {parameter.name for parameter in declared}
    if len(declared) == len(signature.parameters) or not missing:
        yield
        return
    own, forward = module.__dict__.get("forward"), module.forward

    def declaring(*args: object, **given: object) -> Any:
        return forward(*args, **given)

    added = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in kwargs if name in missing]
    declaring.__dict__["__signature__"] = signature.replace(parameters=[*declared, *added])
    module.__dict__["forward"] = declaring
    try:
        yield
    finally:
        del module.__dict__["forward"]
        if own is not None:
            module.__dict__["forward"] = own


def _name_outputs(program: torch.onnx.ONNXProgram) -> None:
    """Give the graph's outputs the names that the model has for them; the exporter names them by the operators that make them."""
    exported = program.exported_program
    if exported is None or exported.call_spec.out_spec is None:
        return
    specs = [spec.arg for spec in exported.graph_signature.output_specs if spec.kind is OutputKind.USER_OUTPUT]
    structure = exported.call_spec.out_spec.unflatten(range(len(specs)))
    names = [name for name, at in named_leaves(structure).items() if isinstance(specs[at], TensorArgument)]
    graph = program.model.graph
    if len(names) != len(graph.outputs) or names == [""]:
        return
    taken = {value.name for value in (*graph.inputs, *graph.initializers.values())}
    for node in graph:
        taken.update(value.name for value in node.outputs)
    renamed: set[int] = set()
    for value, name in zip(graph.outputs, names, strict=True):
        if name not in taken and id(value) not in renamed:  # a model may return one tensor twice
            value.name = name
            taken.add(name)
            renamed.add(id(value))


def fixed_batch(program: torch.onnx.ONNXProgram) -> int | None:
    """Return the first axis of the first input if tracing made a constant of it."""
    shapes: list[Any] = [value.shape for value in program.model.graph.inputs if value.shape]
    if not shapes:
        return None
    first = shapes[0][0]
    if isinstance(first, int):
        return first
    ranges: Any = program.exported_program.range_constraints  # type: ignore[union-attr]
    for symbol, sizes in ranges.items():
        if str(symbol) == str(first.value) and sizes.lower == sizes.upper:
            return int(sizes.lower)
    return None


@contextmanager
def _in_inference(module: torch.nn.Module) -> Iterator[None]:
    modes = {inner: inner.training for inner in module.modules()}
    try:
        for inner in modes:
            inner.__dict__["training"] = False
        yield
    finally:
        for inner, mode in modes.items():
            inner.__dict__["training"] = mode


def exported_keras(
    model: keras.Model,
    signature: Inputs,
    channel_axis: int | None,
    folder: Path,
    opset: int,
    open_axes: OpenAxes = (),
) -> Exported:
    """Return the file of a Keras model, which wants the channels of an image last.

    Raises:
        Exception: whatever the exporter raised.
    """
    from sweeprof.backends.keras.private import layer_types  # which imports Keras

    arranged = signature_of(signature, channel_axis)
    if not model.built:
        model.build(specs_in(arranged.args)[0].shape)
    if open_axes and channel_axis is not None:
        moved, order = [], channels_last(signature, channel_axis)
        for spec, axes in zip(specs_in((signature.args, dict(signature.kwargs))), open_axes, strict=True):
            moved.append([order(len(spec.shape)).index(axis) for axis in axes])
        open_axes = moved
    with _layers_as_modules(model) as root:
        program = traced(root, arranged, opset, open_axes)
    channels: Channels = "first" if channel_axis is None else "last"
    return _exported(program, channels, layer_types(model), _named_variables(program, model), folder)


class _Shim(torch.nn.Module):
    """Stands for a layer while its model is traced."""

    def __init__(self, call: Any) -> None:
        super().__init__()
        self._call = call

    def forward(self, *args: object, **kwargs: object) -> Any:
        return self._call(*args, **kwargs)


@contextmanager
def _layers_as_modules(model: keras.Layer) -> Iterator[torch.nn.Module]:
    """Within the context, the model's layers call modules of torch, whose names the exporter notes at the nodes."""
    from sweeprof.backends.keras.calls import as_called  # which imports Keras
    from sweeprof.backends.keras.private import named_layers, unsorted_outputs

    def called(*args: object, **kwargs: object) -> Any:
        given = as_called(model, Inputs(args, kwargs))
        return unsorted_outputs(model, model(*given.args, training=False, **given.kwargs))

    def called_layer(layer: keras.Layer, call: Any, *args: object, **kwargs: object) -> Any:
        return unsorted_outputs(layer, call(*args, **kwargs))

    root = _Shim(called)
    changed: list[keras.Layer] = []
    try:
        for path, layer in named_layers(model):
            if "call" in layer.__dict__:  # held a second time
                continue
            shim = type(type(layer).__name__, (_Shim,), {})(partial(called_layer, layer, layer.call))
            above, _, name = path.rpartition(".")
            root.get_submodule(above).add_module(name, shim)
            layer.__dict__["call"] = shim
            changed.append(layer)
        yield root
    finally:
        for layer in changed:
            del layer.__dict__["call"]


def _named_variables(program: torch.onnx.ONNXProgram, model: keras.Model) -> dict[str, WeightRole]:
    """Give the initializers that are variables of Keras the variables' names, and tell what they are."""
    from sweeprof.backends.keras.private import named_layers, own_parameters, own_state

    initializers = program.model.graph.initializers
    constants = program.exported_program.constants  # type: ignore[union-attr]
    by_place = {tensor.data_ptr(): name for name, tensor in constants.items() if isinstance(tensor, torch.Tensor)}
    trainable = {id(variable) for variable in model.trainable_variables}
    found: dict[str, WeightRole] = {}
    for path, layer in [("", model), *named_layers(model)]:
        parameters = own_parameters(layer)
        for position, variable in enumerate([*parameters, *own_state(layer)]):
            old = by_place.pop(variable.value.data_ptr(), None)
            if old is None or old not in initializers:
                continue
            value = initializers.pop(old)
            value.name = f"{path}.{variable.name}".removeprefix(".")
            initializers.add(value)
            if position >= len(parameters):
                found[value.name] = "buffer"
            else:
                found[value.name] = "parameter" if id(variable) in trainable else "frozen"
    return found
