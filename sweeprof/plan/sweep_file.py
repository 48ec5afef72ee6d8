"""The points that the sweep files and the command line define, and the combination of each."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml
from hydra.core.config_loader import ConfigLoader
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from sweeprof.config.override_syntax import SWEEP_GROUP, as_typed, frozen, is_spellable, spelled
from sweeprof.config.overrides import (
    Arguments,
    Expander,
    Groups,
    config_file,
    default_choices,
    plain_message,
    source_folders,
)
from sweeprof.config.schema import COLUMNS, GROUPS, IDENTITY, NOT_REPEATED, constraint_problems, is_merged
from sweeprof.config.signatures import given_arguments
from sweeprof.config.validation import (
    FRAMEWORK_EXTRAS,
    Fitted,
    builder_problem,
    fitted,
    is_setting,
    open_problems,
    part_problems,
    unknown_setting,
)
from sweeprof.errors import Problem, Unsupported, choice_problem
from sweeprof.plan.generated_inputs import NAME, is_pattern, matching_names
from sweeprof.plan.plan import Axes, Combination, Point, identity
from sweeprof.plan.shape import Grid, Rule, Shape, read_rules, read_shape
from sweeprof.results.comparison import Excluded
from sweeprof.results.record import Json
from sweeprof.results.statistics import MOST_SEQUENTIAL_ROUNDS
from sweeprof.targets import builders_of, chosen_builder, storable

# The config of each point of a sweep, exactly as Hydra composes it from the point's overrides.


@dataclass(frozen=True, slots=True)
class Setting:
    """One override of a point."""

    key: str
    line: str
    """In Hydra's grammar, such as ``++model.torch.width=64``."""
    value: object = None
    is_choice: bool = False
    """True if the key is a config group."""
    is_fixed: bool = False
    """True if every point has it, so that its value is not looked at."""


KEPT = 200
"""Compositions whose configs stay in memory, as each takes 0.2 MB."""

Finish = Callable[[Json, tuple[str, ...], Mapping[str, object]], Json]
"""A part of a config, the keys of the point's overrides, and its choices from config groups, to what the part should be."""


@dataclass(slots=True)
class _Composition:
    """A config that Hydra composed, without the values that are set on copies of it."""

    config: DictConfig | None
    """None where it was dropped to save memory; Hydra then composes it again."""
    raw: Json
    """The parts that decide what is measured, as plain data with their interpolations."""
    choices: Mapping[str, object]
    words_read: frozenset[str]
    """The words of the config's interpolations: a key that has none of them changes no other key's value."""
    is_opaque: bool
    """True if what an interpolation reads cannot be told from its text."""
    bases: dict[object, Json] = field(default_factory=dict)
    """The resolved config by the values of keys that interpolations read."""
    parts: dict[object, object] = field(default_factory=dict)
    """Top-level parts with values set, by base, part and values."""


