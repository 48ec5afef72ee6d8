"""Times: of a step and its phases, of layers, and the rates that follow.

Every figure comes from samples that lasted until the device was done.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from sweeprof.measuring.timing import Timing
from sweeprof.metrics import compute
from sweeprof.metrics.metric import Estimate, Missing, metric
from sweeprof.numbers import rounded
from sweeprof.passes.quality import Quality
from sweeprof.passes.timing import Concurrent, Loading
from sweeprof.results.environment import Peaks
from sweeprof.results.layer_times import OUTSIDE, LayerTimes
from sweeprof.results.layers import LayerTable, Training
from sweeprof.results.record import Warning
from sweeprof.results.statistics import mean_over_rounds, median_interval, percentile_needs, spread
from sweeprof.results.verdicts import INCOMPLETE

Rounds = tuple[Timing, ...]
"""One timing per round, each from a fresh process."""

PERCENTILES = (90, 95, 99)
NOT_TRAINED = Missing("mode=inference: a step is a forward alone; mode=training has all phases")
NOT_COMPILED = Missing("this backend does not compile")
NOT_TRACED = Missing("this backend does not trace a step apart from running it")
COMMANDED = Missing("mode=command: a step is a run of a program; see command/*")
GENERATED = Missing("mode=generation: a step is a whole generation; see generation/*")


@metric(name="latency/forward", unit="s", better="lower")
def forward(timing: Rounds) -> Estimate | Missing:
    """Wall time of one synchronised forward of the whole batch, with mode=training its loss too; the median of the samples.

    Over rounds it is the geometric mean of their medians.
    """
    return _of_generation(timing) or over_rounds(timing, samples_of=forward_samples)


@metric(name="latency/per_sample", unit="s", better="lower")
def per_sample(timing: Rounds, batch_size: int) -> Estimate | Missing:
    """Wall time of one forward over the batch size."""
    return _of_generation(timing) or over_rounds(timing, lambda seconds: seconds / batch_size, forward_samples)


@metric(name="latency/backward", unit="s", better="lower")
def backward(timing: Rounds) -> Estimate | Missing:
    """Wall time of one backward of the whole batch, within a training step."""
    return _phase(timing, "backward")


@metric(name="latency/update", unit="s", better="lower")
def update(timing: Rounds) -> Estimate | Missing:
    """Wall time of the optimizer's step, within a training step."""
    return _phase(timing, "update")


@metric(name="latency/iteration", unit="s", better="lower")
def iteration(timing: Rounds) -> Estimate | Missing:
    """Wall time of one whole training step: forward, loss, backward and the optimizer's step."""
    return _not_trained(timing) or over_rounds(timing)


@metric(name="latency/device", unit="s", better="lower")
def device(timing: Rounds) -> Estimate | Missing:
    """Time that an accelerator takes for the kernels and copies of one step, all of which are queued before it begins.

    A step is a forward, or with mode=training a whole training step. What the wall time has beyond it is waiting for the host.
    """
    missing = _without_device_times(timing)
    return missing or over_rounds(timing, samples_of=lambda timing: timing.device_s, are_of_steps=False)


@metric(name="latency/device_share", unit="ratio", better=None)
def device_share(timing: Rounds) -> Estimate | Missing:
    """Share of the wall time of a step that an accelerator takes for it: latency/device over the wall time."""
    missing = _without_device_times(timing)
    if missing is not None:
        return missing
    shares = [statistics.median(round.device_s) / round.median_s for round in timing]
    return replace(single(shares, timing), warnings=_warnings(timing))


def _without_device_times(timing: Rounds) -> Missing | None:
    missing = _of_generation(timing)
    for round in timing:
        if missing is None and not round.device_s:
            missing = Missing(round.device_reason or "an earlier version of sweeprof has not measured it")
    return missing


@metric(name="latency/p90", unit="s", better="lower")
def p90(timing: Rounds) -> Estimate | Missing:
    """90th percentile of the wall time of a single step: a forward, or with mode=training a whole training step."""
    return _percentile(timing, 90)


@metric(name="latency/p95", unit="s", better="lower")
def p95(timing: Rounds) -> Estimate | Missing:
    """95th percentile of the wall time of a single step: a forward, or with mode=training a whole training step."""
    return _percentile(timing, 95)


