"""Models to count: timm's and torchvision's where they can be imported, otherwise small ones of the same kinds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from published.models import timm_models, torchvision_models
from torch import nn

from support.peer_models import LeNet5, ResNet18C100, SingleInputNet
from sweeprof.zoo.digits_resnet import torch_model as digits_resnet
from sweeprof.zoo.lenet5 import torch_model as lenet5
from sweeprof.zoo.mlp import torch_model as mlp

_TORCHVISION = """
alexnet vgg16 resnet50 resnext50_32x4d wide_resnet50_2 densenet121 googlenet inception_v3 mobilenet_v2 mobilenet_v3_large
mnasnet1_0 shufflenet_v2_x1_0 squeezenet1_0 efficientnet_b0 efficientnet_v2_s convnext_tiny vit_b_16 swin_t swin_v2_t maxvit_t
""".split()
"""One of every family for classification that can be built without weights, in the size that papers compare."""
_TIMM = """
seresnet50 res2net50_26w_4s dla60 hrnet_w32 repvgg_b0 nf_resnet50 deit_small_patch16_224 beit_base_patch16_224 mixer_b16_224
resmlp_24_224 cait_s24_224 coatnet_0_rw_224 levit_256 poolformer_s24 pvt_v2_b2 twins_svt_small convmixer_768_32 mobilevit_s
edgenext_small ghostnet_100
""".split()
"""Families that torchvision has not."""


@dataclass(frozen=True)
class Made:
    """A model to be built, and the shape of its input."""

    name: str
    make: Callable[[], nn.Module]
    shape: tuple[int, ...]


@cache
def benchmark_models() -> tuple[Made, ...]:
    """At least thirty."""
    try:
        wanted = {("timm", name) for name in _TIMM} | {("torchvision", name) for name in _TORCHVISION}
        return tuple(
            Made(f"{m.source} {m.name}", m.make, (1, m.channels, m.size, m.size))
            for m in (*timm_models(), *torchvision_models())
            if (m.source, m.name) in wanted
        )
    except ImportError:
        return _own()


def timed_models() -> tuple[Made, ...]:
    """Five to be timed: the zoo's, a ResNet and a ViT."""
    digits = (64, 1, 32, 32)
    return (
        Made("lenet5", lenet5, digits),
        Made("mlp", mlp, digits),
        Made("digits_resnet", digits_resnet, digits),
        Made("resnet18", ResNet18C100, (1, 3, 32, 32)),
        Made("vit", ViT, (1, 3, 64, 64)),
    )


class ViT(nn.Module):
    """Patches of 8 × 8, four encoder layers of width 128."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 128, 8, 8)
        self.encoder = _encoder(4, 128)
        self.head = nn.Linear(128, 100)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        logits: torch.Tensor = self.head(self.encoder(tokens).mean(1))
        return logits


def _own() -> tuple[Made, ...]:
    made = [
        Made("lenet5", LeNet5, (1, 1, 32, 32)),
        Made("single input", SingleInputNet, (1, 1, 28, 28)),
        Made("resnet18, functional", ResNet18C100, (1, 3, 32, 32)),
        Made("resnet18, modules", lambda: ResNet18C100(module_relu=True), (1, 3, 32, 32)),
    ]
    for depth in (2, 4, 8, 16, 32):
        for width in (16, 64):
            made.append(Made(f"cnn {depth} × {width}", _bind(_cnn, depth, width), (1, 3, 64, 64)))
            made.append(Made(f"mlp {depth} × {width}", _bind(_mlp, depth, width), (1, width)))
            made.append(Made(f"encoder {depth} × {width}", _bind(_encoder, depth, width), (1, 64, width)))
    return tuple(made)


def _bind(make: Callable[[int, int], nn.Module], depth: int, width: int) -> Callable[[], nn.Module]:
    return lambda: make(depth, width)


def _cnn(depth: int, width: int) -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, padding=1)]
    for _ in range(depth):
        layers += [nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))


def _mlp(depth: int, width: int) -> nn.Module:
    return nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(depth)))


def _encoder(depth: int, width: int) -> nn.Module:
    layer = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True)
    return nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
