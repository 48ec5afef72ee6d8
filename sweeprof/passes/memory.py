"""Memory of a process that does nothing but load the model and step it: its resident set, and that of an accelerator."""

from __future__ import annotations

import atexit
import gc
import json
import os
import random
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import cast

import psutil

from sweeprof.backends import Backend, LoadedModel
from sweeprof.errors import Unsupported
from sweeprof.measuring import timing
from sweeprof.measuring.inputs import Inputs
from sweeprof.measuring.nvml import Gpu
from sweeprof.measuring.timing import FusedStep
from sweeprof.measuring.training_config import Work
from sweeprof.passes.registry import Pass, Session
from sweeprof.processes import die_with, signal_name
from sweeprof.results.record import Stored

# ---------------------------------------------------------------------------------------------------------------------
# A number that is measured in a child of this process, which ends with it
# ---------------------------------------------------------------------------------------------------------------------


def in_child(measure: Callable[[], int]) -> tuple[int | None, str | None]:
    """Return the number that ``measure`` returns in a child of this process, or None and why there is none.

    The child begins as a copy of this process: whatever it imports, allocates or changes is gone with it.
    """
    # A child has only one of several threads, and would wait for the others' locks for ever.
    if psutil.Process().num_threads() > 1:
        reason = "this process has several threads already, and cannot have a child that measures"
        return None, f"{reason}; a trial with isolation=fork can"
    sys.stdout.flush()
    sys.stderr.flush()
    reading, writing = os.pipe()
    drawn = random.getstate()
    parent, child = os.getpid(), os.fork()
    if child == 0:
        os.close(reading)
        # os.fork() gives the child another random seed: it would build the model with other weights.
        random.setstate(drawn)
        _measure_and_exit(measure, writing, parent)
    os.close(writing)
    with os.fdopen(reading, "rb") as answer:
        text = answer.read()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if not text:
        ending = f"was ended by {signal_name(-code)}" if code < 0 else f"exited with {code}"
        return None, f"the process that measured it {ending}"
    value, reason = json.loads(text)
    return value, reason


def _measure_and_exit(measure: Callable[[], int], writing: int, parent: int) -> None:
    value, reason = None, None
    atexit._clear()  # what the parent registered is not this process's to do
    try:
        die_with(parent)
        value = measure()
    except Unsupported as error:
        reason = str(error)
    except BaseException as error:
        reason = f"{type(error).__name__}: {error}"
    os.write(writing, json.dumps([value, reason]).encode())
    with suppress(BaseException):
        atexit._run_exitfuncs()  # what the measurement registered: the removal of AutoGraph's files, for one
    os._exit(0)


# ---------------------------------------------------------------------------------------------------------------------
# Resident memory
# ---------------------------------------------------------------------------------------------------------------------


MEMORY_STEPS = 5
"""Enough for allocators to reach their high-water mark."""


@dataclass(frozen=True, slots=True)
class Memory(Stored):
    """Memory of a process that did nothing but load the model and step it; bytes, of the host unless stated."""

    rss_baseline_bytes: int
    """Before the model was built."""
    rss_loaded_bytes: int
    """With the model and one batch loaded."""
    rss_peak_bytes: int
    """Highest during building, loading and stepping."""
    steps: int
    rss_stepping_bytes: int
    """Highest during stepping alone."""
    added_bytes: int | None = None
    """Most memory of :attr:`device` while stepping, above that of the same process without the model and its batch but with
    everything that the framework had made for them, and without programs and libraries; None: not measured."""
    not_added: str | None = None
    """Why it was not measured."""
    device: str = "cpu"
    """The device that the model ran on, e.g. ``cuda:0``."""
    device_process_bytes: int | None = None
    """Memory of an accelerator that the process held after the steps, as the driver sees it; None: on the host, or unknown."""
    device_reason: str | None = None
    """Why that of an accelerator is unknown."""


