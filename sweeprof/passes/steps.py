"""Passes that observe steps of the loaded model: times of layers, operators, allocations, source lines."""

from __future__ import annotations

from sweeprof.backends import Backend
from sweeprof.passes.registry import Pass, Session
from sweeprof.results.layer_times import OUTSIDE, LayerTimes
from sweeprof.results.observations import Allocations, Lines, Operators


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
