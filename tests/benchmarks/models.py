"""Models that are counted and timed: timm's and torchvision's, the zoo's, and some whose layers are large, many or small."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

from published.models import timm_models, torchvision_models
from torch import nn

from support import memory_models
from support.peer_models import Block, ResNet18C100
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
def counted_models() -> tuple[Made, ...]:
    """Forty."""
    wanted = {("timm", name) for name in _TIMM} | {("torchvision", name) for name in _TORCHVISION}
    return tuple(
        Made(f"{m.source} {m.name}", m.make, (1, m.channels, m.size, m.size))
        for m in (*timm_models(), *torchvision_models())
        if (m.source, m.name) in wanted
    )


# Models whose layers are timed: large layers, many of them, and layers so small that probes hurt most


def resnet18() -> nn.Module:
    """ResNet-18 for images of 224 × 224, layer for layer as torchvision has it, but for additions in place, which hooks forbid."""
    blocks = []
    for inputs, outputs in pairwise((64, 64, 128, 256, 512)):
        blocks.append(Block(inputs, outputs, 1 if inputs == outputs else 2, module_relu=True))
        blocks.append(Block(outputs, outputs, 1, module_relu=True))
    return nn.Sequential(
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
        *blocks,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(512, 1000),
    )


def vit_tiny() -> nn.Module:
    """ViT-Ti/16 for images of 224 × 224."""
    return memory_models.vit_tiny()[0]


def narrow() -> nn.Module:
    layers: list[nn.Module] = []
    for _ in range(8):
        layers += [nn.Linear(256, 256), nn.ReLU()]
    return nn.Sequential(*layers)


LAYERED = (
    (Made("resnet18", resnet18, (1, 3, 224, 224)), 10),
    (Made("vit_tiny", vit_tiny, (1, 3, 224, 224)), 10),
    (Made("mlp 8 × 256", narrow, (8, 256)), 150),
)
"""Each with the steps that make a turn."""


DIGITS = (64, 1, 32, 32)
TIMED = (
    Made("lenet5", lenet5, DIGITS),
    Made("mlp", mlp, DIGITS),
    Made("digits_resnet", digits_resnet, DIGITS),
    Made("resnet18", ResNet18C100, (1, 3, 32, 32)),
    Made("vit", vit_tiny, (1, 3, 224, 224)),
)
