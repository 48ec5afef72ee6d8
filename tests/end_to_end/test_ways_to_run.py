"""The ways of the README to run it: launchers, overrides, trackers, a wheel, a folder of one's own."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pandas as pd
import pytest

import sweeprof
from support.command import NOTING, QUIET, Command, environment, folder_of, start_command
from support.planning import write_configs

ROOT = Path(__file__).parents[2]
FAKE = ("model=fake", "backend=fake", "dataset=synthetic")
UNTRACKED = (*FAKE, "tracking=none")


def _table(folder: Path) -> pd.DataFrame:
    return pd.read_csv(folder / "comparison.csv")


def test_a_fake_sweep_is_exact(called: Command) -> None:
    select = "metrics.select=[latency/forward,throughput/samples_per_s]"
    ran = called(*UNTRACKED, "batch_size=1,4", "model.fake.step_s=0.002,0.003", "backend.slowdown=1.0,1.5", select)
    assert ran.code == 0, ran.err
    table = _table(ran.folder("adhoc"))
    assert len(table) == 8
    expected = table["model.fake.step_s"] * table["backend.slowdown"]
    assert list(table["latency/forward"]) == pytest.approx(list(expected))
    assert list(table["throughput/samples_per_s"]) == pytest.approx(list(table["batch_size"] / expected))


@pytest.mark.thorough
def test_a_sweep_is_put_below_the_run_that_the_environment_names(
    called: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow import MlflowClient

    (tmp_path / "outputs").mkdir()
    client = MlflowClient(f"sqlite:///{tmp_path}/outputs/mlflow.db")
    experiment = client.create_experiment("training", (tmp_path / "outputs" / "artifacts").as_uri())
    run = client.create_run(experiment).info.run_id
    monkeypatch.setattr("support.command.QUIET", {**QUIET, "MLFLOW_RUN_ID": run})
    ran = called(*FAKE, "metrics=latency", "protocol=quick")
    assert ran.code == 0, ran.err
    (sweep,) = client.search_runs([experiment], f"tags.mlflow.parentRunId = '{run}'")
    assert "best/latency/forward_ms" in sweep.data.metrics
    (child,) = client.search_runs([experiment], f"tags.mlflow.parentRunId = '{sweep.info.run_id}'")
    assert child.data.params["backend.threads"] == "1"
    with start_command(tmp_path, "ui", "--port", "0", "--no-browser") as viewer:
        assert viewer.stdout is not None
        first = viewer.stdout.readline()
        viewer.terminate()
    assert first.startswith("Table")
    assert f"experiments/{experiment}/" in first
    assert called(*UNTRACKED, "metrics=latency", "protocol=quick").code == 0
    ran = called("sync", "last")
    assert ran.code == 0, ran.err
    assert len(client.search_runs([experiment], f"tags.mlflow.parentRunId = '{run}'")) == 2


def _ended_well(command: list[str], cwd: Path, variables: dict[str, str] | None = None) -> str:
    """What a command printed that succeeded."""
    done = subprocess.run(command, cwd=cwd, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_wheel_runs_from_any_directory(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path / "dist"), str(ROOT)]
    _ended_well(build, ROOT)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
        names = set(archive.namelist())
    assert wheel.name.startswith(f"sweeprof-{sweeprof.__version__}-")
    tracked = _ended_well(["git", "ls-files", "sweeprof", "hydra_plugins", "conf"], ROOT)
    expected = {f"sweeprof/{name}" if name.startswith("conf/") else name for name in tracked.split()}
    assert {"sweeprof/py.typed", "sweeprof/conf/sweep/quickstart.yaml"} <= expected
    assert {name for name in names if ".dist-info/" not in name} == expected
    away = tmp_path / "away"
    away.mkdir()
    variables = {**environment(away), "PYTHONPATH": str(tmp_path / "site")}
    _ended_well([sys.executable, "-m", "sweeprof", *UNTRACKED], away, variables)
    (folder,) = (away / "outputs" / "adhoc").iterdir()
    assert list(_table(folder)["status"]) == ["ok"]


@pytest.mark.thorough
def test_a_reader_that_leaves_harms_nothing(tmp_path: Path) -> None:
    """As ``python -m sweeprof … | head -1`` does."""
    (tmp_path / "noting.py").write_text(NOTING)
    process = start_command(tmp_path, *FAKE, "batch_size=1,2", "tracking._target_=noting.Noting")
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    with process.stderr:
        said = process.stderr.read()
    assert process.wait(timeout=120) == 0, said
    assert json.loads((folder_of(tmp_path) / "noted.json").read_text()) == [None, "finished"]


@pytest.mark.slow
def test_output_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    # What is printed is then written when the process ends.
    variables = {**environment(tmp_path), "PYTHONUNBUFFERED": ""}
    command = [sys.executable, "-m", "sweeprof", "--version"]
    with Path("/dev/full").open("w") as full:
        ran = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env=variables, check=False)
    assert ran.returncode == 120
    assert ran.stderr == "error: the output could not be written: No space left on device\n"


OWN_CODE = """
import numpy as np
from sweeprof import metric
from sweeprof.backends.fake import FakeModel
from sweeprof.datasets import Split

