"""Models of ``keras.applications`` by their names: ``model=keras_applications model.name=MobileNetV2``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from sweeprof.datasets import ImagePreprocessing, ModelInputs
from sweeprof.errors import Problem, UserError
from sweeprof.model_sources import check_names_of_arguments, check_sizes, image_inputs, known_name, package, size
from sweeprof.paths import expanded, user_path

if TYPE_CHECKING:
    import keras

CLASSES = 1000
SIZES = {
    **dict.fromkeys(("InceptionV3", "InceptionResNetV2", "Xception"), 299),
    "NASNetLarge": 331,
    **{f"EfficientNetB{index}": side for index, side in enumerate((224, 240, 260, 300, 380, 456, 528, 600))},
    **{f"EfficientNetV2B{index}": side for index, side in enumerate((224, 240, 260, 300))},
    "EfficientNetV2S": 384,
    "EfficientNetV2M": 480,
    "EfficientNetV2L": 480,
}
"""Sides of the images for which models are made; 224 for all others. Keras only tells them by building the model."""


def names() -> list[str]:
    """Return the names of all models."""
    applications = package("keras.applications", "tensorflow")
    return [name for name, value in vars(applications).items() if name[0].isupper() and callable(value)]


def _builder(name: str) -> Callable[..., Any]:
    known_name("model.name", name, names(), "model of keras.applications")
    builder: Callable[..., Any] = getattr(package("keras.applications", "tensorflow"), name)
    return builder


def build(
    name: str,
    sizes: Mapping[str, Any],
    arguments: Mapping[str, Any] | None = None,
    weights: str | None = None,
) -> keras.Model:
    """Return the model.

    Args:
        name: of the function in ``keras.applications``.
        sizes: ``image_size`` of the images, where it is not the model's own.
        arguments: of that function, such as ``classes`` or ``alpha``.
        weights: a file, or ``imagenet``, which is downloaded; None: random ones.
    """
    given = dict(arguments or {})
    if "image_size" in sizes:
        given.setdefault("input_shape", (sizes["image_size"], sizes["image_size"], 3))
    model: keras.Model = _builder(name)(weights=None if weights is None else expanded(weights), **given)
    return model


def inputs(
    name: str, sizes: Mapping[str, Any], arguments: Mapping[str, Any] | None = None, weights: str | None = None
) -> ModelInputs:
    """Return the description of the model's inputs: images of ``inputs.image_size`` pixels on each side, channels first.

    A backend moves the channels to the end, where the model expects them.
    """
    builder = _builder(name)
    check_sizes(sizes, ["image_size"])
    given = dict(arguments or {})
    check_names_of_arguments("model.arguments", given, builder, name)
    if weights not in (None, "imagenet") and not user_path(str(weights)).is_file():
        raise UserError([Problem("model.weights", weights, "is neither a file nor imagenet.")])
    shape = given.get("input_shape") or (SIZES.get(name, 224), None, 3)
    side, channels = shape[0], shape[-1]
    image_size, channels = size(sizes, "image_size", int(side)), int(channels)
    classes = int(given.get("classes", CLASSES)) if given.get("include_top", True) else None
    images = no_images = None
    if channels == 3:
        images = _preprocessing(name, image_size)
    if images is None:
        no_images = "the model's preprocess_input is for three channels, and one value at a time"
    return image_inputs((channels, image_size, image_size), classes, {"image_size": image_size}, images, no_images)


def _preprocessing(name: str, image_size: int) -> ImagePreprocessing | None:
    """Return how the ``preprocess_input`` of a model changes values; pictures are resized whatever their shape is.

    None where it is not a factor and a difference for each channel.
    """
    preprocess = import_module(_builder(name).__module__).preprocess_input
    picture = np.zeros((1, 5, 1, 3), np.float32)  # black, each of the channels alone, white
    for channel in range(3):
        picture[0, 1 + channel, 0, channel] = 255
    picture[0, 4] = 255
    black, *alone, white = np.asarray(preprocess(picture.copy()), np.float64)[0, :, 0]
    changed = [int(np.argmax(np.abs(values - black))) for values in alone]
    if changed not in ([0, 1, 2], [2, 1, 0]):
        return None
    scale = (white - black) / 255
    return ImagePreprocessing(
        image_size,
        image_size,
        scale=1.0,
        mean=tuple((-black / scale).tolist()),
        std=tuple((1 / scale).tolist()),
        order="rgb" if changed == [0, 1, 2] else "bgr",
    )