@dataclass(slots=True)
class Resolver:
    """Resolved configs of points.

    Attributes:
        finish: what is still to be done to a part, such as ``model``, by the names of the parts.
        compositions: how often Hydra composed.
        resolutions: how often OmegaConf resolved.
    """

    loader: ConfigLoader
    master: DictConfig
    finish: Mapping[str, Finish]
    compositions: int = 0
    resolutions: int = 0
    _composed: dict[tuple[str, ...], _Composition] = field(default_factory=dict)
    _related: dict[tuple[str, ...], frozenset[str]] = field(default_factory=dict)

    def resolved(self, point: Sequence[Setting]) -> tuple[Json, Mapping[str, object]]:
        """Return the parts of a point's config that decide what is measured, and its choices from config groups.

        Args:
            point: its overrides in the order in which Hydra applies them.

        Raises:
            HydraException: they cannot be composed.
            OmegaConfBaseException: a value does not fit, or an interpolation has no value.
        """
        lines, composition, settings = self._composition(point)
        words = composition.words_read.union(*(_words_read(setting.value) for setting in settings))
        read = [s for s in settings if "${" in str(s.value) or not words.isdisjoint(s.key.split("."))]
        base_key = tuple((s.key, frozen(s.value)) for s in read)
        if base_key not in composition.bases:
            composition.bases[base_key] = self._resolved(composition.config or self._loaded(lines), read)
            if len(self._composed) > KEPT:
                composition.config = None
        base = composition.bases[base_key]
        config = dict(base)
        keys = tuple(setting.key for setting in point)
        for top in dict.fromkeys([s.key.partition(".")[0] for s in settings] + list(self.finish)):
            own = [s for s in settings if s.key.partition(".")[0] == top]
            known = (base_key, top, keys, tuple((s.key, frozen(s.value)) for s in own))
            if known not in composition.parts:
                part = base.get(top)
                for setting in own:
                    if setting not in read:
                        part = _with(part, setting.key.split(".")[1:], setting.value)
                if top in self.finish and isinstance(part, Mapping):
                    part = self.finish[top](dict(part), keys, composition.choices)
                composition.parts[known] = part
            config[top] = composition.parts[known]
        return config, composition.choices

    def chosen(self, point: Sequence[Setting]) -> Json:
        """Return what Hydra composes from a point's choices and fixed overrides alone, with its interpolations."""
        return self._composed_from(tuple(s.line for s in point if s.is_choice or s.is_fixed)).raw

    def _composition(self, point: Sequence[Setting]) -> tuple[tuple[str, ...], _Composition, list[Setting]]:
        """Return the overrides that Hydra composes for a point, what results, and the settings that are to be set on it."""
        related = self._related_keys(point)
        late = [s for s in point if not (s.is_choice or s.is_fixed or isinstance(s.value, Mapping) or s.key in related)]
        while True:
            keys = {setting.key for setting in late}
            lines = tuple(setting.line for setting in point if setting.key not in keys)
            composition = self._composed_from(lines)
            settable = [setting for setting in late if _is_settable(composition, setting)]
            if len(settable) == len(late):
                return lines, composition, late
            late = settable

    def _related_keys(self, point: Sequence[Setting]) -> frozenset[str]:
        """Return the keys of a point that other overrides set as well, or keys above or below them: their order matters."""
        keys = tuple(setting.key for setting in point if not setting.is_choice)
        if keys not in self._related:
            above = Counter(prefix for key in keys for prefix in _prefixes(key))
            given = Counter(keys)
            self._related[keys] = frozenset(
                key for key in keys if above[key] > 0 or given[key] > 1 or any(p in given for p in _prefixes(key))
            )
        return self._related[keys]

    def _composed_from(self, lines: tuple[str, ...]) -> _Composition:
        if lines not in self._composed:
            config = self._loaded(lines)
            whole: Json = OmegaConf.to_container(config)  # type: ignore[assignment]
            del whole["hydra"]
            texts = list(_interpolations(whole))
            words = frozenset(_words_read(texts))
            raw = {key: whole[key] for key in IDENTITY if key in whole}
            choices = dict(config.hydra.runtime.choices)
            self._composed[lines] = _Composition(config, raw, choices, words, any(map(_is_opaque, texts)))
        return self._composed[lines]

    def _loaded(self, lines: tuple[str, ...]) -> DictConfig:
        self.compositions += 1
        return self.loader.load_sweep_config(self.master, list(lines))

    def _resolved(self, composed: DictConfig, settings: Sequence[Setting]) -> Json:
        self.resolutions += 1
        config = composed.copy()
        for setting in settings:
            OmegaConf.update(config, setting.key, setting.value, force_add=True)
        singleton = HydraConfig.instance()
        before, singleton.cfg = singleton.cfg, config  # type: ignore[assignment]  # which ${hydra:runtime.choices.model} reads
        try:
            return {key: _plain(config, key) for key in IDENTITY if key in config}
        finally:
            singleton.cfg = before


def _plain(config: DictConfig, key: str) -> Any:
    """Return a part of a config as plain data; ``???`` where it is still open."""
    if OmegaConf.is_missing(config, key):
        return "???"
    node = config[key]
    return OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node


def _prefixes(key: str) -> list[str]:
    """Return the keys above a key: ``model`` and ``model.torch`` of ``model.torch.width``."""
    words = key.split(".")
    return [".".join(words[:end]) for end in range(1, len(words))]


