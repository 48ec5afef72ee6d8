"""Sources of data: the same samples from six forms, texts with a tokenizer, their options, one sentence for each mistake."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import yaml
from PIL import Image

from support.kinds_of_data import USER_CODE, write_digits
from support.planning import planned
from sweeprof.datasets import ArraySpec, ImagePreprocessing, ModelInputs, Split
from sweeprof.datasets.arrays import Digits, Npz
from sweeprof.datasets.huggingface import Huggingface
from sweeprof.datasets.images import Audio, Images, array_of, preprocessing, resampled
from sweeprof.datasets.source import Source
from sweeprof.datasets.table import Table
from sweeprof.datasets.tokens import Tokens
from sweeprof.datasets.torch_dataset import TensorflowDataset, TorchDataset
from sweeprof.errors import DatasetError, UserError
from sweeprof.measuring.inputs import Inputs, Workload, workload_of
from sweeprof.model_sources import keras_applications, package, timm, torchvision, transformers
from sweeprof.model_sources.transformers import import_transformers
from sweeprof.paths import conf_folder
from sweeprof.targets import instantiate

NUMBER = 40


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("SWEEPROF_DATA_RUN", tmp_path.name)
    return tmp_path / "cache" / "sweeprof" / "data"


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("kinds")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield write_digits(folder, NUMBER)


def read(source: Source, name: Any = "test") -> Split:
    """The split, decoded in this process."""
    source.prepare(name)
    return source.split(name)


def made(settings: dict[str, object]) -> Any:
    """The dataset of a config file with some keys set."""
    node = yaml.safe_load((conf_folder() / "dataset" / f"{settings['dataset']}.yaml").read_text(encoding="utf-8"))
    if "tokenizer" in node:
        node["tokenizer"] = None
    keys = {key.removeprefix("dataset."): value for key, value in settings.items() if key != "dataset"}
    return instantiate({**node, **keys})


@pytest.mark.parametrize("kind", ["images", "npz", "parquet", "torch", "huggingface"])
def test_every_kind_has_the_same_samples(kinds: dict[str, Any], kind: str) -> None:
    dataset = made(kinds[kind])
    split = read(dataset)
    digits = Digits().split("test")
    greys = np.rint(np.asarray(digits.inputs[:NUMBER]) * 255).astype(np.float32) / np.float32(255)
    order = np.argsort(digits.targets[:NUMBER], kind="stable") if kind == "images" else np.arange(NUMBER)
    np.testing.assert_array_equal(split.inputs, greys[order])
    np.testing.assert_array_equal(split.targets, digits.targets[:NUMBER][order])
    assert (split.inputs.dtype, split.targets.dtype) == (np.float32, np.int64)
    assert dataset.channel_axis == 1


@pytest.mark.slow
def test_a_pipeline_of_tensorflow_in_batches_has_them_too(kinds: dict[str, Any]) -> None:
    source = {**kinds["tensorflow"]["dataset.source"], "batch": 5}
    split = read(TensorflowDataset(source=source, batched=True, limit=20))
    wanted = np.load(source["path"])
    np.testing.assert_array_equal(split.inputs, wanted["x_test"][:20])
    np.testing.assert_array_equal(split.targets, wanted["y_test"][:20])


def test_iterable_datasets_and_transforms(kinds: dict[str, Any]) -> None:
    source = {"_target_": "my_data.Streamed", "path": kinds["npz"]["dataset.path"]}
    streamed = read(TorchDataset(source=source, limit=7, transform="my_data.flipped"))
    wanted = np.load(source["path"])["x_test"]
    np.testing.assert_array_equal(streamed.inputs, wanted[:7, ..., ::-1])
    shuffled = read(TorchDataset(source=source, limit=7, shuffle=True, seed=3))
    order = np.random.default_rng(3).permutation(NUMBER)[:7]
    np.testing.assert_array_equal(shuffled.inputs, wanted[order])


# Files of tests.


def write_images(folder: Path, shapes: dict[str, tuple[int, int]]) -> Path:
    random = np.random.default_rng(0)
    for name, (width, height) in shapes.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (height, width, 3), np.uint8)).save(path)
    return folder


def listed(samples: list[Any]) -> dict[str, Any]:
    """A source of these samples."""
    return {"_target_": "builtins.list", "_args_": [samples]}


def described(**changes: Any) -> dict[str, Any]:
    return json.loads(json.dumps(ModelInputs({"x": ArraySpec((4,))}, "positional", **changes).to_dict()))  # type: ignore[no-any-return]


def write_table(folder: Path, suffix: str, columns: dict[str, Any]) -> str:
    """Write a table of a kind of files, and return its path."""
    table = pytest.importorskip("pandas").DataFrame(columns)
    path = str(folder / f"test{suffix}")
    if suffix == ".csv":
        table.to_csv(path, index=False)
    elif suffix == ".jsonl":
        table.to_json(path, orient="records", lines=True)
    else:
        table.to_parquet(path)
    return path


# Splits and options.


def test_parts_of_a_folder_have_the_same_classes(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "p", {"train/a/1.png": (4, 4), "train/b/1.png": (4, 4), "val/b/2.png": (4, 4)})
    assert read(Images(path=str(folder))).targets.tolist() == [1]
    assert read(Images(path=str(folder)), "train").targets.tolist() == [0, 1]
    assert read(Images(path=str(folder), split="train", train_split="val")).targets.tolist() == [0, 1]
    assert read(Images(path=f"{folder}/{{split}}", split="val")).targets.tolist() == [1]
    assert read(Images(path=f"{folder}/{{split}}", split="val"), "train").targets.tolist() == [0, 1]
    write_images(folder, {"train/a/.ipynb_checkpoints/1-checkpoint.png": (4, 4)})
    (folder / "train" / "b" / "._1.png").write_bytes(b"what macOS leaves beside a file")
    assert read(Images(path=str(folder)), "train").targets.tolist() == [0, 1]


def test_pictures_and_sounds_of_any_format_are_samples(tmp_path: Path) -> None:
    names = ("a/1.bmp", "a/2.jfif", "a/3.PGM", "b/1.avif", "b/2.jp2", "b/3.tga")
    images = Images(path=str(write_images(tmp_path / "p", dict.fromkeys(names, (4, 4)))), image_size=4)
    assert [str(path.relative_to(tmp_path / "p")) for path in images.files("test")] == list(names)
    assert read(images).targets.tolist() == [0, 0, 0, 1, 1, 1]
    (tmp_path / "s" / "a").mkdir(parents=True)
    for name, kind in (("1.au", "AU"), ("2.caf", "CAF"), ("3.opus", "OGG")):
        subtype = "OPUS" if kind == "OGG" else "PCM_16"
        soundfile.write(tmp_path / "s" / "a" / name, np.zeros(960), 48000, format=kind, subtype=subtype)
    assert len(read(Audio(path=str(tmp_path / "s"), length=960))) == 3


def test_a_class_that_another_part_gets_changes_the_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The samples of a later run are decoded again, although none of their own files has changed."""
    folder = write_images(tmp_path / "p", {"train/b/1.png": (4, 4), "val/b/2.png": (4, 4)})
    (tmp_path / "test.csv").write_text("width,kind\n1,cat\n")
    (tmp_path / "train.csv").write_text("width,kind\n2,cat\n")
    images = Images(path=str(folder))
    table = Table(path=str(tmp_path / "{split}.csv"), targets="kind")
    assert (read(images).targets.tolist(), read(table).targets.tolist()) == ([0], [0])
    write_images(folder, {"train/a/1.png": (4, 4)})
    (tmp_path / "train.csv").write_text("width,kind\n2,cat\n3,ant\n")
    monkeypatch.setenv("SWEEPROF_DATA_RUN", "a later one")
    assert (read(images).targets.tolist(), read(table).targets.tolist()) == ([1], [1])


