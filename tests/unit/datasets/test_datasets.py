"""Real digits, generated samples and batches, and what a dataset returns is checked before anything is measured on it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sweeprof.datasets import Split, SplitName, first_batch
from sweeprof.datasets.arrays import Digits, Npz, Synthetic, parts, scans
from sweeprof.datasets.cache import Cache, Varies
from sweeprof.datasets.collate import Pad, Sample, stack
from sweeprof.datasets.source import SAMPLES_OR_INPUTS, check_ids, checked_split, not_finite
from sweeprof.datasets.torch_dataset import TorchDataset
from sweeprof.errors import DatasetError, UserError
from sweeprof.nested import named_leaves


def test_the_digits_are_all_there() -> None:
    train, test = Digits().split("train"), Digits().split("test")
    assert (len(train), len(test)) == (1797 - 360, 360)
    for split in (train, test):
        assert split.targets is not None
        assert split.inputs.shape == (len(split), 1, 32, 32)
        assert (split.inputs.dtype, split.targets.dtype) == (np.dtype(np.float32), np.dtype(np.int64))
        assert (split.inputs.min(), split.inputs.max()) == (0.0, 1.0)
        assert set(split.targets) == set(range(10))
        squares = split.inputs[:, :, ::4, ::4].repeat(4, axis=2).repeat(4, axis=3)  # of a pixel each
        np.testing.assert_array_equal(split.inputs, squares)


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


def test_generated_numbers() -> None:
    split = Synthetic([3, 4], samples=1000).split("test")
    assert split.inputs.shape == (1000, 3, 4)
    assert split.inputs.dtype == np.float32
    assert split.targets is None
    assert abs(float(split.inputs.mean())) < 0.05
    assert float(split.inputs.std()) == pytest.approx(1, abs=0.05)
    assert (Synthetic([3, 4]).channel_axis, Synthetic((1, 8, 8), channels=1).channel_axis) == (None, 1)
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
    assert Split(IDS, [4, 5, 6, 7]).batch(np.array([3, 0]))[1].tolist() == [7, 4]
    assert len(split) == 4
    inputs, targets = split.batch(np.array([3, 0]))
    np.testing.assert_array_equal(inputs["ids"], IDS[[3, 0]])
    np.testing.assert_array_equal(inputs["pair"][0], IDS[[3, 0]] * 2)
    assert inputs["pair"][1].dtype == bool
    np.testing.assert_array_equal(targets[1], [10, 1])


SENTENCES = [np.array([5, 6, 7]), np.array([8]), np.array([9, 10])]


def test_padding_is_torchs_and_the_mask_is_that_of_transformers() -> None:
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
        (Data(samples(TOKENS[:0], LABELS[:0])), "split('test') has no samples"),
        (Data(samples(TOKENS, LABELS[:7])), "split('test') has 8 inputs and 7 targets"),
        (Data((TOKENS, LABELS)), "returned a tuple of 2 arrays of shapes (8, 4), (8,), not a sweeprof.datasets.Split"),
        (Data(samples(TOKENS, None), sample_shape=(1, 32, 32)), "has samples of shape (4,), and sample_shape is (1, 32, 32)"),
        (Data(samples(TOKENS, None), dtype="float32"), "inputs is of type int64, and dtype is float32"),
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


# Decoded samples: written once, read by all, never half


LIMIT = 2**30


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SWEEPROF_DATA_RUN", tmp_path.name)
    return tmp_path / "home" / "sweeprof" / "data"


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path, LIMIT)


def names(folder: Path) -> set[str]:
    """The entries of a cache."""
    return {path.name for path in (folder / "entries").iterdir()}


def written(cache: Cache, samples: list[Any], key: str = "k", varies: Varies = "length") -> Any:
    with cache.locked(key):
        cache.write(key, (Sample(sample, 1, f"sample {at}").as_arrays() for at, sample in enumerate(samples)), varies)
    return cache.read(key)


@settings(max_examples=30)
@given(
    number=st.integers(1, 5),
    lengths=st.lists(st.integers(0, 4), min_size=5, max_size=5),
    dtype=st.sampled_from(["float32", "int64", "uint8", "bool", "float16"]),
    inner=st.lists(st.integers(1, 3), max_size=2),
)
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, number: int, lengths: list[int], dtype: str, inner: list[int]
) -> None:
    random = np.random.default_rng(number)
    arrays = [(random.random((length, *inner)) * 9).astype(dtype) for length in lengths[:number]]
    samples = [{"a": array, "b": (np.int64(at), np.ones(2, np.float32))} for at, array in enumerate(arrays)]
    entry = written(Cache(tmp_path_factory.mktemp("cache"), LIMIT), samples)
    for at, sample in enumerate(samples):
        if isinstance(entry.inputs, list):
            found = named_leaves(entry.inputs[at])
        else:
            found = {name: leaf[at] for name, leaf in named_leaves(entry.inputs).items()}
        wanted = named_leaves(sample)
        assert found.keys() == wanted.keys()
        for name, array in wanted.items():
            np.testing.assert_array_equal(found[name], array)
            assert found[name].dtype == np.asarray(array).dtype
    assert isinstance(entry.inputs, list) == (len({len(array) for array in arrays}) > 1)
    np.testing.assert_array_equal(entry.targets, np.ones(number))


def test_samples_of_different_shapes_are_read_as_they_were(tmp_path: Path) -> None:
    """For a collate function of the user; without one, the advice depends on what differs."""
    samples = [np.arange(6.0).reshape(2, 3), np.arange(8.0).reshape(4, 2), np.ones((0, 5))]
    entry = written(Cache(tmp_path, LIMIT), samples, varies="shape")
    for found, wanted in zip(entry.inputs, samples, strict=True):
        np.testing.assert_array_equal(found, wanted)
    for varies in ("nothing", "length"):
        said = r"^sample 1 has the shape \(4, 2\), and sample 0 has \(2, 3\): dataset\.collate may name"
        with pytest.raises(DatasetError, match=said):
            written(Cache(tmp_path, LIMIT), samples, varies=varies)


def test_samples_are_mapped_into_memory_and_cannot_be_written(cache: Cache) -> None:
    entry = written(cache, [np.ones(3)])
    assert isinstance(entry.inputs.base, np.memmap)
    assert not entry.inputs.flags.writeable


def test_a_failure_leaves_nothing_and_the_next_attempt_works(tmp_path: Path, cache: Cache) -> None:

    def samples() -> Iterator[Sample]:
        yield Sample(np.ones(2), None, "sample 0").as_arrays()
        raise DatasetError("sample 1 is broken")

    with pytest.raises(DatasetError, match="sample 1 is broken"), cache.locked("k"):
        cache.write("k", samples(), "length")
    assert cache.read("k") is None
    assert names(tmp_path) == set()
    assert len(written(cache, [np.ones(2)]).inputs) == 1


def test_a_full_disk_is_one_sentence_and_leaves_nothing(
    tmp_path: Path, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fsync(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fsync)
    said = r"dataset.cache: .* cannot be written: No space left on device; dataset.cache=FOLDER"
    with pytest.raises(UserError, match=said):
        written(cache, [np.ones(2)])
    assert cache.read("k") is None
    assert names(tmp_path) == set()


def test_a_killed_process_leaves_no_entry(tmp_path: Path, cache: Cache) -> None:
    """While it writes; the next process decodes again."""
    code = (
        "import os, signal, sys, numpy as np; from pathlib import Path\n"
        "from sweeprof.datasets.cache import Cache; from sweeprof.datasets.collate import Sample\n"
        "def samples():\n"
        "    yield Sample(np.ones(2), None, '').as_arrays()\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "cache = Cache(Path(sys.argv[1]), 2**30)\n"
        "with cache.locked('k'): cache.write('k', samples(), 'length')\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False, timeout=60)
    assert names(tmp_path) == {"k.part"}
    assert cache.read("k") is None
    assert len(written(cache, [np.ones(2), np.ones(2)]).inputs) == 2


def test_a_damaged_entry_is_not_read(tmp_path: Path, cache: Cache) -> None:
    written(cache, [np.ones(100)])
    path = tmp_path / "entries" / "k" / "0.npy"
    path.write_bytes(path.read_bytes()[:300])
    assert cache.read("k") is None
    assert len(written(cache, [np.ones(100)]).inputs) == 1


def test_above_the_limit_the_entry_used_longest_ago_is_removed(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 3 * 4096)
    samples = [np.ones(1000, np.float32)]  # 4,000 bytes
    for at, key in enumerate(("old", "middle")):
        written(cache, samples, key)
        os.utime(tmp_path / "entries" / key / "entry.json", (at + 1, at + 1))
    assert cache.read("old") is not None  # it is used again
    written(cache, samples, "new")
    assert names(tmp_path) == {"old", "new"}
    small = Cache(tmp_path, 1)
    assert written(small, samples, "large") is not None  # what is needed now stays
    assert names(tmp_path) == {"large"}


def test_an_entry_used_while_the_clock_was_ahead_counts_as_used_now(tmp_path: Path) -> None:
    cache, samples = Cache(tmp_path, 3 * 4096), [np.ones(1000, np.float32)]
    for key, seconds in (("ahead", 10**6), ("after", 1)):
        written(cache, samples, key)
        moment = time.time() + seconds
        os.utime(tmp_path / "entries" / key / "entry.json", (moment, moment))
    written(cache, samples, "new")
    assert names(tmp_path) == {"after", "new"}


def test_a_wait_for_another_process_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("sweeprof.datasets.cache.SAID_AFTER_S", 0.1)
    cache = Cache(tmp_path, LIMIT)
    with cache.locked("k"):
        waiting = threading.Thread(target=written, args=(cache, [np.ones(2)]))
        waiting.start()
        while waiting.is_alive() and not caplog.messages:
            time.sleep(0.01)
    waiting.join(60)
    (message,) = caplog.messages
    assert message == f"another process decodes the same samples: waiting for {tmp_path / 'locks' / 'k.lock'}"
    assert cache.read("k") is not None


def test_what_killed_processes_left_is_removed(tmp_path: Path) -> None:
    """But not what is being written, however old it seems."""
    cache = Cache(tmp_path, LIMIT)
    for name in ("x.part", "y.part", "z.77.part"):
        (tmp_path / "entries" / name).mkdir(parents=True)
        os.utime(tmp_path / "entries" / name, (1, 1))
    with cache.locked("y"):
        written(cache, [np.ones(2)])
    assert names(tmp_path) == {"k", "y.part"}


@pytest.mark.parametrize("step_s", [-(10**9), 10**9])
def test_a_clock_that_is_set_removes_no_keys_of_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step_s: float
) -> None:
    """Also not those of a run that began before a host without a battery knew the time; but of thousands the oldest."""
    cache = Cache(tmp_path, LIMIT)
    cache.set_key_of_run("current", "c", "k")
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + step_s)
    written(cache, [np.ones(2)])
    assert cache.key_of_run("current", "c") == "k"
    monkeypatch.setattr("sweeprof.datasets.cache.NEWEST_RUNS", 2)
    monkeypatch.setattr(time, "time", real)
    for name in ("one", "two", "three"):
        cache.set_key_of_run(name, "c", "k")
    os.utime(tmp_path / "runs" / "current", (1, 1))
    written(cache, [np.ones(3)], "other")
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["one", "three", "two"]


# The key of an entry.


def saved(tmp_path: Path, values: Any) -> str:
    np.savez(tmp_path / "a.npz", x=values)
    return str(tmp_path / "a.npz")


def test_the_processes_of_a_run_see_the_same_samples_and_a_later_run_the_changed_file(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved(tmp_path, np.zeros((2, 3)))
    source = Npz(path=path)
    source.prepare("test")
    first = names(home)
    saved(tmp_path, np.ones((2, 3)))
    os.utime(path, (time.time() + 5, time.time() + 5))
    assert not source.split("test").inputs.any()
    monkeypatch.setenv("SWEEPROF_DATA_RUN", "another")
    source.prepare("test")
    assert source.split("test").inputs.all()
    assert len(names(home) - first) == 1


def test_the_same_file_is_decoded_once(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(tmp_path, np.zeros((2, 3)))
    for run in ("first", "second"):
        monkeypatch.setenv("SWEEPROF_DATA_RUN", run)
        Npz(path=path, cache_limit=LIMIT).prepare("test")
    assert len(names(home)) == 1
    Npz(path=path, limit=1).prepare("test")
    Npz(path=path).prepare("train")
    assert len(names(home)) == 3


def test_the_users_code_is_run_again_in_a_later_run(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may read anything."""
    path = saved(tmp_path, np.zeros((2, 3)))
    for run in ("first", "first", "second"):
        monkeypatch.setenv("SWEEPROF_DATA_RUN", run)
        Npz(path=path, transform="numpy.exp").prepare("test")
    assert len(names(home)) == 2


MADE: list[float] = []


def slow_samples() -> list[Any]:
    MADE.append(time.monotonic())
    time.sleep(0.3)
    return [(np.full(2, at, np.float32), at) for at in range(2)]


def test_those_who_begin_together_decode_once() -> None:
    """The other one waits for it."""
    sources = [TorchDataset(source={"_target_": f"{__name__}.slow_samples"}) for _ in range(2)]
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda source: source.prepare("test"), sources))
    assert [source.split("test").inputs.tolist() for source in sources] == [[[0, 0], [1, 1]]] * 2
    assert len(MADE) == 1
