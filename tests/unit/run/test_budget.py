"""``budget``: everything is measured once, the rest of the time goes to what is not decided, and the sweep ends in time."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

import pytest

from support.planning import planned
from support.plans import fake_plan, seed_noise, sweep_folder
from sweeprof.config.constraints import parse_seconds
from sweeprof.config.override_syntax import spelled
from sweeprof.plan.plan import Plan, Trial
from sweeprof.report.answer import answer
from sweeprof.report.summary import protocol_text
from sweeprof.results.environment import process_age
from sweeprof.results.record import stored_record
from sweeprof.run import stopping
from sweeprof.run.comparison import comparison_of
from sweeprof.run.resume import count_trials
from sweeprof.run.shard import run_shard
from sweeprof.storage import Folder

TIME = "latency/forward"
NEAR = {
    "base": {"step_s": 0.01},
    # So slow to build that fifty rounds take longer than the budgets of these tests.
    "near": {"step_s": 0.0105, "spread": 0.05, "build_s": 0.1},
    "far": {"step_s": 0.02},
}

ENOUGH_S = 6.0
"""For further rounds, also on a busy machine."""


@pytest.fixture(autouse=True)
def _same_noise() -> None:
    seed_noise()


def plan_of(models: dict[str, dict[str, Any]], seconds: str, **changes: Any) -> Plan:
    plan = fake_plan(models, ("timing",), rounds=50, metrics=(TIME,))
    for combination in plan.combinations:
        combination.config["protocol"]["decide"] = "baseline"
        combination.config["model"]["fake"]["_target_"] = "support.plans.noisy"
    return dataclasses.replace(plan, budget=seconds, **changes)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("10min", 600), ("1.5 h", 5400), ("10", None), (10, None), ("0s", None), ("x", None)],
)
def test_durations(text: object, seconds: float | None) -> None:
    assert parse_seconds(text) == seconds


@pytest.mark.slow
def test_time_that_is_left_goes_to_what_is_not_decided(tmp_path: Path) -> None:
    """The time is used up after a few rounds: the near pair has more of them than the far one, and the sweep is complete."""
    folder = sweep_folder(tmp_path / "sweep", plan_of(NEAR, "1h"))
    stopping.note_end(folder, ENOUGH_S)
    run_shard(folder, 0)
    assert time.time() <= folder.budget.stat().st_mtime + ENOUGH_S + 2  # a trial that has begun ends
    comparison = comparison_of(folder)
    rounds = {row.combination_id: row.rounds_complete for row in comparison.rows}
    assert rounds["cfar"] == 3
    assert 3 < rounds["cnear"] < 50
    assert all(row.is_fully_measured for row in comparison.rows)
    near = next(row for row in comparison.rows if row.combination_id == "cnear")
    assert near.cells[TIME].verdict == "unclear"
    assert protocol_text(comparison).startswith("at most 50 rounds, until verdicts are decided or budget=1h is used up")


def test_what_is_not_measured_once_has_the_budget_as_its_reason(tmp_path: Path) -> None:
    folder = sweep_folder(tmp_path / "sweep", plan_of(NEAR, "90s"))
    stopping.note_end(folder, -1)
    run_shard(folder, 0)
    assert folder.stopped() == "budget=90s, which is used up"
    comparison = comparison_of(folder, f"stopped by {folder.stopped()}")
    assert {row.reason for row in comparison.rows} == {"timing: stopped by budget=90s, which is used up"}
    assert not any(row.is_fully_measured for row in comparison.rows)


@pytest.mark.slow
def test_a_resumed_sweep_spends_a_further_budget(tmp_path: Path) -> None:
    folder = sweep_folder(tmp_path / "sweep", plan_of(NEAR, "1h"))
    stopping.note_end(folder, 2)
    run_shard(folder, 0)
    before = folder.rounds_that_decided("cnear")
    assert before is not None
    counts = count_trials(folder, folder.read_plan(), frozenset(), move=False)
    ended = [folder.rounds_that_decided(id, "budget") for id in ("cbase", "cnear", "cfar")]
    assert counts.missing == sum(50 - rounds for rounds in ended if rounds is not None) > 0
    assert counts.is_at_most
    stopping.begin_budget(folder, folder.read_plan())
    assert folder.rounds_that_decided("cnear") is None
    stopping.note_end(folder, ENOUGH_S)
    run_shard(folder, 0)
    after = folder.rounds_that_decided("cnear")
    assert after is None or after > before  # None: all fifty rounds
    assert folder.rounds_that_decided("cfar") == 3  # decided as before


@pytest.mark.slow
def test_a_budget_is_also_spent_on_what_was_given_up_without_one(tmp_path: Path) -> None:
    models = {**NEAR, "near": {"step_s": 0.0105, "spread": 0.05}}
    folder = sweep_folder(tmp_path / "sweep", dataclasses.replace(plan_of(models, "1h"), budget=None))
    run_shard(folder, 0)
    given_up = folder.rounds_that_decided("cnear")
    assert given_up is not None
    assert given_up < 50
    sweep_folder(tmp_path / "sweep", plan_of(models, "1h"))
    stopping.begin_budget(folder, folder.read_plan())
    stopping.note_end(folder, ENOUGH_S)
    run_shard(folder, 0)
    after = folder.rounds_that_decided("cnear")
    assert after is None or after > given_up  # None: all fifty rounds
    assert folder.rounds_that_decided("cfar") == 3


@pytest.mark.parametrize(("seconds", "kept_s"), [("10s", 1.06), ("12s", 1.2), ("10min", 1.65)])
def test_most_of_a_short_budget_is_for_measuring(tmp_path: Path, seconds: str, kept_s: float) -> None:
    plan = plan_of(NEAR, seconds)
    folder = sweep_folder(tmp_path / "sweep", plan)
    stopping.begin_budget(folder, plan)
    ends = stopping.Budget(folder, plan, 0).ends
    whole = time.monotonic() - process_age() + (parse_seconds(seconds) or 0)
    assert whole - (ends or 0) == pytest.approx(kept_s, abs=0.05)


def test_tasks_of_a_cluster_share_the_node_time(tmp_path: Path) -> None:
    plan = plan_of({name: {"step_s": 0.01} for name in "abc"}, "10min", cluster={"settings": {}})
    plan = dataclasses.replace(plan, shards=(("ca",), ("cb", "cc")))
    folder = sweep_folder(tmp_path / "sweep", plan)
    ends = [stopping.Budget(folder, plan, shard).ends for shard in (0, 1)]
    assert [round((end or 0) - time.monotonic()) for end in ends] == [200, 400]


def ending_in(tmp_path: Path, seconds: float) -> tuple[Folder, Plan]:
    """A sweep whose budget ends after that long."""
    plan = plan_of({"a": {"step_s": 0.01}}, "10min")
    folder = sweep_folder(tmp_path / "sweep", plan)
    stopping.note_end(folder, seconds)
    return folder, plan


def test_the_time_of_trials_is_expected_from_those_before(tmp_path: Path) -> None:
    folder, plan = ending_in(tmp_path, 5)
    left = stopping.Budget(folder, plan, 0)
    trial = Trial("ca", "timing", 1)
    assert left.has_time_for([trial])
    left.take(trial, 100)
    assert not left.has_time_for([trial])
    assert left.has_time_for([])


SLOW_SERVER = """
import pathlib, socket, sys, time
pathlib.Path(sys.argv[1]).touch()
time.sleep(2)
listener = socket.create_server(("127.0.0.1", int(sys.argv[2])))
while True:
    listener.accept()[0].close()