def test_a_table_of_numbers_and_texts(tmp_path: Path) -> None:
    (tmp_path / "test.csv").write_text("width,height,kind\n1,2.5,cat\n3,4.5,dog\n")
    (tmp_path / "train.csv").write_text("width,height,kind\n5,6.5,ant\n")
    table = Table(path=str(tmp_path / "{split}.csv"), targets="kind")
    split = read(table)
    assert split.inputs.tolist() == [[1, 2.5], [3, 4.5]]
    assert split.targets.tolist() == [1, 2]  # as in the training split: ant is 0
    assert read(table, "train").targets.tolist() == [0]
    chosen = read(Table(path=str(tmp_path / "test.csv"), inputs=["height"], limit=1))
    assert (chosen.inputs.tolist(), chosen.targets) == ([2.5], None)


def test_categories_have_the_same_numbers_where_the_other_split_misses_one(tmp_path: Path) -> None:
    (tmp_path / "test.csv").write_text("kind,age\n1,30\n2,40\n")
    (tmp_path / "train.csv").write_text("kind,age\n1,50\n2,60\n,70\n")
    table = Table(path=str(tmp_path / "{split}.csv"), categories=["kind"], limit=2)
    assert read(table).inputs[:, 0].tolist() == read(table, "train").inputs[:, 0].tolist() == [0, 1]


def test_the_targets_of_each_split_have_their_own_classes(tmp_path: Path) -> None:
    (tmp_path / "test.csv").write_text("a,y\n1,cat\n2,dog\n")
    (tmp_path / "train.csv").write_text("a,y\n1,0.5\n2,0.25\n")
    table = Table(path=str(tmp_path / "{split}.csv"), targets="y")
    table.records("test")
    first, *_ = table.records("train")
    assert table.decoded(first).targets == 0.5


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_table_of_categories_and_several_targets(tmp_path: Path, suffix: str) -> None:
    columns = {"city": ["Bern", "Aarau", "Bern"], "age": [30, 40, 50], "sick": [True, False, True], "dose": [0.5, 1, 2]}
    path = write_table(tmp_path, suffix, columns)
    split = read(Table(path=path, categories=["city"], targets=["sick", "dose"]))
    assert split.inputs.tolist() == [[1, 30], [0, 40], [1, 50]]
    assert split.targets.tolist() == [[1, 0.5], [0, 1], [1, 2]]
    one = read(Table(path=path, inputs=["age", "dose"], targets="sick"))
    assert (one.targets.tolist(), one.targets.dtype) == ([1, 0, 1], np.int64)
    assert read(Table(path=path, inputs="age", targets=["sick"])).targets.tolist() == [[1], [0], [1]]
    with pytest.raises(DatasetError, match=r"no number in column 'city', but 'Bern': .*dataset\.categories"):
        read(Table(path=path, targets="dose"))
    with pytest.raises(DatasetError, match=r"dataset\.categories: 'citty' is not a column"):
        read(Table(path=path, categories=["citty"]))


