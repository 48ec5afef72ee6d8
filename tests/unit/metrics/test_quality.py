"""Quality of every kind of outputs and targets, against scikit-learn and torch, and metrics of quality that a config names."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from sklearn.metrics import accuracy_score, f1_score, jaccard_score, mean_absolute_error, mean_squared_error, r2_score

from support.planning import composed_of
from support.plans import fake_plan, sweep_folder
from sweeprof.errors import UserError
from sweeprof.metrics.evaluate import evaluate
from sweeprof.metrics.quality import SCORE, decoded, greedy_ctc, output_scores, problems_of
from sweeprof.metrics.select import select
from sweeprof.passes.quality import Quality, Score
from sweeprof.profiling.profiler import Profiler
from sweeprof.results.measurement import Measurement
from sweeprof.results.record import Json, Record
from sweeprof.run.comparison import comparison_of

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


def test_ties_go_to_the_lower_class() -> None:
    scores, targets = np.zeros((3, 7), np.float32), np.array([0, 4, 5])
    assert value("quality/accuracy", scores, targets) == pytest.approx(1 / 3)
    assert value("quality/top5", scores, targets) == pytest.approx(2 / 3)


def test_a_single_logit_that_is_nan_is_wrong() -> None:
    logits = np.array([[1.0], [np.nan], [-1.0], [np.nan]], dtype=np.float32)
    assert value("quality/accuracy", logits, np.array([1, 1, 0, 0])) == 0.5


def test_pixels_whose_scores_have_nan_are_of_no_class() -> None:
    outputs = PIXELS.copy()
    outputs[0, 2, :4] = np.nan
    predicted = outputs.argmax(axis=1)
    predicted[np.isnan(outputs).any(axis=1)] = -1
    shares = jaccard_score(MASKS.reshape(-1), predicted.reshape(-1), average=None, labels=range(5))
    assert value("quality/miou", outputs, MASKS) == pytest.approx(shares.mean())
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
        (IMAGES[:, :1], IMAGES[:, 0]),
    ],
    ids=["one layout", "channels last in targets", "channels last in outputs", "without channels"],
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
        ("quality/top5", SCORES, np.where(np.arange(50) == 1, -100, CLASSES), "sample 1 has the label -100, and "),
        ("quality/loss", SCORES, CLASSES[:-1], "the targets are not one class per sample, token or pixel"),
        ("quality/loss", np.array([[np.inf, 0.0]], np.float32), np.array([0]), "outputs are not finite"),
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


def detector(x: torch.Tensor) -> dict[str, Any]:
    """Return several outputs: a mapping with a nested tuple, a single number, and no tensor."""
    return {"loss": x.mean(), "boxes": (x * 2, x.round().long()), "logits": x @ torch.eye(4), "name": "detector"}


def quality_of(model: Callable[[Any], Any], batches: Iterable[object]) -> Quality:
    seen = Profiler(model, data=batches).run("quality")
    assert isinstance(seen, Quality)
    return Quality.from_dict(json.loads(json.dumps(seen.to_dict())))


def test_every_floating_point_output_is_kept_by_name_and_logits_are_evaluated() -> None:
    x, y = torch.rand(10, 4), torch.randint(0, 4, (10,))
    seen = quality_of(detector, [(x[:6], y[:6]), (x[6:], y[6:])])
    np.testing.assert_allclose(seen.outputs, x.numpy(), rtol=1e-6)
    assert list(seen.further_outputs) == ["boxes.0"]
    np.testing.assert_array_equal(seen.further_outputs["boxes.0"], 2 * x.numpy())
    assert evaluated("quality/accuracy", seen).value == accuracy_score(y, x.argmax(1))


def hidden(x: torch.Tensor) -> dict[str, Any]:
    """Return scores, and hidden states of which a sample is larger than what a record keeps."""
    return {"hidden": (x.new_zeros(len(x), 2**20 + 1), x), "logits": x @ torch.eye(4)}


def test_an_output_too_large_for_a_record_is_named_and_the_others_are_kept() -> None:
    x = torch.rand(3, 4)
    seen = quality_of(hidden, [(x, torch.zeros(3, dtype=torch.long))])
    assert (seen.outputs.shape, list(seen.further_outputs), seen.left_out) == ((3, 4), ["hidden.1"], ("hidden.0",))
    (warning,) = seen.warnings
    assert warning.text == "outputs 'hidden.0' are not compared: one sample of all outputs is larger than 4 MiB"


class SlowLabels:
    """Labels that take long to be brought to the host, as computing a score of many of them does."""

    seconds = 0.1

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


# Metrics of quality that a config names: torchmetrics, classes and functions of the user's own, decoded texts


HERE = __name__
LOGITS = np.array([[3, 1, 0], [0, 2, 1], [0, 3, 1], [1, 0, 5]], np.float32)
LABELS = np.array([0, 1, 2, 2])
"""Three of four are right: one of class 2 is taken for class 1."""


def scored(node: Mapping[str, Any], *batches: tuple[Any, Any], dataset: object = None) -> Mapping[str, Json]:
    (score,) = output_scores({"one": node}, "cpu", dataset)
    for outputs, targets in batches:
        score.add(outputs if isinstance(outputs, Mapping) else {"": outputs}, targets)
    return score.results()


def number(node: Mapping[str, Any], *batches: tuple[Any, Any], dataset: object = None) -> float:
    found = scored(node, *batches, dataset=dataset)
    assert found["one"]["value"] is not None, found
    value: float = found["one"]["value"]
    return value


def classification(name: str, **options: Any) -> dict[str, Any]:
    return {"_target_": f"torchmetrics.classification.{name}", **options}


def test_a_torchmetric_is_updated_with_every_batch() -> None:
    node = classification("MulticlassF1Score", num_classes=3)
    # Class 0: F1 1; class 1: precision 1/2, recall 1, F1 2/3; class 2: precision 1, recall 1/2, F1 2/3.
    assert number(node, (LOGITS[:3], LABELS[:3]), (LOGITS[3:], LABELS[3:])) == pytest.approx((1 + 2 / 3 + 2 / 3) / 3)
    found = scored(node, (LOGITS, LABELS))["one"]
    assert (found["better"], found["unit"]) == ("higher", "ratio")


def test_of_a_vector_or_a_mapping_each_number_has_a_name() -> None:
    found = scored(classification("MulticlassRecall", num_classes=3, average="none"), (LOGITS, LABELS))
    assert {name: one["value"] for name, one in found.items()} == {"one.0": 1.0, "one.1": 1.0, "one.2": 0.5}
    found = scored({"_target_": f"{HERE}.Extremes"}, (LOGITS, LABELS), (2 * LOGITS, LABELS))
    assert {name: one["value"] for name, one in found.items()} == {"one.low_est": 0.0, "one.high": 10.0}
    assert {one["better"] for one in found.values()} == {"lower"}


class Extremes:
    """A class of a user: not of torchmetrics, so that it gets arrays."""

    higher_is_better = np.False_  # as a class may compute it

    def __init__(self) -> None:
        self.seen: list[float] = []

    def update(self, outputs: Any, targets: Any) -> None:
        assert type(outputs) is type(targets) is np.ndarray
        self.seen += outputs.reshape(-1).tolist()

    def compute(self) -> dict[str, float]:
        return {"low est": min(self.seen), "high": max(self.seen)}


MICRO = classification("MulticlassAccuracy", num_classes=3, average="micro")
SHARE_RIGHT: dict[str, Any] = {"_target_": f"{HERE}.share_right", "argmax": True}
OF_TWO_TOKENS, OF_TOKENS = LOGITS.reshape(2, 2, 3), LABELS.reshape(2, 2)
ONE_LOGIT = np.array([[2.0], [-1.0], [3.0]], np.float32)
PICTURES = np.arange(180, dtype=np.float32).reshape(2, 3, 5, 6)


@pytest.mark.parametrize(
    ("node", "outputs", "targets", "expected"),
    [
        (MICRO, OF_TWO_TOKENS, OF_TOKENS, 0.75),
        (MICRO, np.moveaxis(OF_TWO_TOKENS, -1, 1), OF_TOKENS, 0.75),
        ({**MICRO, "ignore_index": -100}, OF_TWO_TOKENS, np.array([[0, 1], [-100, 2]]), 1.0),
        (classification("BinaryAccuracy"), ONE_LOGIT, np.array([1, 1, 1]), 2 / 3),
        (
            {"_target_": "torchmetrics.MeanSquaredError"},
            *(np.array([[1.0], [3.0]], np.float32), np.array([1.0, 1.0], np.float32), 2.0),
        ),
        ({"_target_": "torchmetrics.MeanSquaredError"}, np.moveaxis(PICTURES, 1, -1), PICTURES, 0.0),
        ({"_target_": f"{HERE}.share_right"}, PICTURES, np.moveaxis(PICTURES, 1, -1), 1.0),
        (SHARE_RIGHT, LOGITS, LABELS, 0.75),
        (SHARE_RIGHT, LOGITS, LABELS[:, None], 0.75),
        (SHARE_RIGHT, LOGITS, np.eye(3, dtype=np.float32)[LABELS], 0.75),
        (SHARE_RIGHT, ONE_LOGIT, np.array([1, 0, 0]), 2 / 3),
        (classification("MulticlassF1Score", num_classes=3), LOGITS, LABELS[:, None], (1 + 2 / 3 + 2 / 3) / 3),
    ],
    ids=[
        *("tokens", "pixels", "padding", "one logit", "numbers", "images", "images of Keras"),
        *("argmax", "an axis of its own", "one-hot", "two classes", "torchmetrics"),
    ],
)
def test_layouts_of_scores_and_targets(node: dict[str, Any], outputs: Any, targets: Any, expected: float) -> None:
    assert number(node, (outputs, targets)) == pytest.approx(expected)


def share_right(outputs: Any, targets: Any) -> float:
    return float((outputs == targets).mean())


def test_which_output() -> None:
    node = {"_target_": f"{HERE}.largest"}
    outputs = {"hidden": 7 * LOGITS, "logits": LOGITS}
    assert number(node, (outputs, LABELS)) == 5.0
    assert number({**node, "output": "hidden"}, (outputs, LABELS)) == 35.0
    found = scored({**node, "output": "hiden"}, (outputs, LABELS))["one"]
    assert all(text in found["reason"] for text in ("quality.one.output", "'hidden'"))
    assert found["failure"] is not None
    # Whole numbers are no scores: they are given to metrics that name them.
    with_ids = {"ids": 7 * LABELS, "scores": LOGITS}
    assert [number(one, (with_ids, LABELS)) for one in (node, {**node, "output": "ids"})] == [5.0, 14.0]


def largest(outputs: Any, targets: Any, scale: float = 1.0) -> Any:
    return scale * outputs.max()


BOXES = np.array([[0, 0, 2, 2], [4, 4, 8, 8], [1, 1, 2, 3]], np.float32)


def box_detector(images: list[torch.Tensor]) -> list[dict[str, torch.Tensor]]:
    """Return all but the last of the boxes of each image."""
    return [{"boxes": image[:-1], "labels": torch.ones(len(image) - 1).long()} for image in images]


class Found:
    """Share of the true boxes that were found, image by image, as detectors of torchvision return them."""

    higher_is_better = True

    def __init__(self) -> None:
        self.found = self.true = 0

    def update(self, outputs: Any, targets: Any) -> None:
        for image, truth in zip(outputs, targets, strict=True):
            assert image["labels"].dtype == np.int64
            self.found += sum((truth["boxes"] == box).all(1).any() for box in image["boxes"])
            self.true += len(truth["boxes"])

    def compute(self) -> float:
        return self.found / self.true


def test_of_a_detector_a_metric_gets_boxes_and_labels_of_each_image() -> None:
    """Each image has another number of boxes."""
    images = [torch.tensor(BOXES), torch.tensor(BOXES[:2])]
    truth = [{"boxes": BOXES}, {"boxes": BOXES[:2]}]
    node = {"_target_": Found(), "output": "all", "target": "all"}
    data = [((images,), truth), ((images[1:],), truth[1:])]
    profiler = Profiler(box_detector, data=data, quality={"found": node})
    assert profiler.compute("quality/found").value == pytest.approx((2 + 1 + 1) / (3 + 2 + 2))
    assert "not one" in (profiler.compute("quality/accuracy").reason or "")


def test_which_target() -> None:
    node = SHARE_RIGHT
    targets = {"wrong": 1 + LABELS, "right": LOGITS.argmax(axis=1)}
    assert number(node, (LOGITS, targets)) < 1.0
    assert number({**node, "target": "right"}, (LOGITS, targets)) == 1.0
    assert number({**node, "target": 1}, (LOGITS, tuple(targets.values()))) == 1.0
    found = scored({**node, "target": "rigth"}, (LOGITS, targets))["one"]
    assert all(text in found["reason"] for text in ("quality.one.target", "'right'"))


def two_heads(x: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"main": x, "aux": -x}


def test_an_output_goes_with_the_target_of_its_name() -> None:
    """In whatever order the targets come; without a target of the name it goes with the first."""
    x = torch.tensor(LOGITS)
    main, aux = x.argmax(1), (-x).argmax(1)
    quality = {"aux": {**SHARE_RIGHT, "output": "aux"}, "own": SHARE_RIGHT}
    for targets in ({"main": main, "aux": aux}, {"aux": aux, "main": main}):
        profiler = Profiler(two_heads, data=[(x, targets)], quality=quality)
        assert [profiler.compute(f"quality/{name}").value for name in ("accuracy", "aux", "own")] == [1, 1, 1]
    profiler = Profiler(two_heads, data=[(x, {"labels": main, "aux": aux})])
    assert profiler.compute("quality/accuracy").value == 1


def test_a_function_gets_all_outputs_and_targets_by_name() -> None:
    node = {"_target_": f"{HERE}.all_named", "output": "all", "target": "all"}
    outputs = {"logits": LOGITS, "ids": LABELS, "loss": np.float32(2).reshape(())}
    targets = {"classes": LABELS, "sizes": (LABELS, LOGITS)}
    assert number(node, (outputs, targets), (outputs, targets)) == 8
    varying = scored(node, (outputs, targets), ({"logits": LOGITS}, targets))["one"]
    assert "the batches have different names: use a class" in varying["reason"]


def all_named(outputs: Any, targets: Any) -> float:
    assert {name: (array.shape, array.dtype.kind) for name, array in outputs.items()} == {
        "logits": ((8, 3), "f"),
        "ids": ((8,), "i"),
        "loss": ((2,), "f"),
    }
    assert [array.shape for array in targets["sizes"]] == [(8,), (8, 3)]
    return len(targets["classes"])


def test_a_function_gets_everything_once_with_its_options() -> None:
    node = {"_target_": f"{HERE}.largest", "scale": 2.0, "better": "lower"}
    found = scored(node, (LOGITS[:1], LABELS[:1]), (LOGITS[1:], LABELS[1:]))["one"]
    assert (found["value"], found["better"], found["unit"]) == (10.0, "lower", "abs")
    assert number({"_target_": f"{HERE}.largest"}, (LOGITS, None)) == 5.0  # which needs no targets
    varying = scored({"_target_": f"{HERE}.largest"}, (LOGITS, LABELS), (LOGITS[:, :2], LABELS))["one"]
    assert "use a class with update(outputs, targets) and compute()" in varying["reason"]


def test_a_function_may_ask_for_device_and_transform() -> None:
    dataset = type("Data", (), {"transform": staticmethod(lambda values: values + 1)})()
    assert number({"_target_": f"{HERE}.prepared"}, (LOGITS, LABELS), dataset=dataset) == 6.0
    with pytest.raises(UserError, match="asks for a transform, and object has no attribute of this name"):
        output_scores({"one": {"_target_": f"{HERE}.prepared"}}, "cpu", object())


def prepared(outputs: Any, targets: Any, device: str, transform: Any) -> Any:
    assert device == "cpu"
    return transform(outputs).max()


def failing(outputs: Any, targets: Any) -> float:
    raise ZeroDivisionError("no luck")


def matrix(outputs: Any, targets: Any) -> Any:
    return outputs


def hundred(outputs: Any, targets: Any) -> Any:
    return np.arange(100)


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("failing", "ZeroDivisionError: no luck"),
        ("matrix", r"numbers of shape (4, 3), not one, a vector or a mapping"),
        ("hundred", "computes 100 numbers: at most 64 are kept"),
    ],
)
def test_an_error_is_the_reason(target: str, reason: str) -> None:
    found = scored({"_target_": f"{HERE}.{target}"}, (LOGITS, LABELS))["one"]
    assert found["value"] is None
    assert reason in found["reason"]
    assert found["failure"]["traceback"]


def test_without_labels_there_is_a_reason() -> None:
    found = scored(classification("MulticlassAccuracy", num_classes=3), (LOGITS, None))["one"]
    assert (found["value"], found["reason"], found["failure"]) == (None, "the dataset has no labels", None)


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (
            {"_target_": "torchmetrics.classification.MulticlasF1Score"},
            "quality.one._target_.*MulticlasF1Score.*cannot be imported.*'MulticlassF1Score'",
        ),
        (classification("MulticlassF1Score", num_classes=3, num_clases=3), "quality.one._target_.*num_clases"),
        ({"_target_": f"{HERE}.largest", "scal": 2}, "quality.one.*scal.*'scale'"),
        ({"_target_": f"{HERE}.SlowLabels"}, "have no methods update"),
        ({"_target_": f"{HERE}.largest", "decode": 3}, "quality.one.decode.*is neither the folder of a tokenizer"),
    ],
)
def test_what_cannot_be_made(node: Json, message: str) -> None:
    with pytest.raises(UserError, match=message):
        output_scores({"one": node}, "cpu", None)


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ({"f 1": {"_target_": "a.b"}}, "is not a name"),
        ({"accuracy": {"_target_": "a.b"}}, "is the name of a metric of sweeprof"),
        ({"f1": {}}, r"quality.f1._target_"),
        ({"f1": {"_target_": "a.b", "better": "hihger"}}, "quality.f1.better.*'higher'"),
        ({"f1": {"_target_": "a.b", "argmax": 1}}, "quality.f1.argmax"),
        ({"f1": {"_target_": "a.b", "argmax": True, "output": "all"}}, "needs one output and one target"),
    ],
)
def test_configs_of_another_form(nodes: object, message: str) -> None:
    (problem,) = problems_of(nodes)
    with pytest.raises(UserError, match=message):
        raise UserError([problem])


def measured(path: Path, scores: Mapping[str, Mapping[str, Score]]) -> Any:
    plan = fake_plan({name: {} for name in scores}, ["quality"], metrics=("quality/accuracy",))
    names = {part.partition(".")[0] for own_scores in scores.values() for part in own_scores}
    nodes = {name: {"_target_": "my.metric"} for name in sorted(names)}
    combinations = tuple(replace(c, config={**c.config, "quality": nodes}) for c in plan.combinations)
    entries = [*plan.metrics, *({"_target_": SCORE, "name": name} for name in nodes)]
    folder = sweep_folder(path, replace(plan, combinations=combinations, metrics=entries))
    for name, found in scores.items():
        seen = replace(Quality.of(LOGITS, LABELS), scores=found).to_dict()
        Record("s1", f"c{name}", "quality", "ok", observations=seen).write(folder.records)
    return comparison_of(folder)


def test_direction_and_verdict_come_from_the_metric(tmp_path: Path) -> None:
    found = measured(
        tmp_path, {"a": {"f1": Score(0.5, "higher", "ratio")}, "b": {"f1": Score(0.75, "higher", "ratio")}}
    )
    info = found.metrics[-1]
    assert (info.name, info.better, info.unit) == ("quality/f1", "higher", "ratio")
    cell = found.rows[1].cells["quality/f1"]
    assert (cell.measurement.value, cell.ratio, cell.verdict) == (0.75, 1.5, "better")
    worse = measured(tmp_path / "w", {"a": {"wer": Score(0.5, "lower")}, "b": {"wer": Score(0.75, "lower")}})
    assert worse.rows[1].cells["quality/wer"].verdict == "worse"


def test_several_values_are_several_metrics(tmp_path: Path) -> None:
    parts = {"per.0": Score(0.5, "higher"), "per.1": Score(1.0, "higher")}
    found = measured(tmp_path, {"a": parts, "b": {"per.0": Score(0.25, "higher")}})
    assert [info.name for info in found.metrics] == ["quality/accuracy", "quality/per.0", "quality/per.1"]
    assert found.rows[1].cells["quality/per.0"].verdict == "worse"
    assert found.rows[1].cells["quality/per.1"].measurement.reason == "it has several values: quality/per.0"


def test_a_failed_metric_is_a_failure_of_its_row(tmp_path: Path) -> None:
    failure: dict[str, Any] = {"source": "", "message": "ZeroDivisionError: no luck", "location": "my.py:3 in mine"}
    failure |= dict.fromkeys(("traceback", "log"))
    found = measured(tmp_path, {"a": {"mine": Score(None, reason="the metric raised it", failure=failure)}})
    assert found.rows[0].cells["quality/mine"].measurement.reason == "the metric raised it"
    assert found.rows[0].failures[0].source == "metric quality/mine"


def test_the_pass_over_the_test_split_updates_them() -> None:
    """F1 of the digits by scikit-learn, from the predictions that the pass has."""
    config = composed_of("model=mlp", "dataset=digits", "backend=torch", "batch_size=97")
    config["quality"] = {
        "f1": classification("MulticlassF1Score", num_classes=10),
        "failing": {"_target_": f"{HERE}.failing"},
    }
    found = Profiler.from_config(config).run("quality")
    assert isinstance(found, Quality)
    predictions, targets = np.array(found.predictions), np.array(found.targets)
    assert found.scores["f1"].value == pytest.approx(f1_score(targets, predictions, average="macro"), rel=1e-6)
    assert "no luck" in (found.scores["failing"].reason or "")
    assert len(found.tracebacks) == 1


# Decoding


def test_greedy_decoding_collapses_repeats_and_drops_blanks() -> None:
    frames = [[1, 1, 0, 1, 2, 2, 0, 0], [0, 0, 3, 3, 3, 0, 3, 1]]
    scores = np.eye(4, dtype=np.float32)[np.array(frames)]
    assert greedy_ctc(scores, blank=0) == [[1, 1, 2], [3, 3, 1]]
    assert greedy_ctc(scores, blank=3) == [[1, 0, 1, 2, 0], [0, 0, 1]]
    assert greedy_ctc(scores[:, :1], blank=0) == [[1], []]


LETTERS = ["<pad>", "<s>", "</s>", "<unk>", "|", *"ACDGOT"]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer of Wav2Vec2."""
    transformers = pytest.importorskip("sweeprof.model_sources.transformers").import_transformers()
    path = tmp_path_factory.mktemp("ctc")
    (path / "vocab.json").write_text(json.dumps({letter: place for place, letter in enumerate(LETTERS)}))
    transformers.Wav2Vec2CTCTokenizer(str(path / "vocab.json")).save_pretrained(path)
    return path


