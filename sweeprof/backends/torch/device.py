"""A device itself: the peak rates with the present settings, and which measurements work on this host.

Each measurement of an accelerator is tried with a small model, by the code that measures it.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Mapping
from functools import partial

import torch

from sweeprof.backends.torch.callsites import dtype_name
from sweeprof.backends.torch.model import TorchModel, accelerators, synchronised
from sweeprof.backends.torch.state import tensors_of
from sweeprof.errors import Unsupported
from sweeprof.measuring.benchmarks import COPIED_BYTES, SHORT, copied_bytes_on_host, measured_peaks
from sweeprof.measuring.inputs import Inputs
from sweeprof.measuring.timing import WallClock, lasting, sampled
from sweeprof.measuring.training_config import Work
from sweeprof.processes import end_process
from sweeprof.report.units import scaled
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


WIDTH, BATCH, REPEATS = 256, 64, 10


def device_checks(device: str) -> dict[str, dict[str, str | None]]:
    """Return the ``value`` of each measurement on a device, or the ``reason`` why it failed; nothing for no device."""
    try:
        torch.device(device)
    except RuntimeError:
        return {}
    return {name: _tried(check, device) for name, check in CHECKS.items()}


def _tried(check: Callable[[TorchModel, Inputs], str], device: str) -> dict[str, str | None]:
    try:
        if device == "cpu":
            raise Unsupported("this is measured of accelerators only")
        if device not in accelerators():
            raise Unsupported(f"torch has no device {device!r} here. Known: {', '.join(['cpu', *accelerators()])}")
        module = torch.nn.Linear(WIDTH, WIDTH).eval().to(device)
        model = TorchModel(module, torch.device(device))
        return {"value": check(model, Inputs((torch.ones(BATCH, WIDTH),))), "reason": None}
    except Exception as error:  # a driver may raise anything
        return {"value": None, "reason": " ".join(str(error).split())[:200] or type(error).__name__}


def _transfers(model: TorchModel, inputs: Inputs) -> str:
    with model.stepping(model.put(inputs)) as step:
        outputs = step()
        moves = {**model.transfers(inputs, outputs), "compute": step}
        medians = {
            name: statistics.median(lasting(move, 1, WallClock()) for _ in range(REPEATS))
            for name, move in moves.items()
        }
    parts = [f"{title} {scaled(medians[name], 's')}" for name, title in _TITLES.items()]
    return ", ".join([*parts, f"total {scaled(sum(medians.values()), 's')}"])


_TITLES = {"h2d": "host to device", "compute": "compute", "d2h": "device to host"}


def _events(model: TorchModel, inputs: Inputs) -> str:
    clock = model.clock()
    with model.stepping(model.put(inputs)) as step:
        begin = clock.mark()
        step()
        return f"a step of {scaled(clock.between(begin, clock.mark()), 's')}"


def _memory(model: TorchModel, inputs: Inputs) -> str:
    found = _metered(model, inputs)
    if not found["allocated_peak_bytes"]:
        raise Unsupported("the allocator keeps no statistics")
    names = {"allocated_pre_bytes": "before", "allocated_peak_bytes": "peak", "allocated_post_bytes": "after"}
    return ", ".join(f"{title} {scaled(found[name], 'B')}" for name, title in names.items())


def _process(model: TorchModel, inputs: Inputs) -> str:
    found = _metered(model, inputs)
    if "process_peak_bytes" not in found:
        raise Unsupported("the driver does not tell: it needs NVIDIA's driver and pip install nvidia-ml-py")
    return scaled(found["process_peak_bytes"], "B")


def _metered(model: TorchModel, inputs: Inputs) -> dict[str, int]:
    """Return the figures of the device around one step."""
    from sweeprof.backends.torch.memory import meter_of  # not for every process that calibrates

    meter, batch = meter_of(model.device), model.put(inputs)
    meter.begin()
    with model.stepping(batch) as step:
        step()
    meter.stepped()
    return meter.result()


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


if __name__ == "__main__":
    print(json.dumps(device_checks(sys.argv[1])))
    end_process()
