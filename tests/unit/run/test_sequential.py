"""``protocol.decide``: a combination gets rounds until its verdict is decided, and no further ones."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from support.plans import fake_plan, seed_noise, sweep_folder
from sweeprof.config.validation import part_problems
from sweeprof.plan.plan import ComparisonSettings, OtherSweep, Plan
from sweeprof.report.answer import answer
from sweeprof.results.compared_rows import Comparison
from sweeprof.results.files import write_json
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


def test_without_decide_every_combination_gets_all_rounds(tmp_path: Path) -> None:
    _, comparison = swept(tmp_path, plan_of(CLEAR_AND_NOISY, decide=None, rounds=4))
    assert set(rounds(comparison).values()) == {4}


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
    ("outcome", "decide", "status", "tries"),
    [
        ("raise", "baseline", "failed", 1),
        ("raise", None, "failed", 1),
        ("segfault", "baseline", "crashed", 3),
        ("memory_error", "baseline", "oom", 1),
    ],
)
def test_what_raises_is_tried_once_and_a_crash_again(
    tmp_path: Path, outcome: str, decide: str | None, status: str, tries: int
) -> None:
    plan = plan_of({"base": {"step_s": 0.01}, "other": {"on_step": outcome}}, decide, isolation="fork")
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
    _, fixed = swept(tmp_path / "fixed", dataclasses.replace(plan_of(models, None, rounds=3), baseline={}))
    assert answer(fixed).advice == answer(several).advice


def test_interleaved_samples_stop_too(tmp_path: Path) -> None:
    """Trials in processes of their own; the fake clock is exact, so that three rounds decide."""
    plan = plan_of({"base": {}, "slower": {}}, isolation="fork")
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
        ({"rounds": 51}, "protocol.rounds", "from 3 to 50"),
        ({"threshold": None}, "protocol.threshold", "is not a difference: protocol.decide needs one"),
        ({"decide": "base"}, "protocol.decide", "baseline"),
    ],
)
def test_what_cannot_decide_is_refused(protocol: dict[str, Any], key: str, text: str) -> None:
    (problem,) = part_problems("protocol", {"rounds": 20, "threshold": 0.05, "decide": "baseline", **protocol})
    assert problem.key == key
    assert text in str(problem)
