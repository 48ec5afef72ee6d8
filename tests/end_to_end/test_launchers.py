"""Shards and sweeps side by side: Hydra's launchers run the same plan, what measures never overlaps, and faults cost little."""

from __future__ import annotations

import itertools
import json
import os
import signal
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from pwd import getpwuid
from typing import Any

import pandas as pd
import pytest

from support.command import FAKE, run_command, running_command, wait_for
from support.plans import read_records
from support.processes import left_after, of_kind, running_trials
from sweeprof.passes.registry import exclusive_passes
from sweeprof.results.record import Record
from sweeprof.run.locks import Holder, HostLock

LAUNCHERS = {"joblib": ["hydra.launcher.n_jobs=2"], "ray": ["hydra.launcher.ray.init.num_cpus=2"], "submitit_local": []}
PACKAGES = {"joblib": "joblib", "ray": "ray", "submitit_local": "submitit"}
HANGS = (
    *(*FAKE, "metrics.select=[compute/macs,quality/agreement]"),
    # What a baseline pairs stays in one shard: each has trials that hang.
    *("model.fake.step_s=0.001,0.002", "model.fake.on_step=hang", "batch_size=1,2", "compare.baseline={batch_size: 1}"),
)
"""Trials that measure nothing of the device: both shards work at once. Each analyzes one combination, then hangs in its quality."""


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.thorough if name == "ray" else ()) for name in LAUNCHERS])
def launcher(request: pytest.FixtureRequest) -> list[str]:
    """The words that choose a launcher."""
    name: str = request.param
    if find_spec(f"hydra_plugins.hydra_{PACKAGES[name]}_launcher") is None:
        pytest.skip(f"hydra-{PACKAGES[name]}-launcher is not installed" + (": make ray" if name == "ray" else ""))
    return [f"hydra/launcher={name}", "shards=2", *LAUNCHERS[name]]


SWEEP = """
axes: {model: [fake, mine], backend: [fake], batch_size: [1, 2]}
compare: {baseline: {batch_size: 1}}
metrics: {select: [params/total, compute/macs, quality/agreement, quality/accuracy, latency/forward, throughput/samples_per_s]}
defaults: [override /tracking: none, override /dataset: synthetic]
"""
MINE = "{name: mine, fake: {_target_: my_net.model}}"
MY_NET = """
import json, os, resource
from pathlib import Path
from sweeprof.backends.fake import FakeModel

def model():
    seen = {
        "nice": os.nice(0),
        "oom": Path("/proc/self/oom_score_adj").read_text(),
        "processors": sorted(os.sched_getaffinity(0)),
        "files": resource.getrlimit(resource.RLIMIT_NOFILE),
        "environment": {k: v for k, v in os.environ.items() if k.endswith("_THREADS") or k.startswith(("CUDA", "KMP", "LD_"))},
    }
    Path("seen.json").write_text(json.dumps(seen))
    return FakeModel(step_s=0.002)
"""
"""A model in the working directory, which looks at the process that a launcher gives it."""


def sweep(cwd: Path, *arguments: str) -> tuple[pd.DataFrame, dict[str, Any]]:
    """The table that a sweep of the user's own leaves, and what its model saw."""
    (cwd / "mine" / "sweep").mkdir(parents=True)
    (cwd / "mine" / "model").mkdir()
    (cwd / "mine" / "sweep" / "own.yaml").write_text(SWEEP)
    (cwd / "mine" / "model" / "mine.yaml").write_text(MINE)
    (cwd / "my_net.py").write_text(MY_NET)
    ran = run_command(cwd, "--config-dir", "mine", "+sweep=own", *arguments)
    assert ran.code == 0, (ran.out, ran.err)
    assert "Warning" not in ran.err
    assert left_after(cwd, 10) == []
    found = pd.read_csv(ran.folder("own") / "comparison.csv")
    found = found.drop(columns=["command", "wall_s", "pareto"], errors="ignore")
    return found, json.loads((cwd / "seen.json").read_text())


@pytest.fixture(scope="module")
def basic(tmp_path_factory: pytest.TempPathFactory) -> tuple[pd.DataFrame, dict[str, Any]]:
    return sweep(tmp_path_factory.mktemp("basic"))


@pytest.mark.slow(rows=1)
def test_the_table_and_the_process_of_a_trial_are_those_of_the_basic_launcher(
    tmp_path: Path, launcher: list[str], basic: tuple[pd.DataFrame, dict[str, Any]]
) -> None:
    table, seen = sweep(tmp_path, *launcher)
    assert set(table["status"]) == {"ok"}
    pd.testing.assert_frame_equal(table, basic[0])
    assert seen == basic[1]
    (events,) = tmp_path.glob("outputs/own/*/events")
    assert {path.name for path in events.iterdir()} == {"shard-0.jsonl", "shard-1.jsonl"}
    waits = [event for event in events_of(tmp_path) if event["event"] == "waiting"]
    assert {event["for"] for event in waits} <= {None}, "of one sweep nothing is said: its other shard is seen at work"


