"""``search``: Optuna chooses which combinations are measured, nothing certain to be too large is, and a resumed search goes on."""

from __future__ import annotations

import csv
import dataclasses
import re
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.plans import fake_plan, sweep_folder
from support.samples import build
from sweeprof.config.override_syntax import default_sampler
from sweeprof.metrics.select import select
from sweeprof.plan.plan import Combination, ComparisonSettings, Plan, SearchPlan
from sweeprof.report.answer import answer
from sweeprof.results.compared_rows import Comparison, SearchGoal, SearchSummary
from sweeprof.results.statistics import mean_interval
from sweeprof.run.comparison import comparison_of
from sweeprof.run.search import Assessment, Outcome, Outcomes, Search
from sweeprof.run.shard import run_shard
from sweeprof.run.stopping import Budget
from sweeprof.storage import Folder

ACCURACY = "quality/accuracy"
TIME, THROUGHPUT, MEMORY = "latency/forward", "throughput/samples_per_s", "memory/added_bytes"
BATCHES = (1, 2, 4, 8, 16, 32, 64)
LARGEST = SearchGoal(THROUGHPUT, "maximize")


def plan_of(
    trials: int = 10,
    goals: tuple[SearchGoal, ...] = (LARGEST,),
    conditions: tuple[str, ...] = (),
    rounds: int = 1,
    batches: tuple[int, ...] = BATCHES,
    arguments: Any = lambda batch, step: {},
    **changes: Any,
) -> Plan:
    """Steps of 1, 2, 3 and 4 ms at seven batch sizes, each sample of which takes 0.1 ms: the throughput rises with the batch."""
    steps = (1, 2, 3, 4)
    models = {
        f"b{batch}s{step}": {"step_s": step / 1000, "per_sample_s": 0.0001, **arguments(batch, step)}
        for step in steps
        for batch in batches
    }
    metrics = (TIME, THROUGHPUT, *changes.pop("metrics", ()))
    plan = fake_plan(models, changes.pop("passes", ("timing",)), rounds=rounds, metrics=metrics)
    combinations = []
    for combination in plan.combinations:
        batch, step = map(int, combination.id.removeprefix("cb").split("s"))
        axes = {"backend": "fake", "model": "fake", "device": "cpu", "batch_size": batch, "step": step}
        config = {**combination.config, "batch_size": batch}
        combinations.append(Combination(combination.id, axes, config, combination.command))
    front = [goal.metric for goal in goals] if len(goals) > 1 else []
    return dataclasses.replace(
        plan,
        axes={"backend": ["fake"], "model": ["fake"], "device": ["cpu"], "batch_size": [*batches], "step": [*steps]},
        baseline={},
        combinations=tuple(combinations),
        shards=(tuple(c.id for c in combinations),),
        compare=ComparisonSettings(constraints=list(conditions), pareto=front),
        search=SearchPlan(goals, trials, changes.pop("sampler", "TPESampler"), changes.pop("seed", 0)),
        **changes,
    )


def searched(path: Path, plan: Plan) -> tuple[Folder, Comparison]:
    folder = sweep_folder(path, plan)
    run_shard(folder, 0)
    return folder, comparison_of(folder)


def measured(folder: Folder) -> set[str]:
    return {path.parent.name for path in folder.records.glob("*/*.json")}


@pytest.mark.slow
def test_some_combinations_are_measured_and_the_answer_names_the_best(tmp_path: Path) -> None:
    folder, comparison = searched(tmp_path / "sweep", plan_of(conditions=("latency < 5 ms",)))
    assert len(measured(folder)) == len(comparison.rows) == 10
    assert all(row.is_fully_measured for row in comparison.rows)
    sizes = [tuple(map(int, id.removeprefix("cb").split("s"))) for id in measured(folder)]
    values = {(batch, step): batch / (step + 0.1 * batch) for batch, step in sizes if step + 0.1 * batch < 5}
    (batch, step), value = max(values.items(), key=lambda item: item[1])
    assert answer(comparison).finding.startswith(
        f"Best measured throughput with latency < 5 ms: batch_size {batch}, step {step} – {value:.2f} k/s "
        "(10 of 28 combinations measured)."
    )
    assert answer(comparison).counts == "10 of 10 chosen combinations measured."


