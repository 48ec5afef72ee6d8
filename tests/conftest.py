"""Options and fixtures that all tests share."""

from __future__ import annotations

import copy
import gc
import json
import os
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hydra._internal.sources_registry import SourcesRegistry
from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult, ConfigSource

from support.distribution import pytest_testnodedown, pytest_xdist_make_scheduler  # noqa: F401  # hooks of pytest
from support.forked import Sources, sources
from sweeprof.paths import conf_folder

GOLDEN = Path(__file__).parent / "golden"
MANY_MODULES = 200
_exempt_modules = 0
"""How many modules were imported when their objects were exempted."""


def pytest_configure() -> None:
    """Handle the signals that the caller ignores, so that the processes which tests start do not inherit that.

    ``nohup make test &`` ignores SIGINT and SIGHUP. A new process has the default action of a signal that its parent handles.
    """
    _parse_packaged_configs_once()
    _share_what_jax_compiles()
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]  # OpenVINO, imported by a test, sends nothing
    gc.disable()  # until all is collected: importing the frameworks sets off full collections, which take seconds and free nothing
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGHUP, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)  # the tests themselves go on, as the caller wants


def pytest_unconfigure() -> None:
    """Remove what the run has compiled."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        shutil.rmtree(os.environ.pop("JAX_COMPILATION_CACHE_DIR"), ignore_errors=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--overwrite", action="store_true", help="write the golden files anew instead of comparing with them"
    )


def _share_what_jax_compiles() -> None:
    """Let the processes of this run share what XLA compiles: functions for random weights, for example, are the same in all."""
    if "PYTEST_XDIST_WORKER" not in os.environ:  # workers have the environment of the process that starts them
        os.environ["JAX_COMPILATION_CACHE_DIR"] = tempfile.mkdtemp(prefix="jax-")
        os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
        os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"


def _parse_packaged_configs_once() -> None:
    """Have Hydra keep what it reads below conf/ and of its own configs, and give each composition a copy.

    With its schemas, of which it copies those that it uses once more, it then does not copy all of them for each composition.
    """
    Plugins.instance()  # which imports the modules of the sources anew
    ConfigStore.__deepcopy__ = lambda self, _: self  # type: ignore[attr-defined]
    for scheme, packaged in (("file", str(conf_folder())), ("pkg", "hydra.conf")):
        _keep_configs(SourcesRegistry.instance().resolve(scheme), packaged)


def _keep_configs(source: type[ConfigSource], packaged: str) -> None:
    """Have a kind of source parse each file of the folder or package ``packaged`` once."""
    read = source.load_config
    kept: dict[tuple[str, str], ConfigResult] = {}

    def load_config(self: ConfigSource, config_path: str) -> ConfigResult:
        if self.path != packaged:
            return read(self, config_path)
        key = (self.provider, config_path)
        if key not in kept:
            kept[key] = read(self, config_path)
        return copy.deepcopy(kept[key])

    source.load_config = load_config  # type: ignore[method-assign]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave the rows of a table after the first to the night, where the test is marked ``slow(rows=1)``."""
    seen: Counter[str] = Counter()
    for item in items:
        mark = item.get_closest_marker("slow")
        if mark is not None and mark.kwargs:
            test = item.nodeid.partition("[")[0]
            seen[test] += 1
            if seen[test] > mark.kwargs["rows"]:
                item.add_marker(pytest.mark.thorough)


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


@pytest.fixture(scope="session")
def forks() -> Iterator[Sources]:
    """Stands for processes of sweeprof that import frameworks."""
    with sources() as made:
        yield made


@pytest.fixture
def converted_in_forks(forks: Sources, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has models converted by forks of a process that imports the frameworks once."""
    from sweeprof import processes

    monkeypatch.setattr(processes, "subprocess", forks)


@pytest.fixture
def measured_in_forks(forks: Sources, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has the fork servers, probes and trackers of sweeps that this process drives forked by ones that import frameworks once."""
    from sweeprof import processes

    monkeypatch.setattr(processes, "subprocess", forks)


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
