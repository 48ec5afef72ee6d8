"""``sweeprof.profile`` and Profiler: every metric of one model, in this process."""

from __future__ import annotations

import dataclasses
import logging
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Any, TypeVar, cast

from sweeprof.backends import Backend, as_model, backend_named, backend_of, is_function, model_in
from sweeprof.counting.formulas import DEFAULTS, Formula, Formulas, ModulePatterns, ModuleSelection
from sweeprof.display import Displayed
from sweeprof.errors import (
    MetricWarning,
    OverrideError,
    Problem,
    UncountedWarning,
    Unsupported,
    UserError,
    choice_problem,
    option_problem,
)
from sweeprof.measuring.inputs import Inputs, described
from sweeprof.measuring.training_config import GenerationConfig, TrainingConfig
from sweeprof.metrics.evaluate import argument_from, measured, model_functions
from sweeprof.metrics.latency import NOT_COMPILED, NOT_TRACED
from sweeprof.metrics.memory import ON_HOST
from sweeprof.metrics.metric import BATCH_SIZE, Metric, Missing, Selected, builtin_metrics, declared, parameter_name
from sweeprof.metrics.quality import check_named, output_scores, score_metric
from sweeprof.metrics.select import Entry, metric_set, mode_of, named_passes, select, unknown_metric
from sweeprof.passes.registry import MeasuredSettings, Pass, PassResult, Session, Strict, parameters
from sweeprof.profiling.session import LOG, BuiltSession, Data, LiveSession, PassProgress
from sweeprof.results.differences import Differences
from sweeprof.results.environment import host_columns
from sweeprof.results.files import validated
from sweeprof.results.graph import Graph
from sweeprof.results.layer_times import LayerTimes, Mode, with_host
from sweeprof.results.layers import LayerTable
from sweeprof.results.measurement import Measurement, Measurements, shown_names
from sweeprof.results.observations import Operators
from sweeprof.results.record import Json, PassName, Protocol, Stored
from sweeprof.results.verdicts import differences
from sweeprof.targets import builder, chosen_builder, instantiate
from sweeprof.text import listed

if TYPE_CHECKING:
    import pandas

    from sweeprof.profiling.layers import Layers
    from sweeprof.report.view import View


T = TypeVar("T")


class ReadOnly(Displayed, Mapping[str, T]):
    """The current content of a mapping, which a caller cannot change."""

    def __init__(self, known: Mapping[str, T]) -> None:
        self._known = known

    def __getitem__(self, name: str) -> T:
        return self._known[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)

    def __view__(self) -> View:
        from sweeprof.report.display import view_of

        return view_of(self._known)


class KnownMetrics(ReadOnly[Metric]):
    """Metrics by name."""

    def __view__(self) -> View:
        from sweeprof.report.view import View, counted, rows_table

        return View(counted(len(self), "metric"), (rows_table([metric.info for metric in self.values()]),))


Options = Mapping[str, object]


