"""The search of a sweep (``search``), and which outputs of two combinations should agree.

A sampler of Optuna chooses which combinations are measured, one after the other.
Nothing of a search is stored beside the records. Whenever it begins or is resumed, it asks the sampler from the beginning, and
tells it the results that there are already; with the same seed and the same records it makes the same choices.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from sweeprof.config.override_syntax import frozen, make_sampler
from sweeprof.metrics.compute import UNITS, by_unit, in_units
from sweeprof.metrics.evaluate import evaluate
from sweeprof.metrics.quality import parts_of, with_parts
from sweeprof.metrics.select import select
from sweeprof.passes.quality import THE_BASELINES, Quality, incomparable, pairs_of_outputs
from sweeprof.plan.comparing import DEFAULT_BASELINE
from sweeprof.plan.plan import Combination, Plan, SearchPlan, Trial, trial_groups
from sweeprof.results.compared_rows import Excluded, find_baselines
from sweeprof.results.constraints import Condition, conditions, metric_names, units_of
from sweeprof.results.measurement import MetricInfo
from sweeprof.results.record import FINE, Json, Record, Warning
from sweeprof.storage import Folder

if TYPE_CHECKING:
    from optuna import Study
    from optuna.distributions import BaseDistribution
    from optuna.trial import Trial as Suggestion


INEXACT = {"precision": ("int4", "int8", "fp8", "bf16", "fp16")}
"""Settings of a backend that change its outputs on purpose; the accuracy shows their effect."""
DEFAULT_BACKEND = DEFAULT_BASELINE["backend"]
SAME = ("model", "dataset", "seed")
"""Keys that two combinations must have in common for their outputs to be expected to agree."""


def tolerance_of(own: Json, base: Json, tolerance: float | None) -> float | None:
    """Return how far the outputs of two configs may differ, relative to the largest; None if they are not expected to agree.

    Only the same model, data and seed on different frameworks are. A backend's own ``tolerance`` goes before ``tolerance``.
    """
    if any(own.get(key) != base.get(key) for key in SAME):
        return None
    if own["backend"].get("framework") == base["backend"].get("framework"):
        return None
    for key, values in INEXACT.items():
        if own["backend"].get(key) in values or base["backend"].get(key) in values:
            return None
    given = [config["backend"].get("tolerance", tolerance) for config in (own, base)]
    return None if None in given else max(given)


@dataclass(frozen=True, slots=True)
class Reference:
    """The combination whose outputs those of another one should be."""

    id: str
    tolerance: float
    whose: str
    """``the baseline's``, or ``torch's``."""


def output_references(plan: Plan, bases: Mapping[str, str | None]) -> dict[str, Reference]:
    """Return the references of the combinations that have one, by their ids.

    It is the baseline if that is the same model on another framework. Where it is not, as where a student is compared with its
    teacher on each backend, it is the same combination on one backend: the baseline's, PyTorch, or the first of the sweep.

    Args:
        bases: by combination, the baseline.
    """
    combinations = {c.id: c for c in plan.combinations}
    backends = [c.axes["backend"] for c in plan.combinations if "backend" in c.axes and c.unsupported is None]
    backend = plan.baseline.get("backend")
    if "backend" not in plan.baseline and backends:
        backend = DEFAULT_BACKEND if DEFAULT_BACKEND in backends else backends[0]
    on_backend = find_baselines({"backend": backend}, {id: c.axes for id, c in combinations.items()})
    found = {}
    for id, combination in combinations.items():
        for other, whose in ((bases[id], THE_BASELINES), (on_backend[id], f"{backend}'s")):
            if other is None or other == id:
                continue
            tolerance = tolerance_of(combination.config, combinations[other].config, plan.compare.tolerance)
            if tolerance is not None:
                found[id] = Reference(other, tolerance, whose)
                break
    return found


def disagreement(
    own: Sequence[Record], base: Sequence[Record], tolerance: float | None, whose: str = THE_BASELINES
) -> str | None:
    """Return how the outputs differ by more than ``tolerance``; None if they do not, or are not known.

    Of several outputs it is the one with the largest difference relative to its largest value.

    Args:
        whose: what the outputs of ``base`` are called.
    """
    ours, theirs = _quality(own), _quality(base)
    if tolerance is None or ours is None or theirs is None:
        return None
    if ours.is_varying or theirs.is_varying:  # :func:`unjudged` says so
        return None
    problem = incomparable(ours, theirs, whose)
    if problem is not None:
        return f"outputs differ: {problem}"
    worst, reason = 0.0, None
    for name, own_output, base_output in pairs_of_outputs(ours, theirs):
        subject = f"outputs {name!r}" if name else "outputs"
        own_values, base_values = own_output.astype(np.float64), base_output.astype(np.float64)
        if not np.isfinite(own_values).all() or not np.isfinite(base_values).all():
            if worst < math.inf and not np.array_equal(own_values, base_values, equal_nan=True):
                worst, reason = math.inf, f"{subject} differ: not all of them are finite"
            continue
        apart = float(np.abs(own_values - base_values).max(initial=0))
        largest = float(np.abs(base_values).max(initial=0))
        share = apart / largest if largest else math.inf
        if apart <= tolerance * largest or share <= worst:
            continue
        worst = share
        reason = (
            f"{subject} differ by up to {apart:.3g}, and {whose} are no larger than {largest:.3g}:"
            f" more than compare.tolerance={tolerance:g} of that (random weights differ between frameworks: compare.tolerance=null)"
        )
    return reason


def unjudged(
    own: Sequence[Record], base: Sequence[Record], tolerance: float | None, whose: str = THE_BASELINES
) -> Warning | None:
    """Return the warning for two sides whose outputs should agree and are not both known; ``whose``: as of :func:`disagreement`."""
    if tolerance is None:
        return None
    ours, theirs = _quality(own), _quality(base)
    if ours is None or theirs is None:
        missing = "its" if ours is None else whose
        text = f"{missing} outputs are unknown: it is not certain that both sides compute the same"
        return Warning("outputs_not_compared", text, "see the quality pass of that side, or set compare.tolerance=null")
    if not ours.is_varying and not theirs.is_varying:
        return None
    problem = incomparable(ours, theirs, whose)
    return Warning(
        "outputs_not_compared",
        f"outputs cannot be compared: {problem}; it is not certain that both sides compute the same",
        "pad all batches to one length: dataset.collate.length=…, or Split(…, collate=Pad(length=…))",
    )


def _quality(records: Sequence[Record]) -> Quality | None:
    for record in records:
        if record.pass_name == "quality" and record.status == "ok":
            return None if record.observations is None else Quality.from_dict(record.observations)
    return None


def named_metrics(plan: Plan, metrics: Sequence[MetricInfo]) -> list[str]:
    """Return the full names of the metrics that the goals of a search and, perhaps, the conditions name."""
    goals = [goal.metric for goal in plan.search.goals] if plan.search else []
    conditions = " ".join(plan.compare.constraints or ())
    names = [info.name for info in in_units(metrics, UNITS)]
    return [name for name in names if name in goals or name.rpartition("/")[2] in conditions]


# ---- The search ----


GROWING = ("batch_size", "generation.prompt_length", "generation.new_tokens")
"""Axes along which a combination needs more memory, beside those below ``inputs``."""
MOST_ASKS = 2
"""How often the sampler is asked for a combination that can still be measured; then the one nearest to its last choice is taken."""
SPREADS = 2.0
"""A value counts as no farther from the best one than so many times the distance of the median of the feasible values, …"""
LEAST_SPREAD = 0.1
"""… which is taken to be at least about 10%."""
LEAST_FEASIBLE = 6
"""Feasible values before this bound applies: the median of fewer says little, and the sampler has to find where conditions hold."""
SMALLEST = 1e-12
"""Smaller values of a goal count as this one."""
LARGER = 1e9
"""A condition on memory that is false for a value so many times larger is an upper limit."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a search knows of a combination after its first round."""

    values: tuple[float, ...] | None
    """Of the goals; None if it failed, or if a goal has no value."""
    excess: tuple[float, ...] = ()
    """How far it is from the limit of each condition; above 0 for one that does not hold."""
    too_large: str | None = None
    """Why no larger combination is measured."""

    @property
    def is_feasible(self) -> bool:
        """True if it has values and fulfils all conditions."""
        return self.values is not None and all(excess <= 0 for excess in self.excess)