def _is_settable(composition: _Composition, setting: Setting) -> bool:
    """True if the value only replaces a leaf, or adds one, so that Hydra would give the same config."""
    if composition.is_opaque or not re.fullmatch(r"[\w\-]+(\.[\w\-]+)*", setting.key):
        return False
    is_forced = setting.line.startswith("++")
    *parents, last = setting.key.split(".")
    node: object = composition.raw
    for word in parents:
        if isinstance(node, dict) and word not in node:
            return is_forced
        node = node.get(word) if isinstance(node, dict) else None
    if not isinstance(node, dict):
        return False
    return is_forced or (last in node and not setting.line.startswith("+"))


def _interpolations(node: object) -> Iterator[str]:
    """The texts of a config that contain an interpolation."""
    if isinstance(node, str):
        if "${" in node:
            yield node
    elif isinstance(node, Mapping):
        for child in node.values():
            yield from _interpolations(child)
    elif isinstance(node, list):
        for child in node:
            yield from _interpolations(child)


_KNOWN_RESOLVERS = re.compile(r"oc\.(env|select|create|decode|deprecated|dict\.keys|dict\.values)$|now$")


def _is_opaque(text: str) -> bool:
    """True if the keys that an interpolation reads are not all in its text: nested ones, or of a resolver that reads the config."""
    for inner in re.findall(r"\$\{([^}]*)", text):
        resolver, colon, _ = inner.partition(":")
        if "${" in inner or not re.search(r"\w", inner):
            return True
        if colon and not _KNOWN_RESOLVERS.match(resolver.strip()) and not inner.startswith("hydra:runtime.choices."):
            return True
    return False


def _words_read(value: object) -> Iterator[str]:
    """The words of a value's interpolations, of which some are keys; a key may contain a dash."""
    for text in _interpolations(value):
        yield from re.findall(r"\w+", text)
        yield from re.findall(r"[\w\-]+", text)


def _with(node: object, path: Sequence[str], value: object) -> object:
    """Return ``node`` with a value set, sharing with it whatever stays as it is."""
    if not path:
        return value
    changed = dict(node) if isinstance(node, Mapping) else {}
    changed[path[0]] = _with(changed.get(path[0]), path[1:], value)
    return changed


# The points that the sweep files and the command line define, and the combination of each.


