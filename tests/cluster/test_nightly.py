"""docs/recipes/nightly.sbatch on a real Slurm: a job that begins by submitting tomorrow's, whatever becomes of tonight."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from support.nightly import Bench, new_bench
from support.slurm import Lab, clean_environment

NAME = "sweeprof-nightly"
SLOWER_ON_THE_THIRD = """
from pathlib import Path
from sweeprof.backends.fake import FakeModel
def build(step_s):
    nights = len(list(Path("outputs/nightly").iterdir()))
    return FakeModel(step_s=step_s, per_sample_s=0.00001 if nights >= 3 else 0)
"""
SLEEPING = "#!/bin/sh\necho night >>nights.txt\nexec sleep 600\n"


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return new_bench(tmp_path)


def submit(bench: Bench, begin: str, cwd: Path | None = None, **settings: str) -> str:
    """Start the nights as the recipe says; the id of the first."""
    environment = {**clean_environment(), **bench.environment, **settings, "BEGIN": begin}
    words = ["sbatch", "--parsable", "nightly.sbatch" if cwd is None else str(bench.path / "nightly.sbatch")]
    done = subprocess.run(words, cwd=cwd or bench.path, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def in_state(slurm: Lab, *states: str) -> list[str]:
    """The ids of the nights in one of these states, the oldest first."""
    return sorted((id for id, state in slurm.jobs(NAME).items() if state in states), key=int)


def ended(slurm: Lab) -> list[str]:
    return in_state(slurm, "COMPLETED", "FAILED")


@pytest.mark.slow
def test_three_nights_of_which_the_last_is_worse_and_a_fourth_that_waits(slurm: Lab, bench: Bench) -> None:
    (bench.path / "team_model.py").write_text(SLOWER_ON_THE_THIRD)
    known = set(slurm.jobs(NAME))
    first = submit(bench, "now+5", SWEEP_OPTIONS=f"{bench.environment['SWEEP_OPTIONS']} tracking=none")
    slurm.wait_until(lambda: len(set(ended(slurm)) - known) >= 3, 200, "three nights")
    nights = [id for id in ended(slurm) if id not in known][:3]
    out = (bench.path / "nightly.out").read_text()
    assert nights[0] == first
    assert [slurm.details(id)["ExitCode"] for id in nights] == ["0:0", "0:0", "3:0"], out
    assert "| worse | batch_size=8 | latency |" in out
    # A night that is worse does not end the nights.
    slurm.wait_until(lambda: in_state(slurm, "PENDING", "RUNNING") or len(ended(slurm)) > 3, 30, "a fourth night")


@pytest.mark.slow
def test_tomorrow_is_there_before_tonight_has_ended_and_only_once(slurm: Lab, bench: Bench, tmp_path: Path) -> None:
    """Also where Slurm puts tonight back into the queue, and where somebody submits the script a second time."""
    (bench.path / "python").write_text(SLEEPING)
    nights = bench.path / "nights.txt"
    first = submit(bench, "now+1hour", cwd=Path("/"))  # $0 and the working folder say nothing of where the script is
    slurm.wait_until(nights.exists, 60, "the night has begun")
    (tomorrow,) = in_state(slurm, "PENDING")
    assert slurm.details(tomorrow)["Command"] == str(bench.path / "nightly.sbatch")
    assert int(slurm.details(tomorrow)["Restarts"]) == 0

    slurm.scontrol("requeue", first)
    slurm.wait_until(lambda: len(nights.read_text().splitlines()) == 2, 240, "the night has begun again")
    assert in_state(slurm, "PENDING") == [tomorrow]
    second = submit(bench, "now+1hour")
    assert set(in_state(slurm, "PENDING")) == {tomorrow, second}
    slurm.scancel(first)
    slurm.scontrol("update", f"jobid={tomorrow}", "starttime=now")
    slurm.wait_until(lambda: len(nights.read_text().splitlines()) == 3, 60, "tomorrow's night has begun")
    # A job of that name waits for all that were submitted before it; tomorrow's leaves it to this one to go on.
    assert in_state(slurm, "PENDING") == [second]
