"""Inputs as tensors on a device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import PackedSequence

from sweeprof.profiling.inputs import Inputs, TensorSpec


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
    """What ``spec`` asks for, the same values each time."""
    dtype = getattr(torch, spec.dtype)
    if device.type == "meta":
        return torch.empty(spec.shape, dtype=dtype, device=device)
    if not (dtype.is_floating_point or dtype.is_complex):
        return torch.zeros(spec.shape, dtype=dtype, device=device)
    values = torch.randn(spec.shape, generator=torch.Generator().manual_seed(0))
    return values.to(device, dtype)
