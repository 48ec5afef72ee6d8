"""Real digits and generated samples."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeprof.datasets import Dataset, batch_of
from sweeprof.datasets.digits import Digits
from sweeprof.datasets.synthetic import Synthetic


def test_the_digits_are_all_there() -> None:
    train, test = Digits().split("train"), Digits().split("test")
    assert (len(train), len(test)) == (1797 - 360, 360)
    for split in (train, test):
        assert split.targets is not None
        assert split.inputs.shape == (len(split), 1, 32, 32)
        assert (split.inputs.dtype, split.targets.dtype) == (np.dtype(np.float32), np.dtype(np.int64))
        assert (split.inputs.min(), split.inputs.max()) == (0.0, 1.0)
        assert set(split.targets) == set(range(10))


def test_the_split_is_stratified() -> None:
    train, test = Digits().split("train").targets, Digits().split("test").targets
    assert train is not None
    assert test is not None
    whole = np.bincount(train) + np.bincount(test)
    assert np.abs(np.bincount(test) - whole * 0.2).max() < 1


def test_a_pixel_becomes_a_square() -> None:
    images = Digits().split("test").inputs
    np.testing.assert_array_equal(images, images[:, :, ::4, ::4].repeat(4, axis=2).repeat(4, axis=3))


def test_the_splits_do_not_overlap_and_miss_nothing() -> None:
    from sklearn.datasets import load_digits

    # No two scans are equal, so their bytes tell them apart.
    train, test = (
        {image.tobytes() for image in Digits().split(name).inputs[:, 0, ::4, ::4]} for name in ("train", "test")
    )
    scans = {(image / 16).astype(np.float32).reshape(8, 8).tobytes() for image in load_digits().data}
    assert len(scans) == 1797
    assert not train & test
    assert train | test == scans


def test_the_digits_are_the_same_on_every_call() -> None:
    for name in ("train", "test"):
        first, second = Digits().split(name), Digits().split(name)
        np.testing.assert_array_equal(first.inputs, second.inputs)
        np.testing.assert_array_equal(first.targets, second.targets)


def test_the_digits_are_the_same_in_another_process() -> None:
    program = "from sweeprof.datasets.digits import Digits; print(Digits().split('test').targets.tolist())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    targets = Digits().split("test").targets
    assert targets is not None
    assert done.stdout.strip() == str(targets.tolist())


def test_another_seed_is_another_split() -> None:
    own, other = Digits().split("test").targets, Digits(seed=1).split("test").targets
    assert not np.array_equal(own, other)  # type: ignore[arg-type]


@given(size=st.integers(1, 40), samples=st.integers(1, 12))
def test_a_batch_begins_again_from_the_first(size: int, samples: int) -> None:
    dataset = Synthetic((2,), samples=samples)
    inputs = dataset.split("test").inputs
    batch = batch_of(dataset.split("test"), size)
    assert batch.shape == (size, 2)
    assert batch.flags["C_CONTIGUOUS"]
    for i, sample in enumerate(batch):
        np.testing.assert_array_equal(sample, inputs[i % samples])


@pytest.mark.parametrize("dataset", [Digits(), Synthetic((1, 8, 8), channels=1)])
def test_a_batch_is_of_test_samples(dataset: Dataset) -> None:
    split = dataset.split("test")
    np.testing.assert_array_equal(batch_of(split, 3), split.inputs[:3])
    assert dataset.sample_shape == batch_of(split, 1).shape[1:]
    assert dataset.channel_axis == 1


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
