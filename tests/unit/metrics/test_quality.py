"""Quality of every kind of outputs and targets, against scikit-learn and torch."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from sklearn.metrics import accuracy_score, jaccard_score, mean_absolute_error, mean_squared_error, r2_score

from sweeprof import Profiler
from sweeprof.metrics.evaluate import evaluate
from sweeprof.metrics.select import select
from sweeprof.passes.quality import Quality
from sweeprof.results.measurement import Measurement
from sweeprof.results.record import Record

RANDOM = np.random.default_rng(0)
Array = npt.NDArray[Any]


def evaluated(name: str, quality: Quality) -> Measurement:
    stored: dict[str, Any] = json.loads(json.dumps(quality.to_dict()))
    records = [Record("s1", "ca", "quality", "ok", observations=stored)]
    return evaluate(select([name]), records, records, 1)[name]


def value(name: str, outputs: Array, targets: Array | None) -> Any:
    found = evaluated(name, Quality.of(outputs, targets))
    return found.reason if found.value is None else found.value


SCORES = RANDOM.standard_normal((50, 7)).astype(np.float32)
CLASSES = RANDOM.integers(0, 7, 50)
TOKENS = RANDOM.standard_normal((6, 9, 11)).astype(np.float32)
IDS = RANDOM.integers(0, 11, (6, 9))
PIXELS = RANDOM.standard_normal((3, 5, 8, 6)).astype(np.float32)
MASKS = RANDOM.integers(0, 4, (3, 8, 6))  # a class of the five is never true


def cross_entropy(scores: Array, targets: Array) -> float:
    return float(torch.nn.functional.cross_entropy(torch.tensor(scores), torch.tensor(targets)))


@pytest.mark.parametrize("targets", [CLASSES, CLASSES[:, None], np.eye(7)[CLASSES], np.eye(7, dtype=np.int64)[CLASSES]])
def test_one_class_per_sample(targets: Array) -> None:
    """As an index ``(n,)`` or ``(n, 1)``, or one-hot."""
    assert value("quality/accuracy", SCORES, targets) == pytest.approx(accuracy_score(CLASSES, SCORES.argmax(1)))
    assert value("quality/loss", SCORES, targets) == pytest.approx(cross_entropy(SCORES, CLASSES))
    best = np.argsort(-SCORES, axis=1)[:, :5]
    assert value("quality/top5", SCORES, targets) == pytest.approx((best == CLASSES[:, None]).any(1).mean())


@pytest.mark.parametrize("bad", [slice(0, 1), slice(0, 20), slice(None)])
@pytest.mark.parametrize("column", [0, slice(None)])
def test_a_sample_whose_scores_have_nan_is_wrong(bad: slice, column: int | slice) -> None:
    """Comparisons with NaN are false, so that no class scores higher than the true one: all samples counted as right."""
    scores = SCORES.copy()
    scores[bad, column] = np.nan
    is_fine = ~np.isnan(scores).any(axis=1)
    right = (SCORES.argmax(axis=1) == CLASSES) & is_fine
    assert value("quality/accuracy", scores, CLASSES) == pytest.approx(right.mean())
    assert value("quality/error", scores, CLASSES) == pytest.approx(1 - right.mean())
    best = np.argsort(-SCORES, axis=1)[:, :5]
    assert value("quality/top5", scores, CLASSES) == pytest.approx(((best == CLASSES[:, None]).any(1) & is_fine).mean())
    made = Quality.of(scores, CLASSES)
    assert made.predictions == tuple(np.where(is_fine, SCORES.argmax(axis=1), -1))
    (warning,) = made.warnings
    assert warning.text == f"the outputs of {(~is_fine).sum()} samples have NaN, and count as wrong"
    assert Quality.from_dict(json.loads(json.dumps(made.to_dict()))).warnings == made.warnings
    assert Quality.of(SCORES, CLASSES).warnings == ()


def test_a_single_logit_that_is_nan_is_wrong() -> None:
    logits = np.array([[1.0], [np.nan], [-1.0], [np.nan]], dtype=np.float32)
    assert value("quality/accuracy", logits, np.array([1, 1, 0, 0])) == 0.5


def test_pixels_whose_scores_have_nan_are_of_no_class() -> None:
    outputs = PIXELS.copy()
    outputs[0, 2, :4] = np.nan
    predicted = outputs.argmax(axis=1)
    predicted[np.isnan(outputs).any(axis=1)] = -1
    shares = [
        ((predicted == c) & (c == MASKS)).sum() / ((predicted == c) | (c == MASKS)).sum()
        for c in range(5)
        if ((predicted == c) | (c == MASKS)).any()
    ]
    assert value("quality/miou", outputs, MASKS) == pytest.approx(np.mean(shares))
    assert value("quality/accuracy", outputs, MASKS) == pytest.approx((predicted == MASKS).mean())


def test_one_class_per_token() -> None:
    ids = IDS.copy()
    ids[2, 4:] = -100  # padding, which counts nowhere
    counted = ids != -100
    hits = (TOKENS.argmax(-1) == ids)[counted]
    assert value("quality/accuracy", TOKENS, ids) == pytest.approx(hits.mean())
    loss = cross_entropy(TOKENS.reshape(-1, 11), ids.reshape(-1))
    assert value("quality/loss", TOKENS, ids) == pytest.approx(loss)
    assert value("quality/perplexity", TOKENS, ids) == pytest.approx(np.exp(loss))


@pytest.mark.parametrize("outputs", [PIXELS, np.moveaxis(PIXELS, 1, -1)])
def test_one_class_per_pixel(outputs: Array) -> None:
    """With the channels where torch has them, and where Keras does."""
    predicted = PIXELS.argmax(1).reshape(-1)
    assert value("quality/accuracy", outputs, MASKS) == pytest.approx(accuracy_score(MASKS.reshape(-1), predicted))
    shares = jaccard_score(MASKS.reshape(-1), predicted, average=None, labels=range(5))
    assert value("quality/miou", outputs, MASKS) == pytest.approx(shares.mean())
    absent = np.zeros_like(outputs)  # class 0 everywhere: classes that are neither predicted nor true do not count
    assert value("quality/miou", absent, np.zeros_like(MASKS)) == 1


@pytest.mark.parametrize("columns", [1, 3])
def test_numbers(columns: int) -> None:
    outputs, targets = RANDOM.standard_normal((2, 40, columns)).astype(np.float32)
    assert value("quality/mse", outputs, targets) == pytest.approx(mean_squared_error(targets, outputs), rel=1e-6)
    assert value("quality/mae", outputs, targets) == pytest.approx(mean_absolute_error(targets, outputs), rel=1e-6)
    assert value("quality/r2", outputs, targets) == pytest.approx(r2_score(targets, outputs), rel=1e-6)
    late = [(1e3 * numbers + 1.6e9).astype(np.float32) for numbers in (outputs, targets)]  # such as points of time
    expected = r2_score(late[1].astype(np.float64), late[0].astype(np.float64))
    assert value("quality/r2", *late) == pytest.approx(expected, rel=1e-6)
    if columns == 1:
        assert value("quality/mse", outputs, targets[:, 0]) == value("quality/mse", outputs, targets)


IMAGES = RANDOM.standard_normal((10, 3, 6, 8)).astype(np.float32)


@pytest.mark.parametrize(
    ("outputs", "targets"),
    [
        (IMAGES, IMAGES),
        (IMAGES, np.moveaxis(IMAGES, 1, -1)),
        (np.moveaxis(IMAGES, 1, -1), IMAGES),
        (IMAGES[:, :1], np.moveaxis(IMAGES[:, :1], 1, -1)),
        (IMAGES[:, :1], IMAGES[:, 0]),
    ],
    ids=["one layout", "channels last in targets", "channels last in outputs", "grey", "without channels"],
)
def test_an_image_has_no_error_in_another_layout(outputs: Array, targets: Array) -> None:
    assert value("quality/mse", outputs, targets) == value("quality/mae", outputs, targets) == 0
    assert value("quality/r2", outputs, targets) == 1


@pytest.mark.parametrize(
    ("name", "outputs", "targets", "reason"),
    [
        ("quality/mse", IMAGES, IMAGES.swapaxes(2, 3), "the targets are not numbers of the outputs' shape"),
        ("quality/accuracy", SCORES, None, "the dataset has no labels"),
        ("quality/mse", SCORES, None, "the dataset has no labels"),
        ("quality/mse", SCORES, CLASSES, "the targets are not numbers of the outputs' shape"),
        ("quality/accuracy", SCORES, 0.5 * SCORES, "; of numbers there are quality/mse, quality/mae and quality/r2"),
        ("quality/miou", SCORES, CLASSES, "the targets are not one class per pixel or token"),
        ("quality/accuracy", SCORES, CLASSES + 7, "the outputs have the classes 0 to "),
        ("quality/accuracy", TOKENS, IDS[:, :-1], "the outputs are not one row of class scores per sample"),
        ("quality/r2", SCORES, np.ones_like(SCORES) * 0.3, "an output has the same target for every sample"),
        ("quality/perplexity", 1e4 * TOKENS, IDS, "nats is too large for a power of e"),
    ],
)
def test_there_is_a_reason_where_there_is_no_value(name: str, outputs: Array, targets: Any, reason: str) -> None:
    assert reason in value(name, outputs, targets)


class Detector(torch.nn.Module):
    """Several outputs: a mapping with a nested tuple, a single number, and no tensor."""

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        return {"loss": x.mean(), "boxes": (x * 2, x.round().long()), "logits": x @ torch.eye(4), "name": "detector"}


def quality_of(model: torch.nn.Module, batches: Iterable[object]) -> Quality:
    seen = Profiler(model, data=batches).run("quality")
    assert isinstance(seen, Quality)
    return Quality.from_dict(json.loads(json.dumps(seen.to_dict())))


def test_every_floating_point_output_is_kept_by_name_and_logits_are_evaluated() -> None:
    x, y = torch.rand(10, 4), torch.randint(0, 4, (10,))
    seen = quality_of(Detector(), [(x[:6], y[:6]), (x[6:], y[6:])])
    np.testing.assert_allclose(seen.outputs, x.numpy(), rtol=1e-6)
    assert list(seen.further_outputs) == ["boxes.0"]
    np.testing.assert_array_equal(seen.further_outputs["boxes.0"], 2 * x.numpy())
    assert evaluated("quality/accuracy", seen).value == accuracy_score(y, x.argmax(1))


class Hidden(torch.nn.Module):
    """Scores, and hidden states of which a sample is larger than what a record keeps."""

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        return {"hidden": (x.new_zeros(len(x), 2**20 + 1), x), "logits": x @ torch.eye(4)}


def test_an_output_too_large_for_a_record_is_named_and_the_others_are_kept() -> None:
    x = torch.rand(3, 4)
    seen = quality_of(Hidden(), [(x, torch.zeros(3, dtype=torch.long))])
    assert (seen.outputs.shape, list(seen.further_outputs), seen.left_out) == ((3, 4), ["hidden.1"], ("hidden.0",))
    (warning,) = seen.warnings
    assert warning.text == "outputs 'hidden.0' are not compared: one sample of all outputs is larger than 4 MiB"


class SlowLabels:
    """Labels that take long to be brought to the host, as computing a score of many of them does."""

    seconds = 0.5

    def detach(self) -> torch.Tensor:
        time.sleep(self.seconds)
        return torch.zeros(3, dtype=torch.long)


def test_evaluating_is_timed_without_the_computation_of_scores() -> None:
    seen = quality_of(torch.nn.Identity(), [(torch.rand(3, 4), SlowLabels())])
    assert seen.seconds is not None
    assert 0 < seen.seconds < SlowLabels.seconds


def test_truth_values_are_classes() -> None:
    answers = RANDOM.standard_normal((8, 1)).astype(np.float32)
    assert value("quality/accuracy", answers, answers[:, 0] > 0) == 1
    assert value("quality/accuracy", answers, answers > 0) == 1


def test_numbers_of_an_image_are_one_column() -> None:
    outputs, targets = RANDOM.standard_normal((2, 5, 70, 70))
    seen = Quality.of(outputs, targets)
    assert seen.numbers is not None
    assert seen.numbers.samples == outputs.size
    assert value("quality/mse", outputs, targets) == pytest.approx(((outputs.astype(np.float32) - targets) ** 2).mean())
    wanted = r2_score(targets.reshape(-1), outputs.astype(np.float32).reshape(-1))
    assert value("quality/r2", outputs, targets) == pytest.approx(wanted)


def in_batches(outputs: Any, targets: Any, size: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    starts = range(0, len(outputs), size)
    return [(torch.tensor(outputs[i : i + size]), torch.tensor(targets[i : i + size])) for i in starts]


@pytest.mark.parametrize("batch_size", [1, 2, 3, 6])
def test_a_label_without_a_class_leaves_no_batch_out(batch_size: int) -> None:
    """Of masks with 255 for pixels that do not count, the other batches must not stand for all of them."""
    masks = np.concatenate([MASKS, MASKS])
    masks[4, 0, 0] = 255
    seen = quality_of(torch.nn.Identity(), in_batches(np.concatenate([PIXELS, PIXELS]), masks, batch_size))
    for name in ("quality/accuracy", "quality/loss", "quality/miou"):
        measured = evaluated(name, seen)
        assert measured.value is None
        assert measured.reason == (
            "sample 4 has the label 255, and the outputs have the classes 0 to 4; tokens and pixels of the class -100 do not count"
        )


@pytest.mark.parametrize("batch_size", [1, 3, 4, 12])
def test_errors_of_counts_do_not_depend_on_the_batches(batch_size: int) -> None:
    """One number for each sample is compared with counts; a batch may have no others than 0 and 1, as two classes do."""
    counts = np.array([0, 1, 1, 0, 5, 2, 0, 0, 1, 7, 1, 1])
    answers = RANDOM.standard_normal((12, 1)).astype(np.float32)
    seen = quality_of(torch.nn.Identity(), in_batches(answers, counts, batch_size))
    assert evaluated("quality/mse", seen).value == pytest.approx(mean_squared_error(counts, answers))
    assert evaluated("quality/mae", seen).value == pytest.approx(mean_absolute_error(counts, answers))
    assert evaluated("quality/r2", seen).value == pytest.approx(r2_score(counts, answers))
    assert (
        evaluated("quality/accuracy", seen).reason
        == "sample 4 has the label 5, and the outputs have the classes 0 to 1"
    )


def test_one_output_is_a_logit_or_where_all_are_from_0_to_1_a_probability() -> None:
    """A model of Keras for two classes ends with a sigmoid."""
    logits = RANDOM.standard_normal((40, 1)).astype(np.float32)
    labels = (logits[:, 0] + RANDOM.standard_normal(40) > 0).astype(np.int64)
    expected = torch.nn.functional.binary_cross_entropy_with_logits(
        torch.tensor(logits[:, 0]), torch.tensor(labels).float()
    )
    for outputs in (logits, 1 / (1 + np.exp(-logits))):
        for targets in (labels, labels[:, None]):
            assert value("quality/accuracy", outputs, targets) == pytest.approx(((logits[:, 0] > 0) == labels).mean())
            assert value("quality/loss", outputs, targets) == pytest.approx(float(expected), rel=1e-4)
        assert Quality.of(outputs, None).predictions == tuple((logits[:, 0] > 0).astype(int))


def test_two_classes_have_no_errors_of_numbers() -> None:
    answers = RANDOM.standard_normal((4, 1)).astype(np.float32)
    assert value("quality/mse", answers, np.array([0, 1, 1, 0])) == "the targets are not numbers of the outputs' shape"


def test_batches_of_other_lengths_are_evaluated_and_only_the_first_is_kept() -> None:
    batches = [(torch.rand(2, length, 3), torch.zeros(2, length, dtype=torch.long)) for length in (4, 6)]
    seen = quality_of(torch.nn.Identity(), batches)
    assert seen.is_varying
    assert seen.outputs.shape == (2, 4, 3)
    hits = sum(int((scores.argmax(-1) == 0).sum()) for scores, _ in batches)
    assert evaluated("quality/accuracy", seen).value == hits / 20
