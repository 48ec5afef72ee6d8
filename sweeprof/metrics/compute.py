"""Counts: parameters, multiply-accumulates (MACs), FLOPs, activations, operators, files, and the frameworks' own counts."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence

from sweeprof.metrics.metric import Estimate, Missing, Result, metric
from sweeprof.results.layers import LayerTable, Liveness, Training
from sweeprof.results.measurement import Artifact, Measurement, MetricInfo, Number
from sweeprof.results.observations import Operators, OwnCounts
from sweeprof.results.record import Warning
from sweeprof.text import one_line


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


@metric(name="params/pruned", unit="params", better=None)
def pruned(weights: LayerTable) -> int | Missing:
    """Parameters that a pruning mask (torch.nn.utils.prune) sets to zero; they are among the total."""
    if weights.pruned is None:
        return Missing("the model was built without values, which its pruning masks need")
    return weights.pruned


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
def macs(layers: LayerTable) -> Estimate | Missing:
    """Multiply-accumulates of one forward of the whole batch."""
    return counted(layers.uncovered, layers.macs, "MACs")


@metric(name="compute/macs_per_sample", unit="MAC", better="lower")
def macs_per_sample(layers: LayerTable, batch_size: int) -> Estimate | Missing:
    """Multiply-accumulates of one forward over the batch size."""
    return counted(layers.uncovered, layers.macs, "MACs", batch_size)


@metric(name="compute/flops", unit="FLOP", better="lower")
def flops(layers: LayerTable) -> Estimate | Missing:
    """Floating-point operations of one forward of the whole batch."""
    return counted(layers.uncovered, layers.flops, "FLOPs")


@metric(name="compute/flops_per_sample", unit="FLOP", better="lower")
def flops_per_sample(layers: LayerTable, batch_size: int) -> Estimate | Missing:
    """Floating-point operations of one forward over the batch size."""
    return counted(layers.uncovered, layers.flops, "FLOPs", batch_size)


@metric(name="compute/ops", unit="op", better="lower")
def ops(layers: LayerTable) -> Estimate | Missing:
    """Scalar operations of one forward as a textbook counts them: multiplications and additions separately, exp as one."""
    return counted(layers.uncovered, layers.ops, "operations")


@metric(name="compute/coverage", unit="ratio", better="higher")
def coverage(layers: LayerTable) -> Estimate | Missing:
    """Share of the operator calls whose cost is known."""
    if layers.coverage is None:
        return Missing("this backend does not count operator calls")
    return Estimate(layers.coverage, "exact", detail=dict(layers.uncovered))


@metric(name="compute/macs_backward", unit="MAC", better="lower")
def macs_backward(training: Training) -> Estimate | Missing:
    """Multiply-accumulates of one backward of the whole batch."""
    return _of_training(training, training.backward_macs)


@metric(name="compute/flops_backward", unit="FLOP", better="lower")
def flops_backward(training: Training) -> Estimate | Missing:
    """Floating-point operations of one backward of the whole batch."""
    return _of_training(training, training.backward_flops)


@metric(name="compute/macs_train", unit="MAC", better="lower")
def macs_train(training: Training) -> Estimate | Missing:
    """Multiply-accumulates of a forward in training mode and its backward, for the whole batch."""
    return _of_training(training, training.forward_macs + training.backward_macs)


@metric(name="compute/flops_train", unit="FLOP", better="lower")
def flops_train(training: Training) -> Estimate | Missing:
    """Floating-point operations of a forward in training mode and its backward, for the whole batch; no optimizer step."""
    return _of_training(training, training.forward_flops + training.backward_flops)


def _of_training(training: Training, value: int) -> Estimate | Missing:
    if training.estimated is None:
        return counted(training.uncovered, value, "training steps")
    warning = Warning("backward_estimated", training.estimated, "read the count as twice the forward's")
    return Estimate(value, "estimated", warnings=(warning,))


def counted(uncovered: Mapping[str, int], count: int | None, noun: str, batch_size: int = 1) -> Estimate | Missing:
    """Return a count over the batch size: a lower bound if there are operators without a formula."""
    if count is None:
        return Missing(f"this backend does not count {noun}")
    if batch_size == 0:
        return Missing("the batch has no samples")
    value = count / batch_size if count % batch_size else count // batch_size
    if not uncovered:
        return Estimate(value, "exact")
    names = ", ".join(f"{name} ×{calls}" for name, calls in sorted(uncovered.items()))
    warning = Warning("count_incomplete", f"no formula for {names}", "read the count as a lower bound")
    return Estimate(value, "lower bound", warnings=(warning,))


_UNKNOWN = Missing("this backend does not follow activations")


@metric(name="memory/act_sum_bytes", unit="B", better="lower")
def act_sum(layers: LayerTable) -> Result:
    """Bytes of everything that calls without calls inside return in one forward."""
    if layers.act_bytes is None:
        return _UNKNOWN
    return layers.act_bytes


@metric(name="memory/act_peak_layer_bytes", unit="B", better="lower")
def act_peak_layer(layers: LayerTable) -> Result:
    """Largest sum of input and output bytes over the calls without calls inside."""
    largest: Estimate | None = None
    for row in layers.rows:
        if row.act_bytes and row.input_bytes is not None:
            size = row.input_bytes + (row.output_bytes or 0)
            if largest is None or size > largest.value:
                largest = Estimate(size, "exact", detail={"layer": row.path})
    return largest or _UNKNOWN


@metric(name="memory/act_peak_live_bytes", unit="B", better="lower")
def act_peak_live(layers: LayerTable) -> Result:
    """Largest sum of the activations alive at once in one forward, each storage once, without inputs and parameters."""
    return _live_peak(layers.liveness)


@metric(name="memory/footprint_est_bytes", unit="B", better="lower")
def footprint(layers: LayerTable) -> Result:
    """Parameters, buffers and the peak of live activations of one forward."""
    return _live_peak(layers.liveness, resident=layers.params_bytes + layers.buffers_bytes)


@metric(name="memory/act_peak_live_bytes_train", unit="B", better="lower")
def act_peak_live_train(training: Training) -> Result:
    """Largest sum of activations and gradients alive at once in one training step, each storage once."""
    return _live_peak(training.liveness, training.estimated)


@metric(name="memory/footprint_est_bytes_train", unit="B", better="lower")
def footprint_train(layers: LayerTable, training: Training, optimizer_states: int | None = None) -> Result:
    """Parameters, buffers, the peak of activations and gradients, and the optimizer's states of the trainable parameters.

    ``optimizer_states``: states for each parameter, of its size: 0 for plain SGD, 1 with momentum, 2 for Adam; None: as many as the
    optimizer of the training step has.
    """
    states = training.optimizer_states if optimizer_states is None else optimizer_states
    if states is None:
        return Missing(
            "the states of an optimizer of your own are not known: optimizer_states says how many it keeps for each parameter"
        )
    resident = layers.params_bytes + layers.buffers_bytes + states * layers.trainable_bytes
    return _live_peak(training.liveness, training.estimated, resident)


def _live_peak(liveness: Liveness | None, reason: str | None = None, resident: Number | None = None) -> Result:
    """Return the peak of live tensors, with ``resident`` bytes an estimate of all memory; ``reason`` says why there is none."""
    if liveness is None:
        return Missing(reason or _UNKNOWN.reason)
    detail = {"layer": liveness.peak_at}
    if resident is None:
        return Estimate(liveness.peak_bytes, "exact", detail=detail)
    return Estimate(resident + liveness.peak_bytes, "estimated", detail=detail)


NOTHING = Missing("no operator of the framework ran in the step")


@metric(name="operators/self_s", unit="s", better="lower")
def self_s(operators: Operators) -> Estimate | Missing:
    """Seconds inside operators in one traced step, each second once: on an accelerator those of its kernels and copies alone."""
    if not operators.rows:
        return NOTHING
    if operators.device_s is None:
        return _of_steps(operators, sum(row.self_s for row in operators.rows))
    longest = [f"{one_line(kernel.name)[:60]} ({kernel.share:.0%})" for kernel in operators.kernels[:5]]
    return _of_steps(operators, operators.device_s, **({"kernels": ", ".join(longest)} if longest else {}))


@metric(name="operators/busy_share", unit="ratio", better=None)
def busy_share(operators: Operators) -> Estimate | Missing:
    """Share of a step in which the kernels or copies of an accelerator run, by its profiler; in the rest it is idle.

    The seconds of the kernels are those of traced steps, those of the step of steps without the profiler.
    """
    if operators.busy_share is None:
        return Missing(
            "there are no times of kernels: the model runs on the host, or the profiler records none of its device"
        )
    estimate = _of_steps(operators, operators.busy_share, idle=1 - operators.busy_share)
    return dataclasses.replace(estimate, warnings=operators.warnings)


@metric(name="operators/python_share", unit="ratio", better="lower")
def python_share(operators: Operators) -> Estimate | Missing:
    """Share of the host seconds of a traced step that is outside operators: Python, dispatch, and waiting for a device."""
    if not operators.rows:
        return NOTHING
    inside = sum(row.self_s for row in operators.rows) / operators.step_s
    return _of_steps(operators, max(0.0, 1.0 - inside))  # operators in two threads can take more than the step


def _of_steps(operators: Operators, value: float, **detail: object) -> Estimate:
    return Estimate(value, f"mean of {operators.steps} traced steps", detail={"n": operators.steps, **detail})


@metric(name="compat/tfprof", unit="FLOP", better="lower")
def tfprof(own_counts: OwnCounts) -> Result:
    """``total_float_ops`` of TensorFlow's profiler on the traced graph."""
    if "tfprof" in own_counts.counts:
        return own_counts.counts["tfprof"]
    return Missing(own_counts.reasons.get("tfprof", "it is no counter of this framework"))


