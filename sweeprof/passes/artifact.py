"""The file that the run-time of a framework loads."""

from __future__ import annotations

from sweeprof.backends import HasArtifact
from sweeprof.passes.registry import Parameter, Pass
from sweeprof.passes.session import Session
from sweeprof.results.artifact import Artifact


def run(session: Session, backend: HasArtifact) -> Artifact:
    """Return the size and the format of the model file."""
    with session.described() as (build, channel_axis), session.timed("build"):
        return backend.artifact(build, channel_axis)


PASS = Pass(
    name="artifact",
    order=40,
    run=run,
    read=Artifact.from_dict,
    kind="exact",
    capability=HasArtifact,
    provides=(Parameter("artifact"),),
)
