"""The arguments of a model, and the work of a step on them, independent of any framework."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any, TypeGuard

import numpy as np

from sweeprof.errors import DatasetError, Problem, UserError, choice_problem
from sweeprof.nested import array_of, mapped, named_leaves
from sweeprof.text import limited, printable


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor to be generated: standard normal for floating-point types, zeros for any other."""

    shape: tuple[int, ...]
    dtype: str = "float32"


@dataclass(frozen=True, slots=True)
class Inputs:
    """Positional and keyword arguments, each a tensor, a :class:`TensorSpec`, a container of them or anything else."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    forward: Callable[..., Any] | None = None
    """``forward(model, *args, **kwargs)`` if a step is more than a call of the model, e.g. ``lambda m, x: m.generate(x)``."""

    def __repr__(self) -> str:
        arguments = [described(value) for value in self.args]
        arguments += [f"{name}={described(value)}" for name, value in self.kwargs.items()]
        text = f"Inputs({', '.join(arguments)})"
        if self.forward is not None:
            text += f", forward={getattr(self.forward, '__qualname__', self.forward)}"
        return f"<{text}>"

    def call(self, model: Any) -> Any:
        """One step of ``model``."""
        if self.forward is None:
            return model(*self.args, **self.kwargs)
        return self.forward(model, *self.args, **self.kwargs)

    @classmethod
    def of(cls, arguments: object, dtype: str = "float32") -> Inputs:
        """Return inputs from a plain value.

        The elements of a tuple are positional arguments, the entries of a mapping keyword arguments. A tuple of ints,
        ``(1, 3, 224, 224)``, is the shape of one tensor to be generated, also among the arguments; so is a list of ints that is
        the only argument, or a mapping of nothing else, as JSON and YAML have no tuples. Anything else, such as another list or a
        named tuple, is one argument. If a tuple or a mapping is one argument, use ``Inputs(args=(it,))``.

        Args:
            arguments: the value.
            dtype: of tensors to be generated.

        Raises:
            UserError: a size of a shape is negative.
        """
        if isinstance(arguments, cls):
            return arguments

        def specified(value: object) -> object:
            if not _is_shape(value):
                return value
            if min(value) < 0:
                raise UserError([Problem("inputs", value, "is not a shape: a size is negative.")])
            return TensorSpec(tuple(map(int, value)), dtype)

        if isinstance(arguments, Mapping):
            named = dict(arguments)
            if all(isinstance(value, list) and _is_shape(tuple(value)) for value in named.values()):
                named = {key: tuple(value) for key, value in named.items()}
            return cls(kwargs={key: specified(value) for key, value in named.items()})
        if isinstance(arguments, list) and _is_shape(tuple(arguments)):
            arguments = tuple(arguments)
        if isinstance(arguments, tuple) and not _is_shape(arguments) and not hasattr(arguments, "_fields"):
            return cls(tuple(map(specified, arguments)))
        return cls((specified(arguments),))

    @classmethod
    def from_batch(cls, batch: Any, pass_as: str = "auto") -> Inputs:
        """Return the arguments for a batch of a dataset: see :data:`sweeprof.datasets.PassAs`.

        Raises:
            UserError: the batch is not of a kind that can be passed so.
        """
        known = ("auto", "positional", "keywords", "single")
        if pass_as not in known:
            raise UserError([choice_problem("pass_as", pass_as, "way to pass a batch", known)])
        if pass_as == "keywords" and not isinstance(batch, Mapping):
            kind = "tuple" if isinstance(batch, tuple) else "single array"
            allowed = f"needs inputs that are a mapping of names to arrays; the dataset's are a {kind}."
            raise UserError([Problem("pass_as", pass_as, allowed)])
        if isinstance(batch, tuple) and pass_as != "single":
            return cls(batch)
        if isinstance(batch, Mapping) and pass_as == "positional":
            return cls(tuple(batch.values()))
        if isinstance(batch, Mapping) and pass_as != "single":
            return cls(kwargs=dict(batch))
        return cls((batch,))

    def map(self, change: Callable[[Any], object]) -> Inputs:
        """Return the same with every leaf of lists, tuples and dicts changed."""
        return Inputs(mapped(self.args, change), mapped(dict(self.kwargs), change), self.forward)

    def shapes(self) -> list[tuple[int, ...]]:
        """Return the shapes of the tensors, in the order of the arguments."""
        leaves: list[object] = []
        self.map(leaves.append)
        return [shape for shape in map(shape_of, leaves) if shape is not None]


def pattern_of(*pattern: int | str) -> Callable[[Sequence[object]], Inputs]:
    """Return a function that takes a batch and returns the model's arguments.

    The pattern has an entry for each element of the batch: its position among the arguments, or ``"_"`` for one that is not
    passed to the model. ``pattern_of("_", 1, 2, "_", 0)`` takes ``(None, b, c, None, a)`` to ``(a, b, c)``.

    Raises:
        TypeError: an entry is neither ``"_"`` nor a position, or the positions are not 0, 1, 2 … each once. The function raises
            ValueError for a batch of another length.
    """
    positions = [entry for entry in pattern if entry != "_"]
    if any(isinstance(entry, bool) or not isinstance(entry, int) for entry in positions):
        raise TypeError(f"an input pattern has positions and '_', not {pattern!r}")
    if sorted(positions, key=int) != list(range(len(positions))):
        raise TypeError(f"the positions of an input pattern are 0, 1, 2 … each once, not {pattern!r}")

    def pick(batch: Sequence[object]) -> Inputs:
        if len(batch) != len(pattern):
            raise ValueError(
                f"the input pattern {pattern!r} is for {len(pattern)} elements, the batch has {len(batch)}"
            )
        chosen: list[object] = [None] * len(positions)
        for entry, value in zip(pattern, batch, strict=True):
            if isinstance(entry, int):
                chosen[entry] = value
        return Inputs(tuple(chosen))

    return pick


_MOST_DESCRIBED, _LONGEST = 8, 60


def shape_of(value: Any) -> tuple[int, ...] | None:
    """Return the shape of a tensor, of a nested one with the largest size along each axis; None for anything else."""
    if getattr(value, "is_nested", False):
        samples = [sample.shape for sample in value.unbind()]
        return len(samples), *map(max, zip(*samples, strict=True))
    return tuple(value.shape) if hasattr(value, "shape") else None


def described(value: object) -> str:
    """Return a value without its elements, e.g. ``float32[8, 3, 224, 224]``, ``(int64[8, 16], True)``."""
    dtype = getattr(value, "dtype", None)
    # A nested tensor raises where it is asked for its shape.
    shape = shape_of(value) if getattr(value, "is_nested", False) else getattr(value, "shape", None)
    if isinstance(shape, Sequence) and dtype is not None:
        name = getattr(dtype, "name", None) or str(dtype).removeprefix("torch.")
        return f"{name}[{', '.join(map(str, shape))}]"
    if isinstance(value, Mapping):
        parts = [f"{key}: {described(one)}" for key, one in list(value.items())[:_MOST_DESCRIBED]]
    elif isinstance(value, list | tuple):
        parts = [described(one) for one in value[:_MOST_DESCRIBED]]
    else:
        return limited(" ".join(printable(repr(value)).split()), _LONGEST)
    if len(value) > len(parts):
        parts.append(f"and {len(value) - len(parts)} more")
    text = ", ".join(parts)
    if isinstance(value, Mapping):
        return f"{{{text}}}"
    return f"[{text}]" if isinstance(value, list) else f"({text})"


def _is_shape(value: object) -> TypeGuard[tuple[int, ...]]:
    if not isinstance(value, tuple) or not value:
        return False
    return all(isinstance(size, Integral) and not isinstance(size, bool) for size in value)


# ---------------------------------------------------------------------------------------------------------------------
# The work of one step, in the workload's own unit: samples, tokens, images, seconds of audio
# ---------------------------------------------------------------------------------------------------------------------

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
    masks = []
    for path, leaf in named_leaves(arguments).items():
        if unit == "tokens" and path.endswith("attention_mask"):  # also decoder_attention_mask
            mask = array_of(leaf)
            if mask.ndim == 2:  # (batch, tokens)
                masks.append(mask)
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


def _checked(units: Any, subject: str) -> float:
    """Return a number of units; raise :class:`DatasetError` if it is not a finite number above zero."""
    is_number = isinstance(units, int | float | np.number) and not isinstance(units, bool)
    if not is_number or not math.isfinite(units) or units <= 0:
        raise DatasetError(f"{subject} {units!r}, which is not a number above 0")
    return int(units) if float(units).is_integer() else float(units)
