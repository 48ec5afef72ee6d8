"""Asks a backend everything, each question in a process of its own, as in a sweep."""

from __future__ import annotations

import copy
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from conformance.cases import BACKENDS, Case
from filelock import FileLock

from support.forked import Sources
from support.planning import composed_of
from sweeprof.plan.plan import environment, preload
from sweeprof.results.record import PassName

TESTS = Path(__file__).parents[1]
GUIDE = TESTS.parent / "docs" / "backends.md"
BATCHES = (1, 3)
SHORT = {"warmup_steps": 2, "warmup_s": 0, "sample_s": 0.0001, "min_samples": 5, "min_s": 0.01, "max_s": 5}
FURTHER: tuple[PassName, ...] = (
    *("training", "own_counts", "artifact", "layer_times", "operators", "allocations", "peaks", "lines"),
)
"""Passes that ask for a capability which not every backend has."""
MISTAKEN: tuple[PassName, ...] = ("timing", "analysis")
"""Those that are asked of models that cannot be made."""

by_backend = pytest.mark.parametrize(
    "backend",
    [pytest.param(name, marks=getattr(pytest.mark, case.mark) if case.mark else ()) for name, case in BACKENDS.items()],
)


def config_of(case: Case, batch: int = 1, model: str | None = None) -> dict[str, Any]:
    """The config of a backend with a model of its own."""
    # What the guide adds has its YAML in a folder of the user's.
    search = [] if case.config != "numpy" else [f"hydra.searchpath=[file://{guide_folder()}/mine]"]
    chosen = f"model={model or case.model}"
    config = composed_of(chosen, f"backend={case.config}", f"batch_size={batch}", "tracking=none", *search)
    config["protocol"].update(SHORT)
    return config


def questions(case: Case) -> Iterator[tuple[str, dict[str, Any]]]:
    """Name and content of every question; first the one that others need not wait for."""
    yield "exhaust", {"task": "exhaust", "config": config_of(case, 3), "exhaust": case.exhaust}
    for batch in BATCHES:
        for name in ("analysis", "quality"):
            yield f"{name}-{batch}", {"task": "run_pass", "pass": name, "config": config_of(case, batch)}
    yield "memory-3", {"task": "run_pass", "pass": "memory", "config": config_of(case, 3)}
    for model in case.models[1:]:
        for name in ("analysis", "quality"):
            yield f"{name}-{model}", {"task": "run_pass", "pass": name, "config": config_of(case, 3, model)}
    config = config_of(case, 3)
    for name in FURTHER:
        yield name, {"task": "run_pass", "pass": name, "config": config}
    training = {"mode": "training", "training": {"optimizer": "adam", "loss": "cross_entropy"}}
    # As many samples as make the smallest phase of every backend a seventh of the step: less is not seen on a busy machine.
    yield "trained", {"task": "run_pass", "pass": "timing", "config": {**config_of(case, 64), **training}}
    yield "trained_layers", {"task": "run_pass", "pass": "layer_times", "config": {**config, **training}}
    threaded = copy.deepcopy(config)
    threaded["backend"]["threads"] = 3
    yield "facts", {"task": "facts", "config": threaded, "threads": case.threads}
    yield "timing-3", {"task": "run_pass", "pass": "timing", "config": config}
    lost = {"another": {"_target_": "builtins.str"}}
    yield "lost-timing", {"task": "run_pass", "pass": "timing", "config": {**config, "model": lost}}
    mistakes = {"wrong": {"_target_": "builtins.str"}, "raising": {"_target_": "builtins.int", "_args_": ["no luck"]}}
    for mistake, node in mistakes.items():
        for name in MISTAKEN:
            made = {config["backend"]["framework"]: node}
            yield f"{mistake}-{name}", {"task": "run_pass", "pass": name, "config": {**config, "model": made}}


shared: list[Path] = []
"""The folder that all workers of this run share."""
forking: list[Sources] = []
"""What converts models for this worker."""


