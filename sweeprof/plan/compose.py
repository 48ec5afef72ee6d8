"""From the composed config and the command line to a plan: one resolved config per combination, every problem at once.

First stand the functions of a search, last the display of the planning's progress.
"""

from __future__ import annotations

import itertools
import math
import re
import secrets
import shlex
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from types import TracebackType
from typing import Any, Literal

import yaml
from hydra.core.config_loader import ConfigLoader
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console
from rich.text import Text

from sweeprof.config.errors import ConfigFile, empty_shape, located, unknown_choice
from sweeprof.config.override_syntax import SWEEP_GROUP, as_typed, default_sampler, is_among, spelled
from sweeprof.config.overrides import (
    Arguments,
    Groups,
    config_file,
    leaf_keys,
    packaged_targets,
    source_folders,
)
from sweeprof.config.schema import (
    CLOSED_PARTS,
    GROUPS,
    IDENTITY,
    KEYS,
    MOST_COMBINATIONS,
    PARTS,
    SHAPE_KEYS,
    TOP_LEVEL,
    LimitSettings,
    constraint_problems,
    is_open,
    keys_below,
)
from sweeprof.config.validation import lacks_default_tracker, mode_problems, modes_without_model_problems, part_problems
from sweeprof.credentials import redacted_address
from sweeprof.errors import Problem, UserError, choice_problem, key_problem
from sweeprof.metrics.command import entries_of as reported_by
from sweeprof.metrics.command import reported_problems
from sweeprof.metrics.compute import UNITS, in_units
from sweeprof.metrics.quality import entries_of, score_metric
from sweeprof.metrics.select import passes_of, select
from sweeprof.plan.comparing import (
    DEFAULT_BASELINE,
    Chosen,
    FindSweep,
    chosen_baseline,
    compare_problems,
    compares_outputs,
    metrics_of_precisions,
    round_problems,
)
from sweeprof.plan.generated_inputs import with_generated_inputs
from sweeprof.plan.plan import (
    BASIC,
    CLUSTER,
    Axes,
    Combination,
    ComparisonSettings,
    Plan,
    SearchPlan,
    Shards,
    alternating_server_problems,
    in_shards,
    in_tasks,
    parallel_jobs,
    resources_of,
    without_repeats,
)
from sweeprof.plan.probe import probe
from sweeprof.plan.shape import distinct
from sweeprof.plan.sweep_file import Points, as_written, axis_value, plain_node
from sweeprof.results.compared_rows import Excluded, SearchGoal
from sweeprof.results.constraints import metric_names
from sweeprof.results.measurement import MetricInfo
from sweeprof.results.record import Json, PassName
from sweeprof.results.verdicts import OUTPUT_DIFFERENCE

GoalDirection = Literal["maximize", "minimize"]
DIRECTIONS: tuple[GoalDirection, ...] = ("maximize", "minimize")
BETTER = {"maximize": "higher", "minimize": "lower"}
SHARE = 1 / 6
"""The share of the combinations that is measured, if the config does not say how many …"""
LEAST_TRIALS = 20
"""… but at least so many."""
REPLACEABLE = ("trials", "sampler", "seed")
"""The keys below ``search`` that a resumed sweep may change without repeating its whole command."""


def has_goal(search: Json) -> bool:
    """True if a sweep is a search."""
    return any(search.get(direction) is not None for direction in DIRECTIONS)


def _goals(search: Json) -> list[tuple[GoalDirection, str]]:
    """Return the direction and the metric of each goal."""
    goals: list[tuple[GoalDirection, str]] = []
    for direction in DIRECTIONS:
        named = search.get(direction) or []
        if isinstance(named, str):
            named = [named]
        goals += [(direction, name) for name in named]
    return goals