"""


@pytest.mark.slow
def test_nothing_begins_that_would_wait_for_a_server_until_the_time_is_used_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the first trial there is time for another one, but not for a server that takes 2 s to start."""
    (tmp_path / "server.py").write_text(SLOW_SERVER)
    command = ["{python}", f"{tmp_path}/server.py", f"{tmp_path}/{{args.server}}", "{port}"]
    server = spelled({"command": command, "ready": {"port": "{port}"}})
    words = ("backend=command", "backend.command=['true']", f"backend.server={server}", "args.server=a,b")
    plan = planned([*words, "protocol=quick", "budget=10min", "isolation=inline"])
    folder = sweep_folder(tmp_path / "sweep", plan)
    take = stopping.Budget.take

    def take_and_end(budget: stopping.Budget, trial: Trial, seconds: float) -> None:
        take(budget, trial, seconds)
        budget.ends = time.monotonic() + seconds + 1.5

    monkeypatch.setattr(stopping.Budget, "take", take_and_end)
    run_shard(folder, 0)
    assert folder.stopped() == "budget=10min, which is used up"
    assert [(tmp_path / name).exists() for name in "ab"] == [True, False]


@pytest.mark.parametrize("step_s", [-7200, 7200])
def test_a_clock_that_is_set_changes_no_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step_s: float) -> None:
    folder, plan = ending_in(tmp_path, 60)
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + step_s)
    left = stopping.Budget(folder, plan, 0)
    assert (left.ends or 0) - time.monotonic() == pytest.approx(60, abs=5)
    assert left.has_time_for([Trial("ca", "timing", 1)])
    left.take(Trial("ca", "timing", 0), 100)
    assert not left.has_time_for_each([Trial("ca", "timing", 1)])