@pytest.mark.slow(rows=1)
def test_no_process_outlives_the_driver(tmp_path: Path, launcher: list[str]) -> None:
    with running_command(tmp_path, *HANGS, *launcher) as process:
        wait_for(lambda: running_trials(tmp_path, "quality") == len(of_kind(tmp_path, "worker")) == 2, process, 150)
        process.kill()
        out, err = process.communicate(timeout=60)
    # Ray's own agents outlive its other processes: they report the end to a service that has ended, too, for up to a minute.
    assert left_after(tmp_path, 90 if "ray" in launcher[0] else 15) == []
    assert "Traceback" not in out + err
    records = [json.loads(path.read_text()) for path in tmp_path.glob("outputs/*/*/records/*/*.json")]
    assert [(record["pass"], record["status"]) for record in records] == [("analysis", "ok")] * 2


QUICK = (
    *(*FAKE, "protocol.min_s=0", "protocol.warmup_s=0", "protocol.rounds=2"),
    "compare.baseline={model.fake.step_s: 0.001}",
)


def events_of(cwd: Path) -> list[dict[str, Any]]:
    files = sorted(cwd.glob("outputs/*/*/events/*.jsonl"))
    return [
        json.loads(line) for file in files for line in file.read_text().splitlines(keepends=True) if line[-1] == "\n"
    ]


def records_of(cwd: Path) -> list[Record]:
    (folder,) = cwd.glob("outputs/*/*/records")
    return read_records(folder)


def assert_alone(records: Sequence[Record]) -> None:
    """No trial that measures ran while any other did."""
    for a, b in itertools.combinations(records, 2):
        if a.pass_name in exclusive_passes() or b.pass_name in exclusive_passes():
            (a_begin, a_end), (b_begin, b_end) = a.environment["ran"], b.environment["ran"]
            assert a_end <= b_begin or b_end <= a_begin, (a.file_name, b.file_name)


def is_waiting(cwd: Path) -> bool:
    return any(event["event"] == "waiting" for event in events_of(cwd))


@pytest.fixture
def homes(tmp_path: Path) -> list[Path]:
    """Two folders to start sweeps in."""
    made = [tmp_path / "a", tmp_path / "b"]
    for home in made:
        home.mkdir()
    return made


@pytest.mark.slow
def test_two_sweeps_from_two_shells_take_turns_and_say_whom_they_wait_for(homes: list[Path], tmp_path: Path) -> None:
    steps = "model.fake.step_s=0.001,0.002,0.003,0.004"
    metrics = "metrics.select=[latency/forward,quality/accuracy]"
    command = (*QUICK, steps, metrics, f"limits.locks={tmp_path / 'locks'}")
    neighbour = HostLock(Holder(os.getpid(), "neighbour", "s0", "elsewhere"), tmp_path / "locks")
    with running_command(homes[0], *command) as a, running_command(homes[1], *command) as b:
        with neighbour.taken(True):
            wait_for(lambda: is_waiting(homes[0]), a)
            wait_for(lambda: is_waiting(homes[1]), b)
            time.sleep(1.5)  # the display looks once a second
        said = [process.communicate(timeout=120)[1] for process in (a, b)]
    assert (a.returncode, b.returncode) == (0, 0), said
    for text in said:
        assert f"waiting for sweep elsewhere (s0) of user {getpwuid(os.geteuid()).pw_name}, pid {os.getpid()}" in text
    first, second = map(records_of, homes)
    assert len(first) == len(second) == 4 * 3
    assert {record.status for record in (*first, *second)} == {"ok"}
    assert_alone([*first, *second])
    measured = [[r.environment["ran"][0] for r in records if r.pass_name == "timing"] for records in (first, second)]
    assert max(map(min, measured)) < min(map(max, measured))  # neither had to wait for the whole of the other
    others = [record.environment["others"] for record in first if record.pass_name == "timing"]
    assert all(set(seen) >= {"busy", "top", "load", "throttled", "overheated", "trials"} for seen in others)


@pytest.mark.slow
def test_a_sweep_that_waits_ends_when_it_is_told_to(homes: list[Path], tmp_path: Path) -> None:
    neighbour = HostLock(Holder(os.getpid(), "neighbour", "s0", "elsewhere"), tmp_path / "locks")
    command = (*QUICK, "model.fake.step_s=0.001,0.002", "metrics=static", f"limits.locks={tmp_path / 'locks'}")
    with neighbour.taken(True), running_command(homes[0], *command) as process:
        wait_for(lambda: is_waiting(homes[0]), process)
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
