"""Ten thousand combinations of the fake backend: how soon the plan is there and the first trial starts, what memory the driver
takes, and how long the reports of all of them take. Figures are printed; the driver's memory and its growth are asserted.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from benchmarks.measured import swept

from support.command import environment, start_command
from sweeprof.storage import Folder

COMBINATIONS = int(os.environ.get("SCALE_COMBINATIONS", "10000"))
RUN_S = float(os.environ.get("SCALE_RUN_S", "60"))
"""How long the sweep is watched."""
MIB = 1 << 20
DRIVER_MIB = 500
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


def until(holds: Callable[[], bool], process: subprocess.Popen[str]) -> float:
    while not holds():
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.02)
    return time.monotonic()


@pytest.mark.timeout(900)
def test_planning_starting_and_running(tmp_path: Path) -> None:
    begin = time.monotonic()
    sizes: list[int] = []
    """The resident set of the driver, every second."""
    with start_command(tmp_path, *COMMAND, f"limits.locks={tmp_path / 'locks'}") as process:
        driver = psutil.Process(process.pid)
        try:
            planned = until(lambda: any(tmp_path.glob("outputs/*/*/plan.json")), process) - begin
            logs = "outputs/*/*/events/*.jsonl"
            first = until(lambda: any(file.stat().st_size for file in tmp_path.glob(logs)), process)
            while time.monotonic() < first + RUN_S and process.poll() is None:
                sizes.append(driver.memory_info().rss)
                time.sleep(1)
            (events,) = tmp_path.glob(logs)
            rate = events.read_text().count('"end"') / (time.monotonic() - first)
        finally:
            for child in driver.children(recursive=True):
                child.kill()
            process.kill()
    quarter = len(sizes) // 4
    early, late = max(sizes[quarter : 2 * quarter]), max(sizes[-quarter:])
    print(
        f"\n{COMBINATIONS} combinations: plan on disk after {planned:.1f} s, first trial after {first - begin:.1f} s; the driver's"
        f" memory {sizes[0] / MIB:.0f} MiB at the first trial, {early / MIB:.0f} early, {late / MIB:.0f} late;"
        f" {rate:.0f} trials per second"
    )
    assert max(sizes) < DRIVER_MIB * MIB
    assert late <= early * GROWTH


def grown(folder: Folder) -> Folder:
    """A folder with as many combinations as the benchmark asks for, their records like those that were measured."""
    plan = folder.read_plan()
    records = {combination.id: folder.records_of(combination.id) for combination in plan.combinations}
    target = Folder(folder.path.with_name("grown"))
    target.records.mkdir(parents=True)
    combinations = []
    for size in range(1, SIZES + 1):
        for i, first in enumerate(plan.combinations):
            id = f"c{size:06x}{i:06x}"
            axes, config = {**first.axes, "batch_size": size}, {**first.config, "batch_size": size}
            combinations.append(dataclasses.replace(first, id=id, axes=axes, config=config))
            (target.records / id).mkdir()
            for record in records[first.id]:
                like = dataclasses.replace(record, combination_id=id, axes=axes, config=config)
                # Without the sync that a record of a real trial deserves.
                (target.records / like.file_name).write_text(json.dumps(like.to_dict()))
    whole = dataclasses.replace(
        plan,
        combinations=tuple(combinations),
        axes={**plan.axes, "batch_size": list(range(1, SIZES + 1))},
        shards=(tuple(combination.id for combination in combinations),),
        baseline={"batch_size": 1},
    )
    (target.path / "environment.json").write_text((folder.path / "environment.json").read_text())
    target.plan.write_text(json.dumps(whole.to_dict()))
    return target


REPORT = """
import pathlib, sys
from sweeprof.storage import Folder
from sweeprof.run.comparison import comparison_of
from sweeprof.run.reports import write_reports
folder = Folder(pathlib.Path(sys.argv[1]))
write_reports(folder, comparison_of(folder))
print(1024 * int(open("/proc/self/status").read().partition("VmHWM:")[2].split()[0]))
"""
"""Prints the peak of the resident set; ru_maxrss of a new process begins with that of the one that started it."""


@pytest.mark.timeout(900)
def test_the_reports_of_all(tmp_path: Path) -> None:
    ran = swept(tmp_path, *SETTINGS, STEPPING, "batch_size=1", f"limits.locks={tmp_path / 'locks'}")
    folder = grown(Folder(ran.folder("adhoc")))
    begin = time.monotonic()
    command = [sys.executable, "-c", REPORT, str(folder.path)]
    done = subprocess.run(command, env=environment(folder.path), capture_output=True, text=True, check=False)
    seconds = time.monotonic() - begin
    assert done.returncode == 0, done.stderr
    print(f"\nreports of {COMBINATIONS} rows: {seconds:.1f} s, {int(done.stdout.splitlines()[-1]) / MIB:.0f} MiB")
    assert len((folder.path / "comparison.csv").read_text().splitlines()) == COMBINATIONS + 1