@dataclass
class Points:
    """The points of a sweep, and their combinations."""

    groups: Groups
    config: DictConfig
    arguments: Arguments
    program: Sequence[str]
    """The command without its overrides."""
    problems: list[Problem] = field(default_factory=list)
    """The problems of the parts of configs that were checked."""
    _judged: dict[tuple[str, int], Any] = field(default_factory=dict)
    _settings: dict[tuple[str, object], Setting] = field(default_factory=dict)
    _given_keys: dict[tuple[object, ...], list[str]] = field(default_factory=dict)
    _matching: dict[str, list[str]] = field(default_factory=dict)
    """Names of models by the pattern that they match: asking a source for them takes seconds."""

    @cached_property
    def _read(self) -> tuple[Shape, list[Problem]]:
        if self.config.single_combination is True:
            return Shape(), []
        plain = self._written_shape()
        # `axes` also contains axes.KEY of the command line; for a tied axis it selects values, and is not a conflict.
        parts = [plain, *(part for part in plain["grids"] or [] if isinstance(part, Mapping))]
        tied = {key for part in parts for entry in part.get("zip") or [] if isinstance(entry, Mapping) for key in entry}
        for key in tied & set(self.arguments.axes):
            plain["axes"].pop(key, None)
        return read_shape(plain, self._expanded)

    def _written_shape(self) -> Json:
        """Return the keys that list combinations, with the names of variants as they are written."""
        swept = {*self.arguments.axes, *_keys_of_axes(self.config)}
        shape = written_shape(self.config, swept)
        variants = shape["variants"]
        for axis, names in variants.items() if isinstance(variants, dict) else ():
            if isinstance(names, dict):
                variants[axis] = {self._variant_name(axis, name): settings for name, settings in names.items()}
        grids = shape["grids"] if isinstance(shape["grids"], list) else []
        for part in (shape, *(grid for grid in grids if isinstance(grid, dict))):
            lists = [part.get(key) for key in ("zip", "include", "exclude")]
            points = [part.get("axes"), *(point for entries in lists if isinstance(entries, list) for point in entries)]
            for point in points:
                for axis, given in point.items() if isinstance(point, dict) else ():
                    if isinstance(given, list):
                        point[axis] = [self._variant_name(axis, name) for name in given]
                    else:
                        point[axis] = self._variant_name(axis, given)
        return shape

    def _variant_name(self, axis: str, name: object) -> object:
        """Return the name of a variant as its file has it, such as ``on``, which YAML reads as a boolean."""
        return self._variant_names.get(axis, {}).get(frozen(name), name)

    @cached_property
    def _variant_names(self) -> dict[str, dict[object, str]]:
        """Return the written names of variants, by axis and by what YAML or Hydra read them as."""
        written: dict[str, dict[object, str]] = {}
        for axis, names in (plain_node(self.config, "variants") or {}).items():
            if isinstance(names, Mapping):
                written[str(axis)] = {frozen(name): _text(name) for name in names}
        for path in self.sweep_files.values():
            texts = yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)
            typed = OmegaConf.to_container(OmegaConf.load(path))
            for axis, names in (typed.get("variants") or {}).items() if isinstance(typed, Mapping) else ():
                if isinstance(names, Mapping) and str(axis) in written:
                    found = zip(names, texts["variants"][_text(axis)], strict=True)
                    written[str(axis)].update({frozen(name): text for name, text in found})
        return written

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
        given: Axes = {}
        for key, values in {**self.arguments.axes, **fixed}.items():
            given[key] = self._names(values) if key == NAME else [self._variant_name(key, value) for value in values]
        return given

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
        found = {key: values for key, values in self.shape.values().items() if key not in self.shape.variants}
        for names in self.shape.variants.values():
            for settings in names.values():
                for key, value in settings.items():
                    found.setdefault(key, []).append(value)
        return found

    @cached_property
    def resolver(self) -> Resolver:
        """Composes the configs of its points."""
        finish: dict[str, Finish] = {"model": self._own_model, "dataset": self._own_dataset}
        if self.config.budget is not None:
            finish["protocol"] = _within_budget
        return Resolver(self.groups.loader, self.config, finish)

    @cached_property
    def _given_last(self) -> dict[str, int]:
        """Return the position of the last override of the command line for each key."""
        return {key: position for position, (key, _) in enumerate(self.arguments.ordered)}

    def _overrides(self, settings: Point) -> list[Setting]:
        """Return the overrides of a point in Hydra's order: what sweep files give its axes, then the command line."""
        made = []
        for key, value in settings.items():
            if key not in self._given_last:
                made.append(self._setting(key, value, "++" if is_merged(key) else ""))
        for position, (key, override) in enumerate(self.arguments.ordered):
            is_last = self._given_last[key] == position
            if key in settings and is_last:
                prefix = "++" if override.is_force_add() else "+" if override.is_add() else ""
                made.append(self._setting(key, settings[key], prefix))
            elif override.is_sweep_override() or key in self.shape.variants:
                continue
            elif is_last or key not in self.groups:
                line = str(override.input_line)
                made.append(Setting(key, line, is_choice=key in self.groups, is_fixed=True))
        return made

    def _setting(self, key: str, value: object, prefix: str) -> Setting:
        """Return the override that gives a key a value; raises ``ValueError`` if Hydra's grammar has no text for it."""
        known = (key, frozen(value))
        if known not in self._settings:
            if not is_spellable(value):
                raise ValueError("is a mapping with a key that Hydra's grammar would not read as text")
            is_choice = key in self.groups
            line = f"{self.groups.key(key) if is_choice else prefix + key}={spelled(value)}"
            self._settings[known] = Setting(key, line, value, is_choice)
        return self._settings[known]

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

    def combinations(self, on_point: Callable[[], object] = lambda: None) -> tuple[list[Combination], list[Excluded]]:
        """Its combinations, and the points that rules leave out.

        Args:
            on_point: is called after each point.
        """
        found: list[Combination] = []
        excluded: list[Excluded] = []
        for grid in self.shape.grids:
            rules, problems = self._rules(grid)
            self.problems += problems
            if problems:
                continue
            for point in grid.product():
                made = self._combination(point, rules)
                if isinstance(made, Combination):
                    found.append(made)
                elif made is not None:
                    excluded.append(made)
                on_point()
            made_too = [self._combination(point, ()) for point in grid.include]
            found += [one for one in made_too if isinstance(one, Combination)]
        return found, excluded

    def _rules(self, grid: Grid) -> tuple[list[Rule], list[Problem]]:
        """Return the rules of a grid, and their problems."""
        others = self.shape.variant_keys()
        if any(key not in GROUPS for key in self.keys if key in self.groups):
            # A config of the user's own group may choose models and set batch sizes, which then are not known yet.
            others |= {key for key in COLUMNS if key not in self.keys}
        return read_rules(grid.exclude, self.axes, others, self.narrowed)

    def _combination(self, point: Point, rules: Sequence[Rule]) -> Combination | Excluded | None:
        """Return the combination of a point, or why it is excluded; None for a mistake, which is added to the problems."""
        settings = self.shape.settings(point)
        if any(value not in self.groups.options(key) for key, value in settings.items() if key in self.groups):
            return None  # already a problem of its axis
        text = ", ".join(f"{key}={value}" for key, value in settings.items())
        try:
            overrides = self._overrides(settings)
        except ValueError as error:
            self.problems.append(Problem("combination", text, f"{error}."))
            return None
        known = _Known(self, point, overrides)
        try:
            for rule in rules:
                if rule.matches(known):
                    return Excluded(self._labelled(point, overrides), f"exclude: {rule.text}")
            composed, choices = self.resolver.resolved(overrides)
        except (HydraException, OmegaConfBaseException) as error:
            self.problems.append(Problem("combination", text, f"cannot be composed: {plain_message(error)}"))
            return None
        except ValueError as error:  # of a condition
            self.problems.append(Problem("exclude", rule.text, f"{error}."))
            return None
        return self._made(point, overrides, composed, choices)

    def _labelled(self, point: Point, overrides: Sequence[Setting]) -> Point:
        """Return an excluded point with its model, as combinations have it."""
        found = {**{key: value for key, value in self._always.items() if key not in point}, **point}
        with suppress(HydraException, OmegaConfBaseException):  # which may be why it is excluded
            composed, choices = self.resolver.resolved(overrides)
            keys = tuple(setting.key for setting in overrides)
            found = {axis: self.label(axis, point, composed, choices) for axis in found}
            label = custom_model(self._keys_below("model", keys, choices), composed["backend"], composed["model"])
            return {**found, "model": label} if label else found
        return found

    def _made(
        self, point: Point, overrides: Sequence[Setting], composed: Json, choices: Mapping[str, object]
    ) -> Combination:
        backend = self._fitted(composed["backend"], str(choices.get("backend")))
        config = {key: backend.node if key == "backend" else composed[key] for key in IDENTITY}
        for key, part in config.items():
            self._judge(key, part)
        keys = self._keys_below("model", tuple(setting.key for setting in overrides), choices)
        self._judge_frameworks(keys, builders_of(composed["backend"]), overrides)
        unsupported = self._without_builder(composed["backend"], composed["model"]) or backend.unsupported
        config = {key: self._storable(part) for key, part in config.items()}
        row = {axis: self.label(axis, point, composed, choices) for axis in self.axes}
        label = custom_model(keys, composed["backend"], composed["model"])
        command = self._command(overrides, backend.dropped)
        return Combination(identity(config), {**row, "model": label} if label else row, config, command, unsupported)

    def label(self, axis: str, point: Point, composed: Json, choices: Mapping[str, object]) -> object:
        """The value that a table shows for an axis: what the config of the row has; None where it has none."""
        if axis in self.shape.variants:
            return point.get(axis)
        if axis in self.groups:
            return choices.get(axis)
        found: object = composed
        for word in axis.split("."):
            if isinstance(found, list) and word.isdecimal() and int(word) < len(found):
                found = found[int(word)]
            else:
                found = found.get(word) if isinstance(found, Mapping) else None
        # Hydra merges a mapping into the config's own: the table then shows what the axis gives.
        value = point[axis] if axis in point and _contains(found, point[axis]) else found
        return value if storable(value) is value else spelled(value)

    def _fitted(self, node: Json, name: str) -> Fitted:
        """The backend's node without the settings that it lacks, once for each different node."""
        key = (f"fitted {name}", id(node))
        if key not in self._judged:
            found = fitted(node, name, lambda: self.targets)
            self._judged[key] = node, found
            self.problems += found.problems
        result: Fitted = self._judged[key][1]
        return result

    @cached_property
    def targets(self) -> set[str]:
        """The targets of the backends that its combinations choose."""
        choosing = {key: values for key, values in self.keys.items() if key in self.groups}
        points: list[Point] = [] if "backend" in self.keys else [{}]
        points += [
            {key: v} for key, values in choosing.items() if key == "backend" or key not in GROUPS for v in values
        ]
        found = set()
        for point in points:
            with suppress(HydraException, OmegaConfBaseException):  # reported with the combination
                if all(value in self.groups.options(key) for key, value in point.items()):
                    found.add(str(self.resolver.chosen(self._overrides(point))["backend"].get("_target_")))
        return found

    def backend_problems(self) -> Iterator[Problem]:
        """Settings of a backend, wherever they are given, that no backend of the run has."""
        node = as_written(self.config, "backend")
        own = {
            name: v
            for name, v in given_arguments(node).items()
            if not is_setting(f"backend.{name}", [node["_target_"]])
        }
        given: Axes = {f"backend.{name}": [value] for name, value in own.items()}
        given |= {key: [override.value()] for key, override in self.arguments.fixed.items()}
        for key, values in (given | self.keys).items():
            if key.startswith("backend.") and not is_setting(key, self.targets):
                yield unknown_setting(key, ",".join(map(str, values)), self.targets)

    def _judge(self, name: str, part: object) -> None:
        """Look for problems once for each different part."""
        key = (name, id(part))
        if key not in self._judged:
            self._judged[key] = part  # kept, so that its id stays its own
            open_ones = list(open_problems(name, part))
            self.problems += open_ones or part_problems(name, part)

    def _storable(self, part: object) -> object:
        """Return a part of a config as JSON has it; the same object for the same part."""
        key = ("storable", id(part))
        if key not in self._judged:
            self._judged[key] = part, storable(part)
        return self._judged[key][1]

    def _judge_frameworks(self, keys: Sequence[str], builders: Sequence[object], overrides: Sequence[Setting]) -> None:
        choices = tuple(setting for setting in overrides if setting.is_choice)
        judged = ("frameworks", hash((tuple(keys), tuple(builders), tuple(setting.line for setting in choices))))
        if judged in self._judged:
            return
        self._judged[judged] = keys
        if any(key.split(".")[1] not in FRAMEWORKS for key in keys):
            settings = source_settings(self.resolver.chosen(choices)["model"])
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

    def _keys_below(self, part: str, keys: tuple[str, ...], choices: Mapping[str, object]) -> list[str]:
        """Return the keys below ``model`` or ``dataset`` that are given beside the choice from that config group.

        The command line gives them, the point, sweep files, and configs of the user's own groups.
        """
        own = tuple((str(group), str(name)) for group, name in choices.items() if name and _is_own(str(group)))
        known = (part, keys, own)
        if known not in self._given_keys:
            folders = source_folders(self.config)
            members = [config_file(folders, group.partition("@")[0], name) for group, name in own]
            paths = [*self.sweep_files.values(), *members]
            in_files = [key for path in paths if path for key in _keys_of_file(path)]
            self._given_keys[known] = [key for key in dict.fromkeys((*keys, *in_files)) if key.startswith(f"{part}.")]
        return self._given_keys[known]

    def _own_model(self, model: Json, keys: tuple[str, ...], choices: Mapping[str, object]) -> Json:
        if self._is_chosen("model", choices):
            return model
        return without_other_builders(model, self._keys_below("model", keys, choices))

    def _own_dataset(self, dataset: Json, keys: tuple[str, ...], choices: Mapping[str, object]) -> Json:
        """The dataset without the keys of the default one: who names another class, and chooses no file, has another dataset."""
        given = self._keys_below("dataset", keys, choices)
        if "dataset._target_" not in given or self._is_chosen("dataset", choices):
            return dataset
        own = {key.split(".")[1] for key in given}
        return {key: value for key, value in dataset.items() if key in own}

    def _is_chosen(self, group: str, choices: Mapping[str, object]) -> bool:
        """True if the command line or a file chooses from a config group, and the default does not apply."""
        return group in self.arguments.fixed or group in self.keys or choices.get(group) != default_choices()[group]

    @cached_property
    def sweep_names(self) -> list[str]:
        """The names of the sweep files that the command line gives."""
        given = self.arguments.fixed.get(SWEEP_GROUP)
        named = None if given is None else given.value()
        return [str(name) for name in (named if isinstance(named, list) else [named]) if name is not None]

    @cached_property
    def sweep_files(self) -> dict[str, Path]:
        """The sweep files that the command line names, by their names."""
        folders = source_folders(self.config)
        return {name: path for name in self.sweep_names if (path := config_file(folders, "sweep", name))}

    def _command(self, overrides: Sequence[Setting], dropped: Collection[str]) -> str:
        """The sweep's own command with every key of a point set to one value, without settings that its backend lacks."""
        without = {f"backend.{name}" for name in dropped}
        words = [] if self.shape.is_product else ["single_combination=true"]
        for setting in overrides:
            is_repeated = re.split(r"[./]", setting.key)[0] not in NOT_REPEATED
            if setting.key not in without and (is_repeated or not setting.is_fixed):
                words.append(as_typed(setting.line))
        return shlex.join([*self.program, *words])


