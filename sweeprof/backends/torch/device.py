"""A device itself: the calibration kernel, the peak rates with the present settings, and which measurements work on this host.

Each measurement of an accelerator is tried with a small model, by the code that measures it.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial

import psutil
import torch

from sweeprof.backends import DeviceCheck
from sweeprof.backends.torch.callsites import dtype_name
from sweeprof.backends.torch.model import TorchModel, accelerators
from sweeprof.backends.torch.private import AnyConvolution
from sweeprof.backends.torch.state import tensors_of
from sweeprof.errors import Unsupported
from sweeprof.measuring.calibration import CHANNELS, ROWS, SIDE, Kernel, KernelName, resembling
from sweeprof.measuring.inputs import Inputs
from sweeprof.measuring.timing import WallClock, sampled
from sweeprof.measuring.training_config import Work
from sweeprof.report.units import scaled
from sweeprof.results.peaks import Peaks, PeakSettings
from sweeprof.results.protocol import Protocol


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
    convolutions = sum(isinstance(one, AnyConvolution) for one in modules)
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


WIDTH, BATCH, REPEATS = 256, 64, 10


def device_checks(device: str) -> Mapping[str, DeviceCheck]:
    """Return by name whether each measurement works on a device, with what was measured or the reason."""
    return {name: _tried(check, device) for name, check in CHECKS.items()}


def _tried(check: Callable[[TorchModel, Inputs], str], device: str) -> DeviceCheck:
    try:
        if device not in accelerators():
            raise Unsupported(f"torch has no device {device!r} here. Known: {', '.join(['cpu', *accelerators()])}")
        module = torch.nn.Linear(WIDTH, WIDTH).eval().to(device)
        model = TorchModel(module, torch.device(device))
        return DeviceCheck(check(model, Inputs((torch.ones(BATCH, WIDTH),))))
    except Exception as error:  # a driver may raise anything
        return DeviceCheck(None, " ".join(str(error).split())[:200] or type(error).__name__)


def _transfers(model: TorchModel, inputs: Inputs) -> str:
    with model.stepping(model.put(inputs)) as step:
        outputs = step()
        moves = {**model.transfers(inputs, outputs), "compute": step}
        medians = {name: statistics.median(_seconds(move) for _ in range(REPEATS)) for name, move in moves.items()}
    parts = [f"{title} {scaled(medians[name], 's')}" for name, title in _TITLES.items()]
    return ", ".join([*parts, f"total {scaled(sum(medians.values()), 's')}"])


_TITLES = {"h2d": "host to device", "compute": "compute", "d2h": "device to host"}


def _seconds(function: Callable[[], object]) -> float:
    begin = time.perf_counter()
    function()
    return time.perf_counter() - begin


def _events(model: TorchModel, inputs: Inputs) -> str:
    clock = model.clock()
    with model.stepping(model.put(inputs)) as step:
        begin = clock.mark()
        step()
        return f"a step of {scaled(clock.between(begin, clock.mark()), 's')}"


def _memory(model: TorchModel, inputs: Inputs) -> str:
    from sweeprof.backends.torch.memory import meter_of  # not for every process that calibrates

    meter = meter_of(model.device)
    batch = model.put(inputs)
    meter.begin()
    with model.stepping(batch) as step:
        step()
    meter.stepped()
    found = meter.result()
    if not found["allocated_peak_bytes"]:
        raise Unsupported("the allocator keeps no statistics")
    names = {"allocated_pre_bytes": "before", "allocated_peak_bytes": "peak", "allocated_post_bytes": "after"}
    return ", ".join(f"{title} {scaled(found[name], 'B')}" for name, title in names.items())


def _process(model: TorchModel, _: Inputs) -> str:
    from sweeprof.backends.torch.memory import meter_of

    meter = meter_of(model.device)
    meter.begin()
    meter.stepped()
    found = meter.result()
    if "process_peak_bytes" not in found:
        raise Unsupported("the driver does not tell: it needs NVIDIA's driver and pip install nvidia-ml-py")
    return scaled(found["process_peak_bytes"], "B")


def _lines(model: TorchModel, inputs: Inputs) -> str:
    from sweeprof.backends.torch.memory import lines

    found = lines(model, Work(model.put(inputs)), ())
    if found.memory_reason is not None:
        raise Unsupported(found.memory_reason)
    allocated = sum(line.allocated_bytes or 0 for line in found.functions[0].lines)
    return f"{scaled(allocated, 'B')} by the lines of a forward"


CHECKS: Mapping[str, Callable[[TorchModel, Inputs], str]] = {
    "transfer times (latency/h2d, d2h, total)": _transfers,
    "events (times of layers)": _events,
    "allocated memory (memory/cuda_allocated_*)": _memory,
    "memory of the process (memory/cuda_process_*)": _process,
    "memory per source line (metrics=lines)": _lines,
}
