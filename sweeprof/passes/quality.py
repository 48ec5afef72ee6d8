"""The outputs of a model for the test split: predictions, sums for metrics of quality, and the first outputs themselves.

Batches are added one by one, and memory is bounded: of class scores and of numbers only sums are kept, of the outputs as many
samples as :data:`KEPT_BYTES` allows, to be compared with a baseline's.
"""

from __future__ import annotations

import base64
import dataclasses
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from numbers import Number
from typing import Any

import numpy as np
import numpy.typing as npt

from sweeprof.backends import Backend, HostArray, HostOutputs, named
from sweeprof.display import Displayed
from sweeprof.errors import Damaged, Unsupported
from sweeprof.nested import array_of, named_leaves
from sweeprof.passes.registry import Parameter, Pass, Session
from sweeprof.results.files import damaged, validated
from sweeprof.results.measurement import Better
from sweeprof.results.record import Json, Warning, plain_data

# ---------------------------------------------------------------------------------------------------------------------
# Sums over outputs and their targets
# ---------------------------------------------------------------------------------------------------------------------


IGNORED_CLASS = -100
"""A target that is not counted, as in torch's ``cross_entropy`` and in transformers."""
MOST_CLASSES = 4096
"""Confusions are counted per class up to so many classes."""
MOST_COLUMNS = 4096
"""Numbers of a sample up to which each has sums of its own."""
CHUNK = 2**22
"""Elements that are widened to float64 at a time."""

Array = npt.NDArray[Any]


LEAST_PROBABILITY = 1e-7
"""A probability of 0 is taken as so much, as in Keras, so that a loss is finite."""


@dataclass(frozen=True, slots=True)
class ClassScores:
    """Rows of class scores with their true classes."""

    scores: Array
    """``(rows, classes)``."""
    classes: npt.NDArray[np.int64]
    """``(rows,)``; every one below the number of classes."""
    is_per_sample: bool
    """True if there is one row per sample."""


@dataclass(frozen=True, slots=True)
class UnknownClass:
    """A target that is not a class of the outputs."""

    sample: int
    label: int
    classes: int
    is_per_sample: bool

    def reason(self, samples_before: int) -> str:
        """Return why there are no class scores; ``samples_before``: those of earlier batches."""
        part = "" if self.is_per_sample else f"; tokens and pixels of the class {IGNORED_CLASS} do not count"
        sample = samples_before + self.sample
        return f"sample {sample} has the label {self.label}, and the outputs have the classes 0 to {self.classes - 1}{part}"


def with_two_classes(outputs: Array) -> Array:
    """Return a single logit ``(n, 1)``, which decides between two classes at zero, as scores ``(n, 2)``; others as they are."""
    if outputs.ndim == 2 and outputs.shape[1] == 1:
        return np.concatenate([np.zeros_like(outputs), outputs], axis=1)
    return outputs


def class_scores(outputs: Array, targets: Array) -> ClassScores | UnknownClass | None:
    """Return the scores of the true and all other classes; None if the targets are not one class for each row of the outputs.

    Args:
        outputs: ``(n, classes)``, ``(n, tokens, classes)``, or for images ``(n, classes, height, width)`` or
            ``(n, height, width, classes)``.
        targets: class indices of the same shape without the classes, or ``(n, 1)``; or one-hot, of the outputs' shape.
    """
    if outputs.ndim < 2 or not len(outputs):
        return None
    outputs = with_two_classes(outputs)
    if targets.shape == (len(outputs), 1) and outputs.ndim == 2:
        targets = targets[:, 0]
    if targets.shape == outputs.shape and _is_one_hot(targets):
        targets = targets.argmax(axis=-1)
    if targets.dtype.kind not in "iub":
        return None
    if targets.shape == outputs.shape[:-1]:
        scores = outputs.reshape(-1, outputs.shape[-1])
    elif outputs.ndim > 2 and targets.shape == (len(outputs), *outputs.shape[2:]):
        scores = np.moveaxis(outputs, 1, -1).reshape(-1, outputs.shape[1])
    else:
        return None
    classes = targets.reshape(-1).astype(np.int64)
    if outputs.ndim > 2:
        counted = classes != IGNORED_CLASS
        scores, classes = scores[counted], classes[counted]
    if ((classes < 0) | (classes >= scores.shape[1])).any():
        is_unknown = (targets < 0) | (targets >= scores.shape[1])
        if outputs.ndim > 2:
            is_unknown &= targets != IGNORED_CLASS
        first = tuple(np.argwhere(is_unknown)[0])
        return UnknownClass(int(first[0]), int(targets[first]), scores.shape[1], is_per_sample=outputs.ndim == 2)
    return ClassScores(scores, classes, is_per_sample=outputs.ndim == 2)


