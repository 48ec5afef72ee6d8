"""Allocations: what a step allocates over time, and the tensors that are alive after it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from sweeprof.display import Displayed, Rows
from sweeprof.results.layer_times import Mode
from sweeprof.results.record import Stored

Kind = Literal["parameter", "buffer", "gradient", "optimizer", "input", "other"]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True, slots=True)
class TensorRow(Displayed):
    """One storage: however many tensors share it, it is one row."""

    names: tuple[str, ...]
    """Of parameters and buffers, two where they are tied; ``NAME.grad`` and ``optimizer.NAME.KEY`` for what belongs to them;
    empty for a tensor without a name."""
    kind: Kind
    shape: tuple[int, ...]
    dtype: str
    device: str
    """``meta`` for a tensor that takes no memory."""
    bytes: int
    """Of the storage, as the framework asked for it."""


@dataclass(frozen=True, slots=True)
class TensorDifference(Displayed):
    """The tensors that were added and removed between two tables; one whose size, type or names changed is in both."""

    added: tuple[TensorRow, ...]
    removed: tuple[TensorRow, ...]


def tensor_difference(before: Iterable[TensorRow], after: Iterable[TensorRow]) -> TensorDifference:
    """The differences of two tables of live tensors, each part with its largest rows first."""
    was, now = Counter(before), Counter(after)
    return TensorDifference(largest_first((now - was).elements()), largest_first((was - now).elements()))


def largest_first(rows: Iterable[TensorRow]) -> Rows[TensorRow]:
    """The rows by their size; those of one size by kind and name."""
    return Rows(sorted(rows, key=lambda row: (-row.bytes, KINDS.index(row.kind), row.names, row.shape)))


def bytes_by_kind(rows: Iterable[TensorRow]) -> dict[Kind, int]:
    """Bytes in memory for every kind that there is, in the order of :data:`KINDS`; tensors without memory are left out."""
    sizes = Counter[Kind]()
    for row in rows:
        if row.device != "meta":
            sizes[row.kind] += row.bytes
    return {kind: sizes[kind] for kind in KINDS if kind in sizes}


@dataclass(frozen=True, slots=True)
class Moment:
    """Bytes alive after an allocation or a release."""

    s: float
    """Seconds within the steps since the first began; the pauses between steps are left out."""
    bytes: int
    """Above what was alive when the first step began."""
    path: str
    """Of the module that ran, or whose backward did; ``__outside__`` for none."""


@dataclass(frozen=True, slots=True)
class LayerMemory:
    """The memory that one module used in all of its calls."""

    path: str
    peak_bytes: int
    """Most that was alive, of whatever, while it, a module within it or the backward of one of them ran."""
    allocated_bytes: int
    """Everything that it allocated itself in the last step, its backward included, whether it was released or not."""
    kept_bytes: int
    """Of what it allocated itself, what is alive after the last step."""
    at_peak_bytes: int = 0
    """Of what it allocated itself, what was alive at the peak: over all modules and ``__outside__`` this is the peak."""


@dataclass(frozen=True, slots=True)
class Allocations(Stored):
    """Allocations of the first steps; the model and one batch were loaded before.

    They are those that the framework asked its allocator for, scratch space of its kernels included; memory that a mathematics
    library keeps for itself is not among them.
    """

    mode: Mode
    steps: int
    peak_bytes: int
    """Largest number of bytes that were allocated at once, in addition to those at the start of the first step."""
    peak_at: str
    """Path of the module that ran when the peak was reached."""
    timeline: tuple[Moment, ...]
    """At most a few thousand moments, each peak among them."""
    by_layer: tuple[LayerMemory, ...]
    """In the order in which the modules first ran; ``__outside__`` stands for code outside any module, such as an optimizer."""
    tensors: tuple[TensorRow, ...]
    """Alive after the last step, largest first."""
    device: Mapping[str, int] = field(default_factory=dict)
    """Of an accelerator: ``allocated_pre_bytes``, ``allocated_peak_bytes``, ``allocated_post_bytes``, ``reserved_peak_bytes``,
    ``process_peak_bytes`` and ``device_peak_bytes``, each where it can be had; empty on the host."""
    step_peaks_bytes: tuple[int, ...] = ()
    """The peak of each step; the first one begins without gradients and optimizer state."""
    allocated_per_step_bytes: int | None = None
    """Everything that was allocated in the last step, whether it was released or not."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "tensors", Rows(self.tensors))
        object.__setattr__(self, "by_layer", Rows(self.by_layer))
