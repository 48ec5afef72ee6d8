"""A multilayer perceptron of three linear layers, 1024-128-64-10: 140,106 parameters, 139,904 multiply-accumulates."""

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
            flatten=nn.Flatten(),
            linear1=nn.Linear(1024, 128),
            relu1=nn.ReLU(),
            linear2=nn.Linear(128, 64),
            relu2=nn.ReLU(),
            linear3=nn.Linear(64, 10),
        )
    )
    if pretrained:
        load_torch(model, "mlp")
    return model


def keras_model(pretrained: bool = True) -> keras.Model:
    """Return the model of images ``(batch, 32, 32, 1)``, which returns logits ``(batch, 10)``."""
    import keras
    from keras import layers

    image = x = keras.Input((32, 32, 1), name="image")
    for layer in (
        layers.Flatten(name="flatten"),
        layers.Dense(128, name="linear1"),
        layers.Activation("relu", name="relu1"),
        layers.Dense(64, name="linear2"),
        layers.Activation("relu", name="relu2"),
        layers.Dense(10, name="linear3"),
    ):
        x = layer(x)
    model = keras.Model(image, x, name="mlp")
    if pretrained:
        load_keras(model, "mlp")
    return model
