"""Timing of a step: the first step apart, warm-up, calibrated loops, a stop rule that names what was not met.

It depends only on the clock that it is given, so that a scripted clock tests every branch exactly. The last part keeps a process
from disturbing the measurements of others: it waits until its threads are idle, and prefaults its memory.
"""

from __future__ import annotations

import ctypes
import errno
import gc
import mmap
import os
import re
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from operator import sub
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, runtime_checkable
from typing import Protocol as TypingProtocol

import numpy as np

from sweeprof.errors import Unsupported
from sweeprof.measuring.inputs import Workload
from sweeprof.results.files import damaged, validated
from sweeprof.results.layer_times import Host, repeat_frame, repeat_lines, with_host
from sweeprof.results.observations import CommandRun, CommandRuns, TokenTimes
from sweeprof.results.record import Protocol, Stored, Warning
from sweeprof.results.statistics import spread

if TYPE_CHECKING:
    import pandas


SPREAD_WARNING = 0.10
SPREAD_SEVERE = 0.25
"""IQR over median; the two levels at which torch.utils.benchmark warns."""
FIRST_SAMPLE_FACTOR = 1.5
"""A first sample this much above the median means that warming up was not over."""
DRIFT_WARNING = 0.10
"""Relative difference between the medians of the first and the second half of the samples."""
MIN_TICKS = 1000
"""Clock ticks a sample must last: a tick is then at most 0.1 % of it."""


def timing_warnings(
    samples: Sequence[float], loops: int, unmet: Sequence[str], max_s: float, resolution: float
) -> Iterator[Warning]:
    """Return warnings about the samples of one round.

    Args:
        samples: seconds per step.
        loops: steps per sample.
        unmet: conditions of the protocol that ``max_s`` cut short.
        max_s: the protocol's.
        resolution: of the clock, in seconds.
    """
    median = statistics.median(samples)
    noise = spread(samples)
    if unmet:
        yield Warning(
            "max_time",
            f"protocol.max_s={max_s:g} ended the round before {', '.join(unmet)}",
            "raise protocol.max_s",
        )
    if noise > SPREAD_WARNING:
        yield Warning(
            "spread_high" if noise <= SPREAD_SEVERE else "spread_severe",
            f"IQR is {noise:.0%} of the median over {len(samples)} samples",
            "close other programs, or measure more rounds in a sweep",
        )
    if len(samples) > 1 and median > 0 and samples[0] > FIRST_SAMPLE_FACTOR * median:
        yield Warning(
            "first_sample_slow",
            f"the first sample took {samples[0] / median:.1f} times the median",
            "raise protocol.warmup_s or protocol.warmup_steps",
        )
    half = len(samples) // 2
    before = statistics.median(samples[:half]) if half >= 5 else 0.0
    if before > 0:  # a program may take no longer than the shell that starts it
        drift = statistics.median(samples[-half:]) / before - 1
        if abs(drift) > DRIFT_WARNING:
            slower = f"{abs(drift):.0%} {'slower' if drift > 0 else 'faster'}"
            yield Warning(
                "drift",
                f"samples drifted: the second half is {slower} than the first",
                "wait until the machine is idle, or measure more rounds in a sweep",
            )
    if median * loops < MIN_TICKS * resolution:
        yield Warning(
            "timer_coarse",
            f"a sample lasts only {median * loops / resolution:.0f} ticks of the clock",
            "raise protocol.sample_s",
        )


State = Literal["going", "met", "spent"]
"""After a sample: the protocol asks for more samples, asks for no more, or allows no more."""


@dataclass(frozen=True, slots=True)
class InterleavedRun:
    """The interleaved run that a timing was part of."""

    id: str
    """The same for all participants; each run has another one."""
    partners: tuple[str, ...]
    """Ids of the other combinations, also of those that failed on the way."""
    turns: tuple[int, ...] = ()
    """The turn that each sample was taken in; what pairs are formed by."""
    processors: tuple[int, ...] = ()
    """Where it was kept, the same for all with as many threads: processors of one machine may differ in what else runs on them."""


