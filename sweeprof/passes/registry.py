"""The registry of passes, every :class:`Pass` in a module of this package, and the sessions that they run in.

A new pass is one new module here. The plan, the runner, the metrics and the readers of records take everything that they need to
know of it from its :class:`Pass`. A package of somebody else adds passes by an entry point in the group ``sweeprof.passes`` that
names their module.
"""

from __future__ import annotations

import pkgutil
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import Field, dataclass, field
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Generic, Literal, TypeVar
from typing import Protocol as TypingProtocol

import numpy as np
import numpy.typing as npt

import sweeprof.passes
from sweeprof.backends import Backend, Build, LoadedModel, named
from sweeprof.counting.formulas import DEFAULTS, Formulas, ModuleSelection
from sweeprof.datasets.collate import NOT_COUNTED
from sweeprof.errors import Damaged, DatasetError, Uncounted
from sweeprof.measuring.inputs import SAMPLES, Inputs, Workload
from sweeprof.measuring.timing import FusedStep, GenerationStep, Participant, TrainingStep
from sweeprof.measuring.training_config import GenerationConfig, TrainingConfig, Work
from sweeprof.nested import in_package
from sweeprof.results.compared_rows import Deviations, deviations_of
from sweeprof.results.layer_times import Mode
from sweeprof.results.observations import RunningServer
from sweeprof.results.record import Json, PassName, Protocol, Record, Warning, check_pass_name, stored_record

ENTRY_POINTS = "sweeprof.passes"
"""The group of entry points that name modules with further passes."""

PassKind = Literal["exact", "once", "rounds"]
"""Certainty of a value that is computed from the result of a pass: ``exact`` if the result is the same in every process, ``once``
if it is measured in a single process, ``rounds`` if it is measured once per round, each in a fresh process."""


class PassResult(TypingProtocol):
    """The result of a pass: a dataclass.

    ``to_dict()``, where it has one, returns its JSON data; ``files``, ``warnings`` and ``tracebacks``, where it has them, go to the
    folder of artifacts, to the record and to the log of the trial. A result of the kind ``rounds`` has ``round`` and ``warnings``.
    """

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


