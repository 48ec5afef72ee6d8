"""Sessions: what a pass needs to run on a model, whether a sweep's worker builds it or a caller has it."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal
from typing import Protocol as TypingProtocol

import numpy as np
import numpy.typing as npt

from sweeprof.backends import Backend, Build, LoadedModel, named
from sweeprof.counting.formulas import DEFAULTS, Formulas, ModuleSelection
from sweeprof.datasets.collate import NOT_COUNTED
from sweeprof.errors import DatasetError, Uncounted
from sweeprof.measuring.inputs import SAMPLES, Inputs, Workload
from sweeprof.measuring.timing import FusedStep, GenerationStep, Participant, TrainingStep
from sweeprof.measuring.training_config import GenerationConfig, TrainingConfig, Work
from sweeprof.nested import in_package
from sweeprof.passes.registry import PassResult, passes
from sweeprof.results.comparison import Deviations, deviations_of
from sweeprof.results.layer_times import Mode
from sweeprof.results.record import Json, PassName, Protocol, Warning

Strict = Literal["error", "warn", "ignore"]
Built = tuple[Build, int | None]
"""A function that makes the model, and the axis of the channels in its inputs."""


class ModelMetric(TypingProtocol):
    """A metric, bound to its options, that reads the model or its data."""

    def model_results(self, model: object, data: object) -> Mapping[str, Json]:
        """Return by metric name: a value with its estimator and detail, or the reason why there is none; plain JSON data."""


class OutputScore(TypingProtocol):
    """A metric of quality that is updated with every batch of the test split."""

    def add(self, outputs: Mapping[str, npt.NDArray[Any]], targets: Any) -> None:
        """Add the outputs on the host by name, and the targets of a batch, an array or a structure of arrays; None: no targets."""

    def results(self) -> Mapping[str, Json]:
        """Return by name the fields of a :class:`sweeprof.passes.quality.Score`."""


@dataclass(slots=True)
class MeasuredSettings:
    """Settings that a backend reports before and after the last pass, see :meth:`sweeprof.backends.Backend.settings_in_effect`."""

    requested: Mapping[str, object] = field(default_factory=dict)
    """In effect before the pass, or asked for by a config."""
    in_effect: Mapping[str, object] = field(default_factory=dict)
    """After the model ran, which may have changed them; empty if the pass did not run it."""
    _left: Mapping[str, object] | None = None
    """After the last pass: if they are the same before the next one, nobody but the model has changed them."""

    def begin(self, current: Mapping[str, object], configured: Mapping[str, object]) -> None:
        """Note the settings before a pass, and those of them that a config asks for."""
        if current != self._left:
            self.requested = {**current, **configured}
        self.in_effect = {}

    def end(self, current: Mapping[str, object]) -> None:
        """Note the settings after a pass."""
        self._left = current

    @property
    def deviations(self) -> Deviations:
        """Settings that were not as requested while the model ran, with the requested and the actual value."""
        return deviations_of(self.requested, self.in_effect)


@dataclass(slots=True, kw_only=True)
class Session(ABC):
    """A model to run passes on: one model, one backend and one batch size, in this process.

    Timing and memory belong in a fresh process each, which the sweep's worker provides.
    """

    owns_process: ClassVar[bool] = True
    """True if nothing but the model takes memory of this process."""

    backend: Backend
    protocol: Protocol = field(default_factory=Protocol)
    formulas: Formulas = DEFAULTS
    strict: Strict = "warn"
    """For an operator without a formula: ``error`` fails the pass, ``warn`` marks the numbers, ``ignore`` does neither."""
    mode: Mode = "inference"
    """The kind of step: a forward, a whole training step or a whole generation; counting and evaluating are the same in both."""
    training_config: TrainingConfig = field(default_factory=TrainingConfig)
    """Optimizer and loss of training steps."""
    generation_config: GenerationConfig = field(default_factory=GenerationConfig)
    """New tokens and arguments of generations."""
    functions: Sequence[str] = ()
    """Dotted names of the functions that the ``lines`` pass observes; none: the forward of the model."""
    model_metrics: Sequence[ModelMetric] = ()
    """The metrics that the pass over the model itself computes."""
    output_scores: Callable[[], Sequence[OutputScore]] = tuple
    """Makes the metrics of quality that the pass over the test split updates; none by default."""
    participant: Participant | None = None
    """Decides when the ``timing`` pass takes a sample in an interleaved run; None: it runs alone."""
    costs: dict[str, float] = field(default_factory=dict)
    """Seconds spent per activity (``build``, ``measure``), filled in by :meth:`run`."""
    settings: MeasuredSettings = field(default_factory=MeasuredSettings)
    """Those of the framework while the model ran, filled in by :meth:`run`."""
    warnings: list[Warning] = field(default_factory=list)
    """Warnings about the data, filled in by :meth:`run`."""
    measured_first: object = None
    """What :attr:`Pass.first` of the running pass returned."""
    partial: PassResult | None = None
    """The part of its result that the last pass had before it raised, filled in by :meth:`run`."""

    def accepted(self, values: Any) -> Any:
        """Return inputs, targets or any container of tensors as the backend takes them: its own tensors, and NumPy arrays."""
        package = self.backend.tensor_package
        if isinstance(values, Inputs):
            return values.map(lambda leaf: in_package(leaf, package))
        return in_package(values, package)

    @property
    def selection(self) -> ModuleSelection:
        """The modules that are counted and timed."""
        return self.formulas.selection

    def run(self, pass_name: PassName) -> PassResult:
        """Run a pass and return its result.

        Raises:
            Unsupported: the backend lacks the capability.
            Uncounted: an operator has no formula, and the session is strict.
            Exception: whatever the model raised.
        """
        requested_pass = passes()[pass_name]
        self.partial = None
        if requested_pass.first is not None:
            self.measured_first = requested_pass.first(self, self.backend)
        self.set_up()
        try:
            if requested_pass.capability is not None:
                self.backend.require(requested_pass.capability)
            return requested_pass.run(self, self.backend)
        finally:
            self.settings.end(self._settings_now())

    def set_up(self) -> None:
        """Set up the framework and the backend for the model's inputs."""
        self.prepare()
        self.settings.begin(self._settings_now(), self.configured_settings())
        self.backend.expect(self.inputs())
        self.backend.ranges_from(self.samples)

    def configured_settings(self) -> Mapping[str, object]:
        """Return the settings that a config requests, by the names that the backend gives them; none if there is no config."""
        return {}

    def _settings_now(self) -> Mapping[str, object]:
        return {**self.backend.settings_in_effect(), "device": self.device_name()}

    @abstractmethod
    def prepare(self) -> None:
        """Set up the framework, unless that is the caller's task."""

    @abstractmethod
    def device_name(self) -> str:
        """Return the device, e.g. ``cpu`` or ``cuda:0``."""

    def caller_model(self) -> object:
        """Return the caller's model; None if each pass builds its own."""
        return None

    @abstractmethod
    def inputs(self) -> Inputs:
        """Return the arguments of one batch."""

    def workload(self, inputs: Inputs) -> Workload | None:
        """Return the work of one step on these inputs; None if they have no batch axis."""
        shapes = inputs.shapes()
        return Workload(SAMPLES, shapes[0][0]) if shapes and shapes[0] and shapes[0][0] > 0 else None

    @abstractmethod
    def targets(self) -> object:
        """Return the targets of the batch of :meth:`inputs`; None if there are none."""

    def samples(self, limit: int) -> Inputs | None:
        """Return a batch of at most ``limit`` samples to learn from; None if there are none."""
        return None

    @abstractmethod
    def described(self) -> AbstractContextManager[Built]:
        """Within the context: what builds the model, to be analysed on shapes."""

    @contextmanager
    def loaded(self) -> Iterator[LoadedModel]:
        """Within the context: the model on its device, ready to step."""
        with self.described() as (build, channel_axis):
            with self.timed("build"):
                model = self.backend.load(build, self.device_name(), channel_axis)
            try:
                yield model
            finally:
                self.settings.in_effect = self.backend.settings_in_effect(model)  # the model may have changed them

    @abstractmethod
    def labelled(self) -> Iterator[tuple[Inputs, object]]:
        """Return the batches to be evaluated on, each with its targets, or None if there are none."""

    @abstractmethod
    def batch_sizes(self) -> Iterable[int]:
        """Return one pass of the data loader from its beginning: the number of samples of each batch when it has been loaded."""

    @property
    @abstractmethod
    def data(self) -> object:
        """The data, for metrics that ask for them."""

    def check_counted(self, uncovered: Mapping[str, int]) -> None:
        """Raise :class:`Uncounted` if the session is strict and there are operators without a formula."""
        if uncovered and self.strict == "error":
            names = ", ".join(f"{name} ×{calls}" for name, calls in sorted(uncovered.items()))
            raise Uncounted(f"no formula for {names}")

    def work(self, model: LoadedModel, inputs: Inputs) -> Work:
        """Return the step that is repeated: a forward, a whole training step or a whole generation."""
        if self.mode == "training":
            return Work(model.put(inputs), self.targets(), self.training_config, selection=self.selection)
        if self.mode == "generation":
            self.backend.require("generating")
            return Work(model.put(inputs), generation=self.generation_config)
        return Work(model.put(inputs), selection=self.selection)

    def generation_step(self, model: LoadedModel, work: Work) -> AbstractContextManager[GenerationStep]:
        """Within the context: the generation of a batch by the model."""
        assert work.generation is not None
        return self.backend.generating(model, work.batch, work.generation)

    @contextmanager
    def training_step(self, model: LoadedModel, work: Work) -> Iterator[TrainingStep | FusedStep]:
        """Within the context: the model's training step.

        Raises:
            DatasetError: the step failed, and the batch has a label that the outputs have no class for.
        """
        self.backend.require("training")
        assert work.training is not None
        try:
            with self.backend.training(model, work.batch, work.targets, work.training) as step:
                yield step
        except Exception as error:
            problem = None
            with suppress(Exception):  # after one error a device may raise others
                problem = None if self.backend.is_out_of_memory(error) else _label_problem(model, work)
            if problem is None:
                raise
            raise DatasetError(problem) from error

    @contextmanager
    def working(self) -> Iterator[tuple[LoadedModel, Work]]:
        """Within the context, whose seconds count as measuring: the loaded model and the step that is repeated."""
        inputs = self.inputs()
        with self.loaded() as model, self.timed("measure"):
            yield model, self.work(model, inputs)

    @contextmanager
    def timed(self, activity: str) -> Iterator[None]:
        """Add the seconds spent within the context to the costs of an activity, also when it is left by an exception."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.costs[activity] = self.costs.get(activity, 0.0) + time.perf_counter() - begin


def _label_problem(model: LoadedModel, work: Work) -> str | None:
    """Return the sentence about the first label of a batch that is none of the classes of its outputs; None if there is none.

    Outputs are one row of class scores per sample, and targets one whole number per sample; the model is run once.
    """
    targets = np.asarray(work.targets)
    if targets.dtype.kind not in "iu" or targets.ndim != 1:
        return None
    with model.stepping(work.batch) as step:
        outputs = list(named(model.host_outputs(step())).values())
    if len(outputs) != 1 or outputs[0].ndim != 2 or len(outputs[0]) != len(targets):
        return None
    classes = outputs[0].shape[1]
    for sample, label in enumerate(targets):
        if classes > 1 and label != NOT_COUNTED and not 0 <= label < classes:
            return f"sample {sample} has the label {label}, and the outputs have the classes 0 to {classes - 1}"
    return None
