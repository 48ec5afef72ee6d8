"""From the composed config and the command line to a plan: one resolved config per combination, every problem at once."""

from __future__ import annotations

import os
import secrets
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from hydra.core.config_loader import ConfigLoader
from omegaconf import DictConfig, OmegaConf, open_dict

from sweeprof.errors import Problem, UserError, choice_problem, key_problem
from sweeprof.metrics.select import passes_of, select
from sweeprof.sweep.arguments import Arguments
from sweeprof.sweep.check import baseline_problems, config_problems, exclude_problems, training_problems
from sweeprof.sweep.conf import leaf_keys, packaged_targets, top_level_keys
from sweeprof.sweep.plan import (
    IDENTITY,
    Combination,
    Plan,
    Point,
    identity,
    in_shards,
    points,
    split_excluded,
    trials,
    without_repeats,
)
from sweeprof.sweep.probe import probe
from sweeprof.sweep.spelling import SWEEP_GROUP, as_typed, redacted, spelled

ALWAYS = ("model", "backend", "device", "batch_size")
"""Axes that every table has, also with one value."""
DEFAULT_BASELINE = {"backend": "torch", "backend.precision": "fp32", "backend.channels_last": False}
"""The plainest value of each axis."""
NOUNS = {"metrics": "metric set"}
"""What a config group's member is called, where it is not the group's name."""
FRAMEWORKS = ("torch", "tensorflow", "fake")
NOT_MEASURED = ("name", "output", "dry_run", "shards", "tracking", "hydra", "axes", "exclude", "job")
"""Keys that a command which repeats one combination leaves out."""