def faulty(batch: int, step: int) -> dict[str, Any]:
    return {"on_step": "raise"} if step > 1 else {}


SEARCHES = {
    "the best of those that qualify is also that of the goal": plan_of(
        4, conditions=("latency < 9 ms",), batches=(64,)
    ),
    # With 64 samples, 1 and 2 ms are 7.4 and 8.4 ms; with 32, 1 ms is about as good as 2 ms with 64.
    "what is not distinguishable is named": plan_of(8, batches=(32, 64), threshold=0.2),
    "nothing fulfils the condition": plan_of(3, conditions=("latency < 1 us",)),
    "everything fails": plan_of(3, arguments=lambda batch, step: {"on_step": "raise"}),
    "what failed is not counted as measured": plan_of(28, arguments=faulty),
    "the goal has no value anywhere": plan_of(3, (SearchGoal(MEMORY, "minimize"),), metrics=(MEMORY,)),
}


def test_the_answers_of_searches(tmp_path: Path, golden: Callable[[str, str], None]) -> None:
    lines = []
    for name, plan in SEARCHES.items():
        _, comparison = searched(tmp_path / name, plan)
        finding = re.sub(r"fake\.py:\d+", "fake.py", answer(comparison).finding)
        lines += [f"{name}:", f"  {finding}", f"  {answer(comparison).counts}"]
    golden("searches.txt", "\n".join([*lines, ""]))


@pytest.mark.parametrize(
    ("thresholds", "told"),
    [({}, "(2 of 2 combinations measured)."), ({ACCURACY: 0.01}, "As good: width 8.")],
)
def test_a_goal_that_is_exact_may_have_a_threshold_of_its_own(thresholds: dict[str, float], told: str) -> None:
    values = [{ACCURACY: 0.970}, {ACCURACY: 0.972}]
    made = build([{"width": 8}, {"width": 16}], {ACCURACY: ("ratio", "higher")}, values, thresholds=thresholds)
    search = SearchSummary((SearchGoal(ACCURACY, "maximize"),), trials=2, combinations=2)
    finding = answer(dataclasses.replace(made, search=search)).finding
    assert finding.startswith("Best accuracy: width 16 – 0.9720 ")
    assert finding.endswith(told)


@pytest.mark.parametrize(
    ("rounds", "others", "told"),
    [
        ((0.0, 0.0, 0.0), (90.0, 91.0, 92.0), "(2 of 2 combinations measured)."),
        ((0.0, 10.0, 20.0), (1.0, 12.0, 23.0), " Not certain to be worse: width 16."),
    ],
)
def test_rounds_without_a_ratio_are_compared_by_their_intervals(
    rounds: tuple[float, ...], others: tuple[float, ...], told: str
) -> None:
    made = build([{"width": 8}, {"width": 16}], {"mine/x": ("s", "lower")}, [{"mine/x": 1}] * 2, threshold=0.05)
    for row, values in zip(made.rows, (rounds, others), strict=True):
        cell = row.cells["mine/x"]
        interval = mean_interval(values)
        measured = dataclasses.replace(cell.measurement, value=sum(values) / 3, rounds=values, interval=interval)
        row.cells["mine/x"] = dataclasses.replace(cell, measurement=measured)
    search = SearchSummary((SearchGoal("mine/x", "minimize"),), trials=2, combinations=2)
    finding = answer(dataclasses.replace(made, search=search)).finding
    assert finding.startswith("Best measured mine/x: width 8 – ")
    assert finding.endswith(told)


def test_a_search_that_ended_early_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = sweep_folder(tmp_path / "sweep", plan_of(12))
    early = " The search ended early, after 4 of 12 combinations: resume=last continues it."
    with monkeypatch.context() as limited:
        limited.setattr(Budget, "has_time_for_each", lambda *given: len(measured(folder)) < 4)
        run_shard(folder, 0)
    assert answer(comparison_of(folder)).finding.endswith(early)
    running = answer(comparison_of(folder, running=True))
    assert "ended early" not in running.finding
    assert running.counts.startswith("running: 4 of at most 12 trials have ended; ")
    run_shard(folder, 0)
    assert "ended early" not in answer(comparison_of(folder)).finding


