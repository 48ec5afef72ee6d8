"""Rates: what a step achieves, and what share of the machine that is.

Work is counted from shapes (:mod:`sweeprof.metrics.compute`), time is measured, and the machine's peak is the matrix product that
it was seen to do best (:class:`sweeprof.results.peaks.Peaks`), not a data sheet's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from sweeprof.metrics import compute
from sweeprof.metrics.latency import NOT_TRAINED, Rounds, forward_samples, over_rounds
from sweeprof.metrics.metric import Estimate, Missing, metric
from sweeprof.profiling.timing import Timing
from sweeprof.results.layers import LayerTable, Training
from sweeprof.results.peaks import Peaks


@metric(name="rate/flops_per_s", unit="FLOP/s", better="higher")
def flops_per_s(layers: LayerTable, timing: Rounds) -> Estimate | Missing:
    """Floating-point operations of one forward over its wall time."""
    return _rate(compute.flops.function(layers), timing, forward_samples)


@metric(name="rate/backward_flops_per_s", unit="FLOP/s", better="higher")
def backward_flops_per_s(training: Training, timing: Rounds) -> Estimate | Missing:
    """Floating-point operations of one backward over its wall time, within a training step."""
    if not timing[0].is_training:
        return NOT_TRAINED
    return _rate(compute.flops_backward.function(training), timing, lambda one: one.phases["backward"])


@metric(name="rate/flops_per_s_train", unit="FLOP/s", better="higher")
def flops_per_s_train(training: Training, timing: Rounds) -> Estimate | Missing:
    """Floating-point operations of a forward and its backward over the wall time of a whole training step."""
    if not timing[0].is_training:
        return NOT_TRAINED
    return _rate(compute.flops_train.function(training), timing)


@metric(name="rate/mfu", unit="ratio", better="higher")
def mfu(layers: LayerTable, timing: Rounds, peaks: Peaks) -> Estimate | Missing:
    """Model FLOPs utilisation: achieved FLOP/s of a forward over the machine's measured peak of a matrix product.

    Source: A. Chowdhery et al., "PaLM", 2022, appendix B, with a measured peak for the data sheet's.
    """
    return _rate(compute.flops.function(layers), timing, forward_samples, peaks.flops_per_s)


@metric(name="rate/mfu_train", unit="ratio", better="higher")
def mfu_train(training: Training, timing: Rounds, peaks: Peaks) -> Estimate | Missing:
    """Model FLOPs utilisation of a whole training step: no operation of the optimizer counts, its time does."""
    if not timing[0].is_training:
        return NOT_TRAINED
    return _rate(compute.flops_train.function(training), timing, peak=peaks.flops_per_s)


@metric(name="rate/realtime_factor", unit="ratio", better="higher")
def realtime_factor(
    timing: Rounds, sampling_rate: float = 16000, hop: float = 512, frame: float | None = None
) -> Estimate:
    """Seconds of a signal over the wall time of the forwards that process it, one for each hop; above 1 keeps up with it."""
    return over_rounds(timing, lambda seconds: times_realtime(seconds, sampling_rate, hop, frame), forward_samples)


def forwards_per_s(sampling_rate: float, hop: float, frame: float | None = None) -> float:
    """How many forwards a second of signal needs: frames of ``frame`` samples, each ``hop`` after the one before.

    Args:
        frame: None for one as long as a hop.

    Raises:
        ValueError: a number is not above zero, or a frame lasts longer than a second.
    """
    length = hop if frame is None else frame
    if not (hop > 0 and 0 < length <= sampling_rate):
        raise ValueError(f"no frames of {length:g} samples every {hop:g} in a second of {sampling_rate:g}")
    return (sampling_rate - length) / hop + 1


def times_realtime(seconds: float, sampling_rate: float, hop: float, frame: float | None = None) -> float:
    """How many times faster than the signal a model is whose forward takes ``seconds``: 16 for 2 ms, 16 kHz and hops of 512.

    Its inverse is the share of the time that the model is busy: 0.0625.
    """
    return 1 / (forwards_per_s(sampling_rate, hop, frame) * seconds)


def ops_to_flops(ops: float, sampling_rate: float, hop: float, frame: float | None = None) -> float:
    """Operations per second of signal from those of one forward: 3125 for 100 at 16 kHz and hops of 512."""
    return forwards_per_s(sampling_rate, hop, frame) * ops


def _rate(
    work: Estimate | Missing,
    timing: Rounds,
    samples_of: Callable[[Timing], Sequence[float]] = lambda one: one.samples,
    peak: float = 1.0,
) -> Estimate | Missing:
    """Counted ``work`` over measured seconds, with what there is to say of both."""
    if isinstance(work, Missing):
        return work
    amount = work.value
    if amount == 0:
        return Missing("it has no floating-point operations")
    rate = over_rounds(timing, lambda seconds: amount / seconds / peak, samples_of)
    return dataclasses.replace(rate, warnings=(*work.warnings, *rate.warnings))
