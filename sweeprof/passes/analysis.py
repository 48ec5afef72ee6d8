"""Counts of a forward, from shapes alone."""

from __future__ import annotations

from sweeprof.backends import Analyzes
from sweeprof.errors import Unsupported
from sweeprof.passes.registry import Parameter, Pass
from sweeprof.passes.session import Session
from sweeprof.results.layers import LayerTable


def run(session: Session, backend: Analyzes) -> LayerTable:
    """Return parameters, operations and activations of one forward, layer by layer."""
    with session.described() as (build, channel_axis), session.timed("measure"):
        table = backend.analyze(build, session.inputs(), channel_axis, session.formulas)
    session.check_counted(table.uncovered)
    return table


def counted(table: LayerTable) -> LayerTable:
    """Return the table; raise :class:`Unsupported` if it has parameters and buffers only: the forward cannot be counted."""
    if table.uncounted is not None:
        raise Unsupported(table.uncounted)
    return table


PASS = Pass(
    name="analysis",
    order=10,
    run=run,
    read=LayerTable.from_dict,
    kind="exact",
    capability=Analyzes,
    provides=(Parameter("layers", counted), Parameter("weights")),
)
