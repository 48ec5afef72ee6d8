"""Other profilers, each as a function from a module and the shape of its input to the MACs it reports."""

from __future__ import annotations

import contextlib
import copy
import io
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Counter:
    """A profiler."""

    name: str
    module: str
    """What must be importable."""
    count: Callable[[nn.Module, Shape], float]
    changes_the_model: bool = False
    """Whether it moves the model or leaves something on it, so that it gets one of its own."""

    def is_installed(self) -> bool:
        """Whether it can be imported."""
        sys.modules.setdefault("torchvision._meta_registrations", types.ModuleType("torchvision._meta_registrations"))
        try:
            with quiet():
                import_module(self.module)
        except Exception:  # missing, or broken by what is installed beside it
            return False
        return True


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without what a profiler prints."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


def reference_macs(module: nn.Module, shape: Shape) -> float | None:
    """What torch's own counter finds where no fused kernel hides anything; None for a model that it cannot count."""
    try:
        return _flop_counter_meta(copy.deepcopy(module).to("meta"), shape)
    except (AssertionError, NotImplementedError, RuntimeError):
        return None


def _flop_counter(module: nn.Module, given: torch.Tensor) -> float:
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        module(given)
    return float(counter.get_total_flops()) / 2


def _flop_counter_meta(module: nn.Module, shape: Shape) -> float:
    if next(module.parameters()).device.type != "meta":
        module.to("meta")
    return _flop_counter(module, torch.empty(shape, device="meta"))


def _flop_counter_cpu(module: nn.Module, shape: Shape) -> float:
    return _flop_counter(module, torch.zeros(shape))


def _fvcore(module: nn.Module, shape: Shape) -> float:
    counter = import_module("fvcore.nn").FlopCountAnalysis(module, torch.zeros(shape))
    counter.unsupported_ops_warnings(False).uncalled_modules_warnings(False)
    return float(counter.total())


def _ptflops(backend: str) -> Callable[[nn.Module, Shape], float]:
    def count(module: nn.Module, shape: Shape) -> float:
        macs, _ = import_module("ptflops").get_model_complexity_info(
            module, shape[1:], as_strings=False, print_per_layer_stat=False, verbose=False, backend=backend
        )
        return float(macs)

    return count


def _torchinfo(module: nn.Module, shape: Shape) -> float:
    summary = import_module("torchinfo").summary(module, input_data=torch.zeros(shape), verbose=0)
    return float(summary.total_mult_adds)


def _deepspeed(module: nn.Module, shape: Shape) -> float:
    return _by_session(import_module("deepspeed.profiling.flops_profiler").FlopsProfiler, module, shape)


def _by_session(profiler: Any, module: nn.Module, shape: Shape) -> float:
    session = profiler(module)
    session.start_profile()
    with torch.no_grad():
        module(torch.zeros(shape))
    macs = float(session.get_total_macs())
    session.end_profile()
    return macs


def _moduleprofiler(module: nn.Module, shape: Shape) -> float:
    """Operations: it reports no MACs, so that it is never right."""
    found = import_module("moduleprofiler").ModuleProfiler().estimate_ops(module, torch.zeros(shape))
    return sum(float(value or 0) for row in found.values() for key, value in row.items() if key.endswith("ops"))


COUNTERS = (
    Counter("flop_counter, meta", "torch", _flop_counter_meta, changes_the_model=True),
    Counter("flop_counter, CPU", "torch", _flop_counter_cpu),
    Counter("ptflops, pytorch", "ptflops", _ptflops("pytorch"), changes_the_model=True),
    Counter("ptflops, aten", "ptflops", _ptflops("aten"), changes_the_model=True),
    Counter("fvcore", "fvcore.nn", _fvcore),
    Counter("torchinfo", "torchinfo", _torchinfo, changes_the_model=True),
    Counter("deepspeed", "deepspeed.profiling.flops_profiler", _deepspeed, changes_the_model=True),
    Counter("moduleprofiler", "moduleprofiler", _moduleprofiler, changes_the_model=True),
)
