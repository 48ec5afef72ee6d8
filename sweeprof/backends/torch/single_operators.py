"""Layers of ``torch.nn`` that run one operator: which, and with which arguments, as far as their attributes decide it.

Such a layer need not be run over shapes. ``tests/unit/backends/test_torch_single_operators.py`` runs each, and compares the
operator that torch runs.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter, is_
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from sweeprof.backends.torch.private import OpOverload
from sweeprof.counting.formulas import Args

_aten: Any = torch.ops.aten
OperatorRun = tuple[OpOverload, Args]
Rule = Callable[[Any, torch.Tensor], OperatorRun | None]
"""From a layer and its input to the operator; None for settings with which it runs another one, or several."""

_PLAIN: frozenset[Any] = frozenset({nn.Parameter, torch.Tensor, type(None)})


def _weights_of(layer: Any) -> tuple[torch.Tensor | None, torch.Tensor | None] | None:
    """Return weight and bias; None where they are computed, as with a pruning mask, or are no plain tensors."""
    held = layer._parameters
    if "weight" not in held or "bias" not in held:
        return None
    weight, bias = held["weight"], held["bias"]
    is_plain = type(weight) in _PLAIN and type(bias) in _PLAIN
    return (weight, bias) if is_plain else None


def _convolution(func: OpOverload) -> Rule:
    def rule(layer: Any, given: torch.Tensor) -> OperatorRun | None:
        weights = _weights_of(layer)
        if weights is None or layer.padding_mode != "zeros" or type(layer.padding) is str:
            return None
        return func, (given, *weights, layer.stride, layer.padding, layer.dilation, layer.groups)

    return rule


def _linear(layer: Any, given: torch.Tensor) -> OperatorRun | None:
    weights = _weights_of(layer)
    return None if weights is None else (_aten.linear.default, (given, *weights))


def _batch_norm(layer: Any, given: torch.Tensor) -> OperatorRun | None:
    """With the statistics that it has learned."""
    mean, variance = layer._buffers.get("running_mean"), layer._buffers.get("running_var")
    weights = _weights_of(layer)
    if layer.training or mean is None or variance is None or weights is None or given.dim() != 4:
        return None
    cudnn = torch.backends.cudnn.enabled
    return _aten.batch_norm.default, (given, *weights, mean, variance, False, layer.momentum or 0.0, layer.eps, cudnn)


def _layer_norm(layer: Any, given: torch.Tensor) -> OperatorRun | None:
    weights = _weights_of(layer)
    if weights is None:
        return None
    return _aten.layer_norm.default, (given, layer.normalized_shape, *weights, layer.eps, torch.backends.cudnn.enabled)


def _with_attributes(name: str, attributes: str = "") -> Rule:
    """Return the rule of a layer whose operator, which may work in place, takes the input and some attributes."""
    names = attributes.split()

    def rule(layer: Any, given: torch.Tensor) -> OperatorRun | None:
        func = getattr(_aten, f"{name}_" if vars(layer).get("inplace") else name)
        return func.default, (given, *[getattr(layer, attribute) for attribute in names])

    return rule


def _gelu(layer: Any, given: torch.Tensor) -> OperatorRun | None:
    return (_aten.gelu.default, (given,)) if layer.approximate == "none" else None


def _dropout(layer: Any, given: torch.Tensor) -> OperatorRun | None:
    return None if layer.training or layer.inplace else (_aten.dropout.default, (given, layer.p, False))


def _max_pool(layer: Any, given: torch.Tensor) -> OperatorRun | None:
    if layer.return_indices:
        return None
    sizes = layer.kernel_size, layer.stride, layer.padding, layer.dilation
    return _aten.max_pool2d.default, (given, *sizes, layer.ceil_mode)


def _adaptive_average_pool(layer: Any, given: torch.Tensor) -> OperatorRun | None:
    size = layer.output_size
    return _aten.adaptive_avg_pool2d.default, (given, (size, size) if type(size) is int else size)


SINGLE_OPERATORS: dict[type[nn.Module], Rule] = {
    nn.Conv1d: _convolution(_aten.conv1d.default),
    nn.Conv2d: _convolution(_aten.conv2d.default),
    nn.Linear: _linear,
    nn.BatchNorm2d: _batch_norm,
    nn.LayerNorm: _layer_norm,
    nn.ReLU: _with_attributes("relu"),
    nn.ReLU6: _with_attributes("hardtanh", "min_val max_val"),
    nn.Hardtanh: _with_attributes("hardtanh", "min_val max_val"),
    nn.SiLU: _with_attributes("silu"),
    nn.Hardswish: _with_attributes("hardswish"),
    nn.Hardsigmoid: _with_attributes("hardsigmoid"),
    nn.Sigmoid: _with_attributes("sigmoid"),
    nn.GELU: _gelu,
    nn.Dropout: _dropout,
    nn.MaxPool2d: _max_pool,
    nn.AvgPool2d: _with_attributes(
        "avg_pool2d", "kernel_size stride padding ceil_mode count_include_pad divisor_override"
    ),
    nn.AdaptiveAvgPool2d: _adaptive_average_pool,
}
"""Of exactly these classes; a subclass may do anything else."""

_called_by_layers = attrgetter(
    *"conv1d conv2d linear batch_norm layer_norm relu hardtanh silu hardswish hardsigmoid gelu dropout".split(),
    *"max_pool2d avg_pool2d adaptive_avg_pool2d".split(),
)
_forward = attrgetter("forward")


def _functions() -> tuple[object, ...]:
    """Return the functions that these layers run."""
    convolutions = nn.Conv1d._conv_forward, nn.Conv2d._conv_forward
    return *_called_by_layers(functional), *map(_forward, SINGLE_OPERATORS), *convolutions


_FUNCTIONS = _functions()


def are_original() -> bool:
    """True if nothing has replaced the forwards of these layers or the functions that they call, as some profilers do."""
    return all(map(is_, _functions(), _FUNCTIONS))


def operator_of(module: nn.Module) -> Rule | None:
    """Return the rule for a module; None if it is no such layer, or has a forward of its own."""
    attributes = vars(module)
    return None if "forward" in attributes or "_conv_forward" in attributes else SINGLE_OPERATORS.get(type(module))
