"""Tables: CSV and Parquet files, with a row per sample."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import numpy.typing as npt

from sweeprof.datasets import SplitName
from sweeprof.datasets.packages import package
from sweeprof.datasets.sample import Sample
from sweeprof.datasets.source import CommonOptions, Source, path_problems
from sweeprof.errors import DatasetError, Problem, choice_problem

if TYPE_CHECKING:
    import pandas

SUFFIXES = (".csv", ".tsv", ".parquet")


class Table(Source):
    """Rows of a table: numbers in columns, or lists of numbers in a column of a Parquet file."""

    packages = ("pandas",)

    def __init__(
        self,
        *,
        path: str | None = None,
        inputs: str | Sequence[str] | None = None,
        targets: str | None = None,
        shape: Sequence[int] | None = None,
        **options: Unpack[CommonOptions],
    ) -> None:
        """Args:
        path: of the file; ``{split}`` in it stands for the split.
        inputs: the columns whose numbers are a sample; a single one may have lists of numbers. None: all but the targets.
        targets: the column of targets, whose texts become classes by their order; None: there are none.
        shape: of a sample, such as ``[1, 32, 32]`` for images, channels first; None: ``(columns,)``.
        """
        self._path, self._inputs, self._targets, self._shape = path, inputs, targets, shape
        self._rows: dict[SplitName, dict[str, npt.NDArray[Any]]] = {}
        self._columns: list[str] = []
        self._classes: dict[str, int] | None = None
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
        listed = [self._inputs] if isinstance(self._inputs, str) else self._inputs
        wanted = list(listed) if listed else [column for column in columns if column != self._targets]
        for key, names in (("inputs", wanted), ("targets", [] if self._targets is None else [self._targets])):
            for column in names:
                if column not in columns:
                    problem = choice_problem(f"dataset.{key}", column, f"column of {path.name}", columns)
                    raise DatasetError([problem])
        self._rows[name] = {column: table[column].to_numpy() for column in columns}
        self._columns = wanted
        self._classes = self._texts(name)
        return [(name, row) for row in range(len(table))]

    def _texts(self, name: SplitName) -> dict[str, int] | None:
        """Return the numbers of classes that are texts; of all files, so that they do not depend on the split."""
        if self._targets is None or self._rows[name][self._targets].dtype.kind in "biuf":
            return None
        texts = {str(text) for text in self._rows[name][self._targets]}
        other: SplitName = "train" if name == "test" else "test"
        path = self.path_of(str(self._path), other)
        if path != self.path_of(str(self._path), name) and path.is_file():
            texts |= {str(text) for text in _read(path)[self._targets]}
        return {text: number for number, text in enumerate(sorted(texts))}

    def decoded(self, record: tuple[SplitName, int]) -> Sample:
        """Return a row; raises :class:`DatasetError` for a value that is missing or not a number."""
        name, row = record
        rows, place = self._rows[name], f"row {row} of {self._path}"
        inputs = _numbers({column: rows[column][row] for column in self._columns}, place)
        target = None
        if self._targets is not None:
            value = rows[self._targets][row]
            is_text = self._classes is not None
            target = self._classes[str(value)] if is_text else _numbers({self._targets: value}, place)  # type: ignore[index]
        if self._shape is None:
            return Sample(inputs, target, place)
        try:
            inputs = inputs.reshape(*self._shape)
        except ValueError:
            reason = f"which do not fit dataset.shape={list(self._shape)}"
            raise DatasetError(f"{place} has {inputs.size} numbers, {reason}") from None
        return Sample(inputs, target, place, 1 if len(self._shape) == 3 else None)


def _numbers(values: Mapping[str, Any], place: str) -> npt.NDArray[Any]:
    """Return the numbers of some columns, or those of a single column, as an array."""
    numbers: list[Any] = []
    for column, value in values.items():
        try:  # a column with a single word has texts only
            numbers.append(float(value) if isinstance(value, str) else value)
        except ValueError:
            raise DatasetError(f"{place} has no number in column {column!r}, but {value!r}") from None
        if value is None or (isinstance(value, float | np.floating) and np.isnan(value)):
            raise DatasetError(f"{place} has no value in column {column!r}")
    array = np.asarray(numbers[0] if len(numbers) == 1 else numbers)
    return array.astype(np.float32) if array.dtype.kind == "f" else array


def _read(path: Path) -> pandas.DataFrame:
    """Return the table; raises :class:`DatasetError` if it cannot be read."""
    pandas = package("pandas", "all")
    try:
        if path.suffix == ".parquet":
            package("pyarrow", "parquet")
            table: Any = pandas.read_parquet(path)
        else:
            table = pandas.read_csv(path, sep="\t" if path.suffix == ".tsv" else ",")
    except (OSError, ValueError) as error:  # what pandas and pyarrow raise for damaged files are ValueErrors
        raise DatasetError(f"{path} cannot be read as a table: {str(error).strip().partition(chr(10))[0]}") from error
    table.columns = [str(column) for column in table.columns]
    return table  # type: ignore[no-any-return]
