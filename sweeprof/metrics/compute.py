"""Counts: parameters, multiply-accumulates (MACs), FLOPs, activations, operators, files, and the frameworks' own counts."""

from __future__ import annotations

from collections.abc import Mapping

from sweeprof.metrics.metric import Estimate, Missing, Result, metric
from sweeprof.results.artifact import Artifact
from sweeprof.results.layers import LayerRow, LayerTable, Training
from sweeprof.results.measurement import Number
from sweeprof.results.operators import Operators, OwnCounts
from sweeprof.results.record import Warning


@metric(name="params/total", unit="params", better="lower")
def total(weights: LayerTable) -> int:
    """Unique parameters, trainable and frozen."""
    return weights.params


@metric(name="params/trainable", unit="params", better=None)
def trainable(weights: LayerTable) -> int:
    """Unique parameters that an optimizer may change."""
    return weights.trainable


@metric(name="params/frozen", unit="params", better=None)
def frozen(weights: LayerTable) -> int:
    """Unique parameters that no optimizer may change."""
    return weights.params - weights.trainable


@metric(name="params/buffers", unit="params", better=None)
def buffers(weights: LayerTable) -> int:
    """Elements of persistent state that no optimizer sees, such as the moving statistics of batch norms."""
    return weights.buffers


@metric(name="size/params_bytes", unit="B", better="lower")
def params_bytes(weights: LayerTable) -> Number:
    """Bytes of all unique parameters in their own data types, or in those that a module declares."""
    return weights.params_bytes


@metric(name="size/params_bits", unit="bit", better="lower")
def params_bits(weights: LayerTable) -> Number:
    """Bits of all unique parameters in their own data types, or in those that a module declares."""
    bits = 8 * weights.params_bytes
    return int(bits) if bits == int(bits) else bits


@metric(name="size/buffers_bytes", unit="B", better=None)
def buffers_bytes(weights: LayerTable) -> Number:
    """Bytes of persistent state that no optimizer sees."""
    return weights.buffers_bytes


@metric(name="size/artifact_bytes", unit="B", better="lower")
def artifact_bytes(artifact: Artifact) -> int:
    """Length of the serialised model that the run-time loads, all of its files together."""
    return artifact.bytes


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


_UNKNOWN = Missing("this backend does not follow activations")


@metric(name="memory/act_sum_bytes", unit="B", better="lower")
def act_sum(layers: LayerTable) -> Result:
    """Bytes of everything that calls without calls inside return in one forward."""
    return _UNKNOWN if layers.act_bytes is None else layers.act_bytes


@metric(name="memory/act_peak_layer_bytes", unit="B", better="lower")
def act_peak_layer(layers: LayerTable) -> Result:
    """Largest sum of input and output bytes over the calls without calls inside."""
    rows = [row for row in layers.rows if row.act_bytes and row.input_bytes is not None]
    if not rows:
        return _UNKNOWN
    largest = max(rows, key=_both)
    return Estimate(_both(largest), "exact", detail={"layer": largest.path})


@metric(name="memory/act_peak_live_bytes", unit="B", better="lower")
def act_peak_live(layers: LayerTable) -> Result:
    """Largest sum of the activations alive at once in one forward, each storage once, without inputs and parameters."""
    live = layers.liveness
    return _UNKNOWN if live is None else Estimate(live.peak_bytes, "exact", detail={"layer": live.peak_at})


@metric(name="memory/footprint_est_bytes", unit="B", better="lower")
def footprint(layers: LayerTable) -> Result:
    """Parameters, buffers and the peak of live activations of one forward."""
    live = layers.liveness
    if live is None:
        return _UNKNOWN
    value = layers.params_bytes + layers.buffers_bytes + live.peak_bytes
    return Estimate(value, "estimated", detail={"layer": live.peak_at})


@metric(name="memory/act_peak_live_bytes_train", unit="B", better="lower")
def act_peak_live_train(training: Training) -> Result:
    """Largest sum of activations and gradients alive at once in one training step, each storage once."""
    live = training.liveness
    if live is None:
        return Missing(training.estimated or _UNKNOWN.reason)
    return Estimate(live.peak_bytes, "exact", detail={"layer": live.peak_at})


