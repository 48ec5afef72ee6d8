"""Several forwards at the same time: how many a run-time completes per second when it gets several requests at once."""

from __future__ import annotations

from dataclasses import dataclass

from sweeprof.backends import Backend
from sweeprof.errors import Unsupported
from sweeprof.passes.registry import Pass, Session
from sweeprof.results.record import Stored


@dataclass(frozen=True, slots=True)
class Concurrent(Stored):
    """Samples of the throughput with several requests in flight."""

    requests: int
    """In flight at the same time."""
    forwards: tuple[int, ...]
    """Completed in each sample."""
    seconds: tuple[float, ...]
    """Of each sample, until its last request was complete."""


def run(session: Session, backend: Backend) -> Concurrent:
    """Return samples that together last as long as a round of timing, after one for warming up."""
    if session.mode != "inference":
        raise Unsupported(f"mode={session.mode}: requests are forwards")
    if not backend.has("concurrently"):
        raise Unsupported(
            "this backend runs one forward after the other; backend=openvino takes several requests at a time"
        )
    protocol = session.protocol
    sample_s = protocol.min_s / protocol.min_samples
    with session.working() as (model, work):
        requests, *_ = backend.concurrently(model, work.batch, max(protocol.warmup_s, sample_s))
        samples = [backend.concurrently(model, work.batch, sample_s) for _ in range(protocol.min_samples)]
    return Concurrent(requests, tuple(sample[1] for sample in samples), tuple(sample[2] for sample in samples))


PASS = Pass(name="concurrent", order=65, run=run, read=Concurrent.from_dict, kind="once", is_exclusive=True)
