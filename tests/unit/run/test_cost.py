"""The predicted duration of a sweep, from earlier sweeps on this host and from protocols."""

from __future__ import annotations

import dataclasses
import json
import os
import socket
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest
from rich.console import Console

from support.plans import fake_plan
from sweeprof.plan.plan import Plan, SearchPlan, Trial
from sweeprof.results.compare import SearchGoal
from sweeprof.results.files import write_json
from sweeprof.run import cost
from sweeprof.run.cost import predicted_cost
from sweeprof.run.dry_run import print_plan
from sweeprof.storage.events import EventKind, EventLog
from sweeprof.storage.folder import Folder

TRIAL_S = {"analysis": 0.25, "timing": 2.0}
IMPORT_S, END_S, GAP_S = 4.0, 3.0, 0.125


@pytest.fixture(autouse=True)
def _no_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "_start_s", lambda: 0.0)


def plan_of(*models: str, rounds: int = 3) -> Plan:
    """One combination per model, timed for at least a second and a half."""
    plan = fake_plan({name: {} for name in models}, rounds=rounds)
    protocol = {"warmup_s": 0.5, "min_s": 1.0, "min_samples": 10, "sample_s": 0.01, "rounds": rounds}
    longer = [dataclasses.replace(c, config={**c.config, "protocol": protocol}) for c in plan.combinations]
    return dataclasses.replace(plan, combinations=tuple(longer))


def measured(output: Path, plan: Plan, host: str | None = None, slower: float = 1.0, waits_s: float = 0.0) -> Folder:
    """The folder of a sweep whose trials took :data:`TRIAL_S`."""
    folder = Folder(output / plan.name / "2026-11-21_00-30-00Z")
    write_json(folder.plan, plan.to_dict())
    write_json(folder.environment, {"host": host or socket.gethostname()})
    now = datetime.fromisoformat(plan.created).timestamp() + 0.5 + IMPORT_S
    lines: list[str] = []

    def note(kind: EventKind, **more: object) -> None:
        key = {"combination_id": trial.combination_id, "pass": trial.pass_name, "round": trial.round}
        lines.append(json.dumps({"event": kind, "time": now, **key, **more}))

    for trial in plan.trials():
        note("begin")
        if waits_s:
            note("waiting", **{"for": "sweep other"})
            now += waits_s
            note("running")
        now += TRIAL_S[trial.pass_name] * slower
        note("end", status="ok")
        now += GAP_S
    with EventLog(folder.events / "shard-0.jsonl"):
        (folder.events / "shard-0.jsonl").write_text("".join(f"{line}\n" for line in lines))
    sent = datetime.fromtimestamp(now - GAP_S - 0.5 + END_S, datetime.fromisoformat(plan.created).tzinfo)
    write_json(folder.tracking, {"config": {"_target_": None}, "complete": True, "sent": sent.isoformat()})
    return folder


@pytest.mark.parametrize("waits_s", [0.0, 30.0])
def test_a_sweep_takes_as_long_as_it_did_before(tmp_path: Path, waits_s: float) -> None:
    plan = plan_of("a", "b")
    measured(tmp_path, plan, waits_s=waits_s)
    found = predicted_cost(plan, tmp_path)
    assert (found.work.most.known, found.work.most.number) == (8, 8)
    assert found.work.most.seconds == pytest.approx(2 * (0.25 + 3 * 2.0))
    assert found.once_s == pytest.approx(IMPORT_S + END_S + 7 * GAP_S)


def test_the_times_of_files_tell_what_stamps_are_too_coarse_for(tmp_path: Path) -> None:
    """A stamp is cut to a second: of a sweep of a few seconds that would be much."""
    plan = plan_of("a", "b")
    folder = measured(tmp_path, plan)
    created = datetime.fromisoformat(plan.created).timestamp()
    os.utime(folder.plan, (created, created + 0.875))
    found = predicted_cost(plan, tmp_path)
    assert found.once_s == pytest.approx(IMPORT_S + 0.5 - 0.875 + END_S + 7 * GAP_S)
    os.utime(folder.plan, (created, created + 60))  # it was written again
    assert predicted_cost(plan, tmp_path).once_s == pytest.approx(IMPORT_S + END_S + 7 * GAP_S)


@pytest.mark.parametrize("step_s", [-7200.0, 60.0 * 10, 7200.0])
@pytest.mark.parametrize("before", [0, 5])
def test_a_sweep_during_which_the_clock_was_set_or_that_was_interrupted_tells_nothing_of_the_rest(
    tmp_path: Path, step_s: float, before: int
) -> None:
    """Of the duration of its trials it does: those of a process are measured by a clock that nobody sets."""
    plan = plan_of("a", "b")
    folder = measured(tmp_path, plan)
    path = folder.events / "shard-0.jsonl"
    events = [json.loads(line) for line in path.read_text().splitlines()]
    for event in events[2 * before :]:
        event["time"] += step_s
    path.write_text("".join(f"{json.dumps(event)}\n" for event in events))
    found = predicted_cost(plan, tmp_path)
    assert found.work.most.seconds == pytest.approx(2 * (0.25 + 3 * 2.0))
    assert found.once_s == predicted_cost(plan, tmp_path / "nothing").once_s


def test_a_combination_that_is_new_takes_what_others_of_its_framework_took_beside_their_protocol(
    tmp_path: Path,
) -> None:
    measured(tmp_path, plan_of("a", "b"))
    found = predicted_cost(plan_of("a", "new", rounds=5), tmp_path)
    assert (found.work.most.known, found.work.most.number) == (6, 12)
    assert found.work.most.seconds == pytest.approx((0.25 + 5 * 2.0) + (0.25 + 5 * (1.5 + 0.5)))


