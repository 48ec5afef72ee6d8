"""``sweeprof.sweep``: a sweep that a program starts, its mistakes, and what is kept when the program is interrupted or killed."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from hydra.core.global_hydra import GlobalHydra
from torch import nn

import sweeprof
from support.command import environment, lock_folder, wait_for
from support.processes import left_after

CHILD = "sweeprof.cli.from_python:run_in_child"
AXES = {"batch_size": np.array([1, 4]), "model.fake.step_s": (0.002, 0.003)}
FAKE = {"model": "fake", "backend": "fake", "dataset": "synthetic", "tracking": "none", "metrics": "latency"}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the fake sweep was run."""
    return tmp_path_factory.mktemp("home")


@contextmanager
def inside(folder: Path) -> Iterator[dict[str, Any]]:
    """With a clean environment in a folder; yields settings of sweeps with host locks of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name in set(os.environ) - set(environment(folder)):
            patch.delenv(name)
        for name, value in environment(folder).items():
            patch.setenv(name, value)
        yield {"limits.locks": lock_folder(folder)}


@pytest.fixture(scope="module")
def fake(home: Path) -> sweeprof.Comparison:
    """Four fake combinations, measured from here; the process of the program is as it was."""
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGURG)]
    threads = threading.enumerate()
    with inside(home) as locks:
        settings: dict[str, Any] = {
            **FAKE,
            "name": "mine",
            "compare.baseline": {"batch_size": 1},
            "protocol.rounds": 2,
            **locks,
        }
        comparison = sweeprof.sweep(AXES, progress=False, **settings)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGURG)] == before
    assert set(threading.enumerate()) <= set(threads)  # those of an earlier test may end meanwhile
    assert not GlobalHydra.instance().is_initialized()
    return comparison


@pytest.mark.slow
def test_a_sweep_is_that_of_the_command_line(home: Path, fake: sweeprof.Comparison) -> None:
    assert fake.folder.parent == home / "outputs" / "mine"
    values = {(row.axes["batch_size"], row.axes["model.fake.step_s"]): row for row in fake.rows}
    assert set(values) == {(1, 0.002), (1, 0.003), (4, 0.002), (4, 0.003)}
    for (_, step_s), row in values.items():
        assert row.cells["latency/forward"].measurement.value == pytest.approx(step_s)
    words = "batch_size=1,4 model.fake.step_s=0.002,0.003 model=fake backend=fake dataset=synthetic"
    assert fake.command.startswith(f"python -m sweeprof {words} ")
    assert fake.baseline == {"batch_size": 1}


@pytest.mark.slow
def test_the_comparison_has_the_best_row(fake: sweeprof.Comparison) -> None:
    assert "4 of 4 combinations measured." in fake.answer
    assert fake.best("latency/forward").axes["model.fake.step_s"] == 0.002
    fastest = fake.best("throughput/samples_per_s").axes
    assert (fastest["batch_size"], fastest["model.fake.step_s"]) == (4, 0.002)
    with pytest.raises(
        sweeprof.UserError, match=r"'latency/forwrd' is not a metric of the sweep. Did you mean 'latency/forward'"
    ):
        fake.best("latency/forwrd")


@pytest.mark.slow
def test_the_best_row_fulfils_the_constraints(fake: sweeprof.Comparison) -> None:
    slow = [row for row in fake.rows if row.axes["model.fake.step_s"] == 0.003]
    missing = [dataclasses.replace(row, misses=("latency > 2.5 ms: 2 ms",)) for row in fake.rows if row not in slow]
    best = dataclasses.replace(fake, rows=(*missing, *slow)).best("latency/forward").axes
    assert best["model.fake.step_s"] == 0.003
    with pytest.raises(
        sweeprof.UserError, match="has no value of a combination with right outputs that fulfils the constraints"
    ):
        dataclasses.replace(fake, rows=tuple(missing)).best("latency/forward")


class Net(nn.Linear):
    """A model of this module, which a worker can import only if it is a file on its path."""


def test_every_mistake_of_the_arguments_is_one_line() -> None:
    own = type("Net", (nn.Module,), {"__module__": "__main__", "__qualname__": "Net"})
    local = type("Local", (nn.Module,), {"__module__": "support.nets", "__qualname__": "f.<locals>.Local"})
    gone = type("Gone", (nn.Module,), {"__module__": "support.nets", "__qualname__": "Gone"})
    axes = {"model": [own, local, gone, nn.Linear(2, 2)], "batch_sise": [], "a key": [1], "seed": [0]}
    with pytest.raises(sweeprof.UserError) as caught:
        sweeprof.sweep(axes, seed=1, dry_run=True, threads=object())
    expected = {
        "dry_run": "measures nothing",
        "model": "is defined in this notebook or program, from which the workers cannot import it: move it to a module",
        "batch_sise": "has no values",
        "axes": "is not a key of the config",
        "seed": "is given twice",
        "threads": "must be a text, a number",
    }
    found = [(problem.key, problem.allowed) for problem in caught.value.problems]
    assert [key for key, _ in found] == ["dry_run", *["model"] * 4, "batch_sise", "axes", "seed", "threads"]
    for key, message in expected.items():
        assert message in dict(found[::-1])[key]
    of_models = [message for key, message in found if key == "model"]
    assert "within a function" in of_models[1]
    assert "is not what the workers import as support.nets.Gone" in of_models[2]
    assert "give the class" in of_models[3]
    with pytest.raises(sweeprof.UserError, match="either names of configs, or classes"):
        sweeprof.sweep({"model": ["mlp", nn.Linear]})


@pytest.mark.slow
def test_every_mistake_of_the_config_is_an_error(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with inside(tmp_path), pytest.raises(sweeprof.UserError) as caught:
        sweeprof.sweep({"model": ["mpl"], "batch_sise": [1, 2]}, protocol="shrt", progress=False)
    problems = [(problem.key, problem.value, problem.nearest) for problem in caught.value.problems]
    assert problems == [("model", "mpl", "mlp"), ("batch_sise", "1,2", "batch_size"), ("protocol", "shrt", "short")]
    assert caught.value.__cause__ is None
    assert capfd.readouterr() == ("", "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.thorough
def test_classes_of_a_module_of_ones_own(tmp_path: Path) -> None:
    """The module is found as this program finds it, in a folder that is not the working directory."""
    source, work = tmp_path / "source", tmp_path / "work"
    source.mkdir()
    work.mkdir()
    program = (
        "from torch import nn\n\n\n"
        "class Wide(nn.Linear):\n    def __init__(self, width):\n        super().__init__(16, width)\n\n\n"
        "def deep(width):\n    return nn.Sequential(nn.Linear(16, width), nn.Linear(width, 4))\n"
    )
    (source / "own_nets.py").write_text(program)
    with inside(work) as locks, pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(source))
        import own_nets  # type: ignore[import-not-found]

        settings: dict[str, Any] = {**FAKE, "backend": "torch", "metrics": "static", "dataset.shape": [16], **locks}
        del settings["model"]
        axes = {"model": [own_nets.Wide, own_nets.deep], "model.torch.width": [8, 16]}
        bars: list[tuple[str, int, int]] = []
        patch.setattr("sweeprof.text.StatusLine.can_show", lambda self: True)  # as on a terminal
        patch.setattr("sweeprof.text.StatusLine.show", lambda self, *shown: bars.append(shown))
        comparison = sweeprof.sweep(axes, **settings)
    assert {total for _, _, total in bars} == {4}, "a bar shows how far the sweep is"
    params = [row.cells["params/total"].measurement.value for row in comparison.rows]
    assert [row.axes["model"] for row in comparison.rows] == ["Wide", "Wide", "deep", "deep"]
    assert params == [17 * 8, 17 * 16, 17 * 8 + 4 * 8 + 4, 17 * 16 + 4 * 16 + 4]


PROGRAM = """
import sweeprof
settings = {settings!r}
axes = {{"batch_size": [1, 2, 4, 8], "model.fake.first_step_s": [0.001, 0.002]}}
if __name__ == "__main__":
    try:
        comparison = sweeprof.sweep(axes, **settings)
    except KeyboardInterrupt as interrupt:
        print("interrupted:", interrupt, flush=True)
        left = sweeprof.Comparison.read("last")
        print("kept:", left.counts()["ok"], "of", len(left.rows), flush=True)
        comparison = sweeprof.sweep(resume="last", progress=False)
    print("complete:", comparison.counts(), flush=True)
