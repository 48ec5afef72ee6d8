"""The faults of test_faults.py on a real Ray of three nodes: each ends in the right status, nothing is measured twice."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.clustered import Clustered
from support.command import run_command
from support.ray_lab import RayLab

pytestmark = pytest.mark.timeout(400)
HELD = 3
"""A combination in the middle: of 6 in 3 tasks the second of the second."""


@pytest.fixture(scope="module")
def lab() -> Iterator[RayLab]:
    """The cluster."""
    pytest.importorskip("ray", reason="ray is not installed: make ray")
    made = RayLab()
    try:
        yield made
    finally:
        made.stop()


@pytest.fixture
def sweep(lab: RayLab, tmp_path: Path) -> Iterator[Clustered[RayLab]]:
    """A sweep that waits, fails and takes memory as files in its folder specify."""
    made = Clustered(lab, tmp_path)
    yield made
    made.end()


@pytest.fixture(autouse=True)
def idle_afterwards(lab: RayLab) -> Iterator[None]:
    """Every test finds all nodes; Slurm is not needed here."""
    yield
    lab.revive()


def zone_of(lab: RayLab, sweep: Clustered[RayLab], number: int) -> str:
    """Return the zone of the node that runs the task of a combination."""
    name, _, place = sweep.task_of(number).rpartition("_")
    note = sweep.jobs.note(name.rpartition("-")[2], int(place))
    assert note is not None
    return lab.zone(note.node)


def test_combinations_run_where_they_fit_and_compared_ones_stay_together(lab: RayLab, tmp_path: Path) -> None:
    ran = run_command(
        tmp_path,
        *("model=fake", "backend=fake", "dataset=synthetic", "tracking=none", "metrics=static"),
        *lab.arguments,
        *("batch_size=1,2,3", "model.fake.params=10,20", "compare.baseline={model.fake.params: 10}"),
        "cluster.options={label_selector: {zone: a}}",
    )
    assert ran.code == 0, ran.out + ran.err
    zones: dict[int, set[str]] = {}
    nodes: dict[str, str] = {}
    for path in ran.folder("adhoc").glob("records/*/*.json"):
        record = json.loads(path.read_text())
        scheduler = record["environment"]["scheduler"]
        assert scheduler["name"] == "ray"
        zones.setdefault(record["axes"]["batch_size"], set()).add(lab.zone(scheduler["node"]))
        nodes[record["combination_id"]] = scheduler["node"]
    assert zones == {1: {"a"}, 2: {"a"}, 3: {"a"}}
    rows = json.loads((ran.folder("adhoc") / "comparison.json").read_text())["rows"]
    assert len(rows) == 6
    assert all(nodes[row["combination_id"]] == nodes[row["baseline_id"]] for row in rows)
    assert "Ray job" in ran.err


@pytest.mark.slow
def test_a_task_that_is_killed(sweep: Clustered[RayLab], lab: RayLab) -> None:
    driver = sweep.held(HELD)
    task = sweep.task_of(HELD)
    lab.kill_task(task)
    out, err = driver.communicate(timeout=150)
    assert driver.returncode == 2, err
    assert sweep.statuses() == {0: "ok", 1: "ok", 2: "ok", 3: "lost", 4: "ok", 5: "ok"}
    assert f"analysis: job {task} on " in out
    assert "was cancelled while it was measured" in sweep.table()["reason"][HELD]
    sweep.resume_without(f"hold-{HELD}")


@pytest.mark.slow
def test_a_task_that_is_killed_while_it_waits(sweep: Clustered[RayLab], lab: RayLab) -> None:
    sweep.more = ("cluster.options={resources: {fast_disk: 1}}",)
    driver = sweep.held(0, others=())
    lab.kill_task(sweep.task_of(HELD))
    sweep.remove("hold-0")
    assert driver.wait(150) == 2
    assert sweep.statuses() == {0: "ok", 1: "ok", 2: "skipped", 3: "skipped", 4: "ok", 5: "ok"}
    assert "was cancelled before it was measured" in sweep.table()["reason"][HELD]
    sweep.resume_without()


def test_the_driver_is_killed_and_started_again_while_tasks_run(sweep: Clustered[RayLab]) -> None:
    driver = sweep.held(HELD)
    driver.kill()
    driver.communicate()
    again = sweep.start_resuming()
    sweep.until(lambda: "1 running" in sweep.jobs.queue(), "the second driver to see the task of the first")
    sweep.remove(f"hold-{HELD}")
    assert again.wait(150) == 0
    assert sweep.flaws() == []
    assert len(sweep.jobs.all()) == 1  # nothing was submitted again


@pytest.mark.slow
def test_ctrl_c_kills_the_tasks(sweep: Clustered[RayLab]) -> None:
    sweep.more = ("cluster.options={resources: {fast_disk: 1}}",)  # one after the other
    driver = sweep.held(1, others=[0])
    code, printed = sweep.interrupt(driver)
    assert code == 130, printed
    assert "interrupted" in printed
    assert sweep.jobs.queue() == ""
    assert sweep.statuses()[5] == "skipped"
    sweep.resume_without("hold-1")


@pytest.mark.slow
@pytest.mark.parametrize("restarts", [1, pytest.param(0, marks=pytest.mark.slow)])
def test_a_node_dies(sweep: Clustered[RayLab], lab: RayLab, restarts: int) -> None:
    """Ray starts the actor again; if it may not, the driver submits a further task."""
    sweep.more = (f"cluster.options={{max_restarts: {restarts}}}",)
    driver = sweep.held(HELD)
    first, zone = sweep.task_of(HELD), zone_of(lab, sweep, HELD)
    lab.kill_node(zone)
    sweep.remove(f"hold-{HELD}")
    assert driver.wait(200) == 0
    assert sweep.flaws() == []
    places = {r["axes"]["model.fake.number"]: r["environment"]["scheduler"] for r in sweep.records()}
    assert lab.zone(places[HELD]["node"]) != zone
    assert places[HELD]["restarts"] == restarts
    assert (sweep.task_of(HELD) == first) == (restarts == 1)


@pytest.mark.slow
def test_a_node_dies_without_a_driver(sweep: Clustered[RayLab], lab: RayLab) -> None:
    driver = sweep.held(HELD)
    driver.kill()
    driver.communicate()
    lab.kill_node(zone_of(lab, sweep, HELD))
    sweep.remove(f"hold-{HELD}")
    sweep.until(lambda: sweep.recorded() == set(range(sweep.count)), "Ray to start the task again")
    sweep.resume_without()


@pytest.mark.slow
def test_a_task_that_cannot_begin(sweep: Clustered[RayLab]) -> None:
    ran = sweep.run("cluster.setup=['echo no such module >&2; exit 3']")
    assert ran.code == 2
    assert set(sweep.statuses().values()) == {"skipped"}
    assert all("failed: no such module before it was measured" in reason for reason in sweep.table()["reason"])
    assert len(sweep.jobs.all()) == 1


@pytest.mark.slow
def test_what_ray_refuses(sweep: Clustered[RayLab]) -> None:
    ran = sweep.run("cluster.options={num_gpus: many}")
    assert ran.code == 2
    assert "Ray: " in ran.err
    assert "the launcher failed" in ran.err
    assert "num_gpus" in ran.err


@pytest.mark.slow
def test_what_fits_no_node_says_so(sweep: Clustered[RayLab]) -> None:
    sweep.more = ("cluster.cpus=8", "cluster.options={label_selector: {zone: z}}")
    driver = sweep.start()
    sweep.until(lambda: "3 pending (no node has CPU=8, zone=z)" in sweep.jobs.queue(), "the reason")
    code, _ = sweep.interrupt(driver)
    assert code == 130


@pytest.mark.slow
def test_no_cluster(sweep: Clustered[RayLab]) -> None:
    ran = sweep.run("cluster.address=127.0.0.1:1")
    assert ran.code == 2
    assert "Ray: no cluster answers" in ran.err
