"""How a step is timed: first step apart, warm-up, calibrated loops, a stop rule that names what was not met.

Pure but for the clock it is given, so that a scripted clock tests every branch exactly. The numbers behind the protocols are
in MEASUREMENT.md B4.
"""

from __future__ import annotations

import gc
import statistics
import time
import typing
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from sweeprof.results.record import Warning
from sweeprof.results.stats import spread

SPREAD_WARNING = 0.10
SPREAD_SEVERE = 0.25
"""IQR over median; the two levels at which torch.utils.benchmark warns."""
FIRST_SAMPLE_FACTOR = 1.5
"""A first sample this much above the median means that warming up was not over."""
DRIFT_WARNING = 0.10
"""Relative difference between the medians of the first and the second half of the samples."""
MIN_TICKS = 1000
"""Clock ticks a sample must last: a tick is then at most 0.1 % of it."""
MAX_LOOPS = 2**20
"""Steps per sample at most, should a step take no time at all."""
PHASES = ("forward", "backward", "update")
STABLE_WINDOW = 5
STABLE_TOLERANCE = 0.05
"""The noise has settled when the last five looks at the spread differ by at most 5 % of it (nvbench's ``stdrel``)."""


class Clock(typing.Protocol):
    """A monotonic clock in seconds."""

    def now(self) -> float:
        """Seconds since any fixed point."""

    @property
    def resolution(self) -> float:
        """Smallest step of the clock in seconds."""

    def mark(self) -> Any:
        """A point in the work of the device; taking one does not wait for it."""

    def between(self, begin: Any, end: Any) -> float:
        """Seconds from one mark to another, once the device has reached them."""


class WallClock:
    """The host's monotonic wall clock; processor time would count threads twice and sleeping not at all."""

    now = staticmethod(time.perf_counter)
    mark = now
    """On the host, what was called has been done."""

    @property
    def resolution(self) -> float:
        return time.get_clock_info("perf_counter").resolution

    def between(self, begin: float, end: float) -> float:
        return end - begin


@dataclass(frozen=True, slots=True)
class Protocol:
    """How long and how often to measure; one YAML under ``conf/protocol/``."""

    rounds: int = 1
    """Fresh processes."""
    threshold: float | None = None
    """Relative difference below which two values are called the same; None: no verdicts."""
    warmup_steps: int = 3
    warmup_s: float = 0.2
    """Warm-up lasts for at least this many steps and this many seconds."""
    sample_s: float = 0.001
    """A sample repeats the step until it lasts this long."""
    min_samples: int = 10
    min_s: float = 0.5
    """Both minimums must be met …"""
    max_s: float = 5.0
    """… unless this is reached first, which leaves a warning."""
    target_spread: float | None = None
    """Also go on until IQR/median is below this or has settled."""


@dataclass(frozen=True, slots=True)
class Timing:
    """One round of timing; all times in seconds."""

    first_step_s: float
    """The very first step of the process: tracing, allocation and lazy initialisation included."""
    warmup_steps: int
    loops: int
    """Steps per sample."""
    samples: tuple[float, ...]
    """Seconds per step, one value per sample, in the order taken."""
    unmet: tuple[str, ...] = ()
    """Conditions of the protocol that ``max_s`` cut short."""
    warnings: tuple[Warning, ...] = field(default=())
    round: int = 0
    """Which repetition this is; what a comparison pairs by."""
    phases: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """Of a training step: seconds of ``forward``, ``backward`` and ``update``, one value per sample."""
    transfers: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """Seconds of one ``h2d`` and one ``d2h``, one value per sample; nothing where the model runs on the host."""
    compiles: bool = False
    """Whether the first step compiled the model."""

    @property
    def is_training(self) -> bool:
        """Whether a step is a whole training step."""
        return bool(self.phases)

    @property
    def median_s(self) -> float:
        return statistics.median(self.samples)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], round: int = 0) -> Timing:
        """The timing in the observations of the record of a round."""
        return cls(
            first_step_s=data["first_step_s"],
            warmup_steps=data["warmup_steps"],
            loops=data["loops"],
            samples=tuple(data["samples"]),
            unmet=tuple(data["unmet"]),
            round=round,
            phases={name: tuple(samples) for name, samples in data.get("phases", {}).items()},
            transfers={name: tuple(samples) for name, samples in data.get("transfers", {}).items()},
            compiles=data.get("compiles", False),
        )


def measure(step: Callable[[], object], protocol: Protocol, clock: Clock) -> Timing:
    """Time ``step``, which must return only when its work is done (the backend synchronises the device)."""
    first_step = _lasting(step, 1, clock)
    warmup_steps = _warm_up(step, protocol, clock)
    gc.collect()
    with without_collection():
        loops = _calibrate(step, protocol, clock)
        samples, unmet = _sample(step, loops, protocol, clock)
    return Timing(
        first_step, warmup_steps, loops, samples, unmet, tuple(_warnings(samples, loops, unmet, protocol, clock))
    )


class Phased(typing.Protocol):
    """A training step, see :class:`sweeprof.backends.TrainingStep`."""

    def forward(self) -> Any: ...

    def backward(self, loss: Any) -> None: ...

    def update(self) -> None: ...


