"""Benchmarks in torch: the calibration kernel, and the speed of matrix products and memory copies with the present settings."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

import psutil
import torch

from sweeprof.backends.torch.callsites import dtype_name
from sweeprof.backends.torch.model import TorchModel
from sweeprof.backends.torch.state import tensors_of
from sweeprof.measuring.calibration import CHANNELS, ROWS, SIDE, Kernel, KernelName, resembling
from sweeprof.measuring.timing import WallClock, sampled
from sweeprof.results.peaks import Peaks, PeakSettings
from sweeprof.results.protocol import Protocol

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


SHORT = Protocol(sample_s=0.005, min_samples=5)
"""Of each benchmark the best sample counts: whatever disturbs one makes it slower."""
SMALLEST, LARGEST = 256, 8192
"""Rows and columns of the matrices."""
NEXT_S = 0.1
"""A product that is expected to take longer than this is not tried: where a data type is slow, the small ones tell as much."""
COPIED_BYTES = 1 << 28
"""At least; more where the last-level cache is larger."""


def settings(device: str, dtype: torch.dtype | None, model: torch.nn.Module | None) -> PeakSettings:
    """Return the settings of this process.

    Args:
        device: where the benchmarks are to run.
        dtype: of the matrices; None: that of the first floating-point parameter of the model, ``float32`` without any.
        model: whose parameters tell the data type.
    """
    own = (p.dtype for p in tensors_of(model) if p.is_floating_point()) if model is not None else iter(())
    wanted = dtype or next(own, torch.float32)
    backends = {"cuda": torch.backends.cuda.matmul, "mkldnn": torch.backends.mkldnn.matmul}  # type: ignore[attr-defined]
    numerics = tuple(f"{name} {backend.fp32_precision}" for name, backend in backends.items())
    return PeakSettings(dtype_name(wanted), device, torch.get_num_threads(), numerics)


def peaks(settings: PeakSettings) -> Peaks:
    """The highest rates of short benchmarks; about a second, with the threads and the numerics (TF32, say) that are set.

    Matrix products are of the data type by itself; a dynamically quantized model is held against ``float32``, which is what
    it takes and gives. A copy counts the bytes read and the bytes written, as STREAM does (McCalpin, 1995).
    """
    device = torch.device(settings.device)
    with torch.inference_mode():
        return Peaks(
            flops_per_s=_product_rate(device, getattr(torch, settings.dtype)),
            bytes_per_s=_copy_rate(device),
            dtype=settings.dtype,
            device=settings.device,
            threads=settings.threads,
        )


def _product_rate(device: torch.device, dtype: torch.dtype) -> float:
    """FLOP/s of the best square product: twice as many rows and columns each time, until the next would take too long."""
    best, size = 0.0, SMALLEST
    while True:
        # Zeros or ones would let a GPU clock higher than numbers do.
        numbers = torch.Generator(device).manual_seed(0)
        left, right = (torch.randn(size, size, generator=numbers, device=device).to(dtype) for _ in range(2))
        product = torch.empty_like(left)

        def multiply(left: torch.Tensor = left, right: torch.Tensor = right, product: torch.Tensor = product) -> None:
            torch.mm(left, right, out=product)

        seconds = _best(multiply, device)
        best = max(best, 2 * size**3 / seconds)
        if size >= LARGEST or 8 * seconds > NEXT_S:
            return best
        size *= 2


def _copy_rate(device: torch.device) -> float:
    size = COPIED_BYTES if device.type != "cpu" else _beyond_caches()
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size / _best(lambda: target.copy_(source), device)


def _beyond_caches() -> int:
    """Bytes of an array that no cache of this host holds, a sixteenth of its memory at most."""
    name = "SC_LEVEL3_CACHE_SIZE"
    cached = os.sysconf(name) if name in os.sysconf_names else 0
    return min(max(COPIED_BYTES, cached), psutil.virtual_memory().total // 16)


def _best(call: Callable[[], object], device: torch.device) -> float:
    """Seconds of one call."""

    def step() -> None:
        call()
        if device.type != "cpu":
            torch.accelerator.synchronize(device)

    return min(sampled(step, SHORT, WallClock()))
