"""The random weights of a model are those of the seed also where another process builds it, to convert it to a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sweeprof.backends.litert.adapter import LitertBackend
from sweeprof.backends.onnxruntime.adapter import OnnxruntimeBackend
from sweeprof.backends.openvino.adapter import OpenvinoBackend
from sweeprof.backends.tensorflow.adapter import TensorflowBackend
from sweeprof.backends.torch.adapter import TorchBackend
from sweeprof.measuring.inputs import Inputs
from sweeprof.measuring.instantiate import builder

pytestmark = pytest.mark.slow  # each conversion is a process that imports a framework

SEED = 7
X = np.random.default_rng(0).standard_normal((4, 16)).astype(np.float32)
TORCH = builder({"_target_": "torch.nn.Linear", "in_features": 16, "out_features": 8}, "torch")
KERAS = builder({"_target_": "support.keras_models.random_dense"}, "tensorflow")


def outputs(backend: Any, build: Any) -> Any:
    backend.configure(SEED)
    model = backend.load(build, "cpu", None)
    with model.stepping(model.put(Inputs((X,)))) as step:
        return np.asarray(model.host_outputs(step()))


@pytest.mark.parametrize("kind", [OnnxruntimeBackend, OpenvinoBackend])
def test_of_pytorch(kind: Any, tmp_path: Path) -> None:
    found = outputs(kind(precision="fp32", cache=str(tmp_path)), TORCH)
    np.testing.assert_allclose(found, outputs(TorchBackend(), TORCH), atol=1e-5)


@pytest.mark.parametrize("kind", [LitertBackend, OnnxruntimeBackend, OpenvinoBackend])
def test_of_keras(kind: Any, tmp_path: Path) -> None:
    found = outputs(kind(precision="fp32", cache=str(tmp_path)), KERAS)
    np.testing.assert_allclose(found, outputs(TensorflowBackend(), KERAS), atol=1e-5)