class Assessment:
    """Computes outcomes from the values of metrics, by the goals and conditions of a plan.

    Args:
        metrics: of the sweep.
    """

    def __init__(self, plan: Plan, metrics: Sequence[MetricInfo]) -> None:
        assert plan.search is not None
        self._goals = [goal.metric for goal in plan.search.goals]
        self._sizes = [axis for axis, values in plan.axes.items() if _is_growing(axis) and len(values) > 1]
        self.named = named_metrics(plan, metrics)
        self._names = {**metric_names(in_units(metrics, UNITS)), **{axis: axis for axis in plan.axes}}
        units = units_of(self._names, metrics)
        self._conditions = conditions(plan.compare.constraints or [], list(self._names), units)

    def outcome(self, axes: Mapping[str, object], values: Mapping[str, float]) -> Outcome:
        """Return the outcome of a combination with these axes and values; metrics without a value are left out."""
        excess, too_large = [], None
        for condition in self._conditions:
            full_names = [self._names[name] for name in condition.expression.names]
            known: dict[str, object] = {}
            for name in condition.expression.names:
                full = self._names[name]
                known[name] = values.get(full, axes.get(full))
            if None in known.values():
                excess.append(1.0)
                continue
            try:
                excess.append(condition.expression.excess(known))
            except ValueError:  # the report says so
                excess.append(1.0)
            is_of_memory = all(full.startswith("memory/") for full in full_names)
            if excess[-1] > 0 and is_of_memory and _is_upper_limit(condition, known):
                too_large = f"{self.size(axes)} does not fulfil {condition.expression.text}"
        found = [values[goal] for goal in self._goals if goal in values]
        return Outcome(tuple(found) if len(found) == len(self._goals) else None, tuple(excess), too_large)

    def size(self, axes: Mapping[str, object]) -> str:
        """Return the values of the axes along which a combination grows, as ``batch_size=64``."""
        return ", ".join(f"{axis}={axes[axis]}" for axis in self._sizes if axis in axes) or "it"


