"""Time of a step and of its phases. Every figure comes from samples that lasted until the device was done."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from sweeprof.metrics.metric import Estimate, Missing, metric
from sweeprof.profiling.quality import Quality
from sweeprof.profiling.timing import Timing
from sweeprof.results.record import Warning
from sweeprof.results.stats import median_interval, percentile_needs, rounds_interval, spread

Rounds = tuple[Timing, ...]
"""One timing per round, each from a fresh process."""

PERCENTILES = (90, 95, 99)
NOT_TRAINED = Missing("mode=inference: a step is a forward alone; mode=training has all phases")


@metric(name="latency/forward", unit="s", better="lower")
def forward(timing: Rounds) -> Estimate:
    """Wall time of one synchronised forward of the whole batch, with mode=training its loss too; the median of the samples.

    Over rounds it is the geometric mean of their medians.
    """
    return over_rounds(timing, lambda seconds: seconds, forward_samples)


@metric(name="latency/per_sample", unit="s", better="lower")
def per_sample(timing: Rounds, batch_size: int) -> Estimate:
    """Wall time of one forward over the batch size."""
    return over_rounds(timing, lambda seconds: seconds / batch_size, forward_samples)


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
    return over_rounds(timing, lambda seconds: seconds) if timing[0].is_training else NOT_TRAINED


@metric(name="latency/first_step", unit="s", better="lower")
def first_step(timing: Rounds) -> Estimate:
    """Wall time of the very first step of a process: tracing, compiling, allocation and lazy initialisation included."""
    return _single([round.first_step_s for round in timing], timing)


@metric(name="latency/compile", unit="s", better="lower")
def compile(timing: Rounds) -> Estimate | Missing:
    """Wall time of the first step of a process beyond the median of later ones, on a backend that compiles.

    Where ``latency/trace`` is known it is no part of it. What the compiler kept on disk from an earlier process shortens it.
    """
    if not timing[0].compiles:
        return Missing("this backend does not compile")
    beyond = [round.first_step_s - (round.trace_s or 0.0) - round.median_s for round in timing]
    if min(beyond) <= 0:
        return Missing("a first step took no longer than later ones")
    return _single(beyond, timing)


@metric(name="latency/trace", unit="s", better="lower")
def trace(timing: Rounds) -> Estimate | Missing:
    """Wall time of making the graph of a step from its Python, once for each shape; the first part of a process's first step."""
    seconds = [round.trace_s for round in timing if round.trace_s is not None]
    if len(seconds) < len(timing):
        return Missing("this backend does not trace a step apart from running it")
    return _single(seconds, timing)


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
    moved = [_transfer(timing, name) for name in ("h2d", "d2h")]
    absent = next((one for one in moved if isinstance(one, Missing)), None)
    if absent is not None:
        return absent
    medians = [
        sum(statistics.median(s) for s in (*round.transfers.values(), forward_samples(round))) for round in timing
    ]
    return _single(medians, timing)


@metric(name="latency/evaluate", unit="s", better="lower")
def evaluate(quality: Quality) -> Estimate | Missing:
    """Wall time of evaluating the whole test split once, its data loading and transfers included."""
    if quality.seconds is None:
        return Missing("quality: the record is of a version that did not time it")
    return Estimate(quality.seconds, "single")


@metric(name="throughput/samples_per_s", unit="samples/s", better="higher")
def throughput(timing: Rounds, batch_size: int) -> Estimate:
    """Batch size over the wall time of one step: a forward, or with mode=training a whole training step."""
    return over_rounds(timing, lambda seconds: batch_size / seconds)


@metric(name="latency/kernel", unit="s", better="lower")
def kernel(timing: Rounds) -> Estimate | Missing:
    """Wall time of one run of the calibration kernel, timed before each sample: how fast the machine was meanwhile."""
    return _uncalibrated(timing) or _estimated(timing, _unchanged, _kernel_samples)


@metric(name="latency/calibrated", unit="kernels", better="lower")
def calibrated(timing: Rounds) -> Estimate | Missing:
    """Wall time of one step over that of the calibration kernel before it; the median of the samples' ratios."""
    return _uncalibrated(timing) or _estimated(timing, _unchanged, lambda one: _in_kernels(one, one.samples))


def over_rounds(
    timing: Rounds,
    convert: Callable[[float], float],
    samples_of: Callable[[Timing], Sequence[float]] = lambda one: one.samples,
) -> Estimate:
    """The estimate of ``convert(seconds)``, and what the pairs of a duel and the calibration kernel make of it.

    ``convert`` must be monotonic, so that it may be applied to medians and bounds.
    """
    has_pairs = any(round.rival for round in timing)
    is_calibrated = _uncalibrated(timing) is None
    found = _estimated(timing, convert, samples_of)
    kernels = {round.kernel.name for round in timing if round.kernel} if is_calibrated else set()
    return replace(
        found,
        detail={**found.detail, "kernel": " or ".join(sorted(filter(None, kernels)))} if kernels else found.detail,
        paired=tuple(convert(_paired(round, samples_of)) for round in timing if has_pairs),
        calibrated=tuple(
            convert(statistics.median(_in_kernels(round, samples_of(round)))) for round in timing if is_calibrated
        ),
    )