class Data:
    sample_shape, channel_axis = (2, 3), None

    def split(self, name):
        return Split(np.zeros((8, 2, 3), np.float32), None)

def build(step_s):
    return FakeModel(step_s)

@metric(name="own/samples", unit="", better="higher")
def samples(batch_size) -> float:
    return batch_size
"""
OWN = (
    *("model=fake", "backend=fake", "tracking=none", "metrics.select=[latency/forward,{_target_: own_code.samples}]"),
    *("model.fake._target_=own_code.build", "dataset=own"),
)


def _script(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The installed command ``sweeprof``, which Python starts without the working directory in its search path."""
    command = [str(Path(sys.executable).with_name("sweeprof")), *arguments, f"limits.locks={folder}/locks"]
    variables = {key: value for key, value in environment(folder).items() if key != "PYTHONPATH"}
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=200, check=False)


@pytest.mark.slow
def test_the_command_finds_modules_of_the_working_directory(tmp_path: Path) -> None:
    (tmp_path / "own_code.py").write_text(OWN_CODE)
    write_configs(tmp_path / "configs", {"dataset/own": "_target_: own_code.Data\n"})
    for name in ("random.py", "yaml.py"):  # they must replace neither Python's nor a package's
        (tmp_path / name).write_text("raise SystemExit('a module of the user was imported instead')\n")
    (tmp_path / "numpy").mkdir()
    (tmp_path / "numpy" / "__init__.py").write_text("raise SystemExit('a package of the user was imported instead')\n")
    for words in (["hydra.job.chdir=true", "name=inside"], []):
        done = _script(tmp_path, "--config-dir", "configs", *OWN, *words)
        assert done.returncode == 0, done.stderr
    (table,) = tmp_path.glob("outputs/adhoc/*/comparison.csv")
    assert list(pd.read_csv(table)["own/samples"]) == [1]
    done = _script(tmp_path, "model=fake", "backend=fake", "tracking=none", "model.fake._target_=own_cod.build")
    assert "model.fake._target_: 'own_cod.build'" in done.stderr
    assert done.returncode == 1


@pytest.mark.slow
def test_a_working_directory_that_was_removed_is_one_error(tmp_path: Path) -> None:
    script = Path(sys.executable).with_name("sweeprof")
    for number, command in enumerate((f"{sys.executable} -m sweeprof report last", f"{script} {' '.join(UNTRACKED)}")):
        gone = tmp_path / f"gone-{number}"
        gone.mkdir()
        words = f"cd {gone} && rmdir {gone} && {command}"
        variables = environment(tmp_path)
        done = subprocess.run(["sh", "-c", words], env=variables, capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert done.stderr == "error: the working directory was removed; change to one that exists\n"


@pytest.mark.slow
def test_paths_with_a_home_folder_or_a_variable(
    called: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATA", str(tmp_path / "data"))  # HOME is tmp_path
    write_configs(tmp_path / "configs", {"sweep/small": "output: $DATA/out\n"})
    (tmp_path / "noting.py").write_text(NOTING)
    tracking = ("tracking._target_=noting.Noting", "tracking.uri=sqlite:///~/store.db")
    ran = called("--config-dir=~/configs", "+sweep=small", *FAKE, *tracking, "limits.locks=~/locks")
    assert ran.code == 0, ran.err
    (folder,) = tmp_path.glob("data/out/small/*")
    assert (folder / "report.html").is_file()
    assert (tmp_path / "locks").is_dir()
    assert json.loads((folder / "noted.json").read_text()) == [f"sqlite:///{tmp_path}/store.db", "finished"]
    assert not list(tmp_path.glob("~*")) + list(tmp_path.glob("$*"))
    assert called("report", "last", "--output=~/data/out").code == 0
    compared = called("compare", f"~/data/out/small/{folder.name}", "last", "--output=$DATA/out", "--tag", "night")
    assert "is the same sweep as BASE" in compared.err  # both were found
    resumed = called(*UNTRACKED, "resume=~/nothing")
    assert resumed.err.startswith(f"error: resume: '{tmp_path}/nothing' is not the folder")


def test_an_argument_that_follows_the_output_is_the_same_alone_and_in_a_sweep(called: Command) -> None:
    model = ("model.fake._target_=builtins.dict", "model.fake.path=${output}/a.onnx")
    alone = called(*UNTRACKED, *model, "output=~/out", "dry_run=true")
    (combination,) = re.findall(r"\bc[0-9a-f]{12}\b", alone.out)
    assert combination in called(*UNTRACKED, *model, "output=~/out", "dry_run=true", "batch_size=1,2").out
