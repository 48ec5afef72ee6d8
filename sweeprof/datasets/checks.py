"""Checks of what a dataset returns, so that data of another form are an error and not a measurement of something else."""

from __future__ import annotations

import numbers
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from sweeprof.datasets import Dataset, Split, SplitName, samples_in
from sweeprof.datasets.sample import is_ids
from sweeprof.errors import DatasetError
from sweeprof.nested import named_leaves
from sweeprof.results.record import Warning
from sweeprof.tracebacks import definition_of, located_at

SAMPLES_OR_INPUTS = (
    "several inputs of a model are a tuple or a mapping of arrays; a list is of samples, and needs Split(…, collate=…), such as "
    "sweeprof.datasets.collate.Pad()"
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
        arrays = [leaf for value in _samples(values) for leaf in named_leaves(value).values()]
        if all(map(_is_finite, arrays)):
            continue
        bad = _samples_not_finite(values)
        text = f"{bad} of the {samples_in(values)} samples of split('{name}') have {part} that are NaN or infinite"
        advice = "clean the data: outputs, losses and qualities of them mean nothing"
        warnings.append(Warning(f"{part}_not_finite", text, advice))
    return warnings


def check_ids(dataset: Dataset, name: SplitName, split: Split, vocabulary: int) -> None:
    """Raise :class:`DatasetError` for the first token id of a split that is not in the vocabulary of the model."""
    is_list = isinstance(split.inputs, list)
    for place, value in enumerate(_samples(split.inputs)):
        for path, leaf in named_leaves(value).items():
            ids = np.asarray(leaf)
            if ids.dtype.kind not in "iu" or not is_ids(path) or not ids.size:
                continue
            if ids.min() >= 0 and ids.max() < vocabulary:
                continue
            wrong = np.argwhere((ids < 0) | (ids >= vocabulary))[0]
            sample = place if is_list else wrong[0]
            part = f"[{path!r}]" if path else ""
            raise DatasetError(
                f"dataset {_name(dataset)}: sample {sample} of split('{name}').inputs{part} has the id {ids[tuple(wrong)]}, and "
                f"the model's vocabulary has the ids 0 to {vocabulary - 1}"
            )


def _samples(values: Any) -> list[Any]:
    """Return the samples of a list, or all of them together."""
    return values if isinstance(values, list) else [values]


def _is_finite(values: object) -> bool:
    array = np.asarray(values)
    if array.dtype.kind not in "fc":
        return True
    # By the extremes, which NaN and infinities reach: needs no memory, unlike a mask.
    return array.size == 0 or all(
        bool(np.isfinite(real.min()) and np.isfinite(real.max())) for real in (array.real, array.imag)
    )


def _samples_not_finite(values: Any) -> int:
    if isinstance(values, list):
        return sum(not all(map(_is_finite, named_leaves(value).values())) for value in values)
    bad = np.zeros(samples_in(values), bool)
    for array in map(np.asarray, named_leaves(values).values()):
        if not _is_finite(array):
            bad |= (~np.isfinite(array)).reshape(len(array), -1).any(axis=1)
    return int(bad.sum())


def _split_problems(dataset: Dataset, name: SplitName, split: object) -> Iterator[str]:
    if not hasattr(split, "inputs") or not hasattr(split, "targets"):
        yield f"split('{name}') returned {_described(split)}, not a sweeprof.datasets.Split(inputs, targets)"
        return
    inputs, targets = split.inputs, split.targets
    collate = getattr(split, "collate", None)
    problems = list(_part_problems(f"split('{name}').inputs", inputs, collate))
    yield from problems
    if not problems and not samples_in(inputs):
        yield f"split('{name}') has no samples"
    elif not problems:
        yield from _declaration_problems(dataset, name, inputs)
    if isinstance(targets, list) and all(isinstance(target, numbers.Number) for target in targets):
        targets = np.asarray(targets)
    if targets is None:
        return
    target_problems = list(
        _part_problems(f"split('{name}').targets", targets, getattr(split, "collate_targets", None) or collate)
    )
    yield from target_problems
    if not problems and not target_problems and samples_in(inputs) != samples_in(targets):
        yield f"split('{name}') has {samples_in(inputs)} inputs and {samples_in(targets)} targets"


def _part_problems(place: str, values: Any, collate: object) -> Iterator[str]:
    """Why values are neither arrays of as many samples, ``(n, …)``, nor a list of samples that can be collated."""
    if isinstance(values, list):
        if not any(hasattr(leaf, "shape") for leaf in named_leaves(values).values()):
            yield f"{place} is {_described(values)}; make it one array: np.asarray(…)"
        elif collate is None:
            yield f"{place} is {_described(values)}; {SAMPLES_OR_INPUTS}"
        elif values:
            yield from _array_problems(f"sample 0 of {place}", values[0])
        return
    yield from _array_problems(place, values)
    lengths = {path: len(leaf) for path, leaf in named_leaves(values).items() if np.ndim(leaf)}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{path!r} {length}" for path, length in lengths.items())
        yield f"{place} has arrays of different numbers of samples: {listed}"


def _array_problems(place: str, values: object) -> Iterator[str]:
    leaves = named_leaves(values)
    if not leaves:
        yield f"{place} is an empty {'mapping' if isinstance(values, Mapping) else 'tuple'}"
    for path, leaf in leaves.items():
        problem = _array_problem(leaf)
        if problem is not None:
            yield f"{place}{f'[{path!r}]' if path else ''} {problem}"


def _array_problem(values: object) -> str | None:
    """Why values are not one array of numbers, ``(n, …)``."""
    try:
        array: Any = values
        dtype, shape = np.dtype(array.dtype), tuple(array.shape)
    except (AttributeError, TypeError):
        return f"is {_described(values)}; make it one NumPy array, as tensor.numpy() does"
    if dtype.kind in _NOT_NUMBERS or dtype.names is not None:
        advice = "samples need one shape and a type of numbers; those of different lengths are a list with a collate function"
        return f"is an array of {dtype.name if dtype.names is None else 'records'}; {advice}"
    return None if shape else "is a single number, not an array (n, …)"


def _declaration_problems(dataset: Dataset, name: SplitName, inputs: Any) -> Iterator[str]:
    """Yield the differences between the samples and what the dataset declares."""
    arrays = list(named_leaves(inputs).values())
    axis: Any = getattr(dataset, "channel_axis", None)
    most_axes = max(len(array.shape) for array in arrays) + isinstance(inputs, list)
    if axis is not None and not 0 < axis < most_axes:
        yield f"channel_axis is {axis!r}, and inputs have the axes 0 (samples) to {most_axes - 1}"
    if not hasattr(inputs, "shape"):
        return
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
