"""How many parameters a model has, and their size. Storage-tied parameters count once; moving statistics are no parameters."""

from __future__ import annotations

from sweeprof.metrics.metric import metric
from sweeprof.profiling.layers import LayerTable


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


@metric(name="size/params_bytes", unit="B", better="lower")
def params_bytes(layers: LayerTable) -> int:
    """Bytes of all unique parameters in their own data types."""
    return layers.params_bytes
