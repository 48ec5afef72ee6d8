"""Time and memory by line of source code."""

from __future__ import annotations

from sweeprof.backends import ProfilesLines
from sweeprof.passes.registry import Parameter, Pass
from sweeprof.passes.session import Session
from sweeprof.results.lines import Lines


def run(session: Session, backend: ProfilesLines) -> Lines:
    """Return time and memory by line, of the session's functions or else of the model's own forward."""
    with session.working() as (model, work):
        return backend.lines(model, work, session.functions)


PASS = Pass(
    name="lines",
    order=110,
    run=run,
    read=Lines.from_dict,
    kind="once",
    capability=ProfilesLines,
    is_exclusive=True,
    provides=(Parameter("lines"),),
)
