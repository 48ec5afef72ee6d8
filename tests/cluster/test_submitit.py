"""``hydra/launcher=submitit_slurm`` on a real Slurm, one with accounting: without it submitit waits for dead jobs forever."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pandas as pd
import pytest

from support.command import run_command, start_command
from support.fatal import ARGUMENTS, measured, write_fatal
from support.slurm import Lab

pytestmark = pytest.mark.slow

LAB = {"ACCT": 1}
SLURM = ("hydra/launcher=submitit_slurm", "shards=2", "hydra.launcher.timeout_min=10")
FAKE = ("model=fake", "backend=fake", "dataset=synthetic", "tracking=none")


def table(folder: Path) -> pd.DataFrame:
    found = pd.read_csv(folder / "comparison.csv")
    memory = [name for name in map(str, found.columns) if name.startswith("memory/")]
    return found.drop(columns=["command", "wall_s", *memory], errors="ignore")


def test_the_table_is_that_of_the_basic_launcher(slurm: Lab, tmp_path: Path) -> None:
    found = []
    for name, launcher in {"basic": [], "slurm": list(SLURM)}.items():
        (tmp_path / name).mkdir()
        steps = ("model.fake.step_s=0.001,0.002", "batch_size=1,2", "compare.baseline={batch_size: 1}")
        ran = run_command(tmp_path / name, *FAKE, *steps, *launcher)
        assert ran.code == 0, (ran.out, ran.err)
        found.append(table(ran.folder("adhoc")))
    assert set(found[1]["status"]) == {"ok"}
    pd.testing.assert_frame_equal(found[0], found[1])
    assert len(set(slurm.jobs("sweeprof"))) >= 2


def test_a_job_that_is_killed_costs_at_most_the_trial_that_kills_it(slurm: Lab, tmp_path: Path) -> None:
    write_fatal(tmp_path)
    ran = run_command(tmp_path, *ARGUMENTS, *SLURM)
    assert ran.code == 2, (ran.out, ran.err)
    folder = ran.folder("adhoc")
    found = table(folder).set_index("model.fake.step_s")["status"].to_dict()
    assert found == {0.003: "lost"} | dict.fromkeys((0.001, 0.002, 0.004, 0.005, 0.006), "ok")
    (tmp_path / "healed").touch()
    again = run_command(tmp_path, "resume=last")
    assert again.code == 0, (again.out, again.err)
    assert set(measured(folder).values()) == {1}


SLOW = """
import time
from sweeprof.backends.fake import FakeModel

def model(step_s):
    time.sleep(1)
    return FakeModel(step_s)
"""


def test_jobs_end_with_their_trial_when_the_driver_is_interrupted(slurm: Lab, tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    steps = ("model.fake._target_=slow.model", "model.fake.step_s=" + ",".join(f"0.{i:03}" for i in range(1, 41)))
    only = ("metrics.select=[latency/forward]", "compare.baseline={batch_size: 1}")
    process = start_command(tmp_path, *FAKE, *steps, *only, *SLURM)
    end = time.monotonic() + 60
    while not list(tmp_path.glob("outputs/*/*/records/*/*.json")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.1)
    os.kill(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, (out, err)
    slurm.wait_until(lambda: set(slurm.jobs("sweeprof").values()) <= {"COMPLETED", "FAILED"}, 30, "jobs have ended")
    (folder,) = tmp_path.glob("outputs/*/*")
    assert len(list(folder.glob("records/*/*.json"))) < 40
    again = run_command(tmp_path, "resume=last")
    assert again.code == 0, (again.out, again.err)
    assert set(measured(folder).values()) == {1}