def test_lists_of_whole_and_other_numbers_have_one_type(tmp_path: Path) -> None:
    columns = {"x": [[0, 0, 1], [], [0.5, 0, 1]], "ids": [[1, 2], [], [3]], "tags": [[5], [], [6, 7]]}
    path = write_table(tmp_path, ".jsonl", columns)
    floats, _ = read(Table(path=path, inputs="x", collate="pad")).batch(np.arange(3))
    assert (floats.tolist(), floats.dtype) == ([[0, 0, 1], [0, 0, 0], [0.5, 0, 1]], np.float32)
    ids, tags = read(Table(path=path, inputs="ids", targets="tags", collate="pad")).batch(np.arange(3))
    assert (ids.tolist(), ids.dtype) == ([[1, 2], [0, 0], [3, 0]], np.int64)
    assert (tags.tolist(), tags.dtype) == ([[5, -100], [-100, -100], [6, 7]], np.int64)


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_nested_lists_are_arrays(tmp_path: Path, suffix: str) -> None:
    cubes = np.arange(12.0).reshape(1, 2, 3, 2)
    path = write_table(tmp_path, suffix, {"x": [*cubes.tolist(), [[[1.0], [2.0, 3.0]]]], "y": [0, 1]})
    split = read(Table(path=path, targets="y", limit=1))
    np.testing.assert_array_equal(split.inputs, cubes)
    with pytest.raises(DatasetError, match=r"row 1 of .* has values of different shapes in 'x': dataset\.inputs"):
        read(Table(path=path, targets="y", collate="pad"))
    with pytest.raises(DatasetError, match=r"row 0 of .* has values of different shapes in 'x', 'y'"):
        read(Table(path=path))


def test_texts_for_missing_values_are_classes_among_texts(tmp_path: Path) -> None:
    (tmp_path / "test.csv").write_text("x,dose,country,defect\n1.5,1,NA,None\n2.5,2,DE,crack\nNA,3,DE,\n")
    path = str(tmp_path / "test.csv")
    split = read(Table(path=path, inputs=["x", "country"], categories=["country"], targets="defect", limit=2))
    assert (split.inputs.tolist(), split.targets.tolist()) == ([[1.5, 1], [2.5, 0]], [0, 1])
    for column in ("x", "defect"):
        with pytest.raises(DatasetError, match=f"row 2 of .* has no value in column '{column}'"):
            read(Table(path=path, inputs="dose", targets=column))


def test_json_has_the_values_that_are_written(tmp_path: Path) -> None:
    dates, codes = [1700000000, 1700000001, 1700000001], ["007", "7", "b"]
    path = write_table(tmp_path, ".jsonl", {"date": dates, "arrival_time": [1700000000.5, 2, 3], "code": codes})
    split = read(Table(path=path, inputs="arrival_time", targets="date"))
    assert split.inputs.tolist() == np.array([1700000000.5, 2, 3], np.float32).tolist()
    assert split.targets.tolist() == dates
    assert read(Table(path=path, inputs="date", targets="code")).targets.tolist() == [0, 1, 2]


def test_arrays_by_usual_names_and_by_their_own(tmp_path: Path) -> None:
    images = np.arange(6.0).reshape(3, 2)
    np.savez(tmp_path / "a.npz", x_test=images, y_test=np.arange(3), x_train=np.ones((2, 2)), z=np.zeros(3))
    source = Npz(path=str(tmp_path / "a.npz"))
    assert read(source).inputs.dtype == np.float32
    assert read(source).inputs.tolist() == images.tolist()
    assert read(source, "train").targets is None
    several = read(Npz(path=str(tmp_path / "a.npz"), inputs=["x_{split}", "z"], targets="y_{split}"))
    assert {name: array.shape for name, array in several.inputs.items()} == {"x": (3, 2), "z": (3,)}


def test_images_with_the_channels_last_become_channels_first(tmp_path: Path) -> None:
    images = np.random.default_rng(0).random((2, 5, 4, 3), np.float32)
    np.savez(tmp_path / "a.npz", x=images)
    source = Npz(path=str(tmp_path / "a.npz"), layout="channels_last")
    np.testing.assert_array_equal(read(source).inputs, images.transpose(0, 3, 1, 2))
    assert source.channel_axis == 1
    assert Npz(path=str(tmp_path / "a.npz")).channel_axis is None


def test_samples_of_different_lengths_are_padded_if_asked_for() -> None:
    texts = [list(range(1, 3 + 2 * at)) for at in range(3)]
    source = listed([{"input_ids": ids, "kind": [7, 8], "labels": ids} for ids in texts])
    says = r"'input_ids' of sample 1 of dataset.source has the length 4, and sample 0 .* has 2"
    with pytest.raises(DatasetError, match=says):
        read(TorchDataset(source=source))
    split = read(TorchDataset(source=source, collate="pad"))
    inputs, targets = split.batch(np.arange(2))
    assert inputs["input_ids"].tolist() == [[1, 2, 0, 0], [1, 2, 3, 4]]
    assert inputs["attention_mask"].tolist() == [[1, 1, 0, 0], [1, 1, 1, 1]]
    assert inputs["kind"].tolist() == [[7, 8], [7, 8]]
    assert targets.tolist() == [[1, 2, -100, -100], [1, 2, 3, 4]]
    longer, _ = read(TorchDataset(source=source, collate={"length": 8})).batch(np.arange(3))
    assert longer["input_ids"].shape == (3, 8)