class Profiler(Displayed):
    """Computes the metrics of a model when they are requested, and keeps them until their options change.

    Example:
        >>> profiler = Profiler(model, data=loader)
        >>> profiler.compute("compute/macs").value
        416520
        >>> profiler.compute_all("static")

    The model is not changed. Each pass is run once, when a metric needs it.
    """

    def __init__(  # noqa: PLR0913  # one argument for each thing a caller may know
        self,
        model: object,
        data: Iterable[object] | Data | None = None,
        *,
        inputs: object = None,
        backend: str | Backend = "auto",
        device: str | None = None,
        protocol: Protocol | None = None,
        input_pattern: Callable[..., Inputs] | None = None,
        forward: Callable[..., object] | None = None,
        formulas: Mapping[Any, Formula] | None = None,
        include: ModulePatterns = (),
        exclude: ModulePatterns = (),
        strict: Strict = "warn",
        mode: Mode = "inference",
        optimizer: str | Callable[..., object] = "sgd",
        loss: str | Callable[..., object] = "mean",
        generation: GenerationConfig | None = None,
        functions: str | Sequence[str] = (),
        unit: str | None = None,
        units: float | Callable[[Any], float] | None = None,
        quality: Mapping[str, object] | None = None,
        name: str | None = None,
        progress: bool | None = None,
        verbose: bool = False,
    ) -> None:
        """Set up a profiler; nothing is run yet.

        Args:
            model: a model of a framework that sweeprof knows; it may be on the meta device. Or any function of PyTorch's tensors:
                the modules and parameters that it uses are those of the model. Or the path of a file: ``.onnx``, ``.xml``,
                ``.tflite``, ``.keras``, ``.h5`` or ``.pt2``; or the folder of a SavedModel.
            data: batches, or a mapping of splits to batches; the first batch is measured, all of ``test`` is evaluated. Batches are
                any iterable, such as a torch loader, a ``tf.data.Dataset`` or a ``PyDataset`` of Keras, or one pair ``(inputs,
                targets)``. Any backend takes tensors of any framework.
            inputs: the arguments of the model, instead of the first batch (:meth:`sweeprof.Inputs.of`).
            backend: name or object; ``auto`` takes the framework of the model.
            device: where to run, such as ``cpu``, ``gpu`` or ``cuda:1``; None where the model is.
            input_pattern: from a batch to the model's arguments (:func:`sweeprof.pattern_of`), or another function that returns
                :class:`sweeprof.Inputs`, as for a model that takes the labels, too.
            forward: ``forward(model, *args, **kwargs)`` if a step is more than a call of the model.
            formulas: by module type or operator, for this model alone.
            include: count and time only these modules and what is inside them: paths, globs (``layer1.*``), class names or classes.
            exclude: neither count nor time these modules and what is inside them, likewise.
            strict: what to do about an operator without a formula: ``error``, ``warn`` or ``ignore``.
            mode: a step is a forward (``inference``), a whole training step (``training``) or a whole generation of text
                (``generation``).
            optimizer: for training steps: a name, or a function from the parameters to an optimizer.
            loss: for training steps: a name, a function of outputs and targets, or a class of such functions.
            generation: for generations: the number of new tokens, and the arguments of ``generate``.
            functions: dotted names of the functions whose source lines are profiled; none: the model's own forward.
            unit: of the work of a step, a noun in the plural such as ``tokens``; None: samples.
            units: in a batch, a number or a function that returns it from the inputs; None: tokens by the attention mask.
            quality: further metrics ``quality/NAME`` of the split ``test``: an object of torchmetrics or another one with
                ``update`` and ``compute``, a function of all outputs and targets, or a mapping as in a config's ``quality.NAME``.
            name: of the model, for what is printed, such as ``"original"``; a comparison shows the names of both sides.
            progress: show the running pass and a bar in a line on stderr or in a notebook; None: only on a terminal and in a
                notebook.
            verbose: print each pass with its duration, and warnings about results, on stderr; see also
                :func:`sweeprof.set_logger`.

        Raises:
            UserError: the framework of the model is unknown, there is no such file, or an argument is invalid, such as a device
                that this host does not have.
        """
        if units is not None and unit is None:
            raise UserError([Problem("units", units, "needs a unit, such as unit='tokens'.")])
        check_named(quality or {})
        model, chosen_backend, dtype = _resolved(model, backend)
        session = LiveSession(
            backend=chosen_backend,
            protocol=protocol or Protocol(),
            formulas=Formulas(formulas, DEFAULTS, ModuleSelection.of(include, exclude)),
            strict=strict,
            mode=mode,
            training_config=TrainingConfig(optimizer, loss),
            generation_config=generation or GenerationConfig(),
            functions=tuple(listed(functions)),
            model=model,
            arguments=None if inputs is None else Inputs.of(inputs, dtype),
            forward=forward,
            batches=Data.of(data, input_pattern),
            device=device,
            unit=unit,
            units=units,
        )
        self._set_up(session, PassProgress(progress, verbose), quality, name, data)

    def _set_up(
        self,
        session: Session,
        progress: PassProgress,
        quality: Mapping[str, object] | None = None,
        name: str | None = None,
        data: object = None,
    ) -> None:
        self.session = session
        if quality:
            session.output_scores = partial(output_scores, quality, session.device_name(), data)
        self.name = name
        self._progress = progress
        self._quality = quality or {}
        self._registered: dict[str, Metric] = {f"quality/{name}": score_metric(name) for name in self._quality}
        self._overriding: set[str] = set()
        self._results: dict[PassName, PassResult | Missing] = {}
        self._computed: dict[tuple[str, str], Measurement] = {}
        self._newest = Measurements()
        self._newest_options: dict[str, Options] = {}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Profiler:
        """Return the profiler of a combination's resolved config.

        Raises:
            Unsupported: the model names no builder for the backend's framework.
        """
        return _ConfiguredProfiler(config)

    @property
    def layers(self) -> Layers:
        """The layers of the model, with their times if these have been measured.

        Raises:
            Exception: any error of the model's forward.
        """
        from sweeprof.profiling.layers import Layers  # with the report's templates, which a worker has no use for

        self.seen("analysis")
        assert self.counted_layers is not None
        return Layers.of(self.counted_layers, self._setup().host)

    @property
    def counted_layers(self) -> LayerTable | None:
        """The layers if they have been counted, with their times if these have been measured."""
        table, times = self._results.get("analysis"), self._results.get("layer_times")
        if not isinstance(table, LayerTable):
            return None
        if isinstance(times, LayerTimes):
            table = table.with_times(times)
        return table

    def _setup(self) -> Setup:
        """Return what is measured, and where."""
        session = self.session
        model = session.caller_model()
        return Setup(
            model="a model that is built for each pass" if model is None else type(model).__name__,
            mode=session.mode,
            backend=type(session.backend).__name__,
            device=session.device_name(),
            host=host_columns({**session.settings.requested, **session.settings.in_effect}),
            name=self.name,
            inputs=session.described_inputs(),
            precision=self._precision(),
        )

    def _precision(self) -> str:
        """Return the types of the parameters once these have been seen, else what the backend was told to use; or nothing."""
        layers = self._results.get("analysis")
        if isinstance(layers, LayerTable):
            types = dict.fromkeys(name for row in layers.rows for name in row.dtypes)
            return ", ".join(types)
        return str(getattr(self.session.backend, "precision", None) or "")

    @property
    def graph(self) -> Graph:
        """The operators of one forward as nodes and the tensors between them as edges, with times if operators have been traced.

        Raises:
            Exception: any error of the model's forward.
        """
        graph, operators = self.seen("graph"), self._results.get("operators")
        assert isinstance(graph, Graph)
        if isinstance(operators, Operators):
            graph = graph.with_times(operators)
        return graph

    @property
    def status(self) -> ReadOnly[Measurement]:
        """The computed metrics, by name; the newest if a metric was computed with several options."""
        return ReadOnly(self._newest)

    @property
    def metrics(self) -> KnownMetrics:
        """Every metric that can be computed, by name."""
        return KnownMetrics({**builtin_metrics(), **self._registered})

    def seen(self, pass_name: PassName) -> PassResult:
        """Return the result of a pass, such as ``timing``; the pass is run if it has not been run before."""
        result = self._results.get(pass_name)
        if result is None or isinstance(result, Missing):
            result = self._results[pass_name] = self.run(pass_name)
        return result

    def run(self, pass_name: PassName) -> PassResult:
        """Run a pass and return its result; see :meth:`sweeprof.passes.registry.Session.run`."""
        with self._progress.running(pass_name):
            result = self.session.run(pass_name)
        if hasattr(result, "host"):  # a column of frames, which records have in their environment
            result = dataclasses.replace(cast("Any", result), host=self._setup().host)
        for warning in getattr(result, "warnings", ()):
            text = f"{pass_name}: {warning.code}: {warning.text}; {warning.advice}"
            self._progress.log(logging.WARNING, text)
        return result

    def register(self, metric: Metric | Sequence[Metric], *, override: bool = False) -> None:
        """Add a metric, or several that one function returns.

        A metric replaces another one of the same name, with a warning, unless that one was registered with ``override=True``.
        With ``override=True`` it replaces any other without a warning.

        Raises:
            OverrideError: both are registered with ``override=True``.
            TypeError: it is not a metric.
        """
        for new in metric if isinstance(metric, Sequence) else (metric,):
            if not isinstance(new, Metric):
                raise TypeError(f"{new!r} is not decorated by @sweeprof.metric")
            name = new.info.name
            if name in self._overriding:
                if override:
                    raise OverrideError(f"two metrics override {name!r}")
                continue
            if override:
                self._overriding.add(name)
            elif name in self.metrics:
                warnings.warn(f"metric {name!r} is replaced; say override=True to do so on purpose", stacklevel=2)
            self._registered[name] = new
            known = self._readable()
            for reading, other in self.metrics.items():
                if new in other.readings(known):
                    self._forget(reading)

    def compute(self, name: str, *, recompute: bool = False, **options: object) -> Measurement:
        """Return one metric; a value that was computed before with the same options is reused unless ``recompute``.

        Raises:
            UserError: there is no such metric, or it has no such option.
        """
        selected = self._selected(name, options)
        if recompute:
            self._forget(name)
        with self.session.backend.keeping_files():
            return self._computed_of([selected])[selected.metric.info.name]

    def compute_all(
        self,
        metrics: str | Sequence[Entry] | None = None,
        *,
        recompute: bool = False,
        options: Mapping[str, Options] | None = None,
    ) -> Profile:
        """Return several metrics, which ``print`` shows as a table.

        Args:
            metrics: a metric set by name (``static``, ``full``), a metric or several by name, or None for every metric that is
                registered or built in. Like a set, a list may name a pass such as ``lines``, which is shown after the metrics.
            options: by metric name.

        Raises:
            UserError: a name or an option is unknown, or the set needs another ``mode``.
        """
        entries = self._entries(metrics)
        chosen: dict[str, Options] = {}
        for name, own in self._names(entries):
            if name in chosen:
                raise UserError([Problem("metrics", name, "is selected twice.")])
            chosen[name] = own
        for name in options or {}:
            if name not in chosen:
                raise UserError([choice_problem("options", name, "metric that is computed", chosen)])
        selected = [self._selected(name, own) for name, own in {**chosen, **(options or {})}.items()]
        if recompute:
            for name in chosen:
                self._forget(name)
        definitions, used = {}, {}
        for entry in selected:
            definitions[entry.metric.info.name] = entry.metric.info.definition
            if entry.options:
                used[entry.metric.info.name] = dict(entry.options)
        with self.session.backend.keeping_files():
            shown = Profile(self._computed_of(selected), self._setup(), definitions, used, self)
            for name in named_passes(entries):
                if name not in self._results:
                    self._results[name] = self._run(name)
                shown._results[name] = self._results[name]
        return shown

    def _entries(self, metrics: str | Sequence[Entry] | None) -> Sequence[Entry]:
        if metrics is None:
            return list(self.metrics)
        if not isinstance(metrics, Iterable):
            raise UserError([Problem("metrics", metrics, "is not the name of a metric set, or a list of metrics.")])
        if not isinstance(metrics, str):
            return metrics
        if metrics in self.metrics:
            return [metrics]
        return metric_set(metrics, self.session.mode)

    def _computed_of(self, selected: Sequence[Selected]) -> dict[str, Measurement]:
        """Return the measurements of metrics, which are computed unless they have been; they are the newest from now on."""
        self._compute([entry for entry in selected if _key(entry) not in self._computed])
        measurements = {}
        for entry in selected:
            name = entry.metric.info.name
            measurements[name] = self._computed[_key(entry)]
            self._newest_options[name] = entry.options
        self._newest.update(measurements)
        return measurements

    def clone(
        self,
        *,
        model: object = None,
        data: Iterable[object] | Data | None = None,
        inputs: object = None,
        name: str | None = None,
    ) -> Profiler:
        """Return a profiler with the same registered metrics and settings, for another model or other data.

        Computed values are kept only if neither changes. The clone has the ``name`` that is given here, or none.
        """
        session = self.session
        if not isinstance(session, LiveSession):
            raise Unsupported("a profiler made from a config is cloned by changing the config")
        if model is None:
            own_model, backend, dtype = _resolved(session.model, session.backend)
        else:
            own_model, backend, dtype = _resolved(model, "auto")
        batches, arguments = session.batches, session.arguments
        if data is not None:
            batches, arguments = Data.of(data, batches.pattern), None
        if inputs is not None:
            arguments = Inputs.of(inputs, dtype)
        copied = dataclasses.replace(
            session,
            model=own_model,
            backend=backend,
            batches=batches,
            arguments=arguments,
            costs={},
            settings=MeasuredSettings(),
            warnings=[],
            _first=None,
        )
        clone = copy(self)
        progress = PassProgress(self._progress.is_shown, self._progress.is_verbose)
        clone._set_up(copied, progress, self._quality, name, batches if data is None else data)
        clone._registered, clone._overriding = dict(self._registered), set(self._overriding)
        if model is None and data is None and inputs is None:
            clone._results, clone._computed = dict(self._results), dict(self._computed)
            clone._newest = Measurements(self._newest)
            clone._newest_options = dict(self._newest_options)
        return clone

    def __view__(self) -> View:
        from sweeprof.report.display import measurement_parts
        from sweeprof.report.view import View

        setup = self._setup()
        parts: list[Any] = [setup.conditions, *measurement_parts(self._newest, _is_applicable)]
        runs = [pass_name for pass_name, result in self._results.items() if not isinstance(result, Missing)]
        if runs:
            parts.append(f"Passes that have run: {', '.join(runs)}.")
        if self._registered:
            parts.append(f"Registered metrics: {', '.join(self._registered)}.")
        if not self._newest:
            parts.append('Nothing is computed yet: use compute("compute/macs") or compute_all("static").')
        return View(f"Profiler of {setup.title}", tuple(parts))

    @staticmethod
    def compare(baseline: Profiler, candidate: Profiler) -> Differences:
        """Return the metrics of both side by side; see :func:`sweeprof.compare`."""
        return compare(baseline, candidate)

    def _names(self, entries: Sequence[Entry]) -> list[tuple[str, Options]]:
        """Return the metrics that entries name, with their options."""
        names: list[tuple[str, Options]] = []
        for entry in entries:
            if isinstance(entry, str) and entry in self.metrics:
                names.append((entry, {}))
                continue
            for selected in select([entry]):
                self._registered.setdefault(selected.metric.info.name, selected.metric)
                names.append((selected.metric.info.name, selected.options))
        return names

    def _selected(self, name: str, options: Options) -> Selected:
        known = self.metrics
        if name not in known and self._is_score(name):
            return Selected(score_metric(name.removeprefix("quality/")), {})  # one of several values
        if name not in known:
            raise UserError([unknown_metric("metrics", name, known)])
        metric = known[name]
        problems = [option_problem(name, option, metric.options) for option in options if option not in metric.options]
        if problems:
            raise UserError(problems)
        return Selected(metric, dict(options))

    def _is_score(self, name: str) -> bool:
        """Return whether one of the scores that were requested may return a metric of this name."""
        return name.partition(".")[0].removeprefix("quality/") in self._quality

    def _compute(self, selected: Sequence[Selected]) -> None:
        """Compute metrics; a function that returns several is called once for all of them."""
        entries = list(selected)
        for entry in selected:
            if entry.metric.part is None:
                continue
            for other in self._registered.values():
                is_new = all(other is not known.metric for known in entries)
                if is_new and other.function is entry.metric.function:
                    entries.append(Selected(other, entry.options))
        readable = self._readable()
        read: set[str] = set()
        for entry in entries:
            for metric in entry.metric.readings(readable):
                read.update(metric.reads)
        values: dict[str, object] = {}
        if BATCH_SIZE in read:
            shapes = self.session.inputs().shapes()
            values[BATCH_SIZE] = int(shapes[0][0]) if shapes and shapes[0] else Missing("the inputs have no batch axis")
        needed: list[PassName] = []
        for name, (provider, parameter) in parameters().items():
            is_new = provider.name not in needed and provider.name not in self._results
            if name in read and parameter.source != "baseline" and is_new:
                needed.append(provider.name)
        with self._progress.over(needed):
            values |= self._values(entries, read, readable)
        measurements = measured(entries, values, readable)
        _warn_of_failures(measurements)
        for entry in entries:
            self._computed[_key(entry)] = measurements[entry.metric.info.name]

    def _values(self, entries: Sequence[Selected], read: set[str], readable: Mapping[str, Metric]) -> dict[str, object]:
        """Return the values of the parameters in ``read`` that passes provide, by name."""
        values: dict[str, object] = {}
        live: PassResult | Missing | None = None
        for name, (provider, parameter) in parameters().items():
            if name not in read:
                continue
            if parameter.source == "baseline":
                values[name] = Missing("a single profiler has no baseline: use sweeprof.compare")
            elif parameter.source == "object":
                if live is None:  # computed every time, because the options may have changed
                    self.session.model_metrics = model_functions(entries, readable)
                    live = self._run("live")
                values[name] = live
            else:
                value = argument_from(name, self._result_for(provider, read))
                values[name] = (value,) if provider.kind == "rounds" and not isinstance(value, Missing) else value
        return values

    def _result_for(self, provider: Pass[PassResult], read: set[str]) -> PassResult | Missing:
        """Return the result of a pass, which is run if it has not been.

        If it raises, return the part of its result that it had before, where no parameter in ``read`` needs more of it.
        """
        if provider.name not in self._results:
            try:
                self._results[provider.name] = self._run(provider.name)
            except Exception:
                needs_success = any(p.needs_success for p in provider.provides if p.name in read)
                if self.session.partial is None or needs_success:
                    raise
                return self.session.partial
        return self._results[provider.name]

    def _run(self, pass_name: PassName) -> PassResult | Missing:
        """Run a pass and return its result; warn if it has operators without a formula.

        Errors of the model, and operators without a formula under ``strict=error``, are raised to the caller.
        """
        try:
            result = self.run(pass_name)
        except Unsupported as error:
            return Missing(f"{pass_name}: unsupported: {error}")
        uncovered: Mapping[str, int] = getattr(result, "uncovered", {})
        if uncovered and self.session.strict == "warn":
            names = ", ".join(f"{name} ×{calls}" for name, calls in sorted(uncovered.items()))
            text = f"no formula for {names}: counts are a lower bound"
            LOG.warning("%s", text)
            warnings.warn(text, UncountedWarning, stacklevel=_callers_level())
        return result

    def _readable(self) -> dict[str, Metric]:
        """Return the metrics that others may read, by parameter name: this profiler's metrics and all that are declared."""
        return {**declared(), **{parameter_name(name): metric for name, metric in self.metrics.items()}}

    def _forget(self, name: str) -> None:
        """Drop what was computed of a metric and what its passes saw."""
        for pass_name in self.metrics[name].passes:
            self._results.pop(pass_name, None)
        self._computed = {key: value for key, value in self._computed.items() if key[0] != name}
        self._newest.pop(name, None)