class Participant(TypingProtocol):
    """Says when to take a sample; between the calls the process may have to wait."""

    @property
    def interleaved_run(self) -> InterleavedRun | None:
        """With whom; None for a process that is alone."""

    def ready(self, sample_s: float) -> float:
        """Everything before the samples is done, and one of them lasts ``sample_s``; returns the sample duration to use."""

    def take(self) -> int | None:
        """Wait for the next turn; its number, or None when no more samples are wanted."""

    def leave(self, state: State) -> None:
        """The sample of this turn has been taken."""


class Alone:
    """Nobody to wait for: samples follow each other until the protocol is fulfilled."""

    interleaved_run: InterleavedRun | None = None
    _turn = -1
    _state: State = "going"

    def ready(self, sample_s: float) -> float:
        return sample_s

    def take(self) -> int | None:
        self._turn += 1
        return self._turn if self._state == "going" else None

    def leave(self, state: State) -> None:
        self._state = state


MAX_LOOPS = 2**20
"""Steps per sample at most, should a step take no time at all."""
PHASES = ("forward", "backward", "update")
STABLE_WINDOW = 5
STABLE_TOLERANCE = 0.05
"""The noise has settled when the last five looks at the spread differ by at most 5 % of it (nvbench's ``stdrel``)."""


class Clock(TypingProtocol):
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
class Timing(Stored):
    """One round of timing; all times in seconds."""

    NOT_STORED = ("baseline", "host", "files")

    first_step_s: float
    """The very first step of the process: tracing, compiling, allocation and lazy initialisation included."""
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
    """Of a training step: seconds of ``forward``, ``backward`` and ``update``, one value per sample; of a step that is one
    program those that can be told (:mod:`sweeprof.measuring.timing`)."""
    transfers: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """Seconds of one ``h2d`` and one ``d2h``, one value per sample; nothing where the model runs on the host."""
    compiles: bool = False
    """True if the first step compiled the model."""
    interleaved_run: InterleavedRun | None = None
    """The interleaved run that the samples were part of; None if the process ran alone."""
    trace_s: float | None = None
    """Of the first step, the seconds in which its graph was made from Python; None where nothing is traced apart."""
    workload: Workload | None = None
    """The work of a step; None where it is not known."""
    generation: TokenTimes | None = None
    """The times of the tokens; None in other modes."""
    command: CommandRuns | None = None
    """What else the runs of a program were; None in other modes."""
    graphs: int | None = None
    """The graphs that a compiler made of the model; None where it makes none, or does not tell."""
    device_s: tuple[float, ...] = ()
    """Seconds that the device takes for a step whose work is queued before it begins; of some steps after the samples."""
    device_reason: str | None = None
    """Why there are none."""
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False, compare=False)
    """The output of the last run of a program, which is kept as artifacts."""
    baseline: Timing | None = field(default=None, repr=False)
    """The baseline's timing of the same interleaved run; a comparison sets it, and no record has it."""
    host: Host = field(default_factory=dict, repr=False, compare=False)
    """The host on which it was measured, by the columns of :meth:`to_frame`; empty if it is not known."""

    def to_frame(self, aggr: bool = False, host: bool = False) -> pandas.DataFrame:
        """Return the seconds of whole steps, without any probes.

        A line per sample with ``repeat warmup step_s``, and of a training step also ``forward_s``, ``backward_s`` and ``update_s``,
        with transfers also ``h2d_s`` and ``d2h_s``. Warm-up steps are not among the samples.

        Args:
            aggr: one line instead, with ``repeats``, then ``step_mean_s``, ``_max_s``, ``_min_s``, ``_std_s`` (n − 1) and
                ``_median_s``, likewise of the other columns.
            host: also columns that describe the host, ``host_name``, ``host_cpu``, ``host_threads`` …, the same in each row.
        """
        seconds = {"step": self.samples, **self.phases, **self.transfers}
        return with_host(repeat_frame(repeat_lines(0, {}, seconds, aggr)), self.host, host)

    @property
    def is_training(self) -> bool:
        """True if a step is a whole training step."""
        return bool(self.phases)

    @property
    def generated(self) -> list[tuple[tuple[float, ...], ...]]:
        """Per sample, the times of the tokens of each of its generations; empty in other modes."""
        seconds = () if self.generation is None else self.generation.seconds
        return [seconds[begin : begin + self.loops] for begin in range(0, len(seconds), self.loops)]

    @property
    def median_s(self) -> float:
        return statistics.median(self.samples)

    @classmethod
    def from_dict(cls, data: Mapping[str, object], round: int = 0) -> Timing:
        """The timing in the observations of the record of a round."""
        timing = validated(cls, data)
        if not timing.samples:
            raise damaged(timing.samples, "a list of at least one time", ["samples"])
        lists = [timing.samples, (timing.first_step_s,), *timing.phases.values(), *timing.transfers.values()]
        lists.append(timing.device_s)
        if timing.generation:
            lists += timing.generation.seconds
        shortest = min(min(times, default=0.0) for times in lists)
        if shortest < 0:
            raise damaged(shortest, "a time")
        if timing.loops < 1:
            raise damaged(timing.loops, "a number of steps per sample", ["loops"])
        if timing.workload is not None and not timing.workload.units > 0:
            raise damaged(timing.workload.units, "a number of units above 0", ["workload", "units"])
        if timing.generation:
            expected = len(timing.samples) * timing.loops
            if len(timing.generation.seconds) != expected or not all(timing.generation.seconds):
                raise damaged(len(timing.generation.seconds), f"{expected} generations", ["generation", "seconds"])
        if timing.command:
            for name in ("user_s", "system_s", "exit_codes"):
                if len(getattr(timing.command, name)) != len(timing.samples):
                    raise damaged(name, f"{len(timing.samples)} values", ["command"])
        return replace(timing, round=round, warnings=(), baseline=None)