def goal_problems(search: Json, metrics: Sequence[MetricInfo], axes: Sequence[str]) -> Iterator[Problem]:
    """Return the problems of the goals and conditions, given the metrics and axes of the sweep."""
    if not has_goal(search):
        return
    names = metric_names(metrics)
    infos = {info.name: info for info in metrics}
    seen: set[str] = set()
    goals = _goals(search)
    for direction, name in goals:
        key = f"search.{direction}"
        if name not in names:
            yield choice_problem(key, name, "metric of this sweep", names)
            continue
        info = infos[names[name]]
        if info.better is None and len(goals) > 1:
            yield Problem(key, name, "has no better direction, so it cannot be one of several goals.")
        elif info.better not in (None, BETTER[direction]):
            other = "minimize" if direction == "maximize" else "maximize"
            yield Problem(key, name, f"is better the {info.better} it is: write search.{other}={name}.")
        if info.name in seen:
            yield Problem(key, name, "is named twice.")
        seen.add(info.name)
    for problem in compare_problems({"constraints": search.get("subject_to")}, metrics, axes):
        yield replace(problem, key="search.subject_to")


def placement_problems(shards: object) -> Iterator[Problem]:
    """Return the problem of a search that is to be divided."""
    if shards not in (None, 1):
        yield Problem("shards", shards, "must be 1 for a search, which measures one combination after the other.")


def change_problems(search: SearchPlan | None, given: Mapping[str, object]) -> Iterator[Problem]:
    """Return the problems of keys on the command line of a resumed sweep that does not repeat the command of the sweep.

    Args:
        given: by dotted key; those that do not belong to the search are ignored.
    """
    for key, value in given.items():
        top, _, name = key.partition(".")
        if top != "search":
            continue
        if search is None:
            yield Problem(key, value, "cannot be set: the sweep that is resumed is not a search.")
        elif name not in REPLACEABLE:
            keys = ", ".join(f"search.{one}" for one in REPLACEABLE)
            message = f"cannot be changed alone: repeat the command of the sweep with resume. Without it, you can change {keys}."
            yield Problem(key, value, message)


def changed_search(plan: Plan, given: Mapping[str, object]) -> SearchPlan:
    """Return the search of a stored plan with some of the keys :data:`REPLACEABLE`, without those that are null."""
    assert plan.search is not None
    known: Json = {name: value for name, value in given.items() if value is not None}
    found = replace(plan.search, **known)
    able = sum(c.unsupported is None for c in plan.combinations)
    return replace(found, trials=min(found.trials, able))


# ----------------------------------------------------------------------------------------------------------------------
# The plan

SHOWN_GRIDS = 3
"""Grids of a sweep that is too large whose sizes are shown."""


