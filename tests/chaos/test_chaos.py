"""Sweeps under random kills of every kind of process, resumed until they are complete: the table is that of a sweep without kills.

``CHAOS_SEEDS=20`` (``make chaos``) runs that many seeds; one is run otherwise.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import pytest

from support.command import run_command, running_command, start_command, wait_for
from support.processes import Kind, left_after, of_kind, processes
from sweeprof.report.answer import answer
from sweeprof.results.compared_rows import Comparison

SEEDS = int(os.environ.get("CHAOS_SEEDS", "1"))
DISTURBED = 3
"""Runs with kills, before one without."""
MOST_KILLS = 3
"""Per run."""
KINDS: tuple[Kind, ...] = ("driver", "shard", "fork_server", "worker", "worker", "tracker")

SWEEP = """
name: chaos
axes:
  model: [fake, lenet5]
  backend: [fake, torch]
  batch_size: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]
exclude:
  - {model: fake, backend: torch}
  - {model: lenet5, backend: fake}
  - {model: lenet5, batch_size: [4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]}
compare: {baseline: {batch_size: 1}}
metrics: {select: [latency/forward, compute/macs, params/total, quality/accuracy, quality/agreement]}
protocol: {rounds: 2, warmup_s: 0, warmup_steps: 0, sample_s: 0, min_s: 0, min_samples: 3}
"""
TRIALS = 18 * 4
"""Fifteen fake combinations and three real ones: analysis, quality, two rounds of timing."""


def options(seed: int) -> list[str]:
    """Every kind of process has its seeds: MLflow's at every fourth, shards of their own at every other."""
    joblib = ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "shards=2"] if seed % 2 else []
    tracking = [] if seed % 4 == 3 else ["tracking=none"]
    return [*joblib, *tracking]


def arguments(cwd: Path, seed: int) -> list[str]:
    (cwd / "conf" / "sweep").mkdir(parents=True, exist_ok=True)
    (cwd / "conf" / "sweep" / "chaos.yaml").write_text(f"# @package _global_\n{SWEEP}")
    history = [] if "tracking=none" in options(seed) else ["tracking.history=true"]
    return ["--config-dir", str(cwd / "conf"), "+sweep=chaos", *options(seed), *history]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    cwd = tmp_path_factory.mktemp("undisturbed")
    ran = run_command(cwd, *arguments(cwd, 0))
    assert ran.code == 0, ran.err
    return table(ran.folder("chaos"))


def table(folder: Path) -> pd.DataFrame:
    """The final comparison without what real time decides."""
    found = pd.read_csv(folder / "comparison.csv")
    real = found["backend"] == "torch"
    for name in map(str, found.columns):
        if name.startswith("latency/"):
            found[name] = found[name].mask(real)
    return found.drop(columns=["command", "wall_s", "pareto"], errors="ignore")


@pytest.mark.thorough
@pytest.mark.timeout(280)
@pytest.mark.parametrize("seed", range(1, SEEDS + 1))
def test_the_final_table_is_that_of_a_sweep_without_kills(tmp_path: Path, undisturbed: pd.DataFrame, seed: int) -> None:
    chance = random.Random(seed)
    killed: Counter[str] = Counter()
    resuming = ["resume=last", *options(seed)]
    for run in range(DISTURBED):
        started = any(tmp_path.glob("outputs/chaos/*/plan.json"))
        process = start_command(tmp_path, *(resuming if started else arguments(tmp_path, seed)))
        killed += disturb(tmp_path, process, chance, last=run == DISTURBED - 1)
        assert process.returncode in (0, 2, -signal.SIGKILL), process.communicate()
        assert left_after(tmp_path, 15) == [], f"after run {run}"
    ran = run_command(tmp_path, *resuming)
    assert ran.code == 0, (ran.out, ran.err)
    assert "Traceback" not in ran.out + ran.err
    assert left_after(tmp_path, 15) == []
    folder = ran.folder("chaos")
    pd.testing.assert_frame_equal(table(folder), undisturbed)
    check_records(folder)
    if "tracking=none" not in resuming:
        check_runs(tmp_path)
    print(f"seed {seed}: killed {dict(killed)}; {ran.err.strip().splitlines()[1]}")


def disturb(home: Path, process: subprocess.Popen[str], chance: random.Random, last: bool) -> Counter[str]:
    """Kill up to :data:`MOST_KILLS` processes, each after some more trials and at a random moment; wait for the end."""
    killed: Counter[str] = Counter()
    for _ in range(chance.randint(1, MOST_KILLS)):
        wait_for_events(home, process, chance.randint(1, 16))
        time.sleep(chance.uniform(0, 0.1))
        kind = chance.choice(KINDS)
        victims = of_kind(home, kind)
        if victims and process.poll() is None:
            with suppress(psutil.NoSuchProcess):
                chance.choice(victims).kill()
                killed[kind] += 1
    if not last and process.poll() is None:  # or there would be nothing left to resume
        wait_for_events(home, process, chance.randint(1, 8))
        time.sleep(chance.uniform(0, 0.1))
        process.kill()
        killed["driver"] += 1
    process.wait(timeout=120)
    end_idle_workers(home)
    process.communicate(timeout=30)
    return killed


