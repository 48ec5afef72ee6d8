"""Texts of saved datasets and files, with a tokenizer; datasets of TensorFlow Datasets; features of sound."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.planning import planned
from sweeprof.datasets import ArraySpec, ModelInputs, Split
from sweeprof.datasets.huggingface import Huggingface
from sweeprof.datasets.images import Audio
from sweeprof.datasets.source import Source
from sweeprof.datasets.tokens import Tokens
from sweeprof.datasets.torch_dataset import TensorflowDataset
from sweeprof.errors import DatasetError, UserError
from sweeprof.measuring.inputs import Inputs, Workload, workload_of

TEXTS = ["a good film", "not good at all and far too long", "good", "a film too far"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("SWEEPROF_DATA_RUN", tmp_path.name)


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
    rows = {"text": TEXTS, "number": [[1.5, 2.5]] * 4, "label": [1, 0, 1, 0]}
    parts = {
        "train": datasets.Dataset.from_dict(rows),
        "validation": datasets.Dataset.from_dict({**rows, "label": [0] * 4}),
    }
    datasets.DatasetDict(parts).save_to_disk(str(folder / "reviews"))
    return folder


def read(source: Source, name: Any = "test") -> Split:
    source.prepare(name)
    return source.split(name)


def word_ids(folder: Path, text: str) -> list[int]:
    vocabulary = json.loads((folder / "model" / "tokenizer.json").read_text())["model"]["vocab"]
    return [vocabulary[word] for word in text.split()]


def described(**changes: Any) -> dict[str, Any]:
    specs = {name: ArraySpec((6,), "int64") for name in ("input_ids", "attention_mask")}
    return json.loads(json.dumps(ModelInputs(specs, **changes).to_dict()))  # type: ignore[no-any-return]


def test_texts_become_ids_that_are_padded(folder: Path) -> None:
    model = described(sizes={"sequence_length": 6})
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
    model = described(vocabulary=99, sizes={"sequence_length": 4})
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
            {"model_inputs": described(vocabulary=5)},
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


@pytest.mark.slow
@pytest.mark.usefixtures("described_here")
def test_a_plan_knows_tokenizer_and_vocabulary_of_a_saved_model(folder: Path) -> None:
    from sweeprof.model_sources.transformers import import_transformers

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
    features = tensorflow_datasets.features
    info = features.FeaturesDict(
        {"image": features.Image(shape=(8, 8, 1)), "label": features.ClassLabel(num_classes=3)}
    )
    (tmp_path / "tiny" / "1.0.0").mkdir(parents=True)
    version = tensorflow_datasets.core.Version("1.0.0")
    identity = dataset_info.DatasetIdentity("tiny", version, str(tmp_path / "tiny" / "1.0.0"), "tests")
    about = dataset_info.DatasetInfo(builder=identity, features=info)
    writer = SequentialWriter(about, max_examples_per_shard=2)
    writer.initialize_splits(["test"])
    writer.add_examples({"test": [{"image": image, "label": at} for at, image in enumerate(images)]})
    writer.close_all()
    split = read(TensorflowDataset(path=str(tmp_path / "tiny" / "1.0.0"), channels=1))
    wanted = images.transpose(0, 3, 1, 2).astype(np.float32) / np.float32(255)
    np.testing.assert_array_equal(split.inputs, wanted)
    with pytest.raises(DatasetError, match=r"has no split 'tset', but test: set dataset\.split"):
        read(TensorflowDataset(path=str(tmp_path / "tiny" / "1.0.0"), split="tset"))
    with pytest.raises(UserError, match=r"dataset\.path: .* is not the folder of a prepared dataset"):
        TensorflowDataset(path=str(tmp_path))


@pytest.mark.slow
def test_sound_becomes_the_features_of_a_processor(tmp_path: Path) -> None:
    import soundfile

    from sweeprof.model_sources.transformers import import_transformers

    package = import_transformers()
    processor = package.WhisperFeatureExtractor(feature_size=80, chunk_length=1)
    processor.save_pretrained(tmp_path / "model")
    wave = np.random.default_rng(0).standard_normal(16000).astype(np.float32) / 10
    (tmp_path / "sounds" / "noise").mkdir(parents=True)
    soundfile.write(tmp_path / "sounds" / "noise" / "1.wav", wave, 16000, subtype="FLOAT")
    split = read(Audio(path=str(tmp_path / "sounds"), processor=str(tmp_path / "model")))
    wanted = processor(wave, sampling_rate=16000, return_tensors="np")["input_features"]
    np.testing.assert_allclose(split.inputs["input_features"], wanted, atol=1e-6)
