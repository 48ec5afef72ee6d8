"""The time of a step over what PyTorch's own timer finds for the same call."""

from __future__ import annotations

import statistics
from collections.abc import Callable

from torch.utils.benchmark import Timer

from sweeprof.measuring.timing import WallClock, sampled
from sweeprof.results.record import Protocol


def over_torchs_timer(step: Callable[[], object], timer: Timer, one: Protocol, loops: int, pairs: int) -> float:
    """The median ratio of pairs of a sample, which is a single one by the protocol, and of a block of as many loops, in turns."""
    ratios = []
    for turn in range(pairs):
        if turn % 2:
            theirs = timer.timeit(loops).median
            ours = sampled(step, one, WallClock())[0]
        else:
            ours = sampled(step, one, WallClock())[0]
            theirs = timer.timeit(loops).median
        ratios.append(ours / theirs)
    return statistics.median(ratios)
