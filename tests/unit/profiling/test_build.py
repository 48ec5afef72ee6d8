"""Which of a model's builders a backend runs."""

from __future__ import annotations

from typing import Any

import pytest

from sweeprof.errors import Unsupported
from sweeprof.targets import builders_of, chosen_builder

TORCH, KERAS = {"_target_": "a.torch_model"}, {"_target_": "a.keras_model"}


@pytest.mark.parametrize(
    ("backend", "model", "chosen"),
    [
        ({"framework": "torch"}, {"tensorflow": KERAS, "torch": TORCH}, "torch"),
        (
            {"framework": "onnx", "builders": ["onnx", "torch", "tensorflow"]},
            {"tensorflow": KERAS, "torch": TORCH},
            "torch",
        ),
        (
            {"framework": "onnx", "builders": ["onnx", "torch", "tensorflow"]},
            {"torch": None, "tensorflow": KERAS},
            "tensorflow",
        ),
    ],
)
def test_the_first_that_the_model_has(backend: dict[str, Any], model: dict[str, Any], chosen: str) -> None:
    assert chosen_builder(backend, model) == (chosen, model[chosen])


def test_a_backend_runs_its_own_framework_unless_it_says_more() -> None:
    assert builders_of({"framework": "torch"}) == ["torch"]
    with pytest.raises(Unsupported, match=r"^the model names no builder for jax$"):
        chosen_builder({"framework": "jax"}, {"torch": TORCH})
    with pytest.raises(Unsupported, match=r"^the model names no builder for onnx, torch or tensorflow$"):
        chosen_builder({"builders": ["onnx", "torch", "tensorflow"]}, {"fake": {}})
