"""Arrays in an ``.npz`` file."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from sweeprof.datasets import SplitName
from sweeprof.datasets.collate import Sample
from sweeprof.datasets.source import CommonOptions, Layout, Source, layout_problems, path_problems
from sweeprof.errors import DatasetError, Problem, nearest
from sweeprof.text import listed

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
        arrays = self._arrays[name] = self._read(name)
        lengths = {key: len(array) for key, array in arrays.items()}
        if len(set(lengths.values())) > 1:
            found = ", ".join(f"{key!r} {length}" for key, length in lengths.items())
            raise DatasetError(
                f"{self.path_of(str(self._path), name)} has arrays of different numbers of rows: {found}"
            )
        return [(name, row) for row in range(next(iter(lengths.values())))]

    def _read(self, name: SplitName) -> dict[str, Any]:
        """Return the arrays of a split by their names in the file; the last one is that of the targets, if there are any."""
        path = self.path_of(str(self._path), name)
        try:
            with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
                if not hasattr(file, "files"):
                    raise DatasetError(f"{path} has a single array; an .npz file has arrays with names")
                names = [*self._names(file.files, name, path)]
                return {key: file[key] for key in names}
        except DatasetError:
            raise
        except (OSError, ValueError, zipfile.BadZipFile, EOFError) as error:
            raise DatasetError(f"{path} cannot be read as an .npz file: {error}") from error

    def _names(self, known: Sequence[str], name: SplitName, path: Path) -> Iterable[str]:
        part = self.part(name) or name
        if self._inputs is None:
            wanted = [name for name in [_usual(INPUTS, known, part)] if name is not None]
        else:
            wanted = [name.replace("{split}", part) for name in listed(self._inputs)]
        if not wanted:
            raise DatasetError(
                f"{path} has no array 'x_{part}' or 'x', but {', '.join(known)}: name one by dataset.inputs"
            )
        targets = self._targets.replace("{split}", part) if self._targets else _usual(TARGETS, known, part)
        for one in [*wanted, targets]:
            if one is not None and one not in known:
                close = nearest(one, list(known))
                hint = f"; did you mean {close!r}?" if close else ""
                raise DatasetError(f"{path} has no array {one!r}, but {', '.join(known)}{hint}")
        self._columns = wanted, targets
        return [one for one in [*wanted, targets] if one is not None]

    def decoded(self, record: tuple[SplitName, int]) -> Sample:
        """Return a row."""
        name, row = record
        arrays = self._arrays[name]
        inputs, targets = self._columns
        values: Any = arrays[inputs[0]][row]
        if not isinstance(self._inputs, str | None):
            values = {key.removesuffix(f"_{self.part(name) or name}"): arrays[key][row] for key in inputs}
        place = f"row {row} of {self._path}"
        return Sample(values, None if targets is None else arrays[targets][row], place).with_layout(self._layout)


def _usual(names: Sequence[str], known: Sequence[str], part: str) -> str | None:
    wanted = [*(f"{name}_{part}" for name in names), *names]
    return next((name for name in wanted if name in known), None)
