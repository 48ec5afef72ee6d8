"""What a combination costs beside its measured time: here, in a plain Hydra multirun that starts an interpreter for each job,
and in optimum-benchmark, all in one run.

Each tool runs a short and a longer sweep; the difference is the cost of further combinations, without what is paid once: the start,
the driver's imports, the first fork server, the tracker's database. `docs/benchmarks.md` says how to install the peer.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

import pytest
import yaml
from benchmarks.measured import lasting, swept

from support.command import Ran, environment
from support.planning import composed_of
from support.plans import read_records
from sweeprof.plan import plan
from sweeprof.results.record import Record
from sweeprof.run.fork_server import ForkServer
from sweeprof.run.interleave import Request

CHEAPER = 20
REPEATS = 10
ALONE = {"USE_TF": "0", "HF_HUB_OFFLINE": "1"}
"""The peer needs neither TensorFlow, which is beside it, nor the network."""
OPTIMUM = Path(os.environ.get("OPTIMUM_VENV", ".venv-optimum")).absolute() / "bin"
HYDRA_APP = '''
import subprocess, sys
import hydra
JOB = """
import sys, time
import torch
torch.set_num_threads(1)
batch = int(sys.argv[1])
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10)).eval()
inputs = torch.rand(batch, 64)
begin = time.perf_counter()
with torch.inference_mode():
    while time.perf_counter() - begin < 0.7:
        model(inputs)
print(time.perf_counter() - begin)
"""

@hydra.main(config_path=None, config_name=None, version_base="1.3")
def main(config):
    done = subprocess.run([sys.executable, "-c", JOB, str(config.batch_size)], capture_output=True, text=True, check=True)
    print("measured", done.stdout)

main()
'''
BERT = """
from transformers import BertConfig, BertModel
shape = dict(hidden_size=128, num_hidden_layers=2, num_attention_heads=2, intermediate_size=512, vocab_size=1000)
BertModel(BertConfig(**shape)).save_pretrained("bert")
"""
BENCH = """
defaults: [benchmark, {scenario: inference}, {launcher: process}, {backend: pytorch}, _self_]
name: overhead
hydra: {job: {chdir: true}, sweep: {dir: runs, subdir: '${hydra.job.num}'}}
backend:
  {device: cpu, model: BERT, task: feature-extraction, library: transformers, inter_op_num_threads: 1, intra_op_num_threads: 1}
scenario: {iterations: 10, duration: 0, memory: false, input_shapes: {batch_size: 1, sequence_length: 16}}
"""


class Sweep(NamedTuple):
    """What a sweep of a tool took beside what it measured, in seconds."""

    combinations: int
    beside_s: float


class Cost(NamedTuple):
    """Seconds of one more combination, and per combination of the longer sweep with all that is paid once."""

    further_s: float
    whole_s: float


def cost(name: str, run: Callable[[int], Sweep], short: int = 2, long: int = 26) -> Cost:
    """Measure and print it."""
    few, many = run(short), run(long)
    further = (many.beside_s - few.beside_s) / (many.combinations - few.combinations)
    found = Cost(further, many.beside_s / many.combinations)
    print(f"{name:<44}{found.further_s:>10.3f}{found.whole_s:>10.3f}   ({many.combinations} combinations)")
    return found


def sizes(count: int) -> str:
    return ",".join(str(size + 1) for size in range(count))


def done(command: list[str | Path], cwd: Path, variables: Mapping[str, str]) -> str:
    """What a command that ended well printed."""
    ran = subprocess.run(command, cwd=cwd, env=variables, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-2000:]
    return ran.stdout


def ours(folder: Path, backend: str, tracking: str, count: int, mode: str = "inference") -> Sweep:
    what = (f"backend={backend}", f"mode={mode}", "model=mlp", f"batch_size={sizes(count)}", "metrics=latency")
    locks = f"limits.locks={folder / 'locks'}"
    found: list[Ran] = []
    place = folder / f"ours-{backend}-{mode}-{tracking}-{count}"
    wall = lasting(lambda: found.append(swept(place, *what, f"tracking={tracking}", locks)))
    records = read_records(found[0].folder("adhoc") / "records")
    return Sweep(count, wall - sum(record.costs["measure"] for record in records))


def hydra_multirun(folder: Path, count: int) -> Sweep:
    (folder / "app.py").write_text(HYDRA_APP)
    begin = time.monotonic()
    printed = done([sys.executable, "app.py", "-m", f"+batch_size={sizes(count)}"], folder, environment(folder))
    wall = time.monotonic() - begin
    measured = [float(line.split()[1]) for line in printed.splitlines() if line.startswith("measured")]
    assert len(measured) == count
    return Sweep(count, wall - sum(measured))


def optimum_benchmark(folder: Path, count: int) -> Sweep:
    place = folder / f"optimum-{count}"
    place.mkdir()
    config = yaml.safe_load(BENCH)
    config["backend"]["model"] = str(folder / "bert")
    (place / "bench.yaml").write_text(yaml.safe_dump(config))
    sweep = f"scenario.input_shapes.batch_size={sizes(count)}"
    clean = {key: value for key, value in environment(folder).items() if key != "PYTHONPATH"} | ALONE
    begin = time.monotonic()
    done([OPTIMUM / "optimum-benchmark", "--config-dir", ".", "--config-name", "bench", "-m", sweep], place, clean)
    wall = time.monotonic() - begin
    reports = [json.loads(report.read_text()) for report in place.rglob("benchmark_report.json")]
    assert len(reports) == count
    parts = [part["latency"]["total"] for report in reports for part in report.values() if part.get("latency")]
    return Sweep(count, wall - sum(parts))


@pytest.fixture
def _heading() -> None:
    print(f"\n{'seconds per combination beside what is measured':<44}{'further':>10}{'whole':>10}")


@pytest.mark.timeout(900)
@pytest.mark.usefixtures("_heading")
def test_a_combination_costs_a_twentieth_of_what_it_costs_elsewhere(tmp_path: Path) -> None:
    own = {
        tracking: cost(f"sweeprof, tracking={tracking}", partial(ours, tmp_path, "torch", tracking))
        for tracking in ("none", "mlflow")
    }
    cost("sweeprof, backend=tensorflow, tracking=none", partial(ours, tmp_path, "tensorflow", "none"))
    others = {"Hydra multirun": cost("Hydra multirun, an interpreter per job", partial(hydra_multirun, tmp_path), 2, 8)}
    if OPTIMUM.is_dir():
        done([OPTIMUM / "python", "-c", BERT], tmp_path, {"PATH": os.environ["PATH"], **ALONE})
        peer = cost("optimum-benchmark, launcher=process", partial(optimum_benchmark, tmp_path), 1, 3)
        others["optimum-benchmark"] = peer
    for name, other in others.items():
        times = {tracking: other.further_s / found.further_s for tracking, found in own.items()}
        print(f"{name}: {times['none']:.0f} times as much, {times['mlflow']:.0f} where ours also fills MLflow")
    for other in others.values():
        assert other.further_s / own["none"].further_s >= CHEAPER
    if not OPTIMUM.is_dir():
        pytest.skip(f"optimum-benchmark is not in {OPTIMUM}: docs/benchmarks.md, Overhead of a sweep")


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("_heading")
def test_a_combination_that_trains_costs_hardly_more(tmp_path: Path) -> None:
    """No trial imports torch's compiler, which optimizers need and which takes twenty times as long as a trial costs."""
    inference, training = (
        cost(f"mode={mode}", partial(ours, tmp_path, "torch", "none", mode=mode)) for mode in ("inference", "training")
    )
    assert training.further_s / inference.further_s < 3


