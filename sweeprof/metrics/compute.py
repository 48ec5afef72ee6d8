"""What a step computes: multiply-accumulates (MACs), floating-point operations (FLOPs) and textbook operations.

A MAC is one multiplication and one addition in a matrix product, convolution, attention or gate; biases, norms, activations and
pooling are none. A FLOP is not a MAC: two for each MAC, and what the rest does by the table of docs/counting.md. Counts are of
the whole batch.
"""

from __future__ import annotations

from collections.abc import Mapping

from sweeprof.metrics.metric import Estimate, Missing, metric
from sweeprof.results.layers import LayerTable, Training
from sweeprof.results.measurement import Number
from sweeprof.results.record import Warning


@metric(name="compute/macs", unit="MAC", better="lower")
def macs(layers: LayerTable) -> Estimate:
    """Multiply-accumulates of one forward of the whole batch."""
    return _counted(layers.uncovered, layers.macs)


@metric(name="compute/macs_per_sample", unit="MAC", better="lower")
def macs_per_sample(layers: LayerTable, batch_size: int) -> Estimate:
    """Multiply-accumulates of one forward over the batch size."""
    return _counted(layers.uncovered, _over(layers.macs, batch_size))


@metric(name="compute/flops", unit="FLOP", better="lower")
def flops(layers: LayerTable) -> Estimate | Missing:
    """Floating-point operations of one forward of the whole batch."""
    return _known(layers.uncovered, layers.flops, "FLOPs")


@metric(name="compute/flops_per_sample", unit="FLOP", better="lower")
def flops_per_sample(layers: LayerTable, batch_size: int) -> Estimate | Missing:
    """Floating-point operations of one forward over the batch size."""
    return _known(layers.uncovered, None if layers.flops is None else _over(layers.flops, batch_size), "FLOPs")


@metric(name="compute/ops", unit="op", better="lower")
def ops(layers: LayerTable) -> Estimate | Missing:
    """Scalar operations of one forward as a textbook counts them: multiplications and additions apart, exp one."""
    return _known(layers.uncovered, layers.ops, "operations")


@metric(name="compute/coverage", unit="ratio", better="higher")
def coverage(layers: LayerTable) -> Estimate | Missing:
    """Share of the operator calls whose cost is known."""
    if layers.coverage is None:
        return Missing("this backend does not count operator calls")
    return Estimate(layers.coverage, "exact", detail=dict(layers.uncovered))


@metric(name="compute/macs_backward", unit="MAC", better="lower")
def macs_backward(training: Training) -> Estimate:
    """Multiply-accumulates of one backward of the whole batch."""
    return _of_training(training, training.backward_macs)


@metric(name="compute/flops_backward", unit="FLOP", better="lower")
def flops_backward(training: Training) -> Estimate:
    """Floating-point operations of one backward of the whole batch."""
    return _of_training(training, training.backward_flops)


@metric(name="compute/macs_train", unit="MAC", better="lower")
def macs_train(training: Training) -> Estimate:
    """Multiply-accumulates of a forward in training mode and its backward, for the whole batch."""
    return _of_training(training, training.forward_macs + training.backward_macs)


@metric(name="compute/flops_train", unit="FLOP", better="lower")
def flops_train(training: Training) -> Estimate:
    """Floating-point operations of a forward in training mode and its backward, for the whole batch; no optimizer step."""
    return _of_training(training, training.forward_flops + training.backward_flops)


def _over(whole: int, batch_size: int) -> Number:
    each, rest = divmod(whole, batch_size)
    return whole / batch_size if rest else each


def _known(uncovered: Mapping[str, int], value: Number | None, noun: str) -> Estimate | Missing:
    return Missing(f"this backend does not count {noun}") if value is None else _counted(uncovered, value)


def _of_training(training: Training, value: int) -> Estimate:
    if training.estimated is None:
        return _counted(training.uncovered, value)
    warning = Warning("backward_estimated", training.estimated, "read the count as twice the forward's")
    return Estimate(value, "estimated", warnings=(warning,))


def _counted(uncovered: Mapping[str, int], value: Number) -> Estimate:
    if not uncovered:
        return Estimate(value, "exact")
    names = ", ".join(f"{name} ×{calls}" for name, calls in sorted(uncovered.items()))
    return Estimate(
        value,
        "lower bound",
        warnings=(Warning("count_incomplete", f"no formula for {names}", "read the count as a lower bound"),),
    )
