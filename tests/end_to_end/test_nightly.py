"""The recipes of docs/scheduling.md: every ending of the shell, with stand-ins for the commands that it calls, then real nights."""

from __future__ import annotations

import fcntl
import getpass
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
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
    done = stubbed.night(STUB_NIGHT="2026-11-02_02-00-00", STUB_COMPARE="1", NOTIFY='{ echo "$CODE"; cat; } >told.txt')
    said = "# nightly: the nightly run did not finish\n\nThe comparison with tag:nightly ended with exit code 1.\n\n"
    assert done.stdout.startswith(f"{said}    nightly: ")  # then the log
    assert "yesterday" not in done.stdout
    assert (stubbed.path / "told.txt").read_text() == f"1\n{done.stdout}"


def test_the_sweep_gets_the_server_and_the_thresholds_of_single_metrics(stubbed: Bench) -> None:
    settings = {"MLFLOW_TRACKING_URI": "http://lab:5000", "THRESHOLDS": "latency: 0.2, macs: 0.1"}
    stubbed.night(STUB_NIGHT="2026-11-02_02-00-00", **settings)
    sweep = (stubbed.path / "calls.txt").read_text().splitlines()[0]
    assert "tracking.uri=http://lab:5000 compare.thresholds={latency: 0.2, macs: 0.1} " in sweep


def test_a_release_stays_what_every_night_is_compared_with(stubbed: Bench) -> None:
    first = tagged(stubbed)
    done = stubbed.night(STUB_NIGHT="2026-11-02_02-00-00", BASELINE="v1", MOVE_TAG="no")
    assert done.returncode == 0, stubbed.log
    calls = (stubbed.path / "calls.txt").read_text()
    assert "-m sweeprof compare tag:v1 outputs/nightly/2026-11-02_02-00-00 " in calls
    assert "--tag" not in calls
    assert tagged(stubbed) == first


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


def test_the_crontab_starts_the_recipe_with_what_it_says() -> None:
    """As :meth:`Bench.night` does; cron takes a comment after a value for a part of it."""
    recipe = (RECIPES / "nightly.cron").read_text(encoding="utf-8")
    path, mail, entry = [line for line in recipe.splitlines() if not line.startswith("#")]
    assert path.endswith(":/usr/bin:/bin")
    assert mail == "MAILTO=team@example.org"
    assert entry == "0 2 * * * /srv/bench/nightly.sh"


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


# Three nights of which the last is slower


@pytest.fixture(scope="module")
def nights(tmp_path_factory: pytest.TempPathFactory) -> tuple[Bench, list[subprocess.CompletedProcess[str]], list[str]]:
    """Three nights, before the third of which the model became 8 % slower at batch size 8; and what was tagged after each."""
    bench = new_bench(tmp_path_factory.mktemp("bench"))
    ran, tags = [], []
    for per_sample_s in (0, 0, 0.00001):
        bench.change_model(per_sample_s)
        ran.append(bench.night(NOTIFY='{ echo "$CODE"; cat; } >>told.txt'))
        tags.append(json.loads((bench.path / "outputs" / ".tags" / "nightly").read_text())["folder"])
    return bench, ran, tags


Nights = tuple[Bench, list[subprocess.CompletedProcess[str]], list[str]]


@pytest.mark.slow
def test_three_nights_end_well_well_and_worse_and_the_tag_stands_on_the_last_good_one(nights: Nights) -> None:
    bench, ran, tags = nights
    assert [night.returncode for night in ran] == [0, 0, 3], bench.log
    assert [night.stdout for night in ran] == ["", "", bench.summary]  # cron would mail it
    assert [night.stderr for night in ran] == ["", "", ""]
    assert (bench.path / "told.txt").read_text() == f"3\n{bench.summary}"  # the other nights told nothing
    (line,) = [line for line in bench.summary.splitlines() if "| worse |" in line]
    assert "| batch_size=8 | latency | 1.00 ms → 1.08 ms |" in line
    assert "batch_size=1" not in bench.summary
    second, third = bench.sweeps()  # the first is gone from the disk
    assert f"removed  outputs/{tags[0]}" in bench.log
    assert tags[1] == tags[2] == f"nightly/{second}"
    assert f"outputs/nightly/{third} compared with tag:nightly" in bench.summary