def _resolved(model: object, backend: str | Backend) -> tuple[object, Backend, str]:
    """Return the model that a path or a function stands for, its backend, and the type of inputs that are given as shapes."""
    if isinstance(model, (str, PathLike)):
        model = model_in(model)
    if backend in ("auto", "torch") and is_function(model):
        model = as_model(model)
    if backend == "torch":
        backend_of(model)  # which raises where it is no model
    elif backend == "auto":
        backend = backend_of(model)
    if isinstance(backend, str):
        backend = backend_named(backend)
    return model, backend, backend.input_dtype(model)


def _warn_of_failures(measurements: Mapping[str, Measurement]) -> None:
    """Warn once of each error, which several metrics of one function share."""
    names: dict[str, list[str]] = {}
    for name, measurement in measurements.items():
        if measurement.failure is not None:
            reason, location = measurement.reason or "", measurement.failure.location
            if location is not None and location not in reason:
                reason += f" ({location})"
            names.setdefault(reason, []).append(name)
    for reason, failed in names.items():
        text = f"{', '.join(failed)}: {reason}"
        LOG.warning("%s", text)
        warnings.warn(text, MetricWarning, stacklevel=_callers_level())


_INAPPLICABLE = (
    "mode=",
    "not applicable: ",
    *(missing.reason for missing in (ON_HOST, NOT_COMPILED, NOT_TRACED)),
)
"""Parts of the reasons of metrics that another mode, backend or device has."""


