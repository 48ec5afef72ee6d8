"""The bytes of tensors that are alive at the same time, each storage once, while a model runs over shapes."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable

import torch

from sweeprof.results.layers import Liveness


class _Alive(weakref.ref[torch.UntypedStorage]):
    """A reference to a storage that knows what to subtract when it is gone."""

    __slots__ = ("key", "nbytes", "number")
    key: int
    nbytes: int
    number: int


Peak = tuple[int, str]
"""Bytes, and the path of the layer that ran."""


class LiveBytes:
    """Counts a storage from the operator that made it until nothing refers to it any more, views and autograd included."""

    def __init__(self, where: Callable[[], str], excluded: Iterable[torch.Tensor]) -> None:
        """Args:
        where: the path of the layer that is running.
        excluded: tensors that are there anyhow.
        """
        self._where = where
        self._alive: dict[int, _Alive | None] = {tensor.untyped_storage()._cdata: None for tensor in excluded}
        self.live = self.made = 0
        """Bytes alive now, and storages seen so far."""
        self._peak = 0
        self._peak_at = where()

    def saw(self, output: object) -> None:
        """Take note of what an operator returned."""
        if isinstance(output, list | tuple):
            for part in output:
                self.saw(part)
        if not isinstance(output, torch.Tensor) or output.layout != torch.strided:
            return
        storage = output.untyped_storage()
        key = storage._cdata
        if key in self._alive:
            return
        reference = _Alive(storage, self._gone)
        reference.key = key
        reference.nbytes = storage.nbytes()
        reference.number = self.made
        self.made += 1
        self._alive[key] = reference
        self.live += reference.nbytes
        if self.live > self._peak:
            self._peak = self.live
            self._peak_at = self._where()

    @property
    def current(self) -> int:
        """Bytes that are alive now."""
        return self.live

    def alive(self) -> set[int]:
        """Return the keys of the storages that are alive now and count."""
        return {key for key, reference in self._alive.items() if reference is not None}

    def _gone(self, reference: _Alive) -> None:
        self.live -= reference.nbytes
        self._alive.pop(reference.key, None)

    def begin(self) -> Peak:
        """Begin to look for the peak of a part of the forward; returns the peak so far, for :meth:`end`."""
        before = self._peak, self._peak_at
        self._peak, self._peak_at = self.live, self._where()
        return before

    def end(self, before: Peak) -> Peak:
        """Return the peak since :meth:`begin`."""
        peak = self._peak, self._peak_at
        if before[0] >= peak[0]:
            self._peak, self._peak_at = before
        return peak

    def reach(self, more: int, path: str) -> None:
        """Note that a part of the forward, which is not run, would need so many bytes more at a time."""
        if self.live + more > self._peak:
            self._peak, self._peak_at = self.live + more, path

    def made_since(self, storage: torch.UntypedStorage, made: int) -> bool:
        """True if the storage was seen when ``made`` others had been, or later, and has still the same size."""
        reference = self._alive.get(storage._cdata)
        return reference is not None and reference.number >= made and reference.nbytes == storage.nbytes()

    def result(self, input_bytes: int) -> Liveness:
        """The peak so far."""
        return Liveness(self._peak, self._peak_at, input_bytes)
