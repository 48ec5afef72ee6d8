"""What a dataset returns is checked before anything is measured on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sweeprof.datasets import Split, SplitName
from sweeprof.datasets.arrays import Digits, Synthetic
from sweeprof.datasets.collate import Pad
from sweeprof.datasets.source import SAMPLES_OR_INPUTS, check_ids, checked_split, not_finite
from sweeprof.errors import DatasetError

IDS, MASK, LABELS = np.zeros((8, 4), np.int64), np.ones((8, 4), np.int64), np.zeros(8, np.int64)


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
        (Data(samples([IDS, MASK], None)), f"inputs is a list of 2 arrays of shapes (8, 4), (8, 4); {SAMPLES_OR_INPUTS}"),
        (Data(samples((IDS, MASK[:7]))), "inputs has arrays of different numbers of samples: '0' 8, '1' 7"),
        (Data(samples({"ids": IDS, "text": ["a"] * 8})), "inputs['text.0'] is a str; make it one NumPy array"),
        (Data(samples({})), "inputs is an empty mapping"),
        (Data(Split([IDS[0], IDS[1, :2]], LABELS, Pad())), "split('test') has 2 inputs and 8 targets"),
        (Data(samples([[1.0] * 4] * 8, None)), "inputs is a list of 8 items; make it one array: np.asarray"),
        (Data(samples(torch.zeros(8, 4), None)), "inputs is a torch.Tensor; make it one NumPy array"),
        (Data(samples(np.array([IDS[0], IDS[0, :2]], object), None)), "inputs is an array of object; samples need one shape"),
        (Data(samples(np.array(["a", "b"]), None)), "inputs is an array of str32; samples need one shape"),
        (Data(samples(np.float32(3), None)), "inputs is a single number, not an array"),
        (Data(samples(IDS[:0], LABELS[:0])), "split('test') has no samples"),
        (Data(samples(IDS, LABELS[:7])), "split('test') has 8 inputs and 7 targets"),
        (Data(samples(IDS, np.array([None] * 8))), "targets is an array of object"),
        (Data(samples(IDS, np.int64(1))), "targets is a single number"),
        (Data((IDS, LABELS)), "split('test') returned a tuple of 2 arrays of shapes (8, 4), (8,), not a sweeprof.datasets.Split"),
        (Data(None), "split('test') returned a NoneType, not a sweeprof.datasets.Split"),
        (Data(samples(IDS, None), sample_shape=(1, 32, 32)), "has samples of shape (4,), and sample_shape is (1, 32, 32)"),
        (Data(samples(IDS, None), dtype="float32"), "inputs is of type int64, and dtype is float32"),
        (Data(samples(IDS, None), dtype=torch.float32), "inputs is of type int64, and dtype is torch.float32"),
        (Data(samples(IDS, None), channel_axis=2), "channel_axis is 2, and inputs have the axes 0 (samples) to 1"),
    ],
)  # fmt: skip
def test_data_of_another_form_are_an_error_with_the_line_of_the_dataset(data: Data, said: str) -> None:
    with pytest.raises(DatasetError) as caught:
        checked_split(data, "test")
    assert str(caught.value).startswith(f"dataset {__name__}.Data ({PLACE}): ")
    assert said in str(caught.value)


def test_everything_that_is_wrong_is_said_at_once() -> None:
    data = Data(samples(IDS, LABELS[:7]), sample_shape=(5,), dtype="float32")
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
        Data(samples(IDS, LABELS), dtype="int64"),
        Data(samples((IDS, MASK), LABELS)),
        Data(samples({"ids": IDS, "image": np.zeros((8, 3, 4, 4))}, {"start": LABELS, "end": LABELS}), channel_axis=1),
        Data(Split([IDS[0], IDS[1, :2]], [0, 1], Pad())),
        Data(samples(IDS, [0] * 8)),
        Data(samples(IDS.astype(np.float16), np.zeros((8, 2)))),
        Data(samples(IDS.astype(bool), None), sample_shape=[4], dtype=bool),
        Data(samples(np.zeros((2, 4), np.complex64), None)),
        Data(samples(np.zeros((2, 0, 4), np.float32), None), sample_shape=[0, 4]),
    ],
)
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
    (warning,) = not_finite("test", samples(IDS, inputs[:, 1]))
    assert warning.code == "targets_not_finite"


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        (np.array([[1, 2], [3, 10], [11, 0]]), "sample 1 of split('test').inputs has the id 10, and the model's"),
        (
            {"input_ids": np.array([[1, 2], [-1, 3]])},
            "sample 1 of split('test').inputs['input_ids'] has the id -1, and",
        ),
        ({"token_ids": np.array([[10, 2]])}, "sample 0 of split('test').inputs['token_ids'] has the id 10, and"),
        (
            [{"input_ids": np.array([1])}, {"input_ids": np.array([2, 12])}],
            "sample 1 of split('test').inputs['input_ids']",
        ),
        ({"input_ids": np.array([[1, 9]]), "length": np.array([99])}, None),
        (np.array([[10.0, 99.0]]), None),
    ],
)
def test_ids_above_the_vocabulary_are_named_with_their_sample(inputs: Any, said: str | None) -> None:
    split = samples(inputs)
    if said is None:
        check_ids(Data(split), "test", split, 10)
        return
    with pytest.raises(DatasetError) as caught:
        check_ids(Data(split), "test", split, 10)
    assert f"Data: {said}" in str(caught.value)
    assert str(caught.value).endswith("the model's vocabulary has the ids 0 to 9")