def _is_one_hot(targets: Array) -> bool:
    is_zero_or_one = (targets == 0) | (targets == 1)
    return targets.shape[-1] > 1 and bool(is_zero_or_one.all()) and bool((targets.sum(axis=-1) == 1).all())


def ranks_of(found: ClassScores) -> npt.NDArray[np.int64]:
    """Return per row how many classes score higher than the true one; ties are broken by the class index, lower first.

    A row with a NaN has no most likely class: its rank is the number of classes, so that it is never among the k most likely.
    """
    true = np.take_along_axis(found.scores, found.classes[:, None], axis=1)
    is_before = np.arange(found.scores.shape[1])[None, :] < found.classes[:, None]
    ranks: npt.NDArray[np.int64] = ((found.scores > true) | ((found.scores == true) & is_before)).sum(axis=1)
    ranks[has_nan(found.scores)] = found.scores.shape[1]
    return ranks


def most_likely(scores: Array) -> npt.NDArray[np.int64]:
    """Return per row the class with the highest score, the lowest of several; -1 for a row with a NaN, which has none."""
    classes: npt.NDArray[np.int64] = scores.argmax(axis=1)
    classes[has_nan(scores)] = -1
    return classes


def has_nan(array: Array) -> npt.NDArray[np.bool_]:
    """Return for each entry of the first axis whether a number of it is NaN."""
    if array.dtype.kind in "iub":
        return np.zeros(len(array), dtype=bool)
    return np.asarray(np.isnan(array).any(axis=tuple(range(1, array.ndim))))


