"""Memory of steps in a fresh process, twice: as sweeprof measures it, and as an interposed ``malloc`` sees it in plain torch code.

``python -m support.step_memory OBSERVER MODULE:FUNCTION:MODE …``, where the function makes a module and its input.

The interposer counts whatever a process has from malloc: tensors, scratch space of kernels, and what libraries and Python keep.
MKL and oneDNN keep some megabytes from their first call on, and an optimizer's first step imports half of torch. So one step runs
before the baseline is taken, its gradients are dropped, and what it left behind, which is in neither peak, is reported as
``kept``. sweeprof measures from the very first step on.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

STEPS = 3
SOURCE = Path(__file__).with_name("malloc_watch.c")


def compiler() -> str | None:
    """The C compiler of this machine."""
    return shutil.which("cc") or shutil.which("gcc")


def observed(observer: str, jobs: Sequence[str], folder: Path) -> list[dict[str, float]]:
    """What ``ours`` or ``malloc`` says of each job, in one fresh process; the compiled interposer is kept in ``folder``."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, Path(__file__).parents[:2]))}
    environment["PYTHONPATH"] += os.pathsep + str(Path(__file__).parents[2])
    if observer == "malloc":
        library = folder / "malloc_watch.so"
        if not library.exists():
            command = [str(compiler()), "-O2", "-shared", "-fPIC", "-o", str(library), str(SOURCE)]
            subprocess.run(command, check=True)
        environment["LD_PRELOAD"] = str(library)
    command = [sys.executable, "-m", "support.step_memory", observer, *jobs]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    found: list[dict[str, float]] = json.loads(done.stdout.splitlines()[-1])
    return found


def _made(job: str) -> tuple[torch.nn.Module, torch.Tensor, str]:
    module, function, mode = job.split(":")
    torch.manual_seed(0)
    model, given = getattr(importlib.import_module(module), function)()
    return model.eval(), given, mode


def ours(job: str) -> dict[str, float]:
    """Peak and estimate, in bytes; of a training step the estimate is one of the first step, which has a peak of its own."""
    from sweeprof.backends.torch.adapter import TorchBackend
    from sweeprof.counting.formulas import DEFAULTS
    from sweeprof.measuring.inputs import Inputs
    from sweeprof.measuring.training_config import TrainingConfig, Work

    module, given, mode = _made(job)
    inputs, backend = Inputs((given,)), TorchBackend()
    config = TrainingConfig() if mode == "training" else None
    analyze: Callable[..., Any] = backend.analyze_training if config else backend.analyze
    liveness = analyze(lambda: module, inputs, None, DEFAULTS).liveness
    model = backend.load(lambda: module, "cpu", None)
    seen = backend.allocations(model, Work(model.put(inputs), None, config))
    return {"peak": seen.peak_bytes, "first": seen.step_peaks_bytes[0], "estimate": liveness.peak_bytes}


def malloc(job: str) -> dict[str, float]:
    """Peak of all steps and of the first, in bytes, and what a step before them left behind."""
    library = ctypes.CDLL(None)
    library.watch_live.restype = library.watch_peak.restype = ctypes.c_long
    module, given, mode = _made(job)
    if mode == "training":
        module.train()
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-4)

    def step() -> None:
        if mode == "inference":
            with torch.inference_mode():
                module(given)
            return
        optimizer.zero_grad(set_to_none=True)
        loss = module(given).mean()
        loss.backward()
        del loss
        optimizer.step()

    gc.collect()
    untouched = library.watch_live()
    step()
    optimizer.zero_grad(set_to_none=True)
    gc.collect()
    baseline = library.watch_live()
    library.watch_again()
    peaks = []
    for _ in range(STEPS):
        step()
        peaks.append(library.watch_peak() - baseline)
    return {"peak": peaks[-1], "first": peaks[0], "kept": baseline - untouched}


def main() -> None:
    observer, *jobs = sys.argv[1:]
    torch.set_num_threads(1)
    observe = {"ours": ours, "malloc": malloc}[observer]
    print(json.dumps([observe(job) for job in jobs]))


if __name__ == "__main__":
    main()
