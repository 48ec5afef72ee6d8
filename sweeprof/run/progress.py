"""The progress display: results so far, the current trial, the share that is done, failures, time left.

It prints a line for each combination that has its first result; on a terminal there is a bar below them.

The display reads the events that the shards append to files, so it shows the same whatever launcher runs them. It wakes once
a second, and only then, because it shares the machine with the measurement.
"""

from __future__ import annotations

import dataclasses
import statistics
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import chain

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from sweeprof.numbers import rounded
from sweeprof.passes.registry import pass_named
from sweeprof.plan.comparing import most_rounds
from sweeprof.plan.plan import Plan, expected_seconds
from sweeprof.results.files import open_regular
from sweeprof.run.search import measured_plan
from sweeprof.run.stopping import trials_end
from sweeprof.storage import Folder, Jobs, TrialEvent, TrialKey, parsed
from sweeprof.text import axis_text, without_numbers

WAKE_S = 1.0
MOST_LINES = 200
"""Maximum number of combinations with a line of their own."""
receivers: list[Callable[[Mapping[str, object]], object]] = []
"""Called with the folder of the sweep, with its progress in place of the lines about it, and with its last lines: a program that
started the sweep shows them."""


def tell(message: Mapping[str, object]) -> None:
    """Call the receivers."""
    for receive in receivers:
        receive(message)


@dataclass(slots=True)
class ProgressState:
    """The progress of the sweep, updated by events."""

    trials: dict[TrialKey, float]
    """Expected seconds of every trial that has not ended."""
    total: int
    is_search: bool = False
    current: str = ""
    waited_for: str = ""
    """The other sweep for which it waited last."""
    failed: int = 0
    """Trials that failed."""
    causes: set[str] = field(default_factory=set)
    """Of these trials, without numbers."""
    spent: dict[str, list[float]] = field(default_factory=dict)
    """Seconds that trials took, by pass."""
    begun: dict[TrialKey, float] = field(default_factory=dict)
    """When each running trial began; several shards run at once."""
    steps: dict[str, dict[int, float]] = field(default_factory=dict)
    """By combination and round the median of its steps, in seconds."""

    @property
    def done(self) -> int:
        return self.total - len(self.trials)

    def left_s(self) -> float:
        """Return the expected seconds until the end: from the median duration of each pass so far, else from the protocol."""
        typical = {name: statistics.median_high(seconds) for name, seconds in self.spent.items()}
        left = sum(typical.get(pass_name, expected_s) for (_, pass_name, _), expected_s in self.trials.items())
        return left / max(1, len(self.begun))  # trials that run at once

    def take(self, event: TrialEvent, label: str) -> str | None:
        """Account for an event; returns a line to print if the trial failed and is the first that did so for its reason."""
        if event.kind in ("begin", "running"):  # the time that a trial waited does not count
            self.current, self.begun[event.key] = f"{label}, {event.pass_name}", event.time
            return None
        if event.kind == "waiting":
            if event.waits_for is not None:  # another shard of this sweep is shown anyway
                self.current = self.waited_for = f"waiting for {event.waits_for}"
            return None
        key = event.key
        if self.is_search and key not in self.trials:
            # A search does not know beforehand which combinations it measures: any trial of this kind stands for it.
            alike = [other for other in self.trials if other[1:] == key[1:]]
            if alike:
                key = alike[0]
            else:  # it measures more than was expected, as with another seed than before
                self.total += 1
        self.trials.pop(key, None)
        if event.kind == "decided":
            return None
        spent_s = event.time - self.begun.pop(event.key, event.time)
        self.spent.setdefault(event.pass_name, []).append(spent_s)
        if event.step_s is not None:
            self.steps.setdefault(event.combination_id, {})[event.round] = event.step_s
        if event.status in ("ok", "unsupported"):
            return None
        self.failed += 1
        cause = without_numbers(f"{event.status}: {event.reason}")
        if cause in self.causes:
            return None
        self.causes.add(cause)
        line = f"{label}, {event.pass_name}: {event.status}: {event.reason}"
        if event.log:
            line += f"; log: {event.log}"
        return line


