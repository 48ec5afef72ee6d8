"""What is known of launchers."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from sweeprof.plan import plan
from sweeprof.plan.plan import parallel_jobs
from sweeprof.results.files import write_json
from sweeprof.run.launchers import GPUS, restore_gpus, set_defaults

PLUGINS = "hydra_plugins.hydra_"


@pytest.mark.parametrize(
    ("launcher", "jobs"),
    [
        ({"_target_": "hydra._internal.core_plugins.basic_launcher.BasicLauncher"}, 1),
        ({"_target_": f"{PLUGINS}joblib_launcher.joblib_launcher.JoblibLauncher", "n_jobs": 3}, 3),
        ({"_target_": f"{PLUGINS}joblib_launcher.joblib_launcher.JoblibLauncher", "n_jobs": -1}, 8),
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


def test_workers_of_a_ray_of_ones_own_are_as_other_processes() -> None:
    launcher: dict[str, Any] = {"_target_": f"{PLUGINS}ray_launcher.ray_launcher.RayLauncher"}
    own = {**launcher, "ray": {"init": {"address": None}, "remote": {"max_retries": 2}}}
    set_defaults(own)
    assert own["ray"]["init"]["_system_config"]["worker_niceness"] == 0
    assert own["ray"]["remote"] == {"max_retries": 2}
    others = {**launcher, "ray": {"init": {"address": "ray://there"}, "remote": {}}}
    set_defaults(others)
    assert others["ray"] == {"init": {"address": "ray://there"}, "remote": {}}


DRIVER = {"pid": 1, "user": None, "token": "0123456789abcdef"}


@pytest.mark.parametrize(
    ("of_head", "of_job", "then"),
    [
        (None, "", None),
        ("2,3", "", "2,3"),
        ("", "", ""),
        (None, "1", "1"),
        ("2,3", "3", "3"),
        (None, None, None),
    ],
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
