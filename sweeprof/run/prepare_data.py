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
    wanted: dict[str, Json] = {}
    for config in configs:
        if config["dataset"].get("prepare"):
            splits = ["test"]
            if config["backend"].get("precision") == "int8":  # which is calibrated on the training split
                splits.append("train")
            for split in splits:
                question = {"dataset": config["dataset"], "split": split}
                wanted[json.dumps(question, sort_keys=True, default=str)] = question
    run_name()  # so that all trials have it
    if not wanted:
        return
    output = logs / "data.log"
    child: Child | None = None
    try:
        for question in wanted.values():
            if child is None:
                child = Child("sweeprof.run.prepare_data:prepared", [], child_environment({}), output, answers=True)
            try:
                child.ask(question, DECODING_S)
            except WorkerError as error:
                target = question["dataset"].get("_target_")
                log.warning("decoding the %s split of %s before its trials: %s", question["split"], target, error)
                child.kill()
                child.close()
                child = None  # the next dataset has a new process
    finally:
        if child is not None:
            child.close()
        with suppress(FileNotFoundError):  # another shard of the sweep was faster
            if not output.stat().st_size:
                output.unlink()


def prepared(question: Json) -> Json:
    """Decode a split in the child process."""
    with suppress(Exception):  # of the user's code, which the trials report
        instantiate(question["dataset"]).prepare(question["split"])
    return {}
