"""PyTorch in eager mode."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sweeprof.backends import Build
from sweeprof.backends.torch.building import built, device_of
from sweeprof.backends.torch.callsites import tensors_in
from sweeprof.backends.torch.counting import count_built, in_inference
from sweeprof.backends.torch.feeding import on_device
from sweeprof.backends.torch.state import unchanged
from sweeprof.backends.torch.training import count_built_training
from sweeprof.errors import Unsupported
from sweeprof.profiling.formulas import Formulas
from sweeprof.profiling.inputs import Inputs
from sweeprof.profiling.memory import ProcessMemory
from sweeprof.profiling.timing import WallClock
from sweeprof.results.layers import LayerTable, Training


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
        return TorchModel(in_inference(built(build)).to(device), torch.device(device))

    def analyze(self, build: Build, inputs: Inputs, channel_axis: int | None, formulas: Formulas) -> LayerTable:
        return count_built(build, inputs, formulas)

    def analyze_training(self, build: Build, inputs: Inputs, channel_axis: int | None, formulas: Formulas) -> Training:
        return count_built_training(build, inputs, formulas)

    def device_of(self, model: torch.nn.Module) -> str:
        return str(device_of(model) or "cpu")

    @contextmanager
    def borrowed(self, model: torch.nn.Module) -> Iterator[None]:
        with unchanged(model):
            for module in model.modules():
                # Not `eval()`: what a model does when it is called, merging adapters for example, could not be undone.
                module.__dict__["training"] = False
            yield

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

    @property
    def native(self) -> torch.nn.Module:
        return self.module

    def put(self, inputs: Inputs) -> Inputs:
        return on_device(inputs, self.device)

    @contextmanager
    def stepping(self, batch: Inputs) -> Iterator[Callable[[], Any]]:
        called = self.module if batch.forward is None else partial(batch.forward, self.module)
        step = partial(called, *batch.args, **batch.kwargs)

        def synchronised_step() -> Any:
            outputs = step()
            torch.accelerator.synchronize()
            return outputs

        with torch.inference_mode():
            yield step if self.device.type == "cpu" else synchronised_step

    def host_outputs(self, outputs: Any) -> npt.NDArray[np.float32]:
        tensors = tensors_in(outputs)
        if not tensors:
            raise Unsupported(f"the model returned a {type(outputs).__name__} without a tensor")
        answer: npt.NDArray[np.float32] = tensors[0].detach().to("cpu", torch.float32).numpy()
        return answer
