"""The calibration kernel in torch: which one, and that variants share it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from support.peer_models import ResNet18C100
from sweeprof.backends.torch.adapter import TorchBackend
from sweeprof.measuring.calibration import KernelName
from sweeprof.zoo.lenet5 import torch_model as lenet5
from sweeprof.zoo.mlp import torch_model as mlp


class Seen(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The operators that run within it, with their first tensors."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[tuple[str, torch.Tensor]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls.append((func.overloadpacket.__name__, args[0]))
        return func(*args, **(kwargs or {}))


def ran(
    build: Callable[[], nn.Module], wanted: KernelName | None = None, **settings: Any
) -> tuple[str, str, torch.Tensor]:
    """Name of the kernel, its operator and the first tensor of it."""
    backend = TorchBackend(**settings)
    kernel = backend.kernel(backend.load(build, "cpu", 1), wanted)
    with Seen() as seen:
        kernel.step()
    ((operator, tensor),) = seen.calls
    return kernel.name, operator, tensor


def vit() -> nn.Module:
    """One convolution makes the patches."""
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    return nn.Sequential(
        nn.Conv2d(3, 16, 8, 8), nn.Flatten(2), nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    )


@pytest.mark.parametrize(
    ("build", "name"),
    [(lenet5, "convolution"), (ResNet18C100, "convolution"), (mlp, "matmul"), (vit, "matmul"), (lambda: nn.LSTM(4, 4), "matmul")],
)  # fmt: skip
def test_it_resembles_the_model(build: Callable[[], nn.Module], name: str) -> None:
    found, operator, tensor = ran(build)
    assert found == name
    assert operator == ("convolution" if name == "convolution" else "mm")
    assert tensor.dtype == torch.float32


@pytest.mark.parametrize("settings", [{"precision": "bf16", "channels_last": True}, {"precision": "int8"}], ids=str)
def test_variants_of_a_model_have_the_same(settings: dict[str, Any]) -> None:
    """Or times in units of the kernel would compare kernels."""
    name, operator, tensor = ran(mlp, "convolution", **settings)
    assert (name, operator, tensor.dtype) == ("convolution", "convolution", torch.float32)
    assert tensor.is_contiguous()
    assert tensor.shape == ran(mlp, "convolution")[2].shape


def test_it_asks_for_no_gradients() -> None:
    assert not ran(lenet5)[2].requires_grad
