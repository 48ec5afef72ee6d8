"""PyTorch in eager mode."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils import _pytree as pytree

from sweeprof.backends import Array, Build
from sweeprof.backends.torch.counting import built, count_layers
from sweeprof.errors import Unsupported
from sweeprof.profiling.layers import LayerTable
from sweeprof.profiling.memory import ProcessMemory
from sweeprof.profiling.timing import WallClock


@dataclass(frozen=True, slots=True)
class TorchBackend:
    """Eager PyTorch under ``torch.inference_mode``."""

    threads: int = 1
    """Threads within an operator."""

    def configure(self, seed: int) -> None:
        torch.set_num_threads(self.threads)
        if torch.get_num_interop_threads() != 1:  # can be set once in a process
            torch.set_num_interop_threads(1)
        torch.manual_seed(seed)

    def devices(self) -> list[str]:
        found = ["cpu"]
        if torch.cuda.is_available():
            found += ["cuda", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
        if torch.backends.mps.is_available():
            found.append("mps")
        return found

    def load(self, build: Build, device: str, channel_axis: int | None) -> TorchModel:
        return TorchModel(built(build).to(device).eval(), torch.device(device))

    def analyze(self, build: Build, batch: Array, channel_axis: int | None) -> LayerTable:
        return count_layers(build, tuple(batch.shape), torch.from_numpy(batch[:0]).dtype)

    def memory_meter(self) -> ProcessMemory:
        return ProcessMemory()

    def clock(self) -> WallClock:
        return WallClock()

    def is_out_of_memory(self, error: BaseException) -> bool:
        # The CPU allocator raises a plain RuntimeError.
        return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


@dataclass(frozen=True, slots=True)
class TorchModel:
    """A module in eval mode on a device."""

    module: torch.nn.Module
    device: torch.device

    def put(self, batch: Array) -> torch.Tensor:
        return torch.from_numpy(batch).to(self.device)

    @contextmanager
    def stepping(self, batch: torch.Tensor) -> Iterator[Callable[[], Any]]:
        module = self.module

        def step() -> Any:
            return module(batch)

        def synchronised_step() -> Any:
            outputs = module(batch)
            torch.accelerator.synchronize()
            return outputs

        with torch.inference_mode():
            yield step if self.device.type == "cpu" else synchronised_step

    def host_outputs(self, outputs: Any) -> npt.NDArray[np.float32]:
        tensors = [leaf for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, torch.Tensor)]
        if not tensors:
            raise Unsupported(f"the model returned a {type(outputs).__name__} without a tensor")
        answer: npt.NDArray[np.float32] = tensors[0].detach().to("cpu", torch.float32).numpy()
        return answer
