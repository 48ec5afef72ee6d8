"""The peak rates of a device with the present settings."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from sweeprof.backends.torch.callsites import dtype_name
from sweeprof.backends.torch.model import synchronised
from sweeprof.backends.torch.state import tensors_of
from sweeprof.measuring.benchmarks import COPIED_BYTES, SHORT, copied_bytes_on_host, measured_peaks
from sweeprof.measuring.timing import WallClock, sampled
from sweeprof.results.peaks import Peaks, PeakSettings


def settings(device: str, dtype: torch.dtype | None, model: torch.nn.Module | None) -> PeakSettings:
    """Return the settings of this process.

    Args:
        device: where the benchmarks are to run.
        dtype: of the matrices; None: that of the first floating-point parameter of the model, ``float32`` without any.
        model: whose parameters tell the data type.
    """
    own = (p.dtype for p in tensors_of(model) if p.is_floating_point()) if model is not None else iter(())
    wanted = dtype or next(own, torch.float32)
    mkldnn = getattr(torch.backends.mkldnn, "matmul", None)
    numerics: tuple[str, ...]
    if mkldnn is None:  # before PyTorch 2.9 one setting is for all
        numerics = (f"matmul {torch.get_float32_matmul_precision()}",)
    else:
        numerics = (f"cuda {torch.backends.cuda.matmul.fp32_precision}", f"mkldnn {mkldnn.fp32_precision}")
    return PeakSettings(dtype_name(wanted), device, torch.get_num_threads(), numerics)


def peaks(settings: PeakSettings) -> Peaks:
    """The highest rates of short benchmarks; about a second, with the threads and the numerics (TF32, say) that are set.

    Matrix products are of the data type by itself; a dynamically quantized model is held against ``float32``, which is what
    it takes and gives.
    """
    device = torch.device(settings.device)
    products = partial(_product_seconds, device, getattr(torch, settings.dtype))
    with torch.inference_mode():
        return measured_peaks(settings, products, partial(_copy_rate, device))


def _product_seconds(device: torch.device, dtype: torch.dtype, size: int) -> float:
    numbers = torch.Generator(device).manual_seed(0)  # zeros or ones would let a GPU clock higher than numbers do
    left, right = (torch.randn(size, size, generator=numbers, device=device).to(dtype) for _ in range(2))
    return _best(partial(torch.mm, left, right, out=torch.empty_like(left)), device)


def _copy_rate(device: torch.device) -> float:
    size = COPIED_BYTES if device.type != "cpu" else copied_bytes_on_host()
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size / _best(lambda: target.copy_(source), device)


def _best(call: Callable[[], object], device: torch.device) -> float:
    """Seconds of one call."""
    return min(sampled(synchronised(call, device), SHORT, WallClock()))
