"""A text, or token ids, cut into blocks of one length: data of language models."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, Unpack, get_args

import numpy as np
import numpy.typing as npt

from sweeprof.datasets import SplitName
from sweeprof.datasets.collate import Sample
from sweeprof.datasets.source import CommonOptions, Source, from_local_files, path_problems
from sweeprof.errors import DatasetError, Problem, choice_problem
from sweeprof.paths import user_path

FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json", "spiece.model", "tokenizer.model")


def tokenizer_problems(folder: str | None) -> list[Problem]:
    """Return the problem of ``dataset.tokenizer``."""
    if folder is None or any((user_path(folder) / name).is_file() for name in FILES):
        return []
    return [Problem("dataset.tokenizer", folder, f"is not a folder with a tokenizer ({', '.join(FILES[:3])}, …).")]


def tokenizer_files(folder: str | None) -> list[Path]:
    """Return the files of a tokenizer."""
    if folder is None:
        return []
    place = user_path(folder).absolute()
    names = (*FILES, "special_tokens_map.json", "merges.txt")
    return [place / name for name in names if (place / name).is_file()]


def tokenizer_in(folder: str) -> Any:
    """Return the tokenizer in a folder; raises :class:`UserError` if it cannot be loaded."""
    return from_local_files("AutoTokenizer", "dataset.tokenizer", folder)


SUFFIXES = (".npy", ".bin", ".txt")
LENGTH = 128
"""Tokens of a block where neither the options nor the model tell."""
Targets = Literal["next", "same", "none"]
IDS = ("uint8", "uint16", "uint32", "int32", "int64")
"""Types of token ids in a file."""


class Tokens(Source):
    """Blocks of token ids of a file: ``.npy``, ``.bin`` (whole numbers one behind the other), or ``.txt`` with a tokenizer."""

    packages = ("transformers", "tokenizers")
    unit = "tokens"

    def __init__(
        self,
        *,
        path: str | None = None,
        length: int | None = None,
        dtype: str = "uint16",
        tokenizer: str | None = None,
        targets: Targets = "next",
        **options: Unpack[CommonOptions],
    ) -> None:
        """Args:
        path: of the file; ``{split}`` in it stands for the split.
        length: tokens of a block; None: that of the model's generated inputs (``inputs.sequence_length``), or 128.
        dtype: type of the ids in a ``.bin`` file.
        tokenizer: the folder of a tokenizer for text; None: that of the model, if it is a folder (``model.path``).
        targets: ``next``: the token after each, for models that predict it; ``same``: the tokens; ``none``: no targets.
        """
        self._path, self._length, self._dtype = path, length, dtype
        self._tokenizer, self._targets = tokenizer, targets
        self._ids: npt.NDArray[Any] = np.empty(0, np.int64)
        super().__init__(**options)
        known = None if self.model is None else self.model.sizes.get("sequence_length")
        self._block = length or known or LENGTH

    @property
    def units_per_sample(self) -> float:
        """Tokens of a block."""
        return self._block

    def problems(self) -> list[Problem]:
        """Return the problems of the arguments."""
        found = path_problems(self._path, "a file of tokens or text", SUFFIXES)
        if self._targets not in get_args(Targets):
            found.append(choice_problem("dataset.targets", self._targets, "kind of targets", get_args(Targets)))
        if self._dtype not in IDS:
            found.append(choice_problem("dataset.dtype", self._dtype, "type of ids", IDS))
        if self._path is not None and self._path.endswith(".txt"):
            if self._tokenizer is None:
                found.append(Problem("dataset.tokenizer", None, "is missing: a text needs the folder of a tokenizer."))
            found += tokenizer_problems(self._tokenizer)
        return found

    def files(self, name: SplitName) -> Iterable[Path]:
        """Return the file, and those of the tokenizer."""
        return [self.path_of(str(self._path), name), *tokenizer_files(self._tokenizer)]

    def records(self, name: SplitName) -> range:
        """Return the positions at which blocks begin; what is left at the end is not used.

        Raises:
            DatasetError: the file cannot be read, or is shorter than a block.
        """
        path = self.path_of(str(self._path), name)
        self._ids = self._read(path)
        needed = self._block + (self._targets == "next")
        if len(self._ids) < needed:
            raise DatasetError(f"{path} has {len(self._ids)} tokens, and a block needs {needed}: set dataset.length")
        return range(0, len(self._ids) - needed + 1, self._block)

    def _read(self, path: Path) -> npt.NDArray[Any]:
        try:
            if path.suffix == ".txt":
                encode = tokenizer_in(str(self._tokenizer))
                text = path.read_text(encoding="utf-8")
                return np.asarray(encode(text, add_special_tokens=False, verbose=False)["input_ids"], np.int64)
            if path.suffix == ".bin":
                return np.fromfile(path, self._dtype)
            ids: npt.NDArray[Any] = np.load(path, allow_pickle=False, mmap_mode="r")
        except (OSError, ValueError, EOFError) as error:
            raise DatasetError(f"{path} cannot be read: {error}") from error
        if ids.ndim != 1 or ids.dtype.kind not in "iu":
            needed = "it must have whole numbers along one axis"
            raise DatasetError(f"{path} has {ids.dtype} of shape {ids.shape}; {needed}")
        return ids

    def decoded(self, record: int) -> Sample:
        """Return the block that begins at a position."""
        ids = np.asarray(self._ids[record : record + self._block + 1], np.int64)
        inputs = ids[: self._block]
        targets = {"next": ids[1:], "same": inputs, "none": None}[self._targets]
        place = f"token {record} to {record + self._block - 1} of {self._path}"
        if self.model is not None and "attention_mask" in self.model.inputs:
            return Sample({"input_ids": inputs, "attention_mask": np.ones_like(inputs)}, targets, place)
        return Sample(inputs, targets, place)
