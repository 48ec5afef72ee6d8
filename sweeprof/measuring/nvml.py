"""NVIDIA GPUs as their management library (NVML) shows them: energy, memory of processes, and the state that times depend on.

No other file uses NVML, which the package nvidia-ml-py brings (the extra ``cuda``).

Source: NVML API Reference Guide, https://docs.nvidia.com/deploy/nvml-api/
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from sweeprof.errors import Unsupported

CUDA_DEVICES = ("cuda", "gpu")
"""Kinds of devices that are NVIDIA's."""


class Gpu:
    """A GPU, or a slice of one (MIG); to be closed.

    Args:
        name: as the frameworks of this process call it (``cuda``, ``cuda:1``), or its UUID.

    Raises:
        Unsupported: it is not NVIDIA's, NVML is not installed, or NVML has no such GPU.
    """

    def __init__(self, name: str) -> None:
        kind = name.partition(":")[0]
        if kind not in CUDA_DEVICES and not name.startswith(("GPU-", "MIG-")):
            raise Unsupported(f"{name}: only the driver of NVIDIA GPUs is read")
        try:
            self._nvml: Any = import_module("pynvml")
        except ImportError:
            raise Unsupported("the package nvidia-ml-py is not installed: pip install 'sweeprof[cuda]'") from None
        self.token = _token_of(name) if kind in CUDA_DEVICES else name
        """Its UUID, or its number in the order of the bus."""
        self.is_slice = self.token.startswith("MIG-")
        with self._errors():
            self._nvml.nvmlInit()
            if self.token.isdigit():
                self._handle = self._nvml.nvmlDeviceGetHandleByIndex(int(self.token))
            else:
                self._handle = self._nvml.nvmlDeviceGetHandleByUUID(self.token)
            self._whole = self._handle
            if self.is_slice:
                self._whole = self._nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self._handle)

    def close(self) -> None:
        """Release NVML."""
        with self._errors():
            self._nvml.nvmlShutdown()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Raise :class:`Unsupported` in place of NVML's errors; an old library may also lack a function."""
        try:
            yield
        except (self._nvml.NVMLError, AttributeError) as error:
            raise Unsupported(f"NVML: {error}") from None

    def processes(self) -> dict[int, int | None]:
        """Return the bytes of each process that computes on it, contexts and libraries included, by its id; None: unknown.

        Raises:
            Unsupported: NVML does not tell.
        """
        with self._errors():
            running = self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle)
        return {process.pid: process.usedGpuMemory for process in running}

    def own_bytes(self) -> int:
        """Return the bytes of this process, which computes on the GPU.

        Raises:
            Unsupported: NVML does not tell.
        """
        running = self.processes()
        if os.getpid() in running:
            size = running[os.getpid()]
        elif len(running) == 1:  # in a container process ids are others: the only one that computes is this process
            (size,) = running.values()
        else:
            raise Unsupported(f"NVML: this process is not one of the {len(running)} that compute on the GPU")
        if size is None:
            raise Unsupported("NVML: the driver does not tell the memory of processes")
        return size


def _token_of(device: str) -> str:
    """Return the entry of ``CUDA_VISIBLE_DEVICES`` that ``cuda:NUMBER`` is, or its number where the variable is not set."""
    number = int(device.partition(":")[2] or 0)
    visible = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return visible[number] if number < len(visible) else str(number)
