"""The work of one step in the workload's own unit: samples, tokens, images, seconds of audio."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from sweeprof.errors import DatasetError
from sweeprof.measuring.inputs import Inputs
from sweeprof.nested import named_leaves
from sweeprof.tensors import array_of

SAMPLES = "samples"
_LONGEST_UNIT = 40


@dataclass(frozen=True, slots=True)
class Workload:
    """How much work one step does."""

    unit: str
    """A noun in the plural."""
    units: float
    """Of the whole batch, without padding."""


def workload_of(dataset: object, inputs: Inputs, batch_size: int, name: str | None = None) -> Workload:
    """Return the work of one step on a batch of a dataset.

    A dataset that names no unit is counted in samples. Otherwise its ``unit`` is a noun in the plural, and the number of units in
    the batch is, in this order: what its method ``units_in(inputs)`` returns; ``units_per_sample`` times the batch size; for tokens
    the number of real tokens by the attention masks. Of ``units_per_sample`` tokens those that the masks say are padding are not
    counted.

    Args:
        dataset: may have the attributes ``unit``, ``units_per_sample`` and ``units_in``.
        inputs: of the batch, as the model gets them.
        batch_size: samples in the batch.
        name: of who gives unit and units instead of a dataset, for errors; None: the class of the dataset.

    Raises:
        DatasetError: the attributes are not of these forms, or do not tell how many units there are.
    """
    unit: object = getattr(dataset, "unit", None)
    per_sample: Any = getattr(dataset, "units_per_sample", None)
    count = getattr(dataset, "units_in", None)
    if unit is None and per_sample is None and count is None:
        return Workload(SAMPLES, batch_size)
    kind = type(dataset)
    is_given = name is not None
    name = name or f"dataset {kind.__module__}.{kind.__qualname__}"
    if not isinstance(unit, str) or not unit.strip() or len(unit) > _LONGEST_UNIT or not unit.isprintable():
        allowed = f"must be a noun in the plural of up to {_LONGEST_UNIT} characters, such as 'tokens'"
        raise DatasetError(f"{name}: unit {unit!r} {allowed}")
    arguments: Any = dict(inputs.kwargs) or inputs.args
    if isinstance(arguments, tuple) and len(arguments) == 1:
        arguments = arguments[0]
    if count is not None and not callable(count):
        raise DatasetError(f"{name}: units_in {count!r} is not a method units_in(inputs)")
    if count is not None:
        return Workload(unit, _checked(count(arguments), f"{name}: units_in(inputs) returned"))
    masks = _attention_masks(arguments) if unit == "tokens" else []
    real = sum(int(np.count_nonzero(mask)) for mask in masks)
    if per_sample is not None:
        padding = sum(mask.size for mask in masks) - real
        units = _checked(per_sample, f"{name}: units_per_sample is") * batch_size - padding
        return Workload(unit, _checked(units, f"{name}: units_per_sample={per_sample!r} without the padding is"))
    if not masks:
        ways = "units" if is_given else "units_per_sample, a method units_in(inputs)"
        ways += ", or for tokens an attention_mask among its inputs"
        raise DatasetError(f"{name}: unit {unit!r} needs a number of units in a batch: {ways}")
    return Workload(unit, _checked(real, f"{name}: the number of tokens by the attention_mask is"))


def _attention_masks(inputs: object) -> list[np.ndarray[Any, Any]]:
    """Return the masks of the form ``(batch, tokens)``, such as ``attention_mask`` and ``decoder_attention_mask``."""
    named = {path: leaf for path, leaf in named_leaves(inputs).items() if path.endswith("attention_mask")}
    masks = [array_of(mask) for mask in named.values()]
    return [mask for mask in masks if mask.ndim == 2]


def _checked(units: Any, subject: str) -> float:
    """Return a number of units; raise :class:`DatasetError` if it is not a finite number above zero."""
    is_number = isinstance(units, int | float | np.number) and not isinstance(units, bool)
    if not is_number or not math.isfinite(units) or units <= 0:
        raise DatasetError(f"{subject} {units!r}, which is not a number above 0")
    return int(units) if float(units).is_integer() else float(units)
