"""LeNet-5, the classic small convolutional network: 61,706 parameters, 416,520 multiply-accumulates per image.

Source: Y. LeCun et al., "Gradient-based learning applied to document recognition", Proc. IEEE 86(11), 1998; here as
it is usually built today, with plain average pooling, every map connected to every map, and a linear last layer.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from sweeprof.zoo import load_keras, load_torch

if TYPE_CHECKING:
    import keras
    import torch


def torch_model(pretrained: bool = True) -> torch.nn.Module:
    """Return the model of images ``(batch, 1, 32, 32)``, which returns logits ``(batch, 10)``."""
    from torch import nn

    model = nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(1, 6, 5),
            tanh1=nn.Tanh(),
            pool1=nn.AvgPool2d(2),
            conv2=nn.Conv2d(6, 16, 5),
            tanh2=nn.Tanh(),
            pool2=nn.AvgPool2d(2),
            conv3=nn.Conv2d(16, 120, 5),
            tanh3=nn.Tanh(),
            flatten=nn.Flatten(),
            linear1=nn.Linear(120, 84),
            tanh4=nn.Tanh(),
            linear2=nn.Linear(84, 10),
        )
    )
    if pretrained:
        load_torch(model, "lenet5")
    return model


def keras_model(pretrained: bool = True) -> keras.Model:
    """Return the model of images ``(batch, 32, 32, 1)``, which returns logits ``(batch, 10)``."""
    import keras
    from keras import layers

    image = x = keras.Input((32, 32, 1), name="image")
    for layer in (
        layers.Conv2D(6, 5, name="conv1"),
        layers.Activation("tanh", name="tanh1"),
        layers.AveragePooling2D(2, name="pool1"),
        layers.Conv2D(16, 5, name="conv2"),
        layers.Activation("tanh", name="tanh2"),
        layers.AveragePooling2D(2, name="pool2"),
        layers.Conv2D(120, 5, name="conv3"),
        layers.Activation("tanh", name="tanh3"),
        layers.Flatten(name="flatten"),
        layers.Dense(84, name="linear1"),
        layers.Activation("tanh", name="tanh4"),
        layers.Dense(10, name="linear2"),
    ):
        x = layer(x)
    model = keras.Model(image, x, name="lenet5")
    if pretrained:
        load_keras(model, "lenet5")
    return model
