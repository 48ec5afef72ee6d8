"""Options and fixtures that all tests share."""

from __future__ import annotations

import gc
import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

from support.config_files import parse_packaged_configs_once

GOLDEN = Path(__file__).parent / "golden"
MANY_MODULES = 200
_exempt_modules = 0
"""How many modules were imported when their objects were exempted."""


def pytest_configure() -> None:
    """Handle the signals that the caller ignores, so that the processes which tests start do not inherit that.

    ``nohup make test &`` ignores SIGINT and SIGHUP. A new process has the default action of a signal that its parent handles.
    """
    parse_packaged_configs_once()
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]  # OpenVINO, imported by a test, sends nothing
    gc.disable()  # until all is collected: importing the frameworks sets off full collections, which take seconds and free nothing
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGHUP, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)  # the tests themselves go on, as the caller wants


class Distribution(LoadFileScheduling):  # type: ignore[misc]
    """Gives a worker whole files; of the suite for backends, whole backends, because one process answers for each."""

    def _split_scope(self, nodeid: str) -> str:
        file, _, name = nodeid.partition("::")
        if not file.startswith("tests/conformance/") or "[" not in name:
            return file
        backend = name.partition("[")[2].rstrip("]").rpartition("-")[2]
        return f"tests/conformance/{backend}"

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
    """Print how a worker that crashed has ended; None if it still runs."""
    if error:
        print(f"\n{node.gateway.id} ended with exit code {node.gateway._io.popen.poll()}", file=sys.stderr)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--overwrite", action="store_true", help="write the golden files anew instead of comparing with them"
    )


def pytest_collection_finish() -> None:
    _exempt_from_garbage_collection()
    gc.enable()


def pytest_runtest_setup() -> None:
    if len(sys.modules) > _exempt_modules + MANY_MODULES:  # the test before imported a framework, or more of one
        _exempt_from_garbage_collection()


def _exempt_from_garbage_collection() -> None:
    """Freeze the objects of what is imported: passes collect garbage before they measure, which took up to 0.3 s each time."""
    global _exempt_modules  # noqa: PLW0603
    gc.collect()
    gc.freeze()
    _exempt_modules = len(sys.modules)


@pytest.fixture
def described_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has plans describe the inputs of models in this process, which imports their sources once, and not in one of their own."""
    from sweeprof.plan import generated_inputs

    def asked(question: dict[str, Any]) -> Any:
        return json.loads(json.dumps(generated_inputs.answered(json.loads(json.dumps(question)))))

    monkeypatch.setattr(generated_inputs, "asked", asked)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compares a text with the golden file of a name; writes the file when pytest runs with ``--overwrite``."""

    def check(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--overwrite"):
            path.write_text(text, encoding="utf-8")
        assert path.exists(), f"tests/golden/{name} is missing: pytest --overwrite writes it"
        assert text == path.read_text(encoding="utf-8"), (
            f"differs from tests/golden/{name}: pytest --overwrite accepts it"
        )

    return check
