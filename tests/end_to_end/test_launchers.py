"""Hydra's launchers run the same plan: the same table, processes like any other, and what was measured survives their faults."""

from __future__ import annotations

import json
import os
import signal
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from support.command import run_command, start_command
from support.fatal import ARGUMENTS, measured, write_fatal
from support.processes import left_after, of_kind, running_trials

pytestmark = pytest.mark.slow

LAUNCHERS = {
    "joblib": ["hydra.launcher.n_jobs=2"],
    "ray": ["hydra.launcher.ray.init.num_cpus=2"],
    "submitit_local": [],
}
PACKAGES = {"joblib": "joblib", "ray": "ray", "submitit_local": "submitit"}
HANGS = (
    *(
        "model=fake",
        "backend=fake",
        "dataset=synthetic",
        "tracking=none",
        "metrics.select=[compute/macs,quality/agreement]",
    ),
    # What a baseline pairs stays in one shard: each has trials that hang.
    *("model.fake.step_s=0.001,0.002", "model.fake.on_step=hang", "batch_size=1,2", "compare.baseline={batch_size: 1}"),
)
"""Trials that measure nothing of the device: both shards are at work. Each analyzes one combination, then hangs in its quality."""


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.system if name == "ray" else ()) for name in LAUNCHERS])
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


def test_the_table_and_the_process_of_a_trial_are_those_of_the_basic_launcher(
    tmp_path: Path, launcher: list[str], basic: tuple[pd.DataFrame, dict[str, Any]]
) -> None:
    table, seen = sweep(tmp_path, *launcher)
    assert set(table["status"]) == {"ok"}
    pd.testing.assert_frame_equal(table, basic[0])
    assert seen == basic[1]
    (events,) = tmp_path.glob("outputs/own/*/events")
    assert {path.name for path in events.iterdir()} == {"shard-0.jsonl", "shard-1.jsonl"}


@pytest.mark.thorough
def test_after_a_job_that_was_killed_the_rest_is_measured_by_resume(tmp_path: Path, launcher: list[str]) -> None:
    write_fatal(tmp_path)
    ran = run_command(tmp_path, *ARGUMENTS, *launcher)
    assert ran.code == 2, (ran.out, ran.err)
    assert left_after(tmp_path, 10) == []
    folder = ran.folder("adhoc")
    table = pd.read_csv(folder / "comparison.csv").set_index("model.fake.step_s")
    assert table["status"].to_dict()[0.003] == "lost"
    assert set(table["status"]) <= {"lost", "ok", "skipped"}
    assert "the launcher failed" in ran.err
    (tmp_path / "healed").touch()
    again = run_command(tmp_path, "resume=last")
    assert again.code == 0, (again.out, again.err)
    assert set(pd.read_csv(folder / "comparison.csv")["status"]) == {"ok"}
    assert set(measured(folder).values()) == {1}  # nothing that was measured is measured again


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.thorough), signal.SIGKILL])
def test_no_process_outlives_the_driver(tmp_path: Path, launcher: list[str], number: signal.Signals) -> None:
    process = start_command(tmp_path, *HANGS, *launcher)
    try:
        end = time.monotonic() + 150
        while running_trials(tmp_path, "quality") < 2 or len(of_kind(tmp_path, "worker")) < 2:
            assert process.poll() is None
            assert time.monotonic() < end
            time.sleep(0.1)
        os.kill(process.pid, number)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    # Ray's own agents outlive its other processes: they report the end to a service that has ended, too, for up to a minute.
    assert left_after(tmp_path, 90 if "ray" in launcher[0] else 15) == []
    assert process.returncode == (-number if number == signal.SIGKILL else 130), err
    assert "Traceback" not in out + err
    records = [json.loads(path.read_text()) for path in tmp_path.glob("outputs/*/*/records/*/*.json")]
    assert [(record["pass"], record["status"]) for record in records] == [("analysis", "ok")] * 2
