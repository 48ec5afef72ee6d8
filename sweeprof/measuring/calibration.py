"""The calibration kernel: a short computation whose time, taken between the samples, tells how fast the machine was just then.

The ratio of a sample to the kernel beside it holds from one hour to the next and between hosts of one kind, which seconds do
not. A kernel must resemble the model: a convolution for what convolves, a matrix product for the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

KernelName = Literal["convolution", "matmul"]
CHANNELS, SIDE = 64, 28
"""As in the first stages of a ResNet, and small enough to stay in a processor's own cache, whatever memory a process was given."""
ROWS = 256
"""Of the square matrices; a product costs about a quarter of a convolution."""
LINEAR_PER_CONVOLUTION = 2
"""A convolution uses its weights at every position. So a model with a convolution for every two linear layers convolves, as LeNet
and ConvNeXt do; a transformer on patches, with a single one, multiplies matrices."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """A computation of the model's framework, on its device."""

    name: KernelName
    step: Callable[[], object]
    """Runs it once and waits for its end."""


@dataclass(frozen=True, slots=True)
class KernelTimes:
    """Times of the calibration kernel in one round of timing."""

    name: KernelName | None
    """None: there was none."""
    loops: int = 0
    """Runs per sample."""
    samples: tuple[float, ...] = ()
    """Seconds of one run, as many as the timing has samples; each was taken just before the model's sample."""
    reason: str | None = None
    """Why there was none."""


def resembling(convolutions: int, linears: int) -> KernelName:
    """The kernel that resembles a model with so many layers of either kind."""
    return "convolution" if convolutions and LINEAR_PER_CONVOLUTION * convolutions >= linears else "matmul"