@dataclass
class Composer:
    """Makes the plan of a sweep."""

    loader: ConfigLoader
    config: DictConfig
    arguments: Arguments
    find_sweep: FindSweep
    """Finds the other sweep that ``compare.baseline`` names."""
    live: Console | None = None
    """Shows warnings, and the progress of planning if that takes long."""
    axes: Axes = field(init=False, default_factory=dict)
    """Values per axis, in the order of the table's columns; after planning, those that combinations have."""

    def __post_init__(self) -> None:
        given = {*self.arguments.fixed, *self.arguments.axes}
        if lacks_default_tracker(self._plain("tracking"), given):
            self.config.tracking = {"_target_": None}
            warning = (
                "tracking: MLflow is not installed, so results are written to the sweep's folder only; "
                "pip install 'sweeprof[mlflow]' installs it, tracking=none hides this message"
            )
            if self.live:
                self.live.print(Text(warning, style="yellow"), soft_wrap=True)

    def plan(self) -> Plan:
        """The plan; raises :class:`UserError` with every problem of every combination, and where a file has it."""
        try:
            with PlanningDisplay(self.live) as display:
                return self._planned(display)
        except UserError as error:
            if not error.problems:
                raise
            distinct_ones = list({str(problem): problem for problem in error.problems}.values())
            raise UserError(self.located(distinct_ones)) from None

    def located(self, problems: Sequence[Problem]) -> list[Problem]:
        """Return the problems, each with the line of the file that has it."""
        given = {key for key in (*self.arguments.fixed, *self.arguments.axes) if key not in self._groups}
        return located(problems, self._config_files(), given)

    def _config_files(self) -> list[ConfigFile]:
        """The sweep files, and the members that are chosen of config groups."""
        folders = source_folders(self.config)
        chosen = {(str(group), str(name)) for group, name in self.config.hydra.runtime.choices.items()}
        for key, values in self.arguments.axes.items():
            if key in self._groups:
                chosen.update((key, str(value)) for value in values)
        files = [ConfigFile(path) for path in self.points.sweep_files.values()]
        for group, name in sorted(chosen):
            if re.fullmatch(r"\w+", group) and (path := config_file(folders, group, name)):
                files.append(ConfigFile(path, f"{group}."))
        return files

    def _planned(self, display: PlanningDisplay) -> Plan:
        if SWEEP_GROUP in self.arguments.axes:
            named = ",".join(str(v) for v in self.arguments.axes[SWEEP_GROUP])
            advice = f"run each on its own, or write +sweep=[{named}] if only one lists combinations."
            raise UserError([Problem("sweep", named, f"is several sweeps; {advice}")])
        if problems := [*self._list_problems(), *self._part_problems(), *self._file_problems()]:
            raise UserError([*problems, *self._key_problems()])
        points = self.points
        sizes = points.sizes()
        if problems := list(self._size_problems(sizes)):
            raise UserError([*problems, *self._key_problems()])
        self.axes = points.axes
        display.total = sum(count for count, _ in sizes)
        shape_problems = [*points.shape_problems(), *self._empty_problems()]
        backend_problems = list(points.backend_problems())
        problems = [*self._key_problems(), *shape_problems, *self._axis_problems()]
        problems += [*backend_problems, *self._wide_problems()]
        if shape_problems or backend_problems or any(map(self._is_unknown, points.keys)):
            for key in IDENTITY:
                with suppress(OmegaConfBaseException):  # only combinations have a value for it
                    problems += part_problems(key, self._plain(key))
            raise UserError([*problems, *points.value_problems()])
        found, excluded = points.combinations(display.advance)
        problems += [*points.problems, *mode_problems(points.keys, [c.config["mode"] for c in found])]
        problems += modes_without_model_problems(c.config for c in found)
        problems += reported_problems(_backends_of_programs(found))
        if not problems:
            found, problems = with_generated_inputs(found)
        if found:
            self.axes = {axis: distinct(c.axes[axis] for c in found) for axis in points.axes}
        default = self._default_baseline()
        baseline = chosen_baseline(self._baseline(), default, found, self.axes, self.find_sweep, self.name())
        problems += [*baseline.problems, *self._comparing_problems(found)]
        if not problems:
            problems += [*round_problems(found), *alternating_server_problems(found, baseline.axes)]
        if not found and not problems:
            problems.append(Problem("exclude", self._plain("exclude"), "excludes every combination."))
        if not problems:
            problems += probe(found, packaged_targets(), here=self._plain("cluster.scheduler") is None)
        if problems:
            raise UserError(problems)
        combinations, repeats = without_repeats(found)
        return self._assembled(combinations, (*excluded, *repeats), baseline)

    def _size_problems(self, sizes: Sequence[tuple[int, str]]) -> Iterator[Problem]:
        """Return the problem of a product that is too large, before it is expanded."""
        total = sum(count for count, _ in sizes)
        if total <= MOST_COMBINATIONS:
            return
        largest = sorted(sizes, key=lambda size: size[0], reverse=True)
        parts = [f"{count:,} = {text}" for count, text in largest[:SHOWN_GRIDS]]
        if len(sizes) > SHOWN_GRIDS:
            parts.append(f"{len(sizes) - SHOWN_GRIDS} smaller grids")
        shown = "; ".join(parts)
        if len(sizes) > 1:
            shown = f"{total:,}: {shown}"
        message = (
            f"is more than the {MOST_COMBINATIONS:,} combinations that a sweep can have before `exclude` "
            f"({shown}): give the axes fewer values."
        )
        yield Problem("combinations", total, message)

    def _comparing_problems(self, found: Sequence[Combination]) -> list[Problem]:
        problems: list[Problem] = []
        with suppress(UserError):  # which is a problem of the metrics
            metrics = self._metric_infos(found, _selected(found))
            problems += compare_problems(self._plain("compare"), metrics, list(self.axes))
            # Goals and conditions that are none of a metric are reported with the other keys.
            wrong = {problem.key.partition(".")[2] for problem in part_problems("search", self._search)}
            known = {key: None if key in wrong else value for key, value in self._search.items()}
            problems += goal_problems(known, metrics, list(self.axes))
        return problems

    def _metric_infos(self, found: Sequence[Combination], entries: Sequence[str | Json]) -> list[MetricInfo]:
        """Return the metrics that constraints and goals may name."""
        units = list(UNITS)
        for c in found:
            inputs = c.config["dataset"].get("inputs")
            if isinstance(inputs, dict) and "unit" in inputs:
                units.append(inputs["unit"])
        metrics = in_units([one.metric.info for one in select([*entries, *_reported_entries(found)])], units)
        for entry in _quality_entries(found):
            # Which direction is better is known when it is made.
            metrics.append(replace(score_metric(entry["name"]).info, better="higher"))
        return metrics

    @cached_property
    def _search(self) -> Json:
        """Return the keys below ``search``; without a goal if only the combination of the command line is measured."""
        search: Json = self._plain("search")
        if self.config.single_combination is True:
            return {**search, "maximize": None, "minimize": None}
        return search

    def _assembled(
        self, combinations: tuple[Combination, ...], excluded: tuple[Excluded, ...], baseline: Chosen
    ) -> Plan:
        measured = _selected(combinations)
        entries = [*measured, *metrics_of_precisions(combinations, [s.metric for s in select(measured)])]
        if compares_outputs(combinations, self._plain("compare.tolerance"), [s.metric for s in select(entries)]):
            entries.append(OUTPUT_DIFFERENCE)
        entries += [*_quality_entries(combinations), *_reported_entries(combinations)]
        passes = tuple(passes_of(entries))
        pareto, constraints = self._plain("compare.pareto"), self._plain("compare.constraints")
        search = None
        if has_goal(self._search):
            names = metric_names(self._metric_infos(combinations, measured))
            goals = tuple(SearchGoal(names[name], direction) for direction, name in _goals(self._search))
            able = sum(combination.unsupported is None for combination in combinations)
            trials = self._search["trials"] or max(LEAST_TRIALS, math.ceil(SHARE * able))
            sampler = self._search["sampler"] or default_sampler()
            search = SearchPlan(goals, min(trials, able), sampler, self._search["seed"])
            constraints = list(dict.fromkeys([*(constraints or ()), *self._search["subject_to"]]))
            if len(goals) > 1:
                pareto = [goal.metric for goal in goals]
        shards, cluster = self.sharded(combinations, baseline.axes, passes, search is not None)
        compare = ComparisonSettings(
            thresholds=self._plain("compare.thresholds"),
            tolerance=self.config.compare.tolerance,
            pareto=pareto,
            constraints=constraints,
            against=baseline.against,
        )
        # The overrides as they were given, with their interpolations.
        task: list[str] = OmegaConf.to_container(self.config.hydra.overrides.task)  # type: ignore[assignment]
        words = [redacted_address(word) for word in [*self._program(), *map(as_typed, task)]]
        thresholds = [c.config["protocol"]["threshold"] or 0 for c in combinations]
        now = datetime.now(UTC)
        return Plan(
            sweep_id=f"s{now:%Y%m%d%H%M%S}{secrets.token_hex(3)}",
            name=self.name(),
            created=now.isoformat(timespec="seconds"),
            command=shlex.join(words),
            axes={axis: distinct(c.axes[axis] for c in combinations) for axis in self.axes},
            baseline=baseline.axes,
            combinations=combinations,
            excluded=excluded,
            shards=shards,
            passes=passes,
            cluster=cluster,
            fail_fast=bool(self.config.fail_fast),
            budget=self.config.budget,
            compare=compare,
            search=search,
            metrics=entries,
            threshold=max(thresholds, default=0) or None,
            limits=LimitSettings(**self._plain("limits")),
            isolation=self.config.isolation,
        )

    @cached_property
    def points(self) -> Points:
        """What the sweep files and the command line define."""
        choices = dict(self.config.hydra.runtime.choices)
        for key, override in self.arguments.fixed.items():
            if override.is_add():
                choices.pop(key, None)
        return Points(Groups(self.loader, choices), self.config, self.arguments, self._program())

    @cached_property
    def _groups(self) -> Groups:
        return self.points.groups

    def _plain(self, key: str) -> Any:
        return plain_node(self.config, key)

    def _baseline(self) -> object:
        # Hydra merges a mapping into the default one; a given baseline must replace it.
        given = self.arguments.fixed.get("compare.baseline")
        if given is not None and given.value() is not None:
            return _as_axes(given.value())
        chosen = _as_axes(self._plain("compare.baseline"))
        if chosen is not None and not isinstance(chosen, dict):
            return chosen
        if chosen is None:
            return self._default_baseline()
        # What a file names may have been narrowed away on the command line; the sweep then has no baseline.
        gone = [key for key, value in chosen.items() if key in self.axes and not is_among(value, self.axes[key])]
        return {} if any(key in self.points.narrowed for key in gone) else chosen

    def _default_baseline(self) -> dict[str, object]:
        """The sweep's axes with default baseline values; only the varying ones, if any.

        Of several backends without the default's, the first is the baseline.
        """
        found = {key: value for key, value in DEFAULT_BASELINE.items() if is_among(value, self.axes.get(key, []))}
        backends = self.axes.get("backend", [])
        if "backend" not in found and len(backends) > 1:
            found = {"backend": backends[0], **found}
        varied = {key: value for key, value in found.items() if len(self.axes[key]) > 1}
        return varied or found

    def name(self) -> str:
        """Return the name of the sweep: as given, or that of its files: ``a+b``; ``team-a`` for a file ``team/a``."""
        named_by_files = re.sub(r"[^\w.\-+ ]", "-", "+".join(self.points.sweep_names))
        return str(self.config.name or named_by_files or "adhoc")

    def sharded(
        self,
        combinations: Sequence[Combination],
        baseline: Mapping[str, object],
        passes: Sequence[PassName],
        is_search: bool,
    ) -> tuple[Shards, Json]:
        """Ids of combinations, shard by shard, and :attr:`Plan.cluster`."""
        settings: Json = self._plain("cluster")
        if is_search:
            # A baseline of all axes pairs all combinations: one task chooses each after the results of the others.
            baseline = dict.fromkeys(key for c in combinations for key in c.axes)
        if settings["scheduler"] is None:
            if is_search:
                count = 1
            elif self.config.shards is not None:
                count = int(self.config.shards)
            else:
                count = min(len(combinations), parallel_jobs(self.config.hydra.launcher))
            return in_shards(combinations, baseline, count), {}
        asked = resources_of(combinations, settings, baseline)
        shards, resources = in_tasks(combinations, baseline, passes, asked, settings["minutes"], self.config.shards)
        return shards, {"settings": settings, "resources": resources}

    def _key_problems(self) -> Iterator[Problem]:
        """Keys that a sweep file adds and nothing reads."""
        known = {*TOP_LEVEL, "hydra", *self._groups.names()}
        for key in self.config:
            if key not in known:
                yield key_problem(str(key), as_written(self.config, str(key)), known - {"hydra", "job"})
        for part in CLOSED_PARTS:
            given = as_written(self.config, part)
            if not isinstance(given, Mapping):
                continue
            names = keys_below(part)
            for name, value in given.items():
                if name not in names:
                    yield key_problem(f"{part}.{name}", value, {f"{part}.{one}" for one in names})

    def _empty_problems(self) -> list[Problem]:
        """Return the problems of sweep files with an empty shape, such as `axes: {}`."""
        if self.config.single_combination is True or self.points.names_axes:
            return []
        empty = [empty_shape(path, (*SHAPE_KEYS, "hydra")) for path in self.points.sweep_files.values()]
        found = [problem for problem in empty if problem]
        given = self.arguments.fixed.get("axes")
        if given is not None and not self._plain("axes"):
            found.append(Problem("axes", given.value(), "is empty; it must be {axis: [values]}."))
        return found

    def _file_problems(self) -> Iterator[Problem]:
        """Return the problem of several sweep files that list combinations: Hydra would merge their axes into one product."""
        if self.config.single_combination is True:
            return
        keys = [key for key in (*SHAPE_KEYS, "hydra.sweeper.params") if key != "exclude"]  # a rule alone lists none
        shaped = []
        for name, path in self.points.sweep_files.items():
            config = OmegaConf.load(path)
            if any(OmegaConf.is_interpolation(config, key) or OmegaConf.select(config, key) for key in keys):
                shaped.append(name)
        if len(shaped) > 1:
            message = "list combinations; name one of them, and write several products as `grids` of one file."
            yield Problem("sweep", ", ".join(shaped), message)

    def _list_problems(self) -> Iterator[Problem]:
        """Return the problems of choices that are lists: Hydra would merge the files, so that the last one counts."""
        for group in GROUPS:
            override = self.arguments.fixed.get(group)
            if override is None:
                continue
            choice = override.value()
            if not isinstance(choice, list) or len(choice) == 1:
                continue
            if group == "metrics":
                message = f"is a list of metric sets; choose one. {_ONE_METRIC_SET}"
            elif group in IDENTITY:
                values = override.get_value_string().strip("[]")
                message = f"is a list, and a choice is one name; to measure each, write {group}={values}."
            else:
                message = "is a list, and a choice is one name."
            yield Problem(group, override.get_value_string(), message)

    def _part_problems(self) -> Iterator[Problem]:
        """Return the problems of parts of the config that are not mappings, such as ``tracking: none`` in a sweep file."""
        for key in sorted(PARTS):
            value = as_written(self.config, key)
            if isinstance(value, Mapping):
                continue
            if key not in GROUPS:
                yield Problem(key, value, "is not {key: value}.")
                continue
            advice = f"in a file: defaults: [{{override /{key}: {value}}}]."
            if key in IDENTITY:
                advice = f"in a file: axes: {{{key}: [{value}]}} or defaults: [{{override /{key}: {value}}}]."
            yield Problem(key, value, f"is a choice from a config group; {advice}")

    def _wide_problems(self) -> Iterator[Problem]:
        """Return the problems of keys that apply to the whole sweep."""
        for key in self.config:
            if key in SHAPE_KEYS:
                yield from part_problems(str(key), as_written(self.config, str(key)))
            elif key not in IDENTITY and key != "hydra":
                yield from part_problems(str(key), self._plain(str(key)))
        if self.config.name is None:
            yield from constraint_problems({"name": self.name()})
        if has_goal(self._search):
            yield from placement_problems(self.config.shards)
        yield from self._launcher_problems()

    def _launcher_problems(self) -> Iterator[Problem]:
        """Return the problem of a launcher and a cluster that cannot be combined."""
        launcher = str(self.config.hydra.launcher.get("_target_", ""))
        name = self.config.hydra.runtime.choices.get("hydra/launcher")
        if self.config.cluster.get("scheduler") is None:
            if launcher == CLUSTER:
                yield Problem("hydra/launcher", name, "is selected by cluster=slurm, which has its settings.")
        elif launcher not in (CLUSTER, BASIC):
            named = self.config.hydra.runtime.choices.get("cluster")
            yield Problem("hydra/launcher", name, f"cannot be combined with cluster={named}; remove one of the two.")

    def _is_unknown(self, key: str) -> bool:
        if key in self._groups or is_open(key):
            return False
        return OmegaConf.select(self.config, key, default=_ABSENT) is _ABSENT

    def _axis_problems(self) -> Iterator[Problem]:
        for key, values in self.points.keys.items():
            top = key.partition(".")[0]
            if key.startswith("hydra/") or (top not in IDENTITY and top in self.config):
                message = "cannot be an axis, because it does not change what is measured; set it once, beside `axes`."
                constraint = KEYS[key].constraint if key in KEYS else None
                if constraint is not None and constraint.accepts(values):
                    message = f"cannot be an axis; write one list: {key}={spelled(values)}."
                yield Problem(key if key in self.arguments.axes else f"axes.{key}", values, message)
            if key == "metrics":
                folders = source_folders(self.config)
                files = [config_file(folders, "metrics", str(name)) for name in values]
                modes = [yaml.safe_load(file.read_text(encoding="utf-8")).get("mode") for file in files if file]
                if len(set(modes)) < len(modes):  # two sets are measured in the same mode
                    message = f"cannot be an axis: every combination has the metrics of all sets. {_ONE_METRIC_SET}"
                    yield Problem("metrics", ",".join(map(str, values)), message)
            if key in self._groups:
                known = self._groups.options(key)
                for value in values:
                    if value not in known:
                        yield unknown_choice(key, value, known)
            elif self._is_unknown(key):
                known_keys = [k for k in leaf_keys(self.config) if k.partition(".")[0] not in SHAPE_KEYS]
                yield key_problem(key, ",".join(map(str, values)), [*known_keys, *self.points.shape.variants])

    def _program(self) -> list[str]:
        program = ["python", "-m", "sweeprof"]
        for source in self.config.hydra.runtime.config_sources:
            if source.provider == "command-line":
                program += ["--config-dir", str(source.path)]
        return program


