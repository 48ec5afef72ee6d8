"""Decoded samples: written once, read by all, never half."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeprof.datasets.arrays import Npz
from sweeprof.datasets.cache import Cache, Varies
from sweeprof.datasets.collate import Sample
from sweeprof.errors import DatasetError, UserError
from sweeprof.nested import named_leaves

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


def used_at(folder: Path, key: str, moment: float) -> None:
    """Let an entry have been used then."""
    os.utime(folder / "entries" / key / "entry.json", (moment, moment))


def written(cache: Cache, samples: list[Any], key: str = "k", varies: Varies = "length") -> Any:
    with cache.locked(key):
        cache.write(key, (Sample(sample, 1, f"sample {at}").as_arrays() for at, sample in enumerate(samples)), varies)
    return cache.read(key)


DTYPES = st.sampled_from(["float32", "int64", "uint8", "bool", "float16"])


@given(
    number=st.integers(1, 5),
    lengths=st.lists(st.integers(0, 4), min_size=5, max_size=5),
    dtype=DTYPES,
    inner=st.lists(st.integers(1, 3), max_size=2),
    form=st.sampled_from(["array", "mapping", "tuple"]),
)
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, number: int, lengths: list[int], dtype: str, inner: list[int], form: str
) -> None:
    random = np.random.default_rng(number)
    arrays = [(random.random((length, *inner)) * 9).astype(dtype) for length in lengths[:number]]
    forms: dict[str, list[Any]] = {
        "array": arrays,
        "mapping": [{"a": array, "b": {"c": np.int64(at)}} for at, array in enumerate(arrays)],
        "tuple": [(array, np.ones(2, np.float32)) for array in arrays],
    }
    samples = forms[form]
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


def test_the_files_are_npy_files_and_memory_mapped(tmp_path: Path) -> None:
    array = np.arange(12.0, dtype=np.float32).reshape(4, 3)
    entry = written(Cache(tmp_path, LIMIT), list(array))
    np.testing.assert_array_equal(np.load(tmp_path / "entries" / "k" / "0.npy"), array)
    assert isinstance(entry.inputs.base, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        entry.inputs[0] = 1


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
        used_at(tmp_path, key, at + 1)
    assert cache.read("old") is not None  # it is used again
    written(cache, samples, "new")
    assert names(tmp_path) == {"old", "new"}
    small = Cache(tmp_path, 1)
    assert written(small, samples, "large") is not None  # what is needed now stays
    assert names(tmp_path) == {"large"}


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


def test_an_entry_used_while_the_clock_was_ahead_counts_as_used_now(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 6000)
    written(cache, [np.ones(600)], "ahead")
    used_at(tmp_path, "ahead", time.time() + 10**6)
    written(cache, [np.ones(1)], "small")
    assert names(tmp_path) == {"ahead", "small"}
    used_at(tmp_path, "small", time.time() + 1)
    written(cache, [np.ones(600)], "new")
    assert names(tmp_path) == {"small", "new"}


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


def test_processes_that_begin_together_decode_once(tmp_path: Path, home: Path) -> None:
    """All but one wait for it."""
    (tmp_path / "slow_data.py").write_text(
        "import os, time\nimport numpy as np\nfrom pathlib import Path\n"
        "class Slow:\n"
        "    def __init__(self, log):\n"
        "        Path(log, str(os.getpid())).touch(); time.sleep(0.5)\n"
        "    def __len__(self): return 2\n"
        "    def __getitem__(self, at): return np.full(2, at, np.float32), at\n"
    )
    (tmp_path / "log").mkdir()
    code = (
        "from sweeprof.datasets.torch_dataset import TorchDataset; import sys\n"
        "source = TorchDataset(source={'_target_': 'slow_data.Slow', 'log': sys.argv[1]})\n"
        "source.prepare('test'); print(source.split('test').inputs.tolist())"
    )
    environment = {**os.environ, "PYTHONPATH": ":".join([str(tmp_path), *filter(None, sys.path)])}
    command = [sys.executable, "-c", code, str(tmp_path / "log")]
    running = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    printed = [process.communicate(timeout=120)[0] for process in running]
    assert printed == ["[[0.0, 0.0], [1.0, 1.0]]\n"] * 3
    assert len(list((tmp_path / "log").iterdir())) == 1
