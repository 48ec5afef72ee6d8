"""Sessions: the passes over one model, one backend, one batch size, in this process."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from sweeprof.backends import (
    Analyzes,
    AnalyzesTraining,
    Backend,
    Borrows,
    Build,
    LoadedModel,
    MeasuresMemory,
)
from sweeprof.datasets import Dataset, batch_of
from sweeprof.errors import Uncounted, Unsupported, UserError
from sweeprof.profiling import residency
from sweeprof.profiling.data import Data
from sweeprof.profiling.formulas import DEFAULTS, Formulas
from sweeprof.profiling.inputs import Inputs
from sweeprof.profiling.live import Live, LiveMetric
from sweeprof.profiling.memory import Memory
from sweeprof.profiling.quality import Quality, batches
from sweeprof.profiling.timing import Protocol, Timing, measure
from sweeprof.results.layers import LayerTable, Training
from sweeprof.results.record import PassName

MEMORY_STEPS = 5
"""Enough for allocators to reach their high-water mark."""

Strict = Literal["error", "warn", "ignore"]
Observations = LayerTable | Training | Timing | Memory | Quality | Live
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
    live_metrics: Sequence[LiveMetric] = ()
    """What the ``live`` pass computes."""
    costs: dict[str, float] = field(default_factory=dict)
    """Seconds spent per activity (``build``, ``measure``), filled in by :meth:`run`."""

    def run(self, pass_name: PassName) -> Observations:
        """What the pass saw.

        Raises:
            Unsupported: the backend lacks the capability.
            Uncounted: an operator has no formula, and the session is strict.
            Exception: whatever the model raised.
        """
        self.prepare()
        match pass_name:
            case "analysis":
                return self._analysis()
            case "training":
                return self._training()
            case "timing":
                return self._timing()
            case "memory":
                return self._memory()
            case "quality":
                return self._quality()
            case "live":
                return self._live()

    @abstractmethod
    def prepare(self) -> None:
        """Set up the framework, where that is this session's business."""

    @abstractmethod
    def inputs(self) -> Inputs:
        """One batch."""

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

    def _timing(self) -> Timing:
        inputs = self.inputs()
        with self.loaded() as model:
            batch = model.put(inputs)
            with model.stepping(batch) as step, Stopwatch(self.costs, "measure"):
                return measure(step, self.protocol, self.backend.clock())

    def _memory(self) -> Memory:
        if not isinstance(self.backend, MeasuresMemory):
            raise Unsupported("this backend cannot measure memory")
        inputs = self.inputs()
        meter = self.backend.memory_meter()
        residency.restore()
        baseline = meter.rss()
        meter.reset_peak()
        with self.loaded() as model:
            batch = model.put(inputs)
            loaded = meter.rss()
            with model.stepping(batch) as step, Stopwatch(self.costs, "measure"):
                for _ in range(MEMORY_STEPS):
                    step()
            return Memory(baseline, loaded, meter.rss_peak(), MEMORY_STEPS)

    def _quality(self) -> Quality:
        answers, targets = [], []
        with self.loaded() as model, Stopwatch(self.costs, "measure"):
            for inputs, labels in self.labelled():
                with model.stepping(model.put(inputs)) as step:
                    answers.append(model.host_outputs(step()))
                if labels is not None:
                    targets.append(as_array(labels))
        if not answers:
            raise Unsupported("there are no data to evaluate on")
        try:
            outputs, classes = np.concatenate(answers), np.concatenate(targets) if targets else None
        except ValueError as error:
            raise Unsupported(f"what the batches gave does not fit together: {error}") from None
        return Quality.of(outputs, classes)

    def _live(self) -> Live:
        with self.loaded() as model, Stopwatch(self.costs, "measure"):
            return Live.of(self.live_metrics, model.native, self.data)


@dataclass(slots=True, kw_only=True)
class BuiltSession(Session):
    """A model that a builder makes for each pass, on a dataset: what a config describes."""

    build: Build
    dataset: Dataset
    batch_size: int = 1
    device: str = "cpu"
    seed: int = 0
    """Seed of the weights and of whatever the framework draws."""

    def prepare(self) -> None:
        self.backend.configure(self.seed)

    def inputs(self) -> Inputs:
        return Inputs((batch_of(self.dataset, self.batch_size),))

    def described(self) -> AbstractContextManager[Built]:
        return nullcontext((self.build, self.dataset.channel_axis))

    @contextmanager
    def loaded(self) -> Iterator[LoadedModel]:
        with Stopwatch(self.costs, "build"):
            model = self.backend.load(self.build, self.device, self.dataset.channel_axis)
        yield model

    def labelled(self) -> Iterator[tuple[Inputs, Any]]:
        test = self.dataset.split("test")
        for begin, batch in enumerate(batches(test.inputs, self.batch_size)):
            labels = test.targets
            first = begin * self.batch_size
            yield Inputs((batch,)), None if labels is None else labels[first : first + len(batch)]

    @property
    def data(self) -> Dataset:
        return self.dataset


@dataclass(slots=True, kw_only=True)
class LiveSession(Session):
    """A model that the caller has in hands, and leaves it as it was found."""

    model: Any
    given: Inputs | None
    """What the model is called with; None: the first batch of the data."""
    given_data: Data
    device: str | None = None
    """Where to run it; None: where it is."""
    forward: Callable[..., Any] | None = None
    """How it is stepped; None: it is called."""
    _first: Inputs | None = None
    """The arguments of the first batch of the data: the same for every pass, also where a loader shuffles."""

    def prepare(self) -> None:
        """Nothing: threads and seeds are the caller's."""

    def inputs(self) -> Inputs:
        if self.given is None and not self.given_data.splits:
            raise UserError("there is nothing to call the model with: give `inputs=` or `data=`")
        if self.given is not None:
            return self._stepped(self.given)
        if self._first is None:
            with self._borrowed():  # a loader draws random numbers
                self._first = self.given_data.first()
        return self._stepped(self._first)

    def _stepped(self, inputs: Inputs) -> Inputs:
        return inputs if self.forward is None else replace(inputs, forward=self.forward)

    @contextmanager
    def described(self) -> Iterator[Built]:
        with self._borrowed():
            yield lambda: self.model, None

    @contextmanager
    def loaded(self) -> Iterator[LoadedModel]:
        device = self.device
        with self._borrowed():
            if isinstance(self.backend, Borrows):
                device = device or self.backend.device_of(self.model)
            if device == "meta":
                raise Unsupported("the model is on the meta device: it has no weights to run with")
            with Stopwatch(self.costs, "build"):
                model = self.backend.load(lambda: self.model, device or "cpu", None)
            yield model

    def _borrowed(self) -> AbstractContextManager[None]:
        return self.backend.borrowed(self.model) if isinstance(self.backend, Borrows) else nullcontext()

    def _memory(self) -> Memory:
        raise Unsupported("resident memory is that of a whole process; a sweep gives each trial its own")

    def labelled(self) -> Iterator[tuple[Inputs, Any]]:
        return ((self._stepped(inputs), targets) for inputs, targets in self.given_data.labelled("test"))

    @property
    def data(self) -> Data:
        return self.given_data


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
