"""Launchers that give up: relaunching what is left, and what kills its shard twice is not."""

from __future__ import annotations

import dataclasses
import io
import threading
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import pytest
from rich.console import Console

from support.plans import fake_plan, sweep_folder
from sweeprof.errors import WorkerError
from sweeprof.plan.plan import Plan, Trial
from sweeprof.results.record import Record, read_records
from sweeprof.run import launchers, locks
from sweeprof.run.launchers import MOST_FAILURES, error_line, launch_shards
from sweeprof.storage.events import EventKind, EventLog
from sweeprof.storage.folder import Folder

PLAN = dataclasses.replace(
    fake_plan({name: {} for name in "abcdef"}, passes=("timing",)), shards=(("ca", "cb", "cc"), ("cd", "ce", "cf"))
)


@pytest.mark.parametrize("is_waiting", [False, True])
def test_a_process_that_holds_the_lock_and_measures_nothing_is_not_waited_for_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_waiting: bool
) -> None:
    """Nor is a trial that waits for other sweeps given up."""
    monkeypatch.setattr(launchers, "STARTING_S", 0.2)
    monkeypatch.setattr(locks, "PROBE_S", 0.05)
    plan = dataclasses.replace(PLAN, limits=dataclasses.replace(PLAN.limits, timeout_s=0.1))
    folder = sweep_folder(tmp_path / "sweep", plan)
    held = locks.work_lock(folder.path)
    assert held is not None

    def launch(folder: Folder, plan: Plan, shards: Sequence[int]) -> None:
        Launcher(plan, {})(folder, plan, shards)
        if is_waiting:
            with EventLog(folder.events / "shard-0.jsonl") as events:
                events.write("waiting", Trial("ca", "timing"), waits_for="another sweep")
            threading.Timer(1.0, held.close).start()

    out = io.StringIO()
    with (
        held,
        nullcontext() if is_waiting else pytest.raises(WorkerError, match=r"no trial .* for 0\.3 s, but .*work\.lock"),
    ):
        launch_shards(plan, folder, launch, Console(file=out, width=200))
    assert "waiting for shards that still run" in out.getvalue()


class Launcher:
    """Runs shards trial by trial in turn; a trial that kills ends its shard and, where ``all_die``, every other one."""

    def __init__(self, plan: Plan, kills: dict[str, int], all_die: bool = False) -> None:
        self.plan, self.kills, self.all_die = plan, kills, all_die
        self.launches: list[list[int]] = []

    def __call__(self, folder: Folder, plan: Plan, shards: Sequence[int]) -> None:
        self.launches.append(list(shards))
        todo = {
            shard: [id for id in self.plan.shards[shard] if not folder.is_done(Trial(id, "timing"))] for shard in shards
        }
        dead = 0
        while any(todo.values()):
            begun = {shard: ids.pop(0) for shard, ids in todo.items() if ids}
            for shard, id in begun.items():
                self.tell(folder, shard, "begin", id)
            killing = {shard for shard, id in begun.items() if self.kills.get(id, 0)}
            for shard in killing:
                self.kills[begun[shard]] -= 1
                todo[shard].clear()
            dead += len(killing)
            if killing and self.all_die:
                break
            for shard, id in begun.items():
                if shard not in killing:
                    Record(self.plan.sweep_id, id, "timing", "ok").write(folder.records)
                    self.tell(folder, shard, "end", id)
        if dead:
            raise RuntimeError("a job died\nand much more")

    def tell(self, folder: Folder, shard: int, kind: EventKind, id: str) -> None:
        with EventLog(folder.events / f"shard-{shard}.jsonl") as events:
            events.write(kind, Trial(id, "timing"))


def run(tmp_path: Path, launcher: Launcher) -> tuple[dict[str, str], str]:
    """The status of every trial, and what was said."""
    folder, said = sweep_folder(tmp_path, PLAN), Console(file=io.StringIO(), width=200)
    launch_shards(PLAN, folder, launcher, said)
    assert isinstance(said.file, io.StringIO)
    return {r.combination_id: r.status for r in read_records(folder.records)}, said.file.getvalue()


FINE = {f"c{name}": "ok" for name in "abcdef"}


@pytest.mark.parametrize("all_die", [False, True])
def test_a_job_that_died_once_costs_nothing(tmp_path: Path, all_die: bool) -> None:
    launcher = Launcher(PLAN, {"cb": 1}, all_die)
    found, said = run(tmp_path, launcher)
    assert found == FINE
    assert launcher.launches == [[0, 1], [0, 1] if all_die else [0]]
    assert "the launcher failed: RuntimeError: a job died; relaunching what is left\n" in said


@pytest.mark.parametrize("all_die", [False, True])
def test_what_kills_its_job_each_time_is_lost_and_nothing_else(tmp_path: Path, all_die: bool) -> None:
    found, _ = run(tmp_path, Launcher(PLAN, {"ca": 99, "cf": 99}, all_die))
    assert found == FINE | {"ca": "lost", "cf": "lost"}
    lost = [record for record in read_records(tmp_path / "records") if record.status == "lost"]
    assert {record.reason for record in lost} == {"its shard died twice while it ran (RuntimeError: a job died)"}


def test_a_launcher_that_gets_nowhere_is_not_tried_again(tmp_path: Path) -> None:
    tries = []

    def launch(folder: Folder, plan: Plan, shards: Sequence[int]) -> None:
        tries.append(shards)
        raise RuntimeError("no sbatch here")

    with pytest.raises(RuntimeError, match="no sbatch"):
        launch_shards(PLAN, sweep_folder(tmp_path, PLAN), launch, Console(file=io.StringIO()))
    assert len(tries) == 1


def test_errors_are_told_in_one_line_and_ours_without_their_kind() -> None:
    assert error_line(RuntimeError("a job died\nand much more")) == "RuntimeError: a job died"
    assert error_line(WorkerError("sbatch: invalid partition")) == "sbatch: invalid partition"


def test_an_error_of_ours_means_what_it_says(tmp_path: Path) -> None:
    def launch(folder: Folder, plan: Plan, shards: Sequence[int]) -> None:
        Record(PLAN.sweep_id, "ca", "timing", "ok").write(folder.records)
        raise WorkerError("the sweep is ending")

    with pytest.raises(WorkerError):
        launch_shards(PLAN, sweep_folder(tmp_path, PLAN), launch, Console(file=io.StringIO()))


def test_a_launcher_that_always_fails_is_left_in_the_end(tmp_path: Path) -> None:
    plan = fake_plan({str(number): {} for number in range(MOST_FAILURES)}, passes=("timing",))
    launcher = Launcher(plan, {f"c{number}": 99 for number in range(MOST_FAILURES)})
    with pytest.raises(RuntimeError):
        launch_shards(plan, sweep_folder(tmp_path, plan), launcher, Console(file=io.StringIO()))
    assert len(launcher.launches) == MOST_FAILURES
