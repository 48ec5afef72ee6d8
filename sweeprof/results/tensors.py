"""Live tensors: what is in memory, each storage once, by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from sweeprof.results.validation import validated

Kind = Literal["parameter", "buffer", "gradient", "optimizer", "input", "other"]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True, slots=True)
class TensorRow:
    """One storage: however many tensors share it, it is one row."""

    names: tuple[str, ...]
    """Of parameters and buffers, two where they are tied; ``NAME.grad`` and ``optimizer.NAME.KEY`` for what belongs to them;
    empty for a tensor that nothing names."""
    kind: Kind
    shape: tuple[int, ...]
    dtype: str
    device: str
    """``meta`` for a tensor that takes no memory."""
    bytes: int
    """Of the storage, as the framework asked for it."""

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> TensorRow:
        """A row of a record's observations."""
        return validated(cls, data)


@dataclass(frozen=True, slots=True)
class TensorDifference:
    """What came and what went between two tables; a tensor that changed its size, type or names did both."""

    added: tuple[TensorRow, ...]
    removed: tuple[TensorRow, ...]


def tensor_difference(before: Iterable[TensorRow], after: Iterable[TensorRow]) -> TensorDifference:
    """What has changed between two tables of live tensors, each part with its largest rows first."""
    was, now = Counter(before), Counter(after)
    return TensorDifference(largest_first((now - was).elements()), largest_first((was - now).elements()))


def largest_first(rows: Iterable[TensorRow]) -> tuple[TensorRow, ...]:
    """The rows by their size; those of one size by kind and name."""
    return tuple(sorted(rows, key=lambda row: (-row.bytes, KINDS.index(row.kind), row.names, row.shape)))


def bytes_by_kind(rows: Iterable[TensorRow]) -> dict[Kind, int]:
    """Bytes in memory for every kind that there is, in the order of :data:`KINDS`; tensors without memory are left out."""
    found = Counter[Kind]()
    for row in rows:
        if row.device != "meta":
            found[row.kind] += row.bytes
    return {kind: found[kind] for kind in KINDS if kind in found}