def _is_applicable(reason: str) -> bool:
    return not any(text in reason for text in _INAPPLICABLE)


def _callers_level() -> int:
    """Return which frame above the caller of this function is the first outside sweeprof, as ``warnings.warn`` counts."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("sweeprof."):
        frame, level = frame.f_back, level + 1
    return level


def _key(selected: Selected) -> tuple[str, str]:
    """Return the key of a computed value: the metric and its options."""
    return selected.metric.info.name, selected.options_key


class _ConfiguredProfiler(Profiler):
    """The profiler of a combination's resolved config."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        backend, model = config["backend"], config["model"]
        framework, node = chosen_builder(backend, model)
        metrics = config.get("metrics", {})
        dataset, device = instantiate(config["dataset"]), config["device"]["type"]
        session = BuiltSession(
            backend=instantiate(backend),
            protocol=Protocol(**config["protocol"]),
            strict=metrics.get("strict", "warn"),
            mode=config["mode"],
            training_config=TrainingConfig.from_config(config["training"]),
            functions=metrics.get("functions", ()),
            model_metrics=model_functions(select(metrics.get("select", ()))),
            build=builder(node, framework),
            output_scores=partial(output_scores, config.get("quality", {}), device, dataset),
            dataset=dataset,
            batch_size=config["batch_size"],
            device=device,
            seed=config["seed"]["weights"],
        )
        if config["mode"] == "generation":
            session.generation_config = GenerationConfig.from_config(config["generation"])
        described = model.get("inputs")
        if described is not None and "model_inputs" not in config["dataset"] and "inputs" not in config["dataset"]:
            session.describe_inputs = builder(described)
        self._set_up(session, PassProgress(is_shown=False))


