"""Plans of fake combinations, the folder of a sweep and its records, and fake models."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from support.planning import fake_config
from sweeprof.backends.fake import FakeModel
from sweeprof.config.schema import IDENTITY, LimitSettings
from sweeprof.errors import Damaged
from sweeprof.plan.plan import Combination, Plan, in_shards
from sweeprof.results.files import write_json
from sweeprof.results.record import PassName, Record, stored_record
from sweeprof.storage import Folder

QUICK = {"warmup_steps": 0, "warmup_s": 0, "sample_s": 0, "min_samples": 3, "min_s": 0, "max_s": 5}


def fake_plan(
    models: Mapping[str, Mapping[str, Any]],
    passes: Sequence[PassName] = ("analysis", "timing"),
    isolation: str = "inline",
    limits: Mapping[str, Any] | None = None,
    rounds: int = 1,
    metrics: Sequence[str] = ("compute/macs", "latency/forward"),
) -> Plan:
    """One combination per entry of ``models``: a label and the fake model's arguments; the first is the baseline."""
    base = fake_config()
    combinations = []
    for label, arguments in models.items():
        config = {key: base[key] for key in IDENTITY}
        config["model"] = {"fake": {"_target_": "sweeprof.backends.fake.FakeModel", **arguments}}
        config["protocol"] = {**config["protocol"], **QUICK, "rounds": rounds}
        config["dataset"] = {"_target_": "sweeprof.datasets.arrays.Synthetic", "shape": [2, 3], "samples": 4}
        axes = {"model": label, "backend": "fake", "device": "cpu", "batch_size": config["batch_size"]}
        combinations.append(Combination(f"c{label}", axes, config, f"python -m sweeprof model={label}"))
    baseline = {"model": next(iter(models), "")}
    return Plan(
        sweep_id="s1",
        name="test",
        created="2026-11-21T00:30:00+00:00",
        command="python -m sweeprof",
        axes={"model": list(models), "backend": ["fake"], "device": ["cpu"], "batch_size": [1]},
        baseline=baseline,
        combinations=tuple(combinations),
        excluded=(),
        shards=in_shards(combinations, baseline, 1),
        passes=tuple(passes),
        metrics=list(metrics),
        threshold=0.05,
        limits=LimitSettings(**{"timeout_s": None, "memory": None, **(limits or {})}),
        isolation=isolation,
    )


def sweep_folder(path: Path, plan: Plan) -> Folder:
    """The folder of a sweep of which nothing has been measured."""
    folder = Folder(path)
    write_json(folder.plan, plan.to_dict())
    write_json(path / "environment.json", {})
    return folder


_generator = np.random.default_rng(0)


def seed_noise(number: int = 0) -> None:
    """Begin the sequence of times of noisy models again."""
    global _generator  # noqa: PLW0603
    _generator = np.random.default_rng(number)


def noisy(step_s: float, spread: float = 0.0, build_s: float = 0.0) -> FakeModel:
    """A model, built in ``build_s`` of real time, whose step takes ``step_s`` times a log-normal factor drawn then."""
    time.sleep(build_s)
    return FakeModel(step_s=step_s * float(np.exp(spread * _generator.standard_normal())))


def read_records(records: Path) -> list[Record]:
    """Every record below the folder, in the order of their paths; damaged files are left out."""
    stored_records = []
    for path in sorted(records.glob("*/*-r*.json")):
        with suppress(Damaged, OSError):
            stored_records.append(stored_record(path))
    return stored_records


def saying_gpus() -> FakeModel:
    """A fake model; the process's log has the GPUs that it may see."""
    print(f"visible: {os.environ.get('CUDA_VISIBLE_DEVICES')}")
    return FakeModel()