@metric(name="latency/p99", unit="s", better="lower")
def p99(timing: Rounds) -> Estimate | Missing:
    """99th percentile of the wall time of a single step: a forward, or with mode=training a whole training step."""
    return _percentile(timing, 99)


@metric(name="latency/first_step", unit="s", better="lower")
def first_step(timing: Rounds) -> Estimate:
    """Wall time of the very first step of a process: tracing, compiling, allocation and lazy initialisation included."""
    return single([round.first_step_s for round in timing], timing)


@metric(name="latency/compile", unit="s", better="lower")
def compile(timing: Rounds) -> Estimate | Missing:
    """Wall time of the first step of a process beyond the median of later ones, on a backend that compiles.

    It does not include ``latency/trace`` where that is known. Files that the compiler kept from an earlier process shorten it.
    """
    if not timing[0].compiles:
        return NOT_COMPILED
    beyond = [round.first_step_s - (round.trace_s or 0.0) - round.median_s for round in timing]
    if min(beyond) <= 0:
        return Missing("a first step took no longer than later ones")
    return single(beyond, timing)


@metric(name="latency/graph_breaks", unit="breaks", better="lower")
def graph_breaks(timing: Rounds) -> Estimate | Missing:
    """Places where torch.compile cuts a forward, and Python goes on between two graphs: the graphs that it made, less one."""
    found = [round.graphs for round in timing if round.graphs is not None]
    if len(found) < len(timing):
        return Missing("this backend does not capture graphs")
    if min(found) == 0:
        return Missing(
            "no graph was captured: the model had been compiled before, or all of its forward runs in Python"
        )
    return Estimate(max(found) - 1, "exact")


@metric(name="latency/trace", unit="s", better="lower")
def trace(timing: Rounds) -> Estimate | Missing:
    """Wall time of making the graph of a step from its Python, once for each shape; the first part of a process's first step."""
    seconds = [round.trace_s for round in timing if round.trace_s is not None]
    if len(seconds) < len(timing):
        return NOT_TRACED
    return single(seconds, timing)


@metric(name="latency/h2d", unit="s", better="lower")
def h2d(timing: Rounds) -> Estimate | Missing:
    """Wall time of bringing one batch from the host to the device."""
    return _transfer(timing, "h2d")


@metric(name="latency/d2h", unit="s", better="lower")
def d2h(timing: Rounds) -> Estimate | Missing:
    """Wall time of bringing the outputs of one batch from the device to the host."""
    return _transfer(timing, "d2h")


@metric(name="latency/total", unit="s", better="lower")
def total(timing: Rounds) -> Estimate | Missing:
    """Wall time of one batch from host to host: both transfers and the forward between them, medians."""
    for name in ("h2d", "d2h"):
        transfer = _transfer(timing, name)
        if isinstance(transfer, Missing):
            return transfer
    medians = []
    for round in timing:
        parts = (*round.transfers.values(), forward_samples(round))
        medians.append(sum(statistics.median(seconds) for seconds in parts))
    return single(medians, timing)


@metric(name="latency/evaluate", unit="s", better="lower")
def evaluate(quality: Quality) -> Estimate | Missing:
    """Wall time of evaluating the whole test split once: data loading, transfers and forwards, but not computing scores."""
    if quality.seconds is None:
        return Missing("quality: no model was run")
    return Estimate(quality.seconds, "single")


@metric(name="throughput/samples_per_s", unit="samples/s", better="higher")
def throughput(timing: Rounds, batch_size: int) -> Estimate:
    """Batch size over the wall time of one step: a forward, or with mode=training a whole training step.

    With mode=generation it is a whole generation, and a sample a sequence.
    """
    return over_rounds(timing, lambda seconds: batch_size / seconds)


@metric(name="throughput/concurrent", unit="samples/s", better="higher")
def concurrent_throughput(concurrent: Concurrent, batch_size: int) -> Estimate:
    """Samples per second with several requests in flight; the median of the samples."""
    pairs = zip(concurrent.forwards, concurrent.seconds, strict=True)
    rates = [batch_size * forwards / seconds for forwards, seconds in pairs]
    detail = {"requests": concurrent.requests, **described_samples(rates)}
    return Estimate(statistics.median(rates), "median", median_interval(rates), detail)


