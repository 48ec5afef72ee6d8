"""A GPU that NVML shows, as :mod:`support.nvml.pynvml` takes it, and the environment in which processes find it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

LIBRARY = Path(__file__).parent / "nvml"
H100: dict[str, Any] = {
    "processes": {},
    "energy_mj": 1_000_000,
    "utilization": 75,
    "power_limit_w": 700.0,
    "power_w": 300.0,
    "celsius": 41,
    "sm_mhz": 1980,
    "most_sm_mhz": 1980,
    "memory_mhz": 2619,
    "held_back_by": 0,
    "hot_s": 0.0,
    "limited_s": 0.0,
}


def put(patch: pytest.MonkeyPatch, file: Path, **gpus: dict[str, Any]) -> None:
    """Let NVML of this process, and of those that it starts, have these GPUs; ``_`` in their names stands for ``-``."""
    file.write_text(json.dumps({name.replace("_", "-"): gpu for name, gpu in gpus.items()}))
    patch.setenv("SIMULATED_GPUS", str(file))
    patch.syspath_prepend(str(LIBRARY))
    patch.delitem(sys.modules, "pynvml", raising=False)
