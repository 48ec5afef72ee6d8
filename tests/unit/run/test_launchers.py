"""What is known of launchers."""

from __future__ import annotations

import dataclasses
import io
import os
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from support.plans import fake_plan, sweep_folder
from sweeprof.errors import WorkerError
from sweeprof.plan import plan
from sweeprof.plan.plan import Plan, Trial, parallel_jobs
from sweeprof.results.files import write_json
from sweeprof.run import launchers, locks
from sweeprof.run.launchers import GPUS, error_line, launch_shards, restore_gpus
from sweeprof.storage import EventLog, Folder

PLUGINS = "hydra_plugins.hydra_"


@pytest.mark.parametrize(
    ("launcher", "jobs"),
    [
        ({"_target_": "hydra._internal.core_plugins.basic_launcher.BasicLauncher"}, 1),
        ({"_target_": f"{PLUGINS}joblib_launcher.joblib_launcher.JoblibLauncher", "n_jobs": 3}, 3),
        ({"_target_": f"{PLUGINS}joblib_launcher.joblib_launcher.JoblibLauncher", "n_jobs": -2}, 7),
        ({"_target_": f"{PLUGINS}ray_launcher.ray_launcher.RayLauncher", "ray": {"init": {"num_cpus": 5}}}, 5),
        ({"_target_": f"{PLUGINS}ray_launcher.ray_launcher.RayLauncher", "ray": {"init": {"address": None}}}, 8),
        ({"_target_": f"{PLUGINS}submitit_launcher.submitit_launcher.LocalLauncher", "nodes": 1}, 8),
        ({"_target_": f"{PLUGINS}submitit_launcher.submitit_launcher.SlurmLauncher", "array_parallelism": 2}, 2),
        ({"_target_": f"{PLUGINS}submitit_launcher.submitit_launcher.SlurmLauncher", "array_parallelism": 256}, 8),
        ({"_target_": "hydra_plugins.somebodys.Launcher"}, 8),
    ],
)
def test_how_many_run_at_once(launcher: dict[str, Any], jobs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "usable_processors", lambda: 8)
    assert parallel_jobs(launcher) == jobs


DRIVER = {"pid": 1, "user": None, "token": "0123456789abcdef"}


@pytest.mark.parametrize(
    ("of_head", "of_job", "then"),
    [(None, "", None), ("2,3", "", "2,3"), ("", "", ""), ("2,3", "3", "3"), (None, None, None)],
)
def test_gpus_that_a_launcher_hides_are_seen_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of_head: str | None, of_job: str | None, then: str | None
) -> None:
    write_json(tmp_path / "driver.json", {**DRIVER, "host": socket.gethostname(), "gpus": of_head})
    monkeypatch.setenv(GPUS, of_job) if of_job is not None else monkeypatch.delenv(GPUS, raising=False)
    restore_gpus(tmp_path)
    assert os.environ.get(GPUS) == then


def test_gpus_of_another_host_say_nothing_of_this_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_json(tmp_path / "driver.json", {**DRIVER, "host": "elsewhere", "gpus": None})
    monkeypatch.setenv(GPUS, "")
    restore_gpus(tmp_path)
    assert os.environ[GPUS] == ""


PLAN = dataclasses.replace(
    fake_plan({name: {} for name in "abcdef"}, passes=("timing",)), shards=(("ca", "cb", "cc"), ("cd", "ce", "cf"))
)


@pytest.mark.slow
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


def test_shards_that_run_when_a_launcher_fails_are_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "PROBE_S", 0.05)
    folder = sweep_folder(tmp_path / "sweep", PLAN)
    held = locks.work_lock(folder.path)
    assert held is not None
    released: list[float] = []

    def release() -> None:
        released.append(time.monotonic())
        held.close()

    def launch(folder: Folder, plan: Plan, shards: Sequence[int]) -> None:
        threading.Timer(0.5, release).start()
        raise RuntimeError("one of its jobs died")

    with pytest.raises(RuntimeError, match="one of its jobs died"):
        launch_shards(PLAN, folder, launch, Console(file=io.StringIO()))
    assert released


def test_errors_are_told_in_one_line_and_ours_without_their_kind() -> None:
    assert error_line(RuntimeError("a job died\nand much more")) == "RuntimeError: a job died"
    assert error_line(WorkerError("sbatch: invalid partition")) == "sbatch: invalid partition"
