"""The driver alone writes to MLflow; a real server."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.clustered import Clustered
from support.sent import runs
from support.servers import MlflowServer
from support.slurm import Lab
from sweeprof.results.files import read_json

HELD = 3


@pytest.fixture
def uri(tmp_path: Path) -> Iterator[str]:
    with MlflowServer(tmp_path / "server") as server:
        yield server.url


@pytest.fixture
def sweep(slurm: Lab, tmp_path: Path, uri: str) -> Iterator[Clustered]:
    made = Clustered(slurm, tmp_path, more=("tracking=mlflow", f"tracking.uri={uri}"))
    yield made
    made.end()


def combinations(sweep: Clustered, uri: str) -> dict[int, str]:
    """The status of each combination's run, by its number."""
    found = runs(uri, read_json(sweep.folder / "plan.json")["sweep_id"])
    own = [run for run in found if run.data.tags.get("sweeprof.kind") == "combination"]
    assert max(Counter(run.data.tags["sweeprof.combination_id"] for run in own).values(), default=1) == 1
    return {int(run.data.params["model.fake.number"]): run.info.status for run in own}


def test_the_driver_writes(sweep: Clustered, uri: str) -> None:
    sweep.touch(f"hold-{HELD}")
    driver = sweep.start()
    sweep.until(lambda: sweep.begun(HELD) and sum(sweep.measured().values()) == 5, "all but one to be measured")
    assert combinations(sweep, uri) == {}
    sweep.remove(f"hold-{HELD}")
    assert driver.wait(90) == 0
    assert sweep.flaws() == []
    assert combinations(sweep, uri) == dict.fromkeys(range(6), "FINISHED")
    found = runs(uri, read_json(sweep.folder / "plan.json")["sweep_id"])
    (parent,) = [run for run in found if run.data.tags.get("sweeprof.kind") == "sweep"]
    assert parent.info.status == "FINISHED"


def test_a_sweep_whose_driver_was_killed_is_sent_when_it_is_collected(sweep: Clustered, uri: str) -> None:
    sweep.leave()
    sweep.until(lambda: sum(sweep.measured().values()) == 6 and not sweep.lab.jobs("x"), "all to be measured")
    assert combinations(sweep, uri) == {}
    late = sweep.collect("--wait")
    assert late.code == 0, late.out + late.err
    assert combinations(sweep, uri) == dict.fromkeys(range(6), "FINISHED")
