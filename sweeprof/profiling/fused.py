"""A training step that is one compiled program: timed whole, its phases told by programs that end earlier.

Cutting the program into phases would time something else: values would be handed from one program to the next, and nothing
would be optimised across the cut (twice the time of LeNet-5's step on TensorFlow). So three programs are timed in turns, the
forward, the forward with the backward, and the whole step, and a phase is what it makes its program longer by, as a share of
the whole.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Protocol as TypingProtocol
from typing import runtime_checkable

from sweeprof.profiling.kernel import Kernel
from sweeprof.profiling.timing import PHASES, Clock, Protocol, Timing, lasting, measure, without_collection
from sweeprof.profiling.turns import Turns

TURNS_S = 0.5
"""A difference of two programs needs more samples than a program."""


@runtime_checkable
class FusedStep(TypingProtocol):
    """A training step as one program, and the programs that end after its first phases; each returns when it is done."""

    def trace(self) -> None:
        """Make the graph of the whole step."""

    def forward_alone(self) -> None:
        """Forward and loss, in training mode."""

    def forward_and_backward(self) -> None:
        """Loss and gradients, which nothing takes."""

    def whole(self) -> None:
        """All three phases."""


def measure_fused(
    step: FusedStep, protocol: Protocol, clock: Clock, turns: Turns | None = None, kernel: Kernel | None = None
) -> Timing:
    """Time whole steps, then the programs in turns; arguments as of :func:`sweeprof.profiling.timing.measure`."""
    timing = measure(step.whole, protocol, clock, turns, kernel, step.trace)
    shares = _shares(*_medians(step, protocol, clock))
    phases = {name: tuple(share * sample for sample in timing.samples) for name, share in shares.items()}
    return replace(timing, phases=phases)


def _medians(step: FusedStep, protocol: Protocol, clock: Clock) -> tuple[float, ...]:
    """Seconds of each program, by samples in turns: as many as the protocol asks for at least, and for :data:`TURNS_S`.

    Each follows a whole step, as in a training: the caches are what that has left, for one program as for the other.
    """
    programs = (step.forward_alone, step.forward_and_backward, step.whole)
    for program in programs:
        program()  # traces and compiles it
    turns: list[list[float]] = []
    begin = clock.now()
    with without_collection():
        while len(turns) < protocol.min_samples or clock.now() - begin < TURNS_S:
            turns.append([_following(step.whole, program, clock) for program in programs])
    return tuple(statistics.median(seconds) for seconds in zip(*turns, strict=True))


def _following(whole: Callable[[], object], program: Callable[[], object], clock: Clock) -> float:
    whole()
    return lasting(program, 1, clock)


def _shares(forward: float, backward: float, whole: float) -> Mapping[str, float]:
    """Each phase's share of the whole, without a phase that adds less than can be seen; together they are 1.

    Args:
        forward: seconds of the program that ends with the forward.
        backward: of the one that ends with the backward.
        whole: of the one that ends with the update.
    """
    shares: dict[str, float] = {}
    begin = 0.0
    for name, end in zip(PHASES, (forward, backward, whole), strict=True):
        share = min(end / whole, 1.0) - begin
        if share > 0:
            shares[name] = share
            begin += share
    return shares
