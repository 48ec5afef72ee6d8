"""How far a sweep is, from its events."""

from __future__ import annotations

import io
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from support.plans import fake_plan
from sweeprof.plan.plan import Plan
from sweeprof.results.record import PassName
from sweeprof.run import progress
from sweeprof.run.progress import ProgressDisplay, ProgressState
from sweeprof.run.stopping import note_end
from sweeprof.storage import EventKind, Folder, TrialEvent


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


def test_at_the_beginning(state: ProgressState) -> None:
    assert (state.done, state.left_s(), state.current) == (0, 20.0, "")


def test_a_begun_trial_is_the_current_one(state: ProgressState) -> None:
    assert state.take(event("begin", "a", time=100), "mlp torch") is None
    assert (state.current, state.done) == ("mlp torch, timing", 0)


def test_what_is_left_is_the_median_of_what_was_seen(state: ProgressState) -> None:
    for id, begin, end in (("a", 0, 2), ("b", 10, 20), ("c", 30, 33)):
        state.take(event("begin", id, time=begin), "")
        assert state.take(ended(id, end), "") is None
    assert (state.done, state.left_s()) == (3, 3.0)
    assert state.spent == {"timing": [2, 10, 3]}


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


@pytest.mark.parametrize("status", ["failed", "crashed", "oom", "timeout", "skipped", "ok", "unsupported"])
def test_failures_are_worth_a_line(state: ProgressState, status: str) -> None:
    is_failure = status not in ("ok", "unsupported")
    state.take(event("begin", "a"), "mlp torch")
    line = state.take(ended("a", 1, status, "why"), "mlp torch")
    assert line == (f"mlp torch, timing: {status}: why" if is_failure else None)
    assert (state.done, state.failed) == (1, int(is_failure))


def test_a_cause_is_told_once(state: ProgressState) -> None:
    """Combinations of several batch sizes fail with another number each."""
    lines = [state.take(ended(id, 1, "failed", f"no input[{id}, 1]"), id) for id in ("a", "b")]
    lines += [state.take(ended(id, 1, "failed", f"input[{size}, 1]"), id) for id, size in (("a", 1), ("b", 8))]
    assert lines == [
        "a, timing: failed: no input[a, 1]",
        "b, timing: failed: no input[b, 1]",
        "a, timing: failed: input[1, 1]",
        None,
    ]
    assert state.failed == 4


def test_an_end_that_is_told_twice_counts_once(state: ProgressState) -> None:
    state.take(ended("a", 1), "")
    state.take(ended("a", 1), "")
    assert state.done == 1


def test_two_shards_at_once_keep_their_times_apart(state: ProgressState) -> None:
    state.take(event("begin", "a", time=0), "")
    state.take(event("begin", "b", time=9), "")
    state.take(ended("a", 10), "")
    state.take(ended("b", 12), "")
    assert state.spent == {"timing": [10, 3]}


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (59.4, "59 s"), (59.6, "1:00"), (61, "1:01"), (3601, "60:01")]
)
def test_durations(seconds: float, text: str) -> None:
    assert progress._duration(seconds) == text


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


def test_a_line_that_is_being_written_waits(tmp_path: Path) -> None:
    made = Display(tmp_path, fake_plan({"a": {}}, ["quality"]))
    whole = line("begin", "ca", 0)
    for text, current in ((whole[:-5], ""), (f"{whole[-5:]}\n", "quality")):
        made.write(text)
        made.display._take_new()
        assert made.display.state.current.rpartition(" ")[2] == current


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
