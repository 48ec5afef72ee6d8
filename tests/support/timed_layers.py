"""Layer tables with times that are known: each call takes one millisecond more than the one before it."""

from __future__ import annotations

import re
from functools import cache

import torch
from torch import nn

from support.nets import lenet5, reused
from sweeprof.backends.torch.counting import count_layers
from sweeprof.measuring.inputs import Inputs, TensorSpec
from sweeprof.profiling.layers import Layers
from sweeprof.results.layer_times import CallTime, LayerTimes, Mode, PhaseTimes
from sweeprof.results.layers import LayerTable

NO_GRADIENT = "no gradient is computed in it"


class MyNet(nn.Module):
    """The example of the package nnprofiler; the widths give its 707 parameters and 10,304 MACs."""

    def __init__(self) -> None:
        super().__init__()
        self.linear1 = nn.Linear(10, 4)
        self.linear2 = nn.Linear(4, 3)
        self.linear3 = nn.ModuleList([nn.Linear(3, 1), nn.Linear(1, 4)])
        self.linear4 = nn.Sequential(nn.Linear(4, 10), nn.Linear(10, 15), nn.Linear(15, 15))
        self.linear5 = nn.ModuleDict({"a": nn.Linear(15, 10), "b": nn.Linear(10, 1)})
        self.weight = nn.Parameter(torch.ones(1, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.linear2(self.linear1(x))
        for layer in self.linear3:
            x = layer(x)
        x = self.linear4(x)
        for layer in self.linear5.values():
            x = layer(x)
        return x @ self.weight


LEAVES = [
    *("linear1", "linear2", "linear3.0", "linear3.1"),
    *("linear4.0", "linear4.1", "linear4.2", "linear5.a", "linear5.b"),
]


def with_times(table: LayerTable, no_backward: frozenset[str] = frozenset(), training: bool = True) -> Layers:
    """Every call takes one millisecond more of its own than the one before it, and backward twice as much."""
    places: dict[int, int] = {}
    calls: list[CallTime] = []
    for index, row in enumerate(table.rows):
        if row.call < 0:
            continue
        places[index] = len(calls)
        seconds = 1e-3 * (len(calls) + 1)
        back = () if row.path in no_backward or not training else (2 * seconds,) * 4
        parent = None if row.parent is None else places[row.parent]
        reason = NO_GRADIENT if training and not back else None
        calls.append(CallTime(row.path, row.type, row.call, parent, (seconds,) * 4, back, reason))
    whole = (sum(call.forward[0] for call in calls),) * 4
    forward, backward = PhaseTimes(whole, whole), PhaseTimes(tuple(2 * s for s in whole), tuple(3 * s for s in whole))
    mode: Mode = "training" if training else "inference"
    return Layers.of(table.with_times(LayerTimes(mode, tuple(calls), 1, forward, backward if training else None)))


@cache
def mynet() -> Layers:
    """:class:`MyNet` with times."""
    return with_times(count_layers(MyNet(), Inputs((TensorSpec((16, 10)),))))


@cache
def timed_lenet5() -> Layers:
    """LeNet-5 with times."""
    return with_times(lenet5())


def partly() -> Layers:
    """Some calls of the reused model without a backward."""
    return with_times(reused(), frozenset({"block.frozen", "head"}))


def cells_of(text: str, start: str) -> list[str]:
    (found,) = [re.split(r"\s{2,}", line.strip()) for line in text.splitlines() if line.strip().startswith(start)]
    return found
