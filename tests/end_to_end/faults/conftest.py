"""A small sweep that was measured once, copies of it, each a sweep of its own, and a real server to send them to."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.command import call_command
from support.processes import left_after
from support.proxy import Proxy, proxy
from support.sent import LOCKS, METRICS, SENT, SIZES
from support.servers import MlflowServer, isolated
from sweeprof.results.files import read_json, write_json
from sweeprof.tracking import MLFLOW


@pytest.fixture(scope="module", autouse=True)
def _locks() -> None:
    """Nothing is measured here that others on this machine could disturb."""
    Path(LOCKS).mkdir(exist_ok=True)


@pytest.fixture(scope="module", autouse=True)
def _client() -> Iterator[None]:
    """MLflow reads its settings when it is imported."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in isolated(Path("/nonexistent")).items():
            if name.startswith("MLFLOW_"):
                patch.setenv(name, value)
        yield


@pytest.fixture(autouse=True)
def _no_process_is_left(tmp_path: Path) -> Iterator[None]:
    yield
    assert left_after(tmp_path, 10) == []


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a sweep that was sent nowhere."""
    sizes = f"batch_size={','.join(map(str, SIZES))}"
    ran = call_command(tmp_path_factory.mktemp("measured"), *SENT, METRICS, "tracking=none", "isolation=inline", sizes)
    assert ran.code == 0, ran.err
    return ran.folder("adhoc")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MlflowServer]:
    with MlflowServer(tmp_path_factory.mktemp("server")) as found:
        yield found


@pytest.fixture
def front(server: MlflowServer) -> Iterator[Proxy]:
    with proxy(server.url) as found:
        yield found


@pytest.fixture
def sweep(measured: Path, tmp_path: Path) -> Callable[[str], Path]:
    """Copies of the measured sweep, each with an id of its own."""

    def copy(id: str) -> Path:
        folder = tmp_path / "outputs" / "adhoc" / id
        shutil.copytree(measured, folder)
        with_history = {"_target_": MLFLOW, "uri": None, "history": True}
        write_json(folder / "tracking.json", {"config": with_history, "complete": True})
        write_json(folder / "plan.json", {**read_json(folder / "plan.json"), "sweep_id": id})
        return folder

    return copy


@pytest.fixture
def folder(sweep: Callable[[str], Path]) -> Path:
    """One of them."""
    return sweep(uuid.uuid4().hex[:8])
