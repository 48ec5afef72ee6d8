"""Datasets of NumPy arrays: scikit-learn's handwritten digits, those in an ``.npz`` file, and generated ones of any shape."""

from __future__ import annotations

import gzip
import math
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Unpack

import numpy as np
import numpy.typing as npt

from sweeprof.datasets import Split, SplitName
from sweeprof.datasets.collate import Sample
from sweeprof.datasets.source import CommonOptions, Layout, Source, layout_problems, path_problems
from sweeprof.errors import DatasetError, Problem, nearest
from sweeprof.text import listed

SCALE = 4
"""8×8 → 32×32, the input LeNet-5 was designed for."""
FULL_INK = 16.0
"""The scans hold ink counts 0..16."""


CLASSES = 10


@cache
def scans() -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return ink ``(1797, 64)`` and digits ``(1797,)`` from scikit-learn's file: importing scikit-learn itself takes seconds."""
    package = find_spec("sklearn")
    if package is None or package.origin is None:
        raise DatasetError("the digits are a file of scikit-learn, which is not installed")
    with gzip.open(Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz", "rt", encoding="ascii") as file:
        table = np.loadtxt(file, delimiter=",")
    return table[:, :-1], table[:, -1].astype(int)


@cache
def parts(seed: int = 0, test_share: float = 0.2) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return indices of the training and the test split, as ``sklearn.model_selection.train_test_split(stratify=...)`` does.

    Args:
        test_share: the share of the test split, or how many samples it has.

    Raises:
        DatasetError: one of the splits would have fewer samples than there are classes.
    """
    _, targets = scans()
    test_samples = math.ceil(test_share * len(targets)) if 0 < test_share < 1 else int(test_share)
    if test_samples not in range(CLASSES, len(targets) - CLASSES + 1):
        share = f"test_share={test_share} is {test_samples} of {len(targets)} samples"
        raise DatasetError(f"{share}; each split needs {CLASSES}")
    generator = np.random.RandomState(seed)
    present = np.bincount(targets)
    of_train = _stratified(present, len(targets) - test_samples, generator)
    of_test = _stratified(present - of_train, test_samples, generator)
    train, test = [], []
    for digit, (first, second) in enumerate(zip(of_train, of_test, strict=True)):
        shuffled = generator.permutation(np.flatnonzero(targets == digit))
        train.append(shuffled[:first])
        test.append(shuffled[first : first + second])
    return generator.permutation(np.concatenate(train)), generator.permutation(np.concatenate(test))


def _stratified(present: npt.NDArray[Any], samples: int, generator: np.random.RandomState) -> npt.NDArray[Any]:
    """Return how many samples of each class are drawn: in proportion, the largest remainders rounded up, ties at random."""
    exact = present / present.sum() * samples
    drawn: npt.NDArray[Any] = np.floor(exact).astype(int)
    remainders = exact - np.floor(exact)
    for remainder in np.unique(remainders)[::-1]:
        missing = samples - drawn.sum()
        if not missing:
            break
        (tied,) = np.nonzero(remainders == remainder)
        drawn[generator.choice(tied, size=min(len(tied), missing), replace=False)] += 1
    return drawn


@dataclass(frozen=True, slots=True)
class Digits:
    """Ten classes; float32 images in [0, 1]; a stratified split that ``seed`` fixes.

    Source: E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten Digits", UCI, 1998; ``sklearn.datasets.load_digits``.
    """

    seed: int = 0
    test_share: float = 0.2
    sample_shape: ClassVar[tuple[int, ...]] = (1, 32, 32)
    channel_axis: ClassVar[int] = 1

    def split(self, name: SplitName) -> Split:
        images, targets = scans()
        train, test = parts(self.seed, self.test_share)
        chosen = train if name == "train" else test
        small = (images[chosen] / FULL_INK).astype(np.float32).reshape(-1, 1, 8, 8)
        return Split(small.repeat(SCALE, axis=2).repeat(SCALE, axis=3), targets[chosen].astype(np.int64))


INPUTS = ("x", "inputs", "images", "data", "features")
TARGETS = ("y", "targets", "labels", "label", "target")
"""Names that are looked for where the options give none; also with the name of the split, as in ``x_test``."""


class Npz(Source):
    """Arrays of an ``.npz`` file, of which each has a row per sample."""

    def __init__(
        self,
        *,
        path: str | None = None,
        inputs: str | Sequence[str] | None = None,
        targets: str | None = None,
        layout: Layout | None = None,
        **options: Unpack[CommonOptions],
    ) -> None:
        """Args:
        path: of the file; ``{split}`` in it stands for the split.
        inputs: name of the array, or names of several, which become keyword arguments of the model; ``{split}`` in them stands
            for the split. None: ``x_test`` and ``x_train``, or ``x``, or other usual names.
        targets: name of the array of targets; None: ``y_test`` and ``y_train``, or ``y``, or other usual names, if there is one.
        layout: of images, arrays of three axes per sample.
        """
        self._path, self._inputs, self._targets, self._layout = path, inputs, targets, layout
        self._arrays: dict[SplitName, dict[str, Any]] = {}
        self._columns: tuple[list[str], str | None] = ([], None)
        super().__init__(**options)

    def problems(self) -> list[Problem]:
        """Return the problems of the arguments."""
        return [*path_problems(self._path, "a file of NumPy arrays (.npz)"), *layout_problems(self._layout)]

    def files(self, name: SplitName) -> Iterable[Path]:
        """Return the file."""
        return [self.path_of(str(self._path), name)]

    def records(self, name: SplitName) -> list[tuple[SplitName, int]]:
        """Return the split and the numbers of the rows.

        Raises:
            DatasetError: the file cannot be read, lacks an array, or has arrays of different lengths.
        """
        path = self.path_of(str(self._path), name)
        try:
            with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
                if not hasattr(file, "files"):
                    raise DatasetError(f"{path} has a single array; an .npz file has arrays with names")
                inputs, target = self._columns = self._names(file.files, self.part(name) or name, path)
                arrays = {key: file[key] for key in [*inputs, *listed(target or ())]}
        except DatasetError:
            raise
        except (OSError, ValueError, zipfile.BadZipFile, EOFError) as error:
            raise DatasetError(f"{path} cannot be read as an .npz file: {error}") from error
        self._arrays[name] = arrays
        lengths = [len(array) for array in arrays.values()]
        if len(set(lengths)) > 1:
            found = ", ".join(f"{key!r} {len(array)}" for key, array in arrays.items())
            raise DatasetError(f"{path} has arrays of different numbers of rows: {found}")
        return [(name, row) for row in range(lengths[0])]

    def _names(self, known: Sequence[str], part: str, path: Path) -> tuple[list[str], str | None]:
        """Return the names of the arrays of inputs in a file, and of that of the targets if there is one."""
        wanted = [name.replace("{split}", part) for name in listed(self._inputs or ())]
        if self._inputs is None:
            wanted = [name for name in _usual(INPUTS, part) if name in known][:1]
        if not wanted:
            arrays = f"no array 'x_{part}' or 'x', but {', '.join(known)}"
            raise DatasetError(f"{path} has {arrays}: name one by dataset.inputs")
        if self._targets:
            target: str | None = self._targets.replace("{split}", part)
        else:
            target = next((name for name in _usual(TARGETS, part) if name in known), None)
        for name in [*wanted, *listed(target or ())]:
            if name not in known:
                close = nearest(name, list(known))
                hint = f"; did you mean {close!r}?" if close else ""
                raise DatasetError(f"{path} has no array {name!r}, but {', '.join(known)}{hint}")
        return wanted, target

    def decoded(self, record: tuple[SplitName, int]) -> Sample:
        """Return a row."""
        name, row = record
        arrays = self._arrays[name]
        inputs, target = self._columns
        values: Any
        if self._inputs is None or isinstance(self._inputs, str):
            values = arrays[inputs[0]][row]
        else:
            suffix = f"_{self.part(name) or name}"
            values = {key.removesuffix(suffix): arrays[key][row] for key in inputs}
        targets = None if target is None else arrays[target][row]
        return Sample(values, targets, f"row {row} of {self._path}").with_layout(self._layout)


def _usual(names: Sequence[str], part: str) -> list[str]:
    return [*(f"{name}_{part}" for name in names), *names]


class NoData:
    """A single empty sample, for what takes no data (backend=command)."""

    def split(self, name: SplitName) -> Split:
        return Split(np.zeros((1, 1), np.float32), None)


@dataclass(frozen=True, slots=True)
class Synthetic:
    """Standard normal float32 samples, or integers below ``high`` where it is given; without labels."""

    shape: Sequence[int]
    """Shape of one sample, images channels-first."""
    samples: int = 64
    high: int | None = None
    channels: int | None = None
    """Axis of the channels within a batch (1 for images), or None."""
    seed: int = 0

    @property
    def sample_shape(self) -> tuple[int, ...]:
        return tuple(self.shape)

    @property
    def channel_axis(self) -> int | None:
        return self.channels

    def split(self, name: SplitName) -> Split:
        random = np.random.default_rng([self.seed, name == "test"])
        shape = (self.samples, *self.sample_shape)
        if self.high is not None:
            return Split(random.integers(0, self.high, shape), None)
        return Split(random.standard_normal(shape, dtype=np.float32), None)
