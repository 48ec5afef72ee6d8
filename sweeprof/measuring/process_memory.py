"""Memory of this process as the operating system sees it, and the course of allocations within a framework.

``VmHWM`` is the high-water mark of the resident set; writing 5 to ``clear_refs`` resets it to the present value, so that the
peak belongs to what follows. ``RssFile`` is the part of the resident set that is pages of files: programs, libraries and mapped
data. Source: proc(5).
"""

from __future__ import annotations

import ctypes
import re
import typing
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path

from sweeprof.errors import Unsupported
from sweeprof.results.layer_times import OUTSIDE, Mode
from sweeprof.results.observations import Allocations, LayerMemory, Moment, TensorRow

PROC = Path("/proc/self")
LARGE = 64 * 1024
"""Bytes from which on an allocation is pages of its own after :meth:`ProcessMemory.give_back_freed`."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Parameters of ``mallopt``, from glibc's ``malloc.h``."""


class MemoryMeter(typing.Protocol):
    """Reads the memory of this process."""

    def reset_peak(self) -> None:
        """Let the peak begin at the present value."""

    def rss(self) -> int:
        """Return the resident bytes now."""

    def rss_peak(self) -> int:
        """Return the highest resident bytes since :meth:`reset_peak`."""

    def own(self) -> int:
        """Return the resident bytes now without programs, libraries and the files that were mapped before the first call."""

    def own_peak(self) -> int:
        """Return the highest of :meth:`own` since :meth:`reset_peak`, if since then no pages of files were added or given back."""

    def give_back_freed(self) -> None:
        """Let freed memory leave the resident set at once, now and from now on."""


class ProcessMemory:
    """The meter of a Linux process.

    Raises:
        Unsupported: the system has no ``/proc`` with high-water marks.
    """

    def __init__(self) -> None:
        self._mapped_before: frozenset[str] | None = None

    def reset_peak(self) -> None:
        try:
            (PROC / "clear_refs").write_text("5", encoding="ascii")
        except OSError as error:
            raise Unsupported(
                f"this system does not let a process reset its memory high-water mark: {error}"
            ) from error

    def rss(self) -> int:
        return self._read("VmRSS")

    def rss_peak(self) -> int:
        return self._read("VmHWM")

    def own(self) -> int:
        return self._without_programs("VmRSS")

    def own_peak(self) -> int:
        return self._without_programs("VmHWM")

    def give_back_freed(self) -> None:
        libc = ctypes.CDLL(None)
        try:
            libc.mallopt(_M_MMAP_THRESHOLD, LARGE)
            libc.mallopt(_M_TRIM_THRESHOLD, LARGE)
            libc.malloc_trim(0)
        except AttributeError as error:
            raise Unsupported(f"the C library of this system is not glibc: {error}") from error

    def _without_programs(self, field: str) -> int:
        mapped = _mapped_files()
        if self._mapped_before is None:
            self._mapped_before = frozenset(mapped)
        data = sum(size for path, size in mapped.items() if path not in self._mapped_before)
        return self._read(field) - self._read("RssFile") + data

    def _read(self, field: str) -> int:
        try:
            text = (PROC / "status").read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise Unsupported(f"this system has no {PROC}/status: {error}") from error
        match = re.search(rf"^{field}:\s+(\d+) kB$", text, re.MULTILINE)
        if match is None:
            raise Unsupported(f"{PROC}/status has no {field}")
        return int(match.group(1)) * 1024


def _mapped_files() -> dict[str, int]:
    """Return the resident bytes of every mapped file that is no program or library, by its path.

    Files in memory (``/dev/shm``, ``memfd``) are not among them: their pages are not in ``RssFile`` either.
    """
    try:
        # The name of a file may be any bytes.
        text = (PROC / "smaps").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        raise Unsupported(f"this system has no {PROC}/smaps: {error}") from error
    sizes: dict[str, int] = {}
    programs: set[str] = set()
    for rights, path, rss in re.findall(
        r"^[0-9a-f]+-[0-9a-f]+ (\S+) \S+ \S+ \d+ +(/.*)\n(?:\w+: .*\n)*?Rss: +(\d+) kB$", text, re.MULTILINE
    ):
        if "x" in rights:
            programs.add(path)
        if not path.startswith(("/dev/", "/memfd:", "/SYSV")):
            sizes[path] = sizes.get(path, 0) + int(rss) * 1024
    return {path: size for path, size in sizes.items() if path not in programs}


# ---------------------------------------------------------------------------------------------------------------------
# From single allocations and releases to what a step takes: levels, peaks, and what each module did
# ---------------------------------------------------------------------------------------------------------------------


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


