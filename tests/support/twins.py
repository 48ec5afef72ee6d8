"""Models that are one another's equals under two names, and some that do a known share more of the same work."""

from __future__ import annotations

import torch
from torch import nn

from support.nets import LeNet5


def lenet5(name: str) -> nn.Module:
    """LeNet-5; the name changes nothing."""
    return LeNet5()


def mlp(name: str) -> nn.Module:
    """A multilayer perceptron; the name changes nothing."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(1024, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10)
    )


class Stack(nn.Module):
    """Equal blocks, one after the other: of 44 of them a forward does 10 % more work than of 40."""

    def __init__(self, blocks: int, width: int = 256) -> None:
        super().__init__()
        self.width = width
        self.block = nn.Sequential(nn.Linear(width, width), nn.Tanh())
        self.blocks = blocks

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        out = images.flatten(1)[:, : self.width]
        for _ in range(self.blocks):
            out = self.block(out)
        return out
