"""When a combination has enough rounds: ``protocol.decide`` ends them with its verdict, ``budget`` after a time."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from support.planning import planned
from support.plans import fake_plan, seed_noise, sweep_folder
from sweeprof.config.override_syntax import spelled
from sweeprof.config.validation import part_problems
from sweeprof.plan.plan import ComparisonSettings, OtherSweep, Plan, Trial
from sweeprof.report.answer import answer
from sweeprof.report.summary import protocol_text
from sweeprof.results.compared_rows import Comparison
from sweeprof.results.environment import process_age
from sweeprof.results.files import write_json
from sweeprof.results.record import stored_record
from sweeprof.run import stopping
from sweeprof.run.comparison import comparison_of
from sweeprof.run.resume import count_trials
from sweeprof.run.shard import run_shard
from sweeprof.storage import Folder

MOST = 12
TIME = "latency/forward"


@pytest.fixture(autouse=True)
def _same_noise() -> None:
    seed_noise()


def plan_of(
    models: Mapping[str, Mapping[str, Any]],
    decide: str | None = "baseline",
    isolation: str = "inline",
    rounds: int = MOST,
) -> Plan:
    """A plan of noisy models by label, of which the first is the baseline."""
    plan = fake_plan(models, ("timing",), isolation, rounds=rounds, metrics=(TIME,))
    for combination in plan.combinations:
        combination.config["protocol"]["decide"] = decide
        node = combination.config["model"]["fake"]
        if "step_s" in node:
            node["_target_"] = "support.plans.noisy"
    return plan


def swept(tmp_path: Path, plan: Plan) -> tuple[Folder, Comparison]:
    folder = sweep_folder(tmp_path / "sweep", plan)
    run_shard(folder, 0)
    return folder, comparison_of(folder)


def rounds(comparison: Comparison) -> dict[str, int]:
    return {row.combination_id: row.rounds_complete for row in comparison.rows}


def verdicts(comparison: Comparison) -> dict[str, str | None]:
    return {row.combination_id: row.cells[TIME].verdict for row in comparison.rows}


CLEAR_AND_NOISY = {
    "base": {"step_s": 0.01, "spread": 0.001},
    "slower": {"step_s": 0.013, "spread": 0.001},
    "noisy": {"step_s": 0.0118, "spread": 0.05},
}


def test_each_combination_gets_as_many_rounds_as_its_verdict_needs(tmp_path: Path) -> None:
    folder, comparison = swept(tmp_path, plan_of(CLEAR_AND_NOISY))
    counts = rounds(comparison)
    assert counts["cslower"] == 3
    assert 3 < counts["cnoisy"] < MOST
    assert verdicts(comparison)["cnoisy"] == "worse"
    assert counts["cbase"] == counts["cnoisy"]  # as long as one of its comparisons is open
    assert verdicts(comparison)["cslower"] == "worse"
    assert all(row.is_fully_measured and not row.is_incomplete for row in comparison.rows)
    assert {row.combination_id: row.rounds_planned for row in comparison.rows} == counts
    assert count_trials(folder, folder.read_plan(), frozenset({"failed"}), move=False).missing == 0


def test_the_number_of_trials_is_an_upper_limit(tmp_path: Path) -> None:
    folder = sweep_folder(tmp_path / "sweep", plan_of(CLEAR_AND_NOISY))
    running = answer(comparison_of(folder, running=True))
    assert running.counts.startswith(f"running: 0 of at most {3 * MOST} trials have ended; ")
    counts = count_trials(folder, folder.read_plan(), frozenset(), move=False)
    assert str(counts) == f"0 trials are measured, at most {3 * MOST} missing"


@pytest.mark.slow
@pytest.mark.parametrize(("budget", "least", "most"), [(None, 5, MOST - 1), ("1h", MOST, MOST)])
def test_the_undecidable_is_given_up_without_a_budget(
    tmp_path: Path, budget: str | None, least: int, most: int
) -> None:
    at_the_threshold = {"base": {"step_s": 0.01}, "near": {"step_s": 0.0105, "spread": 0.05}}
    plan = dataclasses.replace(plan_of(at_the_threshold), budget=budget)
    _, comparison = swept(tmp_path, plan)
    measured = rounds(comparison)
    assert least <= measured["cbase"] == measured["cnear"] <= most
    cell = comparison.rows[1].cells[TIME]
    assert (cell.verdict, cell.verdict_reason) == ("unclear", "interval_crosses_threshold")


def test_intervals_allow_for_the_repeated_tests(tmp_path: Path) -> None:
    """The interval of twelve possible tests is wider than that of a fixed number of rounds, from the same measurements."""
    models = {"base": {"step_s": 0.01}, "near": {"step_s": 0.0105, "spread": 0.05}}
    folder, comparison = swept(tmp_path, plan_of(models))
    plan = json.loads(folder.plan.read_text())
    for protocol in plan["parts"]["protocol"]:
        protocol["decide"] = None
    folder.plan.write_text(json.dumps(plan))
    fixed = comparison_of(folder).rows[1].cells[TIME].ratio_interval
    repeated = comparison.rows[1].cells[TIME].ratio_interval
    assert fixed is not None
    assert repeated is not None
    assert repeated[0] < fixed[0] < fixed[1] < repeated[1]


@pytest.mark.parametrize("failing", ["base", "candidate"])
def test_a_side_that_fails_does_not_keep_the_other_waiting(tmp_path: Path, failing: str) -> None:
    models: dict[str, dict[str, Any]] = {"base": {"step_s": 0.01}, "candidate": {"step_s": 0.0101, "spread": 0.3}}
    models[failing] = {"on_step": "raise"}
    _, comparison = swept(tmp_path, plan_of(models))
    assert rounds(comparison) == {
        "cbase": 0 if failing == "base" else 3,
        "ccandidate": 0 if failing == "candidate" else 3,
    }
    assert [row.status for row in comparison.rows if row.combination_id == f"c{failing}"] == ["failed"]


@pytest.mark.slow
def test_an_interrupted_shard_goes_on_where_it_was(tmp_path: Path) -> None:
    """Of the rounds that a first run measured nothing is measured again, and the notes of decided combinations stay valid."""
    folder, whole = swept(tmp_path, plan_of(CLEAR_AND_NOISY))
    counts = rounds(whole)
    for name in ("base", "noisy"):
        (folder.records / f"c{name}" / "decided.json").unlink()
        (folder.records / f"c{name}" / f"timing-r{counts['cnoisy'] - 1}.json").unlink()
    kept = {path: path.stat().st_mtime_ns for path in folder.records.glob("*/timing-r*.json")}
    run_shard(folder, 0)
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    again = rounds(comparison_of(folder))
    assert again["cslower"] == 3
    assert again["cbase"] == again["cnoisy"] >= counts["cnoisy"]


def test_a_trial_that_is_run_again_opens_what_was_decided(tmp_path: Path) -> None:
    folder, _ = swept(tmp_path, plan_of({"base": {"step_s": 0.01}, "other": {"on_step": "raise"}}))
    assert folder.rounds_that_decided("cbase") == 3
    plan = folder.read_plan()
    counted = count_trials(folder, plan, frozenset({"failed"}), move=True)
    assert counted.again == {"failed": 1}
    assert folder.rounds_that_decided("cbase") is None


@pytest.mark.parametrize(
    ("outcome", "isolation", "status", "tries"),
    [("raise", "inline", "failed", 1), ("memory_error", "inline", "oom", 1), ("segfault", "fork", "crashed", 3)],
)
def test_what_raises_is_tried_once_and_a_crash_again(
    tmp_path: Path, outcome: str, isolation: str, status: str, tries: int
) -> None:
    plan = plan_of({"base": {"step_s": 0.01}, "other": {"on_step": outcome}}, isolation=isolation)
    folder, comparison = swept(tmp_path, plan)
    assert {row.combination_id: row.status for row in comparison.rows}["cother"] == status
    assert len(folder.records_of("cother", "timing")) == tries


def against(tmp_path: Path, step_s: float, spread: float) -> Comparison:
    """A sweep that is compared with another one, in which the step took 10 ms; its own baseline does not matter then."""
    seed_noise(1)
    other = dataclasses.replace(plan_of({"a": {"step_s": 0.01, "spread": 0.005}}, decide=None), sweep_id="s0")
    _, before = swept(tmp_path / "other", other)
    settings = ComparisonSettings(against=OtherSweep("other", str(tmp_path)))
    plan = plan_of({"b": {"step_s": 0.01, "spread": 0.3}, "a": {"step_s": step_s, "spread": spread}})
    folder = sweep_folder(tmp_path / "sweep", dataclasses.replace(plan, compare=settings))
    write_json(folder.baseline, before.to_dict())
    run_shard(folder, 0)
    return comparison_of(folder)


@pytest.mark.slow
def test_a_comparison_with_another_sweep_is_decided_too(tmp_path: Path) -> None:
    clear, unclear = against(tmp_path / "clear", 0.02, 0.001), against(tmp_path / "unclear", 0.0116, 0.05)
    assert rounds(clear) == {"ca": 3, "cb": 3}  # cb is not in the other sweep
    assert 3 < rounds(unclear)["ca"] < MOST
    assert rounds(unclear)["cb"] == 3
    assert [verdicts(one)["ca"] for one in (clear, unclear)] == ["worse", "worse"]


def test_the_answer_says_that_nothing_is_compared(tmp_path: Path) -> None:
    models = {"a": {"step_s": 0.01}, "b": {"step_s": 0.02}}
    _, several = swept(tmp_path / "several", dataclasses.replace(plan_of(models, rounds=3), baseline={}))
    assert answer(several).advice == ("For ratios and verdicts name a baseline, such as 'compare.baseline={model: a}'.")
    _, single = swept(tmp_path / "single", plan_of({"a": {"step_s": 0.01}}, rounds=3))
    assert answer(single).advice.startswith("Nothing is compared, because there is one combination: ")


@pytest.mark.slow
def test_interleaved_samples_stop_too(tmp_path: Path) -> None:
    """The fake clock is exact, so that three rounds decide."""
    plan = plan_of({"base": {}, "slower": {}})
    for combination, seconds in zip(plan.combinations, (0.001, 0.002), strict=True):
        combination.config["protocol"]["interleave"] = "samples"
        combination.config["model"]["fake"]["step_s"] = seconds
    _, comparison = swept(tmp_path, plan)
    assert rounds(comparison) == {"cbase": 3, "cslower": 3}
    assert verdicts(comparison)["cslower"] == "worse"


@pytest.mark.parametrize(
    ("protocol", "key", "text"),
    [
        ({"rounds": 2}, "protocol.rounds", "from 3 to 50"),
        ({"threshold": None}, "protocol.threshold", "is not a difference: protocol.decide needs one"),
        ({"decide": "base"}, "protocol.decide", "baseline"),
    ],
)
def test_what_cannot_decide_is_refused(protocol: dict[str, Any], key: str, text: str) -> None:
    (problem,) = part_problems("protocol", {"rounds": 20, "threshold": 0.05, "decide": "baseline", **protocol})
    assert problem.key == key
    assert text in str(problem)


# ``budget``: everything is measured once, the rest of the time goes to what is not decided, and the sweep ends in time


NEAR = {
    "base": {"step_s": 0.01},
    # So slow to build that fifty rounds take longer than the budgets of these tests.
    "near": {"step_s": 0.0105, "spread": 0.05, "build_s": 0.1},
    "far": {"step_s": 0.02},
}

ENOUGH_S = 6.0
"""For further rounds, also on a busy machine."""


def budget_plan(models: Mapping[str, Mapping[str, Any]], budget: str | None, **changes: Any) -> Plan:
    return dataclasses.replace(plan_of(models, rounds=50), budget=budget, **changes)


@pytest.mark.slow
def test_time_that_is_left_goes_to_what_is_not_decided(tmp_path: Path) -> None:
    """The time is used up after a few rounds: the near pair has more of them than the far one, and the sweep is complete."""
    folder = sweep_folder(tmp_path / "sweep", budget_plan(NEAR, "1h"))
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
    folder = sweep_folder(tmp_path / "sweep", budget_plan(NEAR, "90s"))
    stopping.note_end(folder, -1)
    run_shard(folder, 0)
    assert folder.stopped() == "budget=90s, which is used up"
    comparison = comparison_of(folder, f"stopped by {folder.stopped()}")
    assert {row.reason for row in comparison.rows} == {"timing: stopped by budget=90s, which is used up"}
    assert not any(row.is_fully_measured for row in comparison.rows)


@pytest.mark.slow
def test_a_resumed_sweep_spends_a_further_budget(tmp_path: Path) -> None:
    folder = sweep_folder(tmp_path / "sweep", budget_plan(NEAR, "1h"))
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
    folder = sweep_folder(tmp_path / "sweep", budget_plan(models, None))
    run_shard(folder, 0)
    given_up = folder.rounds_that_decided("cnear")
    assert given_up is not None
    assert given_up < 50
    sweep_folder(tmp_path / "sweep", budget_plan(models, "1h"))
    stopping.begin_budget(folder, folder.read_plan())
    stopping.note_end(folder, ENOUGH_S)
    run_shard(folder, 0)
    after = folder.rounds_that_decided("cnear")
    assert after is None or after > given_up  # None: all fifty rounds
    assert folder.rounds_that_decided("cfar") == 3


@pytest.mark.parametrize(("budget", "seconds", "kept_s"), [("10s", 10, 1.06), ("12s", 12, 1.2), ("0.5 h", 1800, 1.65)])
def test_most_of_a_short_budget_is_for_measuring(tmp_path: Path, budget: str, seconds: int, kept_s: float) -> None:
    plan = budget_plan(NEAR, budget)
    folder = sweep_folder(tmp_path / "sweep", plan)
    stopping.begin_budget(folder, plan)
    ends = stopping.Budget(folder, plan, 0).ends
    whole = time.monotonic() - process_age() + seconds
    assert whole - (ends or 0) == pytest.approx(kept_s, abs=0.05)


def test_tasks_of_a_cluster_share_the_node_time(tmp_path: Path) -> None:
    plan = budget_plan({name: {"step_s": 0.01} for name in "abc"}, "10min", cluster={"settings": {}})
    plan = dataclasses.replace(plan, shards=(("ca",), ("cb", "cc")))
    folder = sweep_folder(tmp_path / "sweep", plan)
    ends = [stopping.Budget(folder, plan, shard).ends for shard in (0, 1)]
    assert [round((end or 0) - time.monotonic()) for end in ends] == [200, 400]


def ending_in_a_minute(tmp_path: Path) -> tuple[Folder, Plan]:
    """A sweep whose budget ends then."""
    plan = budget_plan({"a": {"step_s": 0.01}}, "10min")
    folder = sweep_folder(tmp_path / "sweep", plan)
    stopping.note_end(folder, 60)
    return folder, plan


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
    folder, plan = ending_in_a_minute(tmp_path)
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + step_s)
    left = stopping.Budget(folder, plan, 0)
    assert (left.ends or 0) - time.monotonic() == pytest.approx(60, abs=5)
    assert left.has_time_for([Trial("ca", "timing", 1)])
    assert left.has_time_for([])
    left.take(Trial("ca", "timing", 0), 100)
    assert not left.has_time_for([Trial("ca", "timing", 1)])
    assert not left.has_time_for_each([Trial("ca", "timing", 1)])


def test_a_shard_on_another_host_has_the_budget_of_the_drivers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, plan = ending_in_a_minute(tmp_path)
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


@pytest.mark.slow
def test_the_answer_says_what_another_hour_would_settle(tmp_path: Path) -> None:
    """Of comparisons that are not decided, an hour has room for some; a round of either side takes a minute."""
    models = {"base": {"step_s": 0.01}} | {f"near{i}": {"step_s": 0.0107, "spread": 0.02} for i in range(8)}
    folder = sweep_folder(tmp_path / "sweep", budget_plan(models, "1h"))
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
