"""Ways to run the same module: in another precision, another memory layout, compiled."""

from __future__ import annotations

import os
import shutil
import sys
import warnings
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch.nn.parameter import UninitializedParameter
from torch.nn.utils.rnn import PackedSequence

from sweeprof.errors import Unsupported, UserError, choice_problem
from sweeprof.measuring.inputs import TensorSpec

INT8 = "int8-dynamic"
TorchPrecision = Literal["fp32", "bf16", "fp16", "int8-dynamic"]
PRECISIONS: dict[str, torch.dtype] = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    INT8: torch.float32,
}
"""Data type of parameters and floating-point inputs."""


@dataclass(frozen=True, slots=True)
class TorchVariant:
    """The precision and layout in which a module runs, and whether it is compiled.

    Raises:
        UserError: there is no such precision.
    """

    precision: str | None = None
    """One of :data:`PRECISIONS`; None: as the module is."""
    channels_last: bool = False
    """True: images are stored with their channels last."""
    compile: bool = False
    """True: ``torch.compile`` generates kernels."""

    def __post_init__(self) -> None:
        if self.precision is not None and self.precision not in PRECISIONS:
            raise UserError([choice_problem("backend.precision", self.precision, "precision", PRECISIONS)])

    @property
    def dtype(self) -> torch.dtype | None:
        """The data type of floating-point parameters and inputs; None leaves them unchanged."""
        return None if self.precision is None else PRECISIONS[self.precision]

    def of(self, module: torch.nn.Module) -> torch.nn.Module:
        """The module as this variant runs it; parameters change in place, a quantized or compiled module is another one.

        Raises:
            Unsupported: this host has no kernels or no compiler for it.
        """
        if self.dtype is not None:
            for parameter in module.parameters():
                parameter.grad = None  # it may be a caller's, and `to` would write into it
            module = module.to(self.dtype)
        if self.channels_last:
            _store_channels_last(module)
        if self.precision == INT8:
            module = _quantized(module)
        return _compiled(module) if self.compile else module

    def prepared(self, leaf: Any) -> Any:
        """An input as this variant wants it, wherever it is."""
        if isinstance(leaf, TensorSpec):
            return self._specified(leaf)
        if isinstance(leaf, np.ndarray):
            leaf = torch.from_numpy(leaf)
        if isinstance(leaf, PackedSequence):
            return leaf.to(self.dtype) if self.dtype is not None and leaf.data.is_floating_point() else leaf
        if not isinstance(leaf, torch.Tensor):
            return leaf
        made = leaf.detach()
        if self.dtype is not None and made.is_floating_point():
            made = made.to(self.dtype)
        if self.channels_last and made.dim() == 4:
            made = made.contiguous(memory_format=torch.channels_last)
        return made.requires_grad_(leaf.requires_grad)

    def _specified(self, spec: TensorSpec) -> TensorSpec:
        if self.dtype is None or not getattr(torch, spec.dtype).is_floating_point:
            return spec
        return replace(spec, dtype=str(self.dtype).removeprefix("torch."))


AS_IT_IS = TorchVariant()


def _store_channels_last(module: torch.nn.Module) -> None:
    """The weights of two-dimensional convolutions; ``Module.to`` raises where there are three-dimensional ones too."""
    for parameter in module.parameters():
        if not isinstance(parameter, UninitializedParameter) and parameter.dim() == 4:
            parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)


def _quantized(module: torch.nn.Module) -> torch.nn.Module:
    """Linear and recurrent layers with 8-bit weights; their inputs are quantized as they come."""
    device = next((parameter.device.type for parameter in module.parameters()), "cpu")
    if device not in ("cpu", "meta"):
        raise Unsupported(f"torch quantizes dynamically on the host only, and the model is on {device}")
    if torch.backends.quantized.engine == "none":
        raise Unsupported("this build of torch has no kernels for quantized layers")
    kinds = {torch.nn.Linear, torch.nn.LSTM, torch.nn.GRU}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it tells of its successor, torchao, with every call
        made: torch.nn.Module = torch.ao.quantization.quantize_dynamic(  # type: ignore[no-untyped-call]
            module, kinds, dtype=torch.qint8
        )
    return made


def _compiled(module: torch.nn.Module) -> torch.nn.Module:
    device = next((parameter.device.type for parameter in module.parameters()), "cpu")
    compiler = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")
    if device == "cpu" and shutil.which(compiler) is None:
        raise Unsupported(
            f"torch.compile builds its kernels with a C++ compiler, and there is no {compiler}: install it, or set CXX"
        )
    made: torch.nn.Module = torch.compile(module)  # type: ignore[assignment]
    return made