def test_without_earlier_sweeps_the_protocol_decides(tmp_path: Path) -> None:
    plan = plan_of("a", "b")
    found = predicted_cost(plan, tmp_path)
    assert found.work.most.known == 0
    assert found.work.most.seconds == pytest.approx(2 * (3 * 1.5 + 4 * cost.TRIAL_S["fake"]))
    measured(tmp_path, plan, host="another")
    assert predicted_cost(plan, tmp_path) == found


def test_what_cannot_be_read_is_passed_over(tmp_path: Path) -> None:
    plan = plan_of("a")
    measured(tmp_path, plan).plan.write_text("{")
    assert predicted_cost(plan, tmp_path).work.most.known == 0


def test_a_dry_run_names_the_source_of_its_prediction(tmp_path: Path) -> None:
    out = Console(width=120, record=True)
    plan = plan_of("a", "b")
    print_plan(plan, out, tmp_path)
    assert "by the protocol: nothing of it was measured before on this host" in out.export_text()
    measured(tmp_path, plan)
    print_plan(plan, out, tmp_path)
    line = next(line for line in out.export_text().splitlines() if line.startswith("about"))
    assert line == "about       20 s, by earlier sweeps on this host (all trials were measured before)"


def sequential(*models: str, most: int = 12) -> Plan:
    """A plan whose rounds stop when verdicts are decided."""
    plan = plan_of(*models, rounds=most)
    for combination in plan.combinations:
        combination.config["protocol"]["decide"] = "baseline"
    return plan


def told(plan: Plan, output: Path, is_left: Callable[[Trial], bool] = lambda _: True) -> dict[str, str]:
    """The lines of a dry run by their first word."""
    out = Console(width=120, record=True)
    print_plan(plan, out, output, is_left)
    return dict(line.split(maxsplit=1) for line in out.export_text().splitlines() if " " in line.strip())


def test_how_many_rounds_verdicts_need_is_known_from_an_earlier_sweep(tmp_path: Path) -> None:
    """Before, it is a span; a round takes 2 s as before, everything else 0.25 s for each of both combinations."""
    plan = sequential("a", "b")
    found = predicted_cost(plan, tmp_path)
    work = found.work
    for trials, number in ((work.first, 2 + 2), (work.least, 2 + 2 * 3), (work.most, 2 + 2 * 12)):
        assert trials.number == number
        assert trials.seconds == pytest.approx(number * cost.TRIAL_S["fake"] + (number - 2) * 1.5)
    lines = told(plan, tmp_path)
    assert lines["trials"] == "8 to 26 in 1 shard"
    assert lines["about"].startswith("12 to 40 s, by the protocol")
    assert "(at most 12 timing rounds)" in lines["passes"]
    folder = measured(tmp_path, plan)
    folder.note_decided("ca", 4)
    folder.note_decided("cb", 5)
    found = predicted_cost(plan, tmp_path)
    assert found.work.least == found.work.most
    assert found.work.most.number == 2 + 4 + 5
    assert found.work.most.seconds == pytest.approx(2 * 0.25 + 9 * 2.0)
    folder.note_decided("cb", 5, "budget")  # which does not tell how many it needs
    found = predicted_cost(plan, tmp_path)
    assert (found.work.least.number, found.work.most.number) == (2 + 4 + 3, 2 + 4 + 12)


def test_a_sweep_with_a_budget_does_not_take_longer(tmp_path: Path) -> None:
    plan = sequential("a", "b")
    assert told(dataclasses.replace(plan, budget="30s"), tmp_path)["about"].startswith("12 to 30 s")
    assert "budget" not in told(dataclasses.replace(plan, budget="30s"), tmp_path)
    short = told(dataclasses.replace(plan, budget="2s"), tmp_path)
    assert short["about"].startswith("2 s")
    assert short["budget"] == "2s is too short: to measure everything once takes about 6 s"


def test_a_resumed_sweep_takes_as_long_as_what_is_left(tmp_path: Path) -> None:
    plan = plan_of("a", "b")
    measured(tmp_path, plan)
    lines = told(plan, tmp_path, lambda trial: trial.combination_id == "cb" and trial.round == 2)
    assert lines["trials"] == "1 in 1 shard"
    assert lines["about"].endswith("(all trials were measured before)")
    assert told(plan, tmp_path, lambda trial: False)["about"].endswith(" s, nothing is left to measure")


def test_of_a_search_it_is_not_known_what_is_measured(tmp_path: Path) -> None:
    """Six of ten combinations; when three of them are measured, three of the seven others."""
    plan = plan_of(*"abcdefghij")
    plan = dataclasses.replace(plan, search=SearchPlan((SearchGoal("latency/forward", "minimize"),), 6, "TPESampler"))
    found = predicted_cost(plan, tmp_path)
    assert found.work.most.number == 24
    assert found.work.most.seconds == pytest.approx(6 * (3 * 1.5 + 4 * cost.TRIAL_S["fake"]))
    assert predicted_cost(plan, tmp_path, lambda trial: trial.combination_id > "cc").work.most.number == 12


def test_a_dry_run_says_that_nothing_is_compared(tmp_path: Path) -> None:
    plan = sequential("a", "b")
    assert "verdicts" not in told(plan, tmp_path)
    assert told(dataclasses.replace(plan, baseline={}), tmp_path)["verdicts"].startswith("none: no combination has")
    assert "verdicts" not in told(dataclasses.replace(plan_of("a", "b"), baseline={}), tmp_path)
