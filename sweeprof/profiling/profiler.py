"""Profiler: every metric of one model, in this process."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from sweeprof.backends import Backend
from sweeprof.backends.lookup import backend_named, backend_of
from sweeprof.counting.formulas import DEFAULTS, Formula, Formulas
from sweeprof.errors import (
    MetricWarning,
    OverrideError,
    Problem,
    UncountedWarning,
    Unsupported,
    UserError,
    choice_problem,
)
from sweeprof.measuring.inputs import Inputs
from sweeprof.measuring.instantiate import builder, chosen_builder, instantiate
from sweeprof.measuring.training_config import TrainingConfig
from sweeprof.metrics.evaluate import argument_from, measured, model_functions
from sweeprof.metrics.metric import BATCH_SIZE, Metric, Missing, builtin_metrics, declared, parameter_name
from sweeprof.metrics.select import Entry, Selected, metric_set, select
from sweeprof.passes.registry import PassResult, parameters
from sweeprof.passes.session import Session, Strict
from sweeprof.profiling.data import Data
from sweeprof.profiling.session import BuiltSession, LiveSession
from sweeprof.results.layer_times import LayerTimes, Mode
from sweeprof.results.layers import LayerTable
from sweeprof.results.measurement import Measurement, Measurements
from sweeprof.results.protocol import Protocol
from sweeprof.results.record import PassName
from sweeprof.results.verdicts import Difference, differences

if TYPE_CHECKING:
    from sweeprof.profiling.layers import Layers

Options = Mapping[str, Any]


class Profiler:
    """The metrics of a model: registered by name, computed when asked for, kept until the options change.

    Example:
        >>> profiler = Profiler(model, data=loader)
        >>> profiler.compute("compute/macs").value
        416520
        >>> profiler.compute_all("static")

    The model is left exactly as it was found. Passes are run when a metric needs them, each once.
    """

    def __init__(  # noqa: PLR0913  # one argument for each thing a caller may know
        self,
        model: Any,
        data: Iterable[Any] | Mapping[str, Any] | Data | None = None,
        *,
        inputs: Any = None,
        backend: str | Backend = "auto",
        device: str | None = None,
        protocol: Protocol | None = None,
        input_pattern: Callable[[Sequence[Any]], Inputs] | None = None,
        forward: Callable[..., Any] | None = None,
        formulas: Mapping[Any, Formula] | None = None,
        strict: Strict = "warn",
        mode: Mode = "inference",
        optimizer: str | Callable[[Any], Any] = "sgd",
        loss: str | Callable[[Any, Any], Any] = "mean",
        functions: Sequence[str] = (),
    ) -> None:
        """Args:
        model: a model of a framework that sweeprof knows; it may be on the meta device.
        data: batches, or a mapping of splits to batches; the first batch is what is measured, all of ``test`` what is
            evaluated.
        inputs: what the model is called with instead of the first batch (:meth:`sweeprof.Inputs.of`).
        backend: name or object; ``auto`` takes the framework of the model.
        device: where to run; None where the model is.
        input_pattern: from a batch to the model's arguments (:func:`sweeprof.pattern_of`).
        forward: ``forward(model, *args, **kwargs)`` where a step is more than calling the model.
        formulas: by module type or operator, for this model alone.
        strict: what an operator without a formula does: ``error``, ``warn`` or ``ignore``.
        mode: whether a step that is timed or traced is a forward (``inference``) or a whole training step (``training``).
        optimizer: of training steps: a name, or a function from the parameters to an optimizer.
        loss: of training steps: a name, a function of outputs and targets, or a class of such.
        functions: whose source lines are watched, by their dotted names; none: the model's own forward.

        Raises:
            UserError: the framework of the model is not known, or an argument is not one of those allowed.
        """
        session = LiveSession(
            backend=backend_of(model) if backend == "auto" else _backend(backend),
            protocol=protocol or Protocol(),
            formulas=DEFAULTS if formulas is None else Formulas(formulas, DEFAULTS),
            strict=strict,
            mode=mode,
            training_config=TrainingConfig(optimizer, loss),
            functions=(functions,) if isinstance(functions, str) else tuple(functions),
            model=model,
            given=None if inputs is None else Inputs.of(inputs),
            forward=forward,
            given_data=Data.of(data, input_pattern),
            device=device,
        )
        session.check()
        self._set_up(session)

    def _set_up(self, session: Session) -> None:
        self.session = session
        self._registered: dict[str, Metric] = {}
        self._overriding: set[str] = set()
        self._results: dict[PassName, PassResult | Missing] = {}
        self._computed: dict[tuple[str, str], Measurement] = {}
        self._newest = Measurements()

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Profiler:
        """The profiler of a combination's resolved config.

        Raises:
            Unsupported: the model names no builder for the backend's framework.
        """
        backend, model = config["backend"], config["model"]
        _, node = chosen_builder(backend, model)
        chosen = config.get("metrics", {})
        made = cls.__new__(cls)
        made._set_up(
            BuiltSession(
                backend=instantiate(backend),
                protocol=Protocol(**config["protocol"]),
                strict=chosen.get("strict", "warn"),
                mode=config["mode"],
                training_config=TrainingConfig.from_config(config["training"]),
                functions=chosen.get("functions", ()),
                model_metrics=model_functions(select(chosen.get("select", ()))),
                build=builder(node),
                dataset=instantiate(config["dataset"]),
                batch_size=config["batch_size"],
                device=config["device"]["type"],
                seed=config["seed"]["weights"],
            )
        )
        return made

    @property
    def layers(self) -> Layers:
        """The layers of the model, with the ways to look at them, and with their times where those have been measured.

        Raises:
            Exception: whatever the analysis raised.
        """
        from sweeprof.profiling.layers import Layers  # with the report's templates, which a worker has no use for

        table, times = self.seen("analysis"), self._results.get("layer_times")
        assert isinstance(table, LayerTable)
        return Layers.of(table.with_times(times) if isinstance(times, LayerTimes) else table)

    @property
    def status(self) -> Mapping[str, Measurement]:
        """The computed metrics, by name; the newest where a metric was computed with several options."""
        return MappingProxyType(self._newest)

    @property
    def metrics(self) -> Mapping[str, Metric]:
        """Every metric that can be computed, by name."""
        return MappingProxyType({**builtin_metrics(), **self._registered})

    def seen(self, pass_name: PassName) -> PassResult:
        """Return the result of a pass, which is run if it has not been; raise as :meth:`run` does."""
        found = self._results.get(pass_name)
        if found is None or isinstance(found, Missing):
            found = self._results[pass_name] = self.run(pass_name)
        return found

    def run(self, pass_name: PassName) -> PassResult:
        """Run a pass and return its result; see :meth:`sweeprof.passes.session.Session.run`."""
        return self.session.run(pass_name)

    def register(self, metric: Metric | Sequence[Metric], *, override: bool = False) -> None:
        """Add a metric, or several that one function returns.

        One of the name of another replaces it, with a warning, unless the other was registered with ``override=True``: that one
        stays. With ``override=True`` it replaces any and is not replaced itself.

        Raises:
            OverrideError: both are registered with ``override=True``.
            TypeError: it is no metric.
        """
        for one in metric if isinstance(metric, Sequence) else (metric,):
            if not isinstance(one, Metric):
                raise TypeError(f"{one!r} is not decorated by @sweeprof.metric")
            self._register(one, override)

    def _register(self, metric: Metric, override: bool) -> None:
        name = metric.info.name
        if name in self._overriding:
            if override:
                raise OverrideError(f"two metrics override {name!r}")
            return
        if not override and name in self.metrics:
            warnings.warn(f"metric {name!r} is replaced; say override=True to do so on purpose", stacklevel=3)
        if override:
            self._overriding.add(name)
        self._registered[name] = metric
        known = self._readable()
        for reading, other in self.metrics.items():
            if metric in other.readings(known):
                self._forget(reading)

    def compute(self, name: str, *, recompute: bool = False, **options: Any) -> Measurement:
        """One metric; a value computed before with the same options is taken unless ``recompute``.

        Raises:
            UserError: there is no such metric, or it has no such option.
        """
        selected = self._selected(name, options)
        key = _key(selected)
        if recompute:
            self._forget(name)
        if key not in self._computed:
            self._compute([selected])
        self._newest[name] = self._computed[key]
        return self._computed[key]

    def compute_all(
        self,
        metrics: str | Sequence[Entry] | None = None,
        *,
        recompute: bool = False,
        options: Mapping[str, Options] | None = None,
    ) -> Measurements:
        """Several metrics at once.

        Args:
            metrics: a metric set by name (``static``, ``full``), names, or None for every metric that is registered or built in.
            options: by metric name.

        Raises:
            UserError: a name or an option is not known, or the set is measured on other steps than this profiler's.
        """
        names = self._names(metrics)
        given = {**dict(names), **(options or {})}
        twice = [name for index, (name, _) in enumerate(names) if name in dict(names[:index])]
        if twice:
            raise UserError([Problem("metrics", twice[0], "is selected twice.")])
        unknown = [name for name in options or {} if name not in dict(names)]
        if unknown:
            raise UserError([choice_problem("options", unknown[0], "metric that is computed", dict(names))])
        selected = [self._selected(name, given[name]) for name, _ in names]
        if recompute:
            for name, _ in names:
                self._forget(name)
        self._compute([s for s in selected if _key(s) not in self._computed])
        found = Measurements((s.metric.info.name, self._computed[_key(s)]) for s in selected)
        self._newest.update(found)
        return found

    def clone(self, *, model: Any = None, data: Any = None, inputs: Any = None) -> Profiler:
        """A profiler with the same registered metrics and settings, of another model or on other data.

        What has been computed is kept only where neither changes.
        """
        session = self.session
        if not isinstance(session, LiveSession):
            raise Unsupported("a profiler made from a config is cloned by changing the config")
        made = Profiler(
            session.model if model is None else model,
            session.given_data if data is None else data,
            inputs=session.given if inputs is None and data is None else inputs,
            backend=session.backend if model is None else "auto",
            device=session.device,
            protocol=session.protocol,
            input_pattern=session.given_data.pattern,
            forward=session.forward,
            strict=session.strict,
            mode=session.mode,
            optimizer=session.training_config.optimizer,
            loss=session.training_config.loss,
            functions=session.functions,
        )
        made.session.formulas = session.formulas
        made._registered, made._overriding = dict(self._registered), set(self._overriding)
        if model is None and data is None and inputs is None:
            made._results, made._computed, made._newest = (
                dict(self._results),
                dict(self._computed),
                Measurements(self._newest),
            )
        return made

    @staticmethod
    def compare(baseline: Profiler, candidate: Profiler) -> list[Difference]:
        """Return the metrics that both have computed, side by side; see :func:`sweeprof.compare`."""
        return differences(baseline.status, candidate.status)

    def _names(self, metrics: str | Sequence[Entry] | None) -> list[tuple[str, Options]]:
        if metrics is None:
            return [(name, {}) for name in self.metrics]
        entries = metric_set(metrics, self.session.mode) if isinstance(metrics, str) else metrics
        names: list[tuple[str, Options]] = []
        for entry in entries:
            if isinstance(entry, str) and entry in self.metrics:
                names.append((entry, {}))
                continue
            for one in select([entry]):
                self._registered.setdefault(one.metric.info.name, one.metric)
                names.append((one.metric.info.name, one.options))
        return names

    def _selected(self, name: str, options: Options) -> Selected:
        known = self.metrics
        if name not in known:
            raise UserError([choice_problem("metrics", name, "metric", known)])
        metric = known[name]
        unknown = [option for option in options if option not in metric.options]
        if unknown:
            raise UserError([choice_problem(name, unknown[0], "option", metric.options)])
        return Selected(metric, dict(options))

    def _with_siblings(self, selected: Sequence[Selected]) -> list[Selected]:
        """Also the other metrics of functions that return several: they come of the same call."""
        found = list(selected)
        for one in selected:
            for other in self._registered.values() if one.metric.part is not None else ():
                if other.function is one.metric.function and all(other is not s.metric for s in found):
                    found.append(Selected(other, one.options))
        return found

    def _compute(self, selected: Sequence[Selected]) -> None:
        selected = self._with_siblings(selected)
        known = self._readable()
        read = {name for s in selected for metric in s.metric.readings(known) for name in metric.reads}
        values: dict[str, Any] = {}
        of_model: PassResult | Missing | None = None
        if BATCH_SIZE in read:
            values[BATCH_SIZE] = self._batch_size()
        for name, (provider, parameter) in parameters().items():
            if name not in read:
                continue
            if parameter.source == "baseline":
                values[name] = Missing("a single profiler has no baseline: use sweeprof.compare")
            elif parameter.source == "object":
                of_model = of_model or self._model_results(selected)
                values[name] = of_model
            else:
                value = argument_from(name, self._result(provider.name))
                values[name] = (value,) if provider.kind == "rounds" and not isinstance(value, Missing) else value
        found = measured(selected, values, known)
        _warn_of_failures(found)
        for name, measurement in found.items():
            (one,) = (s for s in selected if s.metric.info.name == name)
            self._computed[_key(one)] = measurement

    def _result(self, pass_name: PassName) -> PassResult | Missing:
        """Return the result of a pass, which is run if it has not been; warn if it has operators without a formula."""
        if pass_name not in self._results:
            result = self._results[pass_name] = self._tried(pass_name)
            uncovered = getattr(result, "uncovered", {})
            if uncovered and self.session.strict == "warn":
                names = ", ".join(f"{name} ×{calls}" for name, calls in sorted(uncovered.items()))
                warnings.warn(
                    f"no formula for {names}: counts are a lower bound", UncountedWarning, stacklevel=_callers_level()
                )
        return self._results[pass_name]

    def _tried(self, pass_name: PassName) -> PassResult | Missing:
        """Run a pass; errors of the model, and operators without a formula under ``strict=error``, are raised to the caller."""
        try:
            return self.session.run(pass_name)
        except Unsupported as error:
            return Missing(f"{pass_name}: unsupported: {error}")

    def _model_results(self, selected: Sequence[Selected]) -> PassResult | Missing:
        """Compute the metrics that read the model or its data: every time, because the options may have changed."""
        self.session.model_metrics = model_functions(selected, self._readable())
        return self._tried("live")

    def _batch_size(self) -> int | Missing:
        """Length of the first axis of the first tensor among the inputs."""
        shapes: list[Sequence[int]] = []
        self.session.inputs().map(lambda leaf: shapes.append(leaf.shape) if hasattr(leaf, "shape") else None)
        return int(shapes[0][0]) if shapes and len(shapes[0]) else Missing("the inputs have no batch axis")

    def _readable(self) -> dict[str, Metric]:
        """Return the metrics that others may read, by parameter name: this profiler's metrics and all that are declared."""
        return {**declared(), **{parameter_name(name): metric for name, metric in self.metrics.items()}}

    def _forget(self, name: str) -> None:
        """Drop what was computed of a metric and what its passes saw."""
        metric = self.metrics[name]
        for pass_name in metric.passes:
            self._results.pop(pass_name, None)
        self._computed = {key: value for key, value in self._computed.items() if key[0] != name}
        self._newest.pop(name, None)


def _warn_of_failures(measurements: Mapping[str, Measurement]) -> None:
    """One warning for each error, which several metrics of one function share."""
    names: dict[tuple[str, str | None], list[str]] = {}
    for name, measurement in measurements.items():
        if measurement.failure is not None:
            key = (measurement.reason or "", measurement.failure.location)
            names.setdefault(key, []).append(name)
    for (reason, location), failed in names.items():
        where = f" ({location})" if location is not None and location not in reason else ""
        warnings.warn(f"{', '.join(failed)}: {reason}{where}", MetricWarning, stacklevel=_callers_level())


def _callers_level() -> int:
    """Which frame above the caller of this function is the first outside sweeprof, as ``warnings.warn`` counts."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("sweeprof."):
        frame, level = frame.f_back, level + 1
    return level


def _backend(given: str | Backend) -> Backend:
    return backend_named(given) if isinstance(given, str) else given


def _key(selected: Selected) -> tuple[str, str]:
    """Return the key of a computed value: the metric and its options."""
    return selected.metric.info.name, repr(sorted(selected.options.items()))
