"""What a model answers on the test split."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

KEPT_BYTES = 4 * 2**20
"""Outputs kept in a record at most; enough for 1,000 classes of 1,000 samples."""


@dataclass(frozen=True, slots=True)
class Quality:
    """Answers to the test split, in its order."""

    predictions: tuple[int, ...] | None
    """Most likely class per sample; None where the outputs are not ``(samples, classes)``."""
    targets: tuple[int, ...] | None
    """True class per sample; None where the dataset has no labels."""
    outputs: npt.NDArray[np.float32]
    """Raw outputs of the first samples, as many as :data:`KEPT_BYTES` allows."""

    @classmethod
    def of(cls, outputs: npt.NDArray[Any], targets: npt.NDArray[Any] | None) -> Quality:
        """The quality of ``outputs`` ``(n, ...)`` for the class indices ``targets`` ``(n,)``."""
        answers = outputs.astype(np.float32)
        kept = max(1, KEPT_BYTES // max(1, answers[:1].nbytes))
        return cls(
            tuple(int(i) for i in answers.argmax(axis=1)) if answers.ndim == 2 else None,
            None if targets is None else tuple(int(i) for i in targets),
            answers[:kept],
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data; the outputs as base64 of their compressed little-endian float32 bytes."""
        raw = np.ascontiguousarray(self.outputs, dtype="<f4").tobytes()
        return {
            "predictions": None if self.predictions is None else list(self.predictions),
            "targets": None if self.targets is None else list(self.targets),
            "outputs": {"shape": list(self.outputs.shape), "zlib_f4": base64.b64encode(zlib.compress(raw)).decode()},
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Quality:
        """The quality in a record's observations."""
        packed = data["outputs"]
        raw = zlib.decompress(base64.b64decode(packed["zlib_f4"]))
        return cls(
            None if data["predictions"] is None else tuple(data["predictions"]),
            None if data["targets"] is None else tuple(data["targets"]),
            np.frombuffer(raw, dtype="<f4").reshape(packed["shape"]),
        )


def batches(inputs: npt.NDArray[Any], size: int) -> Iterator[npt.NDArray[Any]]:
    """``inputs`` in pieces of ``size`` samples; the last one may be smaller."""
    for begin in range(0, len(inputs), size):
        yield inputs[begin : begin + size]