def _as_axes(baseline: Any) -> Any:
    """Return the value of ``compare.baseline`` with the values of axes as combinations have them."""
    if isinstance(baseline, dict):
        return {key: axis_value(value) for key, value in baseline.items()}
    return baseline


_ONE_METRIC_SET = "metrics=full has all metrics, and metrics.select=[latency/forward,compute/macs] those that it names."
_ABSENT = object()


def _selected(combinations: Sequence[Combination]) -> list[str | Json]:
    """Return the entries of all metric sets."""
    return distinct(itertools.chain.from_iterable(c.config["metrics"]["select"] for c in combinations))


def _quality_entries(combinations: Sequence[Combination]) -> list[Json]:
    """Return the entries of the metrics of quality that the user has added."""
    return entries_of(itertools.chain.from_iterable(c.config.get("quality") or {} for c in combinations))


def _reported_entries(combinations: Sequence[Combination]) -> list[str | Json]:
    """Return the entries of the metrics of servers, and of those that programs report."""
    return reported_by(_backends_of_programs(combinations))


def _backends_of_programs(combinations: Sequence[Combination]) -> list[Json]:
    return [c.config["backend"] for c in combinations if c.config["backend"].get("framework") == "command"]


# ----------------------------------------------------------------------------------------------------------------------
# The progress of planning: the number of composed combinations; live on a terminal, else in plain lines

