"""Counts a torch module in one dispatch pass over shapes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from sweeprof.backends import Build
from sweeprof.backends.torch.building import build_on_meta, built, copied_to_meta, device_of, materialised
from sweeprof.backends.torch.callsites import CallSites, tensors_in
from sweeprof.backends.torch.dispatch import CountingMode, NotOnShapes
from sweeprof.backends.torch.liveness import LiveBytes
from sweeprof.backends.torch.model import on_device
from sweeprof.backends.torch.rows import rows_of
from sweeprof.backends.torch.state import modules_of, tensors_among, unchanged
from sweeprof.counting.formulas import DEFAULTS, FormulaFailed, Formulas
from sweeprof.measuring.inputs import Inputs
from sweeprof.measuring.timing import without_collection
from sweeprof.results.layers import LayerTable
from sweeprof.results.operators import OwnCounts

__all__ = ["build_on_meta", "count_built", "count_layers", "in_inference"]

ON_SHAPES = "shapes"
FOR_REAL = "real forward"
_FLEX_ATTENTION = {"_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG": True, "_validate_device": lambda *_: None}
"""Settings of torch's flex attention while it is counted: no warning that it is not compiled, and the meta device is allowed."""


def count_built(build: Build, inputs: Inputs, formulas: Formulas = DEFAULTS) -> LayerTable:
    """The layers of the module that ``build`` makes, in inference mode: made on meta, or for real where that cannot be.

    Raises:
        Exception: whatever the builder raised, or the module in a forward for real.
    """
    try:
        module = build_on_meta(build)
    except Exception:  # whatever it is, building for real either works or reports it
        module = built(build)
    with without_collection():
        try:
            return _over_shapes(in_inference(module), inputs, formulas)
        except NotOnShapes:  # its forward needs values, which a module made on meta has not
            pass
    return count_layers(in_inference(built(build)), inputs, formulas)


def in_inference(module: torch.nn.Module) -> torch.nn.Module:
    """The module in inference mode; one that is already is not told again."""
    return module.eval() if any(inner.training for inner in modules_of(module)) else module


def count_layers(module: torch.nn.Module, inputs: Inputs, formulas: Formulas = DEFAULTS) -> LayerTable:
    """The layers of ``module`` for one step on ``inputs``, in the mode the module is in; it is left as it was found.

    First over shapes; then, for a forward that asks for values, for real. A module on the meta device has none: there, control
    flow that depends on values is listed as uncovered, and where the forward does not run at all, the table has the parameters
    and buffers of every layer, and ``LayerTable.uncounted`` says why it has nothing else.

    Raises:
        Exception: whatever the module raised in the real forward.
    """
    with without_collection():
        try:
            return _over_shapes(module, inputs, formulas)
        except NotOnShapes as error:
            reason = str(error)
        module = materialised(uncompiled(module), on_device(inputs, "meta"))
        device = device_of(module)
        if device is not None and device.type == "meta":
            return _without_values(module, inputs, formulas, reason)
        try:
            return _count(module, on_device(inputs, device or "cpu"), formulas, f"{FOR_REAL}: {reason}")
        except FormulaFailed as failed:
            raise failed.error from None


def _over_shapes(module: torch.nn.Module, inputs: Inputs, formulas: Formulas) -> LayerTable:
    """The layers as counted over shapes.

    First on the module itself; then on a copy that is on the meta device altogether, for a forward that insists on one device;
    then with the constants that the forward makes on meta too, for one that writes what it computed into them.

    Raises:
        NotOnShapes: the forward raised something each time; the message is that of the first.
    """
    shapes = on_device(inputs, "meta")
    module = materialised(uncompiled(module), shapes)
    first: Exception | None = None
    for is_copy, constants in ((False, True), (True, True), (True, False)):
        try:
            counted = copied_to_meta(module) if is_copy else module
            return _count(counted, shapes, formulas, ON_SHAPES, constants=constants)
        except FormulaFailed as failed:
            raise failed.error from None
        except Exception as error:  # a forward may raise anything when it meets a meta tensor
            first = first or error
    assert first is not None
    raise NotOnShapes(message_of(first)) from first


def _without_values(module: torch.nn.Module, inputs: Inputs, formulas: Formulas, reason: str) -> LayerTable:
    """Return the table of a module on the meta device whose forward needs values: its weights, and counts as far as possible."""
    try:
        return _count(module, on_device(inputs, "meta"), formulas, ON_SHAPES, skips_branches=True)
    except FormulaFailed as failed:
        raise failed.error from None
    except Exception:  # the forward asks for values in Python too
        rows = rows_of(CallSites(module, formulas))
    rows = tuple(replace(row, macs=None, flops=None, ops=None, act_bytes=None) for row in rows)
    why = f"its forward needs values, and the model is on the meta device: {reason}"
    return LayerTable(rows, method="weights only", uncounted=why)


def uncompiled(module: torch.nn.Module) -> torch.nn.Module:
    """Return the module that was passed to ``torch.compile``, or the module itself if it is not compiled."""
    original: torch.nn.Module = getattr(module, "_orig_mod", module)
    return original


def _count(  # how the mode treats what has no values
    module: torch.nn.Module,
    inputs: Inputs,
    formulas: Formulas,
    method: str,
    *,
    constants: bool = True,
    skips_branches: bool = False,
) -> LayerTable:
    on_shapes = method == ON_SHAPES
    given = tensors_in((inputs.args, inputs.kwargs))
    sites = CallSites(module, formulas)
    modules = list(sites.paths)
    protected = [tensor for tensor in tensors_among(modules) if not tensor.is_meta] if on_shapes else []
    live = LiveBytes(sites.where, [tensor for tensor in given if tensor.layout == torch.strided])
    mode = CountingMode(sites, live, formulas, on_shapes, protected, constants, skips_branches)
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


def message_of(error: Exception) -> str:
    """Return the message of an error in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if isinstance(error, NotOnShapes):
        return lines[0]
    return f"{type(error).__name__}: {lines[0]}"[:200] if lines else type(error).__name__


@contextmanager
def slow_paths() -> Iterator[None]:
    """Switch off the fused kernels that hide attention from the dispatcher, compiled submodules, and compiling flex attention."""
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    flex: Any = sys.modules.get("torch.nn.attention.flex_attention")
    settings = {name: getattr(flex, name) for name in _FLEX_ATTENTION if hasattr(flex, name)}
    try:
        with ExitStack() as stack:
            if "torch._dynamo" in sys.modules:
                stack.enter_context(torch.compiler.set_stance("force_eager"))
            for name in settings:
                setattr(flex, name, _FLEX_ATTENTION[name])
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)
        for name, setting in settings.items():
            setattr(flex, name, setting)


NAME = "flop_counter"


def own_counts(build: Build, inputs: Inputs) -> OwnCounts:
    """``torch.utils.flop_counter`` over one forward in inference mode; nothing is run."""
    shapes = on_device(inputs, "meta")
    try:
        module = copied_to_meta(in_inference(materialised(build_on_meta(build), shapes)))
        with torch.no_grad(), slow_paths(), FlopCounterMode(display=False) as counter:
            shapes.call(module)
    except Exception as error:  # a model may refuse shapes in any way
        return OwnCounts({}, {NAME: f"the model does not run on shapes: {message_of(error)}"})
    return OwnCounts({NAME: counter.get_total_flops()})