def fork_s(tmp_path: Path, backend: str) -> float:
    """From asking for a process until it runs, median."""
    config = composed_of(f"backend={backend}", "model=mlp")
    log = tmp_path / "fork-server.log"
    server = ForkServer(plan.preload(config, "analysis"), plan.environment(config), log)
    try:
        for i in range(REPEATS):
            blank = Record("s", f"c{backend}", "analysis", "crashed", round=i, config=config)
            server.run(Request(blank.to_dict(), str(tmp_path), str(tmp_path / "log"), 60, None, time.monotonic()))
        costs = [r.costs["fork"] for r in read_records(tmp_path) if r.combination_id == f"c{backend}"]
    finally:
        server.close()
    assert len(costs) == REPEATS
    return median(costs)


def import_s(backend: str) -> float:
    """From starting an interpreter until it has imported what the fork server imports, median of three."""
    preloaded = plan.preload(composed_of(f"backend={backend}", "model=mlp"), "timing")
    modules = ", ".join(name.partition(":")[0] for name in preloaded)
    command = [sys.executable, "-c", f"import {modules}"]
    return median(lasting(lambda: subprocess.run(command, check=True, capture_output=True)) for _ in range(3))


@pytest.mark.timeout(600)
def test_a_fork_is_far_cheaper_than_an_import(tmp_path: Path) -> None:
    times = {}
    for backend in ("torch", "tensorflow"):
        fork, fresh = fork_s(tmp_path, backend), import_s(backend)
        times[backend] = fresh / fork
        print(f"\n{backend}: fork {fork * 1e3:.1f} ms, a new interpreter with its imports {fresh * 1e3:.0f} ms", end="")
        print(f": {times[backend]:.0f} times as much")
    assert times["tensorflow"] >= CHEAPER


@pytest.mark.timeout(600)
def test_where_the_time_of_a_combination_goes(tmp_path: Path) -> None:
    """Of twelve combinations of four trials each, with tracking."""
    began = time.time()
    ran = swept(tmp_path, "model=lenet5,mlp", "backend=torch,tensorflow", "batch_size=1,8,64", timeout=500)
    ended = time.time()
    folder = ran.folder("adhoc")
    events = [json.loads(line) for line in (folder / "events" / "shard-0.jsonl").read_text().splitlines()]
    first, last = events[0]["time"], events[-1]["time"]
    records = read_records(folder / "records")
    print(f"\nonce: start, plan, tracker opens {first - began:.2f} s; reports, tracker {ended - last:.2f} s")
    print(f"{'seconds per combination':<26}{'measured':>10}{'fork':>10}{'build':>10}{'config, looks, record':>24}")
    spawned = 0.0
    for backend in ("torch", "tensorflow"):
        own = [record for record in records if record.axes["backend"] == backend]
        spent = Counter[str]()
        for record in own:
            spent.update(record.costs)
        rest = sum(record.wall_s for record in own) - sum(spent.values())
        print(f"{backend:<26}" + "".join(f"{spent[key] / 6:>10.3f}" for key in ("measure", "fork", "build")), end="")
        print(f"{rest / 6:>24.3f}")
        spawned += 4 * 6 * import_s(backend) / 12
    inside = sum(record.wall_s for record in records)
    print("outside the trials (start, plan, imports of fork servers, reports, MLflow): ", end="")
    print(f"{(ended - began - inside) / 12:.2f} s; a new interpreter per trial would add {spawned:.1f} s")