def loss_sum_of(found: ClassScores) -> float | None:
    """Return the cross-entropy of the scores taken as logits in nats, summed over all rows; None if a score is not finite."""
    total = 0.0
    rows = max(1, CHUNK // found.scores.shape[1])
    for begin in range(0, len(found.scores), rows):
        wide = found.scores[begin : begin + rows].astype(np.float64)
        if not np.isfinite(wide).all():
            return None
        true = np.take_along_axis(wide, found.classes[begin : begin + rows, None], axis=1)[:, 0]
        largest = wide.max(axis=1)
        # Here rather than by scipy, whose import takes a sixth of a second in every trial.
        log_sums = largest + np.log(np.exp(wide - largest[:, None]).sum(axis=1))
        total += float((log_sums - true).sum())
    return total


@dataclass(slots=True)
class ClassTally:
    """Sums over rows of class scores."""

    rank_counts: dict[int, int] = field(default_factory=dict)
    """How many rows have each rank of the true class."""
    loss_sum: float | None = 0.0
    """Cross-entropy summed over all rows, in nats; None if a score was not finite."""
    confusion: npt.NDArray[np.int64] | None = None
    """``(3, classes)``: rows of each class that were predicted right, predicted as it, and truly of it; None above
    :data:`MOST_CLASSES` classes."""

    def add(self, found: ClassScores, ranks: npt.NDArray[np.int64]) -> None:
        """Add the rows of a batch."""
        for rank, count in zip(*np.unique(ranks, return_counts=True), strict=True):
            self.rank_counts[int(rank)] = self.rank_counts.get(int(rank), 0) + int(count)
        loss = loss_sum_of(found)
        self.loss_sum = None if loss is None or self.loss_sum is None else self.loss_sum + loss
        number = found.scores.shape[1]
        if number > MOST_CLASSES:
            return
        predicted = most_likely(found.scores)
        right = found.classes[predicted == found.classes]
        predicted = predicted[predicted >= 0]
        counts = np.stack([np.bincount(part, minlength=number) for part in (right, predicted, found.classes)])
        self.confusion = counts if self.confusion is None else self.confusion + counts


@dataclass(frozen=True, slots=True)
class NumberSums:
    """Sums over outputs that are numbers, and the targets that they should equal: one entry per column."""

    samples: int
    """The number of rows."""
    squared_errors: tuple[float, ...]
    absolute_errors: tuple[float, ...]
    mean_targets: tuple[float, ...]
    squared_deviations: tuple[float, ...]
    """Of the targets from their mean; a difference of sums of squares would lose those of large targets, such as points of time."""

    @classmethod
    def of(cls, outputs: Array, targets: Array) -> NumberSums | None:
        """Return the sums of a batch; None if targets are no numbers, or of another shape than outputs: see :func:`in_shape_of`.

        A column is a number of each sample. Above :data:`MOST_COLUMNS` of them, all elements are in one column.
        """
        if not np.issubdtype(targets.dtype, np.number) or not len(targets):
            return None
        fitted = in_shape_of(outputs, targets)
        if fitted is None:
            return None
        answers = fitted.reshape(len(targets), -1).astype(np.float64)
        wanted = targets.reshape(len(targets), -1).astype(np.float64)
        if answers.shape[1] > MOST_COLUMNS:
            answers, wanted = answers.reshape(-1, 1), wanted.reshape(-1, 1)
        errors = answers - wanted
        with np.errstate(invalid="ignore"):  # of values that are not finite
            means = wanted.mean(0)
            sums = ((errors**2).sum(0), np.abs(errors).sum(0), means, ((wanted - means) ** 2).sum(0))
        return cls(len(wanted), *(tuple(column.tolist()) for column in sums))

    def __add__(self, other: NumberSums) -> NumberSums:
        """Return the sums of the samples of both, which have the same columns."""
        samples, *own = map(np.asarray, dataclasses.astuple(self))
        more_samples, *more = map(np.asarray, dataclasses.astuple(other))
        total = samples + more_samples
        with np.errstate(invalid="ignore"):
            squared, absolute, _, deviations = (one + another for one, another in zip(own, more, strict=True))
            apart = more[2] - own[2]
            means = own[2] + apart * more_samples / total
            deviations = deviations + apart**2 * samples * more_samples / total
        columns = (tuple(column.tolist()) for column in (squared, absolute, means, deviations))
        return NumberSums(int(total), *columns)


# ---------------------------------------------------------------------------------------------------------------------
# The result of the pass
# ---------------------------------------------------------------------------------------------------------------------


MOST_OUTPUT_BYTES = 2**31
"""Of the outputs of a combination, unpacked."""

THE_BASELINES = "the baseline's"
KEPT_BYTES = 4 * 2**20
"""Outputs kept in a record at most; enough for 1,000 classes of 1,000 samples."""


@dataclass(frozen=True, slots=True)
class Score:
    """A number that a metric of quality has computed from all batches."""

    value: float | None
    better: Better = None
    unit: str = "abs"
    reason: str | None = None
    """Why there is no value."""
    failure: Json | None = None
    """The error in the metric, as of :class:`~sweeprof.results.record.Failure`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answers:
    """What a record has of the answers to the test split, in its order, without the outputs."""

    predictions: tuple[int, ...] | None
    """Most likely class per sample, -1 where an output is NaN; None where the outputs are not ``(samples, classes)``."""
    targets: tuple[int, ...] | None
    """True class per sample; None where the dataset has no labels, or not one class per sample."""
    ranks: tuple[int, ...] | None = None
    """Per sample, how many classes score higher than the true one; ties are broken by the class index, lower first. The number of
    classes where an output is NaN."""
    loss_sum: float | None = None
    """Cross-entropy of the outputs taken as logits in nats, summed over all samples, tokens or pixels; None where an output is
    not finite."""
    seconds: float | None = None
    """How long the model and its data took, transfers included and the computation of scores not; None if no model was run."""
    is_varying: bool = False
    """True if the batches have outputs of different shapes; then those of the first batch are kept."""
    is_labelled: bool = False
    """True if there are targets, of whatever form."""
    rank_counts: Mapping[str, int] | None = None
    """How many tokens or pixels have each rank of the true class; None where there is one class per sample, or none."""
    confusion: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]] | None = None
    """Of tokens or pixels, by class: predicted right, predicted as it, and truly of it."""
    numbers: NumberSums | None = None
    """Sums over outputs that are numbers with targets of their shape."""
    left_out: tuple[str, ...] = ()
    """Names of outputs that are not in ``further_outputs``, because a sample of them is larger than :data:`KEPT_BYTES`."""
    scores: Mapping[str, Score] = field(default_factory=dict)
    """By name what the metrics of quality that the config names have computed."""
    nan_samples: int = 0
    """Number of samples of which the evaluated output has a NaN."""
    unknown_class: str | None = None
    """A sentence about the first target that is not a class of the outputs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality(_Answers, Displayed):
    """Answers to the test split, in its order."""

    outputs: HostArray
    """The first of the outputs, or the one called ``logits``, of the first samples: as many as :data:`KEPT_BYTES` allows."""
    further_outputs: Mapping[str, HostArray] = field(default_factory=dict)
    """The other floating-point outputs by name, of the same samples."""

    @property
    def tracebacks(self) -> Sequence[str]:
        """The tracebacks of the metrics that raised, each once."""
        failures = [score.failure for score in self.scores.values() if score.failure is not None]
        return list(dict.fromkeys(failure["traceback"] for failure in failures if failure.get("traceback")))

    @property
    def warnings(self) -> tuple[Warning, ...]:
        """Outputs that are NaN, and those that cannot be compared with a baseline's."""
        found = []
        if self.nan_samples:
            message = f"the outputs of {self.nan_samples:,} samples have NaN, and count as wrong"
            found.append(Warning("outputs_nan", message, "check the model and its precision"))
        if self.left_out:
            names, most = ", ".join(map(repr, self.left_out)), KEPT_BYTES >> 20
            message = f"outputs {names} are not compared: one sample of all outputs is larger than {most} MiB"
            found.append(Warning("outputs_left_out", message, "let the model return fewer outputs"))
        return tuple(found)

    @classmethod
    def of(cls, outputs: npt.NDArray[np.generic], targets: npt.NDArray[np.generic] | None) -> Quality:
        """Return the quality of ``outputs`` ``(n, ...)`` for ``targets``, see :func:`sweeprof.passes.quality.class_scores`."""
        tally = _Tally()
        tally.add(outputs.astype(np.float32), targets)
        return tally.result()

    def to_dict(self) -> Json:
        """Plain JSON data; the outputs as base64 of their compressed little-endian float32 bytes."""
        data: Json = plain_data(self)
        data["outputs"] = _packed(self.outputs)
        data["further_outputs"] = {name: _packed(array) for name, array in self.further_outputs.items()}
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, object]) -> Quality:
        """The quality in a record's observations."""
        stored = validated(_StoredQuality, data)
        values: Json = {spec.name: getattr(stored, spec.name) for spec in fields(stored)}
        values["outputs"] = _unpacked(stored.outputs, "outputs")
        further = {name: _unpacked(array, f"further_outputs.{name}") for name, array in stored.further_outputs.items()}
        values["further_outputs"] = further
        return cls(**values)


