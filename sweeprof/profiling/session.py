"""Sessions: the passes over one model, one backend, one batch size, in this process."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import numpy as np

from sweeprof.backends import (
    Analyzes,
    AnalyzesTraining,
    Backend,
    Build,
    LoadedModel,
    MeasuresMemory,
    MeasuresPeaks,
    ProfilesLines,
    TimesLayers,
    TracesOperators,
    TracksAllocations,
    TrainingStep,
    Trains,
)
from sweeprof.errors import Uncounted, Unsupported, UserError, choice_problem
from sweeprof.profiling import residency
from sweeprof.profiling.formulas import DEFAULTS, Formulas
from sweeprof.profiling.inputs import Inputs
from sweeprof.profiling.live import Live, LiveMetric
from sweeprof.profiling.memory import Memory
from sweeprof.profiling.peaks import remembered
from sweeprof.profiling.quality import Quality
from sweeprof.profiling.recipe import Recipe, Work
from sweeprof.profiling.timing import Protocol, Timing, measure, measure_training, sampled
from sweeprof.results.allocations import Allocations
from sweeprof.results.layer_times import LayerTimes, Mode
from sweeprof.results.layers import LayerTable, Training
from sweeprof.results.lines import Lines
from sweeprof.results.operators import Operators
from sweeprof.results.peaks import Peaks
from sweeprof.results.record import PassName

MEMORY_STEPS = 5
"""Enough for allocators to reach their high-water mark."""

Strict = Literal["error", "warn", "ignore"]
Observations = (
    LayerTable | Training | Peaks | Timing | LayerTimes | Operators | Memory | Allocations | Lines | Quality | Live
)
Built = tuple[Build, int | None]
"""What makes the model, and the axis of the channels in its inputs."""


@dataclass(slots=True, kw_only=True)
class Session(ABC):
    """Runs passes over a model; timing and memory belong in a fresh process each, which the sweep's worker provides."""

    backend: Backend
    protocol: Protocol = field(default_factory=Protocol)
    formulas: Formulas = DEFAULTS
    strict: Strict = "warn"
    """What an operator without a formula does: ``error`` fails the pass, ``warn`` marks the numbers, ``ignore`` does neither."""
    mode: Mode = "inference"
    """Whether a step is a forward or a whole training step; counting and evaluating are the same in both."""
    recipe: Recipe = field(default_factory=Recipe)
    """What a training step is made of."""
    watched: Sequence[str] = ()
    """The functions that the ``lines`` pass watches, by their dotted names; none: the model's own forward."""
    live_metrics: Sequence[LiveMetric] = ()
    """What the ``live`` pass computes."""
    costs: dict[str, float] = field(default_factory=dict)
    """Seconds spent per activity (``build``, ``measure``), filled in by :meth:`run`."""

    def check(self) -> None:
        """Raises :class:`UserError` for a setting that is not one of those allowed."""
        if self.strict not in get_args(Strict):
            noun = "way to handle operators without a formula"
            raise UserError([choice_problem("strict", self.strict, noun, get_args(Strict))])
        if self.mode not in get_args(Mode):
            raise UserError([choice_problem("mode", self.mode, "kind of step", get_args(Mode))])

    def run(self, pass_name: PassName) -> Observations:
        """What the pass saw.

        Raises:
            Unsupported: the backend lacks the capability.
            Uncounted: an operator has no formula, and the session is strict.
            Exception: whatever the model raised.
        """
        self.prepare()
        found: Observations = getattr(self, f"_{pass_name}")()
        return found

    @abstractmethod
    def prepare(self) -> None:
        """Set up the framework, where that is this session's business."""

    @abstractmethod
    def place(self) -> str:
        """The device, e.g. ``cpu`` or ``cuda:0``."""

    def held(self) -> Any:
        """The model itself, where the caller has it in hands; None where each pass builds its own."""
        return None

    @abstractmethod
    def inputs(self) -> Inputs:
        """One batch."""

    @abstractmethod
    def targets(self) -> Any:
        """What belongs to the batch of :meth:`inputs`; None where there are none."""

    @abstractmethod
    def described(self) -> AbstractContextManager[Built]:
        """The model, to be analysed on shapes."""

    @abstractmethod
    def loaded(self) -> AbstractContextManager[LoadedModel]:
        """The model on its device, ready to step."""

    @abstractmethod
    def labelled(self) -> Iterator[tuple[Inputs, Any]]:
        """Batches to be evaluated on, each with its targets, or None where there are none."""

    @property
    @abstractmethod
    def data(self) -> Any:
        """What a metric that asks for the data is given."""

    def _analysis(self) -> LayerTable:
        if not isinstance(self.backend, Analyzes):
            raise Unsupported("this backend cannot count layers")
        with self.described() as (build, channel_axis), Stopwatch(self.costs, "measure"):
            table = self.backend.analyze(build, self.inputs(), channel_axis, self.formulas)
        self._check(table.uncovered)
        return table

    def _training(self) -> Training:
        if not isinstance(self.backend, AnalyzesTraining):
            raise Unsupported("this backend cannot count a training step")
        with self.described() as (build, channel_axis), Stopwatch(self.costs, "measure"):
            step = self.backend.analyze_training(build, self.inputs(), channel_axis, self.formulas)
        self._check(step.uncovered)
        return step

    def _check(self, uncovered: Mapping[str, int]) -> None:
        if uncovered and self.strict == "error":
            names = ", ".join(f"{name} ×{calls}" for name, calls in sorted(uncovered.items()))
            raise Uncounted(f"no formula for {names}")

    def _peaks(self) -> Peaks:
        backend = self.backend
        if not isinstance(backend, MeasuresPeaks):
            raise Unsupported("this backend has no benchmark of the machine")
        with Stopwatch(self.costs, "measure"):
            return remembered(backend, self.place(), self.held())

    def _timing(self) -> Timing:
        inputs = self.inputs()
        with self.loaded() as model:
            work, clock = self._work(model, inputs), model.clock()
            if self.mode == "training":
                with self._training_step(model, work) as training, Stopwatch(self.costs, "measure"):
                    timing = measure_training(training, self.protocol, clock)
                return replace(timing, compiles=model.compiles)
            with model.stepping(work.batch) as step, Stopwatch(self.costs, "measure"):
                timing = measure(step, self.protocol, clock)
                moves = model.transfers(inputs, step())
                transfers = {name: sampled(move, self.protocol, clock) for name, move in moves.items()}
            return replace(timing, compiles=model.compiles, transfers=transfers)

    def _work(self, model: LoadedModel, inputs: Inputs) -> Work:
        is_training = self.mode == "training"
        return Work(model.put(inputs), self.targets() if is_training else None, self.recipe if is_training else None)

    def _training_step(self, model: LoadedModel, work: Work) -> AbstractContextManager[TrainingStep]:
        if not isinstance(self.backend, Trains):
            raise Unsupported("this backend cannot train")
        assert work.recipe is not None
        return self.backend.training(model, work.batch, work.targets, work.recipe)

    def _layer_times(self) -> LayerTimes:
        backend = self.backend
        if not isinstance(backend, TimesLayers):
            raise Unsupported("this backend cannot time layers")
        with self._working() as (model, work):
            return backend.layer_times(model, work, self.protocol)

    def _operators(self) -> Operators:
        backend = self.backend
        if not isinstance(backend, TracesOperators):
            raise Unsupported("this backend cannot trace operators")
        with self._working() as (model, work):
            return backend.operators(model, work)

    def _allocations(self) -> Allocations:
        backend = self.backend
        if not isinstance(backend, TracksAllocations):
            raise Unsupported("this backend cannot follow allocations")
        with self._working() as (model, work):
            return backend.allocations(model, work)

    def _lines(self) -> Lines:
        backend = self.backend
        if not isinstance(backend, ProfilesLines):
            raise Unsupported("this backend cannot watch source lines")
        with self._working() as (model, work):
            return backend.lines(model, work, self.watched)

    @contextmanager
    def _whole_steps(self, model: LoadedModel, work: Work) -> Iterator[Callable[[], object]]:
        if work.recipe is None:
            with model.stepping(work.batch) as step:
                yield step
            return
        with self._training_step(model, work) as training:

            def train() -> None:
                training.backward(training.forward())
                training.update()

            yield train

    @contextmanager
    def _working(self) -> Iterator[tuple[LoadedModel, Work]]:
        inputs = self.inputs()
        with self.loaded() as model, Stopwatch(self.costs, "measure"):
            yield model, self._work(model, inputs)

    def _memory(self) -> Memory:
        if not isinstance(self.backend, MeasuresMemory):
            raise Unsupported("this backend cannot measure memory")
        inputs = self.inputs()
        meter = self.backend.memory_meter()
        residency.restore()
        baseline = meter.rss()
        meter.reset_peak()
        with self.loaded() as model:
            work = self._work(model, inputs)
            loaded = meter.rss()
            highest = meter.rss_peak()
            meter.reset_peak()
            with self._whole_steps(model, work) as step, Stopwatch(self.costs, "measure"):
                for _ in range(MEMORY_STEPS):
                    step()
            stepping = meter.rss_peak()
            return Memory(baseline, loaded, max(highest, stepping), MEMORY_STEPS, stepping)

    def _quality(self) -> Quality:
        answers, targets = [], []
        with self.loaded() as model, Stopwatch(self.costs, "measure"):
            clock = model.clock()
            begin = clock.now()
            for inputs, labels in self.labelled():
                with model.stepping(model.put(inputs)) as step:
                    answers.append(model.host_outputs(step()))
                if labels is not None:
                    targets.append(as_array(labels))
            seconds = clock.now() - begin
        if not answers:
            raise Unsupported("there are no data to evaluate on")
        try:
            outputs, classes = np.concatenate(answers), np.concatenate(targets) if targets else None
        except ValueError as error:
            raise Unsupported(f"what the batches gave does not fit together: {error}") from None
        return replace(Quality.of(outputs, classes), seconds=seconds)

    def _live(self) -> Live:
        with self.loaded() as model, Stopwatch(self.costs, "measure"):
            return Live.of(self.live_metrics, model.native, self.data)


def as_array(values: Any) -> np.ndarray[Any, Any]:
    """Targets as an array, also from a tensor on a device."""
    return np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)


class Stopwatch:
    """Adds the seconds spent within it to ``costs[key]``, also when it is left by an exception."""

    def __init__(self, costs: dict[str, float], key: str) -> None:
        self._costs, self._key = costs, key

    def __enter__(self) -> None:
        self._begin = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self._costs[self._key] = self._costs.get(self._key, 0.0) + time.perf_counter() - self._begin
