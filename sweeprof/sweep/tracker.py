"""The process that talks to the tracker: one writer, outside the measured time, whose troubles stay its own.

A tracker's library is heavy and global (MLflow: 170 MB and threads), and a server may be slow or hang. In a process of its own
it can be waited for with a limit, and its environment can be set before it is imported.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any

from sweeprof.errors import WorkerError
from sweeprof.profiling.build import instantiate
from sweeprof.results.record import Record
from sweeprof.sweep.child import Child, answer, die_with, inherited_socket, messages
from sweeprof.sweep.finish import comparison_of
from sweeprof.sweep.folder import Folder
from sweeprof.sweep.plan import Plan
from sweeprof.tracking import Ending, Links, SweepInfo, Tracker

OPEN_S = 120.0
"""For making a schema on a slow disk."""
CLOSE_S = 60.0
CLOSE_PER_COMBINATION_S = 2.0
"""Many times what a run costs (MLFLOW.md §2), and still an end."""


class TrackerProcess:
    """The head's side; a context. It never raises for what the tracker does: it says why there is nothing instead."""

    def __init__(self, config: Mapping[str, Any], output: Path, log: Path) -> None:
        self.trouble: str | None = None
        """Why the sweep is not, or not completely, in the tracker."""
        self._config, self._output, self._log = dict(config), output, log
        self._child: Child | None = None

    def __enter__(self) -> TrackerProcess:
        if self._config.get("_target_"):
            module = import_module(self._config["_target_"].rpartition(".")[0])
            variables = {**os.environ, **getattr(module, "ENVIRONMENT", {})}
            self._child = Child("sweeprof.sweep.tracker", [str(os.getpid())], variables, self._log)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._child:
            self._child.close()

    def open(self, plan: Plan) -> Links | None:
        """Make what must exist before anything is measured; None without a tracker, or with trouble."""
        sweep = SweepInfo(
            plan.sweep_id, plan.name, plan.command, plan.created, tuple(plan.axes), len(plan.combinations)
        )
        config = {**self._config, "output": str(self._output)}
        found = self._ask({"open": dataclasses.asdict(sweep), "config": config}, OPEN_S)
        return Links(**found) if found else None

    def close(self, folder: Folder, ending: Ending, missing: str, combinations: int) -> None:
        """Send what the folder holds."""
        message = {"close": str(folder.path), "ending": ending, "missing": missing}
        self._ask(message, CLOSE_S + CLOSE_PER_COMBINATION_S * combinations)

    def _ask(self, message: Mapping[str, Any], timeout_s: float) -> dict[str, Any] | None:
        if self._child is None or self.trouble:
            return None
        try:
            answered = self._child.ask(message, timeout_s)
        except WorkerError as error:
            self.trouble = str(error)
            return None
        self.trouble = answered.get("trouble")
        return answered.get("links")


def _serve() -> None:
    die_with(int(sys.argv[2]))
    connection = inherited_socket()
    tracker: Tracker | None = None
    for message in messages(connection):
        try:
            if "open" in message:
                tracker = instantiate(message["config"])
                info = message["open"]
                links = tracker.open(SweepInfo(**{**info, "axes": tuple(info["axes"])}))
                answer(connection, {"links": dataclasses.asdict(links)})
            elif tracker is not None:
                _close(tracker, Folder(Path(message["close"])), message["ending"], message["missing"])
                answer(connection, {})
        except Exception as error:  # whatever a tracker raises is told, and ends nothing
            answer(connection, {"trouble": f"{type(error).__name__}: {error}"})


def _close(tracker: Tracker, folder: Folder, ending: Ending, missing: str) -> None:
    comparison = comparison_of(folder, missing)
    tracker.close(comparison, list(_outcomes(folder)), folder.path, ending)


def _outcomes(folder: Folder) -> Iterator[Record]:
    """The records without what was seen: of ten thousand combinations that is gigabytes."""
    for combination in folder.read_plan().combinations:
        for record in folder.records_of(combination.id):
            yield dataclasses.replace(
                record, config=combination.config, observations=None, environment={}, traceback=None
            )


if __name__ == "__main__":
    _serve()
