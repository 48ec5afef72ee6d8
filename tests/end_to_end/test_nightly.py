"""The recipes of docs/scheduling.md as they are: three nights of which the last is slower, and what a bad night says."""

from __future__ import annotations

import fcntl
import getpass
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from support.nightly import RECIPES, Bench, new_bench


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


@pytest.fixture(scope="module")
def night_by_cron(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """A bench whose recipe cron starts at the next minute, for which whoever asks need not wait."""
    cron = installed_cron()
    bench = new_bench(tmp_path_factory.mktemp("scheduled"))
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


@pytest.mark.slow
@pytest.mark.usefixtures("night_by_cron")  # which then waits for the next minute
def test_three_nights_end_well_well_and_worse(nights: Nights) -> None:
    bench, ran, _ = nights
    assert [night.returncode for night in ran] == [0, 0, 3], bench.log
    assert [night.stdout for night in ran[:2]] == ["", ""]  # cron would mail it
    assert [night.stderr for night in ran] == ["", "", ""]


@pytest.mark.slow
def test_the_summary_names_combination_and_metric_and_reaches_who_asked(nights: Nights) -> None:
    bench, ran, _ = nights
    (line,) = [line for line in bench.summary.splitlines() if "| worse |" in line]
    assert "| batch_size=8 | latency | 1.00 ms → 1.08 ms |" in line
    assert "batch_size=1" not in bench.summary
    assert ran[2].stdout == bench.summary
    assert (bench.path / "told.txt").read_text() == f"3\n{bench.summary}"  # the other nights told nothing


@pytest.mark.slow
def test_the_tag_stands_on_the_last_good_night(nights: Nights) -> None:
    bench, _, tags = nights
    second, third = bench.sweeps()
    assert tags[1] == tags[2] == f"nightly/{second}"
    assert f"outputs/nightly/{third} compared with tag:nightly" in bench.summary


@pytest.mark.slow
def test_old_nights_are_gone_from_the_disk(nights: Nights) -> None:
    bench, _, tags = nights
    assert len(bench.sweeps()) == 2
    assert f"removed  outputs/{tags[0]}" in bench.log


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


@pytest.mark.slow
def test_single_metrics_may_have_thresholds_of_their_own(tmp_path: Path) -> None:
    bench = new_bench(tmp_path)
    once = {"SWEEP_OPTIONS": f"{bench.environment['SWEEP_OPTIONS']} tracking=none", "MOVE_TAG": "no"}
    assert bench.night(**{**once, "MOVE_TAG": "yes"}).returncode == 0, bench.log
    bench.change_model(0.00001)
    for thresholds, code in (("latency: 0.2, macs: 0.1", 0), ("macs: 0.1", 3)):
        ran = bench.night(**once, THRESHOLDS=thresholds)
        assert ran.returncode == code, ran.stdout + bench.log


@pytest.mark.thorough
def test_the_night_after_a_bad_one_is_compared_with_the_last_good_one(tmp_path: Path) -> None:
    bench = new_bench(tmp_path)
    once = {"SWEEP_OPTIONS": f"{bench.environment['SWEEP_OPTIONS']} tracking=none", "KEEP": "1"}
    codes = []
    for per_sample_s in (0, 0.00001, 0.00001, 0):
        bench.change_model(per_sample_s)
        codes.append(bench.night(**once).returncode)
    assert codes == [0, 3, 3, 0], bench.log


@pytest.mark.thorough
def test_a_release_is_what_every_night_is_compared_with(tmp_path: Path) -> None:
    bench = new_bench(tmp_path)
    once = {"SWEEP_OPTIONS": f"{bench.environment['SWEEP_OPTIONS']} tracking=none"}
    assert bench.night(**once, BASELINE="v1").returncode == 0
    (release,) = bench.sweeps()
    codes = []
    for per_sample_s in (0.000005, 0.00001):  # 4 % a night: each less than the threshold
        bench.change_model(per_sample_s)
        codes.append(bench.night(**once, BASELINE="v1", MOVE_TAG="no", KEEP="1").returncode)
    assert codes == [0, 3], bench.log
    assert release in bench.sweeps()


@pytest.mark.slow
def test_a_mistake_in_the_sweep_is_no_regression(tmp_path: Path) -> None:
    bench = new_bench(tmp_path)
    done = bench.night(SWEEP="model=fake backend=fkae", NOTIFY='echo "$CODE" >told.txt')
    assert done.returncode == 1
    assert done.stdout == bench.summary
    assert bench.summary.startswith(
        "# nightly: the nightly run did not finish\n\nThe sweep ended with exit code 1.\n\n    nightly: "
    )
    assert "Did you mean" in bench.summary
    assert (bench.path / "told.txt").read_text() == "1\n"
    assert not (bench.path / "outputs" / ".tags").exists()


@pytest.mark.slow
def test_the_real_cron_runs_a_night(night_by_cron: Bench) -> None:
    """The last test here: the others pass while cron waits."""
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
