"""The shell of the recipes alone, with stand-ins for the commands that it calls: every ending, and what a batch job submits."""

from __future__ import annotations

import fcntl
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from support.nightly import RECIPES, Bench, new_bench

STUB = """#!/bin/sh
# Stands for the commands, which then are a matter of milliseconds.
echo "$*" >>calls.txt
case $3 in
compare)
    case "$*" in
    *--fail-on*) echo compared >summary.md; exit "${STUB_COMPARE:-0}" ;;
    *--tag*) mkdir -p outputs/.tags && echo "$4" >outputs/.tags/nightly; exit "${STUB_TAG:-0}" ;;
    esac ;;
sync | prune) exit "${STUB_REST:-0}" ;;
*)
    [ -n "${STUB_EMPTY:-}" ] || { mkdir -p outputs/nightly/$STUB_NIGHT && echo "{}" >outputs/nightly/$STUB_NIGHT/plan.json; }
    exit "${STUB_SWEEP:-0}" ;;
esac
"""


@pytest.fixture
def stubbed(tmp_path: Path) -> Bench:
    """A bench after its first good night, whose commands do and answer what the environment says."""
    bench = new_bench(tmp_path)
    (tmp_path / "python").write_text(STUB)
    assert bench.night(STUB_NIGHT="2026-11-01_02-00-00").returncode == 0
    (tmp_path / "calls.txt").unlink()
    return bench


def tagged(bench: Bench) -> str:
    return (bench.path / "outputs" / ".tags" / "nightly").read_text().strip()


@pytest.mark.parametrize(
    ("answers", "code", "moved"),
    [
        ({}, 0, True),
        ({"STUB_SWEEP": "2"}, 0, True),  # a combination failed, as it did on the night before
        ({"STUB_SWEEP": "2", "STUB_COMPARE": "3"}, 3, False),
        ({"STUB_SWEEP": "1"}, 1, False),
        ({"STUB_SWEEP": "130"}, 1, False),
        ({"STUB_SWEEP": "2", "STUB_EMPTY": "yes"}, 1, False),  # as a full disk does: yesterday is not judged again
        ({"STUB_EMPTY": "yes"}, 1, False),
        ({"STUB_COMPARE": "3"}, 3, False),
        ({"STUB_COMPARE": "1"}, 1, False),
        ({"STUB_TAG": "1"}, 1, True),
        ({"STUB_REST": "2"}, 0, True),  # not sent, not pruned: the night is judged all the same
        ({"STUB_REST": "2", "STUB_COMPARE": "3"}, 3, False),
    ],
)
def test_every_ending_has_its_exit_code(stubbed: Bench, answers: dict[str, str], code: int, moved: bool) -> None:
    done = stubbed.night(STUB_NIGHT="2026-11-02_02-00-00", **answers)
    assert done.returncode == code, stubbed.log
    assert (done.stdout != "") == (code != 0)
    assert tagged(stubbed) == f"outputs/nightly/2026-11-0{2 if moved else 1}_02-00-00"
    assert ("not pruned" in done.stderr) == ("STUB_REST" in answers)
    calls = (stubbed.path / "calls.txt").read_text()
    assert calls.endswith(
        "-m sweeprof sync unsent --output outputs\n-m sweeprof prune nightly --keep 2 --output outputs\n"
    )


def test_an_old_summary_is_not_taken_for_tonights(stubbed: Bench) -> None:
    (stubbed.path / "summary.md").write_text("yesterday was bad")
    done = stubbed.night(STUB_NIGHT="2026-11-02_02-00-00", STUB_COMPARE="1")
    assert "yesterday" not in done.stdout


def test_a_server_that_is_named_gets_the_sweep_and_the_tag(stubbed: Bench) -> None:
    stubbed.night(STUB_NIGHT="2026-11-02_02-00-00", MLFLOW_TRACKING_URI="http://lab:5000")
    assert "tracking.uri=http://lab:5000" in (stubbed.path / "calls.txt").read_text().splitlines()[0]


def test_a_hook_that_fails_is_told_and_the_exit_code_stays(stubbed: Bench) -> None:
    done = stubbed.night(STUB_NIGHT="2026-11-02_02-00-00", STUB_COMPARE="3", NOTIFY="false")
    assert done.returncode == 3
    assert done.stderr == "nightly: NOTIFY failed\n"


