"""Times of steps, in rounds: each in a process of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from sweeprof.backends import Backend
from sweeprof.measuring.timing import (
    FusedStep,
    Timing,
    measure,
    measure_fused,
    measure_generation,
    measure_training,
    sampled,
)
from sweeprof.passes.registry import Pass, Session
from sweeprof.results.comparison import warnings_of
from sweeprof.results.record import Warning

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
        else:
            with model.stepping(work.batch) as step, session.timed("measure"):
                timing = measure(step, protocol, clock, participant, model.tracing(work.batch))
                moves = model.transfers(inputs, step())
                transfers = {name: sampled(move, protocol, clock) for name, move in moves.items()}
            timing = replace(timing, transfers=transfers)
        if model.state_of(work.batch) != before:
            timing = replace(timing, warnings=(*timing.warnings, WRITTEN))
    deviating = warnings_of(session.settings.deviations)
    return replace(timing, compiles=model.compiles, warnings=(*timing.warnings, *deviating), workload=workload)


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