@dataclass(frozen=True, slots=True)
class Setup(Stored):
    """What was measured, and where."""

    model: str
    """The name of its class."""
    mode: Mode
    backend: str
    device: str
    host: Mapping[str, str | int] = field(default_factory=dict)
    """Columns of :meth:`Profile.to_frame`."""
    name: str | None = None
    """The name that the user gave to the profiler."""
    inputs: str = ""
    """Types and shapes of the model's arguments; empty if none have been read."""
    precision: str = ""
    """Types of the parameters; empty if unknown."""

    @property
    def title(self) -> str:
        """The model's name and class."""
        return self.model if self.name is None else f"{self.name} ({self.model})"

    @property
    def conditions(self) -> str:
        """How and where the model was run, in one line."""
        processor = self.host.get("host_cpu", "")
        if self.device.startswith("cuda"):
            processor = self.host.get("host_gpus", "")
        elif self.device == "meta":
            processor = ""
        place = f"{self.device} ({processor})" if processor else self.device
        parts = [self.mode, f"{self.backend.removesuffix('Backend').lower()} on {place}"]
        threads = self.host.get("host_threads")
        if isinstance(threads, int):
            parts.append(f"{threads} {'thread' if threads == 1 else 'threads'}")
        if self.precision:
            parts.append(f"{self.precision} parameters")
        if self.inputs:
            parts.append(f"inputs {self.inputs}")
        return " · ".join(parts)


