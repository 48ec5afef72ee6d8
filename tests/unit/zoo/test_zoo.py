"""The zoo: both frameworks get the same model out of one small file, and importing it costs neither of them."""

from __future__ import annotations

import subprocess
import sys
import warnings
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from support import hand_counts
from sweeprof.datasets.arrays import Digits
from sweeprof.zoo import fill_keras, weight_file

LEAST_ACCURACY = {"lenet5": 0.97, "mlp": 0.95, "digits_resnet": 0.97}
TOLERANCE = 1e-4


@dataclass(frozen=True)
class Pair:
    """A model of the zoo in both frameworks, and what each says of the test split."""

    name: str
    torch_model: torch.nn.Module
    keras_model: Any
    torch_logits: npt.NDArray[np.float32]
    keras_logits: npt.NDArray[np.float32]


@pytest.fixture(scope="module", params=sorted(LEAST_ACCURACY))
def pair(request: pytest.FixtureRequest) -> Pair:
    builders = import_module(f"sweeprof.zoo.{request.param}")
    images = Digits().split("test").inputs
    in_torch, in_keras = builders.torch_model().eval(), builders.keras_model()
    with torch.inference_mode():
        torch_logits = in_torch(torch.from_numpy(images)).numpy()
    keras_logits = np.asarray(in_keras(images.transpose(0, 2, 3, 1), training=False))
    return Pair(request.param, in_torch, in_keras, torch_logits, keras_logits)


def accuracy(logits: npt.NDArray[np.float32]) -> float:
    return float((logits.argmax(axis=1) == Digits().split("test").targets).mean())


def test_parameters_are_those_counted_by_hand(pair: Pair) -> None:
    expected = hand_counts.PARAMS[pair.name]
    assert sum(parameter.numel() for parameter in pair.torch_model.parameters()) == expected
    assert sum(int(np.prod(weight.shape)) for weight in pair.keras_model.trainable_weights) == expected


def test_lenet5_is_the_published_one() -> None:
    assert (hand_counts.PARAMS["lenet5"], hand_counts.MACS["lenet5"]) == (61_706, 416_520)


def test_weight_file_is_small(pair: Pair) -> None:
    assert weight_file(pair.name).stat().st_size < 1_000_000


def test_accuracy_is_high_and_the_same(pair: Pair) -> None:
    assert accuracy(pair.torch_logits) == accuracy(pair.keras_logits) >= LEAST_ACCURACY[pair.name]


def test_logits_agree(pair: Pair) -> None:
    assert pair.torch_logits.shape == pair.keras_logits.shape == (360, 10)
    assert np.abs(pair.torch_logits - pair.keras_logits).max() <= TOLERANCE


def test_keras_layers_are_named_as_in_torch(pair: Pair) -> None:
    in_torch = {
        name.replace(".", "_") for name, module in pair.torch_model.named_modules() if list(module.parameters(False))
    }
    assert {layer.name for layer in pair.keras_model.layers if layer.weights} == in_torch


def test_batchnorm_epsilon_is_the_same() -> None:
    import keras

    builders = import_module("sweeprof.zoo.digits_resnet")
    layers = builders.keras_model(pretrained=False).layers
    in_keras = {layer.epsilon for layer in layers if isinstance(layer, keras.layers.BatchNormalization)}
    modules = builders.torch_model(pretrained=False).modules()
    assert in_keras == {module.eps for module in modules if isinstance(module, torch.nn.BatchNorm2d)} == {1e-5}


@pytest.mark.parametrize("name", sorted(LEAST_ACCURACY))
def test_untrained_models_differ_from_the_trained(name: str) -> None:
    builders = import_module(f"sweeprof.zoo.{name}")
    trained, untrained = builders.torch_model(), builders.torch_model(pretrained=False)
    assert not torch.equal(next(trained.parameters()), next(untrained.parameters()))


@pytest.mark.parametrize("pretrained", [True, False])
@pytest.mark.parametrize("name", sorted(LEAST_ACCURACY))
def test_meta_device_builds_in_silence(name: str, pretrained: bool) -> None:
    builders = import_module(f"sweeprof.zoo.{name}")
    with warnings.catch_warnings(), torch.device("meta"):
        warnings.simplefilter("error")
        model = builders.torch_model(pretrained)
        logits = model(torch.empty(2, 1, 32, 32))
    assert all(parameter.is_meta for parameter in model.parameters())
    assert logits.shape == (2, 10)


def test_import_leaves_the_frameworks_out() -> None:
    modules = ", ".join(f"sweeprof.zoo.{name}" for name in LEAST_ACCURACY)
    program = f"import sys, {modules}; print(sorted({{'torch', 'tensorflow', 'keras'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_linear_after_a_flattened_image_is_reordered() -> None:
    """None of the three models has both channels and pixels where it flattens, so a model made up here does."""
    import keras

    in_torch = torch.nn.Sequential()
    in_torch.add_module("conv", torch.nn.Conv2d(2, 3, 2))
    in_torch.add_module("flatten", torch.nn.Flatten())
    in_torch.add_module("linear1", torch.nn.Linear(3 * 4 * 5, 7))
    in_torch.add_module("linear2", torch.nn.Linear(7, 4))
    image = x = keras.Input((5, 6, 2))
    for layer in (
        keras.layers.Conv2D(3, 2, name="conv"),
        keras.layers.Flatten(),
        keras.layers.Dense(7, name="linear1"),
        keras.layers.Dense(4, name="linear2"),
    ):
        x = layer(x)
    in_keras = keras.Model(image, x)
    fill_keras(in_keras, {key: value.numpy() for key, value in in_torch.state_dict().items()})
    images = np.random.default_rng(0).normal(size=(3, 2, 5, 6)).astype(np.float32)
    with torch.inference_mode():
        expected = in_torch(torch.from_numpy(images)).numpy()
    np.testing.assert_allclose(np.asarray(in_keras(images.transpose(0, 2, 3, 1))), expected, atol=1e-5)


@pytest.mark.slow
def test_one_epoch_of_training_learns(tmp_path: Path) -> None:
    from sweeprof.zoo.train import train

    accuracies = train("lenet5", folder=tmp_path, epochs=1)
    assert min(accuracies.values()) > 0.5
    assert (tmp_path / "lenet5.safetensors").stat().st_size == weight_file("lenet5").stat().st_size
