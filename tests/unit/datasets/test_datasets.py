"""Real digits, generated samples and batches, and what a dataset returns is checked before anything is measured on it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sweeprof.datasets import Dataset, Split, SplitName, channel_axis_of, first_batch
from sweeprof.datasets.arrays import Digits, Synthetic, parts, scans
from sweeprof.datasets.collate import Pad, stack
from sweeprof.datasets.source import SAMPLES_OR_INPUTS, check_ids, checked_split, not_finite
from sweeprof.errors import DatasetError


def test_the_digits_are_all_there() -> None:
    train, test = Digits().split("train"), Digits().split("test")
    assert (len(train), len(test)) == (1797 - 360, 360)
    for split in (train, test):
        assert split.targets is not None
        assert split.inputs.shape == (len(split), 1, 32, 32)
        assert (split.inputs.dtype, split.targets.dtype) == (np.dtype(np.float32), np.dtype(np.int64))
        assert (split.inputs.min(), split.inputs.max()) == (0.0, 1.0)
        assert set(split.targets) == set(range(10))


def test_a_pixel_becomes_a_square() -> None:
    images = Digits().split("test").inputs
    np.testing.assert_array_equal(images, images[:, :, ::4, ::4].repeat(4, axis=2).repeat(4, axis=3))


@pytest.mark.parametrize(
    ("seed", "test_share"), [(0, 0.2), (1, 0.2), (2, 0.5), (3, 0.013), (4, 0.99), (5, 10), (6, 360), (7, 1787)]
)
def test_the_split_is_the_stratified_one_of_scikit_learn(seed: int, test_share: float) -> None:
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    images, targets = load_digits(return_X_y=True)
    np.testing.assert_array_equal(scans()[0], images)
    np.testing.assert_array_equal(scans()[1], targets)
    expected = train_test_split(np.arange(1797), test_size=test_share, random_state=seed, stratify=targets)
    splits: tuple[SplitName, SplitName] = ("train", "test")
    for name, found, indices in zip(splits, parts(seed, test_share), expected, strict=True):
        np.testing.assert_array_equal(found, indices)
        split = Digits(seed=seed, test_share=test_share).split(name)
        np.testing.assert_array_equal(split.inputs[:, 0, ::4, ::4].reshape(-1, 64) * 16, images[indices])
        np.testing.assert_array_equal(split.targets, targets[indices])


@pytest.mark.parametrize("test_share", [0, -0.2, 1, 0.001, 1.5, 0.999, 1790])
def test_a_split_with_fewer_samples_than_classes_is_refused(test_share: float) -> None:
    with pytest.raises(DatasetError, match=f"test_share={test_share} is .* of 1797 samples; each split needs 10"):
        Digits(test_share=test_share).split("test")


def test_the_digits_are_read_without_scikit_learn() -> None:
    imports = "import sys, sweeprof.datasets.arrays as digits; digits.scans()"
    program = f"{imports}; print({{'sklearn', 'scipy', 'pandas'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@given(size=st.integers(1, 40), samples=st.integers(1, 12))
def test_a_batch_begins_again_from_the_first(size: int, samples: int) -> None:
    dataset = Synthetic((2,), samples=samples)
    inputs = dataset.split("test").inputs
    batch, _ = first_batch(dataset.split("test"), size)
    assert batch.shape == (size, 2)
    assert batch.flags["C_CONTIGUOUS"]
    for i, sample in enumerate(batch):
        np.testing.assert_array_equal(sample, inputs[i % samples])


@pytest.mark.parametrize("dataset", [Digits(), Synthetic((1, 8, 8), channels=1)])
def test_a_batch_is_of_test_samples(dataset: Dataset) -> None:
    split = dataset.split("test")
    np.testing.assert_array_equal(first_batch(split, 3)[0], split.inputs[:3])
    assert getattr(dataset, "sample_shape", None) == first_batch(split, 1)[0].shape[1:]
    assert channel_axis_of(dataset) == 1


def test_generated_numbers() -> None:
    split = Synthetic([3, 4], samples=1000).split("test")
    assert split.inputs.shape == (1000, 3, 4)
    assert split.inputs.dtype == np.float32
    assert split.targets is None
    assert abs(float(split.inputs.mean())) < 0.05
    assert float(split.inputs.std()) == pytest.approx(1, abs=0.05)
    assert Synthetic([3, 4]).channel_axis is None
    assert Synthetic([3, 4]).sample_shape == (3, 4)


def test_generated_tokens() -> None:
    inputs = Synthetic((16,), samples=100, high=7).split("test").inputs
    assert np.issubdtype(inputs.dtype, np.integer)
    assert set(inputs.ravel()) == set(range(7))


def test_generated_samples_are_the_same_on_every_call_and_differ_by_split_and_seed() -> None:
    made = Synthetic((5,))
    np.testing.assert_array_equal(made.split("test").inputs, made.split("test").inputs)
    assert not np.array_equal(made.split("test").inputs, made.split("train").inputs)
    assert not np.array_equal(made.split("test").inputs, Synthetic((5,), seed=1).split("test").inputs)


IDS = np.arange(12).reshape(4, 3)


def test_a_batch_has_the_structure_of_the_samples() -> None:
    split = Split({"ids": IDS, "pair": (IDS * 2, IDS.astype(bool))}, (IDS[:, 0], IDS[:, 1]))
    assert len(split) == 4
    inputs, targets = split.batch(np.array([3, 0]))
    np.testing.assert_array_equal(inputs["ids"], IDS[[3, 0]])
    np.testing.assert_array_equal(inputs["pair"][0], IDS[[3, 0]] * 2)
    assert inputs["pair"][1].dtype == bool
    np.testing.assert_array_equal(targets[1], [10, 1])


SENTENCES = [np.array([5, 6, 7]), np.array([8]), np.array([9, 10])]


def test_padding_is_torchs_and_the_mask_is_that_of_transformers() -> None:
    import torch

    padded = Pad(value=1)(SENTENCES)
    expected = torch.nn.utils.rnn.pad_sequence(
        list(map(torch.from_numpy, SENTENCES)), batch_first=True, padding_value=1
    )
    np.testing.assert_array_equal(padded, expected.numpy())
    batch = Pad(value={"input_ids": 2})([{"input_ids": sentence} for sentence in SENTENCES])
    np.testing.assert_array_equal(batch["input_ids"], [[5, 6, 7], [8, 2, 2], [9, 10, 2]])
    np.testing.assert_array_equal(batch["attention_mask"], [[1, 1, 1], [1, 0, 0], [1, 1, 0]])
    on_the_left = Pad(length=5, side="left", mask=None)([{"input_ids": sentence} for sentence in SENTENCES])
    assert list(on_the_left) == ["input_ids"]
    np.testing.assert_array_equal(on_the_left["input_ids"][2], [0, 0, 0, 9, 10])


@given(lengths=st.lists(st.integers(0, 9), min_size=1, max_size=5), multiple=st.integers(1, 4))
def test_padding_loses_nothing(lengths: list[int], multiple: int) -> None:
    samples = [(np.full((n, 2), n, np.float32), np.float32(n)) for n in lengths]
    rows, numbers = Pad(multiple=multiple)(samples)
    assert rows.shape[1] % multiple == 0
    assert rows.shape[1] - max(lengths) < multiple
    for row, n in zip(rows, lengths, strict=True):
        assert (row[:n] == n).all()
        assert not row[n:].any()
    assert numbers.tolist() == lengths


@pytest.mark.parametrize(
    ("samples", "collate", "said"),
    [
        (SENTENCES, stack, r"samples differ in their shapes .*dataset.collate=pad pads them"),
        (SENTENCES, Pad(length=2), r"has the length 3, which is above the Pad\(length=2\) of all batches"),
        ([np.zeros((2, 3)), np.zeros((2, 4))], Pad(), "differ in more than their lengths"),
        ([{"ids": IDS}, {"id": IDS}], Pad(), "sample 1 of a batch has id, and the first has ids"),
    ],
)
def test_samples_that_make_no_batch(samples: list[Any], collate: Any, said: str) -> None:
    with pytest.raises(DatasetError, match=said):
        collate(samples)


def test_targets_may_be_a_list_of_numbers() -> None:
    inputs, targets = Split(np.arange(6).reshape(3, 2), [4, 5, 6]).batch(np.array([2, 0]))
    assert inputs.tolist() == [[4, 5], [0, 1]]
    assert targets.tolist() == [6, 4]


def test_targets_of_different_lengths_are_padded_with_their_own_value() -> None:
    split = Split([{"input_ids": s} for s in SENTENCES], list(SENTENCES), Pad(), Pad(value=-100))
    inputs, targets = split.batch(np.array([1, 2]))
    np.testing.assert_array_equal(inputs["attention_mask"], [[1, 0], [1, 1]])
    np.testing.assert_array_equal(targets, [[8, -100], [9, 10]])


# Checks


TOKENS, MASK, LABELS = np.zeros((8, 4), np.int64), np.ones((8, 4), np.int64), np.zeros(8, np.int64)


def samples(inputs: Any, targets: Any = None) -> Split:
    """A split of anything, as user code may make it."""
    return Split(inputs, targets)


class Data:
    """A user's dataset that returns whatever it is given."""

    sample_shape: tuple[int, ...] = (4,)
    channel_axis: int | None = None

    def __init__(self, given: Any, **declared: Any) -> None:
        self.given = given
        for name, value in declared.items():
            setattr(self, name, value)

    def split(self, name: SplitName) -> Split:
        split: Split = self.given
        return split


