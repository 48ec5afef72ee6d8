"""A training step that is one program, with a scripted clock: every share can be told by heart."""

from __future__ import annotations

import json

import pytest

from sweeprof.backends.fake import FakeClock
from sweeprof.measuring.timing import Alone, FusedStep, Timing, measure_fused
from sweeprof.results.record import Protocol

PROTOCOL = Protocol(warmup_steps=2, warmup_s=0, sample_s=0, min_samples=3, min_s=0, max_s=1e5)


class Scripted:
    """Programs that take so many seconds, and as much longer the first time; tracing takes its own."""

    def __init__(self, forward: float, backward: float, whole: float, first: float = 32.0, trace: float = 8.0) -> None:
        self.clock = FakeClock()
        self._seconds = {"forward": forward, "backward": backward, "whole": whole}
        self._first, self._trace = dict.fromkeys(self._seconds, first), trace
        self.order: list[str] = []

    def trace(self) -> None:
        self.clock.advance(self._trace)

    def forward_alone(self) -> None:
        self._run("forward")

    def forward_and_backward(self) -> None:
        self._run("backward")

    def whole(self) -> None:
        self._run("whole")

    def _run(self, name: str) -> None:
        self.order.append(name)
        self.clock.advance(self._seconds[name] + self._first.pop(name, 0.0))


def timed(step: Scripted) -> Timing:
    assert isinstance(step, FusedStep)
    return measure_fused(step, PROTOCOL, step.clock, Alone())


def test_a_phase_is_what_it_makes_the_program_longer_by() -> None:
    step = Scripted(1.0, 3.0, 4.0)
    timing = timed(step)
    assert (timing.trace_s, timing.first_step_s) == (8.0, 8.0 + 32.0 + 4.0)
    assert timing.samples == (4.0,) * 3
    assert timing.phases == {"forward": (1.0,) * 3, "backward": (2.0,) * 3, "update": (1.0,) * 3}
    assert step.order[: 1 + 2 + 1 + 3] == ["whole"] * 7
    turns = ["whole", "forward", "whole", "backward", "whole", "whole"]  # each after a whole step
    assert step.order[7:] == ["forward", "backward", "whole", *turns * 3]  # once each, unseen, then in turns
    assert Timing.from_dict(json.loads(json.dumps(timing.to_dict()))) == timing


@pytest.mark.parametrize(
    ("seconds", "phases"),
    [
        ((1.0, 4.0, 4.0), {"forward": 1.0, "backward": 3.0}),
        ((1.0, 4.5, 4.0), {"forward": 1.0, "backward": 3.0}),
        ((1.0, 1.0, 4.0), {"forward": 1.0, "update": 3.0}),
        ((5.0, 6.0, 4.0), {"forward": 4.0}),
    ],
)
def test_a_phase_that_adds_nothing_is_none(seconds: tuple[float, float, float], phases: dict[str, float]) -> None:
    """It is not there, rather than nothing or less; what is there adds up to the whole."""
    timing = timed(Scripted(*seconds))
    assert timing.phases == {name: (share,) * 3 for name, share in phases.items()}
    assert timing.is_training
