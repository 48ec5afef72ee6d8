"""A plugin of pytest: which tests a worker of pytest-xdist runs, and what happens to those of a worker that crashes."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from typing import Any

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

ENDING_S = 5.0
"""How long a worker whose connection is lost may take to end."""


class Distribution(LoadFileScheduling):  # type: ignore[misc]
    """Gives a worker whole files; of the suite for backends, whole backends, because one process answers for each."""

    def _split_scope(self, nodeid: str) -> str:
        file, _, name = nodeid.partition("::")
        if not file.startswith("tests/conformance/") or "[" not in name:
            return file
        backend = name.partition("[")[2].rstrip("]").rpartition("-")[2]
        return f"tests/conformance/{backend}"

    def _assign_work_unit(self, node: WorkerController) -> None:
        """Assign the next file, and further ones to a worker with one test: it runs a test only once it knows the one after it.

        xdist assigns further ones when a test has ended, which in a worker that replaces one that crashed may be never.
        """
        super()._assign_work_unit(node)
        if not self.workqueue:
            node.shutdown()  # after the tests that it has
        elif self._pending_of(self.assigned_work[node]) == 1:
            self._assign_work_unit(node)

    def _reschedule(self, node: WorkerController) -> None:
        """Assign further files, but to a worker that is still collecting its tests: it gets some when it knows them.

        xdist 3.8 would fail where two workers replace others, and one of them is ready before the other.
        """
        if node in self.registered_collections:
            super()._reschedule(node)

    def remove_node(self, node: WorkerController) -> str | None:
        """Return the test during which a worker crashed, and leave its other tests to the other workers.

        xdist 3.8 would run the test that crashed again, and wait for ever for files of which all tests have run.
        """
        left = [
            (scope, [test for test, is_complete in unit.items() if not is_complete])
            for scope, unit in self.assigned_work.pop(node).items()
        ]
        left = [(scope, tests) for scope, tests in left if tests]
        if not left:
            return None
        crashed: str = left[0][1].pop(0)
        self.workqueue.update({scope: dict.fromkeys(tests, False) for scope, tests in left if tests})
        for other in self.assigned_work:
            self._reschedule(other)
        return crashed


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Distribution:
    """Return the scheduler that distributes tests over workers."""
    return Distribution(config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Print how a worker that crashed has ended; None if it still runs after a while."""
    if error:
        process = node.gateway._io.popen
        with suppress(subprocess.TimeoutExpired):
            process.wait(ENDING_S)
        print(f"\n{node.gateway.id} ended with exit code {process.poll()}", file=sys.stderr)
