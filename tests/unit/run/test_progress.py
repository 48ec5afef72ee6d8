"""How long a sweep takes: predicted by a dry run, and from the events of one that runs."""

from __future__ import annotations

import dataclasses
import io
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from support.plans import fake_plan
from sweeprof.plan.plan import Plan, SearchPlan, Trial
from sweeprof.results.compared_rows import SearchGoal
from sweeprof.results.record import PassName
from sweeprof.run import dry_run, progress
from sweeprof.run.dry_run import print_plan
from sweeprof.run.progress import ProgressDisplay, ProgressState
from sweeprof.run.stopping import note_end
from sweeprof.storage import EventKind, Folder, TrialEvent

ONCE_S = dry_run.START_AND_END_S + dry_run.IMPORT_S
ROUND_S, ANALYSIS_S = 0.5 + 1.0 + dry_run.TRIAL_S, dry_run.TRIAL_S


def plan_of(*models: str, rounds: int = 3, decide: str | None = None) -> Plan:
    """One combination per model: an analysis, and rounds that take at least a second and a half."""
    plan = fake_plan({name: {} for name in models}, rounds=rounds)
    protocol = {"warmup_s": 0.5, "min_s": 1.0, "min_samples": 10, "sample_s": 0.01, "rounds": rounds, "decide": decide}
    longer = [dataclasses.replace(c, config={**c.config, "protocol": protocol}) for c in plan.combinations]
    return dataclasses.replace(plan, combinations=tuple(longer))


def printed(plan: Plan, is_left: Callable[[Trial], bool] = lambda _: True) -> dict[str, str]:
    """The lines of a dry run by their first word."""
    out = Console(width=120, record=True)
    print_plan(plan, out, is_left)
    return dict(line.split(maxsplit=1) for line in out.export_text().splitlines() if " " in line.strip())


def test_ids_are_whole_however_many_axes_there_are() -> None:
    plan = fake_plan({"a": {}})
    many = {f"model.fake.argument_{i}": "value" for i in range(6)}
    made = dataclasses.replace(plan.combinations[0], id="c0123456789ab", axes=many)
    out = Console(width=80, record=True)
    axes: dict[str, list[object]] = {axis: [value] for axis, value in many.items()}
    print_plan(dataclasses.replace(plan, axes=axes, combinations=(made,), shards=((made.id,),)), out)
    assert "c0123456789ab" in out.export_text()


def test_the_duration_is_that_of_the_protocol() -> None:
    lines = printed(plan_of("a", "b"))
    assert lines["trials"] == "8 in 1 shard"
    assert lines["about"] == f"{ONCE_S + 2 * (ANALYSIS_S + 3 * ROUND_S):.0f} s, by the protocol"
    traced = plan_of("a", rounds=20)
    config = {**traced.combinations[0].config, "backend": {"framework": "jax"}}
    traced = dataclasses.replace(traced, combinations=(dataclasses.replace(traced.combinations[0], config=config),))
    assert printed(traced)["about"] == f"{ONCE_S + 20 * 1.5 + 21 * 1.4:.0f} s, by the protocol"  # each process compiles


def test_verdicts_that_stop_the_rounds_give_a_span() -> None:
    lines = printed(plan_of("a", "b", rounds=12, decide="baseline"))
    assert lines["trials"] == "8 to 26 in 1 shard"
    fewest, most = (ONCE_S + 2 * (ANALYSIS_S + rounds * ROUND_S) for rounds in (3, 12))
    assert lines["about"] == f"{fewest:.0f} to {most:.0f} s, by the protocol"
    assert "(at most 12 timing rounds)" in lines["passes"]
    # Of two combinations one has a verdict that stops its rounds.
    one, other = plan_of("a", "b", rounds=12, decide="baseline").combinations
    protocol = {**other.config["protocol"], "decide": None}
    other = dataclasses.replace(other, config={**other.config, "protocol": protocol})
    mixed = dataclasses.replace(plan_of("a", "b", rounds=12), combinations=(one, other))
    assert printed(mixed)["trials"] == "17 to 26 in 1 shard"


def test_a_sweep_with_a_budget_does_not_take_longer() -> None:
    plan = plan_of("a", "b", rounds=12, decide="baseline")
    fewest = ONCE_S + 2 * (ANALYSIS_S + 3 * ROUND_S)
    long = printed(dataclasses.replace(plan, budget="30s"))
    assert long["about"] == f"{fewest:.0f} to 30 s, by the protocol"
    assert "budget" not in long
    short = printed(dataclasses.replace(plan, budget="2s"))
    assert short["about"].startswith("2 s")
    once = ONCE_S + 2 * (ANALYSIS_S + ROUND_S)
    assert short["budget"] == f"2s is too short: to measure everything once takes about {once:.0f} s"