@dataclass(frozen=True, slots=True)
class _StoredOutputs:
    shape: tuple[int, ...]
    zlib_f4: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _StoredQuality(_Answers):
    """:class:`Quality` as it is in a record."""

    outputs: _StoredOutputs
    further_outputs: dict[str, _StoredOutputs] = field(default_factory=dict)


def _packed(array: HostArray) -> Json:
    raw = np.ascontiguousarray(array, dtype="<f4").tobytes()
    return {"shape": list(array.shape), "zlib_f4": base64.b64encode(zlib.compress(raw)).decode()}


def _unpacked(stored: _StoredOutputs, place: str) -> HostArray:
    shape = stored.shape
    size = 4 * math.prod(shape)
    if min(shape, default=0) < 0 or size > MOST_OUTPUT_BYTES:
        raise damaged(str(shape), "the shape of outputs", [place, "shape"])
    try:
        # No more than was announced: a few bytes may stand for gigabytes.
        packed = base64.b64decode(stored.zlib_f4, validate=True)
        raw = zlib.decompressobj().decompress(packed, size + 1)
    except (ValueError, zlib.error) as error:
        raise Damaged(f"{place}.zlib_f4: cannot be unpacked: {error}") from None
    if len(raw) != size:
        raise Damaged(f"{place}.zlib_f4: does not have the {size} bytes of its shape")
    array: HostArray = np.frombuffer(raw, dtype="<f4").reshape(shape)
    return array


