"""Energy of a step, from the counters of the host: with that of the idle machine, which a metric subtracts."""

from __future__ import annotations

from sweeprof.backends import Backend
from sweeprof.measuring.energy import Energy, counters, measured
from sweeprof.passes.memory import whole_step
from sweeprof.passes.registry import Pass
from sweeprof.passes.session import Session


def run(session: Session, _: Backend) -> Energy:
    """Return the energy of steps that last as long as a round of timing, after as much warming up."""
    meters = counters(session.device_name())  # before a model is loaded for nothing
    protocol = session.protocol
    with session.working() as (model, work), whole_step(session, model, work) as step:
        clock = model.clock()
        begin, steps = clock.now(), 0
        while steps < protocol.warmup_steps or clock.now() - begin < protocol.warmup_s:
            step()
            steps += 1
        return measured(step, meters, protocol.min_s)


PASS = Pass(name="energy", order=127, run=run, read=Energy.from_dict, kind="once", is_exclusive=True)
