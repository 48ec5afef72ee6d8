"""Tokenizers of transformers, from local files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sweeprof.datasets.packages import import_transformers
from sweeprof.errors import Problem, UserError
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
    paths = (user_path(folder).absolute() / name for name in (*FILES, "special_tokens_map.json", "merges.txt"))
    return [path for path in paths if path.is_file()]


def tokenizer_in(folder: str) -> Any:
    """Return the tokenizer in a folder; raises :class:`UserError` if it cannot be loaded."""
    transformers = import_transformers()
    try:
        return transformers.AutoTokenizer.from_pretrained(str(user_path(folder)), local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise UserError([Problem("dataset.tokenizer", folder, f"cannot be loaded: {reason}")]) from error