class _Tally:
    """What is known after some batches."""

    def __init__(self) -> None:
        self._kept: dict[str, list[HostArray]] = {}
        self._samples = 0
        self._room = 0
        """How many samples' outputs are kept at most."""
        self._left_out: list[str] = []
        """Names of outputs of which not even one sample is kept."""
        self._is_varying = False
        self._predictions: list[int] | None = []
        self._targets: list[int] | None = []
        self._ranks: list[int] | None = []
        self._probabilities: list[Array] | None = []
        """The outputs, as long as there is one per sample, from 0 to 1; None otherwise."""
        self._per_sample, self._per_element = ClassTally(), ClassTally()
        self._are_classes = True
        """False as soon as a batch has targets that are no classes: those of the other batches are not all targets."""
        self._unknown_class: str | None = None
        self._numbers: NumberSums | None = None
        self._are_numbers = True
        self._is_labelled: bool | None = None
        """None: no batch has been added."""
        self._nan_samples = 0

    def add(self, outputs: HostOutputs, targets: Array | None) -> None:
        """Add the outputs and targets of a batch.

        Raises:
            Unsupported: they do not go with those of the batches before.
        """
        batch = compared_outputs(named(outputs))
        main = main_output(batch)
        if not main.ndim:
            raise Unsupported("the model returned a single number for a batch, and not an output per sample")
        self._keep(main, {name: array for name, array in batch.items() if array.ndim and len(array) == len(main)})
        predictions = most_likely(with_two_classes(main)) if main.ndim == 2 else None
        self._predictions = _extended(self._predictions, predictions)
        if self._probabilities is not None and main.shape == (len(main), 1) and ((main >= 0) & (main <= 1)).all():
            self._probabilities.append(main.copy())
        else:
            self._probabilities = None
        self._nan_samples += int(has_nan(main).sum())
        is_labelled = targets is not None
        if self._is_labelled not in (None, is_labelled):
            raise Unsupported("some batches have targets, and others have none")
        self._is_labelled = is_labelled
        if targets is None:
            self._targets = self._ranks = None
        else:
            self._add_targets(main, targets)

    def _add_targets(self, main: HostArray, targets: Array) -> None:
        classes: Array | None = None
        ranks: Array | None = None
        if targets.size == len(main) and targets.dtype.kind in "iub":
            classes = targets.reshape(-1)
        found = class_scores(main, targets)
        if isinstance(found, ClassScores):
            ranks = ranks_of(found)
            if found.is_per_sample:
                self._per_sample.add(found, ranks)
                classes = found.classes
            else:
                self._per_element.add(found, ranks)
                ranks = None
        else:
            self._are_classes = False
            if isinstance(found, UnknownClass) and self._unknown_class is None:
                self._unknown_class = found.reason(self._samples - len(main))
        self._targets = _extended(self._targets, classes)
        self._ranks = _extended(self._ranks, ranks)
        # Also where this batch has classes: of counts that are compared with one number each, a batch may have 0 and 1 only.
        sums = NumberSums.of(main, targets) if self._are_numbers else None
        if sums is None:
            self._numbers, self._are_numbers = None, False
        else:
            self._numbers = sums if self._numbers is None else self._numbers + sums

    def _keep(self, main: HostArray, batch: Mapping[str, HostArray]) -> None:
        if not self._kept:
            used = main[:1].nbytes
            for name, array in batch.items():
                if array is not main:
                    if used + array[:1].nbytes > KEPT_BYTES:
                        self._left_out.append(name)
                        continue
                    used += array[:1].nbytes
                self._kept[name] = []
            self._room = max(1, KEPT_BYTES // max(1, used))
        for name, kept in self._kept.items():
            same = batch.get(name)
            if kept and (same is None or same.shape[1:] != kept[0].shape[1:]):
                self._is_varying, self._room = True, 0
        room = self._room - self._samples
        if room > 0:
            for name, kept in self._kept.items():
                kept.append(batch[name][:room].copy())
        self._samples += len(main)

    def _take_probabilities(self, outputs: Array) -> None:
        """Evaluate single outputs ``(n, 1)`` as probabilities of class 1, as a model that ends with a sigmoid returns them."""
        shares = np.clip(outputs.astype(np.float64), LEAST_PROBABILITY, 1 - LEAST_PROBABILITY)
        scores = np.concatenate([np.log1p(-shares), np.log(shares)], axis=1)
        self._predictions = most_likely(scores).tolist()
        if self._ranks is None or self._targets is None:
            return
        found = ClassScores(scores, np.array(self._targets), is_per_sample=True)
        ranks = ranks_of(found)
        self._ranks, self._per_sample = ranks.tolist(), ClassTally()
        self._per_sample.add(found, ranks)

    def result(self) -> Quality:
        """Return the quality of all batches; raises :class:`Unsupported` if there was none."""
        if not self._kept:
            raise Unsupported("there are no data to evaluate on")
        outputs = {}
        for name, kept in self._kept.items():
            outputs[name] = kept[0] if self._is_varying else np.concatenate(kept)
        main = main_output(outputs)
        if self._probabilities is not None:
            self._take_probabilities(np.concatenate(self._probabilities))
        loss_sum = rank_counts = confusion = None
        if self._ranks is not None:
            loss_sum = self._per_sample.loss_sum
        if self._are_classes and self._per_element.rank_counts:
            rank_counts = {str(rank): number for rank, number in sorted(self._per_element.rank_counts.items())}
            if self._ranks is None:
                loss_sum = self._per_element.loss_sum
            if self._per_element.confusion is not None:
                correct, predicted, true = self._per_element.confusion.tolist()
                confusion = tuple(correct), tuple(predicted), tuple(true)
        return Quality(
            predictions=_tuple(self._predictions),
            targets=_tuple(self._targets),
            outputs=main,
            ranks=_tuple(self._ranks),
            loss_sum=loss_sum,
            further_outputs={name: array for name, array in outputs.items() if array is not main},
            is_varying=self._is_varying,
            is_labelled=bool(self._is_labelled),
            rank_counts=rank_counts,
            confusion=confusion,
            numbers=None if self._are_classes else self._numbers,
            left_out=tuple(self._left_out),
            nan_samples=self._nan_samples,
            unknown_class=self._unknown_class,
        )


def compared_outputs(outputs: Mapping[str, Array]) -> Mapping[str, HostArray]:
    """Return the floating-point outputs; if there are none, the first output."""
    found = {name: array for name, array in outputs.items() if array.dtype.kind == "f"}
    if not found:
        name, array = next(iter(outputs.items()))
        found = {name: array.astype(np.float32)}
    return found


def main_output(outputs: Mapping[str, Array]) -> Array:
    """Return the output that is evaluated: the one called ``logits``, otherwise the first."""
    return outputs[main_name(outputs)]


def main_name(outputs: Mapping[str, Array]) -> str:
    """Return the name of the output that is evaluated."""
    return "logits" if "logits" in outputs else next(iter(outputs))


def pairs_of_outputs(own: Quality, base: Quality) -> list[tuple[str, HostArray, HostArray]]:
    """Return the outputs that two sides have in common: name, own and the baseline's, in the same layout and of the same samples.

    The evaluated output of both sides is compared whatever its name is, all others by their names.
    """
    pairs = [("", own.outputs, base.outputs)]
    for name, array in own.further_outputs.items():
        if name in base.further_outputs:
            pairs.append((name, array, base.further_outputs[name]))
    return [(name, ours, in_layout_of(theirs, ours)) for name, ours, theirs in pairs]


def incomparable(own: Quality, base: Quality, whose: str = THE_BASELINES) -> str | None:
    """Return why the outputs of two sides cannot be compared, None if they can; ``whose``: what those of ``base`` are called."""
    if own.is_varying or base.is_varying:
        return "batches of a side have outputs of different shapes, as padding to the longest sample of each batch makes them"
    for name, ours, theirs in pairs_of_outputs(own, base):
        if ours.shape != theirs.shape:
            subject = f"the shape of {name!r}" if name else "their shape"
            return f"{subject} is {ours.shape}, {whose} {theirs.shape}"
    return None


def in_layout_of(array: Array, other: Array) -> Array:
    """Return an array with the channels of images where another one has them; an array that differs otherwise as it is."""
    if array.ndim > 2 and array.shape != other.shape:
        for source, destination in ((1, -1), (-1, 1)):
            moved = np.moveaxis(array, source, destination)
            if moved.shape == other.shape:
                return moved
    return array


def in_shape_of(outputs: Array, targets: Array) -> Array | None:
    """Return outputs in the shape of their targets; None if more than axes of size 1 and the place of channels differs."""
    moved = in_layout_of(outputs, targets)
    own, wanted = ([size for size in array.shape[1:] if size != 1] for array in (moved, targets))
    if moved.shape[:1] != targets.shape[:1] or own != wanted:
        return None
    return moved.reshape(targets.shape)


def _extended(known: list[int] | None, more: Array | None) -> list[int] | None:
    """Return the list, to which the items of a batch are added; None as soon as a batch has none."""
    if known is None or more is None:
        return None
    known += map(int, more)
    return known


def _tuple(values: list[int] | None) -> tuple[int, ...] | None:
    return None if values is None else tuple(values)


# ---------------------------------------------------------------------------------------------------------------------
# The pass
# ---------------------------------------------------------------------------------------------------------------------


def run(session: Session, _: Backend) -> Quality:
    """Return the model's answers to every batch of the test split."""
    tally, scoring = _Tally(), 0.0
    scores = session.output_scores()
    with session.loaded() as model, session.timed("measure"):
        clock = model.clock()
        begin = clock.now()
        for inputs, labels in session.labelled():
            with model.stepping(model.put(inputs)) as step:
                answers = model.host_outputs(step())
            answered = clock.now()
            targets = first = None
            if labels is not None:
                targets = host_targets(labels)
                first = first_target(targets, main_name(compared_outputs(named(answers))))
            tally.add(answers, first)
            for score in scores:
                score.add(named(answers), targets)
            scoring += clock.now() - answered
        # Files that a model is converted to for texts of other lengths are made here, and no part of evaluating.
        seconds = clock.now() - begin - scoring - getattr(model, "converting_s", 0.0)
    computed: dict[str, Score] = {}
    for score in scores:
        for name, result in score.results().items():
            computed[name] = Score(**result)
    return replace(tally.result(), seconds=seconds, scores=computed)


def host_targets(targets: Any) -> Any:
    """Return the targets of a batch as NumPy arrays: one, a mapping or tuple of them, or a list of mappings, one for each sample.

    Raises:
        Unsupported: one is an object that is no array.
    """
    if isinstance(targets, Mapping):
        return {str(name): host_targets(value) for name, value in targets.items()}
    if isinstance(targets, list | tuple) and not all(isinstance(item, Number | str) for item in targets):
        parts = [host_targets(value) for value in targets]
        return parts if isinstance(parts[0], dict) else tuple(parts)
    array = array_of(targets)
    if array.dtype == object:
        raise Unsupported("the targets are not an array of numbers")
    return array


def first_target(targets: Any, output: str) -> Array:
    """Return the targets that an output is evaluated against: in a mapping those of its name, otherwise the first array.

    An empty array is returned if none has a number for each sample.

    Args:
        targets: as :func:`host_targets` returns them.
        output: the name of the output.
    """
    found = named_leaves(targets)
    first: Array = next(iter(found.values()), np.empty(0))
    if isinstance(targets, Mapping) and output in found:
        first = found[output]
    return np.empty(0) if isinstance(targets, list) or first.dtype.kind not in "biufc" else first


PASS = Pass(
    name="quality",
    order=120,
    run=run,
    read=Quality.from_dict,
    kind="exact",
    provides=(Parameter("quality"), Parameter("baseline_quality", source="baseline")),
)