def measure(
    step: Callable[[], object],
    protocol: Protocol,
    clock: Clock,
    participant: Participant | None = None,
    trace: Callable[[], object] | None = None,
) -> Timing:
    """Time ``step``, which must return only when its work is done (the backend synchronises the device).

    Args:
        participant: decides when to take a sample in an interleaved run; None: it runs alone.
        trace: makes the graph that the first step would make otherwise; None: there is none, or it cannot be made apart.
    """
    participant = participant or Alone()
    trace_s = None if trace is None else lasting(trace, 1, clock)
    first_step = (trace_s or 0.0) + lasting(step, 1, clock)
    warmup_steps = _warm_up(step, protocol, clock)
    gc.collect()
    with without_collection():
        loops, sample_s = _calibrate(step, protocol, clock)
        wanted_s = participant.ready(sample_s)
        loops *= max(1, round(wanted_s / sample_s)) if sample_s > 0 else 1

        def take_sample() -> float:
            if participant.interleaved_run:
                step()  # it is in no sample: what ran since the last one has taken the caches
            return lasting(step, loops, clock)

        samples, unmet, run = _samples(take_sample, loops, protocol, participant)
    warnings = tuple(timing_warnings(samples, loops, unmet, protocol.max_s, clock.resolution))
    return Timing(first_step, warmup_steps, loops, samples, unmet, warnings, interleaved_run=run, trace_s=trace_s)


