"""Source lines of a module's forward, or of other functions that a step runs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from types import FunctionType

import torch

from sweeprof.backends.torch.memory import allocator_of
from sweeprof.backends.torch.model import TorchModel, accelerators
from sweeprof.backends.torch.state import modules_of
from sweeprof.backends.torch.training import stepping
from sweeprof.errors import Unsupported
from sweeprof.measuring.line_profile import (
    LineMemory,
    MeasureMemory,
    functions_named,
    host_memory,
    metered_memory,
    python_function,
    watched,
)
from sweeprof.measuring.timing import without_collection
from sweeprof.measuring.training_config import Work
from sweeprof.results.lines import Lines


def lines(model: TorchModel, work: Work, functions: Sequence[str]) -> Lines:
    """Time and memory by line while ``work`` is repeated.

    Args:
        functions: dotted names, as :func:`functions_named` takes them; none: the forward of the model itself.

    Raises:
        Unsupported: the model is compiled or scripted, a function is not Python's, or line_profiler is not installed.
        UserError: a name is not that of a function.
        Exception: whatever the model raised.
    """
    module = model.module
    if model.compiles:
        raise Unsupported("the model is compiled: its source lines do not run as they are written")
    classes = [type(inner) for inner in modules_of(module)]
    chosen = functions_named(functions, classes) if functions else [_forward_of(module)]
    with stepping(model, work) as steps, without_collection():
        return watched(chosen, steps.whole, _memory_on(model.device), str(model.device))


def _forward_of(module: torch.nn.Module) -> FunctionType:
    kind = type(module).__name__
    if isinstance(module, torch.jit.ScriptModule):
        raise Unsupported(f"the model is scripted ({kind}): its forward is not run by Python")
    function = python_function(module.forward)
    if function is None:
        raise Unsupported(f"the forward of {kind} is no Python function: it has no source lines to watch")
    return function


def _memory_on(device: torch.device) -> MeasureMemory:
    if device.type == "cpu":
        return host_memory
    try:
        return partial(metered_memory, LineMeter(device))
    except Unsupported as error:
        reason = str(error)
        return lambda *_: LineMemory(reason=reason)


def meter_of(device: str) -> LineMeter:
    """Return the meter of an accelerator by its name.

    Raises:
        Unsupported: this host has no such device, or its allocator keeps no statistics.
    """
    known = accelerators()
    if device not in known:
        raise Unsupported(f"this host has no device {device!r}. Known: {', '.join(known) or 'no accelerator'}")
    return LineMeter(torch.device(device))


class LineMeter:
    """The caching allocator of a device, in blocks as it hands them out (multiples of 512 bytes on CUDA).

    Its peak is one for the process: whoever else reads it finds it reset.

    Raises:
        Unsupported: the allocator keeps no statistics.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        if device.type not in accelerators():
            raise Unsupported(f"the allocator of {device.type} keeps no statistics")
        try:
            self._allocator = allocator_of(device)
            self._allocator.memory_stats(device)
        except (AttributeError, RuntimeError):
            raise Unsupported(f"the allocator of {device.type} keeps no statistics") from None

    def allocated(self) -> int:
        return self._read("allocated")

    def current(self) -> int:
        return self._read("current")

    def peak(self) -> int:
        return self._read("peak")

    def reset_peak(self) -> None:
        self._allocator.reset_peak_memory_stats(self._device)

    def _read(self, statistic: str) -> int:
        # Empty before the first allocation.
        return int(self._allocator.memory_stats(self._device).get(f"allocated_bytes.all.{statistic}", 0))
