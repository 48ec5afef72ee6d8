"""A residual network with BatchNorm, small enough for 1×32×32 digits: a stem, three basic blocks, a linear layer.

77,754 parameters, 12,206,720 multiply-accumulates per image. Source: the CIFAR networks of K. He et al., "Deep residual
learning for image recognition", CVPR 2016, with one block per stage and 1×1 projections where the shape changes.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from sweeprof.zoo import load_keras, load_torch

if TYPE_CHECKING:
    import keras
    import torch

STEM = 16
STAGES = (("stage1", 16, 1), ("stage2", 32, 2), ("stage3", 64, 2))
"""Name, output channels and stride of each stage."""
EPSILON = 1e-5
"""Of every BatchNorm: the default of torch, not that of Keras."""


def torch_model(pretrained: bool = True) -> torch.nn.Module:
    """Return the model of images ``(batch, 1, 32, 32)``, which returns logits ``(batch, 10)``."""
    from torch import nn

    class BasicBlock(nn.Module):
        """``relu(bn(conv(relu(bn(conv(x))))) + shortcut(x))``."""

        def __init__(self, inputs: int, outputs: int, stride: int) -> None:
            super().__init__()
            self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
            self.bn1 = nn.BatchNorm2d(outputs, EPSILON)
            self.relu1 = nn.ReLU()
            self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
            self.bn2 = nn.BatchNorm2d(outputs, EPSILON)
            self.relu2 = nn.ReLU()
            self.shortcut = nn.Sequential()
            if (inputs, stride) != (outputs, 1):
                self.shortcut.add_module("conv", nn.Conv2d(inputs, outputs, 1, stride, bias=False))
                self.shortcut.add_module("bn", nn.BatchNorm2d(outputs, EPSILON))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.bn2(self.conv2(self.relu1(self.bn1(self.conv1(x)))))
            result: torch.Tensor = self.relu2(y + self.shortcut(x))
            return result

    modules: OrderedDict[str, nn.Module] = OrderedDict(
        conv1=nn.Conv2d(1, STEM, 3, padding=1, bias=False), bn1=nn.BatchNorm2d(STEM, EPSILON), relu1=nn.ReLU()
    )
    channels = STEM
    for name, outputs, stride in STAGES:
        modules[name] = BasicBlock(channels, outputs, stride)
        channels = outputs
    modules.update(pool=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten(), linear=nn.Linear(channels, 10))
    model = nn.Sequential(modules)
    if pretrained:
        load_torch(model, "digits_resnet")
    return model


def keras_model(pretrained: bool = True) -> keras.Model:
    """Return the model of images ``(batch, 32, 32, 1)``, which returns logits ``(batch, 10)``."""
    import keras
    from keras import layers

    image = keras.Input((32, 32, 1), name="image")
    x = layers.Activation("relu", name="relu1")(_keras_conv_bn(image, "{}1", STEM, 3, 1))
    for name, outputs, stride in STAGES:
        x = _keras_block(x, name, outputs, stride)
    x = layers.GlobalAveragePooling2D(name="pool")(x)
    model = keras.Model(image, layers.Dense(10, name="linear")(x), name="digits_resnet")
    if pretrained:
        load_keras(model, "digits_resnet")
    return model


def _keras_block(x: Any, stage: str, outputs: int, stride: int) -> Any:
    """Apply the ``BasicBlock`` of ``torch_model`` to a Keras tensor; ``stage.conv1`` of torch is named ``stage_conv1``."""
    from keras import layers

    y = layers.Activation("relu", name=f"{stage}_relu1")(_keras_conv_bn(x, f"{stage}_{{}}1", outputs, 3, stride))
    y = _keras_conv_bn(y, f"{stage}_{{}}2", outputs, 3, 1)
    if (x.shape[-1], stride) != (outputs, 1):
        x = _keras_conv_bn(x, f"{stage}_shortcut_{{}}", outputs, 1, stride)
    return layers.Activation("relu", name=f"{stage}_relu2")(layers.Add(name=f"{stage}_add")([y, x]))


def _keras_conv_bn(x: Any, name: str, outputs: int, kernel: int, stride: int) -> Any:
    """Convolution and BatchNorm, named by ``name`` with ``conv`` and ``bn`` put in."""
    from keras import layers

    # The "same" of Keras pads a strided convolution on the right and below only; torch pads all four sides.
    if kernel > 1 and stride > 1:
        x = layers.ZeroPadding2D(kernel // 2, name=name.format("pad"))(x)
    padding = "valid" if stride > 1 else "same"
    x = layers.Conv2D(outputs, kernel, stride, padding, use_bias=False, name=name.format("conv"))(x)
    return layers.BatchNormalization(epsilon=EPSILON, name=name.format("bn"))(x)
