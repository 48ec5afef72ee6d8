"""The private interfaces of torch that the files of this backend use.

A release of torch may drop any of them; ``tests/unit/backends/test_private_interfaces.py`` looks up each of them.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.utils._python_dispatch

from sweeprof.backends import interface

interface("torch.utils._device")  # get_default_device imports it, in each process that was forked before

# How operators are dispatched. Without the classes there is no torch.
HigherOrderOperator = torch._ops.HigherOrderOperator
OpOverload = torch._ops.OpOverload
OpOverloadPacket = torch._ops.OpOverloadPacket
TorchDispatchMode = torch.utils._python_dispatch.TorchDispatchMode
DisableTorchFunctionSubclass = interface("torch._C:DisableTorchFunctionSubclass")
disable_current_modes = interface("torch.utils._python_dispatch:_disable_current_modes")
current_dispatch_modes = interface("torch.utils._python_dispatch:_get_current_dispatch_mode_stack")
rule_in_mode = interface("torch._library.simple_registry:find_torch_dispatch_rule")
is_wrapper_subclass = interface("torch.utils._python_dispatch:is_traceable_wrapper_subclass_type")

is_in_bad_fork = interface("torch.cuda:_is_in_bad_fork")
"""Whether this process was forked from one that had asked CUDA's driver for anything."""

swap_contents = interface("torch._C:_swap_tensor_impl")
"""Exchanges what two tensors hold; each keeps its class and its attributes."""

# What autograd and autocast are doing.
below_autograd = interface("torch._C:_AutoDispatchBelowAutograd")
current_autograd_node = interface("torch._C:_current_autograd_node")
sequence_number = interface("torch._C._autograd:_get_sequence_nr")
core = interface("torch._C")
SWITCHES_OF_AUTOGRAD: list[tuple[Any, str]] = [(core, "_set_grad_enabled"), (core, "_enter_dual_level")]
"""Functions that switch autograd on, by their owner and name: reverse mode, unless they are called with False, and forward mode."""
# Newer releases call forward mode's by a name of this module.
predispatch = sys.modules.get("torch._functorch.predispatch")
if hasattr(predispatch, "_enter_dual_level_impl"):
    SWITCHES_OF_AUTOGRAD.append((predispatch, "_enter_dual_level_impl"))
execution_engine = interface("torch.autograd:Variable._execution_engine")

# The profiler.
EventType = interface("torch._C._profiler:_EventType")
RecordFunction = interface("torch._C._profiler:_RecordFunctionFast")
ProfilerSettings = interface("torch._C._profiler:_ExperimentalConfig")
is_profiler_enabled = interface("torch._C._autograd:_profiler_enabled")

# A kernel that does nothing for a number of cycles.
sleep_on_device = interface("torch.cuda:_sleep")

# What the allocator of CUDA remembers of each allocation.
record_memory_history = interface("torch.cuda.memory:_record_memory_history")
memory_snapshot = interface("torch.cuda.memory:_snapshot")


def is_history_recorded() -> bool:
    """Return True if the caller records the history of CUDA's allocator."""
    asked: Any = getattr(core, "_cuda_isHistoryEnabled", None)  # a build without CUDA has none
    return asked is not None and bool(asked())


def find_compiler(name: str) -> object:
    """Return a compiler of ``torch.compile`` by its name; the modules that provide it are imported."""
    found: object = interface("torch._dynamo:lookup_backend")(name)
    return found


def graphs_made() -> int:
    """Return the number of graphs that ``torch.compile`` has captured in this process."""
    dynamo: Any = sys.modules.get("torch._dynamo.utils")
    return 0 if dynamo is None else int(dynamo.counters["stats"]["unique_graphs"])


def is_graph_break(error: Exception) -> bool:
    """Return True if ``torch.compile`` raised an error because a forward is not one graph."""
    dynamo: Any = sys.modules.get("torch._dynamo.exc")
    return dynamo is not None and isinstance(error, dynamo.Unsupported)


def inductor_settings() -> str:
    """Return inductor's settings that are not at their defaults, as lines of Python; nothing until something has compiled.

    After a compilation, its own list has settings that were changed and restored to their defaults.
    """
    inductor: Any = sys.modules.get("torch._inductor.config")
    if inductor is None:
        return ""
    listed = inductor.codegen_config().splitlines()
    values, lines = inductor.get_config_copy() if listed else {}, []
    for line in listed:
        name = line.partition(" = ")[0].removeprefix(f"{inductor.__name__}.")
        if name not in values or values[name] != inductor._config[name].default:
            lines.append(line)
    return "\n".join(lines)
