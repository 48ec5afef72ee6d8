"""Counts a torch module in one dispatch pass over shapes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

from sweeprof.backends import Build
from sweeprof.backends.torch.building import build_on_meta, built, copied_to_meta, device_of, materialised
from sweeprof.backends.torch.callsites import CallSites, tensors_in
from sweeprof.backends.torch.dispatch import CountingMode
from sweeprof.backends.torch.feeding import on_device
from sweeprof.backends.torch.liveness import LiveBytes
from sweeprof.backends.torch.rows import rows_of
from sweeprof.backends.torch.state import modules_of, tensors_among, unchanged
from sweeprof.errors import Unsupported
from sweeprof.profiling.formulas import DEFAULTS, FormulaFailed, Formulas
from sweeprof.profiling.inputs import Inputs
from sweeprof.profiling.timing import without_collection
from sweeprof.results.layers import LayerTable

__all__ = ["build_on_meta", "count_built", "count_layers", "in_inference"]

ON_SHAPES = "shapes"
FOR_REAL = "real forward"


def count_built(build: Build, inputs: Inputs, formulas: Formulas = DEFAULTS) -> LayerTable:
    """The layers of the module that ``build`` makes, in inference mode: made on meta, or for real where that cannot be.

    Raises:
        Exception: whatever the builder raised, or the module in a forward for real.
    """
    try:
        module = build_on_meta(build)
    except Exception:  # whatever it is, building for real either works or reports it
        module = built(build)
    try:
        return count_layers(in_inference(module), inputs, formulas)
    except Unsupported:  # its forward needs values, which a module made on meta has not
        return count_layers(in_inference(built(build)), inputs, formulas)


def in_inference(module: torch.nn.Module) -> torch.nn.Module:
    """The module in inference mode; one that is already is not told again."""
    return module.eval() if any(inner.training for inner in modules_of(module)) else module


def count_layers(module: torch.nn.Module, inputs: Inputs, formulas: Formulas = DEFAULTS) -> LayerTable:
    """The layers of ``module`` for one step on ``inputs``, in the mode the module is in; it is left as it was found.

    First over shapes, on the module itself; then over shapes on a copy that is on the meta device altogether, for a forward
    that insists on one device; then, for a forward that asks for values, for real.

    Raises:
        Unsupported: the module is on the meta device, and its forward needs values.
        Exception: whatever the module raised in the real forward.
    """
    with without_collection():
        return _count_layers(module, inputs, formulas)


def _count_layers(module: torch.nn.Module, inputs: Inputs, formulas: Formulas) -> LayerTable:
    shapes = on_device(inputs, "meta")
    module = materialised(uncompiled(module), shapes)
    first: Exception | None = None
    for is_copy in (False, True):
        try:
            return _count(copied_to_meta(module) if is_copy else module, shapes, formulas, ON_SHAPES)
        except FormulaFailed as failed:
            raise failed.error from None
        except Exception as error:  # a forward may raise anything when it meets a meta tensor
            first = first or error
    assert first is not None
    device = device_of(module)
    if device is not None and device.type == "meta":
        raise Unsupported(f"its forward needs values, and the model is on the meta device: {said_by(first)}") from first
    try:
        return _count(module, on_device(inputs, device or "cpu"), formulas, f"{FOR_REAL}: {said_by(first)}")
    except FormulaFailed as failed:
        raise failed.error from None


def uncompiled(module: torch.nn.Module) -> torch.nn.Module:
    """What ``torch.compile`` was given, where it made the module."""
    original: torch.nn.Module = getattr(module, "_orig_mod", module)
    return original


def _count(module: torch.nn.Module, inputs: Inputs, formulas: Formulas, method: str) -> LayerTable:
    on_shapes = method == ON_SHAPES
    given = tensors_in((inputs.args, inputs.kwargs))
    sites = CallSites(module, formulas)
    modules = list(sites.paths)
    protected = [tensor for tensor in tensors_among(modules) if not tensor.is_meta] if on_shapes else []
    live = LiveBytes(sites.where, [tensor for tensor in given if tensor.layout == torch.strided])
    mode = CountingMode(sites, live, formulas, on_shapes, protected)
    gradients = torch.inference_mode if on_shapes else torch.no_grad
    with unchanged(module, values=not on_shapes, modules=modules), gradients(), slow_paths(), sites.tracking(), mode:
        inputs.call(module)
    return LayerTable(
        rows=rows_of(sites),
        uncovered=sites.uncovered,
        method=method,
        operator_calls=mode.operator_calls,
        liveness=live.result(sum(tensor.numel() * tensor.itemsize for tensor in given)),
    )


def said_by(error: Exception) -> str:
    """What an error says, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}"[:200] if lines else type(error).__name__


@contextmanager
def slow_paths() -> Iterator[None]:
    """Switch off the fused kernels that hide attention from the dispatcher, and compiled submodules."""
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with ExitStack() as stack:
            if "torch._dynamo" in sys.modules:
                stack.enter_context(torch.compiler.set_stance("force_eager"))
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)