@metric(name="throughput/units_per_s", unit="units/s", better="higher")
def units_per_s(timing: Rounds) -> Estimate | Missing:
    """Work of one step in the workload's own unit, such as tokens without padding, over the wall time of the step."""
    workload = timing[0].workload
    if workload is None:
        return Missing("timing: it is not known how much work a step does")
    estimate = over_rounds(timing, lambda seconds: workload.units / seconds)
    return replace(estimate, unit=f"{workload.unit}/s")


def over_rounds(
    timing: Rounds,
    convert: Callable[[float], float] = lambda seconds: seconds,
    samples_of: Callable[[Timing], Sequence[float]] = lambda timing: timing.samples,
    are_of_steps: bool = True,
) -> Estimate:
    """Return the estimate of ``convert(seconds)``, and what the pairs of an interleaved run make of it.

    ``convert`` must be monotonic, so that it may be applied to medians and bounds.

    Args:
        are_of_steps: whether a sample is of steps; the detail says of how many, if it averages several.
    """
    medians = [convert(statistics.median(samples_of(round))) for round in timing]
    seconds: list[float] = []
    for round in timing:
        seconds += samples_of(round)
    samples = list(map(convert, seconds))
    detail = described_samples(samples)
    detail["mean"] = convert(statistics.fmean(seconds))  # a mean rate is all the work over all the time
    loops = max(round.loops for round in timing)
    if are_of_steps and loops > 1:
        detail["steps per sample"] = loops
    paired: list[float] = []
    if any(round.baseline for round in timing):
        paired = [convert(_paired(round, samples_of)) for round in timing]
    estimate = single(medians, timing, "median")
    return replace(
        estimate,
        interval=estimate.interval if len(medians) > 1 else median_interval(samples),
        detail=detail,
        warnings=_warnings(timing),
        paired=tuple(paired),
    )


def _warnings(timing: Rounds) -> tuple[Warning, ...]:
    return tuple(warning for round in timing for warning in round.warnings)


def described_samples(samples: Sequence[float]) -> dict[str, object]:
    """Return number, deviation, extremes, spread and percentiles; of a percentile that needs more samples, how many it needs."""
    detail: dict[str, object] = {
        "n": len(samples),
        "std": float(np.std(samples, ddof=1)) if len(samples) > 1 else "n<2",
        "min": min(samples),
        "max": max(samples),
        "spread": spread(samples),
    }
    for percentile in PERCENTILES:
        needed = percentile_needs(percentile)
        enough = len(samples) >= needed
        detail[f"p{percentile}"] = float(np.percentile(samples, percentile)) if enough else f"n<{needed}"
    return detail


def _paired(round: Timing, samples_of: Callable[[Timing], Sequence[float]]) -> float:
    """Return the seconds that the pairs of an interleaved run give: the baseline's median times the median ratio of each pair.

    A pair has the samples of one turn. A round without a pair, because the partner failed, has its own median.
    """
    seconds, baseline = _by_turn(round, samples_of), _by_turn(round.baseline, samples_of)
    common = [turn for turn in seconds.keys() & baseline.keys() if baseline[turn] > 0]
    if not common:
        return statistics.median(samples_of(round))
    return statistics.median(baseline.values()) * statistics.median(seconds[turn] / baseline[turn] for turn in common)


def _by_turn(round: Timing | None, samples_of: Callable[[Timing], Sequence[float]]) -> dict[int, float]:
    if round is None or round.interleaved_run is None:
        return {}
    return dict(zip(round.interleaved_run.turns, samples_of(round), strict=True))


def _of_generation(timing: Rounds) -> Missing | None:
    """Return why a step has no forward of its own; None if it has."""
    if timing[0].command is not None:
        return COMMANDED
    return None if timing[0].generation is None else GENERATED


def forward_samples(round: Timing) -> Sequence[float]:
    """Seconds of a forward, alone or within a training step."""
    return round.phases.get("forward", round.samples)


def _not_trained(timing: Rounds) -> Missing | None:
    """Return why a step has no phases of a training step; None if it has."""
    if timing[0].is_training:
        return None
    return _of_generation(timing) or NOT_TRAINED


