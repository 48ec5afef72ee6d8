"""Modules with 8-bit weights whose inputs are quantized as they come: by torchao, or by torch's own ``torch.ao.quantization``."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import torch
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from sweeprof.errors import Unsupported
from sweeprof.results.layers import LayerRow, LayerTable, Weights

_RECURRENT = (torch.nn.LSTM, torch.nn.GRU)


def quantized(module: torch.nn.Module, method: str | None) -> torch.nn.Module:
    """A copy of a module with 8-bit weights in its linear layers, and with ``torch_ao`` in its recurrent layers, too.

    Args:
        module: in 32 bits.
        method: ``torchao`` or ``torch_ao``; None: torchao if it is installed and there are linear layers.

    Raises:
        Unsupported: there is no layer that can be quantized, or no kernel or package for it here.
    """
    has_linear = any(_is_linear(inner) for inner in module.modules())
    has_recurrent = any(isinstance(inner, _RECURRENT) for inner in module.modules())
    if not has_linear and not has_recurrent:
        raise Unsupported("the model has no linear or recurrent layer, and torch quantizes no other dynamically")
    if method is None:
        method = "torchao" if has_linear and find_spec("torchao") is not None else "torch_ao"
    if method == "torch_ao":
        return _by_torch(module)
    if not has_linear:
        raise Unsupported(
            "the model has no linear layer, and torchao quantizes no other; precision_method=torch_ao does"
        )
    return _by_torchao(module)


def method_of(module: torch.nn.Module) -> str:
    """Return by which method a module was quantized."""
    return "torchao" if any(hasattr(p, "__tensor_flatten__") for p in module.parameters()) else "torch_ao"


def with_quantized_weights(table: LayerTable, weights: LayerTable) -> LayerTable:
    """Return a table of layers with the bytes and data types of the parameters in another table of the same layers.

    Args:
        table: as counted in 32 bits.
        weights: of the quantized module.
    """
    held: dict[str, LayerRow] = {}
    for row in weights.rows:
        held.setdefault(row.path, row)
    rows = []
    for row in table.rows:
        other = held.pop(row.path, None)  # a second call of a layer holds nothing
        if other is None:
            rows.append(row)
            continue
        subtree = _with_bytes(row.subtree, other.subtree)
        rows.append(replace(row, params_bytes=other.params_bytes, dtypes=other.dtypes, subtree=subtree))
    return replace(table, rows=tuple(rows))


def _with_bytes(subtree: Weights | None, quantized: Weights | None) -> Weights | None:
    if subtree is None or quantized is None:
        return subtree
    return replace(subtree, params_bytes=quantized.params_bytes, dtypes=quantized.dtypes)


def _is_linear(module: torch.nn.Module) -> bool:
    """True for a linear layer that is called; attention reads the weight of its last one itself."""
    return isinstance(module, torch.nn.Linear) and not isinstance(module, NonDynamicallyQuantizableLinear)


def _by_torchao(module: torch.nn.Module) -> torch.nn.Module:
    if find_spec("torchao") is None:
        raise Unsupported("precision_method=torchao needs the package torchao: pip install torchao")
    made = copy.deepcopy(module)
    with _quietly():
        from torchao.quantization import Int8DynamicActivationInt8WeightConfig, quantize_

        quantize_(made, Int8DynamicActivationInt8WeightConfig(), filter_fn=lambda inner, _: _is_linear(inner))
    # torch.compile advises the authors of tensor classes.
    warnings.filterwarnings("ignore", message="Int8Tensor does not implement")
    return made


@contextmanager
def _quietly() -> Iterator[None]:
    """Without what torchao says when it is imported: which of its extensions were built for other platforms, and deprecations."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _by_torch(module: torch.nn.Module) -> torch.nn.Module:
    device = next((parameter.device.type for parameter in module.parameters()), "cpu")
    if device not in ("cpu", "meta"):
        raise Unsupported(f"torch quantizes dynamically on the host only, and the model is on {device}")
    if torch.backends.quantized.engine == "none":
        raise Unsupported("this build of torch has no kernels for quantized layers")
    quantization: Any = getattr(torch.ao, "quantization", None)
    if quantization is None:
        raise Unsupported("this release of torch has no dynamic quantization: pip install torchao")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it tells of its successor, torchao, with every call
        made: torch.nn.Module = quantization.quantize_dynamic(module, {torch.nn.Linear, *_RECURRENT}, dtype=torch.qint8)
    return made
