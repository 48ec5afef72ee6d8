"""Ten thousand combinations of the fake backend: how soon the plan is there and the first trial starts, what memory the head
takes, and how long the reports of all of them take. Figures are printed; the driver's memory and its growth are asserted.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from benchmarks.measured import swept

from support.command import environment, start_command
from support.planning import write_configs
from sweeprof.storage import Folder

COMBINATIONS = int(os.environ.get("SCALE_COMBINATIONS", "10000"))
RUN_S = float(os.environ.get("SCALE_RUN_S", "60"))
"""How long the sweep is watched."""
MIB = 1 << 20
HEAD_MIB = 500
GROWTH = 1.1
"""How much the driver may grow from the second quarter of the run to the last."""
STEPS, SIZES = 100, COMBINATIONS // 100
STEPPING = "model.fake.step_s=" + ",".join(f"{0.001 + i * 1e-5:.5f}" for i in range(STEPS))
SETTINGS = (
    "model=fake",
    "backend=fake",
    "dataset=synthetic",
    "tracking=none",
    "metrics.select=[compute/macs,latency/forward]",
    "protocol.min_s=0",
    "protocol.warmup_s=0",
    "compare.baseline={batch_size: 1}",
)
COMMAND = (*SETTINGS, STEPPING, "batch_size=" + ",".join(str(i + 1) for i in range(SIZES)))


@dataclass(frozen=True)
class Sample:
    """The head at a moment."""

    time: float
    rss: int
    done: int


@contextmanager
def running(cwd: Path) -> Iterator[subprocess.Popen[str]]:
    with start_command(cwd, *COMMAND, f"limits.locks={cwd / 'locks'}") as process:
        try:
            yield process
        finally:
            for child in psutil.Process(process.pid).children(recursive=True):
                child.kill()
            process.kill()


def watched(process: subprocess.Popen[str], cwd: Path, began: float) -> tuple[float, float, list[Sample]]:
    """Seconds until the plan is on disk and until the first trial has begun, and samples of the driver from then on."""
    head = psutil.Process(process.pid)
    planned = _until(lambda: any(cwd.glob("outputs/*/*/plan.json")), process) - began
    started = _until(lambda: any(f.stat().st_size for f in cwd.glob("outputs/*/*/events/*.jsonl")), process) - began
    (events,) = cwd.glob("outputs/*/*/events/shard-0.jsonl")
    samples = []
    end = time.monotonic() + RUN_S
    while time.monotonic() < end and process.poll() is None:
        with events.open("rb") as file:
            done = sum(b'"end"' in line for line in file)
        samples.append(Sample(time.monotonic() - began, head.memory_info().rss, done))
        time.sleep(1)
    return planned, started, samples


def _until(holds: Callable[[], bool], process: subprocess.Popen[str]) -> float:
    while not holds():
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.02)
    return time.monotonic()


@pytest.mark.timeout(900)
def test_planning_starting_and_running(tmp_path: Path) -> None:
    begin = time.monotonic()
    with running(tmp_path) as process:
        planned, started, samples = watched(process, tmp_path, begin)
        os.kill(process.pid, signal.SIGKILL)
    quarter = len(samples) // 4
    early = max(sample.rss for sample in samples[quarter : 2 * quarter])
    late = max(sample.rss for sample in samples[-quarter:])
    rate = samples[-1].done / (samples[-1].time - samples[0].time)
    print(
        f"\n{COMBINATIONS} combinations: plan on disk after {planned:.1f} s, first trial after {started:.1f} s; head's memory "
        f"{samples[0].rss / MIB:.0f} MiB at the first trial, {early / MIB:.0f} MiB early, {late / MIB:.0f} MiB late, after "
        f"{samples[-1].done} trials ({rate:.0f} per second, {1 / rate:.3f} s each)"
    )
    assert max(sample.rss for sample in samples) < HEAD_MIB * MIB
    assert late <= early * GROWTH


@pytest.mark.timeout(900)
def test_the_reports_of_all(tmp_path: Path) -> None:
    ran = swept(tmp_path, *SETTINGS, STEPPING, "batch_size=1", f"limits.locks={tmp_path / 'locks'}")
    folder = grown(Folder(ran.folder("adhoc")))
    seconds, rss = reported(folder)
    print(f"\nreports of {COMBINATIONS} rows: {seconds:.1f} s, {rss / MIB:.0f} MiB")
    assert len((folder.path / "comparison.csv").read_text().splitlines()) == COMBINATIONS + 1


def grown(folder: Folder) -> Folder:
    """A folder with as many combinations as the benchmark asks for, their records like those that were measured."""
    plan = folder.read_plan()
    records = {c.id: folder.records_of(c.id) for c in plan.combinations}
    first = plan.combinations
    more = []
    for size in range(1, SIZES + 1):
        for i, c in enumerate(first):
            axes, config = {**c.axes, "batch_size": size}, {**c.config, "batch_size": size}
            more.append((dataclasses.replace(c, id=f"c{size:06x}{i:06x}", axes=axes, config=config), records[c.id]))
    combinations = tuple(c for c, _ in more)
    whole = dataclasses.replace(
        plan,
        combinations=combinations,
        axes={**plan.axes, "batch_size": list(range(1, SIZES + 1))},
        shards=(tuple(c.id for c in combinations),),
        baseline={"batch_size": 1},
    )
    target = Folder(folder.path.with_name("grown"))
    target.records.mkdir(parents=True)
    (target.path / "environment.json").write_text((folder.path / "environment.json").read_text())
    target.plan.write_text(json.dumps(whole.to_dict()))
    for combination, found in more:
        (target.records / combination.id).mkdir()
        for record in found:
            id, axes, config = combination.id, combination.axes, combination.config
            like = dataclasses.replace(record, combination_id=id, axes=axes, config=config)
            # Without the sync that a record of a real trial deserves.
            (target.records / like.file_name).write_text(json.dumps(like.to_dict()))
    return target


PEAK = "peak = 1024 * int(open('/proc/self/status').read().partition('VmHWM:')[2].split()[0])"
"""The peak of the resident set in bytes; ru_maxrss of a new process begins with that of the one that started it."""


def reported(folder: Folder) -> tuple[float, int]:
    """Seconds and peak memory of making every report, in a process of its own."""
    program = (
        "import sys, pathlib\n"
        "from sweeprof.storage import Folder\n"
        "from sweeprof.run.comparison import comparison_of\n"
        "from sweeprof.run.reports import write_reports\n"
        "folder = Folder(pathlib.Path(sys.argv[1]))\n"
        "write_reports(folder, comparison_of(folder))\n"
        f"{PEAK}\nprint(peak)\n"
    )
    begin = time.monotonic()
    printed = printed_by(program, environment(folder.path), str(folder.path))
    return time.monotonic() - begin, int(printed.splitlines()[-1])


def printed_by(program: str, variables: dict[str, str], *arguments: str) -> str:
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


# Planning: processor seconds and memory of the driver, for values and for config groups

ROOT = Path(__file__).parents[2]
PROGRAM = f"""
import json, sys, time
from pathlib import Path
from support.planning import composer
begin = time.process_time()
plan = composer(sys.argv[2:], Path(sys.argv[1])).plan()
seconds = time.process_time() - begin
text = json.dumps(plan.to_dict())
{PEAK}
print(json.dumps([len(plan.combinations), seconds, peak / 2**20, len(text) / 1e6]))
"""
SLOWDOWNS = "backend.slowdown=1.0,2.0,3.0,4.0"
MODELS = f"model={','.join(f'm{i}' for i in range(25))}"


@pytest.mark.parametrize(
    ("kind", "axes"),
    [
        ("values", ("model=fake", SLOWDOWNS, "model.fake.step_s=range(0.001,0.0255,0.001)")),
        ("a group of 25", (MODELS, SLOWDOWNS)),
        ("groups of 25 and 4", (MODELS, "backend=b0,b1,b2,b3")),
    ],
)
def test_planning_ten_thousand(tmp_path: Path, kind: str, axes: tuple[str, ...]) -> None:
    model = "fake: {{_target_: sweeprof.backends.fake.FakeModel, step_s: 0.{:03d}1}}\n"
    write_configs(tmp_path, {f"model/m{i}": model.format(i) for i in range(25)})
    write_configs(tmp_path, {f"backend/b{i}": f"defaults: [fake]\nslowdown: {i + 1}.0\n" for i in range(4)})
    arguments = ("backend=fake", "dataset=synthetic", "tracking=none", "batch_size=range(1,101)", *axes)
    printed = printed_by(PROGRAM, {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}, str(tmp_path), *arguments)
    count, seconds, rss, written = json.loads(printed)
    print(f"\n{count:,} combinations over {kind}: {seconds:.1f} s, {rss:.0f} MB, plan.json {written:.1f} MB")
    assert count == 10_000
    assert rss < 500
