"""Small torch modules with everything that a layer table can meet, and their tables."""

from __future__ import annotations

from functools import cache

import torch
from torch import nn

from sweeprof.backends.torch.counting import count_layers
from sweeprof.measuring.inputs import Inputs, TensorSpec
from sweeprof.results.layer_times import ROOT
from sweeprof.results.layers import LayerRow, LayerTable

HOSTILE = "</script><script>alert(1)</script>"


class LeNet5(nn.Module):
    """As the profilers' documents have it: 61,706 parameters, two parts."""

    def __init__(self) -> None:
        super().__init__()
        self.feature_extractor = nn.Sequential(
            *(nn.Conv2d(1, 6, 5), nn.Tanh(), nn.AvgPool2d(2)),
            *(nn.Conv2d(6, 16, 5), nn.Tanh(), nn.AvgPool2d(2)),
            *(nn.Conv2d(16, 120, 5), nn.Tanh()),
        )
        self.classifier = nn.Sequential(nn.Linear(120, 84), nn.Tanh(), nn.Linear(84, 10))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.classifier(torch.flatten(self.feature_extractor(images), 1))
        return logits.softmax(1)


class Block(nn.Module):
    """A list that is never called itself, a frozen part, and a layer that nothing calls."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.unused = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for step in self.steps:
            x = step(x)
        out: torch.Tensor = self.frozen(x)
        return out


class Reused(nn.Module):
    """One block that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Block()
        self.head = nn.Linear(4, 2, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.block(self.block(x)))
        return out


@cache
def lenet5(batch: int = 1) -> LayerTable:
    """The table of :class:`LeNet5`."""
    return count_layers(LeNet5().eval(), Inputs((TensorSpec((batch, 1, 32, 32)),)))


@cache
def reused() -> LayerTable:
    """The table of :class:`Reused`."""
    return count_layers(Reused().eval(), Inputs((TensorSpec((2, 4)),)))


def untold() -> LayerTable:
    """What a backend leaves that neither tells who called whom nor counts operations."""
    return LayerTable(
        (
            LayerRow(ROOT, "Net", 0, 0, 0, 0, 0, 0, 0),
            LayerRow("a", "Dense", 1, 0, 20, 20, 80, 0, 16, ((1, 4),), ((1, 4),)),
            LayerRow("a.inner", "Dense", 2, 0, 10, 5, 40, 0, 8),
        )
    )


def hostile() -> LayerTable:
    """Names that mean something to HTML, Markdown, LaTeX or a terminal."""
    names = [HOSTILE, "a|b_c*d", "100%&$#_{}~^\\", "x\ny\x1b[31m", '"quoted"', "größe ☃", "-- [x]"]
    rows = [LayerRow(ROOT, "<b>Net</b>", 0, 0, 0, 0, 0, 0, 0)]
    rows += [LayerRow(name, f"T{name}", 1, 0, 1, 1, 4, 0, 3, parent=0) for name in names]
    return LayerTable(tuple(rows), {"<i>op</i>": 1})


def lenet5_named(name: str) -> nn.Module:
    """LeNet-5; the name changes nothing."""
    return LeNet5()


def mlp_named(name: str) -> nn.Module:
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
