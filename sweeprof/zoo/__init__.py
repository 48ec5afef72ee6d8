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


# Fills a torch or a Keras model from one weight file, which keeps the names and the layout of torch.


Array = npt.NDArray[np.float32]

WEIGHTS = Path(__file__).with_name("weights")
"""The folder of ``<name>.safetensors``, one file per model."""
TORCH_ORDER = ("weight", "bias", "running_mean", "running_var")
"""A layer's tensors in the order in which Keras lists them too, whatever it calls them."""


def weight_file(name: str) -> Path:
    """Return the path of the weights of the model ``name``."""
    return WEIGHTS / f"{name}.safetensors"


def load_torch(model: torch.nn.Module, name: str) -> torch.nn.Module:
    """``model``, filled in place; a model on the meta device has no memory to fill and is returned as it is."""
    import torch

    if not any(parameter.is_meta for parameter in model.parameters()):
        model.load_state_dict({key: torch.from_numpy(array) for key, array in load_file(weight_file(name)).items()})
    return model


def load_keras(model: keras.Model, name: str) -> keras.Model:
    """``model``, filled in place."""
    return fill_keras(model, load_file(weight_file(name)))


def fill_keras(model: keras.Model, tensors: Mapping[str, Array]) -> keras.Model:
    """``model``, filled in place from tensors in torch naming: ``stage1.conv1.weight`` is of layer ``stage1_conv1``."""
    import keras

    by_layer: dict[str, dict[str, Array]] = {}
    for key, array in tensors.items():
        module, kind = key.rsplit(".", 1)
        by_layer.setdefault(module.replace(".", "_"), {})[kind] = array

    flattened: tuple[int, ...] | None = None
    for layer in model.layers:
        if isinstance(layer, keras.layers.Flatten):
            flattened = tuple(layer.input.shape[1:])
        elif layer.weights:
            arrays = by_layer[layer.name]
            arrays["weight"] = _keras_kernel(arrays["weight"], flattened)
            layer.set_weights([arrays[kind] for kind in TORCH_ORDER if kind in arrays])
            flattened = None
    return model


def _keras_kernel(weight: Array, flattened: tuple[int, ...] | None) -> Array:
    """A torch weight in the layout of Keras.

    Convolution ``(out, in, kh, kw)`` → ``(kh, kw, in, out)``; linear ``(out, in)`` → ``(in, out)``; BatchNorm as it is.
    ``flattened`` is the shape ``(H, W, C)`` of the image that a linear layer sees flattened: torch flattens it as
    C, H, W and Keras as H, W, C, so the rows move.
    """
    if weight.ndim == 4:
        return weight.transpose(2, 3, 1, 0)
    if weight.ndim == 2 and flattened is not None and len(flattened) == 3:
        height, width, channels = flattened
        return weight.reshape(-1, channels, height, width).transpose(2, 3, 1, 0).reshape(-1, len(weight))
    return weight.T