def _keys_of_axes(config: DictConfig) -> set[str]:
    """Return the names below which a config lists values of axes."""
    keys = set()
    for part in (config, *(config.get("grids") or ())):
        if isinstance(part, DictConfig):
            for points in (part.get("axes"), *(part.get("zip") or ()), *(part.get("include") or ())):
                keys |= {str(key) for key in points} if isinstance(points, DictConfig) else set()
    return keys


def _is_own(group: str) -> bool:
    """True for a config group that only the user has."""
    return group not in (*GROUPS, SWEEP_GROUP, "sweep") and not group.startswith("hydra/")


def _text(name: object) -> str:
    """Return the name of an axis or a variant as text."""
    return name if isinstance(name, str) else spelled(name)


def _contains(found: object, given: object) -> bool:
    """True if a value of a config is what an override gives, or a mapping that has it."""
    if isinstance(given, Mapping):
        return isinstance(found, Mapping) and all(key in found and _contains(found[key], v) for key, v in given.items())
    return frozen(found) == frozen(given)


def _keys_of_file(path: Path) -> list[str]:
    """Return the keys below ``model`` and ``dataset`` that a config file sets, whatever its package."""
    text = path.read_text(encoding="utf-8")
    content = yaml.safe_load(text)
    package = re.search(r"^# *@package +([\w.]+)", text, re.MULTILINE)
    if package and package[1] not in ("_global_", "_group_"):
        for word in reversed(package[1].split(".")):
            content = {word: content}
    if not isinstance(content, Mapping):
        return []
    return [key for part in ("model", "dataset") if part in content for key in _keys_below(part, content[part])]