def _phase(timing: Rounds, name: str) -> Estimate | Missing:
    missing = _not_trained(timing)
    if missing is not None:
        return missing
    if any(name not in round.phases for round in timing):
        return Missing(f"the step is one program, and what its {name} adds is less than its time varies")
    return over_rounds(timing, samples_of=lambda timing: timing.phases[name])


def _transfer(timing: Rounds, name: str) -> Estimate | Missing:
    if timing[0].is_training:
        return Missing("mode=training: transfers are measured with mode=inference")
    if timing[0].generation is not None:
        return Missing("mode=generation: transfers are measured with mode=inference")
    if name not in timing[0].transfers:
        return Missing("the model runs on the host: nothing is transferred")
    return over_rounds(timing, samples_of=lambda timing: timing.transfers[name], are_of_steps=False)


def single(values: Sequence[float], timing: Rounds, estimator: str = "single") -> Estimate:
    """Return the estimate of one value per round; ``estimator`` is that of a single round."""
    mean, value, interval = mean_over_rounds(values)
    if len(values) > 1:
        estimator = f"{mean} of {len(values)} rounds"
    return Estimate(
        value,
        estimator,
        interval,
        rounds=tuple(values),
        round_numbers=tuple(round.round for round in timing),
    )


def _percentile(timing: Rounds, percentile: int) -> Estimate | Missing:
    """Return a percentile of the times of single steps; of samples of several steps, which average them, there is none."""
    loops = max(round.loops for round in timing)
    if loops > 1:
        return Missing(f"a sample is the mean of {loops} steps; protocol.sample_s=0 times every step by itself")
    missing = _of_generation(timing)
    too_few = "samples; raise protocol.min_samples"
    return missing or percentile_over_rounds([round.samples for round in timing], percentile, timing, too_few)


def percentile_over_rounds(
    by_round: Sequence[Sequence[float]], percentile: int, timing: Rounds, too_few: str
) -> Estimate | Missing:
    """Return the geometric mean of a percentile of each round's times.

    Args:
        too_few: what there are too few of, and what to do then.
    """
    needed, fewest = percentile_needs(percentile), min(map(len, by_round))
    if fewest < needed:
        return Missing(f"n<{needed}: a round has {fewest} {too_few}")
    estimate = single([float(np.percentile(seconds, percentile)) for seconds in by_round], timing)
    return replace(estimate, detail={"n": sum(map(len, by_round))}, warnings=_warnings(timing))


@metric(name="rate/flops_per_s", unit="FLOP/s", better="higher")
def flops_per_s(layers: LayerTable, timing: Rounds) -> Estimate | Missing:
    """Floating-point operations of one forward over its wall time."""
    return _of_generation(timing) or rate(compute.flops.function(layers), timing, forward_samples)


@metric(name="rate/backward_flops_per_s", unit="FLOP/s", better="higher")
def backward_flops_per_s(training: Training, timing: Rounds) -> Estimate | Missing:
    """Floating-point operations of one backward over its wall time, within a training step."""
    flops = compute.flops_backward.function(training)
    return _not_trained(timing) or rate(flops, timing, lambda timing: timing.phases["backward"])


@metric(name="rate/flops_per_s_train", unit="FLOP/s", better="higher")
def flops_per_s_train(training: Training, timing: Rounds) -> Estimate | Missing:
    """Floating-point operations of a forward and its backward over the wall time of a whole training step."""
    return _not_trained(timing) or rate(compute.flops_train.function(training), timing)


@metric(name="rate/mfu", unit="ratio", better="higher")
def mfu(layers: LayerTable, timing: Rounds, peaks: Peaks) -> Estimate | Missing:
    """Model FLOPs utilisation: achieved FLOP/s of a forward over the machine's measured peak of a matrix product.

    Source: A. Chowdhery et al., "PaLM", 2022, appendix B, with a measured peak for the data sheet's.
    """
    return _of_generation(timing) or rate(compute.flops.function(layers), timing, forward_samples, peaks.flops_per_s)


@metric(name="rate/mfu_train", unit="ratio", better="higher")
def mfu_train(training: Training, timing: Rounds, peaks: Peaks) -> Estimate | Missing:
    """Model FLOPs utilisation of a whole training step: no operation of the optimizer counts, its time does."""
    return _not_trained(timing) or rate(compute.flops_train.function(training), timing, peak=peaks.flops_per_s)