PLACE = f"{Path(__file__).relative_to(Path.cwd())}:{Data.split.__code__.co_firstlineno} in Data.split"


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (Data(samples([TOKENS, MASK], None)), f"inputs is a list of 2 arrays of shapes (8, 4), (8, 4); {SAMPLES_OR_INPUTS}"),
        (Data(samples((TOKENS, MASK[:7]))), "inputs has arrays of different numbers of samples: '0' 8, '1' 7"),
        (Data(samples({"ids": TOKENS, "text": ["a"] * 8})), "inputs['text.0'] is a str; make it one NumPy array"),
        (Data(samples({})), "inputs is an empty mapping"),
        (Data(Split([TOKENS[0], TOKENS[1, :2]], LABELS, Pad())), "split('test') has 2 inputs and 8 targets"),
        (Data(samples([[1.0] * 4] * 8, None)), "inputs is a list of 8 items; make it one array: np.asarray"),
        (Data(samples(torch.zeros(8, 4), None)), "inputs is a torch.Tensor; make it one NumPy array"),
        (Data(samples(np.array([TOKENS[0], TOKENS[0, :2]], object), None)), "inputs is an array of object; samples need one shape"),
        (Data(samples(np.array(["a", "b"]), None)), "inputs is an array of str32; samples need one shape"),
        (Data(samples(np.float32(3), None)), "inputs is a single number, not an array"),
        (Data(samples(TOKENS[:0], LABELS[:0])), "split('test') has no samples"),
        (Data(samples(TOKENS, LABELS[:7])), "split('test') has 8 inputs and 7 targets"),
        (Data(samples(TOKENS, np.array([None] * 8))), "targets is an array of object"),
        (Data(samples(TOKENS, np.int64(1))), "targets is a single number"),
        (Data((TOKENS, LABELS)), "returned a tuple of 2 arrays of shapes (8, 4), (8,), not a sweeprof.datasets.Split"),
        (Data(None), "split('test') returned a NoneType, not a sweeprof.datasets.Split"),
        (Data(samples(TOKENS, None), sample_shape=(1, 32, 32)), "has samples of shape (4,), and sample_shape is (1, 32, 32)"),
        (Data(samples(TOKENS, None), dtype="float32"), "inputs is of type int64, and dtype is float32"),
        (Data(samples(TOKENS, None), dtype=torch.float32), "inputs is of type int64, and dtype is torch.float32"),
        (Data(samples(TOKENS, None), channel_axis=2), "channel_axis is 2, and inputs have the axes 0 (samples) to 1"),
    ],
)  # fmt: skip
def test_data_of_another_form_are_an_error_with_the_line_of_the_dataset(data: Data, said: str) -> None:
    with pytest.raises(DatasetError) as caught:
        checked_split(data, "test")
    assert str(caught.value).startswith(f"dataset {__name__}.Data ({PLACE}): ")
    assert said in str(caught.value)


