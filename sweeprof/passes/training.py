"""Counts of a training step, from shapes alone."""

from __future__ import annotations

from sweeprof.backends import AnalyzesTraining
from sweeprof.passes.registry import Parameter, Pass
from sweeprof.passes.session import Session
from sweeprof.results.layers import Training


def run(session: Session, backend: AnalyzesTraining) -> Training:
    """Return what one training step computes and keeps, layer by layer."""
    with session.described() as (build, channel_axis), session.timed("measure"):
        step = backend.analyze_training(build, session.inputs(), channel_axis, session.formulas)
    session.check_counted(step.uncovered)
    return step


PASS = Pass(
    name="training",
    order=20,
    run=run,
    read=Training.from_dict,
    kind="exact",
    capability=AnalyzesTraining,
    provides=(Parameter("training"),),
)
