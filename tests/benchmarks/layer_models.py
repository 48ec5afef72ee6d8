"""Three kinds of models whose layers are timed: large layers, many of them, and layers so small that probes hurt most."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional


@dataclass(frozen=True)
class Timed:
    """A model, the shape of its input, and how many steps make a turn."""

    name: str
    make: Callable[[bool], nn.Module]
    """Told whether activations and additions may work in place."""
    shape: tuple[int, ...]
    params: int
    """As published, for those that are somebody's."""
    steps: int


class Residual(nn.Module):
    """ResNet's basic block."""

    def __init__(self, inputs: int, outputs: int, stride: int, in_place: bool) -> None:
        super().__init__()
        self.in_place = in_place
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=in_place)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = None
        if stride != 1:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        identity = x if self.downsample is None else self.downsample(x)
        x = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        if self.in_place:
            x += identity
        else:
            x = x + identity
        out: torch.Tensor = self.relu(x)
        return out


class ResNet18(nn.Module):
    """ResNet-18 for images of 224 × 224, layer for layer as torchvision has it."""

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=in_place)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        widths = (64, 64, 128, 256, 512)
        self.stages = nn.Sequential(
            *(
                nn.Sequential(
                    Residual(inputs, outputs, 1 if inputs == outputs else 2, in_place),
                    Residual(outputs, outputs, 1, in_place),
                )
                for inputs, outputs in pairwise(widths)
            )
        )
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(512, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stages(self.maxpool(self.relu(self.bn1(self.conv1(x)))))
        out: torch.Tensor = self.fc(torch.flatten(self.avgpool(x), 1))
        return out


class Attention(nn.Module):
    """Self-attention; what is between its two layers runs in no module of its own."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        query, key, value = self.qkv(x).reshape(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = functional.scaled_dot_product_attention(query, key, value)
        out: torch.Tensor = self.proj(mixed.transpose(1, 2).reshape(batch, tokens, width))
        return out


class Encoder(nn.Module):
    """A block of a vision transformer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attn = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.norm1(x))
        out: torch.Tensor = x + self.mlp(self.norm2(x))
        return out


class TinyViT(nn.Module):
    """ViT-Ti/16 for images of 224 × 224, as timm's vit_tiny_patch16_224."""

    def __init__(self, width: int = 192, heads: int = 3, depth: int = 12) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.position = nn.Parameter(torch.zeros(1, 197, width))
        self.blocks = nn.Sequential(*(Encoder(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], dim=1) + self.position
        out: torch.Tensor = self.head(self.norm(self.blocks(x))[:, 0])
        return out


def _mlp(in_place: bool) -> nn.Module:
    layers = [layer for _ in range(8) for layer in (nn.Linear(256, 256), nn.ReLU(inplace=in_place))]
    return nn.Sequential(*layers)


MODELS = (
    Timed("resnet18", ResNet18, (1, 3, 224, 224), 11_689_512, 10),
    Timed("vit_tiny", lambda in_place: TinyViT(), (1, 3, 224, 224), 5_717_416, 10),
    Timed("mlp 8 × 256", _mlp, (8, 256), 8 * 257 * 256, 150),
)