class Outcomes:
    """Reads the outcomes of combinations from their records.

    Args:
        trust: whether the modules of metrics that the plan names may be imported.
    """

    def __init__(self, plan: Plan, folder: Folder, trust: bool = True) -> None:
        self._plan, self._folder = plan, folder
        self._combinations = {c.id: c for c in plan.combinations}
        self._selected = select(plan.metrics, trust)
        self._bases = find_baselines(plan.baseline, {id: c.axes for id, c in self._combinations.items()})
        self._references = output_references(plan, self._bases)
        self._infos = [entry.metric.info for entry in self._selected]
        self._assessment = Assessment(plan, self._infos)

    def first_trials(self, id: str) -> list[Trial]:
        """Return the trials of a combination that a search needs: everything once."""
        groups = trial_groups([self._combinations[id]], self._plan.passes, self._plan.baseline)
        return [trial for trial in chain.from_iterable(groups) if trial.round == 0]

    def is_measured(self, id: str) -> bool:
        """True if everything was measured once, so that the outcome of a combination is known."""
        return all(self._folder.record_path(trial).exists() for trial in self.first_trials(id))

    def of(self, id: str, others: Collection[str] = ()) -> Outcome:
        """Return the outcome of a combination.

        Args:
            others: ids of the combinations that were measured before; the outputs are compared with a baseline among them.
        """
        combination = self._combinations[id]
        records = self._first_records(id)
        if any(record.status == "oom" for record in records):
            return Outcome(None, too_large=f"{self._assessment.size(combination.axes)} ran out of memory")
        if not records or any(record.status not in FINE for record in records):
            return Outcome(None)
        reference = self._references.get(id)
        if reference is not None and reference.id in others:
            theirs = self._first_records(reference.id)
            if disagreement(records, theirs, reference.tolerance, reference.whose) is not None:
                return Outcome(None)
        base = self._bases[id]
        compared = None
        if base == id:
            compared = records
        elif base is not None and base in others:
            compared = self._first_records(base)
        wanted = [*self._selected, *parts_of(self._selected, records)]
        measured = {id: evaluate(wanted, records, compared, combination.config["batch_size"])}
        scores = [f"quality/{name}" for name in combination.config.get("quality") or {}]
        infos, measured = with_parts(self._infos, measured, scores)
        _, measured = by_unit(infos, measured, self._assessment.named)
        values = {}
        for name, measurement in measured[id].items():
            if measurement.value is not None and math.isfinite(measurement.value):
                values[name] = float(measurement.value)
        return self._assessment.outcome(combination.axes, values)

    def _first_records(self, id: str) -> list[Record]:
        return [record for record in self._folder.records_of(id) if record.round == 0]


def _is_growing(axis: str) -> bool:
    return axis in GROWING or axis.startswith("inputs.")