@dataclass(frozen=True, slots=True)
class _Saved(Stored):
    """The data of :meth:`Profile.to_dict`."""

    setup: Setup
    measurements: Mapping[str, Measurement]
    definitions: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    layers: LayerTable | None = None


class Profile(Displayed, Mapping[str, Measurement]):
    """Measurements by metric name, and the layers of the model; ``print`` shows them as a table."""

    def __init__(
        self,
        measurements: Mapping[str, Measurement],
        setup: Setup,
        definitions: Mapping[str, str],
        options: Mapping[str, Options],
        profiler: Profiler | None = None,
        layers: LayerTable | None = None,
    ) -> None:
        """Made by :func:`sweeprof.profile`, :meth:`sweeprof.Profiler.compute_all` and :meth:`from_dict`."""
        self.measurements = Measurements(measurements)
        self.setup = setup
        """Model, mode, backend, device and host."""
        self.definitions = definitions
        """What each metric is, in one sentence."""
        self.options = options
        """The options of the metrics that were computed with any, by name."""
        self._profiler, self._layers = profiler, layers
        self._results: dict[PassName, PassResult | Missing] = {}
        """Of passes that were named themselves, and are shown after the metrics."""
        self._has_notes = False

    @property
    def profiler(self) -> Profiler:
        """The profiler that measured; it has the results of the passes.

        Raises:
            Unsupported: the profile was read by :meth:`from_dict`.
        """
        if self._profiler is None:
            raise Unsupported("a profile that was stored has no profiler")
        return self._profiler

    @property
    def layers(self) -> Layers:
        """The layers of the model.

        Raises:
            Unsupported: the profile was read by :meth:`from_dict`, and had no layers when it was stored.
            Exception: any error of the model's forward.
        """
        from sweeprof.profiling.layers import Layers  # with the report's templates

        if self._profiler is not None:
            return self._profiler.layers
        if self._layers is None:
            raise Unsupported("the layers had not been counted when the profile was stored")
        return Layers.of(self._layers, self.setup.host)

    @property
    def graph(self) -> Graph:
        """The operators of one forward as nodes and edges, see :attr:`sweeprof.Profiler.graph`."""
        return self.profiler.graph

    def __getitem__(self, name: str) -> Measurement:
        return self.measurements[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.measurements)

    def __len__(self) -> int:
        return len(self.measurements)

    def __view__(self) -> View:
        from sweeprof.report.display import definition_lines, measurement_parts, view_of
        from sweeprof.report.view import View, counted

        parts: list[Any] = [self.setup.conditions, *measurement_parts(self, _is_applicable)]
        if self._has_notes:
            parts += definition_lines(self, self.definitions)
        for result in self._results.values():
            view = view_of(result)
            parts += [view.title, *view.parts]
        return View(f"{self.setup.title}: {counted(len(self), 'metric')}", tuple(parts))

    def shown(
        self, order: str | Sequence[str] = (), exclude: str | Sequence[str] = (), *, notes: bool = False
    ) -> Profile:
        """Return the profile to be printed or shown as HTML.

        Args:
            order: names, or patterns such as ``latency/*``, of the metrics that come first; the others follow.
            exclude: names or patterns of the metrics that are left out.
            notes: also show the definition of each metric.

        Raises:
            UserError: a name or pattern fits no metric.

        Example:
            >>> print(profile.shown(order=["latency/*"], exclude=["size/*"], notes=True))
        """
        names = shown_names(self, order, exclude)
        chosen = {name: self.measurements[name] for name in names}
        shown = Profile(chosen, self.setup, self.definitions, self.options, self._profiler, self._layers)
        shown._results = self._results
        shown._has_notes = notes
        return shown

    def to_frame(self, host: bool = False) -> pandas.DataFrame:
        """Return a row per metric: its value in the base unit, or the reason why there is none.

        Args:
            host: also columns that describe the host, ``host_name``, ``host_cpu``, ``host_threads`` …, the same in each row.
        """
        import pandas

        columns = ("name", "value", "unit", "estimator", "reason")
        lines = [{column: getattr(m, column) for column in columns} for m in self.measurements.values()]
        # Counts stay whole, what is missing stays None.
        return with_host(pandas.DataFrame(lines, columns=columns, dtype=object), self.setup.host, host)

    def to_dict(self) -> Json:
        """Return plain JSON data: measurements, definitions, the setup, and the layers if these have been counted.

        Example:
            >>> Path("profile.json").write_text(json.dumps(profile.to_dict()))
        """
        table = self._layers if self._profiler is None else self._profiler.counted_layers
        return _Saved(self.setup, self.measurements, self.definitions, self.options, table).to_dict()

    @classmethod
    def from_dict(cls, data: Mapping[str, object]) -> Profile:
        """Return the profile that :meth:`to_dict` made, to be printed and compared.

        Raises:
            Damaged: it is other data.

        Example:
            >>> before = sweeprof.Profile.from_dict(json.loads(Path("profile.json").read_text()))
            >>> print(sweeprof.compare(before, profile))
        """
        saved = validated(_Saved, data)
        layers = None if saved.layers is None else LayerTable.from_dict(cast("Mapping[str, object]", data["layers"]))
        return cls(saved.measurements, saved.setup, saved.definitions, saved.options, None, layers)