# Metrics whose unit depends on the workload: one metric per unit, so that values in different units are never compared.


PLACEHOLDER = "units"
"""In the name and the unit of a metric stands for the unit of the workload."""
UNITS = ("tokens", "images", "pixels", "frames", "seconds of audio", "samples")
"""Common units of a workload; constraints and thresholds may name their metrics before anything is measured."""

NamedMeasurements = dict[str, Measurement]
"""Measurements of one combination by metric name."""


def depends_on_workload(info: MetricInfo) -> bool:
    """True if the unit of a metric is that of the workload."""
    return info.unit.startswith(f"{PLACEHOLDER}/") and PLACEHOLDER in info.name


def in_unit(info: MetricInfo, unit: str) -> MetricInfo:
    """Return the description of a metric for one unit of the workload, such as ``tokens``."""
    name = info.name.replace(PLACEHOLDER, re.sub(r"\W+", "_", unit.lower()).strip("_") or PLACEHOLDER)
    return dataclasses.replace(info, name=name, unit=info.unit.replace(PLACEHOLDER, unit, 1))


def in_units(infos: Sequence[MetricInfo], units: Iterable[str]) -> list[MetricInfo]:
    """Return the descriptions of metrics, and for each that depends on the workload those in all of the units."""
    units = list(units)
    found = {info.name: info for info in infos}
    for info in infos:
        if depends_on_workload(info):
            for unit in units:
                found.setdefault(in_unit(info, unit).name, in_unit(info, unit))
    return list(found.values())