@pytest.mark.slow
def test_mlflow_shows_the_trend_also_of_nights_that_are_gone(nights: Nights) -> None:
    from mlflow.tracking import MlflowClient

    bench, _, _ = nights
    client = MlflowClient(f"sqlite:///{bench.path}/outputs/mlflow.db")
    history = client.get_experiment_by_name("nightly history")
    assert history is not None
    trends = {}
    for run in client.search_runs([history.experiment_id]):
        (key,) = [key for key in run.data.metrics if key.startswith("latency/forward")]
        points = client.get_metric_history(run.info.run_id, key)
        assert len({point.step for point in points}) == 3
        trends[run.data.params["batch_size"]] = [
            round(point.value, 4) for point in sorted(points, key=lambda p: p.step)
        ]
    assert trends == {"1": [1, 1, 1.01], "8": [1, 1, 1.08]}
    sweeps = client.search_runs(
        [experiment.experiment_id for experiment in client.search_experiments() if experiment.name == "nightly"],
        "tags.`sweeprof.kind` = 'sweep'",
        order_by=["attributes.start_time"],
    )
    assert [run.data.tags.get("baseline.nightly") for run in sweeps] == [None, "true", None]


# A night that cron starts


def installed_cron() -> str:
    """cron's own program; without it this fails, because the recipe is then untested."""
    cron = shutil.which("cron", path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    if cron is None or shutil.which("crontab") is None:
        pytest.fail("no cron here: make cron installs what this test needs, on Debian, as root")
    return cron


@contextmanager
def crontab_with(lines: str) -> Iterator[None]:
    """Add lines to this user's crontab for a while."""
    before = subprocess.run(["crontab", "-l"], capture_output=True, text=True, check=False)
    subprocess.run(["crontab", "-"], input=before.stdout + lines, text=True, check=True)
    try:
        yield
    finally:
        if before.returncode == 0:
            subprocess.run(["crontab", "-"], input=before.stdout, text=True, check=True)
        else:
            subprocess.run(["crontab", "-r"], check=True)


@contextmanager
def running_cron(program: str) -> Iterator[None]:
    """The daemon, unless it runs already: it then ends at once, as only one may."""
    daemon = subprocess.Popen([program, "-f"], stdin=subprocess.DEVNULL)
    try:
        yield
    finally:
        daemon.terminate()
        daemon.wait(10)


@pytest.fixture
def night_by_cron(tmp_path: Path) -> Iterator[Bench]:
    """A bench whose recipe cron starts at the next minute."""
    cron = installed_cron()
    bench = new_bench(tmp_path)
    recipe = (RECIPES / "nightly.cron").read_text(encoding="utf-8")
    settings = {key: bench.environment[key] for key in ("SWEEP", "SWEEP_OPTIONS", "PYTHON")}
    settings["SWEEP_OPTIONS"] += " tracking=none"  # which nights without cron have
    lines = "".join(f"{key}={value}\n" for key, value in settings.items())
    # One minute of this year, so that it cannot happen again, whatever becomes of this test.
    at = datetime.now().astimezone() + timedelta(seconds=70)
    entry = recipe.replace("0 2 * * *", f"{at.minute} {at.hour} {at.day} {at.month} *").replace(
        "/srv/bench", str(bench.path)
    )
    assert "MAILTO=team@example.org" in recipe
    entry = entry.replace("MAILTO=team@example.org", 'MAILTO=""')
    with crontab_with(lines + entry), running_cron(cron):
        yield bench


@pytest.mark.thorough
def test_the_real_cron_runs_a_night(night_by_cron: Bench) -> None:
    bench = night_by_cron
    tag, deadline = bench.path / "outputs" / ".tags" / "nightly", time.monotonic() + 240
    while not tag.exists() and time.monotonic() < deadline:
        time.sleep(0.5)
    log = bench.path / "outputs" / "nightly.log"
    assert tag.exists(), log.read_text() if log.exists() else f"cron did not begin for {getpass.getuser()}"
    # Its last words come after the tag.
    with (bench.path / "outputs" / ".nightly.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
    assert bench.summary.startswith("First run: ")
    assert bench.log.endswith("0 removed, 0 B freed; 1 kept\n")
