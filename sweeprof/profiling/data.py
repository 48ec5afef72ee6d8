"""The data of a model in a caller's hands: any iterable of batches, split by split."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sweeprof.errors import Problem, Unsupported, UserError, choice_problem
from sweeprof.measuring.inputs import Inputs

TARGETS = ("labels", "label", "targets", "target")
"""Keys of a batch that is a mapping under which its targets are looked for; the model is not given them."""


@dataclass(frozen=True, slots=True)
class Data:
    """Batches by the name of their split, and how a batch becomes the model's arguments."""

    splits: Mapping[str, Iterable[Any]] = field(default_factory=dict)
    pattern: Callable[[Sequence[Any]], Inputs] | None = None
    """From a batch to the model's arguments (:func:`sweeprof.pattern_of`); the last element of the batch is its targets.
    None: the first element of a pair ``(inputs, targets)``, every key of a mapping but its targets, else the whole batch."""

    @classmethod
    def of(cls, given: Any, pattern: Callable[[Sequence[Any]], Inputs] | None = None) -> Data:
        """``given`` is None, an iterable of batches (which is the split ``test``), or a mapping of splits to such.

        Raises:
            UserError: it is none of these.
        """
        if isinstance(given, cls):
            return given
        if given is None:
            return cls({}, pattern)
        if isinstance(given, Mapping):
            return cls({name: _repeatable(batches) for name, batches in given.items()}, pattern)
        if isinstance(given, Iterable):
            return cls({"test": _repeatable(given)}, pattern)
        allowed = "must be an iterable of batches, or a mapping of splits to iterables of batches."
        raise UserError([Problem("data", type(given).__name__, allowed)])

    def split(self, name: str) -> Iterable[Any]:
        """The batches of a split; data of one split have it under any name.

        Raises:
            Unsupported: there are no data.
            UserError: there is no such split.
        """
        if name in self.splits:
            return self.splits[name]
        if len(self.splits) == 1:
            return next(iter(self.splits.values()))
        if not self.splits:
            raise Unsupported("there are no data: give the profiler `data=`, an iterable of batches")
        raise UserError([choice_problem("split", name, "split", self.splits)])

    def first(self) -> tuple[Inputs, Any]:
        """Arguments and targets of the first batch; targets are None where it has none.

        Raises:
            UserError: there is none.
        """
        for batch in self.split("test"):
            return self._taken(batch)
        raise UserError("the data have no batch")

    def labelled(self, name: str) -> Iterator[tuple[Inputs, Any]]:
        """Arguments and targets of every batch of a split; targets are None where a batch has none.

        Raises:
            UserError: the split is known never to end.
        """
        batches = self.split(name)
        if _is_endless(batches):
            allowed = "never ends (repeat()), and all of it is evaluated: give it an end with take(n)."
            raise UserError([Problem("data", type(batches).__name__, allowed)])
        for batch in batches:
            yield self._taken(batch)

    def _taken(self, batch: Any) -> tuple[Inputs, Any]:
        if self.pattern is not None:
            return self.pattern(batch), batch[-1]
        if isinstance(batch, Mapping):
            targets = next((batch[key] for key in TARGETS if key in batch), None)
            return Inputs.of({key: value for key, value in batch.items() if key not in TARGETS}), targets
        if isinstance(batch, list | tuple) and len(batch) == 2:
            return _called_with(batch[0]), batch[1]
        if isinstance(batch, list | tuple) and len(batch) == 1:
            return _called_with(batch[0]), None
        return _called_with(batch), None


class _Kept(Iterable[Any]):
    """The elements of an iterator, kept for the passes that follow."""

    def __init__(self, batches: Iterator[Any]) -> None:
        self._coming = batches
        self._kept: list[Any] = []

    def __iter__(self) -> Iterator[Any]:
        yield from self._kept
        for batch in self._coming:
            self._kept.append(batch)
            yield batch


def _is_endless(batches: Any) -> bool:
    """A ``tf.data.Dataset`` knows; its INFINITE_CARDINALITY is -1."""
    cardinality = getattr(batches, "cardinality", None)
    return callable(cardinality) and int(cardinality()) == -1


def _repeatable(batches: Any) -> Any:
    return _Kept(batches) if isinstance(batches, Iterator) else batches


def _called_with(part: Any) -> Inputs:
    return Inputs.of(part) if isinstance(part, Mapping | tuple) else Inputs((part,))