def _samples(
    take_sample: Callable[[], float], loops: int, protocol: Protocol, participant: Participant
) -> tuple[tuple[float, ...], tuple[str, ...], InterleavedRun | None]:
    """Return seconds per step for each sample, the conditions of the protocol that were not met, and the run with its turns.

    Args:
        take_sample: returns the seconds of a sample.
        loops: steps per sample.
    """
    samples: list[float] = []
    turns: list[int] = []
    spreads: list[float] = []
    elapsed = 0.0
    unmet: tuple[str, ...] = ("samples",)  # once all conditions are met, it stays empty
    while (turn := participant.take()) is not None:
        lasted = take_sample()
        elapsed += lasted
        samples.append(lasted / loops)
        turns.append(turn)
        if protocol.target_spread is not None and len(samples) >= protocol.min_samples:
            spreads.append(spread(samples))
        if unmet:
            unmet = _unmet(samples, spreads, elapsed, protocol)
        state: State = "going" if unmet else "met"
        participant.leave("spent" if elapsed >= protocol.max_s else state)
    run = participant.interleaved_run
    return tuple(samples), unmet, None if run is None else replace(run, turns=tuple(turns))


class DeviceClock(Clock, TypingProtocol):
    """A clock of a device that works off what the host queues."""

    def occupy(self, seconds: float) -> None:
        """Queue work that takes the device about so long."""

    def is_reached(self, mark: Any) -> bool:
        """Return True if the device has got to a mark."""


DEVICE_SAMPLES = 5
"""At most: the work of a device on its own varies little."""
OCCUPIED = (2, 4, 8)
"""How long the device is kept occupied: multiples of the time that queueing the step took when the device was idle."""
MOST_OCCUPIED_S = 0.25


def measure_queued(step: Callable[[], object], protocol: Protocol, clock: DeviceClock) -> tuple[float, ...]:
    """Return the seconds that the device takes for a step, without waiting for the host.

    The device is kept occupied until the whole step is queued, as nvbench does with its blocking kernel. Its marks then tell the
    time of its kernels and copies, with the pauses between them of a microsecond or so.

    Args:
        step: queues its work, and does not wait for it.
        protocol: after ``min_s`` seconds no further sample is taken.
        clock: of the device.

    Raises:
        Unsupported: the step waits for the device, or is longer than what a device queues.
    """
    began = clock.now()
    step()
    queueing_s = clock.now() - began
    clock.between(clock.mark(), clock.mark())  # until the device is idle
    samples: list[float] = []
    multiples = list(OCCUPIED)
    with without_collection():
        while len(samples) < DEVICE_SAMPLES and (not samples or clock.now() - began < protocol.min_s):
            clock.occupy(min(multiples[0] * queueing_s, MOST_OCCUPIED_S))
            begin = clock.mark()
            step()
            end = clock.mark()
            is_queued = not clock.is_reached(begin)
            seconds = clock.between(begin, end)
            if is_queued:
                samples.append(seconds)
            elif len(multiples) > 1:
                multiples.pop(0)
            else:
                raise Unsupported(
                    "the step was not queued before the device began: it waits for the device, as .item() does, or has more "
                    "kernels than the device queues (about 1,000); operators/busy_share tells how much of it the device works"
                )
    return tuple(samples)


class TrainingStep(TypingProtocol):
    """The three phases of a training step, in their order; none waits for the device."""

    def forward(self) -> Any:
        """Forward and loss, after the gradients of the step before are gone; returns the loss."""

    def backward(self, loss: Any) -> None:
        """The gradients."""

    def update(self) -> None:
        """The optimizer's step."""


def measure_training(
    step: TrainingStep,
    protocol: Protocol,
    clock: Clock,
    participant: Participant | None = None,
) -> Timing:
    """Time whole training steps, and each of their phases within the same steps; arguments as of :func:`measure`."""
    seconds: list[tuple[float, ...]] = []
    """Of every step, in the order of :data:`PHASES`."""

    def whole_step() -> None:
        marks = [clock.mark()]
        loss = step.forward()
        marks.append(clock.mark())
        step.backward(loss)
        marks.append(clock.mark())
        step.update()
        marks.append(clock.mark())
        seconds.append(tuple(map(clock.between, marks[:-1], marks[1:])))

    timing = measure(whole_step, protocol, clock, participant)
    samples = _of_samples(seconds, timing)
    phases: dict[str, list[float]] = {name: [] for name in PHASES}
    for sample in samples:
        for name, values in zip(PHASES, zip(*sample, strict=True), strict=True):
            phases[name].append(statistics.fmean(values))
    return replace(timing, phases={name: tuple(means) for name, means in phases.items()})


