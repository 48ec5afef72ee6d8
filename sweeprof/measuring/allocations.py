"""From single allocations and releases to what a step takes: levels, peaks, and what each module did."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from sweeprof.results.layer_times import OUTSIDE, Mode
from sweeprof.results.memory import Allocations, LayerMemory, Moment, TensorRow

MOMENTS = 2000
"""At most so many are kept of a timeline."""


@dataclass(frozen=True, slots=True)
class Change:
    """An allocation, a release, or a sign that a module is running."""

    ns: int
    """On any clock."""
    bytes: int
    """Negative for a release, 0 for a mere sign."""
    address: int
    stack: tuple[str, ...]
    """Paths of the modules that run, or whose backward does, the innermost last; empty outside any module."""

    @property
    def path(self) -> str:
        return self.stack[-1] if self.stack else OUTSIDE


@dataclass(frozen=True, slots=True)
class Course:
    """Collects the allocations of some steps."""

    peak_bytes: int
    peak_at: str
    step_peaks_bytes: tuple[int, ...]
    allocated_per_step_bytes: int
    timeline: tuple[Moment, ...]
    by_layer: tuple[LayerMemory, ...]

    def to_allocations(self, mode: Mode, tensors: tuple[TensorRow, ...], device: Mapping[str, int]) -> Allocations:
        """The result of a pass: the course with the tensors that were alive after it and what the device's allocator says."""
        return Allocations(
            mode=mode,
            steps=len(self.step_peaks_bytes),
            peak_bytes=self.peak_bytes,
            peak_at=self.peak_at,
            timeline=self.timeline,
            by_layer=self.by_layer,
            tensors=tensors,
            device=device,
            step_peaks_bytes=self.step_peaks_bytes,
            allocated_per_step_bytes=self.allocated_per_step_bytes,
        )


def course(changes: Iterable[Change], begins: Sequence[int], ends: Sequence[int]) -> Course:
    """Follow the changes from the beginning of the first step on.

    A release of memory that was there before the first step is left out: an allocator that has not seen a block does not know its
    size, and what a step needs does not become less by it.

    Args:
        changes: in any order, those of one moment as they came.
        begins: when each step began, on the clock of the changes; at least one.
        ends: when each step ended. The timeline leaves out the pauses between steps: what changes in one counts at the step's end.
    """
    counted, owners = _counted(sorted(changes, key=lambda change: change.ns), begins[0])
    levels = list(accumulate(change.bytes for change in counted))
    peak = max(range(len(levels)), key=levels.__getitem__, default=None)
    steps = [bisect_right(begins, change.ns) - 1 for change in counted]
    last = [change for change, step in zip(counted, steps, strict=True) if step == len(begins) - 1]
    return Course(
        peak_bytes=0 if peak is None else max(levels[peak], 0),
        peak_at=OUTSIDE if peak is None else counted[peak].path,
        step_peaks_bytes=_step_peaks(levels, steps, len(begins)),
        allocated_per_step_bytes=sum(change.bytes for change in last if change.bytes > 0),
        timeline=_timeline(counted, levels, begins, ends),
        by_layer=_by_layer(counted, owners, levels, last, 0 if peak is None else peak + 1),
    )


def _counted(changes: Iterable[Change], begin: int) -> tuple[list[Change], list[str]]:
    """The changes that count, and the path of the module that had allocated what each allocates or releases."""
    alive: dict[int, str] = {}
    counted, owners = [], []
    for change in changes:
        if change.ns < begin or (change.bytes < 0 and change.address not in alive):
            continue
        owner = change.path
        if change.bytes > 0:
            alive[change.address] = owner
        elif change.bytes < 0:
            owner = alive.pop(change.address)
        counted.append(change)
        owners.append(owner)
    return counted, owners


def _step_peaks(levels: Sequence[int], steps: Sequence[int], count: int) -> tuple[int, ...]:
    peaks, level = [0] * count, 0
    for now, step in zip(levels, steps, strict=True):
        peaks[step] = max(peaks[step], now, level)
        level = now
    return tuple(peaks)


def _by_layer(
    counted: Sequence[Change], owners: Sequence[str], levels: Sequence[int], last: Sequence[Change], until_peak: int
) -> tuple[LayerMemory, ...]:
    """In the order in which the modules first ran."""
    peaks: dict[str, int] = {}
    for change, level in zip(counted, levels, strict=True):
        highest = max(level, level - change.bytes)  # who releases something ran while it was there
        for path in change.stack or (OUTSIDE,):
            peaks[path] = max(peaks.get(path, 0), highest)
    allocated = Counter[str]()
    for change in last:
        allocated[change.path] += max(change.bytes, 0)
    kept, at_peak = Counter[str](), Counter[str]()
    for index, (change, owner) in enumerate(zip(counted, owners, strict=True)):
        kept[owner] += change.bytes
        if index < until_peak:
            at_peak[owner] += change.bytes
    return tuple(LayerMemory(path, peak, allocated[path], kept[path], at_peak[path]) for path, peak in peaks.items())


def _timeline(
    counted: Sequence[Change], levels: Sequence[int], begins: Sequence[int], ends: Sequence[int]
) -> tuple[Moment, ...]:
    moments = [(change, level) for change, level in zip(counted, levels, strict=True) if change.bytes]
    kept = thinned([level for _, level in moments])
    lengths = [end - begin for begin, end in zip(begins, ends, strict=True)]
    before = [0, *accumulate(lengths)]

    def within(ns: int) -> float:
        step = bisect_right(begins, ns) - 1
        return (before[step] + min(ns - begins[step], lengths[step])) / 1e9

    return tuple(Moment(within(moments[i][0].ns), moments[i][1], moments[i][0].path) for i in kept)


def thinned(levels: Sequence[int], most: int = MOMENTS) -> list[int]:
    """Indices of at most ``most`` levels: the first, the last, and the lowest and the highest of every stretch of equal length."""
    count = len(levels)
    if count <= most:
        return list(range(count))
    stretches = most // 2 - 1
    kept = {0, count - 1}
    for begin, end in pairwise(count * i // stretches for i in range(stretches + 1)):
        kept |= {min(range(begin, end), key=levels.__getitem__), max(range(begin, end), key=levels.__getitem__)}
    return sorted(kept)