class ProgressDisplay:
    """Follows the events of a sweep in a thread; a context."""

    def __init__(self, plan: Plan, folder: Folder, console: Console) -> None:
        self._events, self._console, self._jobs = folder.events, console, Jobs(folder.path)
        self._ends = trials_end(folder)
        self._may_stop = any(most_rounds(c.config) for c in plan.combinations)
        """True if verdicts can be decided before all rounds are measured."""
        self._combinations = {c.id: c for c in plan.combinations}
        self._axes = [axis for axis, values in plan.axes.items() if len(values) > 1]
        if not self._axes:
            self._axes = [axis for axis in ("model", "backend", "batch_size") if axis in plan.axes]
        self._shown_steps = 0
        is_search = plan.search is not None
        if is_search:  # as many trials as it chooses, of whichever combinations
            able = list(chain.from_iterable(plan.shards))
            planned = dataclasses.replace(plan, shards=(tuple(able[: plan.size]),)).trials()
            left = planned[sum(map(folder.is_done, measured_plan(plan, folder).trials())) :]
        else:
            planned = plan.trials()
            left = [trial for trial in planned if not folder.is_done(trial)]
        self.state = ProgressState({}, len(planned), is_search=is_search)
        for trial in left:
            combination = self._combinations[trial.combination_id]
            expected_s = expected_seconds(combination, trial.pass_name)
            if pass_named(trial.pass_name).kind == "rounds":
                expected_s /= combination.config["protocol"]["rounds"]
            self.state.trials[trial.combination_id, trial.pass_name, trial.round] = expected_s
        # Events of an earlier run are not shown.
        self._read = {path: path.stat().st_size for path in folder.events.glob("shard-*.jsonl")}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="sweeprof-progress", daemon=True)
        self._bar = Progress(
            BarColumn(bar_width=28),
            MofNCompleteColumn(),
            TextColumn("{task.fields[left]}", markup=False),
            TimeElapsedColumn(),
            TextColumn("{task.fields[failed]}", style="red", markup=False),
            TextColumn("{task.description}", markup=False),
            console=console,
            auto_refresh=False,
            transient=True,
        )
        self._task = self._bar.add_task("", total=len(planned), left="", failed="")

    def __enter__(self) -> ProgressDisplay:
        if self._console.is_terminal:
            self._bar.start()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        if self._console.is_terminal:
            self._bar.stop()

    def _follow(self) -> None:
        last_line, waited_for, queue = 0.0, "", ""
        while not self._stop.wait(WAKE_S):
            self._take_new()
            if self._console.is_terminal:
                self._refresh()
            elif receivers:
                line = self._plain() if self.state.current else self._jobs.queue()
                tell({"progress": line or "starting", "done": self.state.done, "total": self.state.total})
            elif self._jobs.queue() not in ("", queue):
                queue = self._jobs.queue()
                self._print(queue)
            elif self.state.waited_for != waited_for:
                waited_for = self.state.waited_for
                self._print(waited_for)
            elif time.monotonic() - last_line >= 10 * WAKE_S and self.state.current:
                last_line = time.monotonic()
                self._print(self._plain())
        self._take_new()

    def _print(self, line: str) -> None:
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)

    def _take_new(self) -> None:
        """Account for new events, and print a line for each cause of failures and each combination that has its first result."""
        for path in sorted(self._events.glob("shard-*.jsonl")):
            try:
                # Of thousands of tasks most have written nothing since.
                if path.stat().st_size <= self._read.get(path, 0):
                    continue
                opened = open_regular(path, "rb")
            except FileNotFoundError:  # the folder was removed, as the shard reports
                continue
            with opened as file:
                file.seek(self._read.get(path, 0))
                for line in file:
                    if not line.endswith(b"\n"):
                        break  # still being written
                    self._read[path] = self._read.get(path, 0) + len(line)
                    event = parsed(line)
                    if event is None:
                        continue
                    failure = self.state.take(event, self._label(event.combination_id))
                    if failure:
                        self._console.print(Text(failure, style="red"), soft_wrap=True)
        for id in list(self.state.steps)[self._shown_steps : MOST_LINES]:
            steps = self.state.steps[id]
            planned = int(self._combinations[id].config["protocol"]["rounds"])
            step = rounded(statistics.median(steps.values()), "s")
            self._print(f"{self._label(id)}: {step} ({len(steps)} of {planned} round{'s' * (planned > 1)})")
        self._shown_steps = len(self.state.steps)

    def _label(self, id: str) -> str:
        """Return a combination's values, those that are not text with their axis: ``torch, batch_size 8``."""
        if id not in self._combinations:
            return ""
        parts = []
        for axis in self._axes:
            value = self._combinations[id].axes[axis]
            if not isinstance(value, str):
                value = f"{axis.rpartition('.')[2]} {axis_text(value)}"
            parts.append(value)
        return ", ".join(parts)

    def _refresh(self) -> None:
        state = self.state
        description, left, failed = state.current, "starting", ""
        if not state.begun:
            description = self._jobs.queue() or state.current
        if state.current:
            left = f"{self._left()} left"
        if state.failed:
            failed = f"{state.failed} failed"
        self._bar.update(
            self._task,
            completed=state.done,
            total=state.total,
            description=description,
            left=left,
            failed=failed,
        )
        self._bar.refresh()

    def _plain(self) -> str:
        failed = f", {self.state.failed} failed" if self.state.failed else ""
        left = self._left() if self._may_stop else f"about {self._left()}"
        return f"[{self.state.done}/{self.state.total}{failed}] {self.state.current} ({left} left)"

    def _left(self) -> str:
        """Return the time that is left; with a budget not more than that leaves."""
        seconds = self.state.left_s()
        if self._ends is not None:
            seconds = min(seconds, max(0.0, self._ends - time.monotonic()))
        return f"at most {_duration(seconds)}" if self._may_stop else _duration(seconds)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds + 0.5), 60)
    return f"{minutes}:{rest:02d}" if minutes else f"{rest} s"
