"""Datasets as inputs of runs, so that MLflow shows and searches them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sweeprof.credentials import without_credentials
from sweeprof.report.cells import one_line, shortened

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

# MLflow refuses more (its validation.py).
_NAME_LIMIT, _SOURCE_LIMIT = 500, 65_535
MOST_INPUTS = 100
"""Of one run."""
_NOT_CONTENT = ("preload", "preload_for")


@dataclass(frozen=True, slots=True)
class Input:
    """A dataset of a run."""

    name: str
    digest: str
    """Of its settings: two combinations with equal ones saw the same samples."""
    source: str
    """Its settings as JSON."""
    context: str
    """The use of the data: ``inference`` or ``training``."""


def dataset_input(config: Mapping[str, object] | None) -> Input | None:
    """The dataset that a combination's resolved config names; None where it names none."""
    dataset = (config or {}).get("dataset")
    if not isinstance(dataset, Mapping) or not dataset:
        return None
    content = {key: value for key, value in dataset.items() if key not in _NOT_CONTENT}
    source = without_credentials(json.dumps(content, sort_keys=True, default=str))
    name = str(content.get("_target_", "dataset")).rpartition(".")[2]
    return Input(
        name=shortened(one_line(name), _NAME_LIMIT) or "dataset",
        digest=hashlib.sha256(source.encode()).hexdigest()[:12],
        source=shortened(source, _SOURCE_LIMIT),
        context=str((config or {}).get("mode", "inference")),
    )


def dataset_inputs(configs: Iterable[Mapping[str, object] | None]) -> tuple[Input, ...]:
    """Return the inputs of several combinations, each once."""
    found = dict.fromkeys(made for config in configs if (made := dataset_input(config)) is not None)
    return tuple(found)[:MOST_INPUTS]


def log_inputs(client: MlflowClient, run_id: str, inputs: Sequence[Input]) -> None:
    """Add the inputs to a run; one that it has already is not added again.

    Raises:
        mlflow.exceptions.MlflowException: the server does not take them.
    """
    from mlflow.entities import Dataset, DatasetInput, InputTag

    made = [
        DatasetInput(
            Dataset(one.name, one.digest, "sweeprof", one.source), [InputTag("mlflow.data.context", one.context)]
        )
        for one in inputs
    ]
    if made:
        client.log_inputs(run_id, datasets=made)
