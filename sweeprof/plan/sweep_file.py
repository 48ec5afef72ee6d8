"""A sweep file with the command line: its points, and their combinations.

A run has one section, or one for each of several sweep files that have a shape of their own (``+sweep=[a,b]``).
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import yaml
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from sweeprof.config.backend_settings import Fitted, fitted, is_setting, unknown_setting
from sweeprof.config.groups import Groups, config_file, plain_message, source_folders
from sweeprof.config.override_syntax import SWEEP_GROUP, as_typed, spelled
from sweeprof.config.overrides import Arguments, Expander
from sweeprof.config.schema import COLUMNS, IDENTITY, NOT_REPEATED, SHAPE_KEYS, constraint_problems
from sweeprof.config.signatures import given_arguments
from sweeprof.config.validation import builder_problem, part_problems
from sweeprof.errors import Problem, Unsupported
from sweeprof.measuring.instantiate import builders_of, chosen_builder
from sweeprof.plan.generated_inputs import NAME, is_pattern, matching_names
from sweeprof.plan.models import (
    FRAMEWORKS,
    custom_model,
    framework_problems,
    source_settings,
    without_other_builders,
)
from sweeprof.plan.plan import Axes, Combination, Point, identity
from sweeprof.plan.resolve import Items, Resolver
from sweeprof.plan.shape import Rule, Shape, read_rules, read_shape
from sweeprof.results.compare import Excluded
from sweeprof.results.record import Json
from sweeprof.results.statistics import MOST_SEQUENTIAL_ROUNDS


@dataclass
class Section:
    """The part of a run that one sweep file describes."""

    groups: Groups
    config: DictConfig
    arguments: Arguments
    program: Sequence[str]
    """The command without its overrides."""
    line: str | None = None
    """The override that names only its file, if the command line names several."""
    targets: Callable[[], Collection[str]] = frozenset
    """Returns the targets of all backends of the run, other sections' too."""
    problems: list[Problem] = field(default_factory=list)
    """The problems of the parts of configs that were checked."""
    _judged: dict[tuple[str, int], Any] = field(default_factory=dict)
    _matching: dict[str, list[str]] = field(default_factory=dict)
    """Names of models by the pattern that they match: asking a source for them takes seconds."""

    @cached_property
    def _read(self) -> tuple[Shape, list[Problem]]:
        if self.config.single_combination is True:
            return Shape(), []
        plain = {key: plain_node(self.config, key) for key in SHAPE_KEYS}
        # `axes` also contains axes.KEY of the command line; for a tied axis it selects values, and is not a conflict.
        parts = [plain, *(part for part in plain["grids"] or [] if isinstance(part, Mapping))]
        tied = {key for part in parts for entry in part.get("zip") or [] if isinstance(entry, Mapping) for key in entry}
        for key in tied & set(self.arguments.axes):
            plain["axes"].pop(key, None)
        return read_shape(plain, self._expanded)

    def _expanded(self, key: str, given: object) -> list[object]:
        """The values of an axis of a sweep file; see :class:`Expander`."""
        values = Expander(self.groups.loader)(key, given)
        return values if key != NAME else self._names(values)

    def _names(self, values: Sequence[object]) -> list[object]:
        """The values with every pattern replaced by the names of the models that match it; raises :class:`UserError`."""
        found: list[object] = []
        for value in values:
            if not is_pattern(value):
                found.append(value)
                continue
            pattern = str(value)
            if pattern not in self._matching:
                self._matching[pattern] = matching_names(pattern, plain_node(self.config, "model.names"))
            found += self._matching[pattern]
        return list(dict.fromkeys(found))

    @cached_property
    def shape(self) -> Shape:
        """Its shape, narrowed by the command line."""
        found, _ = self._read
        return found.narrowed(self._given(found.values()))

    def _given(self, axes: Collection[str]) -> Axes:
        """Return the axes on the command line: those that it sweeps, and those of ``axes`` that it sets."""
        known = {*axes, *COLUMNS}
        fixed: Axes = {}
        for key, override in self.arguments.fixed.items():
            if key in known or (key == NAME and is_pattern(override.value())):
                fixed[key] = [override.value()]
        given = {**self.arguments.axes, **fixed}
        return {key: self._names(values) if key == NAME else values for key, values in given.items()}

    @property
    def names_axes(self) -> bool:
        """True if its file or the command line lists combinations."""
        return bool(self._read[0].values() or self.arguments.axes)

    @cached_property
    def axes(self) -> Axes:
        """Values per axis; those that every table has first."""
        found = self.shape.values()
        always = {key: found.get(key, [self._always[key]]) for key in COLUMNS}
        return {**always, **{key: values for key, values in found.items() if key not in always}}

    @cached_property
    def _always(self) -> Point:
        choices = self.config.hydra.runtime.choices
        return {key: str(choices[key]) if key in choices else self.config[key] for key in COLUMNS}

    @cached_property
    def narrowed(self) -> set[str]:
        """Return the axes that the command line sets."""
        return {key for key in self.axes if key in self.arguments.fixed or key in self.arguments.axes}

    @cached_property
    def keys(self) -> Axes:
        """Values per config key that its points set: those of axes, and of variants."""
        found = {key: values for key, values in self.axes.items() if key not in self.shape.variants}
        for names in self.shape.variants.values():
            for settings in names.values():
                for key, value in settings.items():
                    found.setdefault(key, []).append(value)
        return found

    @cached_property
    def _fixed(self) -> list[str]:
        """The command line's overrides that set one value for all points."""
        fixed = self.arguments.fixed.items()
        lines = {k: o.input_line for k, o in fixed if k not in self.axes and k not in self.shape.variants}
        return [line for line in lines.values() if line]

    @cached_property
    def resolver(self) -> Resolver:
        """Composes the configs of its points."""
        finish: dict[str, Callable[[Json, tuple[str, ...]], Json]]
        finish = {"model": self._own_model, "dataset": self._own_dataset}
        if self.config.budget is not None:
            finish["protocol"] = _within_budget
        return Resolver(self.groups.loader, self.config, self._fixed, finish)

    def sizes(self) -> list[tuple[int, str]]:
        """Return the number of combinations of each grid before rules exclude any, and its factors by axis."""
        found, _ = self._read
        given = self._given(found.values())
        return [grid.narrowed_size(given) for grid in found.grids]

    def shape_problems(self) -> list[Problem]:
        """Return the problems of its shape."""
        found, problems = self._read
        if not problems and not any(grid.size + len(grid.include) for grid in self.shape.grids):
            axes = found.values()
            given = {key: values for key, values in self._given(axes).items() if key in axes}
            text = ", ".join(f"{key}={','.join(map(spelled, values))}" for key, values in given.items())
            problems = [Problem("command line", text, "excludes all tied or included points.")]
        return problems

    def value_problems(self) -> Iterator[Problem]:
        """Return the problems of values and rules of its axes that are invalid without composing any combination."""
        for key, values in self.keys.items():
            for value in values:
                *parents, last = key.split(".")
                node: Json = {last: value}
                for name in reversed(parents):
                    node = {name: node}
                yield from constraint_problems(node)
        for grid in self.shape.grids:
            yield from read_rules(grid.exclude, self.axes, self.shape.variant_keys(), self.narrowed)[1]

    def combinations(
        self, axes: Sequence[str], on_point: Callable[[], object] = lambda: None
    ) -> tuple[list[Combination], list[Excluded]]:
        """Its combinations, with a value for each of ``axes``, and the points that rules leave out.

        Args:
            on_point: is called after each point.
        """
        found: list[Combination] = []
        excluded: list[Excluded] = []
        for grid in self.shape.grids:
            rules, problems = read_rules(grid.exclude, self.axes, self.shape.variant_keys(), self.narrowed)
            self.problems += problems
            if problems:
                continue
            for point in grid.product():
                made = self._combination(self._completed(point), rules, axes)
                if isinstance(made, Combination):
                    found.append(made)
                elif made is not None:
                    excluded.append(made)
                on_point()
            made_too = [self._combination(self._completed(point), (), axes) for point in grid.include]
            found += [one for one in made_too if isinstance(one, Combination)]
        return found, excluded

    def _completed(self, point: Point) -> Point:
        set_by = self.shape.settings(point)
        return {**{key: value for key, value in self._always.items() if key not in set_by}, **point}

    def _combination(self, point: Point, rules: Sequence[Rule], axes: Sequence[str]) -> Combination | Excluded | None:
        """Return the combination of a point, or why it is excluded; None for a mistake, which is added to the problems."""
        settings = self.shape.settings(point)
        chosen = {key: value for key, value in settings.items() if key in self.groups}
        if any(value not in self.groups.options(key) for key, value in chosen.items()):
            return None  # already a problem of its axis
        choices = tuple(f"{self.groups.key(key)}={spelled(value)}" for key, value in chosen.items())
        values = tuple((key, value) for key, value in settings.items() if key not in chosen)
        try:
            for rule in rules:
                if rule.matches(_Known(self, point, choices, values)):
                    return Excluded(self._labelled(point, settings, choices, values), f"exclude: {rule.text}")
            composed = self.resolver.resolved(choices, values)
        except (HydraException, OmegaConfBaseException) as error:
            text = ", ".join(f"{key}={value}" for key, value in settings.items())
            self.problems.append(Problem("combination", text, f"cannot be composed: {plain_message(error)}"))
            return None
        except ValueError as error:  # of a condition
            self.problems.append(Problem("exclude", rule.text, f"{error}."))
            return None
        return self._made(point, settings, choices, composed, axes)

    def _labelled(
        self,
        point: Point,
        settings: Point,
        choices: tuple[str, ...],
        values: tuple[tuple[str, object], ...],
    ) -> Point:
        """Return an excluded point with the name of the user's own model, as combinations have it."""
        keys = self._model_keys(tuple(settings))
        if not any(key.endswith("._target_") for key in keys):
            return point
        with suppress(HydraException, OmegaConfBaseException):  # which may be why it is excluded
            label = custom_model(keys, self.resolver.resolved(choices, values)["model"])
            return {**point, "model": label} if label else point
        return point

    def _made(
        self, point: Point, settings: Point, choices: tuple[str, ...], composed: Json, axes: Sequence[str]
    ) -> Combination:
        backend = self._fitted(composed["backend"], str(self.resolver.choice(choices, "backend")))
        config = {key: backend.node if key == "backend" else composed[key] for key in IDENTITY}
        for key, part in config.items():
            self._judge(key, part)
        keys = self._model_keys(tuple(settings))
        self._judge_frameworks(keys, builders_of(composed["backend"]), choices)
        unsupported = self._without_builder(composed["backend"], composed["model"]) or backend.unsupported
        row = {axis: point[axis] if axis in point else self._found(axis, choices, composed) for axis in axes}
        label = custom_model(keys, composed["model"])
        command = self._command(settings, backend.dropped)
        return Combination(identity(config), {**row, "model": label} if label else row, config, command, unsupported)

    def _fitted(self, node: Json, name: str) -> Fitted:
        """The backend's node without the settings that it lacks, once for each different node."""
        key = (f"fitted {name}", id(node))
        if key not in self._judged:
            found = fitted(node, name, self.targets)
            self._judged[key] = node, found
            self.problems += found.problems
        result: Fitted = self._judged[key][1]
        return result

    @cached_property
    def backend_targets(self) -> set[str]:
        """The targets of the backends that its combinations choose."""
        names = [name for name in self.keys.get("backend", []) if name in self.groups.options("backend")]
        if names in ([], [self._always["backend"]]):
            return {str(plain_node(self.config, "backend._target_"))}
        found = set()
        for choices in [(f"{self.groups.key('backend')}={spelled(name)}",) for name in names]:
            with suppress(HydraException, OmegaConfBaseException):  # reported with the combination
                found.add(str(self.resolver.resolved(choices, ())["backend"].get("_target_")))
        return found

    def backend_problems(self) -> Iterator[Problem]:
        """Settings of a backend, wherever they are given, that no backend of the run has."""
        node = plain_node(self.config, "backend")
        own = {
            name: v
            for name, v in given_arguments(node).items()
            if not is_setting(f"backend.{name}", [node["_target_"]])
        }
        given: Axes = {f"backend.{name}": [value] for name, value in own.items()}
        given |= {key: [override.value()] for key, override in self.arguments.fixed.items()}
        for key, values in (given | self.keys).items():
            if key.startswith("backend.") and not is_setting(key, self.targets()):
                yield unknown_setting(key, ",".join(map(str, values)), self.targets())

    def _found(self, axis: str, choices: tuple[str, ...], composed: Json) -> object:
        """The value that an axis of other points has in this one; None where it has none."""
        if axis in self.groups:
            return self.resolver.choice(choices, axis)
        node: object = composed
        for part in axis.split("."):
            node = node.get(part) if isinstance(node, Mapping) else None
        return node

    def _judge(self, name: str, part: object) -> None:
        """Look for problems once for each different part."""
        key = (name, id(part))
        if key not in self._judged:
            self._judged[key] = part  # kept, so that its id stays its own
            self.problems += part_problems(name, part)

    def _judge_frameworks(self, keys: Sequence[str], builders: Sequence[object], choices: tuple[str, ...]) -> None:
        judged = ("frameworks", hash((tuple(keys), tuple(builders), choices)))
        if judged in self._judged:
            return
        self._judged[judged] = keys
        if any(key.split(".")[1] not in FRAMEWORKS for key in keys):
            settings = source_settings(self._without_model_keys.resolved(choices, ())["model"])
            self.problems += framework_problems(keys, builders, settings)

    def _without_builder(self, backend: Mapping[str, object], model: Mapping[str, object]) -> str | None:
        """Return why the backend cannot run the model; None if it can. The builder's framework must be installed."""
        try:
            builder, _ = chosen_builder(backend, model)
        except Unsupported as error:
            return str(error)
        judged = ("builder", hash((builder, backend.get("framework"))))
        if judged not in self._judged:
            self._judged[judged] = builder
            if problem := builder_problem(builder, str(backend.get("framework"))):
                self.problems.append(problem)
        return None

    @cached_property
    def _without_model_keys(self) -> Resolver:
        """Composes configs with the models as their own files have them."""
        fixed = [line for line in self._fixed if not line.lstrip("+~").startswith("model.")]
        return Resolver(self.groups.loader, self.config, fixed, {})

    def _model_keys(self, settings: Sequence[str]) -> list[str]:
        return [key for key in (*self.arguments.fixed, *settings, *self._file_keys) if key.startswith("model.")]

    def _own_model(self, model: Json, settings: tuple[str, ...]) -> Json:
        return without_other_builders(model, self._model_keys(settings))

    def _own_dataset(self, dataset: Json, settings: tuple[str, ...]) -> Json:
        """The dataset without the keys of the default one: who names another class, and chooses no file, has another dataset."""
        given = {key for key in (*self.arguments.fixed, *settings, *self._file_keys) if key.startswith("dataset.")}
        if "dataset._target_" not in given or "dataset" in self.arguments.fixed or "dataset" in self.keys:
            return dataset
        own = {key.split(".")[1] for key in given}
        return {key: value for key, value in dataset.items() if key in own}

    @cached_property
    def _file_keys(self) -> list[str]:
        """Return the keys below ``model`` and ``dataset`` that the sweep files set."""
        named = self.arguments.fixed.get(SWEEP_GROUP)
        value = None if named is None else named.value()
        found: list[str] = []
        for name in value if isinstance(value, list) else [value]:
            path = None if name is None else config_file(source_folders(self.config), "sweep", str(name))
            content = None if path is None else yaml.safe_load(path.read_text(encoding="utf-8"))
            if isinstance(content, Mapping):
                found += [key for part in ("model", "dataset") for key in _keys_below(part, content.get(part))]
        return list(dict.fromkeys(found))

    @cached_property
    def _fixed_words(self) -> dict[str, str]:
        """Return the overrides that hold for all points, by key."""
        words = {}
        for key, override in self.arguments.fixed.items():
            line = override.input_line
            is_measured = key.split(".", maxsplit=1)[0].split("/", maxsplit=1)[0] not in NOT_REPEATED
            if line and is_measured and key not in self.keys:
                words[key] = as_typed(line)
        return words

    def _command(self, settings: Point, dropped: Collection[str]) -> str:
        """The sweep's own command with every key of a point set to one value, without settings that its backend lacks."""
        without = {f"backend.{name}" for name in dropped}
        fixed = [word for key, word in self._fixed_words.items() if key not in without]
        alone = [] if self.shape.is_product and self.line is None else ["single_combination=true"]
        pinned = [
            f"{self.groups.key(key) if key in self.groups else key}={spelled(value)}"
            for key, value in settings.items()
            if key not in without
        ]
        return shlex.join([*self.program, *fixed, *alone, *pinned])