def _is_upper_limit(condition: Condition, values: Mapping[str, object]) -> bool:
    """True if a condition that is false stays so for larger values of all of its names."""
    try:
        return condition.expression.value({name: LARGER * float(str(v)) for name, v in values.items()}) is not True
    except ValueError:
        return False


def _is_larger(axes: Mapping[str, object], than: Mapping[str, object]) -> bool:
    """True if a combination differs from another one only in axes along which it grows, and is larger."""
    if axes.keys() != than.keys() or axes == than:
        return False
    for axis, value in axes.items():
        other = than[axis]
        if value == other:
            continue
        if not _is_growing(axis) or type(value) not in (int, float) or type(other) not in (int, float):
            return False
        if float(str(value)) <= float(str(other)):
            return False
    return True


def begun(folder: Folder) -> set[str]:
    """Return the ids of the combinations of which something was measured."""
    return {path.parent.name for path in folder.records.glob("*/*-r*.json")}


def measured_plan(plan: Plan, folder: Folder) -> Plan:
    """Return the plan with the combinations of which something was measured; of a sweep that is no search, the plan itself."""
    if plan.search is None:
        return plan
    present = begun(folder)
    kept = tuple(c for c in plan.combinations if c.id in present)
    shards = tuple(tuple(filter(present.__contains__, shard)) for shard in plan.shards)
    return dataclasses.replace(plan, combinations=kept, shards=shards)


def is_complete(plan: Plan, folder: Folder) -> bool:
    """True if a search has nothing left to measure: no further combination, and no further round of those that it chose."""
    measured = measured_plan(plan, folder)
    if plan.search is None or not measured.combinations or not all(map(folder.is_done, measured.trials())):
        return False
    return Search(plan, Outcomes(plan, folder), begun(folder)).next() is None


def not_run(plan: Plan, folder: Folder, trust: bool) -> list[Excluded]:
    """Return the combinations of a search that are not measured because a smaller one is too large, with the reasons."""
    if plan.search is None:
        return []
    outcomes = Outcomes(plan, folder, trust)
    measured = {c.id: c for c in measured_plan(plan, folder).combinations}
    reasons = {id: outcomes.of(id).too_large for id in measured}
    found = []
    for combination in plan.combinations:
        if combination.id in measured or combination.unsupported is not None:
            continue
        for id, reason in reasons.items():
            if reason is not None and _is_larger(combination.axes, measured[id].axes):
                found.append(Excluded(combination.axes, f"not run, because {reason}"))
                break
    return found


class _Space:
    """The axes of a search as parameters of Optuna: numbers in their order, everything else as choices."""

    def __init__(self, combinations: Sequence[Combination]) -> None:
        from optuna.distributions import CategoricalDistribution, IntDistribution

        self.distributions: dict[str, BaseDistribution] = {}
        self._places: dict[str, dict[object, int]] = {}
        for axis in dict.fromkeys(axis for c in combinations for axis in c.axes):
            values = list({frozen(c.axes.get(axis)): c.axes.get(axis) for c in combinations}.values())
            if len(values) < 2:
                continue
            last = len(values) - 1
            if all(type(value) in (int, float) for value in values):
                values.sort(key=lambda value: float(str(value)))
                self.distributions[axis] = IntDistribution(0, last)
            else:
                self.distributions[axis] = CategoricalDistribution(tuple(range(last + 1)))
            self._places[axis] = {frozen(value): place for place, value in enumerate(values)}
        self.points = {self.point(self.parameters(c)): c.id for c in combinations}
        """Ids of the combinations by their points."""

    def parameters(self, combination: Combination) -> dict[str, int]:
        """Return the parameters that stand for a combination."""
        return {axis: places[frozen(combination.axes.get(axis))] for axis, places in self._places.items()}

    def point(self, parameters: Mapping[str, int]) -> tuple[int, ...]:
        """Return the parameters in the order of the axes."""
        return tuple(parameters[axis] for axis in self._places)

    def distance(self, one: Mapping[str, int], other: Mapping[str, int]) -> float:
        """Return how far two points are from each other: 1 for each axis with another choice, or another end of its numbers."""
        total = 0.0
        for axis, places in self._places.items():
            apart = abs(one[axis] - other[axis])
            if not hasattr(self.distributions[axis], "choices"):  # its values have an order
                total += apart / (len(places) - 1)
            elif apart:
                total += 1
        return total