"""


def start_program(folder: Path, **options: Any) -> subprocess.Popen[str]:
    """A program that measures eight fake combinations."""
    settings = {**FAKE, "protocol.rounds": 3, "model.fake.step_s": 0.01, "limits.locks": str(lock_folder(folder))}
    (folder / "program.py").write_text(PROGRAM.format(settings=settings))
    return subprocess.Popen([sys.executable, "program.py"], cwd=folder, env=environment(folder), text=True, **options)


def records(folder: Path) -> int:
    return len(list(folder.glob("outputs/adhoc/*/records/*/*.json")))


def children_of_programs(folder: Path) -> list[psutil.Process]:
    """The processes that run sweeps of programs in a folder."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if CHILD in process.cmdline() and process.cwd() == str(folder):
                found.append(process)
    return found


@pytest.mark.slow
def test_an_interrupt_keeps_what_was_measured_and_says_how_to_continue(tmp_path: Path) -> None:
    with start_program(tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        wait_for(lambda: records(tmp_path) >= 8, process)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=240)
    (folder,) = (tmp_path / "outputs" / "adhoc").iterdir()
    message = f"what was measured is kept; continue with sweeprof.sweep(resume={str(folder)!r})"
    first, kept, complete = out.splitlines()
    assert first == f"interrupted: {message}"
    assert kept.endswith(" of 8")
    assert complete == "complete: {'ok': 8}"
    assert "interrupted: complete measurements are kept" in err
    assert left_after(tmp_path, 10) == []


@pytest.mark.slow
def test_a_program_that_is_killed_leaves_no_process_and_keeps_what_was_measured(tmp_path: Path) -> None:
    with start_program(tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        wait_for(lambda: records(tmp_path) >= 8, process)
        assert len(children_of_programs(tmp_path)) == 1
        process.kill()
    assert left_after(tmp_path, 120) == []
    comparison = sweeprof.Comparison.read("last", output=tmp_path / "outputs")
    assert len(comparison.rows) == 8
    assert 0 < sum(row.rounds_complete for row in comparison.rows) < 24


@pytest.mark.slow
def test_a_sweep_that_is_killed_is_an_error_that_says_how_to_continue(tmp_path: Path) -> None:
    with start_program(tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        wait_for(lambda: records(tmp_path) >= 1, process)
        (child,) = children_of_programs(tmp_path)
        child.kill()
        _, err = process.communicate(timeout=60)
    assert "WorkerError: its from python process was killed by SIGKILL (signal 9); what was measured is kept" in err
