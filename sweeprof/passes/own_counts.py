"""Counts by the framework's own counter, to be shown beside ours."""

from __future__ import annotations

from sweeprof.backends import CountsItself
from sweeprof.passes.registry import Parameter, Pass
from sweeprof.passes.session import Session
from sweeprof.results.operators import OwnCounts


def run(session: Session, backend: CountsItself) -> OwnCounts:
    """Return what the framework's own counter reports of one forward."""
    with session.described() as (build, channel_axis), session.timed("measure"):
        return backend.own_counts(build, session.inputs(), channel_axis)


PASS = Pass(
    name="own_counts",
    order=30,
    run=run,
    read=OwnCounts.from_dict,
    kind="exact",
    capability=CountsItself,
    provides=(Parameter("own_counts"),),
)
