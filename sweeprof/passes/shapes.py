"""Passes that describe the model (counts from shapes, the framework's own counts, the model file, metrics that are functions of
the model or of its data), and passes that observe its steps (times of layers, operators, allocations, source lines).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from sweeprof.backends import Backend
from sweeprof.counting.formulas import outermost
from sweeprof.errors import Unsupported, described
from sweeprof.passes.registry import Parameter, Pass, Session
from sweeprof.results.graph import Graph
from sweeprof.results.layer_times import OUTSIDE, LayerTimes
from sweeprof.results.layers import LayerTable, Training
from sweeprof.results.measurement import Artifact
from sweeprof.results.observations import Allocations, Generation, Lines, Operators, OwnCounts
from sweeprof.results.record import Json, Stored


def run_analysis(session: Session, backend: Backend) -> LayerTable:
    """Return parameters, operations and activations of one forward, layer by layer.

    If the forward raises, or has an operator without a formula that is an error, the session has the parameters all the same.
    """
    with session.described() as (build, channel_axis), session.timed("measure"):
        try:
            table = backend.analyze(build, session.inputs(), channel_axis, session.formulas)
        except Exception as error:
            with suppress(Exception):  # a builder that raises is the error that is reported already
                session.partial = _selected(session, backend.weights(build, described(error)))
            raise
    table = _selected(session, table)
    session.partial = table
    session.check_counted(table.uncovered)
    return table


def _selected(session: Session, table: LayerTable) -> LayerTable:
    """Return the table without the modules that the session excludes, where the backend has counted them all the same."""
    if session.selection.is_everything or session.backend.selects_modules:
        return table
    excluded = session.selection.excluded({row.path: row.type for row in table.rows if row.path != OUTSIDE})
    kept = table.where(lambda row: row.path not in excluded)
    return replace(kept, excluded=outermost(excluded))


def counted(table: LayerTable) -> LayerTable:
    """Return the table; raise :class:`Unsupported` if it has parameters and buffers only: the forward cannot be counted."""
    if table.uncounted is not None:
        raise Unsupported(table.uncounted)
    return table


def run_graph(session: Session, backend: Backend) -> Graph:
    """Return the operators of one forward, and the tensors that pass between them."""
    with session.described() as (build, channel_axis), session.timed("measure"):
        return backend.graph(build, session.inputs(), channel_axis, session.formulas)


def run_training(session: Session, backend: Backend) -> Training:
    """Return what one training step computes and keeps."""
    with session.described() as (build, channel_axis), session.timed("measure"):
        step = backend.analyze_training(build, session.inputs(), channel_axis, session.formulas)
    session.check_counted(step.uncovered)
    return replace(step, optimizer_states=session.training_config.optimizer_states)


def run_generation(session: Session, backend: Backend) -> Generation:
    """Return what the prefill and a decode step of one generation compute and read."""
    if session.mode != "generation":
        raise Unsupported(f"mode={session.mode}: nothing is generated; mode=generation counts a generation")
    with session.described() as (build, channel_axis), session.timed("measure"):
        counts = backend.analyze_generation(
            build, session.inputs(), channel_axis, session.formulas, session.generation_config
        )
    session.check_counted(counts.uncovered)
    return counts


def run_own_counts(session: Session, backend: Backend) -> OwnCounts:
    """Return the counts of the framework's own counter for one forward."""
    with session.described() as (build, channel_axis), session.timed("measure"):
        return backend.own_counts(build, session.inputs(), channel_axis)


def run_artifact(session: Session, backend: Backend) -> Artifact:
    """Return the size and the format of the model file that the framework's run-time loads."""
    with session.described() as (build, channel_axis), session.timed("build"):
        return backend.artifact(build, channel_axis)