def profile(  # noqa: PLR0913  # one argument for each thing a caller may know
    model: object,
    inputs: object,
    metrics: str | Sequence[Entry] = "static",
    *,
    formulas: Mapping[Any, Formula] | None = None,
    include: ModulePatterns = (),
    exclude: ModulePatterns = (),
    strict: Strict = "warn",
    backend: str | Backend = "auto",
    device: str | None = None,
    forward: Callable[..., object] | None = None,
    mode: Mode | None = None,
    optimizer: str | Callable[..., object] = "sgd",
    loss: str | Callable[..., object] = "mean",
    generation: GenerationConfig | None = None,
    protocol: Protocol | None = None,
    functions: str | Sequence[str] = (),
    unit: str | None = None,
    units: float | Callable[[Any], float] | None = None,
    name: str | None = None,
    progress: bool | None = None,
    verbose: bool = False,
) -> Profile:
    """Return the metrics of ``model`` called with ``inputs``; the model is not changed.

    Args:
        model: a model of a framework that sweeprof knows; it may be on the meta device, where nothing is allocated. Or any function
            of PyTorch's tensors: the modules and parameters that it uses are those of the model. Or the path of a file:
            ``.onnx``, ``.xml``, ``.tflite``, ``.keras``, ``.h5`` or ``.pt2``; or the folder of a SavedModel.
        inputs: a tensor; a tuple of positional arguments; a mapping of keyword arguments; a shape, ``(1, 3, 224, 224)``;
            or :class:`sweeprof.Inputs`. Tensors may be on the meta device.
        metrics: the name of a metric set (``static``: what follows from shapes; ``full``: also times and everything else), or a
            list of metrics.
        formulas: by module type or operator, for this model alone.
        include: count and time only these modules and what is inside them: paths, globs (``layer1.*``), class names or classes.
        exclude: neither count nor time these modules and what is inside them, likewise.
        strict: what to do about an operator without a formula: ``error``, ``warn`` or ``ignore``.
        backend: name or object; ``auto`` takes the framework of the model.
        device: where to run, such as ``cpu``, ``gpu`` or ``cuda:1``; None where the model is.
        forward: ``forward(model, *args, **kwargs)`` if a step is more than a call of the model.
        mode: a step is a forward (``inference``), a whole training step (``training``) or a whole generation of text
            (``generation``); None: as the metric set says, else ``inference``.
        optimizer: for training steps: a name, or a function from the parameters to an optimizer.
        loss: for training steps: a name, a function of outputs and targets, or a class of such functions.
        generation: for generations: the number of new tokens, and the arguments of ``generate``.
        protocol: how long and how often to measure.
        functions: dotted names of the functions whose source lines are profiled; none: the model's own forward.
        unit: of the work of a step, a noun in the plural such as ``tokens``; None: samples.
        units: in a batch, a number or a function that returns it from the inputs; None: tokens by the attention mask.
        name: of the model, for what is printed, such as ``"original"``; a comparison shows the names of both sides.
        progress: show the running pass and a bar in a line on stderr or in a notebook; None: only on a terminal and in a notebook.
        verbose: print each pass with its duration, and warnings about results, on stderr; see also :func:`sweeprof.set_logger`.

    Raises:
        UserError: a name is not known, ``mode`` is not that of the metric set, or this host does not have the device.
        Uncounted: an operator has no formula, and ``strict`` is ``error``.
        Exception: whatever the model raised.

    Example:
        >>> r = sweeprof.profile(model, torch.randn(1, 3, 224, 224))
        >>> r["compute/macs"].value
        1814073344
        >>> print(r.layers.tree(depth=1))
    """
    if mode is None and isinstance(metrics, str):
        mode = mode_of(metrics)
    profiler = Profiler(
        model,
        inputs=inputs,
        backend=backend,
        device=device,
        protocol=protocol,
        forward=forward,
        formulas=formulas,
        include=include,
        exclude=exclude,
        strict=strict,
        mode=mode or "inference",
        optimizer=optimizer,
        loss=loss,
        generation=generation,
        functions=functions,
        unit=unit,
        units=units,
        name=name,
        progress=progress,
        verbose=verbose,
    )
    return profiler.compute_all(metrics)