def end_idle_workers(home: Path) -> None:
    """End the workers of joblib that had no job yet when the driver was killed: they wait five minutes for one, idle."""
    for process in of_kind(home, "shard"):
        with suppress(psutil.NoSuchProcess):
            if process.num_threads() == 1 and not process.children():
                process.kill()


def wait_for_events(home: Path, process: subprocess.Popen[str], more: int) -> None:
    """Wait until that many trials more have begun or ended, at most until the command ends."""
    before = events(home)
    while process.poll() is None and events(home) < before + more:
        time.sleep(0.01)


def events(home: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in home.glob("outputs/*/*/events/*.jsonl"))


def check_records(folder: Path) -> None:
    """One record per trial, each ok; none that was there was run again; what was set aside had not been ok."""
    paths = sorted(folder.glob("records/*/*.json"))
    assert len(paths) == TRIALS
    begins, keys = begin_times(folder), set()
    for path in paths:
        record = json.loads(path.read_text())
        assert record["status"] == "ok", path
        key = (record["combination_id"], record["pass"], record["round"])
        keys.add(key)
        assert max(begins[key]) <= path.stat().st_mtime, f"{key} was run again"
        aside = sorted((path.parent / "superseded").glob(f"{path.stem}-a*.json"))
        assert record["attempt"] == len(aside)
        assert all(json.loads(one.read_text())["status"] != "ok" for one in aside)
    assert begins.keys() == keys
    assert list(folder.rglob("*.tmp")) == []


def begin_times(folder: Path) -> dict[tuple[str, str, int], list[float]]:
    found: dict[tuple[str, str, int], list[float]] = {}
    ends: Counter[Any] = Counter()
    for path in folder.glob("events/*.jsonl"):
        for line in path.read_text().splitlines():
            event = json.loads(line)
            key = (event["combination_id"], event["pass"], event["round"])
            if event["event"] == "begin":
                found.setdefault(key, []).append(event["time"])
            elif event["event"] == "end" and event["status"] == "ok":
                ends[key] += 1
    assert max(ends.values()) == 1, "a trial ended well twice"
    return found


def check_runs(home: Path) -> None:
    """A run for each combination, one for its history and one for the sweep, none doubled, none left open."""
    with closing(sqlite3.connect(home / "outputs" / "mlflow.db")) as database:
        query = """select t.value, r.status from runs r join tags t on t.run_uuid = r.run_uuid
                   where t.key = ? and r.lifecycle_stage = 'active'"""
        combinations = database.execute(query, ["sweeprof.combination_id"]).fetchall()
        kinds = Counter(kind for kind, _ in database.execute(query, ["sweeprof.kind"]))
    assert kinds == {"combination": 18, "history": 18, "sweep": 1}
    assert len({id for id, _ in combinations}) == 18
    assert {status for _, status in combinations} == {"FINISHED"}


KILLS = 3
ALWAYS = (
    *("model=fake", "backend=fake", "tracking=none", "metrics=latency", "protocol=short"),
    *("model.fake.per_sample_s=0.0001", "model.fake.step_s=0.001,0.002,0.003,0.004"),
)
SEARCH = (
    *("batch_size=doubling(1,64)", "search.maximize=throughput", "search.subject_to=['latency < 5 ms']"),
    *("search.trials=14", "search.sampler=TPESampler"),
)
BUDGET = ("batch_size=1,2,4", "compare.baseline={model.fake.step_s: 0.001}", "budget=10min")


@pytest.mark.slow
@pytest.mark.timeout(280)
@pytest.mark.parametrize("seed", range(1, SEEDS + 1))
@pytest.mark.parametrize(
    "own", [pytest.param(SEARCH, id="search", marks=pytest.mark.thorough), pytest.param(BUDGET, id="budget")]
)
def test_a_killed_sweep_reaches_the_same_answer(tmp_path: Path, own: Sequence[str], seed: int) -> None:
    (tmp_path / "quiet").mkdir()
    quiet = run_command(tmp_path / "quiet", *ALWAYS, *own)
    assert quiet.code == 0, quiet.err
    expected = Comparison.read(quiet.folder("adhoc"))
    home = tmp_path / "killed"
    home.mkdir()
    chance = random.Random(seed)
    for _ in range(KILLS):
        is_begun = any(home.glob("outputs/*/*/plan.json"))
        with running_command(home, *(["resume=last"] if is_begun else [*ALWAYS, *own])) as process:
            wait_for_events(home, process, chance.randint(2, 12))
            time.sleep(chance.uniform(0, 0.1))
        assert left_after(home, 15) == []
    resumed = run_command(home, "resume=last")
    assert resumed.code == 0, (resumed.out, resumed.err)
    found = Comparison.read(resumed.folder("adhoc"))
    assert {row.combination_id for row in found.rows} == {row.combination_id for row in expected.rows}
    assert answer(found).finding == answer(expected).finding
    assert answer(found).counts == answer(expected).counts


