"""How many parameters a model has, and their size. Storage-tied parameters count once; moving statistics are no parameters."""

from __future__ import annotations

from sweeprof.metrics.metric import metric
from sweeprof.results.layers import LayerTable
from sweeprof.results.measurement import Number


@metric(name="params/total", unit="params", better="lower")
def total(layers: LayerTable) -> int:
    """Unique parameters, trainable and frozen."""
    return layers.params


@metric(name="params/trainable", unit="params", better=None)
def trainable(layers: LayerTable) -> int:
    """Unique parameters that an optimizer may change."""
    return layers.trainable


@metric(name="params/frozen", unit="params", better=None)
def frozen(layers: LayerTable) -> int:
    """Unique parameters that no optimizer may change."""
    return layers.params - layers.trainable


@metric(name="params/buffers", unit="params", better=None)
def buffers(layers: LayerTable) -> int:
    """Elements of persistent state that no optimizer sees, such as the moving statistics of batch norms."""
    return layers.buffers


@metric(name="size/params_bytes", unit="B", better="lower")
def params_bytes(layers: LayerTable) -> Number:
    """Bytes of all unique parameters in their own data types, or in those that a module declares."""
    return layers.params_bytes


@metric(name="size/params_bits", unit="bit", better="lower")
def params_bits(layers: LayerTable) -> Number:
    """Bits of all unique parameters in their own data types, or in those that a module declares."""
    bits = 8 * layers.params_bytes
    return int(bits) if bits == int(bits) else bits


@metric(name="size/buffers_bytes", unit="B", better=None)
def buffers_bytes(layers: LayerTable) -> Number:
    """Bytes of persistent state that no optimizer sees."""
    return layers.buffers_bytes