def _keys_below(key: str, node: object) -> Iterator[str]:
    """Return the keys of a mapping's values, those of mappings within it included: ``model.torch.width``."""
    if not isinstance(node, Mapping):
        yield key
        return
    for name, value in node.items():
        yield from _keys_below(f"{key}.{name}", value)


class _Known(Mapping[str, object]):
    """The values of a point that rules may use: its own values at once, others from its config, which only then is composed."""

    def __init__(self, section: Section, point: Point, choices: tuple[str, ...], values: Items) -> None:
        self._section, self._point, self._choices, self._values = section, point, choices, values

    def __getitem__(self, key: str) -> object:
        if key in self._point:
            return self._point[key]
        found = self._section._found(key, self._choices, self._section.resolver.resolved(self._choices, self._values))
        if found is None:
            raise KeyError(key)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._point)

    def __len__(self) -> int:
        return len(self._point)


def plain_node(config: DictConfig, key: str) -> Any:
    """The value at a key as plain data."""
    node = OmegaConf.select(config, key)
    return OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node


def _within_budget(protocol: Json, _: tuple[str, ...]) -> Json:
    """Return the protocol of a sweep with a budget: rounds until its comparisons are decided, or until the time is used up."""
    if protocol.get("decide") is not None:
        return protocol
    return {**protocol, "decide": "baseline", "rounds": MOST_SEQUENTIAL_ROUNDS}
