"""The data loader alone: how fast it delivers batches, without a model."""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import chain

from sweeprof.backends import Backend
from sweeprof.errors import Unsupported
from sweeprof.passes.registry import Pass, Session
from sweeprof.results.record import Stored


@dataclass(frozen=True, slots=True)
class Loading(Stored):
    """Complete passes of a loader over the test split; the last one ends early where it reached ``protocol.max_s``."""

    samples: int
    """All that were delivered."""
    batches: int
    seconds: float
    """From the first request to the last batch, the starts of all passes included."""
    first_batch_s: tuple[float, ...]
    """Per pass, from its beginning, which starts worker processes, to its first batch."""
    warm_up_s: float
    """The same for a pass before these, which also imports what the loader needs."""


def run(session: Session, _: Backend) -> Loading:
    """Return what the session's loader delivers in as many passes as take the protocol's minimum duration, at least one."""
    protocol, samples, batches = session.protocol, 0, 0
    first_batch_s: list[float] = []
    with session.described():  # a loader draws random numbers, which a caller's process shall not notice
        began = time.perf_counter()
        if next(iter(session.batch_sizes()), None) is None:
            raise Unsupported("there are no data to load")
        warm_up_s = time.perf_counter() - began
        with session.timed("measure"):
            began = now = time.perf_counter()
            while not batches or now - began < protocol.min_s:
                begin = time.perf_counter()
                loader = iter(session.batch_sizes())
                first = next(loader)
                first_batch_s.append(time.perf_counter() - begin)
                for size in chain([first], loader):
                    samples, batches, now = samples + size, batches + 1, time.perf_counter()
                    if now - began >= protocol.max_s:
                        break
    return Loading(samples, batches, now - began, tuple(first_batch_s), warm_up_s)


PASS = Pass(name="loading", order=125, run=run, read=Loading.from_dict, kind="once", is_exclusive=True)
