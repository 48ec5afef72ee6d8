"""One suite for every backend. A new one adds an entry to BACKENDS."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filelock import FileLock

from support.fakes import composed_of
from sweeprof.profiling.memory import Memory
from sweeprof.profiling.quality import Quality
from sweeprof.profiling.timing import Timing
from sweeprof.results.layers import ROOT, LayerTable
from sweeprof.sweep.isolation import environment, preload

TESTS = Path(__file__).parents[1]
MLP_MACS, MLP_PARAMS = 139_904, 140_106


@dataclass(frozen=True)
class Case:
    """A backend and what to expect of it."""

    config: str
    """Its file under ``conf/backend/``."""
    model: str
    """The file under ``conf/model/`` of the model that it runs."""
    macs: int
    """Per sample of the digits."""
    params: int
    threads: str = ""
    """Evaluates to its threads, after ``backend.threads=3``."""
    trains: bool = True
    """Whether it can time training steps."""
    exhaust: str = "bytearray(2**60)"
    """Runs out of memory when evaluated in a process that has imported it."""


BACKENDS = {
    "torch": Case(
        "torch",
        "mlp",
        MLP_MACS,
        MLP_PARAMS,
        "__import__('torch').get_num_threads()",
        exhaust="__import__('torch').ones(2**50)",
    ),
    "tensorflow": Case(
        "tensorflow",
        "mlp",
        MLP_MACS,
        MLP_PARAMS,
        "__import__('tensorflow').config.threading.get_intra_op_parallelism_threads()",
        trains=False,
        exhaust="__import__('tensorflow').fill([2**44], 1.0)",
    ),
    "fake": Case("fake", "fake", 1 * 32 * 32 * 10, 1000),
}
BATCHES = (1, 3)
SHORT = {"warmup_steps": 2, "warmup_s": 0, "sample_s": 0.0001, "min_samples": 5, "min_s": 0.01, "max_s": 5}


def config_of(case: Case, batch: int = 1) -> dict[str, Any]:
    config = composed_of(f"model={case.model}", f"backend={case.config}", f"batch_size={batch}", "tracking=none")
    config["protocol"].update(SHORT)
    return config


def questions(case: Case) -> Iterator[tuple[str, dict[str, Any]]]:
    for batch in BATCHES:
        for name in ("analysis", "timing", "memory", "quality"):
            yield f"{name}-{batch}", {"task": "run_pass", "pass": name, "config": config_of(case, batch)}
    config = config_of(case, 3)
    yield "again", {"task": "run_pass", "pass": "quality", "config": config}
    trained = {**config, "mode": "training", "training": {"optimizer": "adam", "loss": "cross_entropy"}}
    yield "training", {"task": "run_pass", "pass": "timing", "config": trained}
    threaded = copy.deepcopy(config)
    threaded["backend"]["threads"] = 3
    yield "facts", {"task": "facts", "config": threaded, "threads": case.threads}
    yield "clock", {"task": "clock", "config": config}
    yield "exhaust", {"task": "exhaust", "config": config, "exhaust": case.exhaust}
    yield "bare", {"task": "without_capabilities", "config": config}
    wrong = copy.deepcopy(config)
    wrong["model"] = {config["backend"]["framework"]: {"_target_": "builtins.str"}}
    for name in ("timing", "analysis"):
        yield f"wrong-{name}", {"task": "run_pass", "pass": name, "config": wrong}
    raising = copy.deepcopy(config)
    raising["model"] = {config["backend"]["framework"]: {"_target_": "builtins.int", "_args_": ["no luck"]}}
    for name in ("timing", "analysis"):
        yield f"raising-{name}", {"task": "run_pass", "pass": name, "config": raising}
    lost = copy.deepcopy(config)
    lost["model"] = {"another": {"_target_": "builtins.str"}}
    yield "lost", {"task": "run_pass", "pass": "timing", "config": lost}


shared: list[Path] = []
"""The folder that all workers of this run share."""


@pytest.fixture(scope="session", autouse=True)
def _shared_folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    own = tmp_path_factory.getbasetemp()
    shared[:] = [own.parent if "PYTEST_XDIST_WORKER" in os.environ else own]


@cache
def answers(backend: str) -> dict[str, dict[str, Any]]:
    """Every answer of a backend, from one process that imports it and forks for each question; asked once per run."""
    folder = shared[0] / f"conformance-{backend}"
    with FileLock(shared[0] / f"conformance-{backend}.lock"):
        if not folder.exists():
            folder.mkdir()
            ask(BACKENDS[backend], folder)
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("*.json")}


def ask(case: Case, folder: Path) -> None:
    config = config_of(case)
    asked = {"preload": preload(config, "analysis"), "tasks": dict(questions(case))}
    subprocess.run(
        [sys.executable, "-m", "support.conforming", str(folder)],
        input=json.dumps(asked),
        text=True,
        cwd=TESTS.parent,
        env={**os.environ, **environment(config), "PYTHONPATH": str(TESTS)},
        check=True,
        capture_output=True,
    )


pytestmark = pytest.mark.parametrize("backend", BACKENDS)
batches = pytest.mark.parametrize("batch", BATCHES)


def answer(backend: str, name: str) -> Any:
    found = answers(backend)[name]
    assert "answer" in found, found.get("trace")
    return found["answer"]


def pass_data(backend: str, name: str, type: str) -> Any:
    found = answer(backend, name)
    assert found["type"] == type
    return found["data"]


@batches
def test_analysis(backend: str, batch: int) -> None:
    case = BACKENDS[backend]
    data = pass_data(backend, f"analysis-{batch}", "LayerTable")
    table = LayerTable.from_dict(data)
    assert json.loads(json.dumps(table.to_dict())) == data
    assert (table.macs, table.params, table.trainable) == (batch * case.macs, case.params, case.params)
    assert table.params_bytes == 4 * case.params
    assert (table.uncovered, table.method) == ({}, "shapes")
    assert table.rows[0].path == ROOT
    assert [r.depth for r in table.rows if r.path == ROOT] == [0]


@batches
def test_timing(backend: str, batch: int) -> None:
    data = pass_data(backend, f"timing-{batch}", "Timing")
    timing = Timing.from_dict(data)
    assert len(timing.samples) >= SHORT["min_samples"]
    assert all(0 < sample < 5 for sample in timing.samples)
    assert timing.first_step_s > 0
    assert timing.warmup_steps >= SHORT["warmup_steps"]
    assert sum(timing.samples) * timing.loops >= SHORT["min_s"] * 0.99
    assert timing.unmet == ()


def test_timing_of_training_steps(backend: str) -> None:
    if not BACKENDS[backend].trains:
        found = answers(backend)["training"]
        assert (found["error"], found["message"]) == ("Unsupported", "this backend cannot train")
        return
    timing = Timing.from_dict(pass_data(backend, "training", "Timing"))
    assert list(timing.phases) == ["forward", "backward", "update"]
    assert {len(samples) for samples in timing.phases.values()} == {len(timing.samples)}
    assert all(sample > 0 for samples in timing.phases.values() for sample in samples)
    parts = tuple(map(sum, zip(*timing.phases.values(), strict=True)))
    assert all(part <= whole * 1.001 for part, whole in zip(parts, timing.samples, strict=True))
    assert sum(parts) > 0.8 * sum(timing.samples)
    assert timing.transfers == {}


@batches
def test_memory(backend: str, batch: int) -> None:
    seen = Memory.from_dict(pass_data(backend, f"memory-{batch}", "Memory"))
    assert 0 < seen.rss_baseline_bytes <= seen.rss_peak_bytes
    assert 0 < seen.rss_loaded_bytes <= seen.rss_peak_bytes < 2**33
    assert seen.steps > 0


@batches
def test_quality(backend: str, batch: int) -> None:
    data = pass_data(backend, f"quality-{batch}", "Quality")
    quality = Quality.from_dict(data)
    assert json.loads(json.dumps(quality.to_dict())) == data
    assert quality.outputs.shape == (360, 10)
    assert np.isfinite(quality.outputs).all()
    assert quality.predictions is not None
    assert quality.targets is not None
    assert len(quality.predictions) == len(quality.targets) == 360
    if BACKENDS[backend].model != "fake":
        hits = sum(p == t for p, t in zip(quality.predictions, quality.targets, strict=True))
        assert hits / 360 > 0.95


def outputs(backend: str, name: str) -> Any:
    return Quality.from_dict(pass_data(backend, name, "Quality")).outputs


def test_outputs_are_the_same_on_every_call(backend: str) -> None:
    np.testing.assert_array_equal(outputs(backend, "again"), outputs(backend, "quality-3"))


def test_outputs_do_not_depend_on_the_batch_size(backend: str) -> None:
    np.testing.assert_allclose(outputs(backend, "quality-1"), outputs(backend, "quality-3"), atol=1e-3, rtol=1e-4)


def test_outputs_agree_with_torch(backend: str) -> None:
    if BACKENDS[backend].model == BACKENDS["torch"].model:
        np.testing.assert_allclose(outputs(backend, "quality-3"), outputs("torch", "quality-3"), atol=1e-4)


@pytest.mark.parametrize("name", ["timing-1", "quality-3", "memory-1"])
def test_costs_are_kept(backend: str, name: str) -> None:
    costs = answer(backend, name)["costs"]
    assert set(costs) >= {"build", "measure"}
    assert all(seconds >= 0 for seconds in costs.values())


def test_capabilities_and_devices(backend: str) -> None:
    facts = answer(backend, "facts")
    assert "cpu" in facts["devices"]
    assert len(set(facts["devices"])) == len(facts["devices"])
    assert facts["analyzes"]
    assert facts["measures_memory"]
    assert facts["trains"] == BACKENDS[backend].trains


def test_threads_are_those_of_the_config(backend: str) -> None:
    assert answer(backend, "facts")["threads"] == (3 if BACKENDS[backend].threads else None)


def test_the_clock_advances_with_every_step(backend: str) -> None:
    times = answer(backend, "clock")["times"]
    assert times == sorted(set(times))
    assert 0 < answer(backend, "clock")["resolution"] <= 1e-3


def test_a_step_returns_a_row_per_sample(backend: str) -> None:
    found = answer(backend, "clock")
    assert (found["shape"], found["dtype"]) == ([3, 10], "float32")


def test_running_out_of_memory_is_recognised(backend: str) -> None:
    found = answer(backend, "exhaust")
    assert found["recognised"] is True, found
    assert not answer(backend, "facts")["ordinary_is_out_of_memory"]


@pytest.mark.parametrize("pass_name", ["timing", "analysis"])
def test_a_builder_that_returns_something_else(backend: str, pass_name: str) -> None:
    found = answers(backend)[f"wrong-{pass_name}"]
    assert found["error"] == "TypeError", found
    assert "the model's builder returned a str" in found["message"]


@pytest.mark.parametrize("pass_name", ["timing", "analysis"])
def test_what_a_builder_raises_comes_through(backend: str, pass_name: str) -> None:
    found = answers(backend)[f"raising-{pass_name}"]
    assert found["error"] == "ValueError", found
    assert "no luck" in found["message"]


def test_a_missing_capability_is_unsupported(backend: str) -> None:
    assert answer(backend, "bare") == {
        "analysis": "this backend cannot count layers",
        "memory": "this backend cannot measure memory",
    }


def test_a_missing_builder_is_unsupported(backend: str) -> None:
    found = answers(backend)["lost"]
    framework = config_of(BACKENDS[backend])["backend"]["framework"]
    assert (found["error"], found["message"]) == ("Unsupported", f"the model names no builder for {framework}")