@metric(name="rate/realtime_factor", unit="ratio", better="higher")
def realtime_factor(
    timing: Rounds, sampling_rate: float = 16000, hop: float = 512, frame: float | None = None
) -> Estimate | Missing:
    """Seconds of a signal over the wall time of the forwards that process it, one for each hop; above 1 keeps up with it."""
    return _of_generation(timing) or over_rounds(
        timing, lambda seconds: times_realtime(seconds, sampling_rate, hop, frame), forward_samples
    )


def forwards_per_s(sampling_rate: float, hop: float, frame: float | None = None) -> float:
    """Return the number of forwards per second of signal: frames of ``frame`` samples, each ``hop`` after the one before.

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
    """Return how many times faster than the signal a model is whose forward takes ``seconds``: 16 for 2 ms, 16 kHz and hops of 512.

    Its inverse is the share of the time that the model is busy: 0.0625.
    """
    return 1 / (forwards_per_s(sampling_rate, hop, frame) * seconds)


def ops_to_flops(ops: float, sampling_rate: float, hop: float, frame: float | None = None) -> float:
    """Operations per second of signal from those of one forward: 3125 for 100 at 16 kHz and hops of 512."""
    return forwards_per_s(sampling_rate, hop, frame) * ops


def rate(
    work: Estimate | Missing,
    timing: Rounds,
    samples_of: Callable[[Timing], Sequence[float]] = lambda timing: timing.samples,
    peak: float = 1.0,
) -> Estimate | Missing:
    """Return counted ``work`` over measured seconds, with the warnings of both."""
    if isinstance(work, Missing):
        return work
    amount = work.value
    if amount == 0:
        return Missing("it has no floating-point operations")
    rate = over_rounds(timing, lambda seconds: amount / seconds / peak, samples_of)
    rate = replace(rate, warnings=(*work.warnings, *rate.warnings))
    if work.estimator not in INCOMPLETE:
        return rate
    # The spread of the rounds does not contain the error of the count.
    return replace(rate, estimator=INCOMPLETE[1], interval=None, rounds=(), round_numbers=(), paired=())


@metric(name="layers/slowest_self_s", unit="s", better="lower")
def slowest_self(layer_times: LayerTimes) -> Estimate | Missing:
    """Forward time of the slowest call of a layer, without the calls within it."""
    own = []
    for call, seconds in zip(layer_times.calls, layer_times.seconds, strict=True):
        if call.path != OUTSIDE:
            own.append((seconds.forward_self, call.path))
    if not own:
        return Missing("no layer was timed in the forward")
    own.sort(reverse=True)
    slowest_s, layer = own[0]
    forward_s = sum(seconds.forward_self for seconds in layer_times.seconds)
    repeats = layer_times.repeats - layer_times.warmup
    warnings = layer_times.warnings
    if layer_times.unmet:
        missed = ", ".join(layer_times.unmet)
        cut = f"the layers were timed in {repeats} repeats: protocol.max_s ended them before {missed}"
        warnings = (Warning("few_repeats", cut, "raise protocol.max_s"), *warnings)
    detail: dict[str, object] = {"layer": layer, "forward": forward_s, "n": repeats}
    if forward_s > 0:
        shares = [f"{path} {rounded(s, 's')} ({100 * s / forward_s:.0f}%)" for s, path in own[:5]]
        detail["slowest"] = ", ".join(shares)
    return Estimate(slowest_s, "scaled median", detail=detail, warnings=warnings)


# Speed of the data loader, without a model.


@metric(name="loading/samples_per_s", unit="samples/s", better="higher")
def samples_per_s(loading: Loading) -> Estimate:
    """Samples that the data loader delivers per second, over passes with their starts."""
    detail = {"samples": loading.samples, "batches": loading.batches, "passes": len(loading.first_batch_s)}
    return Estimate(loading.samples / loading.seconds, "mean", detail=detail)


@metric(name="loading/first_batch", unit="s", better="lower")
def first_batch(loading: Loading) -> Estimate:
    """Time from the beginning of a pass over the data to its first batch; the median over passes, imports not included."""
    detail = {"warm_up": loading.warm_up_s, "passes": len(loading.first_batch_s)}
    return Estimate(statistics.median(loading.first_batch_s), "median", detail=detail)
