"""The operations of a forward pass in their order, from which a backward pass is counted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import keras

from sweeprof.backends.keras.costs import ATTENTION, PRODUCTS, elements
from sweeprof.backends.keras.layer_overrides import hidden_in
from sweeprof.backends.keras.tensors import dtype_of, tensors_in
from sweeprof.counting.formulas import OperatorCost

if TYPE_CHECKING:
    from sweeprof.backends.keras.calls import LayerCall

_GIVEN = "time"
"""What was made of others by no operation, as a layer's input of learned queries."""
_IN_PARTS = frozenset({*PRODUCTS, ATTENTION, _GIVEN})
"""Operations that weights may enter in parts."""


@dataclass(frozen=True, slots=True)
class TapeEntry:
    """One operation."""

    name: str
    path: str
    cost: OperatorCost | None
    """Of one time; None where it does no arithmetic."""
    used: tuple[keras.KerasTensor, ...]
    """Every tensor, variables among them."""
    learns: tuple[bool, ...]
    """Of each tensor that was used, whether it is a parameter that is trained."""
    made: tuple[keras.KerasTensor, ...]
    in_place: keras.KerasTensor | None
    """The tensor in whose memory the result is; None: it has memory of its own."""
    times: int


def entry(
    name: str,
    call: LayerCall,
    cost: OperatorCost | None,
    used: object,
    made: object,
    in_place: keras.KerasTensor | None,
    times: int,
) -> TapeEntry:
    """An operation of ``call``."""
    tensors = tuple(tensors_in(used))
    learns = tuple(_learns(tensor, call, name) for tensor in tensors)
    return TapeEntry(name, call.path, cost, tensors, learns, tuple(tensors_in(made)), in_place, times)


def _learns(tensor: keras.KerasTensor, call: LayerCall, name: str) -> bool:
    """True if a tensor is a trainable parameter, or is computed from a parameter of the layer.

    What a tensor was computed from is not known. One of the size of a parameter is that parameter in another shape, as a bias often
    is; in a product of a layer with weights of its own, any is taken for a part of them, as the kernel of a gate is. What a layer
    is given may be made of the weights of any layer around.
    """
    if isinstance(tensor, keras.KerasTensor):
        return False
    if isinstance(tensor, keras.Variable):
        return bool(tensor.trainable)
    if "float" not in dtype_of(tensor):
        return False
    own = _trained(call.layer)
    while name == _GIVEN and not own and call.parent is not None:
        call = call.parent
        own = _trained(call.layer)
    size = elements(tensor)
    return bool(own) and (name in _IN_PARTS or any(elements(weight) == size for weight in own))


def _trained(layer: keras.Layer | None) -> list[keras.Variable]:
    """Parameters of a layer itself, and of what has no row below it."""
    if not isinstance(layer, keras.Layer):
        return []
    return [weight for part in (layer, *hidden_in(layer)) for weight in part._trainable_variables if weight.trainable]