def test_everything_that_is_wrong_is_said_at_once() -> None:
    data = Data(samples(TOKENS, LABELS[:7]), sample_shape=(5,), dtype="float32")
    with pytest.raises(DatasetError) as caught:
        checked_split(data, "test")
    for said in ("sample_shape is (5,)", "dtype is float32", "8 inputs and 7 targets"):
        assert said in str(caught.value)


def test_what_is_no_dataset() -> None:
    with pytest.raises(DatasetError, match=r"dataset dict has no method split\(name\)"):
        checked_split({}, "test")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "data",
    [
        Digits(),
        Synthetic((2, 3)),
        Synthetic((3,), high=7),
        Data(samples(TOKENS, LABELS), dtype="int64"),
        Data(samples((TOKENS, MASK), LABELS)),
        Data(samples({"ids": TOKENS, "image": np.zeros((8, 3, 4, 4))}, {"start": LABELS, "end": LABELS}), channel_axis=1),
        Data(Split([TOKENS[0], TOKENS[1, :2]], [0, 1], Pad())),
        Data(samples(TOKENS, [0] * 8)),
        Data(samples(TOKENS.astype(np.float16), np.zeros((8, 2)))),
        Data(samples(TOKENS.astype(bool), None), sample_shape=[4], dtype=bool),
        Data(samples(np.zeros((2, 4), np.complex64), None)),
        Data(samples(np.zeros((2, 0, 4), np.float32), None), sample_shape=[0, 4]),
    ],
)  # fmt: skip
def test_data_as_they_should_be(data: Any) -> None:
    split = checked_split(data, "test")
    assert len(split) > 0
    assert not_finite("test", split) == []


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", [np.float16, np.float64, np.complex64])
def test_samples_that_are_not_finite_are_a_warning(bad: float, kind: Any) -> None:
    inputs = np.zeros((8, 4), kind)
    inputs[[2, 5], 1] = bad
    (warning,) = not_finite("test", samples(inputs, LABELS))
    assert warning.code == "inputs_not_finite"
    assert warning.text == "2 of the 8 samples of split('test') have inputs that are NaN or infinite"
    (warning,) = not_finite("test", samples(TOKENS, inputs[:, 1]))
    assert warning.code == "targets_not_finite"


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        (np.array([[1, 2], [3, 10], [11, 0]]), "sample 1 of split('test').inputs has the id 10, and the model's"),
        ({"input_ids": np.array([[1, 2], [-1, 3]])}, "sample 1 of split('test').inputs['input_ids'] has the id -1, and"),
        ({"token_ids": np.array([[10, 2]])}, "sample 0 of split('test').inputs['token_ids'] has the id 10, and"),
        ([{"input_ids": np.array([1])}, {"input_ids": np.array([2, 12])}], "sample 1 of split('test').inputs['input_ids']"),
        ({"input_ids": np.array([[1, 9]]), "length": np.array([99])}, None),
        (np.array([[10.0, 99.0]]), None),
    ],
)  # fmt: skip
def test_ids_above_the_vocabulary_are_named_with_their_sample(inputs: Any, said: str | None) -> None:
    split = samples(inputs)
    if said is None:
        check_ids(Data(split), "test", split, 10)
        return
    with pytest.raises(DatasetError) as caught:
        check_ids(Data(split), "test", split, 10)
    assert f"Data: {said}" in str(caught.value)
    assert str(caught.value).endswith("the model's vocabulary has the ids 0 to 9")