ANALYSIS = Pass(
    name="analysis",
    order=10,
    run=run_analysis,
    read=LayerTable.from_dict,
    kind="exact",
    capability="analyze",
    provides=(Parameter("layers", counted), Parameter("weights", needs_success=False)),
)
GRAPH = Pass(name="graph", order=15, run=run_graph, read=Graph.from_dict, kind="exact", capability="graph")
TRAINING = Pass(
    name="training", order=20, run=run_training, read=Training.from_dict, kind="exact", capability="analyze_training"
)
GENERATION = Pass(
    name="generation",
    order=25,
    run=run_generation,
    read=Generation.from_dict,
    kind="exact",
    capability="analyze_generation",
)
OWN_COUNTS = Pass(
    name="own_counts", order=30, run=run_own_counts, read=OwnCounts.from_dict, kind="exact", capability="own_counts"
)
ARTIFACT = Pass(
    name="artifact", order=40, run=run_artifact, read=Artifact.from_dict, kind="exact", capability="artifact"
)


@dataclass(frozen=True, slots=True)
class ModelMetrics(Stored):
    """By metric name: a value with its estimator and detail, or the reason why there is none."""

    results: dict[str, Json] = field(default_factory=dict)

    @property
    def tracebacks(self) -> Sequence[str]:
        """The tracebacks of the metrics that raised, each once."""
        failures = [result.get("failure") or {} for result in self.results.values()]
        return list(dict.fromkeys(failure["traceback"] for failure in failures if failure.get("traceback")))


def run(session: Session, _: Backend) -> ModelMetrics:
    """Return the results of the session's metrics that read the model or its data.

    One that raises has a reason and does not affect the others.
    """
    results: dict[str, Json] = {}
    with session.loaded() as model, session.timed("measure"):
        for metric in session.model_metrics:
            results.update(metric.model_results(model.native, session.data))
    return ModelMetrics(results)


PASS = Pass(
    name="live",
    order=130,
    run=run,
    read=ModelMetrics.from_dict,
    kind="exact",
    provides=(Parameter("model", source="object"), Parameter("data", source="object")),
)


# Passes that observe steps of the loaded model: times of layers, operators, allocations, source lines.


def run_layer_times(session: Session, backend: Backend) -> LayerTimes:
    """Return the times of every call of every layer, from steps with and without probes in alternation."""
    with session.working() as (model, work):
        times = backend.layer_times(model, work, session.protocol)
    if session.selection.is_everything or session.backend.selects_modules:
        return times
    modules = {call.path: call.type for call in times.calls if call.path != OUTSIDE}
    return times.without(session.selection.excluded(modules))


def run_operators(session: Session, backend: Backend) -> Operators:
    """Return the operators that the framework runs in a step, by module and operator."""
    with session.working() as (model, work):
        return backend.operators(model, work)


def run_allocations(session: Session, backend: Backend) -> Allocations:
    """Return the memory that the first steps allocate, tensor by tensor."""
    with session.working() as (model, work):
        return backend.allocations(model, work)


def run_lines(session: Session, backend: Backend) -> Lines:
    """Return time and memory by line of source code: of the session's functions, or else of the model's own forward."""
    with session.working() as (model, work):
        return backend.lines(model, work, session.functions)


LAYER_TIMES = Pass(
    name="layer_times",
    order=70,
    run=run_layer_times,
    read=LayerTimes.from_dict,
    kind="once",
    capability="layer_times",
    is_exclusive=True,
)
OPERATORS = Pass(
    name="operators",
    order=80,
    run=run_operators,
    read=Operators.from_dict,
    kind="once",
    capability="operators",
    is_exclusive=True,
)
ALLOCATIONS = Pass(
    name="allocations",
    order=100,
    run=run_allocations,
    read=Allocations.from_dict,
    kind="exact",
    capability="allocations",
    is_exclusive=True,
)
LINES = Pass(
    name="lines",
    order=110,
    run=run_lines,
    read=Lines.from_dict,
    kind="once",
    capability="lines",
    is_exclusive=True,
)
