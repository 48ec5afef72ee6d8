"""The bytes of tensors that are alive at the same time, each storage once, while a model runs over shapes."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable

import torch

from sweeprof.results.layers import Liveness


class _Alive(weakref.ref[torch.UntypedStorage]):
    """A reference to a storage that knows what to subtract when it is gone."""

    __slots__ = ("key", "nbytes")
    key: int
    nbytes: int


class LiveBytes:
    """Counts a storage from the operator that made it until nothing refers to it any more, views and autograd included."""

    def __init__(self, where: Callable[[], str], excluded: Iterable[torch.Tensor]) -> None:
        """Args:
        where: the path of the layer that is running.
        excluded: tensors that are there anyhow.
        """
        self._where = where
        self._alive: dict[int, _Alive | None] = {tensor.untyped_storage()._cdata: None for tensor in excluded}
        self._live = self.peak = 0
        self.peak_at = where()

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
        self._alive[key] = reference
        self._live += reference.nbytes
        if self._live > self.peak:
            self.peak = self._live
            self.peak_at = self._where()

    @property
    def current(self) -> int:
        """Bytes that are alive now."""
        return self._live

    def alive(self) -> set[int]:
        """Return the keys of the storages that are alive now and count."""
        return {key for key, reference in self._alive.items() if reference is not None}

    def _gone(self, reference: _Alive) -> None:
        self._live -= reference.nbytes
        self._alive.pop(reference.key, None)

    def result(self, input_bytes: int) -> Liveness:
        """The peak so far."""
        return Liveness(self.peak, self.peak_at, input_bytes)
