"""Searches on sweeps whose every combination was measured: how often a sixth of the combinations has the best one.

Each table is a sweep that was measured once; its file names the command, the host and the date. The search reads from it what it
would measure.
"""

from __future__ import annotations

import csv
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from sweeprof.config.override_syntax import default_sampler
from sweeprof.config.schema import LimitSettings
from sweeprof.metrics.select import select
from sweeprof.plan.plan import Combination, ComparisonSettings, Plan, SearchPlan
from sweeprof.results.compared_rows import SearchGoal
from sweeprof.run.search import Assessment, Outcome, Outcomes, Search

TABLES = Path(__file__).parent / "search_tables"
SHARE = 6
"""One of so many combinations is measured at most."""
NEAR = 0.02
"""Relative difference from the best of all."""


@dataclass(frozen=True)
class Question:
    """What is searched for in a table."""

    goal: SearchGoal
    conditions: tuple[str, ...]


FASTEST = SearchGoal("throughput/samples_per_s", "maximize")
QUESTIONS = {
    "architecture": Question(
        SearchGoal("params/total", "maximize"), ("compute/macs < 150 M", "memory/act_peak_live_bytes < 1 MB")
    ),
    "mlp": Question(FASTEST, ("latency < 0.4 ms",)),
    "resnet": Question(FASTEST, ("latency < 20 ms",)),
    "fitting": Question(SearchGoal("compute/macs", "maximize"), ("memory/footprint_est_bytes < 16 MB",)),
}


class Table(Outcomes):
    """A measured sweep, as a search sees it."""

    def __init__(self, name: str, sampler: str, seed: int) -> None:
        lines = (TABLES / f"{name}.csv").read_text(encoding="utf-8").splitlines()
        rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
        question = QUESTIONS[name]
        points = [
            {k.removeprefix("axes."): yaml.safe_load(v) for k, v in row.items() if k[:5] == "axes."} for row in rows
        ]
        self.values = [{k: float(v) for k, v in row.items() if k[:5] != "axes." and v} for row in rows]
        config = {"batch_size": 1, "protocol": {"rounds": 1}}
        combinations = [Combination(f"c{place}", point, config, "") for place, point in enumerate(points)]
        axes = {axis: list(dict.fromkeys(point[axis] for point in points)) for axis in points[0]}
        self.plan = Plan(
            sweep_id="s1",
            name=name,
            created="2026-11-24T00:00:00+00:00",
            command="",
            axes=axes,
            baseline={},
            combinations=tuple(combinations),
            excluded=(),
            shards=(tuple(c.id for c in combinations),),
            passes=("timing",),
            metrics=[],
            threshold=None,
            limits=LimitSettings(),
            isolation="fork",
            compare=ComparisonSettings(constraints=list(question.conditions)),
            search=SearchPlan((question.goal,), len(combinations) // SHARE, sampler, seed),
        )
        metrics = [entry.metric.info for entry in select(list(self.values[0]))]
        self._assessment = Assessment(self.plan, metrics)
        self.chosen: list[str] = []

    def is_measured(self, id: str) -> bool:
        return id in self.chosen

    def of(self, id: str, others: Collection[str] = ()) -> Outcome:
        place = int(id.removeprefix("c"))
        return self._assessment.outcome(self.plan.combinations[place].axes, self.values[place])

    def best(self, ids: Collection[str]) -> float:
        outcomes = [outcome for id in ids if (outcome := self.of(id)).is_feasible]
        values = [outcome.values[0] for outcome in outcomes if outcome.values is not None]
        return max(values, default=0.0)

    def searched(self) -> float:
        """How much smaller than the best of all the best that a search finds is, relative to the former."""
        search = Search(self.plan, self)
        while (id := search.next()) is not None:
            assert id not in self.chosen
            self.chosen.append(id)
        assert SHARE * len(self.chosen) <= len(self.plan.combinations)
        return 1 - self.best(self.chosen) / self.best([c.id for c in self.plan.combinations])


def test_the_tables_are_large() -> None:
    for name in QUESTIONS:
        assert len(Table(name, "TPESampler", 0).plan.combinations) >= 100


def test_a_sixth_of_the_combinations_has_the_best_one() -> None:
    assert Table("architecture", "TPESampler", 0).searched() <= NEAR


@pytest.mark.slow
def test_the_default_sampler_finds_it_in_a_measured_sweep() -> None:
    assert Table("mlp", default_sampler(), 1).searched() <= NEAR


@pytest.mark.thorough
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", QUESTIONS)
def test_ten_seeds(name: str) -> None:
    """With each seed the default sampler finds a combination that is within 2 % of the best."""
    differences = [Table(name, default_sampler(), seed).searched() for seed in range(10)]
    print(name, [f"{100 * difference:.1f} %" for difference in differences])
    assert max(differences) <= NEAR