def measure_training(step: Phased, protocol: Protocol, clock: Clock) -> Timing:
    """Time whole training steps, and each of their phases within the same steps."""
    laps = _Laps(step, clock)
    timing = measure(laps, protocol, clock)
    kept = laps.seconds[-len(timing.samples) * timing.loops :]
    phases = {
        name: tuple(
            statistics.fmean(lap[index] for lap in kept[first : first + timing.loops])
            for first in range(0, len(kept), timing.loops)
        )
        for index, name in enumerate(PHASES)
    }
    return replace(timing, phases=phases)


class _Laps:
    """Steps through the phases and notes how long each took; done when the device is."""

    def __init__(self, step: Phased, clock: Clock) -> None:
        self._step, self._clock = step, clock
        self.seconds: list[tuple[float, ...]] = []
        """One per step, in the order of :data:`PHASES`."""

    def __call__(self) -> None:
        mark, step = self._clock.mark, self._step
        begin = mark()
        loss = step.forward()
        forwarded = mark()
        step.backward(loss)
        returned = mark()
        step.update()
        marks = (begin, forwarded, returned, mark())
        self.seconds.append(tuple(map(self._clock.between, marks[:-1], marks[1:])))


def sampled(step: Callable[[], object], protocol: Protocol, clock: Clock) -> tuple[float, ...]:
    """Seconds per step of the protocol's least number of samples, after one that is not kept."""
    step()
    gc.collect()
    with without_collection():
        loops = _calibrate(step, protocol, clock)
        return tuple(_lasting(step, loops, clock) / loops for _ in range(protocol.min_samples))


def _lasting(step: Callable[[], object], loops: int, clock: Clock) -> float:
    begin = clock.now()
    for _ in range(loops):
        step()
    return clock.now() - begin


def _warm_up(step: Callable[[], object], protocol: Protocol, clock: Clock) -> int:
    begin = clock.now()
    steps = 0
    while True:
        elapsed = clock.now() - begin
        if (steps >= protocol.warmup_steps and elapsed >= protocol.warmup_s) or elapsed >= protocol.max_s:
            return steps
        step()
        steps += 1


def _calibrate(step: Callable[[], object], protocol: Protocol, clock: Clock) -> int:
    loops = 1
    while _lasting(step, loops, clock) < protocol.sample_s and loops < MAX_LOOPS:
        loops *= 2
    return loops


def _sample(
    step: Callable[[], object], loops: int, protocol: Protocol, clock: Clock
) -> tuple[tuple[float, ...], tuple[str, ...]]:
    samples: list[float] = []
    spreads: list[float] = []
    elapsed = 0.0
    while True:
        lasted = _lasting(step, loops, clock)
        elapsed += lasted
        samples.append(lasted / loops)
        if protocol.target_spread is not None and len(samples) >= protocol.min_samples:
            spreads.append(spread(samples))
        unmet = _unmet(samples, spreads, elapsed, protocol)
        if not unmet or elapsed >= protocol.max_s:
            return tuple(samples), unmet


def _unmet(samples: list[float], spreads: list[float], elapsed: float, protocol: Protocol) -> tuple[str, ...]:
    unmet = []
    if len(samples) < protocol.min_samples:
        unmet.append(f"min_samples={protocol.min_samples}")
    if elapsed < protocol.min_s:
        unmet.append(f"min_s={protocol.min_s:g}")
    target = protocol.target_spread
    if target is not None and not (spreads and (spreads[-1] <= target or _settled(spreads))):
        unmet.append(f"target_spread={target:g}")
    return tuple(unmet)


def _settled(spreads: list[float]) -> bool:
    window = spreads[-STABLE_WINDOW:]
    return len(window) == STABLE_WINDOW and max(window) - min(window) <= STABLE_TOLERANCE * max(window)


@contextmanager
def without_collection() -> Iterator[None]:
    """Without the collector of cycles, as in ``timeit``: what is alive when should not depend on when it runs, nor how long a
    single sample takes.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _warnings(
    samples: tuple[float, ...], loops: int, unmet: tuple[str, ...], protocol: Protocol, clock: Clock
) -> Iterator[Warning]:
    median = statistics.median(samples)
    noise = spread(samples)
    if unmet:
        yield Warning(
            "max_time",
            f"protocol.max_s={protocol.max_s:g} ended the round before {', '.join(unmet)}",
            "raise protocol.max_s, or lower the batch size",
        )
    if noise > SPREAD_WARNING:
        yield Warning(
            "spread_high" if noise <= SPREAD_SEVERE else "spread_severe",
            f"IQR is {noise:.0%} of the median over {len(samples)} samples",
            "close other programs, or use a protocol with more rounds",
        )
    if len(samples) > 1 and samples[0] > FIRST_SAMPLE_FACTOR * median:
        yield Warning(
            "first_sample_slow",
            f"the first sample took {samples[0] / median:.1f} times the median",
            "raise protocol.warmup_s or protocol.warmup_steps",
        )
    half = len(samples) // 2
    if half >= 5 and median > 0:
        drift = statistics.median(samples[-half:]) / statistics.median(samples[:half]) - 1
        if abs(drift) > DRIFT_WARNING:
            yield Warning(
                "drift",
                f"the second half of the samples is {drift:+.0%} off the first",
                "let the machine settle, or use a protocol with more rounds",
            )
    if median * loops < MIN_TICKS * clock.resolution:
        yield Warning(
            "timer_coarse",
            f"a sample lasts only {median * loops / clock.resolution:.0f} ticks of the clock",
            "raise protocol.sample_s",
        )
