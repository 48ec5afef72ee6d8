"""The zoo: three small digit classifiers that exist in torch and in Keras 3 with the same trained weights.

Each module (``lenet5``, ``mlp``, ``digits_resnet``) has two builders, ``torch_model`` and ``keras_model``, that import
their framework only when called. A model takes the images of :class:`sweeprof.datasets.arrays.Digits`, in torch
channels-first ``(batch, 1, 32, 32)`` and in Keras channels-last ``(batch, 32, 32, 1)``, and returns logits
``(batch, 10)``.
The torch models come in training mode, as torch builds them: call ``eval()`` before inference.

One file per model, ``weights/<name>.safetensors``, serves both frameworks. To retrain all three (a few minutes on two
CPU cores), which overwrites those files:

    python -m sweeprof.zoo.train
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file

if TYPE_CHECKING:
    import keras
    import torch


WeightArray = npt.NDArray[np.float32]

WEIGHTS = Path(__file__).with_name("weights")
"""The folder of ``<name>.safetensors``, one file per model."""
TORCH_ORDER = ("weight", "bias", "running_mean", "running_var")
"""A layer's tensors in the order in which Keras lists them too, whatever it calls them."""


def weight_file(name: str) -> Path:
    """Return the path of the weights of the model ``name``."""
    return WEIGHTS / f"{name}.safetensors"


def load_torch(model: torch.nn.Module, name: str) -> None:
    """Fill a model with the weights of the model ``name``; one on the meta device has no memory to fill, and stays as it is."""
    import torch

    if not any(parameter.is_meta for parameter in model.parameters()):
        model.load_state_dict({key: torch.from_numpy(array) for key, array in load_file(weight_file(name)).items()})


def load_keras(model: keras.Model, name: str) -> None:
    """Fill a model with the weights of the model ``name``."""
    fill_keras(model, load_file(weight_file(name)))


def fill_keras(model: keras.Model, tensors: Mapping[str, WeightArray]) -> None:
    """Fill a model with tensors in torch's names and layout: ``stage1.conv1.weight`` is of the layer ``stage1_conv1``.

    Convolution ``(out, in, kh, kw)`` → ``(kh, kw, in, out)``; linear ``(out, in)`` → ``(in, out)``; BatchNorm as it is. The rows
    of a linear layer that sees a flattened image move: torch flattens it as C, H, W and Keras as H, W, C.
    """
    import keras

    by_layer: dict[str, dict[str, WeightArray]] = {}
    for key, array in tensors.items():
        module, kind = key.rsplit(".", 1)
        by_layer.setdefault(module.replace(".", "_"), {})[kind] = array

    flattened: tuple[int, ...] = ()
    for layer in model.layers:
        if isinstance(layer, keras.layers.Flatten):
            flattened = tuple(layer.input.shape[1:])
        elif layer.weights:
            arrays = by_layer[layer.name]
            weight = arrays["weight"]
            if weight.ndim == 2 and len(flattened) == 3:
                height, width, channels = flattened
                weight = weight.reshape(-1, channels, height, width).transpose(0, 2, 3, 1).reshape(len(weight), -1)
            arrays["weight"] = weight.transpose(2, 3, 1, 0) if weight.ndim == 4 else weight.T
            layer.set_weights([arrays[kind] for kind in TORCH_ORDER if kind in arrays])
            flattened = ()
