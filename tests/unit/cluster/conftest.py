"""Three shards of a plan for a cluster, and a Slurm that answers as it is told."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import yaml

from support.plans import fake_plan, sweep_folder
from support.scripted import ScriptedSlurm
from sweeprof.config.schema import RESOURCES
from sweeprof.paths import conf_folder
from sweeprof.results.record import Json
from sweeprof.storage import Folder

SHARDS = (("ca", "cb"), ("cc", "cd"), ("ce", "cf"))


def _cluster() -> Json:
    settings = yaml.safe_load((conf_folder() / "cluster" / "slurm.yaml").read_text()) | {"poll_s": 0.1}
    asked = {key: settings[key] for key in RESOURCES} | {"cpus": 1, "gpus": 0}
    return {"settings": settings, "resources": [asked, asked, {**asked, "partition": "other"}]}


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ScriptedSlurm:
    return ScriptedSlurm(tmp_path / "slurm", monkeypatch)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    plan = fake_plan({name: {} for name in "abcdef"}, passes=("analysis",))
    return sweep_folder(tmp_path / "out" / "test" / "1", dataclasses.replace(plan, shards=SHARDS, cluster=_cluster()))