def frames_of(*texts: str) -> Any:
    """Logits whose best letters are those of the texts; ``_`` is the blank."""
    ids = [[0 if letter == "_" else LETTERS.index(letter) for letter in text] for text in texts]
    return np.eye(len(LETTERS), dtype=np.float32)[np.array(ids)]


def labels_of(*texts: str) -> Any:
    longest = max(map(len, texts))
    return np.array([[LETTERS.index(letter) for letter in text] + [-100] * (longest - len(text)) for text in texts])


def test_word_error_rate_by_hand(folder: Path) -> None:
    node = {"_target_": "torchmetrics.text.WordErrorRate", "decode": str(folder)}
    right = (frames_of("CAT|DO_OG"), labels_of("CAT|DOOG"))
    wrong = (frames_of("CAT|DOO"), labels_of("CAT|DOOG"))
    short = (frames_of("CAT____"), labels_of("CAT|DOOG"))
    assert number(node, right) == 0.0
    assert number(node, right, wrong) == 0.25  # one of four words is replaced
    assert number(node, right, wrong, short) == pytest.approx(2 / 6)  # and one of six is left out
    assert scored(node, right)["one"]["better"] == "lower"
    characters = {**node, "_target_": "torchmetrics.text.CharErrorRate"}
    assert number(characters, wrong) == pytest.approx(2 / 8)


def test_decoding_by_a_function_of_the_users(folder: Path) -> None:
    node = {"_target_": "torchmetrics.text.WordErrorRate", "decode": {"_target_": f"{HERE}.spelled", "digits": "abc"}}
    assert number(node, (LOGITS, LABELS)) == 0.25


def spelled(outputs: Any, targets: Any, digits: str) -> tuple[list[str], list[str]]:
    return [digits[place] for place in outputs.argmax(-1)], [digits[place] for place in targets]


def test_what_cannot_be_decoded(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(UserError, match="is not a folder of a tokenizer"):
        decoded(frames_of("CAT"), labels_of("CAT"), str(tmp_path / "no"))
    with pytest.raises(UserError, match="is not a folder of a tokenizer"):
        decoded(frames_of("CAT"), labels_of("CAT"), str(tmp_path))
    with pytest.raises(UserError, match=r"decodes outputs \(batch, positions, ids\)"):
        decoded(LOGITS, LABELS, str(folder))
