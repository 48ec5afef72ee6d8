"""Trace of the operators that the framework runs in a step."""

from __future__ import annotations

from sweeprof.backends import TracesOperators
from sweeprof.passes.registry import Parameter, Pass
from sweeprof.passes.session import Session
from sweeprof.results.operators import Operators


def run(session: Session, backend: TracesOperators) -> Operators:
    """Return the operators of a step, by module and operator."""
    with session.working() as (model, work):
        return backend.operators(model, work)


PASS = Pass(
    name="operators",
    order=80,
    run=run,
    read=Operators.from_dict,
    kind="once",
    capability=TracesOperators,
    is_exclusive=True,
    provides=(Parameter("operators"),),
)
