"""Launching what is left once more where a launcher gives up: some leave every other job behind when one dies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field

from rich.console import Console
from rich.text import Text

from sweeprof.errors import SweeprofError
from sweeprof.results.files import unwritable
from sweeprof.sweep.blame import leave_record
from sweeprof.sweep.events import TrialKey, begun, events_of
from sweeprof.sweep.folder import Folder
from sweeprof.sweep.hold import until_idle
from sweeprof.sweep.plan import Plan, Trial

FAILURES = 10
"""So many, and the sweep ends with what it has."""

Launch = Callable[[Folder, Plan, Sequence[int]], None]
"""Runs shards of the plan in the folder through a Hydra launcher; raises an error of ours where they go on without us."""


def launched(plan: Plan, folder: Folder, launch: Launch, live: Console) -> None:
    """Launch the shards until all of them came to their ends; raises what a launcher failed with, where another try is no use.

    What was running when its shard died is run once more; when its shard dies again it has a record that says so. Some launchers
    end every job with the one that died: where that leaves in doubt which trial it was, shards are launched one by one.
    """
    if plan.cluster:  # whose launcher follows each job by itself
        launch(folder, plan, range(len(plan.shards)))
        return
    tries = _Tries(plan, folder, live)
    queue = [list(range(len(plan.shards)))]
    while queue:
        shards = queue.pop(0)
        tries.begin()
        try:
            launch(folder, plan, shards)
            tries.wait()
        except SweeprofError:  # one of ours means what it says
            raise
        except Exception as error:
            if unwritable(error, folder.path) or not tries.are_worth_another():
                raise
            queue += tries.left(shards, error)


@dataclass(slots=True)
class _Tries:
    plan: Plan
    folder: Folder
    live: Console
    suspects: set[TrialKey] = field(default_factory=set)
    """What was running when a shard died."""
    failures: int = 0
    _before: tuple[int, Counter[TrialKey]] = (0, Counter())

    def begin(self) -> None:
        """Note what there is before shards are launched."""
        self._before = self._measured(), self._turns()

    def wait(self) -> None:
        """Until no shard works: a launcher may return or raise before its jobs have ended."""
        until_idle(self.folder.path, lambda: self._say("waiting for shards that still run"))

    def are_worth_another(self) -> bool:
        """Whether the launcher got anywhere before it failed; once its last job has ended."""
        self.wait()
        self.failures += 1
        got = self._unfinished() or self._measured() > self._before[0]
        return bool(got) and self.failures < FAILURES and self.folder.stopped() is None

    def left(self, shards: Sequence[int], error: Exception) -> list[list[int]]:
        """What to launch next: shards that lack something, together or one by one."""
        unfinished = self._unfinished()
        twice = unfinished & self.suspects
        self.suspects |= unfinished
        is_certain = len(unfinished) == 1 or len(shards) == 1
        if is_certain:
            self._give_up(twice, f"its shard died twice while it ran ({words(error)})")
        left = [shard for shard in shards if self._lacks(shard)]
        if left:
            self._say(f"the launcher failed: {words(error)}; what is left is launched again")
        return [[shard] for shard in left] if twice and not is_certain else [left] if left else []

    def _give_up(self, trials: Set[TrialKey], reason: str) -> None:
        """Leave a record for each of these trials, which would only end their shards again."""
        for key in sorted(trials):
            leave_record(self.folder, self.plan, Trial(*key), "lost", reason)

    def _measured(self) -> int:
        return sum(1 for _ in self.folder.records.glob("*/*-r*.json"))

    def _lacks(self, shard: int) -> bool:
        return not all(self.folder.is_done(trial) for bout in self.plan.bouts(shard) for trial in bout)

    def _turns(self) -> Counter[TrialKey]:
        """How often each trial has had its turn, in earlier runs of the sweep, too."""
        events = (event for event in events_of(self.folder.events) if event["event"] == "begin")
        return Counter((event["combination_id"], event["pass"], event["round"]) for event in events)

    def _unfinished(self) -> set[TrialKey]:
        """What began in this launch and left nothing."""
        now, earlier = self._turns(), self._before[1]
        found = (key for key in begun(self.folder.events) if now[key] > earlier[key])
        return {key for key in found if not self.folder.is_done(Trial(*key))}

    def _say(self, words: str, style: str = "yellow") -> None:
        self.live.print(Text(words, style=style), soft_wrap=True)


def words(error: Exception) -> str:
    """What an error says, in one line: Ray's errors have many."""
    first = (str(error).strip().splitlines() or [""])[0]
    return first if isinstance(error, SweeprofError) else f"{type(error).__name__}: {first}"
