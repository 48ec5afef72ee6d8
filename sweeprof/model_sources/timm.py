"""Models of timm by their names: ``model=timm model.name=resnet18,vit_small_patch16_224``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

from sweeprof.datasets import ImagePreprocessing, ModelInputs, source
from sweeprof.datasets.images import INTERPOLATIONS
from sweeprof.model_sources import check_arguments, check_sizes, image_inputs, known_name, package, size

if TYPE_CHECKING:
    import torch


def import_timm() -> ModuleType:
    """Return timm, which imports torchvision."""
    if find_spec("timm") is not None:
        source.import_torchvision("model", "timm")
    return package("timm", "timm")


def names() -> list[str]:
    """Return the names of all models."""
    listed: list[str] = import_timm().list_models()
    return listed


def build(
    name: str,
    sizes: Mapping[str, Any],
    arguments: Mapping[str, Any] | None = None,
    pretrained: bool = False,
) -> torch.nn.Module:
    """Return the model.

    Args:
        name: as ``timm.list_models()`` has it.
        sizes: ``image_size`` is passed to models that are built for one size.
        arguments: of the model's constructor, such as ``num_classes`` or ``drop_path_rate``.
        pretrained: True: with the weights that timm downloads; False: with random ones.
    """
    timm = import_timm()
    architecture = name.partition(".")[0]
    known_name("model.name", architecture, timm.list_models(), "model of timm")
    given = dict(arguments or {})
    config = timm.get_pretrained_cfg(name)
    if "image_size" in sizes and config is not None and config.fixed_input_size:
        given.setdefault("img_size", sizes["image_size"])
    model: torch.nn.Module = timm.create_model(name, pretrained=pretrained, **given)
    return model


def inputs(name: str, sizes: Mapping[str, Any], arguments: Mapping[str, Any] | None = None) -> ModelInputs:
    """Return the description of the model's inputs: images of ``inputs.image_size`` pixels on each side."""
    timm = import_timm()
    architecture = name.partition(".")[0]
    known_name("model.name", architecture, timm.list_models(), "model of timm")
    check_sizes(sizes, ["image_size"])
    given = arguments or {}
    config = timm.get_pretrained_cfg(name)
    check_arguments(given, partial(build, name, sizes, given), timm.model_entrypoint(architecture).__module__)
    channels, side, classes = 3, 224, 1000
    if config is not None:
        (channels, side, _), classes = config.input_size, config.num_classes
    image_size = size(sizes, "image_size", given.get("img_size", side))
    shape = (int(given.get("in_chans", channels)), int(image_size), int(image_size))
    images = no_images = None
    if config is not None:
        images = _preprocessing(config, shape)
        if images is None:
            no_images = "timm prepares pictures for this model in a way that is not described here"
    return image_inputs(shape, int(given.get("num_classes", classes)), {"image_size": image_size}, images, no_images)


def _preprocessing(config: Any, shape: tuple[int, int, int]) -> ImagePreprocessing | None:
    """Return how ``timm.data.create_transform`` prepares pictures; None if it adds borders to them."""
    channels, height, width = shape
    if config.crop_mode == "border" or config.interpolation not in INTERPOLATIONS:
        return None
    resize: int | None = math.floor(min(height, width) / config.crop_pct)
    if config.crop_mode == "squash":
        if resize != height:
            return None
        resize = None
    return ImagePreprocessing(height, width, channels, resize, config.interpolation, mean=config.mean, std=config.std)
