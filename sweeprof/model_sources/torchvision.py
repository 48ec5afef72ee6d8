"""Models of torchvision by their names: ``model=torchvision model.name=resnet18``."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

from sweeprof.datasets import ImagePreprocessing, ModelInputs, source
from sweeprof.errors import Problem, UserError
from sweeprof.model_sources import check_arguments, check_sizes, image_inputs, known_name, package, size

if TYPE_CHECKING:
    import torch

CLASSES = 1000
VIDEO_FRAMES = 16
"""Frames of a clip, as the pretrained models of torchvision take them."""


def import_torchvision() -> ModuleType:
    """Return torchvision; where its compiled operators do not fit this torch, without them: models for images do not need them."""
    return source.import_torchvision("model")


def names() -> list[str]:
    """Return the names of all models."""
    import_torchvision()
    listed: list[str] = package("torchvision.models", "torchvision").list_models()
    return listed


def build(name: str, arguments: Mapping[str, Any] | None = None, weights: str | None = None) -> torch.nn.Module:
    """Return the model.

    Args:
        name: as ``torchvision.models.list_models()`` has it.
        arguments: of the model's constructor, such as ``num_classes``.
        weights: a name of pretrained weights, such as ``DEFAULT``, which are downloaded; None: random ones.
    """
    known_name("model.name", name, names(), "model of torchvision")
    models = package("torchvision.models", "torchvision")
    model: torch.nn.Module = models.get_model(name, weights=weights, **(arguments or {}))
    return model


def inputs(
    name: str, sizes: Mapping[str, Any], arguments: Mapping[str, Any] | None = None, weights: str | None = None
) -> ModelInputs:
    """Return the description of the model's inputs: images of ``inputs.image_size``, or clips of ``inputs.frames`` images."""
    known_name("model.name", name, names(), "model of torchvision")
    models = package("torchvision.models", "torchvision")
    kind = models.get_model_builder(name).__module__
    if ".detection" in kind or ".optical_flow" in kind:
        reason = "takes lists of images or pairs of them: write a dataset of your own for it, see docs/data.md."
        raise UserError([Problem("dataset", "auto", f"has no description of {name}'s inputs, which {reason}")])
    given = arguments or {}
    check_arguments(given, partial(build, name, arguments), kind)
    offered = models.get_model_weights(name)
    if weights is not None:
        known = ["DEFAULT", *(one.name for one in offered)]
        known_name("model.weights", weights.removeprefix(f"{offered.__name__}."), known, f"name of weights of {name}")
    transforms = offered.DEFAULT.transforms()
    side = getattr(transforms, "crop_size", None) or getattr(transforms, "resize_size", None)
    if isinstance(side, list | tuple):
        side = side[0]
    is_video = ".video" in kind
    check_sizes(sizes, ["image_size", "frames"] if is_video else ["image_size"])
    image_size = size(sizes, "image_size", side or 224)
    used = {"image_size": image_size}
    shape: tuple[int, ...] = (3, image_size, image_size)
    if is_video:
        used["frames"] = size(sizes, "frames", VIDEO_FRAMES)
        shape = (3, used["frames"], image_size, image_size)
    classes = None if ".segmentation" in kind else int(given.get("num_classes", CLASSES))
    images = None
    if type(transforms).__name__ == "ImageClassification" and side is not None:
        (resize,) = transforms.resize_size
        images = ImagePreprocessing(
            image_size,
            image_size,
            resize=round(resize * image_size / side),
            interpolation=transforms.interpolation.value,
            mean=tuple(transforms.mean),
            std=tuple(transforms.std),
        )
    return image_inputs(shape, classes, used, images)