def test_samples_of_one_length_are_padded_to_the_given_one(tmp_path: Path) -> None:
    ids, labels = np.arange(1, 7).reshape(2, 3), np.arange(6).reshape(2, 3)
    np.savez(tmp_path / "a.npz", input_ids=ids, labels=labels, one_hot=np.eye(2, 4))
    source = Npz(path=str(tmp_path / "a.npz"), inputs=["input_ids"], targets="labels", collate={"length": 5})
    inputs, targets = read(source).batch(np.arange(2))
    assert inputs["input_ids"].tolist() == [[1, 2, 3, 0, 0], [4, 5, 6, 0, 0]]
    assert inputs["attention_mask"].tolist() == [[1, 1, 1, 0, 0]] * 2
    assert targets.tolist() == [[0, 1, 2, -100, -100], [3, 4, 5, -100, -100]]
    scored = Npz(path=str(tmp_path / "a.npz"), inputs="input_ids", targets="one_hot", collate={"length": 5})
    assert read(scored).batch(np.arange(2))[1].tolist() == np.eye(2, 4).tolist()


def corners(samples: Any, side: int = 2) -> Any:
    return np.stack([sample[:, :side, :side] for sample in samples])


def test_a_collate_function_makes_batches_of_samples_of_different_shapes() -> None:
    source = listed([(np.ones((1, 2 + at, 5 - at), np.float32), at) for at in range(3)])
    with_side = {"_target_": f"{__name__}.corners", "_partial_": True, "side": 1}
    for collate, side in ((f"{__name__}.corners", 2), (with_side, 1)):
        inputs, targets = read(TorchDataset(source=source, collate=collate)).batch(np.arange(3))
        assert inputs.shape == (3, 1, side, side)
        assert targets.tolist() == [0, 1, 2]
    with pytest.raises(UserError, match="Did you mean 'corners'"):
        read(TorchDataset(source=source, collate=f"{__name__}.cornes"))


def test_blocks_of_tokens(tmp_path: Path) -> None:
    ids = np.arange(23, dtype=np.uint16)
    np.save(tmp_path / "ids.npy", ids)
    ids.tofile(tmp_path / "ids.bin")
    for name in ("ids.npy", "ids.bin"):
        split = read(Tokens(path=str(tmp_path / name), length=5))
        np.testing.assert_array_equal(split.inputs, np.arange(20).reshape(4, 5))
        np.testing.assert_array_equal(split.targets, np.arange(1, 21).reshape(4, 5))
    assert len(read(Tokens(path=str(tmp_path / "ids.npy"), length=23, targets="same"))) == 1
    source = Tokens(path=str(tmp_path / "ids.npy"), targets="none", length=4)
    assert read(source).targets is None
    assert workload_of(source, Inputs((np.zeros((3, 4)),)), 3) == Workload("tokens", 12)