def run(session: Session, backend: Backend) -> Memory:
    """Return the resident memory of this process before, while and after the model is loaded, and while it steps."""
    if not session.owns_process:
        raise Unsupported("resident memory is that of a whole process; a sweep gives each trial its own")
    added, not_added = cast(tuple[int | None, str | None], session.measured_first)
    inputs = session.inputs()
    meter = backend.memory_meter()
    timing.restore()
    baseline = meter.rss()
    meter.reset_peak()
    with session.loaded() as model:
        work = session.work(model, inputs)
        loaded = meter.rss()
        highest = meter.rss_peak()
        meter.reset_peak()
        with whole_step(session, model, work) as step, session.timed("measure"):
            for _ in range(MEMORY_STEPS):
                step()
        model.check_compiled()
        stepping = meter.rss_peak()
        device = session.device_name()
        on_device, reason = None, None
        if device != "cpu":
            # Frameworks keep what they have got from the driver, so that it is most at the end.
            try:
                with closing(Gpu(device)) as gpu:
                    on_device = gpu.own_bytes()
            except Unsupported as error:
                reason = str(error)
        peak = max(highest, stepping)
        return Memory(baseline, loaded, peak, MEMORY_STEPS, stepping, added, not_added, device, on_device, reason)


def added_memory(session: Session, backend: Backend) -> tuple[int | None, str | None]:
    """Return what the model and its step add, where it runs, to a process that has the framework, or why that was not measured.

    It is measured in a child of this process. On the host freed memory leaves the resident set at once there: with the usual
    settings the C library keeps some of it, more or less by chance, which belongs in the total only. On an accelerator it is what
    the framework's allocator has given away.
    """
    if not session.owns_process:
        return None, "it is that of a whole process"
    device = session.device_name()
    if device != "cpu" and not backend.has("allocation_meter"):
        return None, f"this backend does not tell what its allocator gives away on {device}"

    def on_host() -> int:
        session.set_up()
        inputs = session.inputs()
        meter = backend.memory_meter()
        meter.give_back_freed()
        meter.own()  # from here on, files that are mapped are the model's
        # What the framework makes once: kernels, pools of threads, late imports.
        _, weights = _peak_of_steps(session, inputs, meter.reset_peak, meter.own_peak)
        _check_released(weights)
        meter.give_back_freed()
        baseline = meter.own()
        return _peak_of_steps(session, inputs, meter.reset_peak, meter.own_peak)[0] - baseline

    def on_device() -> int:
        session.set_up()
        inputs = session.inputs()
        meter = backend.allocation_meter(device)
        # What the framework allocates once, such as the workspaces of its libraries.
        _, weights = _peak_of_steps(session, inputs, meter.reset_peak, meter.peak)
        _check_released(weights)
        baseline = meter.current()
        return _peak_of_steps(session, inputs, meter.reset_peak, meter.peak)[0] - baseline

    return in_child(on_host if device == "cpu" else on_device)


Weights = list[weakref.ref[object]]


def _peak_of_steps(
    session: Session, inputs: Inputs, reset_peak: Callable[[], object], peak: Callable[[], int]
) -> tuple[int, Weights]:
    """Return the most that this process takes, by its ``peak``, in the steps after the first, and the model's weights."""
    weights: Weights = []
    with session.loaded() as model:
        work = session.work(model, inputs)
        with whole_step(session, model, work) as step:
            step()
            reset_peak()
            for _ in range(MEMORY_STEPS):
                step()
        highest = peak()
        for held in model.weights():
            with suppress(TypeError):  # there are no weak references to some objects
                weights.append(weakref.ref(held))
    return highest, weights


def _check_released(weights: Weights) -> None:
    """Collect garbage; raise :class:`Unsupported` if any of the weights are still in memory."""
    gc.collect()
    if any(held() is not None for held in weights):
        raise Unsupported(
            "the weights stay in memory when the model is released, so that loading it again adds little: whatever builds the "
            "model keeps it or its weights, as functools.cache does; let it make new ones each time"
        )


@contextmanager
def whole_step(session: Session, model: LoadedModel, work: Work) -> Iterator[Callable[[], object]]:
    """Within the context: a function that runs one forward, one whole training step or one whole generation."""
    if work.generation is not None:
        with session.generation_step(model, work) as generation:
            yield lambda: generation.generate(lambda: None)
        return
    if work.training is None:
        with model.stepping(work.batch) as forward:
            yield forward
        return
    with session.training_step(model, work) as step:
        if isinstance(step, FusedStep):
            yield step.whole
            return

        def train() -> None:
            step.backward(step.forward())
            step.update()

        yield train


PASS = Pass(
    name="memory",
    order=90,
    run=run,
    first=added_memory,
    read=Memory.from_dict,
    kind="once",
    is_exclusive=True,
)