def _keys_below(key: str, node: object) -> Iterator[str]:
    """Return the keys of a mapping's values, those of mappings within it included: ``model.torch.width``."""
    if not isinstance(node, Mapping):
        yield key
        return
    for name, value in node.items():
        yield from _keys_below(f"{key}.{name}", value)


class _Known(Mapping[str, object]):
    """The values of a point that rules may use: its own values at once, others from its config, which only then is composed."""

    def __init__(self, points: Points, point: Point, overrides: Sequence[Setting]) -> None:
        self._points, self._point, self._overrides = points, point, overrides

    def __getitem__(self, key: str) -> object:
        if key in self._point and "${" not in str(self._point[key]):
            return self._point[key]
        composed, choices = self._points.resolver.resolved(self._overrides)
        found = self._points.label(key, self._point, composed, choices)
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


def _within_budget(protocol: Json, *_: object) -> Json:
    """Return the protocol of a sweep with a budget: rounds until its comparisons are decided, or until the time is used up."""
    if protocol.get("decide") is not None:
        return protocol
    return {**protocol, "decide": "baseline", "rounds": MOST_SEQUENTIAL_ROUNDS}


def as_written(config: DictConfig, key: str) -> Any:
    """The value at a key as plain data, with its interpolations, which combinations may have different values for."""
    return OmegaConf.to_container(config)[key]  # type: ignore[index, call-overload]