def test_sound_at_another_rate(tmp_path: Path) -> None:
    def tone(rate: int) -> Any:
        return np.sin(2 * np.pi * 440 * np.arange(rate // 2) / rate).astype(np.float32)

    for label, rate in (("high", 16000), ("low", 8000)):
        (tmp_path / "sounds" / label).mkdir(parents=True)
        stereo = np.stack([tone(rate)] * 2, axis=1)
        soundfile.write(tmp_path / "sounds" / label / "a.wav", stereo, rate, subtype="FLOAT")
    split = read(Audio(path=str(tmp_path / "sounds"), sampling_rate=16000, length=7000))
    assert split.inputs.shape == (2, 7000)
    np.testing.assert_array_equal(split.inputs[0], tone(16000)[:7000])
    # Twice as many samples of the same tone; the filter has no past at the ends.
    np.testing.assert_allclose(split.inputs[1][200:-200], tone(16000)[200:6800], atol=2e-3)
    assert len(resampled(np.zeros(44100), 44100, 16000)) == 16000
    source = Audio(path=str(tmp_path / "sounds"), sampling_rate=16000, length=8000)
    assert workload_of(source, Inputs((np.zeros((3, 8000)),)), 3) == Workload("seconds of audio", 1.5)
    normal = read(Audio(path=str(tmp_path / "sounds"), length=4000, normalize=True, sampling_rate=16000))
    np.testing.assert_allclose([normal.inputs.mean(), normal.inputs.std()], [0, 1], atol=1e-3)
    filled = read(Audio(path=str(tmp_path / "sounds"), length=9000, normalize=True, sampling_rate=16000)).inputs
    np.testing.assert_allclose([filled[:, :8000].mean(), filled[:, :8000].std()], [0, 1], atol=1e-3)
    assert not filled[:, 8000:].any()


# Mistakes.


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of data with which something is wrong."""
    folder = tmp_path_factory.mktemp("broken")
    for name in ("empty", "no_pictures/a", "sounds/a"):
        (folder / name).mkdir(parents=True)
    write_images(folder / "p", {"a/1.png": (8, 8), "b/2.png": (8, 8), "c/3.png": (6, 8)})
    (folder / "p" / "b" / "2.png").write_bytes((folder / "p" / "a" / "1.png").read_bytes()[:60])
    write_images(folder / "phone", {"a/1.png": (8, 8)})
    (folder / "phone" / "b").mkdir()
    for name in ("2.heic", "notes.txt"):
        (folder / "phone" / "b" / name).touch()
    write_images(folder / "q", {"a/1.png": (8, 8), "c/3.png": (6, 8)})
    np.savez(folder / "a.npz", x=np.zeros((3, 4)), y=np.array([0, 1, 5]), short=np.zeros(2))
    (folder / "broken.npz").write_bytes(b"PK\x03\x04 and nothing more")
    np.save(folder / "ids.npy", np.array([1, 2, 900, 4]))
    (folder / "sounds" / "a" / "1.wav").write_bytes(b"RIFF")
    (folder / "my_data.py").write_text(USER_CODE)
    return folder


LABELS = described(targets=ArraySpec((), "int64", high=5))


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (Images, {"path": "empty"}, r"empty has no folders: one is needed for each class"),
        (Images, {"path": "no_pictures"}, r"no_pictures/a is the folder of a class and has no picture: it has no files"),
        (Images, {"path": "phone"}, r"phone/b is the folder of a class and has no picture: it has only \.heic, \.txt"),
        (Images, {"path": "p"}, r"p/b/2\.png cannot be read as a picture: "),
        (Images, {"path": "q"}, r"q/c/3\.png and those before differ in size \(6 × 8 and 8 × 8\): set dataset\.image_size"),
        (Images, {"path": "q", "split": "val"}, r"q has no folder 'val', which was to be the split 'test'"),
        (Npz, {"path": "a.npz", "model_inputs": LABELS}, r"row 2 of a\.npz has the label 5, and the model has the classes 0 to 4"),
        (Npz, {"path": "a.npz", "inputs": "xx"}, r"a\.npz has no array 'xx', but x, y, short; did you mean 'x'\?"),
        (
            *(Npz, {"path": "a.npz", "inputs": ["x", "short"]}),
            r"a\.npz has arrays of different numbers of rows: 'x' 3, 'short' 2, 'y' 3",
        ),
        (Npz, {"path": "broken.npz"}, r"broken\.npz cannot be read as an \.npz file: "),
        (
            *(Tokens, {"path": "ids.npy", "length": 2, "targets": "none", "model_inputs": described(vocabulary=900)}),
            r"token 2 to 3 of ids\.npy has the id 900, and the model's vocabulary has the ids 0 to 899",
        ),
        (Tokens, {"path": "ids.npy", "length": 20}, r"ids\.npy has 4 tokens, and a block needs 21: set dataset\.length"),
        (Audio, {"path": "sounds"}, r"sounds/a/1\.wav cannot be read as a sound file: "),
        (
            *(TorchDataset, {"source": listed([[np.ones(2)] * 3])}),
            r"sample 0 of dataset\.source has 3 parts; it must be inputs, or a pair \(inputs, targets\)",
        ),
        (
            *(TorchDataset, {"source": {"_target_": "builtins.int"}}),
            r"dataset\.source is a int, which has neither __len__ and __getitem__ nor __iter__",
        ),
        (TorchDataset, {"source": {"_target_": "builtins.list"}}, r"there are no samples"),
        (
            *(TorchDataset, {"source": {"_target_": "my_data.Maped"}}),
            r"^dataset\.source.*'my_data.Maped' cannot be imported.* Did you mean 'Mapped'\?",
        ),
        (
            *(TorchDataset, {"source": {"_target_": "my_data.Mapped", "pth": 1}}),
            r"^dataset\.source.*'pth' is not an argument of my_data.Mapped\. Did you mean 'path'\?",
        ),
    ],
)  # fmt: skip
def test_a_mistake_is_one_sentence(
    broken: Path, monkeypatch: pytest.MonkeyPatch, kind: Any, options: dict[str, Any], message: str
) -> None:
    monkeypatch.chdir(broken)
    monkeypatch.syspath_prepend(str(broken))
    with pytest.raises(UserError) as error:
        read(kind(**options))
    assert re.search(message, str(error.value))
    assert "\n" not in str(error.value)


def test_all_mistakes_in_options_come_at_once() -> None:
    with pytest.raises(UserError, match=r"Did you mean 'bilinear'\?") as error:
        Images(path=None, image_size=0, channels=2, interpolation="bilinar", limit=0, collate="stack")
    keys = {problem.key.removeprefix("dataset.") for problem in error.value.problems}
    assert keys == {"image_size", "limit", "collate", "path", "channels", "interpolation"}


def test_an_error_of_the_users_code_has_its_place(broken: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the process that decodes."""
    monkeypatch.setenv("PYTHONPATH", ":".join([str(broken), *filter(None, sys.path)]))
    says = r"RuntimeError: the disk is on fire \(.*my_data\.py:\d+ in names_its_split\)"
    with pytest.raises(DatasetError, match=says):
        TorchDataset(source={"_target_": "my_data.names_its_split"}).split("test")


# Texts, datasets of TensorFlow Datasets, features of sound


TEXTS = ["a good film", "not good at all and far too long", "good", "a film too far"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer of words, and a dataset of texts."""
    import datasets
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("text")
    words = ["[PAD]", "[UNK]", *sorted({word for text in TEXTS for word in text.split()})]
    tokenizer = Tokenizer(models.WordLevel({word: at for at, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]")  # type: ignore[no-untyped-call]
    fast.save_pretrained(folder / "model")
    rows = {"text": TEXTS, "number": [[1.5, 2.5]] * 4}
    train, validation = (datasets.Dataset.from_dict({**rows, "label": label}) for label in ([1, 0, 1, 0], [0] * 4))
    datasets.DatasetDict({"train": train, "validation": validation}).save_to_disk(str(folder / "reviews"))
    return folder


def word_ids(folder: Path, text: str) -> list[int]:
    vocabulary = json.loads((folder / "model" / "tokenizer.json").read_text())["model"]["vocab"]
    return [vocabulary[word] for word in text.split()]


def tokenized(**changes: Any) -> dict[str, Any]:
    specs = {name: ArraySpec((6,), "int64") for name in ("input_ids", "attention_mask")}
    return json.loads(json.dumps(ModelInputs(specs, **changes).to_dict()))  # type: ignore[no-any-return]


def test_texts_become_ids_that_are_padded(folder: Path) -> None:
    model = tokenized(sizes={"sequence_length": 6})
    source = Huggingface(
        path=str(folder / "reviews"), inputs=["text"], tokenizer=str(folder / "model"), model_inputs=model
    )
    split = read(source)
    inputs, targets = split.batch(np.arange(3))
    assert set(inputs) == {"input_ids", "attention_mask"}  # not token_type_ids, which the model does not take
    for row, text in enumerate(TEXTS[:3]):
        ids = word_ids(folder, text)[:6]
        assert inputs["input_ids"][row].tolist() == ids + [0] * (6 - len(ids))
        assert inputs["attention_mask"][row].tolist() == [1] * len(ids) + [0] * (6 - len(ids))
    assert targets.tolist() == [0, 0, 0]
    tokens = sum(min(6, len(word_ids(folder, text))) for text in TEXTS[:3])
    assert workload_of(source, Inputs.from_batch(inputs), 3) == Workload("tokens", tokens)
    assert read(source, "train").targets.tolist() == [1, 0, 1, 0]
    assert split.pass_as == "keywords"


def test_columns_of_numbers_need_no_tokenizer(folder: Path) -> None:
    source = Huggingface(path=str(folder / "reviews"), inputs="number", split="train", tokenizer="net.onnx")
    split = read(source)
    assert workload_of(source, Inputs((split.inputs,)), 4) == Workload("samples", 4)
    np.testing.assert_array_equal(split.inputs, np.array([[1.5, 2.5]] * 4, np.float32))


def test_a_text_is_cut_into_blocks(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text(" ".join(TEXTS))
    ids = word_ids(folder, " ".join(TEXTS))
    model = tokenized(vocabulary=99, sizes={"sequence_length": 4})
    split = read(Tokens(path=str(tmp_path / "book.txt"), tokenizer=str(folder / "model"), model_inputs=model))
    blocks = (len(ids) - 1) // 4
    assert split.inputs["input_ids"].tolist() == np.reshape(ids[: 4 * blocks], (blocks, 4)).tolist()
    assert split.inputs["attention_mask"].all()
    assert split.targets.tolist() == np.reshape(ids[1 : 4 * blocks + 1], (blocks, 4)).tolist()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"inputs": ["txt"]}, r"dataset\.inputs: 'txt' is not a column of .*reviews\. Did you mean 'text'"),
        ({"split": "tset"}, r"dataset\.split: 'tset' is not a split of .*reviews\. .*Known: train, validation"),
        ({"tokenizer": None}, r"dataset\.tokenizer: None is missing: the column text has texts"),
        ({"tokenizer": "nowhere"}, r"dataset\.tokenizer: 'nowhere' is not a folder with a tokenizer"),
        ({"path": "{model}"}, r"dataset\.path: .* cannot be loaded"),
        (
            {"model_inputs": tokenized(vocabulary=5)},
            r"row 0 of .*reviews has the id \d+, and the model's vocabulary has the ids 0 to 4",
        ),
    ],
)
def test_mistakes_in_saved_datasets(folder: Path, options: dict[str, Any], message: str) -> None:
    options = {key: str(folder / "model") if value == "{model}" else value for key, value in options.items()}
    given: dict[str, Any] = {"path": str(folder / "reviews"), "inputs": ["text"], "tokenizer": str(folder / "model")}
    with pytest.raises(DatasetError) as error:
        read(Huggingface(**{**given, **options}))
    assert re.search(message, str(error.value))


@pytest.mark.thorough
@pytest.mark.usefixtures("described_here")
def test_a_plan_knows_tokenizer_and_vocabulary_of_a_saved_model(folder: Path) -> None:
    package = import_transformers()
    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = package.BertConfig(vocab_size=len(word_ids(folder, " ".join(TEXTS))), num_labels=2, **size)
    package.BertForSequenceClassification(config).save_pretrained(folder / "model")
    model = ["model=transformers", f"model.path={folder / 'model'}", "tracking=none"]
    data = ["dataset=huggingface", f"dataset.path={folder / 'reviews'}", "dataset.inputs=[text]", "dataset.split=train"]
    (combination,) = planned([*model, *data, "inputs.sequence_length=5"]).combinations
    node = combination.config["dataset"]
    assert node["tokenizer"] == str(folder / "model")
    assert node["model_inputs"]["vocabulary"] == config.vocab_size
    assert node["model_inputs"]["sizes"] == {"sequence_length": 5}
    with pytest.raises(UserError, match=r"row 0 of .*reviews has the label 1, and the model has the classes 0 to 0"):
        planned([*model, *data, "model.config.num_labels=1"])


@pytest.mark.slow
def test_a_dataset_of_tensorflow_datasets_from_disk(tmp_path: Path) -> None:
    import tensorflow_datasets
    from tensorflow_datasets.core import dataset_info
    from tensorflow_datasets.core.sequential_writer import SequentialWriter

    images = np.random.default_rng(0).integers(0, 256, (3, 8, 8, 1), np.uint8)
    features, folder = tensorflow_datasets.features, tmp_path / "tiny" / "1.0.0"
    info = {"image": features.Image(shape=(8, 8, 1)), "label": features.ClassLabel(num_classes=3)}
    folder.mkdir(parents=True)
    version = tensorflow_datasets.core.Version("1.0.0")
    identity = dataset_info.DatasetIdentity("tiny", version, str(folder), "tests")
    about = dataset_info.DatasetInfo(builder=identity, features=features.FeaturesDict(info))
    writer = SequentialWriter(about, max_examples_per_shard=2)
    writer.initialize_splits(["test"])
    writer.add_examples({"test": [{"image": image, "label": at} for at, image in enumerate(images)]})
    writer.close_all()
    split = read(TensorflowDataset(path=str(folder), channels=1))
    wanted = images.transpose(0, 3, 1, 2).astype(np.float32) / np.float32(255)
    np.testing.assert_array_equal(split.inputs, wanted)
    with pytest.raises(DatasetError, match=r"has no split 'tset', but test: set dataset\.split"):
        read(TensorflowDataset(path=str(folder), split="tset"))
    with pytest.raises(UserError, match=r"dataset\.path: .* is not the folder of a prepared dataset"):
        TensorflowDataset(path=str(tmp_path))


@pytest.mark.slow
def test_sound_becomes_the_features_of_a_processor(tmp_path: Path) -> None:
    package = import_transformers()
    processor = package.WhisperFeatureExtractor(feature_size=80, chunk_length=1)
    processor.save_pretrained(tmp_path / "model")
    wave = np.random.default_rng(0).standard_normal(16000).astype(np.float32) / 10
    (tmp_path / "sounds" / "noise").mkdir(parents=True)
    soundfile.write(tmp_path / "sounds" / "noise" / "1.wav", wave, 16000, subtype="FLOAT")
    split = read(Audio(path=str(tmp_path / "sounds"), processor=str(tmp_path / "model")))
    wanted = processor(wave, sampling_rate=16000, return_tensors="np")["input_features"]
    np.testing.assert_allclose(split.inputs["input_features"], wanted, atol=1e-6)


# Pictures become the same arrays as with the transforms of the package that a model is from


SIZES = [(300, 260), (257, 391), (224, 224), (500, 231)]


def picture(width: int, height: int) -> Image.Image:
    random = np.random.default_rng(width)
    coarse = random.integers(0, 256, (height // 8 + 1, width // 8 + 1, 3), np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def round_trip(described: ModelInputs) -> ModelInputs:
    """As it comes out of a plan."""
    return ModelInputs.from_dict(json.loads(json.dumps(described.to_dict())))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet18", "efficientnet_b1", "vit_b_16", "swin_t"])
def test_as_torchvision_does(name: str) -> None:
    images = round_trip(torchvision.inputs(name, {})).images
    assert images is not None
    models = package("torchvision.models", "torchvision")
    transform = models.get_model_weights(name).DEFAULT.transforms()
    for size in SIZES:
        np.testing.assert_array_equal(array_of(picture(*size), images, ""), transform(picture(*size)).numpy())


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["resnet18", "vit_small_patch16_224", "efficientnet_b0", "convnext_tiny", "resnetv2_50x1_bit"]
)
def test_as_timm_does(name: str) -> None:
    images = round_trip(timm.inputs(name, {})).images
    assert images is not None
    package = timm.import_timm()
    config = package.data.resolve_data_config(package.get_pretrained_cfg(name).to_dict())
    transform = package.data.create_transform(**config)
    for size in SIZES:
        np.testing.assert_allclose(array_of(picture(*size), images, ""), transform(picture(*size)).numpy(), atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["MobileNetV2", "ResNet50", "DenseNet121", "EfficientNetB0", "VGG16"])
def test_as_keras_applications_does(name: str) -> None:
    import keras

    images = round_trip(keras_applications.inputs(name, {"image_size": 96})).images
    assert images is not None
    module: Any = import_module(getattr(keras.applications, name).__module__)
    resized = np.asarray(picture(300, 260).resize((96, 96), Image.Resampling.BILINEAR), np.float32)
    wanted = np.asarray(module.preprocess_input(resized[None].copy()))[0].transpose(2, 0, 1)
    np.testing.assert_allclose(array_of(picture(300, 260), images, ""), wanted, atol=2e-5, rtol=1e-5)


@pytest.mark.slow
def test_as_a_saved_processor_of_transformers_does(tmp_path: Path) -> None:
    package = import_transformers()
    config = package.ViTConfig(num_hidden_layers=1, hidden_size=16, num_attention_heads=2, image_size=64)
    package.ViTForImageClassification(config).save_pretrained(tmp_path)
    module = __import__("transformers.models.vit.image_processing_pil_vit", fromlist=["ViTImageProcessorPil"])
    size, mean, std = {"height": 64, "width": 64}, [0.5, 0.4, 0.3], [0.2, 0.3, 0.4]
    processor = module.ViTImageProcessorPil(size=size, resample=2, image_mean=mean, image_std=std)
    processor.save_pretrained(tmp_path)
    saved = round_trip(transformers.inputs(None, str(tmp_path), None, {})).images
    assert saved == ImagePreprocessing(64, 64, interpolation="bilinear", mean=tuple(mean), std=tuple(std))
    wanted = np.asarray(processor(picture(300, 260), return_tensors="np")["pixel_values"][0])
    np.testing.assert_allclose(array_of(picture(300, 260), saved, ""), wanted, atol=1e-5)


# Options.


def of_pictures(**changes: Any) -> ModelInputs:
    return ModelInputs({"x": ArraySpec((3, 32, 40))}, **changes)


SPECIFIED = ImagePreprocessing(224, 224, 3, 256, "bicubic", mean=(0.1, 0.2, 0.3), std=(0.5,))


def test_options_go_before_what_the_source_specifies() -> None:
    assert preprocessing({}, of_pictures(images=SPECIFIED)) == SPECIFIED
    changed = preprocessing({"image_size": 112, "mean": 0.5, "interpolation": "nearest"}, of_pictures(images=SPECIFIED))
    assert changed == ImagePreprocessing(112, 112, 3, 128, "nearest", mean=(0.5,), std=(0.5,))
    assert preprocessing({"crop": 0.875}, of_pictures(images=SPECIFIED)).resize == 256
    assert preprocessing({}, of_pictures()) == ImagePreprocessing(32, 40)
    assert preprocessing({"channels": 1}, None) == ImagePreprocessing(0, 0, 1)


def test_what_does_not_fit_is_an_error() -> None:
    cases: list[tuple[Any, Any, str]] = [
        ({"channels": 1}, of_pictures(images=SPECIFIED), r"dataset.mean: \[0.1, 0.2, 0.3\] has 3 numbers, and the images 1 "),
        ({}, of_pictures(no_images="it adds borders"), "mean: None is missing: it adds borders; set dataset.mean and dataset.std"),
        ({"crop": 0.5}, None, r"dataset\.crop: 0.5 needs dataset.image_size"),
    ]  # fmt: skip
    for options, model, says in cases:
        with pytest.raises(UserError, match=says):
            preprocessing(options, model)
    with pytest.raises(
        DatasetError, match=r"a.png is resized to \(32, 32\), which is smaller than the crop \(64, 64\)"
    ):
        array_of(picture(64, 64), ImagePreprocessing(64, 64, 3, 32), "a.png")


def test_grey_and_colours_and_their_order() -> None:
    colours = array_of(picture(8, 8), ImagePreprocessing(0, 0), "")
    np.testing.assert_array_equal(array_of(picture(8, 8), ImagePreprocessing(0, 0, order="bgr"), ""), colours[::-1])
    grey = array_of(picture(8, 8), ImagePreprocessing(0, 0, 1), "")
    wanted = np.asarray(picture(8, 8).convert("L"), np.float32) / np.float32(255)
    np.testing.assert_array_equal(grey, wanted[None])


def test_pictures_of_16_bits_have_values_from_0_to_1(tmp_path: Path) -> None:
    greys = np.random.default_rng(0).integers(0, 65536, (6, 8), np.uint16)
    (tmp_path / "a").mkdir()
    for name in ("1.png", "2.tif", "3.ppm"):
        Image.fromarray(greys).save(tmp_path / "a" / name)
    for channels in (1, 3):
        images = Images(path=str(tmp_path), channels=channels)
        for record in images.records("test"):
            values = images.decoded(record).inputs
            assert values.shape == (channels, 6, 8)
            np.testing.assert_allclose(values, np.broadcast_to(greys / 65535, values.shape), atol=1e-6)
    larger = array_of(Image.fromarray(greys), ImagePreprocessing(30, 30, interpolation="bicubic"), "")
    assert (larger.min(), larger.max()) == (0, 1)
    for dtype, kind in ((np.int32, "32-bit integers"), (np.float32, "floating-point numbers")):
        with pytest.raises(DatasetError, match=f"a.tif is a picture of {kind}, whose range is unknown"):
            array_of(Image.fromarray(greys.astype(dtype)), ImagePreprocessing(0, 0), "a.tif")


def test_the_size_of_the_models_inputs_applies_to_pictures(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "p", {"a/1.png": (300, 260)})
    node = json.loads(json.dumps(of_pictures(pass_as="positional").to_dict()))
    assert read(Images(path=str(folder), model_inputs=node)).inputs.shape == (1, 3, 32, 40)
