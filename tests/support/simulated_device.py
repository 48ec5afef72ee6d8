"""A device of PyTorch that is simulated (``simulated_device.cpp``): how it is built, and what sweeprof measures on it.

``python -m support.simulated_device LIBRARY`` registers it in this process, where it then is the accelerator, and prints the
measurements as JSON.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

SOURCE = Path(__file__).with_suffix(".cpp")
BUILD = Path(__file__).parents[2] / "build" / "simulated_device"
NAME = "simulated"
COPY_S = 0.05


def library() -> Path:
    """Return the compiled device; it is compiled once for each version of its source and of torch."""
    version = hashlib.sha256(SOURCE.read_bytes() + torch.__version__.encode()).hexdigest()[:12]
    path = BUILD / f"{version}.so"
    if not path.exists():
        BUILD.mkdir(parents=True, exist_ok=True)
        root = Path(torch.__file__).parent
        made = path.with_suffix(f".{id(path)}")
        command = [
            "g++",
            "-O0",
            "-std=c++20",
            "-fPIC",
            "-shared",
            "-DAT_PER_OPERATOR_HEADERS",  # the headers of all operators take long
            f"-I{root / 'include'}",
            str(SOURCE),
            "-o",
            str(made),
        ]
        command += [f"-L{root / 'lib'}", "-lc10", "-ltorch_cpu", "-ltorch"]
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=280)
        made.replace(path)
    return path


def register(path: Path) -> ctypes.CDLL:
    """Make it the accelerator of this process."""
    torch.utils.backend_registration.rename_privateuse1_backend(NAME)
    device = ctypes.CDLL(str(path))
    device.set_copy_seconds.argtypes = [ctypes.c_double]
    device.register_device()
    module = ModuleType(f"torch.{NAME}")
    functions: dict[str, Any] = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "manual_seed_all": lambda _: None,
        "_is_in_bad_fork": lambda: False,
    }
    vars(module).update(functions)
    register_module: Any = torch._register_device_module
    register_module(NAME, module)
    return device


class Net(nn.Module):
    """A layer whose tensors have sizes that are easy to check: 64 KiB each."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(128, 128))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x @ self.weight
        z = y + y
        del y
        return z * 2


def measured(device: ctypes.CDLL) -> dict[str, Any]:
    """Return what sweeprof measures on the device."""
    import sweeprof
    from sweeprof.backends.torch.adapter import TorchBackend
    from sweeprof.profiling import conformance

    protocol = sweeprof.Protocol(min_s=0.02, warmup_s=0.0)
    x = torch.ones(128, 128)
    profiler = sweeprof.Profiler(Net().to(NAME), inputs=x, protocol=protocol, progress=False)
    device.set_copy_seconds(COPY_S)
    names = ["latency/h2d", "latency/forward", "latency/d2h", "latency/total"]
    times = {name: profiler.compute(name).value for name in names}
    device.set_copy_seconds(0)
    names = [
        f"memory/cuda_{name}_bytes" for name in ("allocated_pre", "allocated_peak", "allocated_post", "device_peak")
    ]
    memory = {name: profiler.compute(name).value for name in names}
    lines: Any = profiler.seen("lines")
    operators: Any = profiler.seen("operators")
    layers: Any = profiler.seen("layer_times")

    @sweeprof.profile_lines(memory=NAME)
    def step(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        return y + 1

    step(x.to(NAME))
    return {
        "devices": TorchBackend().devices(),
        "times": times,
        "memory": memory,
        "device_reason": profiler.compute("latency/device").reason,
        "memory_reason": profiler.compute("memory/cuda_process_peak_bytes").reason,
        "lines": [
            [line.source.strip(), line.hits, line.allocated_bytes, line.peak_bytes] for line in lines.functions[0].lines
        ],
        "lines_device": lines.device,
        "decorated": [[line.source.strip(), line.hits, line.allocated_bytes] for line in step.lines.functions[0].lines],
        "device_times": [row.device_self_s for row in operators.rows],
        "layers": layers.forward_covered,
        "conformance": conformance.answers(NAME),
    }


if __name__ == "__main__":
    print(json.dumps(measured(register(Path(sys.argv[1])))))
