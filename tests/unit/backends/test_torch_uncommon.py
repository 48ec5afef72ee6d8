"""Counts and times of models whose forward does uncommon things: each is counted as it runs, or refused with a reason."""

from __future__ import annotations

from itertools import count
from typing import Any

import torch
from torch import nn

import sweeprof


def macs(model: Any, *inputs: Any, **settings: Any) -> Any:
    return sweeprof.profile(model, inputs, ["compute/macs"], progress=False, **settings)["compute/macs"].value


class Early(nn.Module):
    """Skips its layer after a number of calls, which is kept in a place that the blocks share."""

    def __init__(self, calls: Any) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16, bias=False)
        self.calls = calls

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        next(self.calls)
        return self.layer(x) if self.calls.__reduce__()[1][0] <= 2 else x


class Narrowed(nn.Module):
    """Runs equal blocks with another setting each, and restores it."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(16, 16, bias=False)) for _ in range(3))

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        results = []
        for width, block in zip((4, 8, 16), self.blocks, strict=True):
            layer: Any = next(block.children())
            whole = layer.weight
            layer.weight = nn.Parameter(whole[:width])
            results.append(block(x))
            layer.weight = whole
        return results


def test_equal_blocks_are_counted_each() -> None:
    x = torch.randn(3, 16)
    assert macs(nn.Sequential(*[Early(count()) for _ in range(4)]), x) == 4 * 3 * 256
    calls = count()
    assert macs(nn.Sequential(*[Early(calls) for _ in range(4)]), x) == 2 * 3 * 256
    assert macs(Narrowed(), x) == 3 * 16 * (4 + 8 + 16)
