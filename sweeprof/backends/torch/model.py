"""A module on a device, ready to step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.utils.rnn import PackedSequence

from sweeprof.backends.torch.callsites import tensors_in
from sweeprof.backends.torch.clock import clock_of
from sweeprof.backends.torch.state import is_compiled
from sweeprof.backends.torch.variants import AS_IT_IS, TorchVariant
from sweeprof.errors import Unsupported
from sweeprof.measuring.inputs import Inputs, TensorSpec
from sweeprof.measuring.timing import Clock


def on_device(inputs: Inputs, device: str | torch.device) -> Inputs:
    """The inputs with every tensor on ``device``; on meta, shapes only. What is only specified is generated there."""
    place = torch.device(device)

    def moved(leaf: Any) -> Any:  # noqa: PLR0911  # one for each kind of leaf
        if isinstance(leaf, np.ndarray):
            made = torch.from_numpy(leaf)
            return made.to(place) if place.type != "meta" else torch.empty_like(made, device=place)
        if isinstance(leaf, TensorSpec):
            return _generated(leaf, place)
        if isinstance(leaf, PackedSequence):  # its batch sizes stay on the host
            return PackedSequence(moved(leaf.data), leaf.batch_sizes, leaf.sorted_indices, leaf.unsorted_indices)
        if not isinstance(leaf, torch.Tensor) and isinstance(leaf, Mapping):  # such as a tokenizer's BatchEncoding
            return {key: moved(value) for key, value in leaf.items()}
        if not isinstance(leaf, torch.Tensor) or (leaf.is_meta and leaf.device == place):
            return leaf
        if place.type == "meta" and leaf.layout == torch.strided:
            made = torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device=place)
            return made.requires_grad_(leaf.requires_grad)
        if leaf.is_meta:
            return torch.zeros(leaf.shape, dtype=leaf.dtype, device=place)
        return leaf.detach().to(place, copy=True).requires_grad_(leaf.requires_grad)  # a forward may write into it

    return inputs.map(moved)


def _generated(spec: TensorSpec, device: torch.device) -> torch.Tensor:
    """Return a tensor generated from ``spec``, with the same values each time."""
    dtype = getattr(torch, spec.dtype)
    if device.type == "meta":
        return torch.empty(spec.shape, dtype=dtype, device=device)
    if not (dtype.is_floating_point or dtype.is_complex):
        return torch.zeros(spec.shape, dtype=dtype, device=device)
    values = torch.randn(spec.shape, generator=torch.Generator().manual_seed(0))
    return values.to(device, dtype)


@dataclass(frozen=True, slots=True)
class TorchModel:
    """A module in inference mode on a device."""

    module: torch.nn.Module
    device: torch.device
    variant: TorchVariant = AS_IT_IS

    @property
    def native(self) -> torch.nn.Module:
        return self.module

    @property
    def compiles(self) -> bool:
        return is_compiled(self.module)

    def clock(self) -> Clock:
        return clock_of(self.device)

    def put(self, inputs: Inputs) -> Inputs:
        with torch.inference_mode(False):  # a batch that is made within it can never be trained on
            return on_device(inputs, self.device).map(self.variant.prepared)

    @contextmanager
    def stepping(self, batch: Inputs) -> Iterator[Callable[[], Any]]:
        step = self.forward_of(batch)

        def synchronised_step() -> Any:
            outputs = step()
            torch.accelerator.synchronize(self.device)
            return outputs

        with torch.inference_mode():
            yield step if self.device.type == "cpu" else synchronised_step

    def forward_of(self, batch: Inputs) -> Callable[[], Any]:
        """A function that runs one forward; it does not wait for the device, and leaves gradients as they are set."""
        called = self.module if batch.forward is None else partial(batch.forward, self.module)
        return partial(called, *batch.args, **batch.kwargs)

    def host_outputs(self, outputs: Any) -> npt.NDArray[np.float32]:
        answer: npt.NDArray[np.float32] = first_tensor(outputs).detach().to("cpu", torch.float32).numpy()
        return answer

    def transfers(self, inputs: Inputs, outputs: Any) -> Mapping[str, Callable[[], object]]:
        if self.device.type == "cpu":
            return {}

        host = on_device(inputs, "cpu").map(self.variant.prepared)

        def to_device() -> None:
            on_device(host, self.device)
            torch.accelerator.synchronize(self.device)

        return {"h2d": to_device, "d2h": lambda: [tensor.to("cpu") for tensor in tensors_in(outputs)]}


def first_tensor(outputs: Any) -> torch.Tensor:
    """The first tensor in what a model returned.

    Raises:
        Unsupported: there is none.
    """
    tensors = tensors_in(outputs)
    if not tensors:
        raise Unsupported(f"the model returned a {type(outputs).__name__} without a tensor")
    return tensors[0]
