"""Whatever happens to jobs, on the real Slurm: each ends in the right status and is resumed, nothing is measured twice."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from support.clustered import Clustered
from support.command import run_command
from support.processes import left_after
from support.sent import runs
from support.servers import MlflowServer
from support.slurm import Lab
from sweeprof.results.files import read_json
from sweeprof.storage import Jobs

HELD = 3
"""A combination in the middle: of 6 in 3 tasks the second of the second."""


def test_a_sweep_over_three_nodes(sweep: Clustered) -> None:
    ran = sweep.run()
    assert ran.code == 0, ran.out + ran.err
    assert sweep.flaws() == []
    places = [record["environment"]["scheduler"] for record in sweep.records()]
    (submission,) = sweep.jobs.all()
    assert {place["job"] for place in places} == {f"{submission.job}_{n}" for n in range(3)}
    assert {place["node"] for place in places} <= {"n1", "n2", "n3"}
    assert all(
        record["environment"]["host"] == record["environment"]["scheduler"]["node"] for record in sweep.records()
    )
    assert "Slurm job" in ran.err  # what the queue says


@pytest.mark.slow
def test_scancel_of_one_task(sweep: Clustered) -> None:
    head = sweep.held(HELD)
    task = sweep.task_of(HELD)
    sweep.lab.scancel(task)
    out, _ = head.communicate(timeout=60)
    assert head.returncode == 2
    assert sweep.statuses() == {0: "ok", 1: "ok", 2: "ok", 3: "lost", 4: "ok", 5: "ok"}
    assert f"analysis: job {task} on " in out
    assert "was cancelled while it was measured" in sweep.table()["reason"][HELD]
    sweep.resume_without(f"hold-{HELD}")


def test_scancel_of_a_task_that_waits(sweep: Clustered) -> None:
    sweep.more = ("cluster.parallel=1",)
    head = sweep.held(0, others=())
    sweep.lab.scancel(sweep.task_of(HELD))
    sweep.remove("hold-0")
    assert head.wait(60) == 2
    assert sweep.statuses() == {0: "ok", 1: "ok", 2: "skipped", 3: "skipped", 4: "ok", 5: "ok"}
    assert "was cancelled while it waited before it was measured" in sweep.table()["reason"][HELD]
    sweep.resume_without()


def test_the_driver_is_killed_and_restarted_while_jobs_run(sweep: Clustered) -> None:
    head = sweep.held(HELD)
    head.kill()
    head.communicate()
    again = sweep.start_resuming()
    sweep.until(lambda: "1 running" in sweep.jobs.queue(), "the second head to see the job of the first")
    sweep.remove(f"hold-{HELD}")
    assert again.wait(60) == 0
    assert sweep.flaws() == []
    assert len(sweep.jobs.all()) == 1  # nothing was submitted again


@pytest.mark.parametrize(
    "more",
    [["batch_size=2"], *(pytest.param([word], marks=pytest.mark.slow) for word in ("cluster=none", "shards=2"))],
)
def test_a_sweep_whose_jobs_run_is_not_resumed_in_another_way(sweep: Clustered, more: list[str]) -> None:
    head = sweep.held(HELD)
    head.kill()
    head.communicate()
    refused = sweep.resume("cluster.poll_s=0.5", "cluster=slurm", *more) if "shards=2" in more else sweep.resume(*more)
    assert refused.code == 1
    job = sweep.task_of(HELD).partition("_")[0]
    assert f"is being measured by job {job} of Slurm" in refused.err or "has no results that belong" in refused.err
    sweep.resume_without(f"hold-{HELD}")


def test_ctrl_c_cancels_the_array(sweep: Clustered) -> None:
    sweep.more = ("cluster.parallel=2",)
    head = sweep.held(0, HELD, others=[2])
    code, printed = sweep.interrupt(head)
    assert code == 130
    assert "interrupted" in printed
    assert set(sweep.tasks().values()) <= {"CANCELLED", "COMPLETED"}
    assert sweep.statuses()[5] == "skipped"
    sweep.resume_without("hold-0", f"hold-{HELD}")


@pytest.mark.parametrize("how", [pytest.param("requeue", marks=pytest.mark.slow), "preemption"])
def test_a_requeued_job_resumes(sweep: Clustered, how: str) -> None:
    head = sweep.held(HELD)
    task = sweep.task_of(HELD)
    if how == "requeue":
        sweep.lab.scontrol("requeue", task)
    else:
        sweep.lab.sbatch("sleep 1", "--partition=high", "--nodes=3", "--exclusive", cwd=sweep.cwd)
    sweep.until(lambda: sweep.lab.states(task)[task] == "PENDING", "the task to wait again")
    sweep.remove(f"hold-{HELD}")
    assert head.wait(60) == 0
    assert sweep.flaws() == []
    restarts = {r["axes"]["model.fake.number"]: r["environment"]["scheduler"]["restarts"] for r in sweep.records()}
    assert restarts[HELD] == 1
    assert restarts[HELD - 1] == 0


def test_a_node_dies(sweep: Clustered) -> None:
    head = sweep.held(HELD)
    task = sweep.task_of(HELD)
    node = sweep.lab.details(task)["BatchHost"]
    sweep.lab.kill_node(node)
    sweep.remove(f"hold-{HELD}")
    assert head.wait(120) == 0
    assert sweep.flaws() == []
    (record,) = [r for r in sweep.records() if r["axes"]["model.fake.number"] == HELD]
    assert record["environment"]["scheduler"]["node"] != node


def test_a_combination_that_takes_too_much_memory_loses_nothing_but_itself(sweep: Clustered) -> None:
    sweep.touch("eat-2")
    ran = sweep.run()
    assert ran.code == 2
    assert sweep.statuses() == {0: "ok", 1: "ok", 2: "oom", 3: "ok", 4: "ok", 5: "ok"}
    assert "ran out of memory while it was measured" in sweep.table()["reason"][2]
    assert len(sweep.jobs.all()) == 2  # the rest of its shard
    sweep.resume_without("eat-2")


@pytest.mark.slow
def test_the_time_limit_ends_a_job(sweep: Clustered) -> None:
    sweep.more = ("cluster.options={no-requeue: true}",)
    head = sweep.held(HELD)
    first = sweep.task_of(HELD)
    sweep.lab.scontrol("update", f"job={first}", "EndTime=now+2")
    sweep.until(lambda: sweep.lab.states(first)[first] == "TIMEOUT", "the time limit", 100)
    sweep.until(lambda: sweep.task_of(HELD) != first, "a further task for the rest")
    sweep.remove(f"hold-{HELD}")
    assert head.wait(60) == 0
    assert sweep.flaws() == []


def test_a_task_that_cannot_begin(sweep: Clustered) -> None:
    ran = sweep.run("cluster.setup=['echo no such module >&2; exit 3']")
    assert ran.code == 2
    assert set(sweep.statuses().values()) == {"skipped"}
    assert all("failed: no such module before it was measured" in reason for reason in sweep.table()["reason"])
    assert len(sweep.jobs.all()) == 1


def test_what_slurm_refuses(sweep: Clustered) -> None:
    ran = sweep.run("cluster.partition=gpus")
    assert ran.code == 2
    assert "invalid partition specified: gpus" in ran.err
    assert "the launcher failed" in ran.err


def test_without_the_environment(sweep: Clustered, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(sweep.cwd / "lib"))  # where the model is
    (sweep.cwd / "lib").mkdir()
    (sweep.cwd / "lab_models.py").rename(sweep.cwd / "lib" / "lab_models.py")
    ran = sweep.run("cluster.options={export: NONE}")
    assert ran.code == 0, ran.out + ran.err
    assert sweep.flaws() == []


def test_submitted_from_inside_a_job(sweep: Clustered) -> None:
    command = " ".join(
        f"'{word}'" for word in ["python", "-m", "sweeprof", *sweep.arguments, f"limits.locks={sweep.cwd}/l"]
    )
    python = json.dumps(str(Path(sys.executable).parent))
    job = sweep.lab.sbatch(f"PATH={python}:$PATH {command}", "--mem-per-cpu=200M", "--cpus-per-task=2", cwd=sweep.cwd)
    sweep.until(lambda: sweep.lab.states(job)[job] == "COMPLETED", "the job that submits", 90)
    assert sweep.flaws() == []
    (submission,) = sweep.jobs.all()
    assert {r["environment"]["scheduler"]["job"].partition("_")[0] for r in sweep.records()} == {submission.job}


def test_a_sweep_whose_driver_was_killed_is_collected(sweep: Clustered) -> None:
    sweep.touch(f"hold-{HELD}")
    sweep.leave()
    sweep.until(lambda: sweep.begun(HELD) and len(sweep.recorded()) == 5, "a record of everything else")
    early = sweep.collect()
    assert "Collect    sweeprof collect" in early.out
    assert early.code == 4
    assert sweep.statuses() == {0: "ok", 1: "ok", 2: "ok", 3: "skipped", 4: "ok", 5: "ok"}
    assert "it is being measured" in sweep.table()["reason"][HELD]
    sweep.remove(f"hold-{HELD}")
    late = sweep.collect("--wait")
    assert late.code == 0, late.out + late.err
    assert sweep.flaws() == []


# Memory: partitions give 256 MiB per processor


SWEEP = ("model=mlp", "batch_size=1,2,3,4,5,6", "metrics=static", "tracking=none", "dataset=synthetic", "cluster=slurm")
TASKS = ("shards=6", "compare.baseline={}", "cluster.poll_s=0.5")


@pytest.mark.slow
def test_tasks_get_the_memory_that_their_framework_needs(slurm: Lab, tmp_path: Path) -> None:
    ran = run_command(tmp_path, *SWEEP, "cluster.poll_s=0.5", "batch_size=1")
    assert ran.code == 0, ran.out + ran.err
    (submission,) = Jobs(ran.folder("adhoc")).all()
    assert slurm.details(f"{submission.job}_0")["MinMemoryNode"] == "1.50G"


@pytest.mark.slow
def test_too_little_memory_stops_the_sweep_with_the_key(slurm: Lab, tmp_path: Path) -> None:
    ran = run_command(tmp_path, *SWEEP, *TASKS, "cluster.memory=150MiB", "cluster.parallel=1")
    assert ran.code == 2, ran.out + ran.err
    folder = ran.folder("adhoc")
    assert "3 tasks in a row ran out of memory before they measured anything" in ran.err
    assert "such as cluster.memory=1GiB, and resume" in ran.err
    table = pd.read_csv(folder / "comparison.csv")
    assert set(table["status"]) <= {"oom", "skipped"}
    assert table["reason"].str.contains("ran out of memory").all()
    assert len(Jobs(folder).all()) <= 3  # not a task for each trial
    again = run_command(tmp_path, "resume=last", "cluster=slurm", "cluster.memory=1GiB", "cluster.poll_s=0.5")
    assert again.code == 0, again.out + again.err


@pytest.mark.slow
def test_the_rows_of_a_server_are_in_one_task(slurm: Lab, tmp_path: Path) -> None:
    for folder in "ab":
        (tmp_path / folder).mkdir()
    ran = run_command(
        tmp_path,
        *("backend=command", "tracking=none", "protocol=short", "protocol.rounds=1", "protocol.min_samples=1"),
        "backend.command=['{python}', -c, 'import urllib.request as u; u.urlopen(\"http://localhost:{port}\")', '{args.n}']",
        "backend.server={command: ['{python}', -m, http.server, '{port}', -d, '{args.folder}'], ready: {port: '{port}'}}",
        *("args.n=1,2", f"args.folder={tmp_path}/a,{tmp_path}/b", "compare.baseline={}"),
        *("cluster=slurm", "cluster.poll_s=0.5", "shards=2"),
    )
    assert [row["status"] for row in ran.rows()] == ["ok"] * 4
    plan = json.loads((ran.folder("adhoc") / "plan.json").read_text())
    served = {combination["id"]: combination["axes"]["args.folder"] for combination in plan["combinations"]}
    assert sorted(sorted({served[id] for id in shard}) for shard in plan["shards"]) == [
        [f"{tmp_path}/a"],
        [f"{tmp_path}/b"],
    ]
    assert left_after(tmp_path, 15) == []


# The driver alone writes to MLflow


@pytest.fixture
def uri(tmp_path: Path) -> Iterator[str]:
    with MlflowServer(tmp_path / "server") as server:
        yield server.url


@pytest.fixture
def tracked(slurm: Lab, tmp_path: Path, uri: str) -> Iterator[Clustered]:
    made = Clustered(slurm, tmp_path, more=("tracking=mlflow", f"tracking.uri={uri}"))
    yield made
    made.end()


def combinations(tracked: Clustered, uri: str) -> dict[int, str]:
    """The status of each combination's run, by its number."""
    found = runs(uri, read_json(tracked.folder / "plan.json")["sweep_id"])
    own = [run for run in found if run.data.tags.get("sweeprof.kind") == "combination"]
    assert max(Counter(run.data.tags["sweeprof.combination_id"] for run in own).values(), default=1) == 1
    return {int(run.data.params["model.fake.number"]): run.info.status for run in own}


@pytest.mark.slow
def test_the_driver_writes(tracked: Clustered, uri: str) -> None:
    tracked.touch(f"hold-{HELD}")
    driver = tracked.start()
    tracked.until(lambda: tracked.begun(HELD) and sum(tracked.measured().values()) == 5, "all but one to be measured")
    tracked.remove(f"hold-{HELD}")
    assert driver.wait(90) == 0
    assert tracked.flaws() == []
    assert combinations(tracked, uri) == dict.fromkeys(range(6), "FINISHED")
    found = runs(uri, read_json(tracked.folder / "plan.json")["sweep_id"])
    (parent,) = [run for run in found if run.data.tags.get("sweeprof.kind") == "sweep"]
    assert parent.info.status == "FINISHED"


def test_a_sweep_whose_driver_was_killed_is_sent_when_it_is_collected(tracked: Clustered, uri: str) -> None:
    tracked.leave()
    tracked.until(lambda: sum(tracked.measured().values()) == 6 and not tracked.lab.jobs("x"), "all to be measured")
    assert combinations(tracked, uri) == {}
    late = tracked.collect("--wait")
    assert late.code == 0, late.out + late.err
    assert combinations(tracked, uri) == dict.fromkeys(range(6), "FINISHED")
