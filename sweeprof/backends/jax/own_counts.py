"""What XLA's own cost analysis says of a model: of the program that it compiles, after its optimizations."""

from __future__ import annotations

from functools import partial

import jax

from sweeprof.backends.jax.arguments import parted
from sweeprof.backends.jax.model import JaxModel, forward_of, weights_of
from sweeprof.profiling.inputs import Inputs
from sweeprof.results.own_counts import OwnCounts

NAME = "xla"


def own_counts(model: JaxModel, inputs: Inputs) -> OwnCounts:
    """``flops`` of one forward in inference mode: 2 a multiply-accumulate and 1 an addition, multiplication or comparison of
    floating-point numbers; ``exp``, ``tanh`` and their like, which XLA calls transcendentals, are not in it. Nothing is run.
    """
    batch = model.put(inputs)
    with jax.default_device(model.device):
        weights, (form, arrays) = weights_of(model.native, batch), parted(batch)
        lowered = jax.jit(partial(forward_of(model.native), form)).lower(weights, arrays)
        found = lowered.compile().cost_analysis() or {}
    if "flops" not in found:
        return OwnCounts({}, {NAME: "the compiler of this device analyses no costs"})
    return OwnCounts({NAME: int(found["flops"])})
