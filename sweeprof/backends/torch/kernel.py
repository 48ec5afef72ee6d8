"""The calibration kernel in torch: one layer's work of a middling model."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from sweeprof.backends.torch.model import TorchModel
from sweeprof.measuring.calibration import CHANNELS, ROWS, SIDE, Kernel, KernelName, resembling

_CONVOLUTIONS = torch.nn.modules.conv._ConvNd


def kernel(model: TorchModel, wanted: KernelName | None) -> Kernel:
    """The kernel on the model's device; always in single precision and the usual layout, so that variants have the same.

    Args:
        model: whose kernel.
        wanted: which; None: the one that resembles the model.
    """
    name = wanted or _resembling(model.module)
    run = _convolution(model.device) if name == "convolution" else _product(model.device)

    def step() -> None:
        run()
        if model.device.type != "cpu":
            torch.accelerator.synchronize(model.device)

    return Kernel(name, step)


def _convolution(device: torch.device) -> Callable[[], object]:
    weights = torch.full((CHANNELS, CHANNELS, 3, 3), 1e-3, device=device)
    images = torch.ones((1, CHANNELS, SIDE, SIDE), device=device)
    return partial(torch.nn.functional.conv2d, images, weights, padding=1)


def _product(device: torch.device) -> Callable[[], object]:
    left, right = (torch.full((ROWS, ROWS), 1e-3, device=device) for _ in range(2))
    return partial(torch.mm, left, right)


def _resembling(module: torch.nn.Module) -> KernelName:
    modules = list(module.modules())
    convolutions = sum(isinstance(one, _CONVOLUTIONS) for one in modules)
    return resembling(convolutions, sum(isinstance(one, torch.nn.Linear) for one in modules))
