"""Checks of what a dataset returns, so that data of another form are an error and not a measurement of something else."""

from __future__ import annotations

import numbers
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from sweeprof.datasets import Dataset, Split, SplitName
from sweeprof.errors import DatasetError
from sweeprof.results.record import Warning
from sweeprof.tracebacks import definition_of, located_at

ONE_ARRAY = (
    "one array per sample is supported: join several inputs into one array, as np.stack([a, b], axis=1) does, and take it"
    " apart in the model's forward, or profile the model with sweeprof.Profiler(model, inputs=(a, b))"
)
_NOT_NUMBERS = "OSUMm"
"""Kinds of dtypes: objects, bytes, text, dates and durations."""


def checked_split(dataset: Dataset, name: SplitName) -> Split:
    """The samples of a split.

    Raises:
        DatasetError: with everything that is wrong with them, and where the dataset's ``split`` is defined.
        Exception: whatever the dataset raised.
    """
    method = getattr(type(dataset), "split", None)
    if not callable(getattr(dataset, "split", None)):
        raise DatasetError(f"dataset {_name(dataset)} has no method split(name)")
    split = dataset.split(name)
    problems = list(_split_problems(dataset, name, split))
    if problems:
        location = None if method is None else definition_of(method)
        place = "" if location is None else f" ({location})"
        error = DatasetError(f"dataset {_name(dataset)}{place}: {'; '.join(problems)}")
        located_at(error, location)
        raise error
    return split


def not_finite(name: SplitName, split: Split) -> list[Warning]:
    """A warning each for inputs and targets that have NaN or infinities."""
    warnings = []
    for part, values in (("inputs", split.inputs), ("targets", split.targets)):
        array = np.asarray(values) if values is not None else None
        if array is None or array.dtype.kind not in "fc":
            continue
        # By the extremes, which NaN and infinities reach: needs no memory, unlike a mask.
        if all(np.isfinite(real.min()) and np.isfinite(real.max()) for real in (array.real, array.imag)):
            continue
        bad = int((~np.isfinite(array)).reshape(len(array), -1).any(axis=1).sum())
        text = f"{bad} of the {len(array)} samples of split('{name}') have {part} that are NaN or infinite"
        advice = "clean the data: outputs, losses and qualities of them mean nothing"
        warnings.append(Warning(f"{part}_not_finite", text, advice))
    return warnings


def _split_problems(dataset: Dataset, name: SplitName, split: object) -> Iterator[str]:
    if not hasattr(split, "inputs") or not hasattr(split, "targets"):
        yield f"split('{name}') returned {_described(split)}, not a sweeprof.datasets.Split(inputs, targets)"
        return
    inputs, targets = split.inputs, split.targets
    problem = _array_problem(inputs)
    if problem is not None:
        yield f"split('{name}').inputs {problem}"
    elif not len(inputs):
        yield f"split('{name}') has no samples"
    else:
        yield from _declaration_problems(dataset, name, inputs)
    if isinstance(targets, list) and all(isinstance(target, numbers.Number) for target in targets):
        targets = np.asarray(targets)
    target_problem = None if targets is None else _array_problem(targets)
    if target_problem is not None:
        yield f"split('{name}').targets {target_problem}"
    elif targets is not None and problem is None and len(inputs) != len(targets):
        yield f"split('{name}') has {len(inputs)} inputs and {len(targets)} targets"


def _array_problem(values: object) -> str | None:
    """Why values are not one array of numbers, ``(n, …)``."""
    if isinstance(values, tuple | list | Mapping):
        parts = values.values() if isinstance(values, Mapping) else values
        has_arrays = any(hasattr(part, "shape") for part in parts)
        advice = ONE_ARRAY if has_arrays else "make it one array: np.asarray(…)"
        return f"is {_described(values)}; {advice}"
    try:
        array: Any = values
        dtype, shape = np.dtype(array.dtype), tuple(array.shape)
    except (AttributeError, TypeError):
        return f"is {_described(values)}; make it one NumPy array, as tensor.numpy() does"
    if dtype.kind in _NOT_NUMBERS or dtype.names is not None:
        advice = "samples need one shape and a type of numbers; pad those of different lengths"
        return f"is an array of {dtype.name if dtype.names is None else 'records'}; {advice}"
    return None if shape else "is a single number, not an array (n, …)"


def _declaration_problems(dataset: Dataset, name: SplitName, inputs: Any) -> Iterator[str]:
    """Where the samples differ from what the dataset says of them."""
    declared: Any = getattr(dataset, "sample_shape", None)
    shape = tuple(inputs.shape[1:])
    if declared is not None and shape != tuple(declared):
        yield f"split('{name}').inputs has samples of shape {shape}, and sample_shape is {tuple(declared)}"
    dtype: Any = getattr(dataset, "dtype", None)
    if dtype is not None and str(dtype).removeprefix("torch.") not in (inputs.dtype.name, str(inputs.dtype)):
        try:
            is_same = np.dtype(dtype) == inputs.dtype
        except TypeError:
            is_same = False
        if not is_same:
            yield f"split('{name}').inputs is of type {inputs.dtype}, and dtype is {dtype}"
    axis: Any = getattr(dataset, "channel_axis", None)
    if axis is not None and not 0 < axis < len(inputs.shape):
        yield f"channel_axis is {axis!r}, and inputs have the axes 0 (samples) to {len(inputs.shape) - 1}"


def _described(values: object) -> str:
    """``a tuple of 2 arrays of shapes (64, 16), (64, 16)``."""
    if isinstance(values, Mapping):
        return f"a mapping of {', '.join(map(repr, values))}"[:200]
    if isinstance(values, tuple | list):
        kind, parts = type(values).__name__, list(values)
        shapes = [str(tuple(part.shape)) for part in parts if hasattr(part, "shape")]
        if shapes and len(shapes) == len(parts):
            more = ", …" if len(shapes) > 3 else ""
            return f"a {kind} of {len(parts)} arrays of shapes {', '.join(shapes[:3])}{more}"
        return f"a {kind} of {len(parts)} items"
    return f"a {_name(values)}"


def _name(value: object) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
