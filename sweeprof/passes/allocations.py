"""Memory that a step allocates, tensor by tensor."""

from __future__ import annotations

from sweeprof.backends import TracksAllocations
from sweeprof.passes.registry import Parameter, Pass
from sweeprof.passes.session import Session
from sweeprof.results.memory import Allocations


def run(session: Session, backend: TracksAllocations) -> Allocations:
    """Return the allocations of the first steps."""
    with session.working() as (model, work):
        return backend.allocations(model, work)


PASS = Pass(
    name="allocations",
    order=100,
    run=run,
    read=Allocations.from_dict,
    kind="exact",
    # The sizes that a model allocates are the same each time; when it does so, and what a driver reports of a device, is not.
    measured_fields=frozenset({"timeline", "device"}),
    capability=TracksAllocations,
    is_exclusive=True,
    provides=(Parameter("allocations"),),
)
