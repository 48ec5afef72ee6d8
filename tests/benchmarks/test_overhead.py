"""What a combination costs outside the measured time, and what a fresh interpreter would cost instead."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import pytest

from support.command import run_command
from support.configs import composed
from support.records import read_records
from sweeprof.plan.plan import environment, preload
from sweeprof.results.record import Record
from sweeprof.run.fork_server import ForkServer
from sweeprof.run.interleave import Request

REPEATS = 10
CHEAPER = 20
"""How many times a fork must be cheaper than importing TensorFlow anew."""


def _fork_s(tmp_path: Path, backend: str) -> float:
    """From asking for a process until it runs, median."""
    config = composed(backend=backend, model="mlp")
    server = ForkServer(preload(config, "analysis"), environment(config), tmp_path / "fork-server.log")
    costs = []
    try:
        for i in range(REPEATS):
            blank = Record("s", f"c{backend}", "analysis", "crashed", round=i, config=config)
            server.run(Request(blank.to_dict(), str(tmp_path), str(tmp_path / "log"), 60, None, time.monotonic()))
        costs = [r.costs["fork"] for r in read_records(tmp_path) if r.combination_id == f"c{backend}"]
    finally:
        server.close()
    assert len(costs) == REPEATS
    return statistics.median(costs)


def _import_s(backend: str) -> float:
    """From starting an interpreter until it has imported what the fork server imports, median of three."""
    config = composed(backend=backend, model="mlp")
    modules = ", ".join(preload(config, "timing"))
    times = []
    for _ in range(3):
        begin = time.monotonic()
        subprocess.run([sys.executable, "-c", f"import {modules}"], check=True, capture_output=True)
        times.append(time.monotonic() - begin)
    return statistics.median(times)


@pytest.mark.timeout(600)
def test_a_fork_is_far_cheaper_than_an_import(tmp_path: Path) -> None:
    for backend in ("torch", "tensorflow"):
        fork, fresh = _fork_s(tmp_path, backend), _import_s(backend)
        print(
            f"\n{backend}: fork {fork * 1e3:.1f} ms, a new interpreter with its imports {fresh * 1e3:.0f} ms: ", end=""
        )
        print(f"{fresh / fork:.0f} times as much")
        if backend == "tensorflow":
            assert fresh / fork >= CHEAPER


@pytest.mark.timeout(600)
def test_where_the_time_of_a_combination_goes(tmp_path: Path) -> None:
    """The quickstart's combinations on two models, with tracking; seconds per combination."""
    begin = time.monotonic()
    ran = run_command(tmp_path, "model=lenet5,mlp", "backend=torch,tensorflow", "batch_size=1,8,64", timeout=500)
    whole = time.monotonic() - begin
    assert ran.code == 0, ran.err
    records = read_records(ran.folder("adhoc") / "records")
    per: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for record in records:
        spent = per[str(record.axes["backend"])]
        spent["measured"] += record.costs["measure"]
        spent["fork"] += record.costs["fork"]
        spent["build"] += record.costs.get("build", 0.0)
        spent["rest"] += record.wall_s - sum(record.costs.values())
    print(
        f"\n{'backend':<12}{'measured':>10}{'fork':>10}{'build':>10}{'rest':>10}  seconds per combination of 4 trials"
    )
    for backend, spent in per.items():
        print(f"{backend:<12}" + "".join(f"{spent[key] / 6:>10.3f}" for key in ("measured", "fork", "build", "rest")))
    inside = sum(record.wall_s for record in records)
    print(
        f"outside the trials (start, plan, imports of fork servers, reports, MLflow): {(whole - inside) / 12:.2f} s per combination"
    )
    spawned = sum(4 * 6 * _import_s(backend) for backend in per) / 12
    print(f"a new interpreter per trial would add {spawned:.1f} s per combination")
