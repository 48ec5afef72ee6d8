"""Models whose steps take enough memory to be measured from outside, each with its input."""

from __future__ import annotations

import sys
import types
from importlib import import_module
from typing import Any

import torch
from torch import nn

Made = tuple[nn.Module, torch.Tensor]


def convolutions() -> Made:
    """Convolutions with batch norm and a residual."""
    return Convolutions(), torch.randn(8, 3, 64, 64)


def attention() -> Made:
    """A transformer encoder."""
    layer = nn.TransformerEncoderLayer(128, 4, 256, batch_first=True, dropout=0.0)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), torch.randn(16, 128, 128)


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 3, padding=1)
        self.norm = nn.BatchNorm2d(32)
        self.body = nn.Sequential(nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1))
        self.head = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.stem(x)))
        x = x + self.body(x)
        answer: torch.Tensor = self.head(x.mean((2, 3)))
        return answer


class LastOfLSTM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(128, 256, 2, batch_first=True)
        self.head = nn.Linear(256, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = self.head(self.lstm(x)[0][:, -1])
        return answer


def lstm() -> Made:
    return LastOfLSTM(), torch.randn(32, 128, 128)


def resnet18() -> Made:
    return _torchvision("resnet18"), torch.randn(8, 3, 224, 224)


def mobilenet_v3() -> Made:
    return _torchvision("mobilenet_v3_large"), torch.randn(8, 3, 224, 224)


def densenet121() -> Made:
    return _torchvision("densenet121"), torch.randn(4, 3, 224, 224)


def vit_tiny() -> Made:
    return _timm("vit_tiny_patch16_224"), torch.randn(8, 3, 224, 224)


def swin_tiny() -> Made:
    return _timm("swin_tiny_patch4_window7_224"), torch.randn(2, 3, 224, 224)


def _torchvision(name: str) -> nn.Module:
    _without_operators()
    model: nn.Module = getattr(import_module("torchvision.models"), name)(weights=None)
    return model


def _timm(name: str) -> nn.Module:
    _without_operators()
    timm: Any = import_module("timm")
    model: nn.Module = timm.create_model(name)
    return model


def _without_operators() -> None:
    """The wheel's compiled operators belong to another build of torch; nothing here needs them."""
    sys.modules.setdefault("torchvision._meta_registrations", types.ModuleType("torchvision._meta_registrations"))
