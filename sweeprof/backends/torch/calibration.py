"""What a probe costs on this machine: measured on modules and on a backward that do nothing."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch

from sweeprof.backends.torch.probes import Probes
from sweeprof.profiling.spans import LEFT, Cost
from sweeprof.profiling.timing import Clock, without_collection

CALLS = 100
"""Empty modules in one step."""
NODES = 200
"""Nodes in one backward."""
REPEATS = 25
"""Steps with probes, and as many without, in turns; medians count."""
REPEATS_AMONG_WORK = 5
"""The same with work between the calls: each step has a window per call, and takes long where the processor is shared."""


def calibrated(clock: Clock, device: torch.device, with_backward: bool) -> Cost:
    """The cost of the probes of a call, and with ``with_backward`` of a node; seconds, by the clock that is used.

    Between the layers of a model there is work, which drives the probe's own code out of the processor's caches. So the window of
    an empty call is measured between convolutions too, and everything else, which is a small difference of two noisy totals,
    is measured without work between and scaled by what the window has grown.
    """
    x = torch.zeros(1, device=device)
    image, kernel = torch.zeros(1, 16, 32, 32, device=device), torch.zeros(16, 16, 3, 3, device=device)
    with without_collection(), _one_thread():
        inside, whole = _probed(_Many(), x, clock, with_backward, REPEATS)
        among_work, _ = _probed(_Many(lambda: torch.conv2d(image, kernel)), x, clock, with_backward, REPEATS_AMONG_WORK)
        growth = among_work / inside if inside > 0 else 1.0
        node = _node(clock, device) if with_backward else 0.0
    return Cost(among_work, max(0.0, whole - inside) * growth, node * growth)


@contextmanager
def _one_thread() -> Iterator[None]:
    """The work between the calls is small: threads would wait for each other, long where others use the processor too."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class _Empty(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


class _Many(torch.nn.Module):
    """Empty calls, with work between them or without."""

    def __init__(self, work: Callable[[], object] | None = None) -> None:
        super().__init__()
        self.inner = torch.nn.ModuleList(_Empty() for _ in range(CALLS))
        self._work = work

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for module in self.inner:
            if self._work is not None:
                self._work()
            x = module(x)
        return x


def _probed(module: _Many, x: torch.Tensor, clock: Clock, with_backward: bool, repeats: int) -> tuple[float, float]:
    """Seconds within the window of an empty call, and what its probes add to a step altogether: medians."""
    probes = Probes(module, clock.mark, with_backward)
    plain, probed, windows = [], [], []
    for _ in range(repeats):
        plain.append(_lasting(lambda: module(x), clock))
        with probes.attached():
            probed.append(_lasting(lambda: module(x), clock))
            events = probes.forget()
        windows += [clock.between(a[2], b[2]) for a, b in pairwise(events) if a[0] != LEFT and b[0] == LEFT]
    whole = (statistics.median(probed) - statistics.median(plain)) / (CALLS + 1)
    return statistics.median(windows), whole


def _node(clock: Clock, device: torch.device) -> float:
    """Seconds of following one node of a backward."""
    plain, followed = [], []
    probes = Probes(torch.nn.Identity(), clock.mark, with_backward=True)
    for _ in range(REPEATS):
        plain.append(_lasting(_chain(device).backward, clock))
        last = _chain(device)
        probes.follow(last)
        followed.append(_lasting(last.backward, clock))
        probes.forget()
    return max(0.0, (statistics.median(followed) - statistics.median(plain)) / NODES)


def _chain(device: torch.device) -> Any:
    with torch.inference_mode(False), torch.enable_grad():
        x: torch.Tensor = torch.zeros((), device=device, requires_grad=True)
        for _ in range(NODES):
            x = x.view_as(x)
    return x


def _lasting(step: Callable[[], object], clock: Clock) -> float:
    begin = clock.mark()
    step()
    return clock.between(begin, clock.mark())