def test_a_shard_on_another_host_has_the_budget_of_the_drivers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, plan = ending_in(tmp_path, 60)
    real = time.monotonic
    monkeypatch.setattr(stopping, "_boot", lambda: "another")
    monkeypatch.setattr(time, "monotonic", lambda: real() + 1e6)
    assert (stopping.Budget(folder, plan, 0).ends or 0) - time.monotonic() == pytest.approx(60, abs=5)


@pytest.mark.parametrize("protocol", ["quick", "default"])
def test_a_budget_measures_until_verdicts_are_decided(protocol: str) -> None:
    plan = planned([f"protocol={protocol}", "budget=5min", "model=fake", "backend=fake"])
    assert plan.budget == "5min"
    (combination,) = plan.combinations
    assert (combination.config["protocol"]["decide"], combination.config["protocol"]["rounds"]) == ("baseline", 50)
    assert "budget=5min" in combination.command


def test_the_answer_says_what_another_hour_would_settle(tmp_path: Path) -> None:
    """Of comparisons that are not decided, an hour has room for some; a round of either side takes a minute."""
    models = {"base": {"step_s": 0.01}} | {f"near{i}": {"step_s": 0.0107, "spread": 0.02} for i in range(12)}
    folder = sweep_folder(tmp_path / "sweep", plan_of(models, "1h"))
    stopping.note_end(folder, 3600)
    for combination in folder.read_plan().combinations:
        folder.note_decided(combination.id, 4, "budget")
    run_shard(folder, 0)
    for path in folder.records.glob("*/timing-r*.json"):
        dataclasses.replace(stored_record(path), wall_s=60.0).write(folder.records)
    comparison = comparison_of(folder)
    open_cells = [row.cells[TIME] for row in comparison.rows if row.cells[TIME].verdict == "unclear"]
    minutes, settled = 0, 0
    for needed in sorted(cell.rounds_needed for cell in open_cells if cell.rounds_needed is not None):
        minutes += 2 * (needed - 4)
        settled += minutes <= 60
    assert 0 < settled < len(open_cells)
    expected = f"Another hour would settle about {settled} of the {len(open_cells)} that are not decided: resume=last budget=1h."
    assert answer(comparison).advice == expected
    # No hour suffices for more than the largest number of rounds.
    full = tuple(dataclasses.replace(row, most_rounds=row.rounds_complete) for row in comparison.rows)
    assert answer(dataclasses.replace(comparison, rows=full)).advice == "Another hour would settle none of them."
    one = (comparison.rows[0], full[1])
    assert answer(dataclasses.replace(comparison, rows=one)).advice == "Another hour would not settle it."
