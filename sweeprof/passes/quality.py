"""The outputs of a model for the test split, and its predictions."""

from __future__ import annotations

import base64
import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sweeprof.backends import Backend
from sweeprof.errors import Damaged, Unsupported
from sweeprof.passes.registry import Parameter, Pass
from sweeprof.passes.session import Session
from sweeprof.results.validation import damaged, validated

MOST_OUTPUT_BYTES = 2**31
"""Of the outputs of a combination, unpacked."""

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
    ranks: tuple[int, ...] | None = None
    """Per sample, how many classes score higher than the true one; ties are broken by the class index, lower first."""
    loss_sum: float | None = None
    """Cross-entropy of the outputs taken as logits, summed over all samples; None where an output is not finite."""

    seconds: float | None = None
    """How long evaluating took, data loading and transfers included; None in records of an earlier version."""

    @classmethod
    def of(cls, outputs: npt.NDArray[Any], targets: npt.NDArray[Any] | None) -> Quality:
        """The quality of ``outputs`` ``(n, ...)`` for the class indices ``targets`` ``(n,)``."""
        answers = outputs.astype(np.float32)
        kept = max(1, KEPT_BYTES // max(1, answers[:1].nbytes))
        scores = _class_scores(answers)
        classes = None if targets is None else np.asarray(targets)
        ranked = scores is not None and classes is not None and _are_classes(classes, scores)
        return cls(
            None if scores is None else tuple(int(i) for i in scores.argmax(axis=1)),
            None if classes is None else tuple(int(i) for i in classes.reshape(-1)),
            answers[:kept],
            _ranks(scores, classes) if ranked else None,
            _loss_sum(scores, classes) if ranked else None,
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data; the outputs as base64 of their compressed little-endian float32 bytes."""
        raw = np.ascontiguousarray(self.outputs, dtype="<f4").tobytes()
        return {
            "predictions": None if self.predictions is None else list(self.predictions),
            "targets": None if self.targets is None else list(self.targets),
            "ranks": None if self.ranks is None else list(self.ranks),
            "loss_sum": self.loss_sum,
            "seconds": self.seconds,
            "outputs": {"shape": list(self.outputs.shape), "zlib_f4": base64.b64encode(zlib.compress(raw)).decode()},
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Quality:
        """The quality in a record's observations."""
        stored = validated(_Stored, data)
        return cls(
            stored.predictions, stored.targets, _unpacked(stored.outputs), stored.ranks, stored.loss_sum, stored.seconds
        )


@dataclass(frozen=True, slots=True)
class _Packed:
    shape: tuple[int, ...]
    zlib_f4: str


@dataclass(frozen=True, slots=True)
class _Stored:
    """:class:`Quality` as it is in a record."""

    predictions: tuple[int, ...] | None
    targets: tuple[int, ...] | None
    outputs: _Packed
    ranks: tuple[int, ...] | None = None
    loss_sum: float | None = None
    seconds: float | None = None


def _unpacked(packed: _Packed) -> npt.NDArray[np.float32]:
    size = 4 * math.prod(packed.shape)
    if min(packed.shape, default=0) < 0 or size > MOST_OUTPUT_BYTES:
        raise damaged(str(packed.shape), "the shape of outputs", ["outputs", "shape"])
    try:
        # No more than was announced: a few bytes may stand for gigabytes.
        raw = zlib.decompressobj().decompress(base64.b64decode(packed.zlib_f4, validate=True), size + 1)
    except (ValueError, zlib.error) as error:
        raise Damaged(f"outputs.zlib_f4: cannot be unpacked: {error}") from None
    if len(raw) != size:
        raise Damaged(f"outputs.zlib_f4: does not have the {size} bytes of its shape")
    return np.frombuffer(raw, dtype="<f4").reshape(packed.shape)


def _class_scores(answers: npt.NDArray[np.float32]) -> npt.NDArray[np.float32] | None:
    """``(n, classes)``; a single logit per sample, ``(n, 1)``, decides between two classes at zero."""
    if answers.ndim != 2:
        return None
    return np.concatenate([np.zeros_like(answers), answers], axis=1) if answers.shape[1] == 1 else answers


def _are_classes(targets: npt.NDArray[Any], scores: npt.NDArray[Any]) -> bool:
    """True if the targets are one class index for each row of scores."""
    if targets.shape != scores.shape[:1] or not np.issubdtype(targets.dtype, np.integer):
        return False
    return bool(((targets >= 0) & (targets < scores.shape[1])).all())


def _ranks(scores: Any, classes: Any) -> tuple[int, ...]:
    own = np.take_along_axis(scores, classes[:, None].astype(np.int64), axis=1)
    before = np.arange(scores.shape[1])[None, :] < classes[:, None]
    return tuple(int(n) for n in ((scores > own) | ((scores == own) & before)).sum(axis=1))


def _loss_sum(scores: Any, classes: Any) -> float | None:
    """None where an output is not finite."""
    wide = scores.astype(np.float64)
    if not np.isfinite(wide).all():
        return None
    own = np.take_along_axis(wide, classes[:, None].astype(np.int64), axis=1)[:, 0]
    from scipy.special import logsumexp  # takes as long to import as everything else of a command that is mistaken

    return float((logsumexp(wide, axis=1) - own).sum())


def run(session: Session, _: Backend) -> Quality:
    """Return the model's answers to every batch of the test split."""
    answers, targets = [], []
    with session.loaded() as model, session.timed("measure"):
        clock = model.clock()
        begin = clock.now()
        for inputs, labels in session.labelled():
            with model.stepping(model.put(inputs)) as step:
                answers.append(model.host_outputs(step()))
            if labels is not None:
                # A tensor may be on a device and require gradients.
                targets.append(np.asarray(labels.detach().cpu() if hasattr(labels, "detach") else labels))
        seconds = clock.now() - begin
    if not answers:
        raise Unsupported("there are no data to evaluate on")
    try:
        outputs, classes = np.concatenate(answers), np.concatenate(targets) if targets else None
    except ValueError as error:
        raise Unsupported(f"what the batches gave does not fit together: {error}") from None
    return replace(Quality.of(outputs, classes), seconds=seconds)


PASS = Pass(
    name="quality",
    order=120,
    run=run,
    read=Quality.from_dict,
    kind="exact",
    measured_fields=frozenset({"seconds"}),
    provides=(Parameter("quality"), Parameter("baseline_quality", source="baseline")),
)
