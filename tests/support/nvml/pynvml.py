"""In the place of nvidia-ml-py: NVML with the GPUs in the JSON file ``SIMULATED_GPUS``, by UUID or number.

Each has the values of NVML's functions by short names; what it lacks, NVML refuses. Each reading of ``energy_mj`` adds 2.5 J.
"""

from __future__ import annotations

import json
import os
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

NVML_TEMPERATURE_GPU = 0
NVML_CLOCK_SM, NVML_CLOCK_MEM = 1, 2
NVML_PERF_POLICY_POWER, NVML_PERF_POLICY_THERMAL = 0, 1
_readings = count()


class NVMLError(Exception):
    """As the library has it."""


def _of(gpu: str, name: str) -> Any:
    known = json.loads(Path(os.environ["SIMULATED_GPUS"]).read_text())
    if gpu not in known:
        raise NVMLError("Not Found")
    if name not in known[gpu]:
        raise NVMLError("Not Supported")
    return known[gpu][name]


def nvmlInit() -> None:  # noqa: N802
    if "SIMULATED_GPUS" not in os.environ:
        raise NVMLError("Driver Not Loaded")


def nvmlShutdown() -> None:  # noqa: N802
    pass


def nvmlSystemGetDriverVersion() -> str:  # noqa: N802
    return "580.65.06"


def nvmlDeviceGetHandleByUUID(uuid: str) -> str:  # noqa: N802
    _of(uuid, "processes")
    return uuid


def nvmlDeviceGetHandleByIndex(number: int) -> str:  # noqa: N802
    return nvmlDeviceGetHandleByUUID(str(number))


def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle: str) -> str:  # noqa: N802
    whole: str = _of(handle, "whole")
    return whole


def nvmlDeviceGetComputeRunningProcesses(handle: str) -> list[Any]:  # noqa: N802
    found = []
    for pid, size in _of(handle, "processes").items():
        found.append(SimpleNamespace(pid=os.getpid() if pid == "own" else int(pid), usedGpuMemory=size))
    return found


def nvmlDeviceGetTotalEnergyConsumption(handle: str) -> int:  # noqa: N802
    energy: int = _of(handle, "energy_mj")
    return energy + 2500 * next(_readings)


def nvmlDeviceGetUtilizationRates(handle: str) -> Any:  # noqa: N802
    return SimpleNamespace(gpu=_of(handle, "utilization"))


def nvmlDeviceGetEnforcedPowerLimit(handle: str) -> int:  # noqa: N802
    return int(1000 * _of(handle, "power_limit_w"))


def nvmlDeviceGetPowerUsage(handle: str) -> int:  # noqa: N802
    return int(1000 * _of(handle, "power_w"))


def nvmlDeviceGetTemperature(handle: str, _: int) -> int:  # noqa: N802
    return int(_of(handle, "celsius"))


def nvmlDeviceGetClockInfo(handle: str, kind: int) -> int:  # noqa: N802
    return int(_of(handle, "sm_mhz" if kind == NVML_CLOCK_SM else "memory_mhz"))


def nvmlDeviceGetMaxClockInfo(handle: str, _: int) -> int:  # noqa: N802
    return int(_of(handle, "most_sm_mhz"))


def nvmlDeviceGetCurrentClocksThrottleReasons(handle: str) -> int:  # noqa: N802
    return int(_of(handle, "held_back_by"))


def nvmlDeviceGetViolationStatus(handle: str, policy: int) -> Any:  # noqa: N802
    name = "hot_s" if policy == NVML_PERF_POLICY_THERMAL else "limited_s"
    return SimpleNamespace(violationTime=int(1e9 * _of(handle, name)))
