"""torch modules as ONNX files, by torch's own exporter: the graph as traced, with the module that each node belongs to."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from sweeprof.backends.onnxruntime.files import MODEL, Exported, Role
from sweeprof.backends.onnxruntime.signature import Signature, is_tensor
from sweeprof.backends.onnxruntime.tidying import tidy


def is_module(model: Any) -> bool:
    """Whether torch's exporter takes it."""
    return isinstance(model, torch.nn.Module)


def exported_module(module: torch.nn.Module, signature: Signature, folder: Path, opset: int) -> Exported:
    """The file of a module, which is left as it was found.

    Raises:
        Exception: whatever the exporter raised.
    """
    with _in_inference(module):
        program = traced(module, signature, opset)
    types = {path: type(inner).__name__ for path, inner in module.named_modules()}
    weights = _roles(module, program)
    paths = tidy(program.model, weights)
    return Exported(saved(program, folder), fixed_batch(program), paths, weights, types)


def saved(program: torch.onnx.ONNXProgram, folder: Path) -> str:
    """Write the graph without what the exporter notes at every node, source lines for example: more than a small model weighs.

    Shapes within the graph are left out too: those of recurrent networks are the example's, and the run-time believes them.
    """
    graph = program.model.graph
    for node in graph.all_nodes():
        node.metadata_props.clear()
        for value in node.outputs:
            value.metadata_props.clear()
            value.shape = None
    for value in (*graph.inputs, *graph.initializers.values()):
        value.metadata_props.clear()
    path = str(folder / MODEL)
    program.save(path)
    return path


def traced(module: torch.nn.Module, signature: Signature, opset: int) -> torch.onnx.ONNXProgram:
    """The graph of a module in the mode it is in; sizes of first axes stay open where the forward allows it."""
    parameter = next(module.parameters(), None)
    device = None if parameter is None else parameter.device
    args = tuple(_example(leaf, device) for leaf in signature.args)
    kwargs = {key: _example(leaf, device) for key, leaf in signature.kwargs.items()}
    shapes: Any = torch.export.ShapesCollection()  # type: ignore[no-untyped-call]
    for tensor in (*args, *kwargs.values()):
        if isinstance(tensor, torch.Tensor) and tensor.dim():
            shapes[tensor] = {0: torch.export.Dim.AUTO}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, about torch's own
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
    return program


def _example(leaf: Any, device: torch.device | None) -> Any:
    if not is_tensor(leaf):
        return leaf
    return torch.zeros(leaf["shape"], dtype=getattr(torch, leaf["dtype"]), device=device)


def fixed_batch(program: torch.onnx.ONNXProgram) -> int | None:
    """The first axis of the first input, where tracing made a constant of it."""
    shapes: list[Any] = [value.shape for value in program.model.graph.inputs if value.shape]
    first = shapes[0][0] if shapes and len(shapes[0]) else None
    if isinstance(first, int) or first is None:
        return first
    ranges: Any = {} if program.exported_program is None else program.exported_program.range_constraints
    single = {str(symbol): int(sizes.lower) for symbol, sizes in ranges.items() if sizes.lower == sizes.upper}
    return single.get(str(first.value))


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


def _roles(module: torch.nn.Module, program: torch.onnx.ONNXProgram) -> dict[str, Role]:
    parameters = dict(module.named_parameters(remove_duplicate=False))
    buffers = dict(module.named_buffers(remove_duplicate=False))
    return roles(program, parameters, buffers)


def roles(
    program: torch.onnx.ONNXProgram, parameters: Mapping[str, torch.Tensor], buffers: Mapping[str, torch.Tensor]
) -> dict[str, Role]:
    """What the graph's initializers are, by name; a tensor under several names has a role under the first."""
    found: dict[str, Role] = {}
    seen: set[int] = set()
    for name in program.model.graph.initializers:
        tensor = parameters.get(name, buffers.get(name))
        if tensor is None or id(tensor) in seen:
            continue
        seen.add(id(tensor))
        found[name] = "buffer" if name not in parameters else "parameter" if tensor.requires_grad else "frozen"
    return found