def test_several_goals_have_a_front(tmp_path: Path) -> None:
    goals = (LARGEST, SearchGoal(TIME, "minimize"))
    _, comparison = searched(tmp_path / "sweep", plan_of(12, goals, sampler="NSGAIISampler"))
    front = [row for row in comparison.rows if row.on_front]
    said = f"The Pareto front of throughput, latency has {len(front)} combination"
    assert front
    assert answer(comparison).finding.startswith(said)


class Known(Outcomes):
    """Outcomes that are known as soon as they were asked for: the throughput is the batch size."""

    def __init__(self, *begun: str) -> None:
        self.chosen: list[str] = [*begun]

    def is_measured(self, id: str) -> bool:
        return id in self.chosen

    def search(self, plan: Plan) -> list[str]:
        """Search on to the end; nothing is chosen twice."""
        search = Search(plan, self, begun=[*self.chosen])
        while (id := search.next()) is not None:
            assert id not in self.chosen
            self.chosen.append(id)
        return self.chosen

    def of(self, id: str, others: Collection[str] = ()) -> Outcome:
        return Outcome((float(id.removeprefix("cb").partition("s")[0]),))


@pytest.mark.parametrize("sampler", ["RandomSampler", "NSGAIISampler", "TPESampler"])
def test_what_an_earlier_run_measured_counts_against_the_number_of_trials(sampler: str) -> None:
    """Also combinations that the sampler would not choose now, as where one that had failed has a result since."""
    assert len(Known().search(plan_of(28, sampler=sampler))) == 28  # each once
    plan = plan_of(12, sampler=sampler)
    undisturbed = Known().search(plan)
    others = [c.id for c in plan.combinations if c.id not in undisturbed][:5]
    resumed = Known(*undisturbed[:3], *others).search(plan)
    assert len(undisturbed) == len(resumed) == 12
    assert set(others) < set(resumed)


@pytest.mark.slow
def test_nothing_larger_than_what_runs_out_of_memory_is_measured(tmp_path: Path) -> None:
    faults = {"on_step": "memory_error"}
    plan = plan_of(28, arguments=lambda batch, step: faults if batch >= 8 and step < 4 else {})
    folder, comparison = searched(tmp_path / "sweep", plan)
    rows = {row.combination_id: row for row in comparison.rows}
    failed = [(row.axes["batch_size"], row.axes["step"]) for row in rows.values() if row.status == "oom"]
    excluded = {f"cb{one.axes['batch_size']}s{one.axes['step']}": one.reason for one in comparison.excluded}
    assert excluded
    assert measured(folder) | set(excluded) == {c.id for c in plan.combinations}
    for id, reason in excluded.items():
        batch, step = map(int, id.removeprefix("cb").split("s"))
        smaller = [size for size, of_step in failed if of_step == step and size < batch]
        assert reason in [f"not run, because batch_size={size} ran out of memory" for size in smaller]
    assert "not run, because a smaller one is too large." in answer(comparison).finding


def test_a_condition_on_memory_is_an_upper_limit() -> None:
    """What breaks it is too large; what breaks a condition on time, a lower limit, or one on two kinds of metric is not."""
    metrics = [entry.metric.info for entry in select([THROUGHPUT, TIME, MEMORY, "memory/rss_peak_bytes"])]
    axes = {"batch_size": 64, "step": 1}
    values = {THROUGHPUT: 100.0, TIME: 0.1, MEMORY: 60e6, "memory/rss_peak_bytes": 90e6}
    reasons = {}
    for condition in ("added_bytes < 50 MB", "rss_peak_bytes < 100 MB", "added_bytes > 70 MB", "latency < 5 ms"):
        outcome = Assessment(plan_of(conditions=(condition,)), metrics).outcome(axes, values)
        reasons[condition] = outcome.too_large
        assert outcome.is_feasible == (condition == "rss_peak_bytes < 100 MB")
    assert reasons == {
        **dict.fromkeys(reasons),
        "added_bytes < 50 MB": "batch_size=64 does not fulfil added_bytes < 50 MB",
    }