def test_a_night_that_finds_the_last_one_at_work_leaves_it_alone(stubbed: Bench) -> None:
    with (stubbed.path / "outputs" / ".nightly.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = stubbed.night(STUB_NIGHT="2026-11-02_02-00-00")
    assert done.returncode == 1
    assert "the previous run is still running" in done.stderr
    assert not (stubbed.path / "calls.txt").exists()


def test_every_setting_is_explained() -> None:
    script = (RECIPES / "nightly.sh").read_text(encoding="utf-8")
    settings = set(re.findall(r"^([A-Z_]+)=\$\{\1:-", script, re.MULTILINE)) - {"PYTHON", "NAME", "OUTPUT", "SUMMARY"}
    page = (RECIPES.parent / "scheduling.md").read_text(encoding="utf-8")
    assert settings == {"SWEEP", "SWEEP_OPTIONS", "BASELINE", "MOVE_TAG", "FAIL_ON", "THRESHOLDS", "KEEP", "NOTIFY"}
    assert [name for name in settings if f"`{name}`" not in page] == []


SLURM = {
    "scontrol": 'printf "JobId=7 JobName=sweeprof-nightly\\n   Command=%s\\n   WorkDir=/\\n" "$STUB_COMMAND"',
    "squeue": 'echo "${STUB_WAITING:-}"',
    "sbatch": 'echo "$PWD: $*" >>"$HOME/submitted.txt"; env >"$HOME/inherited.txt"; exit "${STUB_REFUSED:-0}"',
    "sleep": 'echo "$1" >>"$HOME/slept.txt"',
}


def batch_job(bench: Bench, **answers: str) -> subprocess.CompletedProcess[str]:
    """nightly.sbatch as Slurm runs it, a copy elsewhere; Slurm's commands answer what is said, and nobody sleeps."""
    commands, spool = bench.path / "slurm", bench.path / "spool"
    for folder in (commands, spool):
        folder.mkdir(exist_ok=True)
    for name, text in SLURM.items():
        (commands / name).write_text(f"#!/bin/sh\n{text}\n")
        (commands / name).chmod(0o755)
    script = shutil.copy(bench.path / "nightly.sbatch", spool / "slurm_script")
    (bench.path / "nightly.sh").write_text("#!/bin/sh\necho tonight\nexit 3\n")
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "sweeprof-nightly", "SLURM_MEM_PER_NODE": "1", "SLURM_CONF": "/x"}
    own = {"PATH": f"{commands}:/usr/bin:/bin", "STUB_COMMAND": str(bench.path / "nightly.sbatch")}
    environment = {**bench.environment, **job, **own, **answers}
    return subprocess.run(
        ["/bin/sh", script], cwd="/", env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def test_a_batch_job_submits_tomorrow_and_then_runs_tonight(tmp_path: Path) -> None:
    bench = new_bench(tmp_path)
    done = batch_job(bench)
    assert (done.returncode, done.stdout, done.stderr) == (3, "tonight\n", "")
    assert (tmp_path / "submitted.txt").read_text() == f"{tmp_path}: --begin=02:00 {tmp_path}/nightly.sbatch\n"
    inherited = (tmp_path / "inherited.txt").read_text().splitlines()
    # What is true for tonight's job alone would be asked for tomorrow's.
    assert [line for line in inherited if line.startswith("SLURM")] == ["SLURM_CONF=/x"]
    assert f"SWEEP={bench.environment['SWEEP']}" in inherited


def test_a_batch_job_that_finds_tomorrow_waiting_submits_none(tmp_path: Path) -> None:
    assert batch_job(new_bench(tmp_path), STUB_WAITING="8").returncode == 3
    assert not (tmp_path / "submitted.txt").exists()


def test_tonight_is_run_also_where_tomorrow_is_refused(tmp_path: Path) -> None:
    done = batch_job(new_bench(tmp_path), STUB_REFUSED="1")
    assert (done.returncode, done.stdout) == (3, "tonight\n")
    assert done.stderr.splitlines() == ["nightly: the next job could not be submitted"] * 5
    assert (tmp_path / "slept.txt").read_text().split() == ["2", "10", "30", "60", "120", "0"]


def test_a_script_without_a_path_is_refused(tmp_path: Path) -> None:
    done = batch_job(new_bench(tmp_path), STUB_COMMAND="(null)")
    assert done.returncode == 1
    assert "submit it by its path" in done.stderr
