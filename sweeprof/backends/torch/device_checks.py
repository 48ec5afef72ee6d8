"""Which measurements of an accelerator work on this host: each is tried with a small model, by the code that measures it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

import torch

from sweeprof.backends import DeviceCheck
from sweeprof.backends.torch.lines import lines
from sweeprof.backends.torch.memory import meter_of
from sweeprof.backends.torch.model import TorchModel, accelerators
from sweeprof.errors import Unsupported
from sweeprof.measuring.inputs import Inputs
from sweeprof.measuring.training_config import Work
from sweeprof.report.units import scaled

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
    meter = meter_of(model.device)
    meter.begin()
    meter.stepped()
    found = meter.result()
    if "process_peak_bytes" not in found:
        raise Unsupported("the driver does not tell: it needs NVIDIA's driver and pip install nvidia-ml-py")
    return scaled(found["process_peak_bytes"], "B")


def _lines(model: TorchModel, inputs: Inputs) -> str:
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