def test_a_resumed_sweep_takes_as_long_as_what_is_left() -> None:
    plan = plan_of("a", "b")
    lines = printed(plan, lambda trial: trial.combination_id == "cb" and trial.round == 2)
    assert lines["trials"] == "1 in 1 shard"
    assert lines["about"] == f"{ONCE_S + ROUND_S:.0f} s, by the protocol"
    assert printed(plan, lambda _: False)["about"] == "nothing is left to measure"


@pytest.mark.parametrize(("is_left", "trials"), [(lambda _: True, 24), (lambda trial: trial.combination_id > "cc", 12)])
def test_a_search_measures_some_of_the_combinations(is_left: Callable[[Trial], bool], trials: int) -> None:
    """Six of ten; where three of them are measured, three of the seven others."""
    plan = plan_of(*"abcdefghij")
    plan = dataclasses.replace(plan, search=SearchPlan((SearchGoal("latency/forward", "minimize"),), 6, "TPESampler"))
    assert printed(plan, is_left)["trials"] == f"{trials} in 1 shard"


def test_a_dry_run_says_that_nothing_is_compared() -> None:
    plan = plan_of("a", "b", rounds=12, decide="baseline")
    assert "verdicts" not in printed(plan)
    assert printed(dataclasses.replace(plan, baseline={}))["verdicts"].startswith("none: no combination has")
    assert "verdicts" not in printed(dataclasses.replace(plan_of("a", "b"), baseline={}))


# While it runs


def event(kind: EventKind, id: str, pass_name: PassName = "timing", time: float = 0, **fields: Any) -> TrialEvent:
    return TrialEvent(kind, time, id, pass_name, 0, **fields)


def line(kind: str, id: str, time: float, **fields: Any) -> str:
    """Return an event of the quality pass as it is stored."""
    return json.dumps({"event": kind, "time": time, "combination_id": id, "pass": "quality", "round": 0, **fields})


def waiting(id: str, holder: str | None) -> TrialEvent:
    return event("waiting", id, waits_for=holder)


def ended(id: str, time: float, status: str = "ok", reason: str | None = None, **fields: Any) -> TrialEvent:
    return event("end", id, time=time, status=status, reason=reason, **fields)


@pytest.fixture
def state() -> ProgressState:
    return ProgressState({(id, "timing", 0): 5.0 for id in "abcd"}, 4)


def test_what_is_left_is_the_median_of_what_was_seen(state: ProgressState) -> None:
    assert (state.done, state.left_s(), state.current) == (0, 20.0, "")
    for id, begin in (("a", 0), ("b", 10), ("c", 15)):  # two shards measure at once
        state.take(event("begin", id, time=begin), "")
    for id, end in (("a", 2), ("b", 20), ("c", 18)):
        assert state.take(ended(id, end), "") is None
    assert (state.done, state.left_s()) == (3, 3.0)
    assert state.spent == {"timing": [2, 10, 3]}
    state.take(ended("c", 18), "")  # read twice
    assert state.done == 3


def test_a_pass_not_seen_yet_is_guessed() -> None:
    state = ProgressState({("a", "timing", 0): 5.0, ("a", "quality", 0): 1.0, ("b", "quality", 0): 1.0}, 3)
    state.take(event("begin", "a", "quality", 0), "")
    state.take(event("end", "a", "quality", 4, status="ok", reason=None), "")
    assert state.left_s() == 5.0 + 4.0


def test_a_wait_is_shown_and_is_no_part_of_what_a_trial_takes(state: ProgressState) -> None:
    state.take(event("begin", "a", time=0), "mlp")
    state.take(waiting("a", None), "mlp")  # another shard of this sweep
    assert state.current == "mlp, timing"
    state.take(waiting("a", "sweep other"), "mlp")
    assert (state.current, state.done) == ("waiting for sweep other", 0)
    state.take(event("running", "a", time=100), "mlp")
    assert state.current == "mlp, timing"
    state.take(ended("a", 103), "mlp")
    assert state.spent == {"timing": [3]}


def test_each_cause_of_a_failure_is_told_once(state: ProgressState) -> None:
    """Combinations of several batch sizes fail with another number each."""
    lines = [state.take(ended(id, 1, "failed", f"no input[{id}, 1]"), id) for id in ("a", "b")]
    lines += [state.take(ended(id, 1, "failed", f"input[{size}, 1]"), id) for id, size in (("a", 1), ("b", 8))]
    lines += [state.take(ended("c", 1, status, "why"), "c") for status in ("ok", "unsupported", "skipped")]
    assert lines == [
        "a, timing: failed: no input[a, 1]",
        "b, timing: failed: no input[b, 1]",
        "a, timing: failed: input[1, 1]",
        *(None, None, None, "c, timing: skipped: why"),
    ]
    assert (state.done, state.failed) == (3, 5)