_LEVELS = {"axes": 2, "zip": 3, "variants": 3, "include": 2}
"""How many levels of each key lie above the values that its axes get: of ``zip``, the list, its entries, and their lists."""


def written_shape(config: DictConfig, swept: Collection[str]) -> Json:
    """The keys of a config that list combinations, as their files have them.

    An interpolation in place of a value remains, because each combination has a value of its own for it. One in place of all values
    of an axis, or of several axes, is replaced by these.

    Args:
        swept: the keys that each combination sets.
    """
    shape: Json = {key: _written(config, key, levels, swept) for key, levels in _LEVELS.items()}
    shape["exclude"] = plain_node(config, "exclude")
    shape["grids"] = _written(config, "grids", 1, swept)
    for place, grid in enumerate(shape["grids"] if isinstance(shape["grids"], list) else ()):
        node = config["grids"][place]
        if isinstance(node, DictConfig):
            shape["grids"][place] = {name: _written(node, name, _LEVELS.get(str(name), 0), swept) for name in node}
            if "exclude" in grid:
                shape["grids"][place]["exclude"] = plain_node(node, "exclude")
    return shape


def _written(node: DictConfig | ListConfig, key: Any, levels: int, swept: Collection[str]) -> Any:
    """Return the value at a key, with the interpolations that lie below so many levels."""
    if OmegaConf.is_interpolation(node, key):
        text = OmegaConf.to_container(node)[key]  # type: ignore[index]
        target = str(text)[2:-1]
        follows = any(f"{target}.".startswith(f"{k}.") or f"{k}.".startswith(f"{target}.") for k in swept)
        found = None
        with suppress(OmegaConfBaseException):  # which only a combination has a value for
            found = node[key]
        if levels == 0 or follows or not OmegaConf.is_config(found):
            return text
    else:
        found = "???" if OmegaConf.is_missing(node, key) else node[key]
    if levels == 0:
        return OmegaConf.to_container(found) if OmegaConf.is_config(found) else found
    if isinstance(found, DictConfig):
        return {name: _written(found, name, levels - 1, swept) for name in found}
    if isinstance(found, ListConfig):
        return [_written(found, place, levels - 1, swept) for place in range(len(found))]
    return found