@dataclass
class Composer:
    """Composes a config per point: by Hydra once per choice of groups, then value by value."""

    loader: ConfigLoader
    config: DictConfig
    arguments: Arguments
    _composed: dict[tuple[str, ...], DictConfig] = field(default_factory=dict)

    def plan(self) -> Plan:
        """The plan; raises :class:`UserError` with every problem of every combination."""
        if SWEEP_GROUP in self.arguments.axes:
            named = ",".join(str(v) for v in self.arguments.axes[SWEEP_GROUP])
            raise UserError(
                [Problem("sweep", named, f"names several sweeps; one run takes them together as +sweep=[{named}].")]
            )
        problems = [*self._key_problems(), *self._axis_problems()]
        rules = self._plain("exclude")
        unusable = list(exclude_problems(rules, self.axes, self._narrowed))
        problems += unusable
        kept, excluded = split_excluded(points(self.axes), [] if unusable else rules)
        if not kept and not problems:
            problems.append(Problem("exclude", rules, "leaves nothing to measure."))
        found, per_point = self._combinations(kept)
        problems += [*per_point, *training_problems(self.axes, [c.config["mode"] for c in found])]
        baseline = self._baseline()
        problems += baseline_problems(baseline, self.axes)
        if not problems:
            problems += probe(found, packaged_targets())
        if problems:
            raise UserError(_distinct(problems))
        combinations, repeats = without_repeats(found)
        return self._assembled(combinations, (*excluded, *repeats), baseline)

    def _assembled(self, combinations: tuple[Combination, ...], excluded: tuple[Any, ...], baseline: Any) -> Plan:
        entries = _distinct([entry for c in combinations for entry in c.config["metrics"]["select"]])
        order = trials(combinations, passes_of(select(entries)), self.config.seed.order)
        now = datetime.now(UTC)
        return Plan(
            sweep_id=f"s{now:%Y%m%d%H%M%S}{secrets.token_hex(3)}",
            name=self._name(),
            created=now.isoformat(timespec="seconds"),
            command=redacted(shlex.join([*self._program(), *map(as_typed, self._task_overrides())])),
            axes={axis: _distinct([c.axes[axis] for c in combinations]) for axis in self.axes},
            baseline=baseline,
            combinations=combinations,
            excluded=excluded,
            shards=in_shards(order, combinations, baseline, self._shard_count(combinations)),
            metrics=entries,
            threshold=max((t for c in combinations if (t := c.config["protocol"]["threshold"])), default=None),
            limits=self._plain("limits"),
            isolation=self.config.isolation,
        )

    @cached_property
    def axes(self) -> dict[str, list[Any]]:
        """Values per axis: from sweep files, replaced by the command line's; the headline axes first."""
        axes = {str(key): _listed(values) for key, values in self._plain("axes").items()}
        axes.update(self.arguments.axes)
        axes.update({key: [override.value()] for key, override in self.arguments.fixed.items() if key in axes})
        choices = self.config.hydra.runtime.choices
        always = {key: axes.get(key, [str(choices[key]) if key in choices else self.config[key]]) for key in ALWAYS}
        return {**always, **{key: values for key, values in axes.items() if key not in always}}

    @cached_property
    def _narrowed(self) -> set[str]:
        """The axes that the command line speaks of."""
        return {key for key in self.axes if key in self.arguments.fixed or key in self.arguments.axes}

    @cached_property
    def _groups(self) -> set[str]:
        return set(self.loader.list_groups(""))

    def _plain(self, key: str) -> Any:
        node = OmegaConf.select(self.config, key)
        return OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node

    def _task_overrides(self) -> list[str]:
        return [str(line) for line in self.config.hydra.overrides.task]

    def _baseline(self) -> Any:
        # Hydra merges a mapping into the default one; who names a baseline means that one alone.
        given = self.arguments.fixed.get("compare.baseline")
        if given is not None:
            return given.value()
        chosen = self._plain("compare.baseline")
        if chosen is not None and not isinstance(chosen, dict):
            return chosen
        if chosen is None:
            return self._default_baseline()
        # What a file names may have been narrowed away on the command line; the sweep then has no baseline.
        gone = [key for key, value in chosen.items() if key in self.axes and value not in self.axes[key]]
        return {} if any(key in self._narrowed for key in gone) else chosen

    def _default_baseline(self) -> dict[str, Any]:
        """The default's axes that the sweep has with the default's value; those that it varies, where it varies any."""
        found = {key: value for key, value in DEFAULT_BASELINE.items() if value in self.axes.get(key, [])}
        varied = {key: value for key, value in found.items() if len(self.axes[key]) > 1}
        return varied or found

    def _name(self) -> str:
        chosen = self.config.hydra.runtime.choices.get(SWEEP_GROUP)
        files = chosen if isinstance(chosen, str) else "+".join(chosen or [])
        return str(self.config.name or files or "adhoc")

    def _shard_count(self, combinations: Sequence[Combination]) -> int:
        if self.config.shards is not None:
            return int(self.config.shards)
        launcher = str(self.config.hydra.launcher.get("_target_", ""))
        return 1 if launcher.endswith("BasicLauncher") else min(len(combinations), os.cpu_count() or 1)

    def _key_problems(self) -> Iterator[Problem]:
        """Keys that a sweep file adds and nothing reads."""
        known = {*top_level_keys(), *self._groups}
        for key in self.config:
            if key not in known and key != "hydra":
                yield key_problem(str(key), self._plain(str(key)), known - {"hydra", "job"})

    def _is_unknown(self, key: str) -> bool:
        if key in self._groups or _is_open(key):
            return False
        return OmegaConf.select(self.config, key, default=_ABSENT) is _ABSENT

    def _axis_problems(self) -> Iterator[Problem]:
        for key, values in self.axes.items():
            if not values:
                yield Problem(f"axes.{key}", values, "has no values.")
            if key.partition(".")[0] not in IDENTITY and key.partition(".")[0] in self.config:
                yield Problem(
                    f"axes.{key}",
                    values,
                    "is no axis, for it changes nothing that is measured; set it once, beside `axes`.",
                )
            if key in self._groups:
                known = self.loader.get_group_options(key)
                yield from (choice_problem(key, v, NOUNS.get(key, key), known) for v in values if v not in known)
            elif self._is_unknown(key):
                yield key_problem(key, ",".join(map(str, values)), leaf_keys(self.config))

    def _combinations(self, kept: Sequence[Point]) -> tuple[list[Combination], list[Problem]]:
        found: list[Combination] = []
        problems: list[Problem] = []
        if any(self._is_unknown(key) for key in self.axes):
            return found, problems  # already a problem of that axis
        for point in kept:
            if any(point[key] not in self.loader.get_group_options(key) for key in point if key in self._groups):
                continue  # already a problem of its axis
            composed = self._resolved(point)
            problems += [*config_problems(composed), *self._framework_problems(composed)]
            found.append(self._combination(point, composed))
        return found, problems

    def _combination(self, point: Point, composed: dict[str, Any]) -> Combination:
        framework = composed["backend"].get("framework")
        label = self._custom_model(composed["model"])
        config = {key: composed[key] for key in IDENTITY}
        unsupported = None if framework in composed["model"] else f"the model names no builder for {framework}"
        axes = {**point, "model": label} if label else dict(point)
        return Combination(identity(config), axes, config, self._command(point), unsupported)

    def _resolved(self, point: Point) -> dict[str, Any]:
        groups = tuple(f"{key}={value}" for key, value in point.items() if key in self._groups)
        if groups not in self._composed:
            fixed = [o.input_line for key, o in self.arguments.fixed.items() if key not in self.axes and o.input_line]
            self._composed[groups] = self.loader.load_sweep_config(self.config, [*fixed, *groups])
        config = self._composed[groups].copy()
        for key, value in point.items():
            if key not in self._groups:
                OmegaConf.update(config, key, value, force_add=_is_open(key))
        with open_dict(config):
            del config["hydra"]
        resolved: dict[str, Any] = OmegaConf.to_container(config, resolve=True)  # type: ignore[assignment]
        self._drop_other_builders(resolved["model"])
        return resolved

    def _model_keys(self) -> list[str]:
        return [key for key in (*self.arguments.fixed, *self.axes) if key.startswith("model.")]

    def _drop_other_builders(self, model: dict[str, Any]) -> None:
        """A user who names a builder has another model than the group's: its other builders and arguments do not belong to it."""
        given = self._model_keys()
        named = {key.split(".")[1] for key in given if key.endswith("._target_") and key.count(".") == 2}
        for framework in [f for f, node in model.items() if named and isinstance(node, dict)]:
            if framework not in named:
                del model[framework]
                continue
            own = {key.split(".")[2] for key in given if key.startswith(f"model.{framework}.")}
            model[framework] = {key: value for key, value in model[framework].items() if key in own}

    def _custom_model(self, model: Mapping[str, Any]) -> str | None:
        """The name of the user's own model, where one is given by its builder: the last part of that."""
        named = [key.split(".")[1] for key in self._model_keys() if key.endswith("._target_")]
        return str(model[named[0]]["_target_"]).rpartition(".")[2] if named else None

    def _framework_problems(self, composed: Mapping[str, Any]) -> Iterator[Problem]:
        known = {*FRAMEWORKS, composed["backend"].get("framework")}
        for key in self._model_keys():
            framework = key.split(".")[1]
            if framework not in known:
                yield choice_problem(key.rpartition(".")[0], framework, "framework", [str(name) for name in known])

    def _program(self) -> list[str]:
        sources = self.config.hydra.runtime.config_sources
        folders = [str(source.path) for source in sources if source.provider == "command-line"]
        return ["python", "-m", "sweeprof", *(word for folder in folders for word in ("--config-dir", folder))]

    def _command(self, point: Point) -> str:
        """The sweep's own command with every axis set to one value."""
        kept = [
            o.input_line for key, o in self.arguments.fixed.items() if key not in self.axes and not _is_unmeasured(key)
        ]
        pinned = [f"{key}={spelled(value)}" for key, value in point.items()]
        return shlex.join([*self._program(), *(as_typed(line) for line in kept if line), *pinned])


_ABSENT = object()


def _is_open(key: str) -> bool:
    """Whether a key may be new: the arguments of a model's or dataset's constructor are the user's."""
    return key.startswith(("model.", "dataset."))


def _is_unmeasured(key: str) -> bool:
    return key.split(".", maxsplit=1)[0].split("/", maxsplit=1)[0] in NOT_MEASURED


def _listed(values: Any) -> list[Any]:
    return list(values) if isinstance(values, list) else [values]


def _distinct(values: Sequence[Any]) -> list[Any]:
    return [value for i, value in enumerate(values) if value not in values[:i]]
