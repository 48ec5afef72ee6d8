"""A dataset of Hugging Face that ``save_to_disk`` has written: text, images, or arrays."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from sweeprof.datasets import SplitName
from sweeprof.datasets.collate import TARGETS, Pad, Sample
from sweeprof.datasets.images import PictureSource, PictureSourceOptions, array_of
from sweeprof.datasets.source import Layout, layout_problems, package, path_problems
from sweeprof.datasets.tokens import tokenizer_files, tokenizer_in, tokenizer_problems
from sweeprof.errors import DatasetError, Problem, choice_problem
from sweeprof.text import listed


class Huggingface(PictureSource):
    """Rows of a saved dataset; texts become token ids, and images arrays as the model's source specifies."""

    packages = ("datasets", "transformers", "tokenizers", "pillow")

    def __init__(
        self,
        *,
        path: str | None = None,
        inputs: str | Sequence[str] | None = None,
        targets: str | None = None,
        tokenizer: str | None = None,
        max_length: int | None = None,
        layout: Layout | None = None,
        **options: Unpack[PictureSourceOptions],
    ) -> None:
        """Args:
        path: the folder that ``save_to_disk`` has written.
        inputs: the columns that the model is given, by their names or in their order; one or two columns of text are tokenized.
            None: all but the targets.
        targets: the column of targets; None: ``label`` or another usual one, if there is one.
        tokenizer: the folder of a tokenizer; None: that of the model, if it is a folder (``model.path``).
        max_length: tokens after which texts are cut; None: as many as the tokenizer says.
        layout: of images that are arrays and not pictures.
        """
        self._path, self._inputs, self._targets, self._layout = path, inputs, targets, layout
        self._tokenizer, self._max_length = tokenizer, max_length
        super().__init__(**options)
        self._rows: Any = None
        self._kinds: dict[str, str] = {}
        """The columns that the model is given: ``text``, ``picture`` or ``array``."""
        self._target: str | None = None
        self._encode: Any = None

    def problems(self) -> list[Problem]:
        """Return the problems of the arguments."""
        found = path_problems(self._path, "a folder that save_to_disk has written")
        return [*found, *layout_problems(self._layout), *super().problems()]

    def files(self, name: SplitName) -> Iterable[Path]:
        """Return the files of the dataset and of the tokenizer."""
        data = sorted(path for path in self.path_of(str(self._path), name).rglob("*") if path.is_file())
        return [*data, *tokenizer_files(self._tokenizer)]

    def padding(self) -> Pad | None:
        """Return the padding of token ids."""
        if self._tokenizer is None or tokenizer_problems(self._tokenizer):
            return None
        return Pad()

    def records(self, name: SplitName) -> range:
        """Return the numbers of the rows.

        Raises:
            DatasetError: the folder is not a saved dataset, or it lacks the split or a column.
        """
        datasets = package("datasets", "huggingface")
        folder = str(self.path_of(str(self._path), name))
        try:
            rows = datasets.load_from_disk(folder)
        except (OSError, ValueError) as error:
            reason = str(error).strip().partition("\n")[0]
            raise DatasetError([Problem("dataset.path", str(self._path), f"cannot be loaded: {reason}")]) from error
        if isinstance(rows, datasets.DatasetDict):
            wanted = self.part(name)
            names = [wanted or name]
            if wanted is None and name == "test":
                names += ["validation", "valid", "val"]
            found = next((part for part in names if part in rows), None)
            if found is None:
                raise DatasetError([choice_problem("dataset.split", names[0], f"split of {self._path}", rows)])
            rows = rows[found]
        self._rows, columns = rows, list(rows.column_names)
        self._target = self._targets or next((column for column in TARGETS if column in columns), None)
        inputs = listed(self._inputs or ()) or [column for column in columns if column != self._target]
        for key, wanted_columns in (("inputs", inputs), ("targets", listed(self._target or ()))):
            for column in wanted_columns:
                if column not in columns:
                    raise DatasetError([choice_problem(f"dataset.{key}", column, f"column of {self._path}", columns)])
        self._kinds = {}
        for column in inputs:
            feature = rows.features[column]
            self._kinds[column] = "picture" if type(feature).__name__ == "Image" else "array"
            if getattr(feature, "dtype", None) in ("string", "large_string"):
                self._kinds[column] = "text"
        texts = self._columns("text")
        if texts and self._tokenizer is None:
            has = f"the column {', '.join(texts)} has texts"
            reason = f"is missing: {has}; name the folder of a tokenizer, or other dataset.inputs."
            raise DatasetError([Problem("dataset.tokenizer", None, reason)])
        if texts:
            problems = tokenizer_problems(self._tokenizer)
            if problems:
                raise DatasetError(problems)
            self._encode = tokenizer_in(str(self._tokenizer))
        return range(len(rows))

    def _columns(self, kind: str) -> list[str]:
        return [column for column in self._kinds if self._kinds[column] == kind]

    def decoded(self, record: int) -> Sample:
        """Return a row; raises :class:`DatasetError` for a picture that cannot be read, or a text that is missing."""
        place = f"row {record} of {self._path}"
        try:
            row = self._rows[record]
        except (OSError, ValueError, SyntaxError) as error:  # of a picture
            raise DatasetError(f"{place} cannot be read: {error}") from error
        target = None if self._target is None else row[self._target]
        texts = [row[column] for column in self._columns("text")]
        values: dict[str, Any] = {}
        if texts:
            if None in texts:
                raise DatasetError(f"{place} has no text")
            encoded = self._encode(*texts, truncation=True, max_length=self._limit_of_tokens())
            for key, value in encoded.items():
                if self.model is None or key in self.model.inputs:
                    values[key] = np.asarray(value, np.int64)
        axis = None
        for column, kind in self._kinds.items():
            if kind == "picture":
                values[column], axis = array_of(row[column], self._spec, place), 1
            elif kind == "array":
                values[column] = np.asarray(row[column])
        if len(values) > 1 or texts:
            return Sample(values, target, place, axis)
        alone = Sample(next(iter(values.values())), target, place, axis)
        return alone if axis else alone.as_arrays().with_layout(self._layout)

    def _limit_of_tokens(self) -> int | None:
        if self._max_length is not None:
            return self._max_length
        if self.model is not None and "sequence_length" in self.model.sizes:
            return self.model.sizes["sequence_length"]
        longest: int = self._encode.model_max_length
        return longest if longest < 10**9 else None
