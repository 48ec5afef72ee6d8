"""The random weights of a model are those of the seed also where another process builds it, to convert it to a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import torch

from support.keras_models import random_dense
from sweeprof.backends.litert.adapter import LitertBackend
from sweeprof.backends.onnxruntime.adapter import OnnxruntimeBackend
from sweeprof.backends.openvino.adapter import OpenvinoBackend
from sweeprof.measuring.inputs import Inputs
from sweeprof.targets import builder

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("converted_in_forks")]

SEED = 7
X = np.random.default_rng(0).standard_normal((4, 16)).astype(np.float32)


def converted_outputs(backend: Any, framework: str, node: dict[str, Any]) -> Any:
    backend.configure(SEED)
    model = backend.load(builder(node, framework), "cpu", None)
    with model.stepping(model.put(Inputs((X,)))) as step:
        return np.asarray(model.host_outputs(step()))


@pytest.mark.parametrize("kind", [OnnxruntimeBackend, OpenvinoBackend])
def test_of_pytorch(kind: Any, tmp_path: Path) -> None:
    node = {"_target_": "torch.nn.Linear", "in_features": 16, "out_features": 8}
    found = converted_outputs(kind(precision="fp32", cache=str(tmp_path)), "torch", node)
    torch.manual_seed(SEED)
    expected = torch.nn.Linear(16, 8)(torch.from_numpy(X)).detach().numpy()
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("kind", [LitertBackend, OnnxruntimeBackend, OpenvinoBackend])
def test_of_keras(kind: Any, tmp_path: Path) -> None:
    found = converted_outputs(
        kind(precision="fp32", cache=str(tmp_path)), "tensorflow", {"_target_": "support.keras_models.random_dense"}
    )
    keras.utils.set_random_seed(SEED)
    np.testing.assert_allclose(found, np.asarray(random_dense()(X)), atol=1e-5)