# A user's own model, given by keys such as ``model.torch._target_``: its builder and its name.


FRAMEWORKS = (*FRAMEWORK_EXTRAS, "fake")
NOT_BUILDERS = ("inputs", "names", "peft")
"""Parts of a model with a ``_target_`` that do not build it."""


def without_other_builders(model: Json, keys: Sequence[str]) -> Json:
    """The default model without its own builders and arguments: who names a builder by ``keys`` has another model."""
    named = set(_builders_named(keys))
    if not named:
        return model
    kept: Json = {}
    for framework, node in model.items():
        if not isinstance(node, dict):
            kept[framework] = node
        elif framework in named:
            own = {key.split(".")[2] for key in keys if key.startswith(f"model.{framework}.")}
            kept[framework] = {key: value for key, value in node.items() if key in own}
    return kept


def custom_model(keys: Sequence[str], backend: Mapping[str, Any], model: Json) -> str | None:
    """The name of the user's own model, where ``keys`` give the builder that the backend runs: the last part of that."""
    named = _builders_named(keys)
    with suppress(Unsupported):  # then the row has the name of the model that the backend does not run
        builder, _ = chosen_builder(backend, model)
        named = [builder] if builder in named else []
    return str(model[named[0]]["_target_"]).rpartition(".")[2] if named else None


def _builders_named(keys: Sequence[str]) -> list[str]:
    """Return the frameworks for which ``keys`` give a builder."""
    parts = [key.split(".") for key in keys if key.endswith("._target_")]
    return [names[1] for names in parts if len(names) == 3 and names[1] not in NOT_BUILDERS]


def framework_problems(keys: Sequence[str], builders: Sequence[object], settings: Collection[str]) -> Iterator[Problem]:
    """Return the keys of builders for unknown frameworks.

    Args:
        keys: below ``model``, as the user gives them.
        builders: what the backend runs.
        settings: those of the model's source.
    """
    known = {*FRAMEWORKS, *builders}
    for key in keys:
        name = key.split(".")[1]
        if name in settings or name in NOT_BUILDERS:
            continue
        if name not in known and settings and not key.endswith("._target_"):
            yield choice_problem("model", name, "setting of this model", sorted(settings))
        elif name not in known:
            yield choice_problem(key.rpartition(".")[0], key.split(".")[1], "framework", [str(name) for name in known])


def source_settings(model: Mapping[str, object]) -> set[str]:
    """Return the keys of a model's own file that are settings of its source, and neither builders nor descriptions."""
    builders = {key for key, node in model.items() if isinstance(node, Mapping) and "_target_" in node}
    return set(model) - builders
