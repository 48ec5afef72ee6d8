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
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean

import pytest
import yaml

from support.command import environment, run_command
from support.records import read_records

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


@dataclass(frozen=True)
class Sweep:
    """One sweep of a tool."""

    combinations: int
    wall_s: float
    measured_s: float

    @property
    def beside_s(self) -> float:
        return self.wall_s - self.measured_s


@dataclass(frozen=True)
class Cost:
    """What sweeps of a tool cost beside what they measure."""

    short: Sweep
    long: Sweep

    @property
    def further_s(self) -> float:
        """Seconds of one more combination."""
        return (self.long.beside_s - self.short.beside_s) / (self.long.combinations - self.short.combinations)

    @property
    def whole_s(self) -> float:
        """Seconds per combination of the longer sweep, with all that is paid once."""
        return self.long.beside_s / self.long.combinations


def cost(run: Callable[[int], Sweep], short: int, long: int) -> Cost:
    return Cost(run(short), run(long))


def ours(folder: Path, backend: str, tracking: str, count: int, mode: str = "inference") -> Sweep:
    sizes = ",".join(str(size + 1) for size in range(count))
    place = folder / f"ours-{backend}-{mode}-{tracking}-{count}"
    place.mkdir()
    begin = time.monotonic()
    what = (f"backend={backend}", f"mode={mode}", "model=mlp", f"batch_size={sizes}", "metrics=latency")
    ran = run_command(place, *what, f"tracking={tracking}", f"limits.locks={folder / 'locks'}")
    wall = time.monotonic() - begin
    assert ran.code == 0, ran.err
    return Sweep(count, wall, sum(record.costs["measure"] for record in read_records(ran.folder("adhoc") / "records")))


def hydra_multirun(folder: Path, count: int) -> Sweep:
    (folder / "app.py").write_text(HYDRA_APP)
    sizes = ",".join(str(size + 1) for size in range(count))
    begin = time.monotonic()
    done = subprocess.run(
        [sys.executable, "app.py", "-m", f"+batch_size={sizes}"],
        cwd=folder,
        env=environment(folder),
        capture_output=True,
        text=True,
        check=True,
    )
    wall = time.monotonic() - begin
    measured = [float(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("measured")]
    assert len(measured) == count
    return Sweep(count, wall, sum(measured))


def optimum_benchmark(folder: Path, count: int) -> Sweep:
    place = folder / f"optimum-{count}"
    place.mkdir()
    config = {
        "defaults": ["benchmark", {"scenario": "inference"}, {"launcher": "process"}, {"backend": "pytorch"}, "_self_"],
        "name": "overhead",
        "hydra": {"job": {"chdir": True}, "sweep": {"dir": "runs", "subdir": "${hydra.job.num}"}},
        "backend": {
            "device": "cpu",
            "model": str(folder / "bert"),
            "task": "feature-extraction",
            "library": "transformers",
            "inter_op_num_threads": 1,
            "intra_op_num_threads": 1,
        },
        "scenario": {
            "iterations": 10,
            "duration": 0,
            "memory": False,
            "input_shapes": {"batch_size": 1, "sequence_length": 16},
        },
    }
    (place / "bench.yaml").write_text(yaml.safe_dump(config))
    sizes = ",".join(str(size + 1) for size in range(count))
    arguments = ["--config-dir", ".", "--config-name", "bench", "-m", f"scenario.input_shapes.batch_size={sizes}"]
    clean = {key: value for key, value in environment(folder).items() if key != "PYTHONPATH"} | ALONE
    begin = time.monotonic()
    done = subprocess.run(
        [OPTIMUM / "optimum-benchmark", *arguments], cwd=place, env=clean, capture_output=True, text=True, check=False
    )
    wall = time.monotonic() - begin
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    reports = list(place.rglob("benchmark_report.json"))
    assert len(reports) == count
    parts = [json.loads(report.read_text()) for report in reports]
    return Sweep(
        count,
        wall,
        sum(part["latency"]["total"] for report in parts for part in report.values() if part.get("latency")),
    )


def show(name: str, found: Cost) -> None:
    print(f"{name:<44}{found.further_s:>10.3f}{found.whole_s:>10.3f}   ({found.long.combinations} combinations)")


@pytest.mark.timeout(900)
def test_a_combination_costs_a_twentieth_of_what_it_costs_elsewhere(tmp_path: Path) -> None:
    print(f"\n{'seconds per combination beside what is measured':<44}{'further':>10}{'whole':>10}")
    own = {tracking: cost(partial(ours, tmp_path, "torch", tracking), 2, 26) for tracking in ("none", "mlflow")}
    for tracking, found in own.items():
        show(f"sweeprof, tracking={tracking}", found)
    show("sweeprof, backend=tensorflow, tracking=none", cost(partial(ours, tmp_path, "tensorflow", "none"), 2, 26))
    plain = cost(partial(hydra_multirun, tmp_path), 2, 8)
    show("Hydra multirun, an interpreter per job", plain)
    if not OPTIMUM.is_dir():
        assert plain.further_s / own["none"].further_s >= CHEAPER
        pytest.skip(f"optimum-benchmark is not in {OPTIMUM}: docs/benchmarks.md, Overhead of a sweep")
    subprocess.run(
        [OPTIMUM / "python", "-c", BERT],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], **ALONE},
        check=True,
        capture_output=True,
    )
    peer = cost(partial(optimum_benchmark, tmp_path), 1, 3)
    show("optimum-benchmark, launcher=process", peer)
    for name, other in (("Hydra multirun", plain), ("optimum-benchmark", peer)):
        times = {tracking: other.further_s / found.further_s for tracking, found in own.items()}
        print(f"{name}: {times['none']:.0f} times as much, {times['mlflow']:.0f} where ours also fills MLflow")
    for other in (plain, peer):
        assert other.further_s / own["none"].further_s >= CHEAPER


