"""Times of every call of every layer."""

from __future__ import annotations

from sweeprof.backends import TimesLayers
from sweeprof.passes.registry import Parameter, Pass
from sweeprof.passes.session import Session
from sweeprof.results.layer_times import LayerTimes


def run(session: Session, backend: TimesLayers) -> LayerTimes:
    """Return the times of every layer, from steps with and without probes in alternation."""
    with session.working() as (model, work):
        return backend.layer_times(model, work, session.protocol)


PASS = Pass(
    name="layer_times",
    order=70,
    run=run,
    read=LayerTimes.from_dict,
    kind="once",
    capability=TimesLayers,
    is_exclusive=True,
    provides=(Parameter("layer_times"),),
)
