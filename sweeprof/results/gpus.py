"""Who else computes on a GPU, from NVIDIA's management library (package ``nvidia-ml-py``), where both are there."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

from sweeprof.results.record import Warning

INSTALL = "pip install nvidia-ml-py"


def gpu_processes(uuid: str, library: Any = None) -> dict[str, Any]:
    """``{"processes": [{pid, bytes}]}`` of the others on the GPU, or ``{"processes": None, "reason": …}``."""
    try:
        nvml = library or import_module("pynvml")
    except ImportError:
        return {"processes": None, "reason": f"pynvml is not installed: {INSTALL}"}
    try:
        nvml.nvmlInit()
        try:
            running = nvml.nvmlDeviceGetComputeRunningProcesses(nvml.nvmlDeviceGetHandleByUUID(uuid))
        finally:
            nvml.nvmlShutdown()
    except nvml.NVMLError as error:
        return {"processes": None, "reason": f"NVML: {error}"}
    others = [{"pid": p.pid, "bytes": p.usedGpuMemory} for p in running if p.pid != os.getpid()]
    return {"processes": others}


def gpu_warnings(seen: dict[str, Any]) -> list[Warning]:
    """The warning that other processes on the GPU deserve."""
    if not seen["processes"]:
        return []
    pids = ", ".join(str(process["pid"]) for process in seen["processes"])
    return [Warning("gpu_shared", f"other processes computed on the same GPU: {pids}", "end them, or use another GPU")]
