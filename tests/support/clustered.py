"""A sweep on a real Slurm or Ray whose combinations wait, fail and take memory as files in its folder tell them to."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic

import pandas as pd
from typing_extensions import TypeVar

from support.command import Ran, environment, lock_folder, run_command, start_command
from support.ray_lab import RayLab
from support.slurm import Lab
from sweeprof.storage import Jobs

MODEL = '''
import os, sys, time
from sweeprof.backends.fake import FakeModel

def model(number):
    """Waits while hold-NUMBER is there, takes memory while eat-NUMBER is, and notes that it was measured."""
    while os.path.exists(f"hold-{number}"):
        time.sleep(0.05)
    hoard = []
    while os.path.exists(f"eat-{number}"):
        hoard.append(b"x" * (10 << 20))
        time.sleep(0.02)
    with open("measured", "a") as file:
        file.write(f"{number}\\n")
    return FakeModel(params=1000 + number)
'''
METRICS = "metrics.select=[params/total]"
"""One pass, and one that measures nothing of the device, so that tasks need not wait for each other: this is one machine."""


L = TypeVar("L", bound="Lab | RayLab", default=Lab)
"""The kind of cluster; Slurm unless a test says otherwise."""


@dataclass
class Clustered(Generic[L]):
    """A sweep over ``count`` combinations, in a folder of its own.

    Args:
        lab: the cluster.
        cwd: where the sweep is started.
        shards: how many tasks.
    """

    lab: L
    cwd: Path
    count: int = 6
    shards: int = 3
    more: tuple[str, ...] = ()
    _drivers: list[subprocess.Popen[str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        (self.cwd / "lab_models.py").write_text(MODEL)

    @property
    def arguments(self) -> list[str]:
        """Of the command that starts it."""
        return [
            *(*self.lab.arguments, f"shards={self.shards}", METRICS),
            *("model=fake", "backend=fake", "dataset=synthetic", "tracking=none"),
            *("model.fake._target_=lab_models.model", "~model.fake.step_s"),
            *(f"+model.fake.number={','.join(map(str, range(self.count)))}", "compare.baseline={}", *self.more),
        ]

    def run(self, *more: str, timeout: float = 120) -> Ran:
        """Start it and wait for its end."""
        return run_command(self.cwd, *self.arguments, *more, timeout=timeout)

    def leave(self, *more: str) -> None:
        """Start it, and kill the driver once everything is submitted: the jobs outlive it."""
        driver = self.start(*more)
        self.until(lambda: [one for one in self.jobs.all() if one.job], "everything to be submitted")
        driver.kill()
        driver.communicate()

    def start(self, *more: str) -> subprocess.Popen[str]:
        """Start it."""
        return self._started(*self.arguments, *more)

    def held(self, *numbers: int, others: Iterable[int] | None = None) -> subprocess.Popen[str]:
        """Start it with combinations that wait; return the driver when they do so and others, by default all, are measured."""
        self.touch(*(f"hold-{number}" for number in numbers))
        driver = self.start()
        free = set(range(self.count)) - set(numbers) if others is None else set(others)
        self.until(lambda: all(map(self.begun, numbers)) and self.recorded() >= free, f"only {numbers} to be held")
        return driver

    def resume_without(self, *names: str) -> None:
        """Remove files such as ``hold-3``, and resume it: every combination is then right, and was measured once."""
        self.remove(*names)
        assert self.resume().code == 0
        assert self.flaws() == []

    def resume(self, *more: str, timeout: float = 120) -> Ran:
        """Resume it, and wait until it ends."""
        return run_command(self.cwd, f"resume={self.folder}", *self._locks, *more, timeout=timeout)

    def start_resuming(self, *more: str) -> subprocess.Popen[str]:
        """Resume it."""
        return self._started(f"resume={self.folder}", *self._locks, *more)

    def collect(self, *words: str) -> Ran:
        """``sweeprof collect``."""
        command = [sys.executable, "-m", "sweeprof", "collect", str(self.folder), *words]
        done = subprocess.run(
            command, cwd=self.cwd, env=environment(self.cwd), capture_output=True, text=True, timeout=120, check=False
        )
        return Ran(done.returncode, done.stdout, done.stderr, self.cwd)

    def _started(self, *arguments: str) -> subprocess.Popen[str]:
        driver = start_command(self.cwd, *arguments)
        self._drivers.append(driver)
        return driver

    @property
    def _locks(self) -> list[str]:
        return [f"limits.locks={lock_folder(self.cwd)}"]

    def end(self) -> None:
        """Let nothing wait any longer, and no driver live on."""
        for path in [*self.cwd.glob("hold-*"), *self.cwd.glob("eat-*")]:
            path.unlink()
        for driver in self._drivers:
            if driver.poll() is None:
                driver.kill()
            driver.communicate()

    def touch(self, *names: str) -> None:
        """Make files such as ``hold-3``."""
        for name in names:
            (self.cwd / name).touch()

    def remove(self, *names: str) -> None:
        """Remove such files."""
        for name in names:
            (self.cwd / name).unlink()

    @property
    def folder(self) -> Path:
        """Of the sweep."""
        (found,) = (self.cwd / "outputs" / "adhoc").iterdir()
        return found

    @property
    def jobs(self) -> Jobs:
        """What was submitted."""
        return Jobs(self.folder)

    def tasks(self) -> dict[str, str]:
        """The states of its tasks in Slurm, by Slurm's id."""
        assert isinstance(self.lab, Lab)
        return self.lab.jobs("adhoc-")

    def task_of(self, number: int) -> str:
        """The scheduler's id of the newest task that is to measure a combination."""
        plan = json.loads((self.folder / "plan.json").read_text())
        id = next(c["id"] for c in plan["combinations"] if c["axes"]["model.fake.number"] == number)
        shard = next(place for place, ids in enumerate(plan["shards"]) if id in ids)
        submission = next(s for s in reversed(self.jobs.all()) if shard in s.shards)
        return f"{submission.job}_{submission.shards.index(shard)}"

    def begun(self, number: int) -> bool:
        """Whether a combination is being measured."""
        text = "".join(path.read_text() for path in self.cwd.glob("outputs/adhoc/*/events/shard-*.jsonl"))
        events = [json.loads(line) for line in text.splitlines()]
        plan = json.loads((self.folder / "plan.json").read_text())
        id = next(c["id"] for c in plan["combinations"] if c["axes"]["model.fake.number"] == number)
        last = [event["event"] for event in events if event["combination_id"] == id][-1:]
        return last in (["begin"], ["running"])

    def until(self, predicate: Callable[[], object], said: str, timeout_s: float = 120) -> None:
        """Wait for something to come true."""

        def come_true() -> bool:
            try:
                return bool(predicate())
            except (ValueError, LookupError, FileNotFoundError, StopIteration):  # nothing is there yet
                return False

        self.lab.wait_until(come_true, timeout_s, said)

    def interrupt(self, driver: subprocess.Popen[str]) -> tuple[int, str]:
        """Ctrl-C; returns the exit code and what was printed."""
        driver.send_signal(signal.SIGINT)
        out, err = driver.communicate(timeout=90)
        return driver.returncode, out + err

    def table(self) -> pd.DataFrame:
        """The comparison, by number."""
        return pd.read_csv(self.folder / "comparison.csv").set_index("model.fake.number")

    def statuses(self) -> dict[int, str]:
        """By number."""
        return dict(self.table()["status"])

    def measured(self) -> Counter[int]:
        """How often each combination was measured."""
        return Counter(int(line) for line in (self.cwd / "measured").read_text().split())

    def recorded(self) -> set[int]:
        """Which combinations have a record."""
        return {record["axes"]["model.fake.number"] for record in self.records()}

    def records(self) -> list[dict[str, Any]]:
        """Every record, those set aside among them."""
        return [json.loads(path.read_text()) for path in self.folder.glob("records/**/*.json")]

    def flaws(self) -> list[str]:
        """What keeps it from being complete, each combination being right and measured once; empty where nothing does."""
        found = [f"{number} is {status}" for number, status in self.statuses().items() if status != "ok"]
        if (measured := dict(self.measured())) != dict.fromkeys(range(self.count), 1):
            found.append(f"how often each was measured: {measured}")
        if (values := dict(self.table()["params/total"])) != {number: 1000 + number for number in range(self.count)}:
            found.append(f"what was measured: {values}")
        return found