def _of_samples(seconds: Sequence[tuple[float, ...]], timing: Timing) -> list[Sequence[tuple[float, ...]]]:
    """Return per sample the times of its steps, given those of every step that was run, in their order."""
    taken = timing.loops
    if timing.interleaved_run is not None:
        taken += 1  # the step before each sample of an interleaved run
    last = seconds[len(seconds) - len(timing.samples) * taken :]
    return [last[end - timing.loops : end] for end in range(taken, len(last) + 1, taken)]


class GenerationStep(TypingProtocol):
    """One generation of a batch: a prompt is read, and tokens are generated one after the other."""

    @property
    def prompt_tokens(self) -> int | None:
        """Tokens of the prompt of each sequence; None where the prompt is not text."""

    @property
    def new_tokens(self) -> int:
        """Tokens that are generated for each sequence."""

    @property
    def sequences_per_prompt(self) -> int:
        """Sequences that are returned for each prompt of the batch."""

    def generate(self, on_token: Callable[[], object]) -> object:
        """Generate, and call ``on_token`` whenever the device has completed a token of every sequence."""

    def cache_bytes(self) -> int:
        """Generate once more, and return the bytes of the cache at the end; raise :class:`Unsupported` if it cannot be seen."""


def measure_generation(
    step: GenerationStep,
    protocol: Protocol,
    clock: Clock,
    participant: Participant | None = None,
) -> Timing:
    """Time whole generations, and within the same ones their tokens; arguments as of :func:`measure`.

    Raises:
        Unsupported: a generation ended before its last token, or reported no token.
    """
    seconds: list[tuple[float, ...]] = []
    """Of every generation: to its first token, then from each token to the next."""

    def generate() -> None:
        stamps = [clock.now()]
        step.generate(lambda: stamps.append(clock.now()))
        seconds.append(tuple(map(sub, stamps[1:], stamps[:-1])))

    timing = measure(generate, protocol, clock, participant)
    tokens: list[tuple[float, ...]] = []
    for sample in _of_samples(seconds, timing):
        tokens += [generation[: step.new_tokens] for generation in sample]
    if not all(tokens):
        raise Unsupported("the generation did not say when a token was complete: it never called on_token()")
    cache_bytes: int | None = None
    reason: str | None = None
    try:
        cache_bytes = step.cache_bytes()
    except Unsupported as error:
        reason = str(error)
    times = TokenTimes(
        step.prompt_tokens, step.new_tokens, tuple(tokens), cache_bytes, reason, step.sequences_per_prompt
    )
    return replace(timing, generation=times)