class Display:
    """The display of a sweep, and what it has printed."""

    def __init__(self, path: Path, plan: Plan, **terminal: Any) -> None:
        self._events = path / "events"
        self._events.mkdir()
        self._output = io.StringIO()
        self.display = ProgressDisplay(plan, Folder(path), Console(file=self._output, width=100, **terminal))

    def write(self, *texts: str) -> None:
        with (self._events / "shard-0.jsonl").open("a") as file:
            file.writelines(texts)

    def shown(self, *lines: str) -> str:
        """What is printed while a shard writes these lines."""
        with self.display:
            self.write(*(f"{line}\n" for line in lines))
        return self.printed

    @property
    def printed(self) -> str:
        return self._output.getvalue()


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "WAKE_S", 0.01)


def test_the_display_follows_files(tmp_path: Path) -> None:
    made = Display(tmp_path, fake_plan({"fine": {}, "broken": {}}, ["quality"]))
    with made.display:
        made.write(f"{line('begin', 'cfine', 0)}\n", f"{line('end', 'cfine', 1, status='ok', reason=None)}\n")
        half = line("end", "cbroken", 3, status="failed", reason="why")
        made.write(f"{line('begin', 'cbroken', 1)}\n", half[:20])
        made.write(half[20:], "\n")
    assert (made.display.state.done, made.display.state.total) == (2, 2)
    assert made.printed.count("broken, quality: failed: why") == 1
    assert not made.display._thread.is_alive()


def timing(id: str, round: int, step_s: float) -> str:
    """Return the event of a timing trial's end as it is stored."""
    fields = {"event": "end", "time": 2, "combination_id": id, "pass": "timing", "round": round}
    return json.dumps({**fields, "status": "ok", "step_s": step_s})


def test_a_combination_has_a_line_once_it_has_a_result(tmp_path: Path) -> None:
    made = Display(tmp_path, fake_plan({"fast": {}, "slow": {}}, ["timing"], rounds=2))
    shown = made.shown(timing("cfast", 0, 0.002), timing("cslow", 0, 0.5), timing("cfast", 1, 0.004))
    assert [line for line in shown.splitlines() if "round" in line] == [
        "fast: 3.00 ms (2 of 2 rounds)",
        "slow: 500 ms (1 of 2 rounds)",
    ]


def test_a_line_names_the_axes_of_numbers(tmp_path: Path) -> None:
    plan = fake_plan({"fast": {}, "slow": {}}, ["timing"])
    values: dict[str, list[Any]] = {"batch_size": [1, 8], "model.torch.freeze": [True, False]}
    combinations = [
        replace(c, axes={**c.axes, **{axis: both[place] for axis, both in values.items()}})
        for place, c in enumerate(plan.combinations)
    ]
    made = Display(tmp_path, replace(plan, axes={**plan.axes, **values}, combinations=tuple(combinations)))
    shown = made.shown(timing("cfast", 0, 0.002))
    assert "fast, batch_size 1, freeze true: 2.00 ms (1 of 1 round)\n" in shown


def test_a_terminal_has_a_bar_below_the_lines(tmp_path: Path) -> None:
    plan = fake_plan({"fast": {}, "slow": {}}, ["timing"], rounds=2)
    made = Display(tmp_path, plan, force_terminal=True, color_system=None, height=20)
    with made.display:
        made.write(timing("cslow", 0, 0.5), "\n")
        deadline = time.monotonic() + 10
        while "1/4" not in made.printed and time.monotonic() < deadline:
            time.sleep(0.01)
    assert made.printed.count("slow: 500 ms (1 of 2 rounds)") == 1
    assert "1/4" in made.printed


@pytest.mark.parametrize(
    ("decide", "budget_s", "left"),
    [(None, None, "about 40 s left"), ("baseline", None, "at most 40 s left"), ("baseline", 7.0, "at most 7 s left")],
)
def test_verdicts_limit_the_time_left(tmp_path: Path, decide: str | None, budget_s: float | None, left: str) -> None:
    plan = fake_plan({"a": {}, "b": {}}, ["timing"], rounds=4)
    for combination in plan.combinations:
        combination.config["protocol"]["decide"] = decide
    if budget_s is not None:
        note_end(Folder(tmp_path), budget_s)
    display = Display(tmp_path, plan).display
    display.state.trials.update(dict.fromkeys(display.state.trials, 5.0))
    display.state.current = "a timing"
    assert display._plain() == f"[0/8] a timing ({left})"


def test_a_search_that_measures_more_than_was_expected_is_not_complete_before(state: ProgressState) -> None:
    state.is_search = True
    for number in range(6):
        state.take(ended(f"other{number}", number), "")
        assert (state.done, state.total) == (number + 1, max(4, number + 1))
