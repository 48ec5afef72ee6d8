"""Tables: CSV, JSON and Parquet files, with a row per sample."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
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
        self._path, self._inputs, self._shape = path, listed(inputs or ()), shape
        self._targets, self._is_one_target = listed(targets or ()), isinstance(targets, str)
        self._categories = listed(categories)
        self._rows: dict[SplitName, dict[str, npt.NDArray[Any]]] = {}
        self._columns: list[str] = []
        self._classes: dict[str, dict[str, int]] = {}
        """By column the numbers of the texts that are classes or categories."""
        super().__init__(**options)

    def problems(self) -> list[Problem]:
        """Return the problems of the arguments."""
        return path_problems(self._path, "a table", SUFFIXES)

    def files(self, name: SplitName) -> Iterable[Path]:
        """Return the file."""
        return [self.path_of(str(self._path), name)]

    def numbering(self, name: SplitName) -> object:
        """Return the size and time of the other split's file, whose texts are numbered, too."""
        other = self.path_of(str(self._path), "train" if name == "test" else "test")
        if not other.is_file() or not (self._targets or self._categories):
            return None
        status = other.stat()
        return [str(other), status.st_size, status.st_mtime_ns]

    def records(self, name: SplitName) -> list[tuple[SplitName, int]]:
        """Return the numbers of the rows.

        Raises:
            DatasetError: the file cannot be read, or lacks a column.
        """
        path = self.path_of(str(self._path), name)
        table = _read(path)
        columns = list(table.columns)
        self._columns = self._inputs or [column for column in columns if column not in self._targets]
        for key, names in (("inputs", self._columns), ("targets", self._targets), ("categories", self._categories)):
            for column in names:
                if column not in columns:
                    noun = f"column of {path.name}"
                    raise DatasetError([choice_problem(f"dataset.{key}", column, noun, columns)])
        # Numbers of texts must not depend on the split: those of the other split are counted, too.
        both = [table]
        other = self.path_of(str(self._path), "train" if name == "test" else "test")
        texts = [column for column in self._targets if not _has_numbers(table[column].to_numpy())]
        numbered = [*self._categories, *texts]
        if numbered and other != path and other.is_file():
            both.append(_read(other))
        self._classes = {}
        for column in numbered:
            found: set[str] = set()
            for part in both:
                values = part[column]
                # As rows have them: without the missing ones, whole numbers would have another type.
                found.update(map(_text, values.to_numpy()[values.notna().to_numpy()]))
            self._classes[column] = {value: number for number, value in enumerate(sorted(found))}
        self._rows[name] = {column: _values(table[column].to_numpy()) for column in [*self._columns, *self._targets]}
        return [(name, row) for row in range(len(table))]

    def decoded(self, record: tuple[SplitName, int]) -> Sample:
        """Return a row; raises :class:`DatasetError` for a value that is missing or not a number."""
        name, row = record
        place = f"row {row} of {self._path}"
        inputs = self._numbers(name, row, self._columns, place)
        target = None
        if self._targets:
            target = self._numbers(name, row, self._targets, place)
            if target.dtype == bool:
                target = target.astype(np.int64)
            if not self._is_one_target:
                target = np.atleast_1d(target)
        axis = None
        if self._shape is not None:
            try:
                inputs = inputs.reshape(*self._shape)
            except ValueError:
                reason = f"which do not fit dataset.shape={list(self._shape)}"
                raise DatasetError(f"{place} has {inputs.size} numbers, {reason}") from None
            if inputs.ndim == 3:
                axis = 1
        return Sample(inputs, target, place, axis)

    def _numbers(self, name: SplitName, row: int, columns: Sequence[str], place: str) -> npt.NDArray[Any]:
        """Return the numbers of some columns, or those of a single column, as an array."""
        import pandas

        numbers: list[Any] = []
        for column in columns:
            value = self._rows[name][column][row]
            if not isinstance(value, list | np.ndarray) and pandas.isna(value):
                raise DatasetError(f"{place} has no value in column {column!r}")
            if column in self._classes:
                value = self._classes[column][_text(value)]
            elif isinstance(value, str):  # a column with a single word has texts only
                try:
                    value = float(value)
                except ValueError:
                    advice = "dataset.inputs chooses columns, and dataset.categories numbers the texts of some"
                    raise DatasetError(f"{place} has no number in column {column!r}, but {value!r}: {advice}") from None
            numbers.append(value)
        try:
            array = np.asarray(numbers[0] if len(numbers) == 1 else numbers)
        except ValueError:
            differ = f"values of different shapes in {', '.join(map(repr, columns))}"
            raise DatasetError(f"{place} has {differ}: dataset.inputs chooses columns") from None
        return array.astype(np.float32) if array.dtype.kind == "f" else array


def _text(value: Any) -> str:
    """Return the name of a category; a whole number has one name, also where missing values make a column floating-point."""
    if isinstance(value, float | np.floating) and value.is_integer():
        return str(int(value))
    return str(value)


def _values(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the values of a column; lists of numbers, which may be nested, are arrays of one type."""
    if values.dtype != object:
        return values
    made, arrays = values.copy(), {}
    for row, value in enumerate(values):
        if isinstance(value, list | np.ndarray):
            made[row] = _listed(value)
            with suppress(ValueError):  # inner lists differ in length: an error when the row is read
                made[row] = np.asarray(made[row])
                if made[row].dtype.kind in "biuf":
                    arrays[row] = made[row]
    types = {array.dtype for array in arrays.values() if array.size}  # an empty list has no type of its own
    if types:
        common = np.result_type(*types)
        for row, array in arrays.items():
            made[row] = array.astype(common, copy=False)
    return made


def _listed(value: Any) -> Any:
    """Return arrays of arrays, as nested lists of a Parquet file are, as lists of arrays."""
    if isinstance(value, np.ndarray) and value.dtype == object:
        return list(map(_listed, value))
    return value


def _has_numbers(values: npt.NDArray[Any]) -> bool:
    """Return whether a column has numbers, or lists of them."""
    return values.dtype.kind in "biuf" or any(isinstance(value, list | np.ndarray) for value in values)


def _read(path: Path) -> pandas.DataFrame:
    """Return the table; raises :class:`DatasetError` if it cannot be read."""
    import pandas

    try:
        if path.suffix == ".parquet":
            package("pyarrow", "parquet")
            table = pandas.read_parquet(path)
        elif path.suffix == ".jsonl":
            # Not by read_json, which takes some columns of numbers for dates, by their names, and texts such as "007" for numbers.
            with path.open(encoding="utf-8") as lines:
                table = pandas.DataFrame([json.loads(line) for line in lines if line.strip()])
        else:
            separator = "\t" if path.suffix == ".tsv" else ","
            table = pandas.read_csv(path, sep=separator)
            # NA and None are missing among numbers, but classes or categories among texts: only an empty field is none.
            with_missing = table.columns[table.isna().any()]
            texts = [column for column in with_missing if any(isinstance(value, str) for value in table[column])]
            if texts:
                table[texts] = pandas.read_csv(path, sep=separator, keep_default_na=False, na_values=[""])[texts]
    except (OSError, ValueError) as error:  # what pandas and pyarrow raise for damaged files are ValueErrors
        reason = str(error).strip().partition("\n")[0]
        raise DatasetError(f"{path} cannot be read as a table: {reason}") from error
    return table.rename(columns=str)
