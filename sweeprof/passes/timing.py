"""Passes that measure times: of steps, of forwards at the same time, and of the data loader; and the peak rates of the machine."""

from __future__ import annotations

import hashlib
import json
import statistics
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import chain

from sweeprof.backends import Backend, LoadedModel
from sweeprof.errors import Unsupported
from sweeprof.measuring.timing import (
    FusedStep,
    Timing,
    measure,
    measure_command,
    measure_fused,
    measure_generation,
    measure_training,
    sampled,
)
from sweeprof.measuring.training_config import Work
from sweeprof.passes.registry import Pass, Session
from sweeprof.paths import cache_folder
from sweeprof.results.compared_rows import warnings_of
from sweeprof.results.environment import Peaks, capture
from sweeprof.results.files import read_json, write_json
from sweeprof.results.observations import launch_bound
from sweeprof.results.record import Stored, Warning

WRITTEN = Warning(
    "inputs_changed",
    "the model changes its inputs: each step found what the last one left there",
    "let the first layer return a new tensor, as with inplace=False; give a cache to a step that makes a new one",
)


def run(session: Session, backend: Backend) -> Timing:
    """Return one round of times of a step, and of the transfers to and from the device."""
    protocol, participant = session.protocol, session.participant
    if session.mode == "training":
        backend.require("training")  # before a model is converted for nothing
    elif session.mode == "generation":
        backend.require("generating")
    inputs = session.inputs()
    # What the inputs are counted in is the work of a forward or a training step, not of anything else.
    workload = session.workload(inputs) if session.mode in ("inference", "training") else None
    with session.loaded() as model:
        work, clock = session.work(model, inputs), model.clock()
        before = model.state_of(work.batch)
        if session.mode == "training":
            with session.training_step(model, work) as training, session.timed("measure"):
                if isinstance(training, FusedStep):
                    timing = measure_fused(training, protocol, clock, participant)
                else:
                    timing = measure_training(training, protocol, clock, participant)
        elif session.mode == "generation":
            with session.generation_step(model, work) as generation, session.timed("measure"):
                timing = measure_generation(generation, protocol, clock, participant)
        elif session.mode == "command":
            with model.running(session.server) as run, session.timed("measure"):
                timing = measure_command(run, protocol, clock.resolution, participant)
        else:
            with model.stepping(work.batch) as step, session.timed("measure"):
                timing = measure(step, protocol, clock, participant, model.tracing(work.batch))
                moves = model.transfers(inputs, step())
                transfers = {name: sampled(move, protocol, clock) for name, move in moves.items()}
            timing = replace(timing, transfers=transfers)
        model.check_compiled()
        timing = replace(timing, graphs=model.graphs)
        if session.mode in ("inference", "training"):
            timing = with_device_times(timing, session, backend, model, work)
        if model.state_of(work.batch) != before:
            timing = replace(timing, warnings=(*timing.warnings, WRITTEN))
    deviating = warnings_of(session.settings.deviations)
    return replace(timing, compiles=model.compiles, warnings=(*timing.warnings, *deviating), workload=workload)


def with_device_times(timing: Timing, session: Session, backend: Backend, model: LoadedModel, work: Work) -> Timing:
    """Return the timing with the device's own times of a step, and a warning where the device waits for the host."""
    if session.device_name() == "cpu":
        return replace(timing, device_reason="the model runs on the host")
    try:
        device_s = backend.device_times(model, work, session.protocol)
    except Unsupported as error:
        return replace(timing, device_reason=str(error))
    waiting = launch_bound(statistics.median(device_s) / timing.median_s)
    return replace(timing, device_s=device_s, warnings=(*timing.warnings, *waiting))


def paired(rounds: tuple[Timing, ...], read_baseline: Callable[[], tuple[Timing, ...]]) -> tuple[Timing, ...]:
    """Return the rounds, each with the baseline's timing of the same interleaved run."""
    if not any(timing.interleaved_run for timing in rounds):
        return rounds
    baselines = {timing.interleaved_run.id: timing for timing in read_baseline() if timing.interleaved_run}
    found = []
    for timing in rounds:
        run = timing.interleaved_run
        found.append(timing if run is None else replace(timing, baseline=baselines.get(run.id)))
    return tuple(found)


PASS = Pass(
    name="timing",
    order=60,
    run=run,
    read=Timing.from_dict,
    kind="rounds",
    is_exclusive=True,
    pair=paired,
)


# Several forwards at the same time: how many a run-time completes per second when it gets several requests at once.


