"""The bytes of tensors that are alive at the same time, from the order in which operations made and used them."""

from __future__ import annotations

from typing import Any

from sweeprof.backends.keras.tensors import described
from sweeprof.results.layer_times import ROOT
from sweeprof.results.layers import Liveness


class TensorLifetimes:
    """Each tensor lives from the operation that makes it to the last one that uses it, as a compiled graph frees it."""

    def __init__(self) -> None:
        self._storage: dict[int, int] = {}
        """Storage by the identity of a tensor."""
        self._held: list[Any] = []
        """The tensors, which hold no memory, so that their identities stay theirs."""
        self._bytes: list[int] = []
        self._begin: list[int] = []
        self._end: list[int] = []
        self._where: list[str] = []
        """By event: the path of the layer that was running."""

    def given(self, tensors: list[Any]) -> None:
        """The model's inputs, which are there anyhow."""
        for tensor in tensors:
            self._place(tensor, 0)

    def ran(self, path: str, used: list[Any], made: list[Any], in_place: Any = None) -> None:
        """Note an operation.

        Args:
            in_place: one of ``used`` in whose memory the result is; None: it has memory of its own.
        """
        self._where.append(path)
        now = len(self._where) - 1
        for tensor in used:
            self._end[self._of(tensor)] = now
        if in_place is not None:
            shared = self._of(in_place)
            for tensor in made:
                self._held.append(tensor)
                self._storage.setdefault(id(tensor), shared)
        for tensor in made:
            self._end[self._of(tensor)] = now

    def result(self, inputs: list[Any], outputs: list[Any]) -> Liveness:
        """The peak, without the inputs; the outputs live to the end."""
        for tensor in outputs:
            self._end[self._of(tensor)] = len(self._where)
        changes = [0] * (len(self._where) + 2)
        for size, begin, end in zip(self._bytes, self._begin, self._end, strict=True):
            changes[begin] += size
            changes[end + 1] -= size
        live = peak = 0
        peak_at = ROOT
        for path, change in zip(self._where, changes, strict=False):
            live += change
            if live > peak:
                peak, peak_at = live, path
        return Liveness(peak, peak_at, described(inputs).nbytes or 0)

    def mark(self) -> int:
        """Return the current position of the trace, for :meth:`forget`."""
        return len(self._where)

    def forget(self, mark: int) -> None:
        """Drop what was noted since."""
        del self._where[mark:]
        for storage, begin in enumerate(self._begin):
            self._end[storage] = min(self._end[storage], max(mark - 1, 0))
            if begin >= mark:
                self._bytes[storage] = self._begin[storage] = self._end[storage] = 0

    def _of(self, tensor: Any) -> int:
        """The storage of a tensor; one that no operation made has been made just now, as by a cast on the way into a layer."""
        found = self._storage.get(id(tensor))
        return self._place(tensor, described(tensor).nbytes or 0) if found is None else found

    def _place(self, tensor: Any, nbytes: int) -> int:
        now = max(len(self._where) - 1, 0)
        self._held.append(tensor)
        self._storage[id(tensor)] = len(self._bytes)
        self._bytes.append(nbytes)
        self._begin.append(now)
        self._end.append(now)
        return len(self._bytes) - 1
