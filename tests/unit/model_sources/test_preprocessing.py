"""Pictures become the same arrays as with the transforms of the package that a model is from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from sweeprof.datasets import ArraySpec, ImagePreprocessing, ModelInputs
from sweeprof.datasets.images import Images, array_of, preprocessing
from sweeprof.errors import DatasetError, UserError

SIZES = [(300, 260), (257, 391), (224, 224), (500, 231)]


def picture(width: int, height: int) -> Image.Image:
    random = np.random.default_rng(width)
    coarse = random.integers(0, 256, (height // 8 + 1, width // 8 + 1, 3), np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def round_trip(described: ModelInputs) -> ModelInputs:
    """As it comes out of a plan."""
    return ModelInputs.from_dict(json.loads(json.dumps(described.to_dict())))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet18", "efficientnet_b1", "vit_b_16", "swin_t"])
def test_as_torchvision_does(name: str) -> None:
    from sweeprof.model_sources import package, torchvision

    images = round_trip(torchvision.inputs(name, {})).images
    assert images is not None
    models = package("torchvision.models", "torchvision")
    transform = models.get_model_weights(name).DEFAULT.transforms()
    for size in SIZES:
        np.testing.assert_array_equal(array_of(picture(*size), images, ""), transform(picture(*size)).numpy())


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["resnet18", "vit_small_patch16_224", "efficientnet_b0", "convnext_tiny", "resnetv2_50x1_bit"]
)
def test_as_timm_does(name: str) -> None:
    from sweeprof.model_sources import timm

    images = round_trip(timm.inputs(name, {})).images
    assert images is not None
    package = timm.import_timm()
    config = package.data.resolve_data_config(package.get_pretrained_cfg(name).to_dict())
    transform = package.data.create_transform(**config)
    for size in SIZES:
        np.testing.assert_allclose(array_of(picture(*size), images, ""), transform(picture(*size)).numpy(), atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["MobileNetV2", "ResNet50", "DenseNet121", "EfficientNetB0", "VGG16"])
def test_as_keras_applications_does(name: str) -> None:
    from importlib import import_module

    import keras

    from sweeprof.model_sources import keras_applications

    images = round_trip(keras_applications.inputs(name, {"image_size": 96})).images
    assert images is not None
    module: Any = import_module(getattr(keras.applications, name).__module__)
    resized = np.asarray(picture(300, 260).resize((96, 96), Image.Resampling.BILINEAR), np.float32)
    wanted = np.asarray(module.preprocess_input(resized[None].copy()))[0].transpose(2, 0, 1)
    np.testing.assert_allclose(array_of(picture(300, 260), images, ""), wanted, atol=2e-5, rtol=1e-5)


@pytest.mark.slow
def test_as_a_saved_processor_of_transformers_does(tmp_path: Path) -> None:
    from sweeprof.model_sources import transformers

    package = transformers.import_transformers()
    config = package.ViTConfig(num_hidden_layers=1, hidden_size=16, num_attention_heads=2, image_size=64)
    package.ViTForImageClassification(config).save_pretrained(tmp_path)
    settings = {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": True,
        "size": {"height": 64, "width": 64},
        "resample": 2,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": [0.5, 0.4, 0.3],
        "image_std": [0.2, 0.3, 0.4],
    }
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
    described = round_trip(transformers.inputs(None, str(tmp_path), None, {}))
    assert described.images == ImagePreprocessing(
        64, 64, interpolation="bilinear", mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4)
    )
    module = __import__("transformers.models.vit.image_processing_pil_vit", fromlist=["ViTImageProcessorPil"])
    processor = module.ViTImageProcessorPil(**{k: v for k, v in settings.items() if k != "image_processor_type"})
    wanted = np.asarray(processor(picture(300, 260), return_tensors="np")["pixel_values"][0])
    np.testing.assert_allclose(array_of(picture(300, 260), described.images, ""), wanted, atol=1e-5)


# Options.


def described(**changes: Any) -> ModelInputs:
    return ModelInputs({"x": ArraySpec((3, 32, 40))}, **changes)


SPECIFIED = ImagePreprocessing(224, 224, 3, 256, "bicubic", mean=(0.1, 0.2, 0.3), std=(0.5,))


def test_options_go_before_what_the_source_specifies() -> None:
    assert preprocessing({}, described(images=SPECIFIED)) == SPECIFIED
    changed = preprocessing({"image_size": 112, "mean": 0.5, "interpolation": "nearest"}, described(images=SPECIFIED))
    assert changed == ImagePreprocessing(112, 112, 3, 128, "nearest", mean=(0.5,), std=(0.5,))
    assert preprocessing({"crop": 0.875}, described(images=SPECIFIED)).resize == 256
    assert preprocessing({}, described()) == ImagePreprocessing(32, 40)
    assert preprocessing({"channels": 1}, None) == ImagePreprocessing(0, 0, 1)


def test_what_does_not_fit_is_an_error() -> None:
    with pytest.raises(UserError, match=r"dataset.mean: \[0.1, 0.2, 0.3\] has 3 numbers, and the images 1 channels"):
        preprocessing({"channels": 1}, described(images=SPECIFIED))
    with pytest.raises(
        UserError, match=r"dataset\.mean: None is missing: it adds borders; set dataset.mean and dataset.std"
    ):
        preprocessing({}, described(no_images="it adds borders"))
    with pytest.raises(UserError, match=r"dataset\.crop: 0.5 needs dataset.image_size"):
        preprocessing({"crop": 0.5}, None)
    with pytest.raises(
        DatasetError, match=r"a.png is resized to \(32, 32\), which is smaller than the crop \(64, 64\)"
    ):
        array_of(picture(64, 64), ImagePreprocessing(64, 64, 3, 32), "a.png")


def test_grey_and_colours_and_their_order() -> None:
    colours = array_of(picture(8, 8), ImagePreprocessing(0, 0), "")
    np.testing.assert_array_equal(array_of(picture(8, 8), ImagePreprocessing(0, 0, order="bgr"), ""), colours[::-1])
    grey = array_of(picture(8, 8), ImagePreprocessing(0, 0, 1), "")
    wanted = np.asarray(picture(8, 8).convert("L"), np.float32) / np.float32(255)
    np.testing.assert_array_equal(grey, wanted[None])


def test_pictures_of_16_bits_have_values_from_0_to_1(tmp_path: Path) -> None:
    greys = np.random.default_rng(0).integers(0, 65536, (6, 8), np.uint16)
    (tmp_path / "a").mkdir()
    for name in ("1.png", "2.tif", "3.ppm"):
        Image.fromarray(greys).save(tmp_path / "a" / name)
    for channels in (1, 3):
        images = Images(path=str(tmp_path), channels=channels)
        for record in images.records("test"):
            values = images.decoded(record).inputs
            assert values.shape == (channels, 6, 8)
            np.testing.assert_allclose(values, np.broadcast_to(greys / 65535, values.shape), atol=1e-6)
    larger = array_of(Image.fromarray(greys), ImagePreprocessing(30, 30, interpolation="bicubic"), "")
    assert (larger.min(), larger.max()) == (0, 1)
    for dtype, kind in ((np.int32, "32-bit integers"), (np.float32, "floating-point numbers")):
        with pytest.raises(DatasetError, match=f"a.tif is a picture of {kind}, whose range is unknown"):
            array_of(Image.fromarray(greys.astype(dtype)), ImagePreprocessing(0, 0), "a.tif")


def test_the_size_of_the_models_inputs_applies_to_pictures(tmp_path: Path) -> None:
    (tmp_path / "p" / "a").mkdir(parents=True)
    picture(300, 260).save(tmp_path / "p" / "a" / "1.png")
    node = json.loads(json.dumps(described(pass_as="positional").to_dict()))
    source = Images(path=str(tmp_path / "p"), model_inputs=node, cache=str(tmp_path / "cache"))
    source.prepare("test")
    assert source.split("test").inputs.shape == (1, 3, 32, 40)