def by_unit(
    infos: Sequence[MetricInfo], measured: Mapping[str, Mapping[str, Measurement]], named: Sequence[str] = ()
) -> tuple[tuple[MetricInfo, ...], dict[str, NamedMeasurements]]:
    """Return metrics and measurements in which every metric that depends on the workload is one metric per unit.

    A metric in a unit that is selected by its own name, as ``throughput/samples_per_s``, stays as it is. Where no combination has a
    value, the metric stays without a unit, unless the selected metrics have one in samples, which gives the same reasons.

    Args:
        infos: of the selected metrics.
        measured: by combination id and metric name.
        named: names of metrics that are there in any case, because a constraint uses them.
    """
    selected = {info.name for info in infos}
    found: dict[str, MetricInfo] = {}
    values: dict[str, NamedMeasurements] = {id: {} for id in measured}
    for info in infos:
        metrics = [info]
        if depends_on_workload(info):
            units: dict[str, None] = {}  # those of the values, then those that a constraint uses
            for own in measured.values():
                if own[info.name].value is not None:
                    units[own[info.name].unit.removesuffix(info.unit.removeprefix(PLACEHOLDER))] = None
            units.update(dict.fromkeys(unit for unit in UNITS if in_unit(info, unit).name in named))
            if units or in_unit(info, "samples").name in selected:
                metrics = [in_unit(info, unit) for unit in units]
        for one in metrics:
            if one.name in selected and one.name != info.name:
                continue
            found[one.name] = one
            for id, own in measured.items():
                measurement = own[info.name]
                if measurement.value is None or measurement.unit == one.unit:
                    values[id][one.name] = dataclasses.replace(measurement, name=one.name, unit=one.unit)
                elif one is info:
                    values[id][one.name] = measurement
                else:
                    reason = f"the work of this combination is counted in {measurement.unit.rpartition('/')[0]}"
                    values[id][one.name] = Measurement(one.name, one.unit, one.better, None, reason)
    return tuple(found.values()), values