@metric(name="memory/footprint_est_bytes_train", unit="B", better="lower")
def footprint_train(layers: LayerTable, training: Training, optimizer_states: int = 0) -> Result:
    """Parameters, buffers, the peak of activations and gradients, and an optimizer's states of the parameters' size.

    ``optimizer_states`` is 0 for plain SGD, 1 with momentum, 2 for Adam.
    """
    live = training.liveness
    if live is None:
        return Missing(training.estimated or _UNKNOWN.reason)
    value = (1 + optimizer_states) * layers.params_bytes + layers.buffers_bytes + live.peak_bytes
    return Estimate(value, "estimated", detail={"layer": live.peak_at})


def _both(row: LayerRow) -> float:
    return (row.input_bytes or 0) + (row.output_bytes or 0)


NOTHING = Missing("no operator of the framework ran in the step")


@metric(name="operators/calls", unit="calls", better="lower")
def calls(operators: Operators) -> Estimate:
    """Operator calls in one step, those made within operators included."""
    made = sum(row.calls for row in operators.rows)
    return _of_steps(operators, made if made % 1 else int(made))


@metric(name="operators/kinds", unit="operators", better=None)
def kinds(operators: Operators) -> Estimate:
    """How many different operators one step runs."""
    return Estimate(len(operators.totals()), "exact")


@metric(name="operators/self_s", unit="s", better="lower")
def self_s(operators: Operators) -> Estimate | Missing:
    """Seconds on the host inside operators in one traced step, each second once."""
    if not operators.rows:
        return NOTHING
    return _of_steps(operators, sum(row.self_s for row in operators.rows))


@metric(name="operators/slowest_share", unit="ratio", better=None)
def slowest_share(operators: Operators) -> Estimate | Missing:
    """Share of the host seconds inside operators that the operator with the most of them has; on an accelerator its seconds."""
    totals = operators.totals()
    if not totals:
        return NOTHING
    device = {total.operator: total.device_self_s or 0.0 for total in totals}
    seconds = device if any(device.values()) else {total.operator: total.self_s for total in totals}
    slowest = max(seconds, key=lambda name: seconds[name])
    whole = sum(seconds.values())
    if not whole:
        return Missing("no operator took a time that could be measured")
    return _of_steps(operators, seconds[slowest] / whole, operator=slowest)


@metric(name="operators/python_share", unit="ratio", better="lower")
def python_share(operators: Operators) -> Estimate | Missing:
    """Share of the host seconds of a traced step that is outside operators: Python, dispatch, and waiting for a device."""
    if not operators.rows:
        return NOTHING
    inside = sum(row.self_s for row in operators.rows) / operators.step_s
    return _of_steps(operators, max(0.0, 1.0 - inside))  # operators in two threads can take more than the step


def _of_steps(operators: Operators, value: float, **detail: str) -> Estimate:
    return Estimate(value, f"mean of {operators.steps} traced steps", detail={"n": operators.steps, **detail})


@metric(name="compat/tfprof", unit="FLOP", better="lower")
def tfprof(own_counts: OwnCounts) -> Result:
    """``total_float_ops`` of TensorFlow's profiler on the traced graph."""
    return _said(own_counts, "tfprof")


@metric(name="compat/xla", unit="FLOP", better="lower")
def xla(own_counts: OwnCounts) -> Result:
    """``flops`` of XLA's cost analysis of the compiled program."""
    return _said(own_counts, "xla")


@metric(name="compat/flop_counter", unit="FLOP", better="lower")
def flop_counter(own_counts: OwnCounts) -> Result:
    """``torch.utils.flop_counter`` on the model's operators: twice the MACs of the products it knows."""
    return _said(own_counts, "flop_counter")


def _said(found: OwnCounts, counter: str) -> Result:
    if counter in found.counts:
        return found.counts[counter]
    return Missing(found.reasons.get(counter, "it is no counter of this framework"))
