"""Tables: CSV, JSON and Parquet files, with a row per sample."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import numpy.typing as npt

from sweeprof.datasets import SplitName
from sweeprof.datasets.collate import Sample
from sweeprof.datasets.source import CommonOptions, Source, package, path_problems
from sweeprof.errors import DatasetError, Problem, choice_problem
from sweeprof.text import listed

if TYPE_CHECKING:
    import pandas

SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet")


class Table(Source):
    """Rows of a table: numbers in columns, or lists of numbers in a column of a JSON or Parquet file."""

    packages = ("pandas",)

    def __init__(
        self,
        *,
        path: str | None = None,
        inputs: str | Sequence[str] | None = None,
        targets: str | Sequence[str] | None = None,
        categories: str | Sequence[str] = (),
        shape: Sequence[int] | None = None,
        **options: Unpack[CommonOptions],
    ) -> None:
        """Args:
        path: of the file; ``{split}`` in it stands for the split.
        inputs: the columns whose numbers are a sample; a single one may have lists of numbers. None: all but the targets.
        targets: the column of targets, or several; texts become classes by their order. None: there are none.
        categories: columns of the inputs whose values, such as texts, become numbers from 0 by their order, as for an embedding.
        shape: of a sample, such as ``[1, 32, 32]`` for images, channels first; None: ``(columns,)``.
        """
        self._path, self._inputs, self._shape = path, inputs, shape
        self._targets, self._is_one_target = listed(targets or ()), isinstance(targets, str)
        self._categories = listed(categories)
        self._rows: dict[SplitName, dict[str, npt.NDArray[Any]]] = {}
        self._columns: list[str] = []
        self._classes: dict[str, dict[str, int]] = {}
        """By column the numbers of the texts that are classes or categories."""
        super().__init__(**options)

    def problems(self) -> list[Problem]:
        """Return the problems of the arguments."""
        found = path_problems(self._path, f"a table ({', '.join(SUFFIXES)})")
        if self._path is not None and Path(self._path).suffix not in SUFFIXES:
            found.append(Problem("dataset.path", self._path, f"is not a table: {', '.join(SUFFIXES)}."))
        return found

    def files(self, name: SplitName) -> Iterable[Path]:
        """Return the file."""
        return [self.path_of(str(self._path), name)]

    def records(self, name: SplitName) -> list[tuple[SplitName, int]]:
        """Return the numbers of the rows.

        Raises:
            DatasetError: the file cannot be read, or lacks a column.
        """
        path = self.path_of(str(self._path), name)
        table = _read(path)
        columns = [str(column) for column in table.columns]
        wanted = listed(self._inputs or ()) or [column for column in columns if column not in self._targets]
        for key, names in (("inputs", wanted), ("targets", self._targets), ("categories", self._categories)):
            for column in names:
                if column not in columns:
                    problem = choice_problem(f"dataset.{key}", column, f"column of {path.name}", columns)
                    raise DatasetError([problem])
        self._rows[name] = {column: table[column].to_numpy() for column in columns}
        self._columns = wanted
        texts = [column for column in self._targets if not _has_numbers(self._rows[name][column])]
        self._classes = {column: self._numbered(name, column) for column in (*self._categories, *texts)}
        return [(name, row) for row in range(len(table))]

    def _numbered(self, name: SplitName, column: str) -> dict[str, int]:
        """Return the numbers of the values of a column; of all files, so that they do not depend on the split."""
        found = {str(value) for value in self._rows[name][column] if not _is_missing(value)}
        other: SplitName = "train" if name == "test" else "test"
        path = self.path_of(str(self._path), other)
        if path != self.path_of(str(self._path), name) and path.is_file():
            found |= {str(value) for value in _read(path)[column] if not _is_missing(value)}
        return {value: number for number, value in enumerate(sorted(found))}

    def decoded(self, record: tuple[SplitName, int]) -> Sample:
        """Return a row; raises :class:`DatasetError` for a value that is missing or not a number."""
        name, row = record
        place = f"row {row} of {self._path}"
        inputs = self._numbers(name, row, self._columns, place)
        target = None
        if self._targets:
            target = self._numbers(name, row, self._targets, place)
            target = target.astype(np.int64) if target.dtype == bool else target
            target = target if self._is_one_target else np.atleast_1d(target)
        if self._shape is None:
            return Sample(inputs, target, place)
        try:
            inputs = inputs.reshape(*self._shape)
        except ValueError:
            reason = f"which do not fit dataset.shape={list(self._shape)}"
            raise DatasetError(f"{place} has {inputs.size} numbers, {reason}") from None
        return Sample(inputs, target, place, 1 if len(self._shape) == 3 else None)

    def _numbers(self, name: SplitName, row: int, columns: Sequence[str], place: str) -> npt.NDArray[Any]:
        """Return the numbers of some columns, or those of a single column, as an array."""
        numbers: list[Any] = []
        for column in columns:
            value = self._rows[name][column][row]
            if _is_missing(value):
                raise DatasetError(f"{place} has no value in column {column!r}")
            if column in self._classes:
                value = self._classes[column][str(value)]
            try:  # a column with a single word has texts only
                numbers.append(float(value) if isinstance(value, str) else value)
            except ValueError:
                advice = "dataset.inputs chooses columns, and dataset.categories numbers the texts of some"
                raise DatasetError(f"{place} has no number in column {column!r}, but {value!r}: {advice}") from None
        array = np.asarray(numbers[0] if len(numbers) == 1 else numbers)
        return array.astype(np.float32) if array.dtype.kind == "f" else array


def _has_numbers(values: npt.NDArray[Any]) -> bool:
    """True for numbers, and for lists of them."""
    return values.dtype.kind in "biuf" or any(isinstance(value, list | np.ndarray) for value in values)


def _is_missing(value: object) -> bool:
    """True for what pandas has where a file has nothing."""
    is_nan = isinstance(value, float | np.floating) and bool(np.isnan(value))
    return value is None or is_nan or type(value).__name__ in ("NAType", "NaTType")


def _read(path: Path) -> pandas.DataFrame:
    """Return the table; raises :class:`DatasetError` if it cannot be read."""
    pandas = package("pandas", "all")
    try:
        if path.suffix == ".parquet":
            package("pyarrow", "parquet")
            table: Any = pandas.read_parquet(path)
        elif path.suffix == ".jsonl":
            table = pandas.read_json(path, lines=True)
        else:
            table = pandas.read_csv(path, sep="\t" if path.suffix == ".tsv" else ",")
    except (OSError, ValueError) as error:  # what pandas and pyarrow raise for damaged files are ValueErrors
        raise DatasetError(f"{path} cannot be read as a table: {str(error).strip().partition(chr(10))[0]}") from error
    table.columns = [str(column) for column in table.columns]
    return table  # type: ignore[no-any-return]