def measure_command(
    run: Callable[[bool], CommandRun], protocol: Protocol, resolution: float, participant: Participant | None = None
) -> Timing:
    """Time whole runs of a program; each is a sample.

    The first run is not a sample, and its memory is looked at. One that takes ``protocol.max_s`` or longer is the only one.

    Args:
        run: runs the program; True: looks at its memory.
        resolution: of the clock, in seconds.
        participant: as of :func:`measure`.
    """
    participant = participant or Alone()
    first = run(True)
    warmup_steps, warmed_s = 0, 0.0
    runs: list[CommandRun] = []
    interleaved_run: InterleavedRun | None = None
    is_long = first.wall_s >= protocol.max_s
    if is_long and participant.interleaved_run is None:
        runs.append(first)
        times: tuple[float, ...] = (first.wall_s,)
        unmet = _unmet(times, [], first.wall_s, protocol)
    else:
        while not is_long and (warmup_steps < protocol.warmup_steps or warmed_s < protocol.warmup_s):
            warmed_s += run(False).wall_s
            warmup_steps += 1
            if warmed_s >= protocol.max_s:
                break

        def take_sample() -> float:
            runs.append(run(False))
            return runs[-1].wall_s

        participant.ready(first.wall_s)
        times, unmet, interleaved_run = _samples(take_sample, 1, protocol, participant)
    reported: dict[str, tuple[float, ...]] = {}
    missing: dict[str, str] = {}
    for number, one in enumerate(runs, 1):
        for name, reason in one.missing.items():
            missing.setdefault(name, f"run {number}: {reason}")
        for name, values in one.reported.items():
            reported[name] = (*reported.get(name, ()), *values)
    return Timing(
        first.wall_s,
        warmup_steps,
        1,
        times,
        unmet,
        tuple(timing_warnings(times, 1, unmet, protocol.max_s, resolution)),
        interleaved_run=interleaved_run,
        command=CommandRuns(
            tuple(one.user_s for one in runs),
            tuple(one.system_s for one in runs),
            tuple(one.exit_code for one in runs),
            first.memory_bytes,
            first.server_memory_bytes,
            first.shell_s,
            {name: values for name, values in reported.items() if name not in missing},
            missing,
        ),
        files=runs[-1].files,
    )


def sampled(step: Callable[[], object], protocol: Protocol, clock: Clock) -> tuple[float, ...]:
    """Seconds per step of the protocol's least number of samples, after one that is not kept."""
    step()
    gc.collect()
    with without_collection():
        loops, _ = _calibrate(step, protocol, clock)
        return tuple(lasting(step, loops, clock) / loops for _ in range(protocol.min_samples))


def lasting(step: Callable[[], object], loops: int, clock: Clock) -> float:
    """Seconds of so many steps."""
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


def _calibrate(step: Callable[[], object], protocol: Protocol, clock: Clock) -> tuple[int, float]:
    """Steps of a sample, and the seconds that they took."""
    loops = 1
    while (lasted := lasting(step, loops, clock)) < protocol.sample_s and loops < MAX_LOOPS:
        loops *= 2
    return loops, lasted


def _unmet(samples: Sequence[float], spreads: list[float], elapsed: float, protocol: Protocol) -> tuple[str, ...]:
    """Return the conditions of the protocol that are not met yet."""
    unmet = []
    if len(samples) < protocol.min_samples:
        unmet.append(f"min_samples={protocol.min_samples}")
    if elapsed < protocol.min_s:
        unmet.append(f"min_s={protocol.min_s:g}")
    target = protocol.target_spread
    if target is not None:
        window = spreads[-STABLE_WINDOW:]
        has_settled = len(window) == STABLE_WINDOW and max(window) - min(window) <= STABLE_TOLERANCE * max(window)
        if not has_settled and not (spreads and spreads[-1] <= target):
            unmet.append(f"target_spread={target:g}")
    return tuple(unmet)


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


TURNS_S = 0.5
"""A difference of two programs needs more samples than a program."""


@runtime_checkable
class FusedStep(TypingProtocol):
    """A training step as one program, and the programs that end after its first phases; each returns when it is done."""

    def trace(self) -> None:
        """Make the graph of the whole step."""

    def forward_alone(self) -> object:
        """Forward and loss, in training mode."""

    def forward_and_backward(self) -> object:
        """Loss and gradients, which nothing takes."""

    def whole(self) -> object:
        """All three phases."""