def compare(
    baseline: object,
    candidate: object,
    inputs: object = None,
    metrics: str | Sequence[Entry] = "static",
    *,
    names: tuple[str, str] | None = None,
) -> Differences:
    """Return every metric of two models side by side, in base units.

    Args:
        baseline: a profiler, a profile, a mapping of measurements, or a model, which is profiled.
        candidate: likewise.
        inputs: what models are called with, as in :func:`sweeprof.profile`.
        metrics: that are computed of models, likewise.
        names: of both sides, for what is printed; None: those that profilers were given.

    A metric that only one of them has computed is computed by the other, too, with the same options; where both have computed it
    with different options, the candidate computes it with those of the baseline. A metric that only one of them can have keeps its
    row, with a reason.

    Raises:
        UserError: a model has no inputs, or there are inputs but no model.

    Example:
        >>> print(sweeprof.compare(teacher, student, (1, 3, 224, 224), names=("teacher", "student")))
        >>> print(sweeprof.compare(baseline=profiler, candidate=profiler.clone(model=student)))
    """
    sides: dict[str, Any] = {"baseline": baseline, "candidate": candidate}
    models = [key for key, side in sides.items() if not isinstance(side, Profiler) and not _are_measurements(side)]
    if models and inputs is None:
        advice = "is taken for a model, which needs inputs: compare(model_a, model_b, inputs)."
        raise UserError([Problem(key, type(sides[key]).__name__, advice) for key in models])
    if inputs is not None and not models:
        raise UserError([Problem("inputs", described(inputs), "is for models, and neither side is one.")])
    for key in models:
        sides[key] = profile(sides[key], inputs, metrics)
    first, second = map(_Compared.of, sides.values())
    if names is not None:
        first.name, second.name = names
    second.complete(first, are_options_replaced=True)
    first.complete(second)
    definitions = {**second.definitions, **first.definitions}
    return differences(first.measurements, second.measurements, definitions, (first.name, second.name))


def _are_measurements(side: object) -> bool:
    return isinstance(side, Mapping) and all(isinstance(value, Measurement) for value in side.values())


@dataclass(slots=True)
class _Compared:
    """One of the two sides of a comparison."""

    measurements: dict[str, Measurement]
    options: Mapping[str, Options] | None = None
    """With which the metrics were computed, by name; None: unknown."""
    definitions: Mapping[str, str] = field(default_factory=dict)
    profiler: Profiler | None = None
    """Computes further metrics; None: nothing does."""
    name: str | None = None
    """The name that the user gave to the profiler."""

    @classmethod
    def of(cls, side: Mapping[str, Measurement] | Profiler) -> _Compared:
        """Return the side of what a caller compares."""
        if isinstance(side, Profile):
            return cls(dict(side), side.options, side.definitions, side._profiler, side.setup.name)
        if isinstance(side, Profiler):
            definitions = {name: metric.info.definition for name, metric in side.metrics.items()}
            return cls(dict(side.status), dict(side._newest_options), definitions, side, side.name)
        return cls(dict(side))

    def complete(self, other: _Compared, *, are_options_replaced: bool = False) -> None:
        """Compute the metrics that only the other side has, or also those that it has with other options."""
        profiler = self.profiler
        if profiler is None:
            return
        selected = []
        for name in other.measurements:
            options = (other.options or {}).get(name, {})
            differs = other.options is not None and (self.options or {}).get(name, {}) != options
            is_wanted = name not in self.measurements or (are_options_replaced and differs)
            if is_wanted and (name in profiler.metrics or profiler._is_score(name)):
                selected.append(profiler._selected(name, options))
        self.measurements.update(profiler._computed_of(selected))
