"""Counts one training step over shapes: forward, the sum of every output as loss, backward."""

from __future__ import annotations

from typing import Any

import torch

from sweeprof.backends import Build
from sweeprof.backends.torch.building import build_on_meta, built, copied_to_meta, materialised
from sweeprof.backends.torch.callsites import CallSites, costs_of, tensors_in
from sweeprof.backends.torch.counting import count_layers, said_by, slow_paths, uncompiled
from sweeprof.backends.torch.dispatch import CountingMode, NotOnShapes
from sweeprof.backends.torch.feeding import on_device
from sweeprof.backends.torch.liveness import LiveBytes
from sweeprof.errors import Unsupported
from sweeprof.profiling.formulas import DEFAULTS, Formulas
from sweeprof.profiling.inputs import Inputs
from sweeprof.profiling.timing import without_collection
from sweeprof.results.layers import Training

BACKWARD_OVER_FORWARD = 2
"""An estimated backward: a product each for the gradient of the weights and for that of the inputs."""


def count_built_training(build: Build, inputs: Inputs, formulas: Formulas = DEFAULTS) -> Training:
    """:func:`count_training` of the module that ``build`` makes."""
    try:
        module = build_on_meta(build)
    except Exception:  # a module that cannot be made on meta is made for real
        module = built(build)
    return count_training(module, inputs, formulas)


def count_training(module: torch.nn.Module, inputs: Inputs, formulas: Formulas = DEFAULTS) -> Training:
    """One training step of ``module`` on ``inputs``, on a copy that is on the meta device.

    Gradients are those of every parameter that requires one, and of every input tensor that does.

    Where autograd cannot run there, the backward is estimated as twice the forward, and ``Training.estimated`` says why.

    Raises:
        Unsupported: no parameter requires a gradient.
        Exception: whatever the module raised in its forward, for real too.
    """
    with torch.inference_mode(False), without_collection():
        return _count_training(module, inputs, formulas)


def _count_training(module: torch.nn.Module, inputs: Inputs, formulas: Formulas) -> Training:
    shapes = on_device(inputs, "meta")
    module = materialised(uncompiled(module), shapes)
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise Unsupported("no parameter requires a gradient")
    try:
        return _counted(copied_to_meta(module).train(), shapes, formulas)
    except Unsupported:
        raise
    except Exception as error:  # a forward or a backward may raise anything on meta
        table = count_layers(module, inputs, formulas)
        flops = table.flops or 0
        return Training(
            table.macs,
            flops,
            BACKWARD_OVER_FORWARD * table.macs,
            BACKWARD_OVER_FORWARD * flops,
            None,
            f"the backward does not run on shapes: {said_by(error)}",
            dict(table.uncovered),
        )


def _counted(module: torch.nn.Module, inputs: Inputs, formulas: Formulas) -> Training:
    given = tensors_in((inputs.args, inputs.kwargs))
    sites = CallSites(module, formulas)
    live = LiveBytes(sites.where, [*given, *module.parameters(), *module.buffers()])
    sites.remember_gradients()
    mode = CountingMode(sites, live, formulas, on_shapes=True)
    with torch.enable_grad(), slow_paths(), sites.tracking(), mode:
        outputs = inputs.call(module)
        if (
            mode.higher_order
        ):  # torch compiles their functions for a backward, and what these close over is not seen here
            raise NotOnShapes(f"the backward of {', '.join(sorted(mode.higher_order))} is not known")
        forward = _totals(sites)
        loss = _loss(outputs)
        begun = _totals(sites)
        torch.autograd.grad(loss, _leaves(loss))
        done = _totals(sites)
    return Training(
        forward_macs=forward[0],
        forward_flops=forward[1],
        backward_macs=done[0] - begun[0],
        backward_flops=done[1] - begun[1],
        liveness=live.result(sum(tensor.numel() * tensor.itemsize for tensor in given)),
        uncovered=sites.uncovered,
    )


def _loss(outputs: Any) -> torch.Tensor:
    """The sum of everything that has a gradient.

    Raises:
        Unsupported: nothing has.
    """
    sums = [tensor.sum() for tensor in tensors_in(outputs) if tensor.requires_grad]
    if not sums:
        raise Unsupported("no output depends on a parameter that requires a gradient")
    total = sums[0]
    for further in sums[1:]:
        total = total + further
    return total.real if total.is_complex() else total


def _leaves(loss: torch.Tensor) -> list[torch.Tensor]:
    """Whatever the loss depends on that wants a gradient: parameters and inputs, also such that the forward got elsewhere."""
    found: list[torch.Tensor] = []
    waiting: list[Any] = [loss.grad_fn]
    seen = {loss.grad_fn, None}
    while waiting:
        node = waiting.pop()
        if hasattr(node, "variable"):
            found.append(node.variable)
        following = {after for after, _ in node.next_functions} - seen
        seen |= following
        waiting.extend(following)
    return found


def _totals(sites: CallSites) -> tuple[int, int]:
    """MACs and FLOPs so far."""
    counted = [costs_of(call) for call in (*sites.calls, sites.outside)]
    return sum(macs for macs, _, _ in counted), sum(flops for _, flops, _ in counted)