@pytest.mark.timeout(300)
def test_a_combination_that_trains_costs_hardly_more(tmp_path: Path) -> None:
    """No trial imports torch's compiler, which optimizers need and which takes twenty times as long as a trial costs."""
    print(f"\n{'seconds per combination beside what is measured':<44}{'further':>10}{'whole':>10}")
    found = {
        mode: cost(partial(ours, tmp_path, "torch", "none", mode=mode), 2, 26) for mode in ("inference", "training")
    }
    for mode, one in found.items():
        show(f"mode={mode}", one)
    assert found["training"].further_s / found["inference"].further_s < 3


@pytest.mark.timeout(600)
def test_where_the_overhead_of_a_sweep_goes(tmp_path: Path) -> None:
    """A breakdown of one sweep, with tracking."""
    count = 24
    sizes = ",".join(str(size + 1) for size in range(count))
    began = time.time()
    ran = run_command(
        tmp_path, "model=mlp", f"batch_size={sizes}", "metrics=latency", f"limits.locks={tmp_path / 'locks'}"
    )
    ended = time.time()
    assert ran.code == 0, ran.err
    folder = ran.folder("adhoc")
    events = [json.loads(line) for line in (folder / "events" / "shard-0.jsonl").read_text().splitlines()]
    records = read_records(folder / "records")
    first, last = events[0]["time"], events[-1]["time"]
    inside = {key: mean(record.costs[key] for record in records) for key in ("fork", "build", "measure")}
    rest = mean(record.wall_s for record in records) - sum(inside.values())
    turns = (last - first - sum(record.wall_s for record in records)) / count
    print(f"\nonce: start, plan, tracker opens {first - began:.2f} s; reports, tracker {ended - last:.2f} s")
    print(
        f"per combination: fork {inside['fork']:.3f} s, build {inside['build']:.3f} s, config, looks and record {rest:.3f} s, "
        f"lock, events and fork servers {turns:.3f} s; measured {inside['measure']:.3f} s"
    )
