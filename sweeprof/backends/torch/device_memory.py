"""What an accelerator's allocator and driver say of the memory that some steps took."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import torch


class Meter(Protocol):
    """Reads an accelerator's own figures around the steps."""

    def begin(self) -> None: ...

    def stepped(self) -> None: ...

    def result(self) -> dict[str, int]: ...


class HostMeter:
    """There is nothing beside the allocations themselves."""

    def begin(self) -> None:
        """Nothing."""

    def stepped(self) -> None:
        """Nothing."""

    def result(self) -> dict[str, int]:
        return {}


class CudaMeter:
    """The caching allocator's peaks, and after each step what NVIDIA's driver says of this process and of the whole device.

    Args:
        cuda: ``torch.cuda``, or what stands in for it.
        process_bytes: of this process on the device; None where it cannot be had.
    """

    def __init__(self, device: torch.device, cuda: Any, process_bytes: Callable[[], int | None]) -> None:
        self._device, self._cuda, self._process_bytes = device, cuda, process_bytes
        self._pre = 0
        self._seen: dict[str, list[int]] = {"process_peak_bytes": [], "device_peak_bytes": []}

    def begin(self) -> None:
        self._cuda.synchronize(self._device)
        self._cuda.reset_peak_memory_stats(self._device)
        self._pre = self._cuda.memory_allocated(self._device)

    def stepped(self) -> None:
        self._cuda.synchronize(self._device)
        free, total = self._cuda.mem_get_info(self._device)
        self._seen["device_peak_bytes"].append(total - free)
        process = self._process_bytes()
        if process is not None:
            self._seen["process_peak_bytes"].append(process)

    def result(self) -> dict[str, int]:
        return {
            "allocated_pre_bytes": self._pre,
            "allocated_peak_bytes": self._cuda.max_memory_allocated(self._device),
            "allocated_post_bytes": self._cuda.memory_allocated(self._device),
            "reserved_peak_bytes": self._cuda.max_memory_reserved(self._device),
            **{name: max(values) for name, values in self._seen.items() if values},
        }


def meter_of(device: torch.device) -> Meter:
    """The meter of a device."""
    return CudaMeter(device, torch.cuda, partial(_process_bytes, device)) if device.type == "cuda" else HostMeter()


def _process_bytes(device: torch.device) -> int | None:
    """What this process takes of a device, contexts and libraries included; None without NVIDIA's management library."""
    try:
        import pynvml  # type: ignore[import-not-found]  # NVIDIA's; not on a host without its devices
    except ImportError:
        return None
    pynvml.nvmlInit()
    try:
        uuid = str(torch.cuda.get_device_properties(device).uuid)
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
        processes = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
        return next((one.usedGpuMemory for one in processes if one.pid == os.getpid()), None)
    except pynvml.NVMLError:
        return None
    finally:
        pynvml.nvmlShutdown()
