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
    Calibrates,
    CountsItself,
    Expects,
    HasArtifact,
    LoadedModel,
    MeasuresMemory,
    MeasuresPeaks,
    ProfilesLines,
    Quantizes,
    ReportsSettings,
    TimesLayers,
    Traces,
    TracesOperators,
    TracksAllocations,
    TrainingStep,
    Trains,
)
from sweeprof.backends.gaps import gap_of, lacking
from sweeprof.errors import Uncounted, Unsupported, UserError, choice_problem
from sweeprof.profiling import residency
from sweeprof.profiling.formulas import DEFAULTS, Formulas
from sweeprof.profiling.fused import FusedStep, measure_fused
from sweeprof.profiling.inputs import Inputs
from sweeprof.profiling.kernel import Kernel, KernelTimes
from sweeprof.profiling.live import Live, LiveMetric
from sweeprof.profiling.memory import Memory
from sweeprof.profiling.peaks import remembered
from sweeprof.profiling.quality import Quality
from sweeprof.profiling.recipe import Recipe, Work
from sweeprof.profiling.settings import MeasuredSettings
from sweeprof.profiling.timing import Protocol, Timing, measure, measure_training, sampled
from sweeprof.profiling.turns import Turns
from sweeprof.results.allocations import Allocations
from sweeprof.results.artifact import Artifact
from sweeprof.results.comparable import warnings_of
from sweeprof.results.layer_times import LayerTimes, Mode
from sweeprof.results.layers import LayerTable, Training
from sweeprof.results.lines import Lines
from sweeprof.results.operators import Operators
from sweeprof.results.own_counts import OwnCounts
from sweeprof.results.peaks import Peaks
from sweeprof.results.record import PassName, Warning

MEMORY_STEPS = 5
"""Enough for allocators to reach their high-water mark."""