def course(  # what was observed, and what it was observed of
    changes: Iterable[Change],
    begins: Sequence[int],
    ends: Sequence[int],
    *,
    mode: Mode = "inference",
    tensors: tuple[TensorRow, ...] = (),
    device: Mapping[str, int] | None = None,
) -> Allocations:
    """Follow the changes from the beginning of the first step on.

    A release of memory that was there before the first step is left out: an allocator that has not seen a block does not know its
    size, and what a step needs does not become less by it.

    Args:
        changes: in any order, those of one moment as they came.
        begins: when each step began, on the clock of the changes; at least one.
        ends: when each step ended. The timeline leaves out the pauses between steps: what changes in one counts at the step's end.
        mode: the kind of the steps.
        tensors: that were alive after the steps.
        device: the figures of the device's own allocator.
    """
    alive: dict[int, str] = {}
    counted: list[Change] = []
    owners: list[str] = []
    """Of each change that counts, the module that had allocated what it allocates or releases."""
    for change in sorted(changes, key=lambda change: change.ns):
        if change.ns < begins[0] or (change.bytes < 0 and change.address not in alive):
            continue
        owner = change.path
        if change.bytes > 0:
            alive[change.address] = owner
        elif change.bytes < 0:
            owner = alive.pop(change.address)
        counted.append(change)
        owners.append(owner)
    levels = list(accumulate(change.bytes for change in counted))
    peak_bytes, peak_at, until_peak = 0, OUTSIDE, 0
    if levels:
        highest = max(range(len(levels)), key=levels.__getitem__)
        peak_bytes, peak_at, until_peak = max(levels[highest], 0), counted[highest].path, highest + 1
    last: list[Change] = []
    step_peaks, before = [0] * len(begins), 0
    for change, level in zip(counted, levels, strict=True):
        step = bisect_right(begins, change.ns) - 1
        step_peaks[step] = max(step_peaks[step], level, before)
        before = level
        if step == len(begins) - 1:
            last.append(change)
    return Allocations(
        mode=mode,
        steps=len(begins),
        peak_bytes=peak_bytes,
        peak_at=peak_at,
        timeline=_timeline(counted, levels, begins, ends),
        by_layer=_by_layer(counted, owners, levels, last, until_peak),
        tensors=tensors,
        device=device or {},
        step_peaks_bytes=tuple(step_peaks),
        allocated_per_step_bytes=sum(change.bytes for change in last if change.bytes > 0),
    )


def _by_layer(
    counted: Sequence[Change], owners: Sequence[str], levels: Sequence[int], last: Sequence[Change], until_peak: int
) -> tuple[LayerMemory, ...]:
    """Return the memory of each module, in the order in which they first ran."""
    peaks: dict[str, int] = {}
    allocated, kept, at_peak = Counter[str](), Counter[str](), Counter[str]()
    for index, (change, owner, level) in enumerate(zip(counted, owners, levels, strict=True)):
        highest = max(level, level - change.bytes)  # who releases something ran while it was there
        for path in change.stack or (OUTSIDE,):
            peaks[path] = max(peaks.get(path, 0), highest)
        kept[owner] += change.bytes
        if index < until_peak:
            at_peak[owner] += change.bytes
    for change in last:
        allocated[change.path] += max(change.bytes, 0)
    return tuple(LayerMemory(path, peak, allocated[path], kept[path], at_peak[path]) for path, peak in peaks.items())


def _timeline(
    counted: Sequence[Change], levels: Sequence[int], begins: Sequence[int], ends: Sequence[int]
) -> tuple[Moment, ...]:
    changes = [(change, level) for change, level in zip(counted, levels, strict=True) if change.bytes]
    lengths = [end - begin for begin, end in zip(begins, ends, strict=True)]
    before = [0, *accumulate(lengths)]
    moments = []
    for index in thinned_levels([level for _, level in changes]):
        change, level = changes[index]
        step = bisect_right(begins, change.ns) - 1
        within = before[step] + min(change.ns - begins[step], lengths[step])
        moments.append(Moment(within / 1e9, level, change.path))
    return tuple(moments)


def thinned_levels(levels: Sequence[int], most: int = MOMENTS) -> list[int]:
    """Indices of at most ``most`` levels: the first, the last, and the lowest and the highest of every stretch of equal length."""
    count = len(levels)
    if count <= most:
        return list(range(count))
    stretches = most // 2 - 1
    kept = {0, count - 1}
    for begin, end in pairwise(count * i // stretches for i in range(stretches + 1)):
        kept |= {min(range(begin, end), key=levels.__getitem__), max(range(begin, end), key=levels.__getitem__)}
    return sorted(kept)
