"""The outputs of a model for the test split, and its predictions."""

from __future__ import annotations

import base64
import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from sweeprof.backends import Backend
from sweeprof.errors import Damaged, Unsupported
from sweeprof.passes.registry import Parameter, Pass
from sweeprof.passes.session import Session
from sweeprof.results.record import Json
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
    def of(cls, outputs: npt.NDArray[np.generic], targets: npt.NDArray[np.generic] | None) -> Quality:
        """Return the quality of ``outputs`` ``(n, ...)`` for the class indices ``targets`` ``(n,)``."""
        answers = outputs.astype(np.float32)
        kept = max(1, KEPT_BYTES // max(1, answers[:1].nbytes))
        scores, ranks, loss_sum = None, None, None
        if answers.ndim == 2:  # a single logit per sample decides between two classes at zero
            scores = np.concatenate([np.zeros_like(answers), answers], axis=1) if answers.shape[1] == 1 else answers
        if scores is not None and targets is not None and targets.shape == scores.shape[:1]:
            classes = (
                targets.astype(np.int64) if np.issubdtype(targets.dtype, np.integer) else np.full(len(targets), -1)
            )
            if ((classes >= 0) & (classes < scores.shape[1])).all():
                true = np.take_along_axis(scores, classes[:, None], axis=1)
                is_before = np.arange(scores.shape[1])[None, :] < classes[:, None]
                higher = ((scores > true) | ((scores == true) & is_before)).sum(axis=1)
                ranks, loss_sum = tuple(higher.tolist()), _loss_sum(scores, classes)
        return cls(
            None if scores is None else tuple(scores.argmax(axis=1).tolist()),
            None if targets is None else tuple(int(target) for target in targets.reshape(-1)),
            answers[:kept],
            ranks,
            loss_sum,
        )

    def to_dict(self) -> Json:
        """Plain JSON data; the outputs as base64 of their compressed little-endian float32 bytes."""
        raw = np.ascontiguousarray(self.outputs, dtype="<f4").tobytes()
        return {
            "predictions": self.predictions,
            "targets": self.targets,
            "ranks": self.ranks,
            "loss_sum": self.loss_sum,
            "seconds": self.seconds,
            "outputs": {"shape": list(self.outputs.shape), "zlib_f4": base64.b64encode(zlib.compress(raw)).decode()},
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, object]) -> Quality:
        """The quality in a record's observations."""
        stored = validated(_StoredQuality, data)
        shape = stored.outputs.shape
        size = 4 * math.prod(shape)
        if min(shape, default=0) < 0 or size > MOST_OUTPUT_BYTES:
            raise damaged(str(shape), "the shape of outputs", ["outputs", "shape"])
        try:
            # No more than was announced: a few bytes may stand for gigabytes.
            packed = base64.b64decode(stored.outputs.zlib_f4, validate=True)
            raw = zlib.decompressobj().decompress(packed, size + 1)
        except (ValueError, zlib.error) as error:
            raise Damaged(f"outputs.zlib_f4: cannot be unpacked: {error}") from None
        if len(raw) != size:
            raise Damaged(f"outputs.zlib_f4: does not have the {size} bytes of its shape")
        outputs = np.frombuffer(raw, dtype="<f4").reshape(shape)
        return cls(stored.predictions, stored.targets, outputs, stored.ranks, stored.loss_sum, stored.seconds)


@dataclass(frozen=True, slots=True)
class _StoredOutputs:
    shape: tuple[int, ...]
    zlib_f4: str


@dataclass(frozen=True, slots=True)
class _StoredQuality:
    """:class:`Quality` as it is in a record."""

    predictions: tuple[int, ...] | None
    targets: tuple[int, ...] | None
    outputs: _StoredOutputs
    ranks: tuple[int, ...] | None = None
    loss_sum: float | None = None
    seconds: float | None = None


def _loss_sum(scores: npt.NDArray[np.float32], classes: npt.NDArray[np.int64]) -> float | None:
    """Return the cross-entropy, summed over all samples; None if an output is not finite."""
    wide = scores.astype(np.float64)
    if not np.isfinite(wide).all():
        return None
    from scipy.special import logsumexp  # takes as long to import as everything else of a command that is mistaken

    true = np.take_along_axis(wide, classes[:, None], axis=1)[:, 0]
    return float((logsumexp(wide, axis=1) - true).sum())


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