@pytest.fixture(scope="session", autouse=True)
def _shared_folder(tmp_path_factory: pytest.TempPathFactory, forks: Sources) -> None:
    own = tmp_path_factory.getbasetemp()
    shared[:] = [own.parent if "PYTEST_XDIST_WORKER" in os.environ else own]
    forking[:] = [forks]


@cache
def guide_folder() -> Path:
    """The files that docs/backends.md tells to write, written once per run."""
    folder = shared[0] / "guide"
    with FileLock(shared[0] / "guide.lock"):
        if not folder.exists():
            write_guide(folder)
    return folder


def write_guide(folder: Path) -> None:
    """The guide's files: a block of code belongs to the file that was named last."""
    text = GUIDE.read_text(encoding="utf-8")
    named = ""
    for name, language, block in re.findall(r"`([\w/]+\.(?:py|yaml))`|```(python|yaml)\n(.*?)```", text, re.DOTALL):
        named = name or named
        if language:
            path = folder / named
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a", encoding="utf-8") as file:
                file.write(block + "\n\n")


@cache
def answers(backend: str, only: str = "") -> dict[str, dict[str, Any]]:
    """Every answer of a backend, from one process that imports it and forks for each question; asked once per run.

    Args:
        only: ask, and return, no more than the questions whose names begin so.
    """
    folder = shared[0] / f"conformance-{backend}{only}"
    with FileLock(shared[0] / f"conformance-{backend}{only}.lock"):
        if not folder.exists():
            folder.mkdir()
            ask(BACKENDS[backend], folder, only)
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("*.json")}


def ask(case: Case, folder: Path, only: str = "") -> None:
    """Put every question to the backend, or those whose names begin with ``only``; a file per answer."""
    config = config_of(case)
    tasks = {name: question for name, question in questions(case) if name.startswith(only)}
    asked = {"preload": preload(config, "analysis"), "forks": str(forking[0].folder), "tasks": tasks}
    places = os.pathsep.join(map(str, (TESTS, guide_folder())))
    subprocess.run(
        [sys.executable, "-m", "support.conforming", str(folder)],
        input=json.dumps(asked),
        text=True,
        cwd=TESTS.parent,
        # What a backend keeps for next time is this run's own.
        env={**os.environ, **environment(config), "PYTHONPATH": places, "XDG_CACHE_HOME": str(shared[0] / "cache")},
        check=True,
        capture_output=True,
    )


def answer(backend: str, name: str) -> Any:
    """What was answered; an error is the test's."""
    return _without_error(answers(backend)[name])


def torch_quality(name: str) -> Any:
    """What torch answered to a question about the pass quality; only those are asked, unless torch is tested in this run, too."""
    is_tested = (shared[0] / "conformance-torch").exists()
    return _without_error(answers("torch", "" if is_tested else "quality")[name])


def _without_error(found: dict[str, Any]) -> Any:
    assert "answer" in found, found.get("trace")
    return found["answer"]


def pass_data(backend: str, name: str, type: str) -> Any:
    """The observations of a pass, as plain data."""
    found = answer(backend, name)
    assert found["type"] == type
    return found["data"]


def gaps(backend: str) -> Any:
    """Kind and reason by capability."""
    return answer(backend, "facts")["gaps"]


def needs(backend: str, capability: str, name: str) -> None:
    """Skip the test where the backend lacks the capability, and name the gap that it declares.

    Args:
        name: the question that the test is about. It must have been answered with the declared gap; or with the reason that
            the case declares for it, where a backend has a capability and not for this variant or model.

    The test fails where neither is declared.
    """
    found = answers(backend)[name]
    reason = BACKENDS[backend].refuses.get(name)
    if capability not in answer(backend, "facts")["capabilities"]:
        declared = gaps(backend)
        assert capability in declared, f"{backend} lacks {capability} and declares no gap"
        assert reason is None, f"{backend} lacks {capability} altogether: its case need not say why it refuses {name}"
        reason = ": ".join(declared[capability])
    if reason is None:
        return
    assert (found.get("error"), found.get("message")) == ("Unsupported", reason), f"{name} was answered: {found}"
    pytest.skip(f"{backend} has no {capability} ({name}): {reason}")