def test_a_resumed_search_may_have_more_trials(tmp_path: Path) -> None:
    folder, _ = searched(tmp_path / "sweep", plan_of(5))
    first = measured(folder)
    (tmp_path / "sweep" / "plan.json").unlink()
    folder, comparison = searched(tmp_path / "sweep", plan_of(9))
    assert first < measured(folder)
    assert len(comparison.rows) == 9


def test_further_rounds_go_to_what_may_be_the_best(tmp_path: Path) -> None:
    """Times of fake models do not scatter, so that three of six rounds decide everything."""
    plan = plan_of(4, rounds=6, batches=(64,), threshold=0.05)
    for combination in plan.combinations:
        combination.config["protocol"]["decide"] = "baseline"
    _, comparison = searched(tmp_path / "sweep", plan)
    assert {row.rounds_complete for row in comparison.rows} == {3}
    assert answer(comparison).finding == "Best throughput: step 1 – 8.65 k/s (4 of 4 combinations measured)."


TABLES = Path(__file__).parent / "search_tables"
SHARE = 6
"""One of so many combinations is measured at most."""
NEAR = 0.02
"""Relative difference from the best of all."""


QUESTIONS = {
    "architecture": ("params/total", ["compute/macs < 150 M", "memory/act_peak_live_bytes < 1 MB"]),
    "mlp": (THROUGHPUT, ["latency < 0.4 ms"]),
    "resnet": (THROUGHPUT, ["latency < 20 ms"]),
    "fitting": ("compute/macs", ["memory/footprint_est_bytes < 16 MB"]),
}
"""Per table, the metric to maximise and the conditions."""


class Table(Known):
    """A measured sweep, as a search sees it."""

    def __init__(self, name: str, sampler: str, seed: int) -> None:
        lines = (TABLES / f"{name}.csv").read_text(encoding="utf-8").splitlines()
        rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
        super().__init__()
        metric, conditions = QUESTIONS[name]
        self.values = []
        combinations = []
        for place, row in enumerate(rows):
            point = {key.removeprefix("axes."): yaml.safe_load(row[key]) for key in row if key.startswith("axes.")}
            config = {"batch_size": 1, "protocol": {"rounds": 1}}
            combinations.append(Combination(f"c{place}", point, config, ""))
            self.values.append({key: float(text) for key, text in row.items() if not key.startswith("axes.") and text})
        self.plan = dataclasses.replace(
            fake_plan({}, ("timing",)),
            axes={axis: list(dict.fromkeys(c.axes[axis] for c in combinations)) for axis in combinations[0].axes},
            baseline={},
            combinations=tuple(combinations),
            shards=(tuple(c.id for c in combinations),),
            threshold=None,
            compare=ComparisonSettings(constraints=conditions),
            search=SearchPlan((SearchGoal(metric, "maximize"),), len(combinations) // SHARE, sampler, seed),
        )
        self._assessment = Assessment(self.plan, [entry.metric.info for entry in select(list(self.values[0]))])

    def of(self, id: str, others: Collection[str] = ()) -> Outcome:
        place = int(id.removeprefix("c"))
        return self._assessment.outcome(self.plan.combinations[place].axes, self.values[place])

    def best(self, ids: Collection[str]) -> float:
        outcomes = [outcome for id in ids if (outcome := self.of(id)).is_feasible]
        values = [outcome.values[0] for outcome in outcomes if outcome.values is not None]
        return max(values, default=0.0)

    def searched(self) -> float:
        """How much smaller than the best of all the best that a search finds is, relative to the former."""
        self.search(self.plan)
        assert SHARE * len(self.chosen) <= len(self.plan.combinations)
        return 1 - self.best(self.chosen) / self.best([c.id for c in self.plan.combinations])


def test_a_sixth_of_the_combinations_has_the_best_one() -> None:
    assert Table("architecture", "TPESampler", 0).searched() <= NEAR


@pytest.mark.thorough
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", QUESTIONS)
def test_ten_seeds(name: str) -> None:
    """With each seed the default sampler finds a combination that is within 2 % of the best."""
    differences = [Table(name, default_sampler(), seed).searched() for seed in range(10)]
    print(name, [f"{100 * difference:.1f} %" for difference in differences])
    assert max(differences) <= NEAR