WAKE_S = 1.0
LINE_S = 3.0


class PlanningDisplay:
    """Shows how far planning is, once it takes a while: a context.

    Args:
        console: what shows it, live on a terminal, else in lines; None: nothing does.
    """

    def __init__(self, console: Console | None) -> None:
        self.total = 0
        """Combinations to be planned, before any is left out."""
        self._done, self._console = 0, console
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="sweeprof-planning", daemon=True)

    def advance(self) -> None:
        """Count a combination."""
        self._done += 1

    def __enter__(self) -> PlanningDisplay:
        if self._console:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._console:
            self._thread.join()

    def _follow(self) -> None:
        assert self._console is not None
        if not self._console.is_terminal:
            written = ""
            while not self._stop.wait(LINE_S):
                line = self._line()
                if line != written:  # in a log a line that says the same again says nothing
                    self._console.print(line, highlight=False, soft_wrap=True)
                    written = line
        elif not self._stop.wait(WAKE_S):
            with self._console.status(self._line()) as status:
                while not self._stop.wait(WAKE_S):
                    status.update(self._line())

    def _line(self) -> str:
        if self._done < self.total:
            return f"planning: {self._done:,} of {self.total:,} combinations"
        if not self.total:
            return "planning"
        noun = "combination" if self.total == 1 else "combinations"
        return f"planning: checking {self.total:,} {noun}"