class Search:
    """Chooses the combinations of a search one after the other, from the results of those before.

    Args:
        plan: of the whole sweep.
        outcomes: of its combinations, as far as they are measured.
        begun: ids of combinations that have results of an earlier run. If one that failed succeeds when the sweep is resumed, the
            sampler may choose others than before; those that were measured count nevertheless.
    """

    def __init__(self, plan: Plan, outcomes: Outcomes, begun: Collection[str] = ()) -> None:
        import optuna

        assert plan.search is not None
        self._search: SearchPlan = plan.search
        self._outcomes = outcomes
        able = [c for c in plan.combinations if c.unsupported is None]
        self._open = {c.id: c for c in able}
        """Combinations that can still be chosen."""
        self._begun = frozenset(begun)
        self._measured: list[str] = []
        self._results: dict[int, float] = {}
        """Of a search with one goal, by the number of the trial of the study: the logarithm of the value."""
        self._feasible: set[int] = set()
        """Numbers of the trials whose combination fulfils all conditions."""
        self._chosen: tuple[Suggestion, str] | None = None
        self._space = _Space(able)
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._sampler = make_sampler(self._search.sampler, self._search.seed)
        self._study = self._new_study()

    def _new_study(self) -> Study:
        import optuna

        return optuna.create_study(directions=[goal.direction for goal in self._search.goals], sampler=self._sampler)

    def next(self) -> str | None:
        """Return the id of the combination to measure next; None if there is none."""
        while len(self._measured) < self._search.trials:
            if self._chosen is None:
                if not self._open:
                    return None
                self._chosen = self._ask()
            suggestion, id = self._chosen
            if not self._outcomes.is_measured(id):
                used = self._begun.union(self._measured)
                return id if id in used or len(used) < self._search.trials else None
            self._chosen = None
            self._tell(suggestion, id)
        return None

    def _ask(self) -> tuple[Suggestion, str]:
        """Return the sampler's next choice among the combinations that can still be measured."""
        from optuna.trial import TrialState

        suggestion: Suggestion
        for _ in range(MOST_ASKS):
            suggestion = self._suggestion()
            id = self._space.points.get(self._space.point(suggestion.params))
            if id is not None and id in self._open:
                return suggestion, id
            self._study.tell(suggestion, state=TrialState.FAIL)
        last = suggestion.params
        nearest = min(self._open.values(), key=lambda c: self._space.distance(self._space.parameters(c), last))
        self._study.enqueue_trial(self._space.parameters(nearest))
        return self._suggestion(), nearest.id

    def _suggestion(self) -> Suggestion:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of samplers that choose some parameters at random
            return self._study.ask(self._space.distributions)

    def _tell(self, suggestion: Suggestion, id: str) -> None:
        """Tell the sampler the outcome of a combination, and do not choose what is certain to be too large."""
        from optuna.trial import TrialState

        outcome = self._outcomes.of(id, self._measured)
        self._measured.append(id)
        axes = self._open.pop(id).axes
        if outcome.too_large is not None:
            self._open = {other: c for other, c in self._open.items() if not _is_larger(c.axes, axes)}
        if outcome.values is None:
            self._study.tell(suggestion, state=TrialState.FAIL)
            return
        if outcome.excess:
            suggestion.set_constraint("conditions", max(outcome.excess))
        # Differences between combinations are ratios.
        values = [math.log(max(value, SMALLEST)) for value in outcome.values]
        self._study.tell(suggestion, values)
        if len(values) == 1:
            self._results[suggestion.number] = values[0]
            if outcome.is_feasible:
                self._feasible.add(suggestion.number)
            self._bound_values()

    def _bound_values(self) -> None:
        """Tell the sampler that values far from the best one are equally bad.

        A model of the values would otherwise describe how bad they are, as where one combination takes a thousand times as long,
        instead of the small differences between the best.
        """
        if len(self._feasible) < LEAST_FEASIBLE:
            return
        sign = 1 if self._search.goals[0].direction == "maximize" else -1
        feasible = [sign * self._results[number] for number in self._feasible]
        best = max(feasible)
        least = best - SPREADS * max(best - statistics.median(feasible), LEAST_SPREAD)
        trials = self._study.get_trials()
        has_changed = False
        for number, value in self._results.items():
            bounded = [sign * max(sign * value, least)]
            if trials[number].values != bounded:
                trials[number].values = bounded
                has_changed = True
        if has_changed:
            self._study = self._new_study()  # a study does not change the values of its trials
            self._study.add_trials(trials)
