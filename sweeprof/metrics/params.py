"""How many parameters a model has, and their size. Storage-tied parameters count once; moving statistics are no parameters."""

from __future__ import annotations

from sweeprof.metrics.metric import metric
from sweeprof.results.layers import LayerTable
from sweeprof.results.measurement import Number


@metric(name="params/total", unit="params", better="lower")
def total(weights: LayerTable) -> int:
    """Unique parameters, trainable and frozen."""
    return weights.params


@metric(name="params/trainable", unit="params", better=None)
def trainable(weights: LayerTable) -> int:
    """Unique parameters that an optimizer may change."""
    return weights.trainable


@metric(name="params/frozen", unit="params", better=None)
def frozen(weights: LayerTable) -> int:
    """Unique parameters that no optimizer may change."""
    return weights.params - weights.trainable


@metric(name="params/buffers", unit="params", better=None)
def buffers(weights: LayerTable) -> int:
    """Elements of persistent state that no optimizer sees, such as the moving statistics of batch norms."""
    return weights.buffers


@metric(name="size/params_bytes", unit="B", better="lower")
def params_bytes(weights: LayerTable) -> Number:
    """Bytes of all unique parameters in their own data types, or in those that a module declares."""
    return weights.params_bytes


@metric(name="size/params_bits", unit="bit", better="lower")
def params_bits(weights: LayerTable) -> Number:
    """Bits of all unique parameters in their own data types, or in those that a module declares."""
    bits = 8 * weights.params_bytes
    return int(bits) if bits == int(bits) else bits


@metric(name="size/buffers_bytes", unit="B", better=None)
def buffers_bytes(weights: LayerTable) -> Number:
    """Bytes of persistent state that no optimizer sees."""
    return weights.buffers_bytes