@dataclass(frozen=True, slots=True)
class Concurrent(Stored):
    """Samples of the throughput with several requests in flight."""

    requests: int
    """In flight at the same time."""
    forwards: tuple[int, ...]
    """Completed in each sample."""
    seconds: tuple[float, ...]
    """Of each sample, until its last request was complete."""


def run_concurrent(session: Session, backend: Backend) -> Concurrent:
    """Return samples that together last as long as a round of timing, after one for warming up."""
    if session.mode != "inference":
        raise Unsupported(f"mode={session.mode}: requests are forwards")
    if not backend.has("concurrently"):
        raise Unsupported(
            "this backend runs one forward after the other; backend=openvino takes several requests at a time"
        )
    protocol = session.protocol
    sample_s = protocol.min_s / protocol.min_samples
    with session.working() as (model, work):
        requests, *_ = backend.concurrently(model, work.batch, max(protocol.warmup_s, sample_s))
        samples = [backend.concurrently(model, work.batch, sample_s) for _ in range(protocol.min_samples)]
    return Concurrent(requests, tuple(sample[1] for sample in samples), tuple(sample[2] for sample in samples))


CONCURRENT = Pass(
    name="concurrent", order=65, run=run_concurrent, read=Concurrent.from_dict, kind="once", is_exclusive=True
)


# The data loader alone: how fast it delivers batches, without a model.


@dataclass(frozen=True, slots=True)
class Loading(Stored):
    """Complete passes of a loader over the test split; the last one ends early where it reached ``protocol.max_s``."""

    samples: int
    """All that were delivered."""
    batches: int
    seconds: float
    """From the first request to the last batch, the starts of all passes included."""
    first_batch_s: tuple[float, ...]
    """Per pass, from its beginning, which starts worker processes, to its first batch."""
    warm_up_s: float
    """The same for a pass before these, which also imports what the loader needs."""


def run_loading(session: Session, _: Backend) -> Loading:
    """Return what the session's loader delivers in as many passes as take the protocol's minimum duration, at least one."""
    protocol, samples, batches = session.protocol, 0, 0
    first_batch_s: list[float] = []
    with session.described():  # a loader draws random numbers, which a caller's process shall not notice
        began = time.perf_counter()
        if next(iter(session.batch_sizes()), None) is None:
            raise Unsupported("there are no data to load")
        warm_up_s = time.perf_counter() - began
        with session.timed("measure"):
            began = now = time.perf_counter()
            while not batches or now - began < protocol.min_s:
                begin = time.perf_counter()
                loader = iter(session.batch_sizes())
                first = next(loader)
                first_batch_s.append(time.perf_counter() - begin)
                for size in chain([first], loader):
                    samples, batches, now = samples + size, batches + 1, time.perf_counter()
                    if now - began >= protocol.max_s:
                        break
    return Loading(samples, batches, now - began, tuple(first_batch_s), warm_up_s)


LOADING = Pass(name="loading", order=125, run=run_loading, read=Loading.from_dict, kind="once", is_exclusive=True)


# Peak rates of the machine, measured once per host and kept in a cache.


def run_peaks(session: Session, backend: Backend) -> Peaks:
    """Return the peak rates of this host."""
    with session.timed("measure"):
        return cached_peaks(backend, session.device_name(), session.caller_model())


def cached_peaks(backend: Backend, device: str, model: object = None) -> Peaks:
    """Return the peaks of this host with the settings of this process: from the cache, or measured and put there.

    Args:
        backend: measures them.
        device: on which they are measured.
        model: the caller's, if there is one: its data type counts.
    """
    folder, settings = cache_folder("peaks"), backend.peak_settings(device, model)
    if folder is None:
        return backend.peaks(settings)
    environment = capture()
    # All that the rates depend on.
    known = [*(environment[name] for name in ("host", "cpu", "gpus", "versions")), type(backend).__qualname__]
    key = hashlib.sha256(json.dumps([known, asdict(settings)], default=str).encode()).hexdigest()[:16]
    path = folder / f"{key}.json"
    with suppress(OSError, ValueError, TypeError):  # there is none, or it is not of this version: measured again
        return replace(Peaks.from_dict(read_json(path)), is_cached=True)
    peaks = backend.peaks(settings)
    with suppress(OSError):  # a home that cannot be written to costs the next combination a few seconds
        write_json(path, peaks.to_dict())
    return peaks


PEAKS = Pass(
    name="peaks",
    order=50,
    run=run_peaks,
    read=Peaks.from_dict,
    kind="once",
    capability="peaks",
    is_exclusive=True,
)
