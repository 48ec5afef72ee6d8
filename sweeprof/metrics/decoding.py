"""Texts of a model's outputs and of its targets, for metrics such as the word error rate."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sweeprof.errors import Problem, UserError
from sweeprof.model_sources.transformers import import_transformers
from sweeprof.paths import user_path

Texts = tuple[list[str], list[str]]
"""Of the outputs, and of the targets."""


def greedy_ctc(scores: npt.NDArray[Any], blank: int) -> list[list[int]]:
    """Return the ids of each sequence by greedy decoding of connectionist temporal classification.

    The best id of each frame is taken; repeats of an id in successive frames become one, then blanks are dropped.

    Args:
        scores: ``(batch, frames, ids)``.
        blank: the id of "no character", which separates repeats.
    """
    decoded = []
    for best in scores.argmax(axis=-1):
        is_first = np.append(True, best[1:] != best[:-1])
        decoded.append([int(id) for id in best[is_first] if id != blank])
    return decoded


def decoded(outputs: npt.NDArray[Any], targets: npt.NDArray[Any], folder: str) -> Texts:
    """Return the texts that the tokenizer of a folder reads in logits and in target ids.

    A tokenizer for connectionist temporal classification (of Wav2Vec2 and the like) decodes greedily, with the padding as blank;
    any other takes the best id of every position. Negative targets and padding are dropped.

    Args:
        outputs: ``(batch, positions, ids)``.
        targets: ``(batch, length)``.
        folder: of a tokenizer or processor that transformers has saved.

    Raises:
        UserError: it is not such a folder, or the outputs are not logits.
    """
    tokenizer = _tokenizer(folder)
    if outputs.ndim != 3 or targets.ndim != 2:
        shapes = f"outputs {outputs.shape} and targets {targets.shape}"
        needed = f"decodes outputs (batch, positions, ids) and targets (batch, length), not {shapes}."
        raise UserError([Problem("decode", folder, needed)])
    pad = -1 if tokenizer.pad_token_id is None else int(tokenizer.pad_token_id)
    labels = [[int(id) for id in row if id >= 0 and id != pad] for row in targets]
    if "CTC" in type(tokenizer).__name__:
        ids = greedy_ctc(outputs, pad)
        return tuple([tokenizer.decode(row, group_tokens=False) for row in side] for side in (ids, labels))  # type: ignore[return-value]
    best = outputs.argmax(axis=-1).tolist()
    return tuple([tokenizer.decode(row, skip_special_tokens=True) for row in side] for side in (best, labels))  # type: ignore[return-value]


def _tokenizer(folder: str) -> Any:
    path = user_path(folder)
    if not path.is_dir():
        raise UserError([Problem("decode", folder, "is not a folder of a tokenizer or processor.")])
    try:
        return import_transformers().AutoTokenizer.from_pretrained(str(path))
    except (OSError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise UserError([Problem("decode", folder, f"is not a folder of a tokenizer or processor: {reason}")]) from None
