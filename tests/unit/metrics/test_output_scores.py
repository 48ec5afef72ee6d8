"""Metrics of quality that a config names: torchmetrics, classes and functions of the user's own, decoded texts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from support.planning import composed_of
from support.plans import fake_plan, sweep_folder
from sweeprof.errors import UserError
from sweeprof.metrics.quality import (
    SCORE,
    decoded,
    greedy_ctc,
    output_scores,
    parts_of,
    problems_of,
    score_metric,
    with_parts,
)
from sweeprof.metrics.select import needs_trust, passes_of, select
from sweeprof.passes.quality import Quality, Score
from sweeprof.plan.plan import identity
from sweeprof.profiling.profiler import Profiler
from sweeprof.results.record import Json, Record
from sweeprof.run.comparison import comparison_of

pytest.importorskip("torchmetrics" if find_spec("torchmetrics") is None else "sweeprof")
HERE = __name__
LOGITS = np.array([[3, 1, 0], [0, 2, 1], [0, 3, 1], [1, 0, 5]], np.float32)
CLASSES = np.array([0, 1, 2, 2])
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
    assert number(node, (LOGITS[:3], CLASSES[:3]), (LOGITS[3:], CLASSES[3:])) == pytest.approx((1 + 2 / 3 + 2 / 3) / 3)
    found = scored(node, (LOGITS, CLASSES))["one"]
    assert (found["better"], found["unit"]) == ("higher", "ratio")


def test_of_a_vector_or_a_mapping_each_number_has_a_name() -> None:
    found = scored(classification("MulticlassRecall", num_classes=3, average="none"), (LOGITS, CLASSES))
    assert {name: one["value"] for name, one in found.items()} == {"one.0": 1.0, "one.1": 1.0, "one.2": 0.5}
    found = scored({"_target_": f"{HERE}.Extremes"}, (LOGITS, CLASSES), (2 * LOGITS, CLASSES))
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
TOKENS, OF_TOKENS = LOGITS.reshape(2, 2, 3), CLASSES.reshape(2, 2)
ONE_LOGIT = np.array([[2.0], [-1.0], [3.0]], np.float32)
IMAGES = np.arange(180, dtype=np.float32).reshape(2, 3, 5, 6)


@pytest.mark.parametrize(
    ("node", "outputs", "targets", "expected"),
    [
        (MICRO, TOKENS, OF_TOKENS, 0.75),
        (MICRO, np.moveaxis(TOKENS, -1, 1), OF_TOKENS, 0.75),
        ({**MICRO, "ignore_index": -100}, TOKENS, np.array([[0, 1], [-100, 2]]), 1.0),
        (classification("BinaryAccuracy"), ONE_LOGIT, np.array([1, 1, 1]), 2 / 3),
        (
            {"_target_": "torchmetrics.MeanSquaredError"},
            *(np.array([[1.0], [3.0]], np.float32), np.array([1.0, 1.0], np.float32), 2.0),
        ),
        ({"_target_": "torchmetrics.MeanSquaredError"}, np.moveaxis(IMAGES, 1, -1), IMAGES, 0.0),
        ({"_target_": f"{HERE}.share_right"}, IMAGES, np.moveaxis(IMAGES, 1, -1), 1.0),
        (SHARE_RIGHT, LOGITS, CLASSES, 0.75),
        (SHARE_RIGHT, TOKENS, OF_TOKENS, 0.75),
        (SHARE_RIGHT, LOGITS, CLASSES[:, None], 0.75),
        (SHARE_RIGHT, LOGITS, np.eye(3, dtype=np.float32)[CLASSES], 0.75),
        (SHARE_RIGHT, ONE_LOGIT, np.array([1, 0, 0]), 2 / 3),
        (classification("MulticlassF1Score", num_classes=3), LOGITS, CLASSES[:, None], (1 + 2 / 3 + 2 / 3) / 3),
    ],
    ids=[
        *("tokens", "pixels", "padding", "one logit", "numbers", "images", "images of Keras"),
        *("argmax", "argmax of tokens", "an axis of its own", "one-hot", "two classes", "torchmetrics"),
    ],
)
def test_layouts_of_scores_and_targets(node: dict[str, Any], outputs: Any, targets: Any, expected: float) -> None:
    assert number(node, (outputs, targets)) == pytest.approx(expected)


def share_right(outputs: Any, targets: Any) -> float:
    return float((outputs == targets).mean())


def test_which_output() -> None:
    node = {"_target_": f"{HERE}.largest"}
    outputs = {"hidden": 7 * LOGITS, "logits": LOGITS}
    assert number(node, (outputs, CLASSES)) == 5.0
    assert number({**node, "output": "hidden"}, (outputs, CLASSES)) == 35.0
    found = scored({**node, "output": "hiden"}, (outputs, CLASSES))["one"]
    assert all(text in found["reason"] for text in ("quality.one.output", "'hidden'"))
    assert found["failure"] is not None
    # Whole numbers are no scores: they are given to metrics that name them.
    with_ids = {"ids": 7 * CLASSES, "scores": LOGITS}
    assert [number(one, (with_ids, CLASSES)) for one in (node, {**node, "output": "ids"})] == [5.0, 14.0]


def largest(outputs: Any, targets: Any, scale: float = 1.0) -> Any:
    return scale * outputs.max()


BOXES = np.array([[0, 0, 2, 2], [4, 4, 8, 8], [1, 1, 2, 3]], np.float32)
KINDS = np.array([1, 2, 1])


class Recall:
    """Share of the true boxes that one of the same class overlaps by half; takes what detectors of torchvision return."""

    higher_is_better = True

    def __init__(self) -> None:
        self.found: list[bool] = []

    def update(self, outputs: Any, targets: Any) -> None:
        assert len(outputs) == len(targets)
        for image, truth in zip(outputs, targets, strict=True):
            assert image["labels"].dtype == np.int64
            for box, label in zip(truth["boxes"], truth["labels"], strict=True):
                same = image["boxes"][image["labels"] == label]
                self.found.append(any(overlap(box, one) >= 0.5 for one in same))

    def compute(self) -> float:
        return float(np.mean(self.found))


def overlap(one: Any, other: Any) -> float:
    sides = np.minimum(one[2:], other[2:]) - np.maximum(one[:2], other[:2])
    common = float(np.prod(np.maximum(sides, 0)))
    return common / float(np.prod(one[2:] - one[:2]) + np.prod(other[2:] - other[:2]) - common)


class Detector(torch.nn.Module):
    """Finds all but the last of the boxes that it is given, and takes the second for one of another class."""

    def forward(self, images: list[torch.Tensor]) -> list[dict[str, torch.Tensor]]:
        kinds = torch.tensor([1, 1, 1])
        return [{"boxes": image[:-1], "labels": kinds[: len(image) - 1], "scores": image[:-1, 0]} for image in images]


def test_of_a_detector_a_metric_gets_boxes_and_labels_of_each_image() -> None:
    """Each image has another number of boxes: of 3 the first is found, of 2 the only one that is left."""
    images = [torch.tensor(BOXES), torch.tensor(BOXES[:2])]
    truth = [{"boxes": BOXES, "labels": KINDS}, {"boxes": BOXES[:2], "labels": KINDS[:2]}]
    node = {"_target_": Recall(), "output": "all", "target": "all"}
    data = [((images,), truth), ((images[1:],), truth[1:])]
    profiler = Profiler(Detector(), data=data, quality={"recall": node})
    assert profiler.compute("quality/recall").value == pytest.approx(3 / 7)
    assert "not one" in (profiler.compute("quality/accuracy").reason or "")


def test_which_target() -> None:
    node = SHARE_RIGHT
    targets = {"wrong": 1 + CLASSES, "right": LOGITS.argmax(axis=1)}
    assert number(node, (LOGITS, targets)) < 1.0
    assert number({**node, "target": "right"}, (LOGITS, targets)) == 1.0
    assert number({**node, "target": 1}, (LOGITS, tuple(targets.values()))) == 1.0
    found = scored({**node, "target": "rigth"}, (LOGITS, targets))["one"]
    assert all(text in found["reason"] for text in ("quality.one.target", "'right'"))


class TwoHeads(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"main": x, "aux": -x}


def test_an_output_goes_with_the_target_of_its_name() -> None:
    """In whatever order the targets come; without a target of the name it goes with the first."""
    x = torch.tensor(LOGITS)
    main, aux = x.argmax(1), (-x).argmax(1)
    quality = {"aux": {**SHARE_RIGHT, "output": "aux"}, "own": SHARE_RIGHT}
    for targets in ({"main": main, "aux": aux}, {"aux": aux, "main": main}):
        profiler = Profiler(TwoHeads(), data=[(x, targets)], quality=quality)
        assert [profiler.compute(f"quality/{name}").value for name in ("accuracy", "aux", "own")] == [1, 1, 1]
    profiler = Profiler(TwoHeads(), data=[(x, {"labels": main, "aux": aux})])
    assert profiler.compute("quality/accuracy").value == 1


def test_a_function_gets_all_outputs_and_targets_by_name() -> None:
    node = {"_target_": f"{HERE}.all_named", "output": "all", "target": "all"}
    outputs = {"logits": LOGITS, "ids": CLASSES, "loss": np.float32(2).reshape(())}
    targets = {"classes": CLASSES, "sizes": (CLASSES, LOGITS)}
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
    found = scored(node, (LOGITS[:1], CLASSES[:1]), (LOGITS[1:], CLASSES[1:]))["one"]
    assert (found["value"], found["better"], found["unit"]) == (10.0, "lower", "abs")
    assert number({"_target_": f"{HERE}.largest"}, (LOGITS, None)) == 5.0  # which needs no targets
    varying = scored({"_target_": f"{HERE}.largest"}, (LOGITS, CLASSES), (LOGITS[:, :2], CLASSES))["one"]
    assert "use a class with update(outputs, targets) and compute()" in varying["reason"]


def test_a_function_may_ask_for_device_and_transform() -> None:
    dataset = type("Data", (), {"transform": staticmethod(lambda values: values + 1)})()
    assert number({"_target_": f"{HERE}.prepared"}, (LOGITS, CLASSES), dataset=dataset) == 6.0
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
    found = scored({"_target_": f"{HERE}.{target}"}, (LOGITS, CLASSES))["one"]
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
        ({"_target_": f"{HERE}.Plain"}, "have no methods update"),
        ({"_target_": f"{HERE}.largest", "decode": 3}, "quality.one.decode.*is neither the folder of a tokenizer"),
    ],
)
def test_what_cannot_be_made(node: Json, message: str) -> None:
    with pytest.raises(UserError, match=message):
        output_scores({"one": node}, "cpu", None)


class Plain:
    pass


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


def test_what_a_record_has() -> None:
    found = Quality.of(LOGITS, CLASSES)
    assert found.to_dict()["scores"] == {}
    with_scores = replace(found, scores={"f1": Score(0.5, "higher", "ratio"), "odd": Score(None, reason="no luck")})
    assert Quality.from_dict(json.loads(json.dumps(with_scores.to_dict()))).scores == with_scores.scores
    assert identity({"batch_size": 1, "quality": {}}) == identity({"batch_size": 1})


def measured(path: Path, scores: Mapping[str, Mapping[str, Score]]) -> Any:
    plan = fake_plan({name: {} for name in scores}, ["quality"], metrics=("quality/accuracy",))
    names = {part.partition(".")[0] for own_scores in scores.values() for part in own_scores}
    nodes = {name: {"_target_": "my.metric"} for name in sorted(names)}
    combinations = tuple(replace(c, config={**c.config, "quality": nodes}) for c in plan.combinations)
    entries = [*plan.metrics, *({"_target_": SCORE, "name": name} for name in nodes)]
    folder = sweep_folder(path, replace(plan, combinations=combinations, metrics=entries))
    for name, found in scores.items():
        seen = replace(Quality.of(LOGITS, CLASSES), scores=found).to_dict()
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


def test_a_report_imports_no_metric() -> None:
    entry = {"_target_": SCORE, "name": "f1"}
    assert not needs_trust([entry])
    (selected,) = select([entry], trust=False)
    assert passes_of([entry]) == ["quality"]
    assert selected.metric.info.name == score_metric("f1").info.name == "quality/f1"
    assert parts_of([selected], []) == []
    assert with_parts([], {}, []) == ([], {})


def test_the_pass_over_the_test_split_updates_them() -> None:
    """F1 of the digits by the definition, from the predictions that the pass has."""
    config = composed_of("model=mlp", "dataset=digits", "backend=torch", "batch_size=97")
    config["quality"] = {
        "f1": classification("MulticlassF1Score", num_classes=10),
        "samples": {"_target_": f"{HERE}.number_of_samples"},
        "failing": {"_target_": f"{HERE}.failing"},
    }
    found = Profiler.from_config(config).run("quality")
    assert isinstance(found, Quality)
    predictions, targets = np.array(found.predictions), np.array(found.targets)
    by_class = []
    for digit in range(10):
        right = ((predictions == digit) & (targets == digit)).sum()
        by_class.append(2 * right / ((predictions == digit).sum() + (targets == digit).sum()))
    assert found.scores["f1"].value == pytest.approx(np.mean(by_class), rel=1e-6)
    assert found.scores["samples"].value == len(targets)
    assert "no luck" in (found.scores["failing"].reason or "")
    assert len(found.tracebacks) == 1


def number_of_samples(outputs: Any, targets: Any) -> int:
    assert len(outputs) == len(targets)
    return len(outputs)


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


def test_texts_of_a_tokenizer(folder: Path) -> None:
    from transformers import AutoTokenizer

    outputs = frames_of("CC_AA_T|_D_O_O_G", "C_A_A_T___________"[:16])
    found, wanted = decoded(outputs, labels_of("CAT|DOOG", "CAAT"), str(folder))
    assert found == ["CAT DOOG", "CAAT"]
    assert wanted == ["CAT DOOG", "CAAT"]
    assert found == AutoTokenizer.from_pretrained(folder).batch_decode(outputs.argmax(-1))


def test_word_error_rate_by_hand(folder: Path) -> None:
    node = {"_target_": "torchmetrics.text.WordErrorRate", "decode": str(folder)}
    right = (frames_of("CAT|DOG"), labels_of("CAT|DOG"))
    wrong = (frames_of("CAT|DO_"), labels_of("CAT|DOG"))
    short = (frames_of("CAT____"), labels_of("CAT|DOG"))
    assert number(node, right) == 0.0
    assert number(node, right, wrong) == 0.25  # one of four words is replaced
    assert number(node, right, wrong, short) == pytest.approx(2 / 6)  # and one of six is left out
    assert scored(node, right)["one"]["better"] == "lower"
    characters = {**node, "_target_": "torchmetrics.text.CharErrorRate"}
    assert number(characters, wrong) == pytest.approx(1 / 7)


def test_decoding_by_a_function_of_the_users(folder: Path) -> None:
    node = {"_target_": "torchmetrics.text.WordErrorRate", "decode": {"_target_": f"{HERE}.spelled", "digits": "abc"}}
    assert number(node, (LOGITS, CLASSES)) == 0.25


def spelled(outputs: Any, targets: Any, digits: str) -> tuple[list[str], list[str]]:
    return [digits[place] for place in outputs.argmax(-1)], [digits[place] for place in targets]


def test_what_cannot_be_decoded(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(UserError, match="is not a folder of a tokenizer"):
        decoded(frames_of("CAT"), labels_of("CAT"), str(tmp_path / "no"))
    with pytest.raises(UserError, match="is not a folder of a tokenizer"):
        decoded(frames_of("CAT"), labels_of("CAT"), str(tmp_path))
    with pytest.raises(UserError, match=r"decodes outputs \(batch, positions, ids\)"):
        decoded(LOGITS, CLASSES, str(folder))