Strict = Literal["error", "warn", "ignore"]
Observations = (
    LayerTable
    | Training
    | OwnCounts
    | Artifact
    | Peaks
    | Timing
    | LayerTimes
    | Operators
    | Memory
    | Allocations
    | Lines
    | Quality
    | Live
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
    turns: Turns | None = None
    """Who else takes samples while the ``timing`` pass does; None: nobody."""
    costs: dict[str, float] = field(default_factory=dict)
    """Seconds spent per activity (``build``, ``measure``), filled in by :meth:`run`."""
    settings: MeasuredSettings = field(default_factory=MeasuredSettings)
    """Those of the framework while the model ran, filled in by :meth:`run`."""
    warnings: list[Warning] = field(default_factory=list)
    """What is doubtful about the data, filled in by :meth:`run`."""

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
        self.settings.begin(self._settings_now(), self._configured())
        if isinstance(self.backend, Expects):
            self.backend.expect(self.inputs())
        if isinstance(self.backend, Quantizes):
            self.backend.ranges_from(self.samples)
        try:
            found: Observations = getattr(self, f"_{pass_name}")()
        finally:
            self.settings.end(self._settings_now())
        if isinstance(found, Timing):
            found = replace(found, warnings=(*found.warnings, *warnings_of(self.settings.deviations)))
        return found

    def _configured(self) -> dict[str, Any]:
        """Return the settings that a config requests, by the names that the backend gives them; none where there is no config."""
        return {}

    def _settings_now(self) -> dict[str, Any]:
        if not isinstance(self.backend, ReportsSettings):
            return {}
        return {**self.backend.settings_in_effect(), "device": self.place()}

    def _observe(self, model: LoadedModel) -> None:
        """Read the settings that are in effect now that the model has run."""
        if isinstance(self.backend, ReportsSettings):
            self.settings.in_effect = self.backend.settings_in_effect(model)

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

    def samples(self) -> Any:
        """Inputs to learn from, ``(n, *sample_shape)``; None where there are none."""
        return None

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
            raise lacking(self.backend, Analyzes)
        with self.described() as (build, channel_axis), Stopwatch(self.costs, "measure"):
            table = self.backend.analyze(build, self.inputs(), channel_axis, self.formulas)
        self._check(table.uncovered)
        return table

    def _training(self) -> Training:
        if not isinstance(self.backend, AnalyzesTraining):
            raise lacking(self.backend, AnalyzesTraining)
        with self.described() as (build, channel_axis), Stopwatch(self.costs, "measure"):
            step = self.backend.analyze_training(build, self.inputs(), channel_axis, self.formulas)
        self._check(step.uncovered)
        return step

    def _own_counts(self) -> OwnCounts:
        if not isinstance(self.backend, CountsItself):
            raise lacking(self.backend, CountsItself)
        with self.described() as (build, channel_axis), Stopwatch(self.costs, "measure"):
            return self.backend.own_counts(build, self.inputs(), channel_axis)

    def _artifact(self) -> Artifact:
        if not isinstance(self.backend, HasArtifact):
            raise lacking(self.backend, HasArtifact)
        with self.described() as (build, channel_axis), Stopwatch(self.costs, "build"):
            return self.backend.artifact(build, channel_axis)

    def _check(self, uncovered: Mapping[str, int]) -> None:
        if uncovered and self.strict == "error":
            names = ", ".join(f"{name} ×{calls}" for name, calls in sorted(uncovered.items()))
            raise Uncounted(f"no formula for {names}")

    def _peaks(self) -> Peaks:
        backend = self.backend
        if not isinstance(backend, MeasuresPeaks):
            raise lacking(self.backend, MeasuresPeaks)
        with Stopwatch(self.costs, "measure"):
            return remembered(backend, self.place(), self.held())

    def _timing(self) -> Timing:
        inputs = self.inputs()
        with self.loaded() as model:
            work, clock = self._work(model, inputs), model.clock()
            kernel, reason = self._kernel(model)
            if self.mode == "training":
                with self._training_step(model, work) as training, Stopwatch(self.costs, "measure"):
                    if isinstance(training, FusedStep):
                        timing = measure_fused(training, self.protocol, clock, self.turns, kernel)
                    else:
                        timing = measure_training(training, self.protocol, clock, self.turns, kernel)
            else:
                with model.stepping(work.batch) as step, Stopwatch(self.costs, "measure"):
                    trace = model.tracing(work.batch) if isinstance(model, Traces) else None
                    timing = measure(step, self.protocol, clock, self.turns, kernel, trace)
                    moves = model.transfers(inputs, step())
                    transfers = {name: sampled(move, self.protocol, clock) for name, move in moves.items()}
                timing = replace(timing, transfers=transfers)
        return _uncalibrated(replace(timing, compiles=model.compiles), reason)

    def _kernel(self, model: LoadedModel) -> tuple[Kernel | None, str | None]:
        """The calibration kernel, or why there is none where the protocol asks for one."""
        wanted = self.protocol.kernel
        if wanted is None:
            return None, None
        if not isinstance(self.backend, Calibrates):
            return None, gap_of(self.backend, Calibrates)
        return self.backend.kernel(model, None if wanted == "auto" else wanted), None

    def _work(self, model: LoadedModel, inputs: Inputs) -> Work:
        is_training = self.mode == "training"
        return Work(model.put(inputs), self.targets() if is_training else None, self.recipe if is_training else None)

    def _training_step(self, model: LoadedModel, work: Work) -> AbstractContextManager[TrainingStep | FusedStep]:
        if not isinstance(self.backend, Trains):
            raise lacking(self.backend, Trains)
        assert work.recipe is not None
        return self.backend.training(model, work.batch, work.targets, work.recipe)

    def _layer_times(self) -> LayerTimes:
        backend = self.backend
        if not isinstance(backend, TimesLayers):
            raise lacking(self.backend, TimesLayers)
        with self._working() as (model, work):
            return backend.layer_times(model, work, self.protocol)

    def _operators(self) -> Operators:
        backend = self.backend
        if not isinstance(backend, TracesOperators):
            raise lacking(self.backend, TracesOperators)
        with self._working() as (model, work):
            return backend.operators(model, work)

    def _allocations(self) -> Allocations:
        backend = self.backend
        if not isinstance(backend, TracksAllocations):
            raise lacking(self.backend, TracksAllocations)
        with self._working() as (model, work):
            return backend.allocations(model, work)

    def _lines(self) -> Lines:
        backend = self.backend
        if not isinstance(backend, ProfilesLines):
            raise lacking(self.backend, ProfilesLines)
        with self._working() as (model, work):
            return backend.lines(model, work, self.watched)

    @contextmanager
    def _whole_steps(self, model: LoadedModel, work: Work) -> Iterator[Callable[[], object]]:
        if work.recipe is None:
            with model.stepping(work.batch) as step:
                yield step
            return
        with self._training_step(model, work) as training:
            if isinstance(training, FusedStep):
                yield training.whole
                return

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
            raise lacking(self.backend, MeasuresMemory)
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


def _uncalibrated(timing: Timing, reason: str | None) -> Timing:
    """The timing with what is said where a kernel was asked for and there was none."""
    if reason is None:
        return timing
    warning = Warning("no_kernel", reason, "compare rounds or a duel, or set protocol.kernel=null")
    return replace(timing, kernel=KernelTimes(None, reason=reason), warnings=(*timing.warnings, warning))


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
