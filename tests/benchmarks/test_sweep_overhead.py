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
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from statistics import median

import pytest
import yaml
from benchmarks.measured import lasting, swept

from support.command import environment
from support.planning import composed_of
from support.plans import read_records
from sweeprof.plan import plan

CHEAPER = 20
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


Sweep = Callable[[int], float]
"""Runs a sweep of so many combinations; seconds that it takes beside what it measures."""


def further_s(name: str, sweep: Sweep, short: int = 2, long: int = 26) -> float:
    """Measure and print the seconds of one more combination."""
    few, many = sweep(short), sweep(long)
    further = (many - few) / (long - short)
    print(f"{name:<44}{further:>10.3f} s for a further combination beside what is measured", flush=True)
    return further


def sizes(count: int) -> str:
    return ",".join(str(size + 1) for size in range(count))


def done(command: list[str | Path], cwd: Path, variables: Mapping[str, str]) -> tuple[str, float]:
    """What a command that ended well printed, and its seconds."""
    begin = time.monotonic()
    ran = subprocess.run(command, cwd=cwd, env=variables, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-2000:]
    return ran.stdout, time.monotonic() - begin


def ours(folder: Path, tracking: str, count: int) -> float:
    what = ("model=mlp", f"batch_size={sizes(count)}", "metrics=latency", f"tracking={tracking}")
    begin = time.monotonic()
    ran = swept(folder / f"ours-{tracking}-{count}", *what, f"limits.locks={folder / 'locks'}")
    wall = time.monotonic() - begin
    return wall - sum(record.costs["measure"] for record in read_records(ran.folder("adhoc") / "records"))


def hydra_multirun(folder: Path, count: int) -> float:
    (folder / "app.py").write_text(HYDRA_APP)
    command: list[str | Path] = [sys.executable, "app.py", "-m", f"+batch_size={sizes(count)}"]
    printed, wall = done(command, folder, environment(folder))
    measured = [float(line.split()[1]) for line in printed.splitlines() if line.startswith("measured")]
    assert len(measured) == count
    return wall - sum(measured)


def optimum_benchmark(folder: Path, count: int) -> float:
    place = folder / f"optimum-{count}"
    place.mkdir()
    config = yaml.safe_load(BENCH)
    config["backend"]["model"] = str(folder / "bert")
    (place / "bench.yaml").write_text(yaml.safe_dump(config))
    sweep = f"scenario.input_shapes.batch_size={sizes(count)}"
    clean = {key: value for key, value in environment(folder).items() if key != "PYTHONPATH"} | ALONE
    command: list[str | Path] = [
        OPTIMUM / "optimum-benchmark",
        "--config-dir",
        ".",
        "--config-name",
        "bench",
        "-m",
        sweep,
    ]
    _, wall = done(command, place, clean)
    reports = [json.loads(report.read_text()) for report in place.rglob("benchmark_report.json")]
    assert len(reports) == count
    for report in reports:
        wall -= sum(part["latency"]["total"] for part in report.values() if part.get("latency"))
    return wall


@pytest.mark.timeout(900)
def test_a_combination_costs_a_twentieth_of_what_it_costs_elsewhere(tmp_path: Path) -> None:
    print()
    own = further_s("sweeprof, tracking=none", partial(ours, tmp_path, "none"))
    further_s("sweeprof, tracking=mlflow", partial(ours, tmp_path, "mlflow"))
    hydra = further_s("Hydra multirun, an interpreter per job", partial(hydra_multirun, tmp_path), 2, 8)
    assert hydra / own >= CHEAPER
    if not OPTIMUM.is_dir():
        pytest.skip(f"optimum-benchmark is not in {OPTIMUM}: docs/benchmarks.md, Overhead of a sweep")
    done([OPTIMUM / "python", "-c", BERT], tmp_path, {"PATH": os.environ["PATH"], **ALONE})
    peer = further_s("optimum-benchmark, launcher=process", partial(optimum_benchmark, tmp_path), 1, 3)
    assert peer / own >= CHEAPER


@pytest.mark.timeout(900)
def test_where_the_time_of_a_combination_goes(tmp_path: Path) -> None:
    """Of twelve combinations of four trials each, with tracking. A fork is far cheaper than an import."""
    begin = time.monotonic()
    ran = swept(tmp_path, "model=lenet5,mlp", "backend=torch,tensorflow", "batch_size=1,8,64", timeout=500)
    wall = time.monotonic() - begin
    records = read_records(ran.folder("adhoc") / "records")
    print(f"\n{'seconds per combination':<26}{'measured':>10}{'fork':>10}{'build':>10}{'rest':>10}")
    times = {}
    for backend in ("torch", "tensorflow"):
        own = [record for record in records if record.axes["backend"] == backend]
        spent: dict[str, float] = defaultdict(float)
        for record in own:
            for name, seconds in record.costs.items():
                spent[name] += seconds
        rest = sum(record.wall_s for record in own) - sum(spent.values())
        columns = (spent["measure"], spent["fork"], spent["build"], rest)
        print(f"{backend:<26}" + "".join(f"{seconds / 6:>10.3f}" for seconds in columns))
        fork, fresh = median(record.costs["fork"] for record in own), import_s(backend)
        times[backend] = fresh / fork
        print(
            f"fork {fork * 1e3:.1f} ms, a new interpreter with its imports {fresh * 1e3:.0f} ms: {fresh / fork:.0f} times"
        )
    outside = wall - sum(record.wall_s for record in records)
    print(f"outside the trials (start, plan, imports of fork servers, reports, MLflow): {outside / 12:.2f} s")
    assert times["tensorflow"] >= CHEAPER


def import_s(backend: str) -> float:
    """From starting an interpreter until it has imported what the fork server imports, median of three."""
    preloaded = plan.preload(composed_of(f"backend={backend}", "model=mlp"), "timing")
    modules = ", ".join(name.partition(":")[0] for name in preloaded)
    command = [sys.executable, "-c", f"import {modules}"]
    return median(lasting(lambda: subprocess.run(command, check=True, capture_output=True)) for _ in range(3))
