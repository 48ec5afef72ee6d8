"""How the measurements of a plan are compared: thresholds, constraints, the Pareto front, the baseline or another sweep."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sweeprof.config.schema import KEYS
from sweeprof.config.validation import baseline_problems
from sweeprof.errors import Damaged, Problem, UserError, choice_problem
from sweeprof.metrics.compute import UNITS, in_units
from sweeprof.metrics.metric import Metric, Selected
from sweeprof.passes.registry import exclusive_passes, pass_named
from sweeprof.plan.plan import Axes, Combination, OtherSweep, Plan
from sweeprof.results.compared_rows import Comparison, comparison_from, set_against
from sweeprof.results.constraints import conditions, metric_names, with_selection
from sweeprof.results.files import read_json
from sweeprof.results.measurement import MetricInfo
from sweeprof.results.record import Json
from sweeprof.results.verdicts import OUTPUT_DIFFERENCE

MOST_TRIALS = 5_000_000
"""Of one pass; a list of them takes half a gigabyte."""
QUALITY = "quality/accuracy"
"""The metric that is added to a sweep over several precisions, too."""


def judged(comparison: Comparison, plan: Plan, baseline: Path, damaged: list[str]) -> Comparison:
    """Return the comparison with that of the other sweep, if the plan names one, and with the rows that qualify.

    Args:
        baseline: the file of the other sweep's comparison: a copy, so that reports can be written again without that sweep.
        damaged: gets why the other sweep's comparison, or a constraint of the plan, cannot be read.
    """
    against = plan.compare.against
    if against and baseline.exists():
        try:
            other = comparison_from(read_json(baseline))
        except (Damaged, OSError) as error:
            damaged.append(f"{baseline.name}: {error}")
        else:
            comparison = set_against(comparison, other, against.label)
    try:
        return with_selection(comparison, plan.compare.pareto or (), plan.compare.constraints or ())
    except ValueError as error:  # the plan was checked when it was made, and has been edited since
        damaged.append(f"plan.json: compare.constraints: {error}")
        return with_selection(comparison, plan.compare.pareto or ())


def thresholds_of(plan: Plan, metrics: Sequence[MetricInfo]) -> dict[str, float]:
    """Return the thresholds of single metrics by their full names."""
    names = metric_names(metrics)
    thresholds = plan.compare.thresholds or {}
    return {names[name]: float(value) for name, value in thresholds.items() if name in names}


def protocol_of(combinations: Sequence[Combination]) -> Json:
    """Return the different numbers of rounds, ways of interleaving and rules for stopping of the combinations."""
    found: Axes = {}
    for key in ("rounds", "interleave", "decide"):
        values = [c.config["protocol"].get(key) for c in combinations]
        found[key] = [value for value in dict.fromkeys(values) if value is not None]
    return found


def round_problems(combinations: Sequence[Combination]) -> Iterator[Problem]:
    """Yield the problem of more rounds, of all combinations together, than a plan can list."""
    rounds = [int(c.config["protocol"]["rounds"]) for c in combinations]
    if sum(rounds) > MOST_TRIALS:
        message = f"is too many for {len(rounds):,} combinations: all of them together can have {MOST_TRIALS:,} rounds."
        yield Problem("protocol.rounds", max(rounds), message)


def most_rounds(config: Json) -> int:
    """Return the largest number of rounds of a combination whose protocol stops when its verdicts are decided; 0 if it is fixed."""
    protocol = config["protocol"]
    return int(protocol["rounds"]) if protocol.get("decide") else 0


def deciding_metric(metrics: Sequence[Selected], mode: object) -> Selected | None:
    """Return the metric whose verdicts stop the rounds of a combination: the time of its step, else the first measured in rounds.

    None if the sweep measures nothing in rounds of which one direction is better.
    """
    in_rounds = {
        entry.metric.info.name: entry for entry in metrics if entry.metric.info.better and _is_in_rounds(entry)
    }
    steps = ["latency/iteration"] if mode == "training" else ["latency/forward", "generation/latency", "command/time"]
    for name in [*steps, *in_rounds]:
        if name in in_rounds:
            return in_rounds[name]
    return None


def metric_in_rounds(metrics: Sequence[Selected], name: str) -> Selected | None:
    """Return the metric with a name, also in a unit of the workload; None if it is not measured in rounds."""
    for entry in metrics:
        names = [info.name for info in in_units([entry.metric.info], UNITS)]
        if name in names and _is_in_rounds(entry):
            return entry
    return None


def _is_in_rounds(entry: Selected) -> bool:
    return any(pass_named(name).kind == "rounds" for name in entry.metric.passes)


def compares_outputs(combinations: Sequence[Combination], tolerance: float | None, metrics: Sequence[Metric]) -> bool:
    """True if a sweep compares outputs by default: it times one model on several frameworks."""
    if tolerance is None or not _times(metrics):
        return False
    frameworks = {c.config["backend"].get("framework") for c in combinations if c.unsupported is None}
    return len(frameworks) > 1 and OUTPUT_DIFFERENCE not in [metric.info.name for metric in metrics]


def metrics_of_precisions(combinations: Sequence[Combination], metrics: Sequence[Metric]) -> list[str]:
    """Return the names of metrics that a sweep over several precisions has by default: they stand beside its times."""
    backends = [c.config["backend"] for c in combinations if c.unsupported is None]
    precisions = {(node.get("precision", "fp32"), node.get("precision_method")) for node in backends}
    if len(precisions) < 2 or not _times(metrics):
        return []
    known = {metric.info.name for metric in metrics}
    return [name for name in (QUALITY, OUTPUT_DIFFERENCE) if name not in known]


def _times(metrics: Sequence[Metric]) -> bool:
    return any(metric.passes & exclusive_passes() for metric in metrics)


# ----------------------------------------------------------------------------------------------------------------------
# The baseline of a config, and the problems of ``compare.*``, before anything is measured

KEY = "compare.baseline"
DEFAULT_BASELINE = {
    "backend": "torch",
    "backend.precision": "fp32",
    "backend.precision_method": "convert",
    "backend.channels_last": False,
}
"""The plainest value of each axis."""
FindSweep = Callable[[str, str], Path]
"""Returns the folder or the ``comparison.json`` of another sweep, by its reference and the name of this sweep.

