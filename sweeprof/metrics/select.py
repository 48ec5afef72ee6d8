"""Resolves a metric set of a config: metrics with their options, and passes that the set names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib import import_module
from typing import Any, TypedDict

import yaml

from sweeprof.errors import Problem, UserError, choice_problem, described, option_problem
from sweeprof.metrics.command import REPORTED, reported_metric
from sweeprof.metrics.metric import FAMILIES, Metric, Selected, builtin_metrics
from sweeprof.metrics.quality import SCORE, score_metric
from sweeprof.passes.registry import passes
from sweeprof.paths import conf_folder
from sweeprof.results.layer_times import Mode
from sweeprof.results.record import PassName

Entry = str | Mapping[str, object]


def select(entries: Sequence[Entry], trust: bool = True) -> list[Selected]:
    """Return the metrics of a set, in its order; the set may also name passes, see :func:`named_passes`.

    Args:
        trust: whether modules outside sweeprof may be imported, for metrics of the user's own.

    Raises:
        UserError: with one problem for each entry that names no metric, sets an unknown option or repeats a name.
    """
    selected: dict[str, Selected] = {}
    problems: list[Problem] = []
    passes_alone = named_passes(entries)
    for entry in entries:
        if entry in passes_alone:
            continue
        resolved = _resolve(entry, trust)
        if isinstance(resolved, Problem):
            problems.append(resolved)
            continue
        for new in resolved:
            name = new.metric.info.name
            if name in selected:
                problems.append(Problem("metrics.select", name, "is selected twice."))
            else:
                selected[name] = new
    if problems:
        raise UserError(problems)
    return list(selected.values())


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
    set_mode = mode_of(name)
    if mode is not None and set_mode not in (None, mode):
        allowed = f'is measured with mode="{set_mode}": make the profiler with it, instead of mode="{mode}".'
        raise UserError([Problem("metrics", name, allowed)])
    return _content(name).get("select", ())


def mode_of(name: str) -> Mode | None:
    """Return the kind of step for the metrics of the set ``conf/metrics/NAME.yaml``; None if they can be measured in any.

    Raises:
        UserError: there is no such set.
    """
    return None if name in builtin_metrics() else _content(name).get("mode")


class _MetricSet(TypedDict, total=False):
    select: Sequence[Entry]
    mode: Mode


@cache
def _content(name: str) -> _MetricSet:
    sets = {path.stem: path for path in (conf_folder() / "metrics").glob("*.yaml")}
    if name not in sets:
        raise UserError([choice_problem("metrics", name, "metric set", sets)])
    content: _MetricSet = yaml.safe_load(sets[name].read_text(encoding="utf-8"))
    return content


def unknown_metric(key: str, name: str, known: Iterable[str]) -> Problem:
    """Return the problem of an unknown name; if it is the first or last part of names, such as ``latency``, it lists those."""
    names = list(known)
    fitting = [other for other in names if name in (other.partition("/")[0], other.rpartition("/")[2])]
    if not fitting:
        return choice_problem(key, name, "metric", names)
    nearest = fitting[0] if len(fitting) == 1 else None
    return replace(choice_problem(key, name, "metric", fitting), nearest=nearest)


def named_passes(entries: Iterable[Entry]) -> list[PassName]:
    """The passes that a set names, such as ``lines``: they are run for what they show beside metrics.

    The name of a pass that is also that of a family of metrics, such as ``memory``, does not say which of them are meant.
    """
    families = {name.partition("/")[0] for name in builtin_metrics()}
    return [entry for entry in entries if isinstance(entry, str) and entry in passes() and entry not in families]


def passes_of(entries: Sequence[Entry]) -> list[PassName]:
    """Return the passes that a set names and that its metrics need together, in the order they are run."""
    needed = set(named_passes(entries))
    for selected in select(entries):
        needed |= selected.metric.passes
    return [name for name in passes() if name in needed]


def needs_trust(entries: Sequence[Entry]) -> bool:
    """Return True if a metric of the set is code outside sweeprof."""
    modules = {f"sweeprof.metrics.{family}" for family in FAMILIES}
    for entry in entries:
        if isinstance(entry, str):
            continue
        target = str(entry.get("_target_", ""))
        if (
            target not in (SCORE, REPORTED)
            and target not in builtin_metrics()
            and target.rpartition(".")[0] not in modules
        ):
            return True
    return False


def _resolve(entry: Entry, trust: bool) -> list[Selected] | Problem:  # noqa: PLR0911  # one for each mistake
    known = builtin_metrics()
    if isinstance(entry, str):
        return [Selected(known[entry])] if entry in known else unknown_metric("metrics.select", entry, known)
    target = str(entry.get("_target_", ""))
    if target == SCORE:
        return [Selected(score_metric(str(entry["name"])))]
    if target == REPORTED:
        better: Any = entry["better"]
        return [Selected(reported_metric(str(entry["name"]), str(entry["unit"]), better))]
    if not trust and needs_trust([entry]):
        text = "is code outside sweeprof, which is not imported for a folder: add --trust if you trust its author."
        return Problem("metrics.select", target, text)
    module, _, name = target.rpartition(".")
    try:
        value: object = known[target] if target in known else getattr(import_module(module), name)
    except Exception as error:  # importing a user's module may raise anything
        return Problem("metrics.select", target, f"cannot be imported: {described(error)}.")
    options = {key: option for key, option in entry.items() if key != "_target_"}
    resolved = []
    for metric in value if isinstance(value, tuple) else (value,):
        if not isinstance(metric, Metric):
            return Problem("metrics.select", target, "is not decorated by @sweeprof.metric.")
        for key in options:
            if key not in metric.options:
                return option_problem(f"metrics.select {target}", key, metric.options)
        resolved.append(Selected(metric, options))
    return resolved