SERVER = """
import http.server, os, subprocess, sys

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

# A process in a session of its own, which only its ancestors can be followed to.
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"], start_new_session=True)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
CLIENT = """
import subprocess, sys, urllib.request
urllib.request.urlopen(sys.argv[1]).close()
subprocess.run([sys.executable, "-c", "import time; time.sleep(0.1)"], start_new_session=True, check=True)
"""
ENDED = [
    pytest.param(["driver"], signal.SIGKILL, id="driver-SIGKILL"),
    pytest.param(["driver"], signal.SIGINT, id="driver-SIGINT", marks=pytest.mark.thorough),
    pytest.param(["driver"], signal.SIGTERM, id="driver-SIGTERM", marks=pytest.mark.thorough),
    pytest.param(["driver", "fork_server"], signal.SIGKILL, id="driver-and-fork-server", marks=pytest.mark.thorough),
    pytest.param(["supervisor"], signal.SIGKILL, id="supervisor", marks=pytest.mark.thorough),
    pytest.param(["driver", "supervisor"], signal.SIGTERM, id="a-scheduler-ends-all", marks=pytest.mark.thorough),
    pytest.param(["server.py"], signal.SIGKILL, id="server", marks=pytest.mark.thorough),
    pytest.param(["client.py"], signal.SIGKILL, id="client", marks=pytest.mark.thorough),
]


@pytest.mark.slow
@pytest.mark.parametrize(("victims", "number"), ENDED)
def test_programs_and_servers_end_with_the_sweep(
    tmp_path: Path, victims: Sequence[str], number: signal.Signals
) -> None:
    """Whatever is killed: no process is left, no record is lost, and a resumed sweep is complete."""
    (tmp_path / "server.py").write_text(SERVER)
    (tmp_path / "client.py").write_text(CLIENT)
    words = [
        *(
            "backend=command",
            "tracking=none",
            "protocol=short",
            "protocol.rounds=2",
            "protocol.min_samples=3",
            "protocol.min_s=0",
            "protocol.warmup_s=0",
            "protocol.warmup_steps=1",
        ),
        "backend.command=['{python}', client.py, 'http://127.0.0.1:{port}', '{args.n}']",
        "backend.server={command: ['{python}', server.py, '{port}', '{args.kind}'], ready: {port: '{port}'}}",
        *("args.kind=a,b", "args.n=1,2"),
    ]

    def running(what: str) -> list[psutil.Process]:
        if what in ("driver", "fork_server"):
            return of_kind(tmp_path, "driver" if what == "driver" else "fork_server")
        word = "sweeprof.run.servers:supervise" if what == "supervisor" else what
        found = []
        for process in processes(tmp_path):
            with suppress(psutil.Error):
                if word in process.cmdline():
                    found.append(process)
        return found

    with running_command(tmp_path, *words) as process:
        wait_for_events(tmp_path, process, 5)  # the third trial runs
        wait_for(lambda: running("client.py") and all(map(running, victims)), process)
        killed = [one for victim in victims for one in running(victim)]
        assert killed
        for one in killed:
            one.send_signal(number)
        out, err = process.communicate(timeout=120)
    assert left_after(tmp_path, 15) == []
    records = list(tmp_path.glob("outputs/*/*/records/*/*-r*.json"))
    done = {path: path.stat().st_mtime_ns for path in records if json.loads(path.read_text())["status"] == "ok"}
    assert len(done) >= 2
    if "driver" not in victims:  # the other trials have been measured
        failed = [json.loads(path.read_text())["reason"] for path in records if path not in done]
        assert len(failed) == 1, (failed, out, err)
        assert "was killed by SIGKILL" in failed[0]
        assert ("the server" in failed[0]) == (victims != ["client.py"])
    resumed = run_command(tmp_path, "resume=last", "tracking=none")
    assert [row["status"] for row in resumed.rows()] == ["ok"] * 4
    assert {path: path.stat().st_mtime_ns for path in done} == done
    assert left_after(tmp_path, 15) == []
