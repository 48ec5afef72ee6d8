"""Samples of the trials of a shard, decoded in a process of their own before the first trial of the host runs."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from sweeprof.datasets.source import run_name
from sweeprof.errors import WorkerError
from sweeprof.processes import Child, child_environment
from sweeprof.results.record import Json
from sweeprof.targets import instantiate

DECODING_S = 3600.0
"""How long a split may take to be decoded before the trials; of one that takes longer, each trial decodes within its own limit."""
log = logging.getLogger(__name__)


def prepare_data(configs: Sequence[Json], logs: Path) -> None:
    """Decode what is not yet in this host's cache; errors are left to the trials, which decode again and report them.

    Args:
        configs: of the combinations that will be measured.
        logs: folder for the log.
    """
    wanted = [(config["dataset"], split) for config in configs for split in _splits(config)]
    questions = list({json.dumps(one, sort_keys=True, default=str): one for one in wanted}.values())
    run_name()  # so that all trials have it
    if not questions:
        return
    output = logs / "data.log"
    child: Child | None = None
    try:
        for dataset, split in questions:
            if child is None:
                child = Child("sweeprof.run.prepare_data:prepared", [], child_environment({}), output, answers=True)
            try:
                child.ask({"dataset": dataset, "split": split}, DECODING_S)
            except WorkerError as error:
                log.warning("decoding the %s split of %s before its trials: %s", split, dataset.get("_target_"), error)
                child.kill()
                child.close()
                child = None  # the next dataset has a new process
    finally:
        if child is not None:
            child.close()
        with suppress(FileNotFoundError):  # another shard of the sweep was faster
            if not output.stat().st_size:
                output.unlink()


def _splits(config: Json) -> tuple[str, ...]:
    """Return the splits that are measured, of a dataset that is decoded before."""
    if not config["dataset"].get("prepare"):
        return ()
    is_calibrated = config["backend"].get("precision") == "int8"  # on the training split
    return ("test", "train") if is_calibrated else ("test",)


def prepared(question: Json) -> Json:
    """Decode a split in the child process."""
    with suppress(Exception):  # of the user's code, which the trials report
        instantiate(question["dataset"]).prepare(question["split"])
    return {}