def _estimated(
    timing: Rounds, convert: Callable[[float], float], samples_of: Callable[[Timing], Sequence[float]]
) -> Estimate:
    medians = tuple(convert(statistics.median(samples_of(round))) for round in timing)
    seconds = [sample for round in timing for sample in samples_of(round)]
    samples = [convert(sample) for sample in seconds]
    interval = rounds_interval(medians) if len(medians) > 1 else median_interval(samples)
    warnings: tuple[Warning, ...] = tuple(warning for round in timing for warning in round.warnings)
    return Estimate(
        statistics.geometric_mean(medians),
        _estimator(medians, "median"),
        interval,
        {
            **_detail(samples),
            "mean": convert(statistics.fmean(seconds)),
        },  # a mean rate is all the work over all the time
        medians,
        warnings,
        _numbers(timing),
    )


def _unchanged(value: float) -> float:
    return value


def _paired(round: Timing, samples_of: Callable[[Timing], Sequence[float]]) -> float:
    """Seconds that the pairs of a duel give: the baseline's median times the median ratio of two samples of one turn.

    A round without a pair, whose partner failed, is compared with nothing: its own median stands there.
    """
    own, rival = _by_turn(round, samples_of), _by_turn(round.rival, samples_of)
    common = own.keys() & rival.keys()
    if not common:
        return statistics.median(samples_of(round))
    return statistics.median(rival.values()) * statistics.median(own[turn] / rival[turn] for turn in common)


def _by_turn(round: Timing | None, samples_of: Callable[[Timing], Sequence[float]]) -> dict[int, float]:
    if round is None or round.duel is None:
        return {}
    return dict(zip(round.duel.turns, samples_of(round), strict=True))


def _uncalibrated(timing: Rounds) -> Missing | None:
    """Why nothing can be said in terms of the calibration kernel."""
    times = [round.kernel for round in timing]
    if any(one is None for one in times):
        return Missing("protocol.kernel=null: no calibration kernel was timed")
    reasons = [one.reason or "it has no samples" for one in times if one and not one.samples]
    return Missing(f"no calibration kernel: {reasons[0]}") if reasons else None


def _kernel_samples(round: Timing) -> Sequence[float]:
    assert round.kernel is not None
    return round.kernel.samples


def _in_kernels(round: Timing, seconds: Sequence[float]) -> list[float]:
    """Each sample over the kernel's time beside it."""
    return [own / kernel for own, kernel in zip(seconds, _kernel_samples(round), strict=True)]


def forward_samples(round: Timing) -> Sequence[float]:
    """Seconds of a forward, alone or within a training step."""
    return round.phases.get("forward", round.samples)


def _phase(timing: Rounds, name: str) -> Estimate | Missing:
    if not timing[0].is_training:
        return NOT_TRAINED
    if any(name not in round.phases for round in timing):
        return Missing(f"the step is one program, and what its {name} adds is less than its time varies")
    return over_rounds(timing, lambda seconds: seconds, lambda one: one.phases[name])


def _transfer(timing: Rounds, name: str) -> Estimate | Missing:
    if timing[0].is_training:
        return Missing("mode=training: transfers are measured with mode=inference")
    if name not in timing[0].transfers:
        return Missing("the model runs on the host: nothing is transferred")
    return over_rounds(timing, lambda seconds: seconds, lambda one: one.transfers[name])


def _single(values: Sequence[float], timing: Rounds) -> Estimate:
    """The estimate of what is seen once in a process."""
    rounds = tuple(values)
    return Estimate(
        statistics.geometric_mean(rounds),
        _estimator(rounds, "single"),
        rounds_interval(rounds),
        rounds=rounds,
        round_numbers=_numbers(timing),
    )


def _numbers(timing: Rounds) -> tuple[int, ...]:
    return tuple(round.round for round in timing)


def _estimator(rounds: tuple[float, ...], within: str) -> str:
    return within if len(rounds) == 1 else f"geometric mean of {len(rounds)} rounds"


def _detail(samples: list[float]) -> dict[str, Any]:
    detail: dict[str, Any] = {
        "n": len(samples),
        "std": statistics.stdev(samples) if len(samples) > 1 else "n<2",
        "min": min(samples),
        "max": max(samples),
        "spread": spread(samples),
    }
    for percentile in PERCENTILES:
        needed = percentile_needs(percentile)
        supported = len(samples) >= needed
        detail[f"p{percentile}"] = _percentile(samples, percentile) if supported else f"n<{needed}"
    return detail


def _percentile(samples: list[float], percentile: int) -> float:
    return statistics.quantiles(samples, n=100, method="inclusive")[percentile - 1]
