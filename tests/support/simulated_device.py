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
COPY_S = 0.02


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


class NormedNet(nn.Module):
    """Has buffers, which a step in training mode changes, and an output in which all parameters take part."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(256, 512)
        self.norm = nn.BatchNorm1d(512)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.norm(self.first(x))
        return y * y


def peaks(mode: Any) -> list[float | None]:
    """Return the peak of the device by torch around one step of a model whose batch is on the device, and by sweeprof."""
    import sweeprof

    model, x = NormedNet().to(NAME), torch.ones(64, 256, device=NAME)
    model.train(mode == "training")
    others = torch.ones(1000, device=NAME)  # of the caller's, on the device too
    device = torch.device(NAME)
    optimizer = torch.optim.Adam(model.parameters())
    with torch.inference_mode(mode == "inference"):
        for _ in range(3):
            torch.accelerator.reset_peak_memory_stats(device)
            y = model(x).mean()
            if mode == "training":
                optimizer.zero_grad()
                y.backward()
                optimizer.step()
            del y
    by_torch = torch.accelerator.max_memory_allocated(device)
    optimizer.state.clear()
    optimizer.zero_grad()
    profiler = sweeprof.Profiler(model, inputs=x, mode=mode, optimizer="adam", progress=False)
    by_sweeprof = profiler.compute("memory/cuda_allocated_peak_bytes").value
    assert others.numel()
    return [by_torch, by_sweeprof]


def measured(device: ctypes.CDLL) -> dict[str, Any]:
    """Return what sweeprof measures on the device."""
    import sweeprof
    from sweeprof.backends.torch.adapter import TorchBackend
    from sweeprof.doctor import kernel_times
    from sweeprof.profiling import conformance

    protocol = sweeprof.Protocol(min_s=0.02, warmup_s=0.0, min_samples=3)
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
    compared = {"inference": peaks("inference"), "training": peaks("training")}
    lines: Any = profiler.seen("lines")
    operators: Any = profiler.seen("operators")
    layers: Any = profiler.seen("layer_times")

    @sweeprof.profile_lines(memory=NAME)
    def step(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        return y + 1

    step(x.to(NAME))
    place, before = torch.device(NAME), torch.accelerator.memory_allocated()
    torch.accelerator.reset_peak_memory_stats(place)
    kernel = kernel_times({"device": NAME, "size": 64, "seconds": 0.02})
    kernel_bytes = torch.accelerator.max_memory_allocated(place) - before
    return {
        "devices": TorchBackend().devices(),
        "times": times,
        "memory": memory,
        "peaks": compared,
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
        "kernel": kernel,
        "kernel_bytes": kernel_bytes,
    }


if __name__ == "__main__":
    print(json.dumps(measured(register(Path(sys.argv[1])))))
