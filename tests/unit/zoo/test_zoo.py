"""The zoo: both frameworks get the same model out of one small file."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch

from support import hand_counts
from sweeprof.datasets.arrays import Digits
from sweeprof.zoo import weight_file

LEAST_ACCURACY = {"lenet5": 0.97, "mlp": 0.95, "digits_resnet": 0.97}
TOLERANCE = 1e-4


@pytest.mark.parametrize("name", sorted(LEAST_ACCURACY))
def test_both_frameworks_have_the_same_model(name: str) -> None:
    """With the parameters counted by hand, and layers of the same names."""
    builders = import_module(f"sweeprof.zoo.{name}")
    in_torch, in_keras = builders.torch_model().eval(), builders.keras_model()
    assert sum(parameter.numel() for parameter in in_torch.parameters()) == hand_counts.PARAMS[name]
    assert sum(int(np.prod(weight.shape)) for weight in in_keras.trainable_weights) == hand_counts.PARAMS[name]
    modules = {path.replace(".", "_") for path, module in in_torch.named_modules() if list(module.parameters(False))}
    assert {layer.name for layer in in_keras.layers if layer.weights} == modules
    test = Digits().split("test")
    with torch.inference_mode():
        torch_logits = in_torch(torch.from_numpy(test.inputs)).numpy()
    keras_logits = np.asarray(in_keras(test.inputs.transpose(0, 2, 3, 1), training=False))
    assert torch_logits.shape == keras_logits.shape == (360, 10)
    assert np.abs(torch_logits - keras_logits).max() <= TOLERANCE
    hits = torch_logits.argmax(axis=1) == test.targets
    np.testing.assert_array_equal(hits, keras_logits.argmax(axis=1) == test.targets)
    assert hits.mean() >= LEAST_ACCURACY[name]


@pytest.mark.parametrize("name", sorted(LEAST_ACCURACY))
def test_untrained_models_differ_from_the_trained(name: str) -> None:
    builders = import_module(f"sweeprof.zoo.{name}")
    trained, untrained = builders.torch_model(), builders.torch_model(pretrained=False)
    assert not torch.equal(next(trained.parameters()), next(untrained.parameters()))


@pytest.mark.slow
def test_one_epoch_of_training_learns(tmp_path: Path) -> None:
    from sweeprof.zoo.train import train

    accuracies = train("lenet5", folder=tmp_path, epochs=1)
    assert min(accuracies.values()) > 0.5
    assert (tmp_path / "lenet5.safetensors").stat().st_size == weight_file("lenet5").stat().st_size
