"""The row of a layer table, made of what a backend knows of one call: its tensors, its weights and its costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sweeprof.counting.formulas import OperatorCost
from sweeprof.results.layer_times import OUTSIDE, ROOT
from sweeprof.results.layers import Bytes, LayerRow, Shapes, Weights


class TensorShapes(NamedTuple):
    """Shapes, data types and bytes of some tensors, without holding them."""

    shapes: Shapes = ()
    dtypes: tuple[str, ...] = ()
    nbytes: Bytes | None = 0
    """None where a shape is not known, or a data type has no size, as strings have none."""
    elements: int = 0


NO_TENSORS = TensorShapes()


def together(parts: Sequence[TensorShapes]) -> TensorShapes:
    """Return the description of several tensors, from one of each."""
    if len(parts) == 1:
        return parts[0]
    sizes = [part.nbytes for part in parts if part.nbytes is not None]
    return TensorShapes(
        tuple([shape for part in parts for shape in part.shapes]),
        tuple([dtype for part in parts for dtype in part.dtypes]),
        sum(sizes) if len(sizes) == len(parts) else None,
        sum([part.elements for part in parts]),
    )


def layer_row(
    path: str,
    kind: str,
    weights: Weights,
    cost: OperatorCost,
    inputs: TensorShapes,
    outputs: TensorShapes,
    *,
    is_leaf: bool,
) -> LayerRow:
    """Return the row of the first call of a module.

    Args:
        path: of the module.
        kind: its type.
        weights: its own.
        cost: of its own operators.
        inputs: what it was given.
        outputs: what it returned.
        is_leaf: False if calls within it return its activations.
    """
    macs, flops, ops = cost
    return LayerRow(
        path=path,
        type=kind,
        depth=0 if path in (ROOT, OUTSIDE) else path.count(".") + 1,
        call=0,
        params=weights.params,
        trainable=weights.trainable,
        params_bytes=weights.params_bytes,
        buffers=weights.buffers,
        macs=macs,
        input_shapes=inputs.shapes,
        output_shapes=outputs.shapes,
        flops=flops,
        ops=ops,
        act_bytes=outputs.nbytes if is_leaf else 0,
        input_bytes=inputs.nbytes,
        output_bytes=outputs.nbytes,
        input_dtypes=inputs.dtypes,
        output_dtypes=outputs.dtypes,
        buffers_bytes=weights.buffers_bytes,
        dtypes=weights.dtypes,
    )
