"""From a metric set in a config to metrics with their options bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any

import yaml

from sweeprof.errors import Problem, UserError, choice_problem
from sweeprof.metrics.metric import FAMILIES, Metric, builtin_metrics
from sweeprof.passes.registry import passes
from sweeprof.paths import conf_folder
from sweeprof.results.layer_times import Mode
from sweeprof.results.record import PassName
from sweeprof.tracebacks import described

Entry = str | Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Selected:
    """A metric and the options that the metric set gives it."""

    metric: Metric
    options: dict[str, Any] = field(default_factory=dict)


def select(entries: Sequence[Entry], trust: bool = True) -> list[Selected]:
    """The metrics of a set, in its order.

    Args:
        trust: whether modules outside sweeprof may be imported, for metrics of the user's own.

    Raises:
        UserError: with one problem for each entry that names no metric, sets an unknown option or repeats a name.
    """
    chosen: list[Selected] = []
    problems: list[Problem] = []
    for entry in entries:
        found = _resolve(entry, trust)
        if isinstance(found, Problem):
            problems.append(found)
            continue
        for one in found:
            if any(other.metric.info.name == one.metric.info.name for other in chosen):
                problems.append(Problem("metrics.select", one.metric.info.name, "is selected twice."))
            else:
                chosen.append(one)
    if problems:
        raise UserError(problems)
    return chosen


def metric_set(name: str, mode: Mode | None = None) -> Sequence[Entry]:
    """The entries of ``conf/metrics/NAME.yaml``; a metric's own name is a set of one.

    Args:
        name: of the set or metric.
        mode: of the profiler that is to measure it; None: none is.

    Raises:
        UserError: there is no such set, or it is measured in another mode.
    """
    if name in builtin_metrics():
        return [name]
    wanted = mode_of(name)
    if mode is not None and wanted not in (None, mode):
        allowed = f'is measured with mode="{wanted}": make the profiler with it, instead of mode="{mode}".'
        raise UserError([Problem("metrics", name, allowed)])
    entries: Sequence[Entry] = _content(name)["select"]
    return entries


def mode_of(name: str) -> Mode | None:
    """Return the kind of step for the metrics of the set ``conf/metrics/NAME.yaml``; None if they can be measured in any.

    Raises:
        UserError: there is no such set.
    """
    return None if name in builtin_metrics() else _content(name).get("mode")


@cache
def _content(name: str) -> dict[str, Any]:
    sets = {path.stem: path for path in (conf_folder() / "metrics").glob("*.yaml")}
    if name not in sets:
        raise UserError([choice_problem("metrics", name, "metric set", sets)])
    content: dict[str, Any] = yaml.safe_load(sets[name].read_text(encoding="utf-8"))
    return content


def passes_of(selected: Sequence[Selected]) -> list[PassName]:
    """The passes that the metrics need together, in the order they are run."""
    needed = frozenset[PassName]().union(*(s.metric.passes for s in selected))
    return [name for name in passes() if name in needed]


def needs_trust(entries: Sequence[Entry]) -> bool:
    """True if a metric of the set is code outside sweeprof."""
    targets = [str(entry.get("_target_", "")) for entry in entries if not isinstance(entry, str)]
    return any(target not in builtin_metrics() and not _is_own(target) for target in targets)


def _is_own(target: str) -> bool:
    return target.rpartition(".")[0] in {f"sweeprof.metrics.{family}" for family in FAMILIES}


def _resolve(entry: Entry, trust: bool) -> list[Selected] | Problem:
    if isinstance(entry, str):
        known = builtin_metrics()
        return [Selected(known[entry])] if entry in known else choice_problem("metrics.select", entry, "metric", known)
    options = {key: value for key, value in entry.items() if key != "_target_"}
    target = str(entry.get("_target_", ""))
    if not trust and needs_trust([entry]):
        said = "is code outside sweeprof, which is not imported for a folder: add --trust if you trust whoever made it."
        return Problem("metrics.select", target, said)
    found = _imported(target) if target not in builtin_metrics() else [builtin_metrics()[target]]
    if isinstance(found, Problem):
        return found
    unknown = [key for key in options if any(key not in metric.options for metric in found)]
    if unknown:
        return choice_problem(f"metrics.select {target}", unknown[0], "option", found[0].options)
    return [Selected(metric, options) for metric in found]


def _imported(target: str) -> list[Metric] | Problem:
    module, _, name = target.rpartition(".")
    try:
        found = getattr(import_module(module), name)
    except Exception as error:  # importing a user's module may raise anything
        return Problem("metrics.select", target, f"cannot be imported: {described(error)}.")
    several = list(found) if isinstance(found, tuple) else [found]
    if all(isinstance(one, Metric) for one in several):
        return several
    return Problem("metrics.select", target, "is not decorated by @sweeprof.metric.")