def measure_fused(
    step: FusedStep,
    protocol: Protocol,
    clock: Clock,
    participant: Participant | None = None,
) -> Timing:
    """Time whole steps, then each of the programs in alternation; arguments as of :func:`measure`.

    The programs take as many samples as the protocol asks for at least, and at least :data:`TURNS_S`. Each follows a whole step, as
    in a training: the caches are what that has left, for one program as for the other.
    """
    timing = measure(step.whole, protocol, clock, participant, step.trace)
    programs = (step.forward_alone, step.forward_and_backward, step.whole)
    for program in programs:
        program()  # traces and compiles it
    rounds: list[list[float]] = []
    begin = clock.now()
    with without_collection():
        while len(rounds) < protocol.min_samples or clock.now() - begin < TURNS_S:
            seconds = []
            for program in programs:
                step.whole()
                seconds.append(lasting(program, 1, clock))
            rounds.append(seconds)
    *ends, whole = (statistics.median(seconds) for seconds in zip(*rounds, strict=True))
    # The share of each phase, without a phase that adds less than can be seen; together they are 1.
    phases: dict[str, tuple[float, ...]] = {}
    reached = 0.0
    for name, end in zip(PHASES, (*ends, whole), strict=True):
        share = min(end / whole, 1.0) - reached
        if share > 0:
            phases[name] = tuple(share * sample for sample in timing.samples)
            reached += share
    return replace(timing, phases=phases)


# ---------------------------------------------------------------------------------------------------------------------
# A process that disturbs no other: idle threads, prefaulted memory
# ---------------------------------------------------------------------------------------------------------------------


TASKS = Path("/proc/self/task")
LOOK_S = 0.0005
AT_MOST_S = 0.1
"""A thread that runs for longer than this does not spin, it works."""


def become_quiet() -> None:
    """Return when no other thread of this process runs; where the system does not tell, or one never ends, soon."""
    this_thread = str(threading.get_native_id())
    end = time.monotonic() + AT_MOST_S
    while _others_run(this_thread) and time.monotonic() < end:
        time.sleep(LOOK_S)


def _others_run(this_thread: str) -> bool:
    return TASKS.exists() and any(_runs(task) for task in TASKS.iterdir() if task.name != this_thread)


def _runs(task: Path) -> bool:
    try:
        stat = (task / "stat").read_text(encoding="utf-8")
    except OSError:  # it ended meanwhile
        return False
    return stat.rpartition(")")[2].split()[0] == "R"  # after the name, which may hold anything


PRESENT = np.uint64(1 << 63)
"""Bit of a pagemap entry: the page is in memory."""
MADV_POPULATE_READ = 22
"""madvise(2), Linux 5.14: fault in the pages of a range."""
_FILE_MAPPING = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) r\S+ \S+ \S+ [1-9]\d* +/")

_remembered: list[tuple[int, int]] = []
"""Address and length of the resident ranges of mapped files, as the fork server had them."""


def remember() -> None:
    """Note which pages of mapped files this process has in memory; its children inherit the note."""
    with suppress(OSError):  # without /proc there is nothing to correct, and no memory pass either
        _remembered[:] = _resident_ranges()


def restore() -> None:
    """Bring the remembered pages into this process, but those that are no longer mapped."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for address, length in _remembered:
        failed = libc.madvise(address, length, MADV_POPULATE_READ) != 0
        if failed and ctypes.get_errno() == errno.EINVAL:  # an older kernel
            for page in range(address, address + length, mmap.PAGESIZE):
                ctypes.string_at(page, 1)


def _resident_ranges() -> list[tuple[int, int]]:
    """Return the runs of pages of mapped files that are in memory, as address and length."""
    ranges = []
    with Path("/proc/self/pagemap").open("rb", buffering=0) as pagemap:
        for line in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines():
            match = _FILE_MAPPING.match(line)
            if match is None:
                continue
            begin, end = int(match[1], 16), int(match[2], 16)
            size, offset = (end - begin) // mmap.PAGESIZE * 8, begin // mmap.PAGESIZE * 8
            entries = np.frombuffer(os.pread(pagemap.fileno(), size, offset), dtype="<u8")
            is_present = ((entries & PRESENT) != 0).astype(np.int8)
            edges = np.flatnonzero(np.diff(np.concatenate(([0], is_present, [0]))))
            for first, last in edges.reshape(-1, 2).tolist():
                ranges.append((begin + first * mmap.PAGESIZE, (last - first) * mmap.PAGESIZE))
    return ranges