Result_co = TypeVar("Result_co", bound=PassResult, covariant=True)


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of metric functions that a pass provides."""

    name: str
    take: Callable[[Any], object] | None = None
    """Returns the parameter's value from the result of the pass; raises :class:`~sweeprof.errors.Unsupported` if there is none.
    None: the value is the whole result, or of the kind ``rounds`` the tuple of all results."""
    source: Literal["result", "baseline", "object"] = "result"
    """Whose result it is taken from: the combination's or its baseline's; ``object``: it is not taken from a result, but is an
    object that exists only while the pass runs, which calls the metric's function itself."""
    needs_success: bool = True
    """False: also of a pass that raised, where it had this part of its result before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass(Generic[Result_co]):
    """One kind of measurement: how to run it, and how to read its result from a record."""

    name: str
    """As in records and file names; an identifier."""
    order: int
    """Passes run, and are listed, by ascending order; the shipped ones are from 10 to 130."""
    run: Callable[[Session, Any], Result_co]
    """Called with the session and its backend, which has the :attr:`capability`."""
    read: Callable[[Mapping[str, object]], Result_co]
    """From the observations of a record; raises :class:`~sweeprof.errors.Damaged` for something else."""
    kind: PassKind
    capability: str | None = None
    """The method of :class:`sweeprof.backends.Backend` that a backend must have; None: every backend can run it."""
    is_exclusive: bool = False
    """True if nothing else may use the device, or measure on the host, while it runs."""
    provides: tuple[Parameter, ...] = ()
    """The parameters of metric functions that can be taken from its result; empty: one with the name of the pass."""
    first: Callable[[Session, Any], object] | None = None
    """Called like :attr:`run`, before the framework is set up and starts threads; ``run`` finds its result in
    :attr:`Session.measured_first`. None: there is nothing to do first."""
    pair: Callable[[tuple[Any, ...], Callable[[], tuple[Any, ...]]], tuple[Result_co, ...]] | None = None
    """Of the kind ``rounds``: given the results of a combination and a function that reads those of its baseline, returns the
    former with what a comparison needs of the latter."""

    def __post_init__(self) -> None:
        if not self.provides:
            object.__setattr__(self, "provides", (Parameter(self.name),))
        if self.kind == "rounds" and any(parameter.take is not None for parameter in self.provides):
            raise ValueError(f"the pass {self.name!r} is measured in rounds: it provides its results as they are")


@cache
def passes() -> Mapping[str, Pass[PassResult]]:
    """Return every pass by its name, in the order in which passes run.

    Raises:
        ValueError: two passes have the same name, or provide the same parameter.
    """
    modules = [
        import_module(f"{ENTRY_POINTS}.{found.name}") for found in pkgutil.iter_modules(sweeprof.passes.__path__)
    ]
    modules += [entry_point.load() for entry_point in entry_points(group=ENTRY_POINTS)]
    declared: list[Pass[PassResult]] = []
    for module in modules:
        declared += [value for value in vars(module).values() if isinstance(value, Pass)]
    providers: dict[str, str] = {}
    by_name: dict[str, Pass[PassResult]] = {}
    for new in sorted(declared, key=lambda declared_pass: (declared_pass.order, declared_pass.name)):
        check_pass_name(new.name, "name")
        if new.name in by_name:
            raise ValueError(f"two passes are called {new.name!r}")
        by_name[new.name] = new
        for parameter in new.provides:
            other = providers.setdefault(parameter.name, new.name)
            if other != new.name:
                raise ValueError(f"the passes {other!r} and {new.name!r} both provide the parameter {parameter.name!r}")
    return MappingProxyType(by_name)


@cache
def exclusive_passes() -> frozenset[str]:
    """Return the names of the passes that must not share the device with anything else."""
    return frozenset(name for name, known in passes().items() if known.is_exclusive)


@cache
def baseline_passes() -> frozenset[str]:
    """Return the names of the passes whose results of the baseline a combination is compared with."""
    read = {provider.name for provider, parameter in parameters().values() if parameter.source == "baseline"}
    return frozenset(read | {name for name, known in passes().items() if known.pair is not None})


@cache
def parameters() -> Mapping[str, tuple[Pass[PassResult], Parameter]]:
    """Return the parameters that passes provide to metric functions, each with its pass, by name."""
    provided = {}
    for known in passes().values():
        for parameter in known.provides:
            provided[parameter.name] = (known, parameter)
    return MappingProxyType(provided)


def pass_named(name: str) -> Pass[PassResult]:
    """Return a pass by the name that a record has of it; raises :class:`Damaged` if there is none."""
    if name not in passes():
        raise Damaged(f"pass: {name!r} is not one of {', '.join(passes())}")
    return passes()[name]


def checked_record(path: Path) -> Record:
    """Return the record in a file, of which also the observations can be read.

    Raises:
        Damaged: the file holds something else, or the record of another trial.
        OSError: it cannot be read.
    """
    record = stored_record(path)
    known = pass_named(record.pass_name)
    if record.observations is not None and record.status == "ok":
        try:
            known.read(record.observations)
        except Damaged as error:
            raise Damaged(f"observations: {error}") from None
    return record


# ---------------------------------------------------------------------------------------------------------------------
# Sessions: what a pass needs to run on a model, whether a sweep's worker builds it or a caller has it
# ---------------------------------------------------------------------------------------------------------------------


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
    server: RunningServer | None = None
    """The server that a program of ``backend=command`` needs."""
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

    def described_inputs(self) -> str:
        """Return types and shapes of the arguments as text; empty if they have not been read."""
        return ""

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
    def described(self, is_run: bool = False) -> AbstractContextManager[Built]:
        """Within the context: what builds the model, to be analysed on shapes, or with ``is_run`` to be called for real."""

    @contextmanager
    def loaded(self) -> Iterator[LoadedModel]:
        """Within the context: the model on its device, ready to step."""
        with self.described(is_run=True) as (build, channel_axis):
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
                if not self.backend.is_out_of_memory(error):
                    problem = _label_problem(model, work)
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
    """Return a sentence about the first label of a batch that the outputs have no class for; None if there is none.

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