Raises a :class:`UserError` if there is none that can be read.
"""
_ID = re.compile(r"c[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class Chosen:
    """The baseline that ``compare.baseline`` chose."""

    axes: Json
    against: OtherSweep | None = None
    problems: Sequence[Problem] = ()


def chosen_baseline(
    given: object,
    default: Json,
    combinations: Sequence[Combination],
    axes: Mapping[str, list[object]],
    find_sweep: FindSweep,
    name: str,
) -> Chosen:
    """The baseline that a config gives, as axis values or as a text; beside another sweep the sweep keeps its default one."""
    if not isinstance(given, str):
        problems = list(baseline_problems(given, axes))
        if problems or not isinstance(given, dict):
            return Chosen({}, None, problems)
        return Chosen(given)
    if _ID.fullmatch(given):
        for combination in combinations:
            if combination.id == given:
                return Chosen(dict(combination.axes))
        ids = [c.id for c in combinations]
        return Chosen({}, None, [choice_problem(KEY, given, "id of a combination of this sweep", ids)])
    try:
        file = str(find_sweep(given, name))
    except UserError as error:
        return Chosen({}, None, error.problems)
    return Chosen(default, OtherSweep(given, file))


def compare_problems(compare: Json, metrics: Sequence[MetricInfo], axes: Sequence[str]) -> Iterator[Problem]:
    """Return the problems of ``thresholds``, ``pareto`` and ``constraints``, given what the sweep measures.

    A sweep that measures no metric of the default front has no front, and that is not a problem.

    :mod:`sweeprof.config.validation` reports values that are not even a mapping or a list.
    """
    names = metric_names(metrics)
    thresholds = compare.get("thresholds")
    if isinstance(thresholds, Mapping):
        for name in thresholds:
            if name not in names:
                yield choice_problem("compare.thresholds", name, "metric of this sweep", names)
    front = compare.get("pareto")
    if isinstance(front, list) and front != KEYS["compare.pareto"].default:
        yield from _front_problems(front, metrics, names)
    constraints = compare.get("constraints")
    if not isinstance(constraints, list):
        return
    for constraint in constraints:
        try:
            parts = conditions([str(constraint)], [*names, *axes])
        except ValueError as error:
            yield Problem("compare.constraints", constraint, f"{error}.")
            continue
        for part in parts:
            if part.expression.names <= names.keys() and part.is_number:
                message = f"has '{part.expression.text}', which is not a condition: compare it with a value."
                yield Problem("compare.constraints", constraint, message)


def _front_problems(front: Sequence[str], metrics: Sequence[MetricInfo], names: Mapping[str, str]) -> Iterator[Problem]:
    infos = {info.name: info for info in metrics}
    for name in front:
        if name not in names:
            yield choice_problem("compare.pareto", name, "metric of this sweep", names)
        elif infos[names[name]].better is None:
            yield Problem("compare.pareto", name, "has no better direction, so it cannot be on a front.")
    if len(front) == 1:
        yield Problem("compare.pareto", front, "is one metric; a Pareto front needs at least two.")
