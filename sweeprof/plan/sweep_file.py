"""The combinations of a sweep: the points that its files and the command line define, each with its resolved config.

:class:`Resolver` gives a point exactly the config that Hydra composes from the point's overrides, without composing each one.
:class:`Points` makes combinations of the points. At the end stand the functions that read the shape as its file has it.
"""

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

from sweeprof.backends import uncompilable_reason, unsupported_device_reason
from sweeprof.backends.command import filled
from sweeprof.config.override_syntax import SWEEP_GROUP, as_typed, frozen, is_among, is_spellable, spelled
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
from sweeprof.plan.shape import ExcludeRule, SweepShape, read_rules, read_shape
from sweeprof.results.compared_rows import Excluded
from sweeprof.results.record import Json
from sweeprof.results.statistics import MOST_SEQUENTIAL_ROUNDS
from sweeprof.targets import builders_of, chosen_builder, storable

# ----------------------------------------------------------------------------------------------------------------------
# The config of each point


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

CHANGED = frozenset(("output", "resume", "tracking"))
"""Keys of the sweep's own config in which paths are expanded, or a default that is not installed is replaced."""

Finish = Callable[[Json, tuple[str, ...], Mapping[str, object]], Json]
"""Called with a part of a config, the keys of the point's overrides, and its choices from config groups; returns the final part."""


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
    """True if the text of an interpolation does not show what it reads."""
    bases: dict[object, Json] = field(default_factory=dict)
    """The resolved config by the values of keys that interpolations read."""
    parts: dict[object, object] = field(default_factory=dict)
    """Top-level parts with values set, by base, part and values."""


@dataclass(slots=True)
class Resolver:
    """Resolved configs of points.

    Hydra composes once for all points with the same choices. Values that only replace a leaf are set on a copy of the result, and
    OmegaConf resolves interpolations again only if they may read such a value.

    Attributes:
        finish: functions that complete a part, such as ``model``, by the names of the parts.
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
        changed: dict[str, list[Setting]] = {}
        for setting in settings:
            changed.setdefault(setting.key.partition(".")[0], []).append(setting)
        for top in dict.fromkeys([*changed, *self.finish]):
            own = changed.get(top, [])
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
        """Return the overrides that Hydra composes for a point, the composition, and the settings that remain to be set on it."""
        keys = tuple(setting.key for setting in point if not setting.is_choice)
        if keys not in self._related:
            # The order of overrides matters for a key that is set twice, or that lies above or below another one.
            related = {key for key, count in Counter(keys).items() if count > 1}
            for key in keys:
                words = key.split(".")
                for end in range(1, len(words)):
                    above = ".".join(words[:end])
                    if above in keys:
                        related |= {above, key}
            self._related[keys] = frozenset(related)
        late = []
        for setting in point:
            is_plain = not (setting.is_choice or setting.is_fixed or isinstance(setting.value, Mapping))
            if is_plain and setting.key not in self._related[keys]:
                late.append(setting)
        while True:
            late_keys = {setting.key for setting in late}
            lines = tuple(setting.line for setting in point if setting.key not in late_keys)
            composition = self._composed_from(lines)
            settable = [setting for setting in late if _is_settable(composition, setting)]
            if len(settable) == len(late):
                return lines, composition, late
            late = settable

    def _composed_from(self, lines: tuple[str, ...]) -> _Composition:
        if lines not in self._composed:
            config = self.master if self._is_of_master(lines) else self._loaded(lines)
            whole: Json = OmegaConf.to_container(config)  # type: ignore[assignment]
            del whole["hydra"]
            texts = list(_interpolations(whole))
            self._composed[lines] = _Composition(
                config=config,
                raw={key: whole[key] for key in IDENTITY if key in whole},
                choices=dict(config.hydra.runtime.choices),
                words_read=frozenset(_words_read(texts)),
                is_opaque=any(map(_is_opaque, texts)),
            )
        return self._composed[lines]

    def _is_of_master(self, lines: tuple[str, ...]) -> bool:
        """True if the sweep's own config is what Hydra composes from these overrides, also after planning has changed it."""
        if list(lines) != self.master.hydra.overrides.task:
            return False
        texts = _interpolations({key: as_written(self.master, key) for key in IDENTITY})
        return not any(_is_opaque(text) or not CHANGED.isdisjoint(_words_read(text)) for text in texts)

    def _loaded(self, lines: tuple[str, ...]) -> DictConfig:
        self.compositions += 1
        return self.loader.load_sweep_config(self.master, list(lines))

    def _resolved(self, composed: DictConfig, settings: Sequence[Setting]) -> Json:
        self.resolutions += 1
        config = composed
        if settings:
            config = composed.copy()
        for setting in settings:
            OmegaConf.update(config, setting.key, setting.value, force_add=True)
        singleton = HydraConfig.instance()
        before, singleton.cfg = singleton.cfg, config  # type: ignore[assignment]  # which ${hydra:runtime.choices.model} reads
        try:
            plain: Json = {}
            for key in IDENTITY:
                if OmegaConf.is_missing(config, key):
                    plain[key] = "???"
                elif key in config:
                    plain[key] = _as_data(config[key], resolve=True)
            return plain
        finally:
            singleton.cfg = before


def _as_data(node: Any, *, resolve: bool = False) -> Any:
    """Return a node of a config as plain data."""
    return OmegaConf.to_container(node, resolve=resolve) if OmegaConf.is_config(node) else node


def _is_settable(composition: _Composition, setting: Setting) -> bool:
    """True if the value only replaces a leaf, or adds one, so that Hydra would give the same config."""
    if composition.is_opaque or not re.fullmatch(r"[\w\-]+(\.[\w\-]+)*", setting.key):
        return False
    is_forced = setting.line.startswith("++")
    *parents, last = setting.key.split(".")
    node: object = composition.raw
    for word in parents:
        if not isinstance(node, dict):
            return False
        if word not in node:
            return is_forced
        node = node[word]
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
    """True if the text does not have all keys that an interpolation reads: it is nested, or its resolver reads the config."""
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
    """Return ``node`` with a value set; the result shares all unchanged parts with it."""
    if not path:
        return value
    changed = dict(node) if isinstance(node, Mapping) else {}
    inner = changed
    for word in path[:-1]:
        child = inner.get(word)
        inner[word] = dict(child) if isinstance(child, Mapping) else {}
        inner = inner[word]
    inner[path[-1]] = value
    return changed


# ----------------------------------------------------------------------------------------------------------------------
# The points, and the combination of each

FRAMEWORKS = (*FRAMEWORK_EXTRAS, "fake", "command")
NOT_BUILDERS = ("inputs", "names", "peft")
"""Parts of a model with a ``_target_`` that do not build it."""


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
    # Most combinations share the same objects as parts of their configs, which are looked at once. The values keep the parts
    # in memory, so that their ids stay their own.
    _checked: dict[tuple[str, int], object] = field(default_factory=dict)
    _stored: dict[int, tuple[object, object]] = field(default_factory=dict)
    _fitted_nodes: dict[tuple[str, int], tuple[Json, Fitted]] = field(default_factory=dict)
    _checked_builders: set[object] = field(default_factory=set)
    _settings: dict[tuple[str, object], Setting] = field(default_factory=dict)
    _given_keys: dict[tuple[object, ...], list[str]] = field(default_factory=dict)
    _matching: dict[str, list[str]] = field(default_factory=dict)
    """Names of models by the pattern that they match: asking a source for them takes seconds."""

    @cached_property
    def _read(self) -> tuple[SweepShape, list[Problem]]:
        """The shape that the config describes, with the names of variants as they are written, and its problems."""
        if self.config.single_combination is True:
            return SweepShape(), []
        shape = written_shape(self.config, {*self.arguments.axes, *_keys_of_axes(self.config)})
        if isinstance(shape["variants"], dict):
            for axis, names in shape["variants"].items():
                if isinstance(names, dict):
                    shape["variants"][axis] = {self._variant_name(axis, name): names[name] for name in names}
        for part in [shape, *_listed(shape["grids"])]:
            points = _listed([part.get("axes")])
            for key in ("zip", "include", "exclude"):
                points += _listed(part.get(key))
            for point in points:
                point.update({axis: self._variant_name(axis, given) for axis, given in point.items()})
            # `axes` also contains axes.KEY of the command line; for a tied axis it selects values, and is not a conflict.
            for entry in _listed(part.get("zip")):
                for key in entry.keys() & self.arguments.axes.keys():
                    shape["axes"].pop(key, None)
        return read_shape(shape, self._expanded, self.arguments.fixed.keys())

    def _variant_name(self, axis: str, name: object) -> object:
        """Return the names of variants as their file has them, such as ``on``, which YAML reads as a boolean."""
        if isinstance(name, list):
            return [self._variant_name(axis, one) for one in name]
        return self._variant_names.get(axis, {}).get(frozen(name), name)

    @cached_property
    def _variant_names(self) -> dict[str, dict[object, str]]:
        """Return the written names of variants, by axis and by what YAML or Hydra read them as."""

        def text(name: object) -> str:
            return name if isinstance(name, str) else spelled(name)

        written: dict[str, dict[object, str]] = {}
        for axis, names in (plain_node(self.config, "variants") or {}).items():
            if isinstance(names, Mapping):
                written[str(axis)] = {frozen(name): text(name) for name in names}
        for path in self.sweep_files.values():
            typed = OmegaConf.to_container(OmegaConf.load(path))
            if not isinstance(typed, Mapping):
                continue
            texts = yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)
            for axis, names in (typed.get("variants") or {}).items():
                if isinstance(names, Mapping) and str(axis) in written:
                    for name, written_name in zip(names, texts["variants"][text(axis)], strict=True):
                        written[str(axis)][frozen(name)] = written_name
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
    def shape(self) -> SweepShape:
        """Its shape, narrowed by the command line."""
        return self._read[0].narrowed(self._given)

    @cached_property
    def _given(self) -> Axes:
        """The axes on the command line: those that it sweeps, and the axes and keys of variants that it sets."""
        known = {*self._read[0].values(), *self._read[0].variant_keys(), *COLUMNS}
        given = dict(self.arguments.axes)
        for key, override in self.arguments.fixed.items():
            if key in known or (key == NAME and is_pattern(override.value())):
                given[key] = [override.value()]
        for key, values in given.items():
            if key == NAME:
                given[key] = self._names(values)
            else:
                given[key] = [self._variant_name(key, value) for value in values]
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
        return {**always, **found}

    @cached_property
    def _always(self) -> Point:
        choices = self.config.hydra.runtime.choices
        return {key: str(choices[key]) if key in choices else self.config[key] for key in COLUMNS}

    @cached_property
    def narrowed(self) -> set[str]:
        """Return the axes that the command line sets."""
        return self.axes.keys() & (self.arguments.fixed.keys() | self.arguments.axes.keys())

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
    def _last_positions(self) -> dict[str, int]:
        """Return the position of the last override of the command line for each key."""
        return {key: position for position, (key, _) in enumerate(self.arguments.ordered)}

    def _overrides(self, settings: Point) -> list[Setting]:
        """Return the overrides of a point in Hydra's order: what sweep files give its axes, then the command line."""
        made = []
        for key, value in settings.items():
            if key not in self._last_positions:
                made.append(self._setting(key, value, "++" if is_merged(key) else ""))
        for position, (key, override) in enumerate(self.arguments.ordered):
            is_last = self._last_positions[key] == position
            if key in settings and is_last:
                prefix = ""
                if override.is_force_add():
                    prefix = "++"
                elif override.is_add():
                    prefix = "+"
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
            name = self.groups.key(key) if is_choice else prefix + key
            self._settings[known] = Setting(key, f"{name}={spelled(value)}", value, is_choice)
        return self._settings[known]

    def sizes(self) -> list[tuple[int, str]]:
        """Return the number of combinations of each grid before rules exclude any, and its factors by axis."""
        return [grid.narrowed_size(self._given) for grid in self._read[0].grids]

    def shape_problems(self) -> list[Problem]:
        """Return the problems of its shape."""
        found, problems = self._read
        for key, values in self._given.items():
            known = found.tied_values(key)
            unknown = [value for value in values if not is_among(value, known)] if known else []
            names = [spelled(value) for value in known]
            problems = [*problems, *(choice_problem(key, value, "value of the tied axes", names) for value in unknown)]
        if problems or any(grid.size + len(grid.include) for grid in self.shape.grids):
            return problems
        axes = found.values()
        words = [f"{key}={','.join(map(spelled, values))}" for key, values in self._given.items() if key in axes]
        return [Problem("command line", ", ".join(words), "excludes all tied or included points.")]

    def value_problems(self) -> Iterator[Problem]:
        """Return the problems of values and rules of its axes that are invalid without composing any combination."""
        for key, values in self.keys.items():
            top, *path = key.split(".")
            for value in values:
                yield from constraint_problems({top: _with(None, path, value)})
        for grid in self.shape.grids:
            yield from read_rules(grid.exclude, self.axes, self.shape.variant_keys(), self.narrowed)[1]

    def combinations(self, on_point: Callable[[], object]) -> tuple[list[Combination], list[Excluded]]:
        """Its combinations, and the points that rules leave out.

        Args:
            on_point: is called after each point.
        """
        found: list[Combination] = []
        excluded: list[Excluded] = []
        others = self.shape.variant_keys()
        if any(key in self.groups and key not in GROUPS for key in self.keys):
            # A config of the user's own group may choose models and set batch sizes, which then are not known yet.
            others |= {key for key in COLUMNS if key not in self.keys}
        for grid in self.shape.grids:
            rules, problems = read_rules(grid.exclude, self.axes, others, self.narrowed)
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
            for point in grid.include:
                made = self._combination(point, ())
                if isinstance(made, Combination):
                    found.append(made)
        return found, excluded

    def _combination(self, point: Point, rules: Sequence[ExcludeRule]) -> Combination | Excluded | None:
        """Return the combination of a point, or why it is excluded; None for a mistake, which is added to the problems."""
        settings = self.shape.settings(point)
        if any(key in self.groups and value not in self.groups.options(key) for key, value in settings.items()):
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
                    return Excluded(self._excluded_axes(point, overrides), f"exclude: {rule.text}")
            composed, choices = self.resolver.resolved(overrides)
        except (HydraException, OmegaConfBaseException) as error:
            self.problems.append(Problem("combination", text, f"cannot be composed: {plain_message(error)}"))
            return None
        except ValueError as error:  # of a condition
            self.problems.append(Problem("exclude", rule.text, f"{error}."))
            return None
        return self._made(point, overrides, composed, choices)

    def _excluded_axes(self, point: Point, overrides: Sequence[Setting]) -> Point:
        """Return an excluded point with its model, as combinations have it."""
        axes = {**{key: value for key, value in self._always.items() if key not in point}, **point}
        with suppress(HydraException, OmegaConfBaseException):  # which may be why it is excluded
            composed, choices = self.resolver.resolved(overrides)
            return self._row(list(axes), point, overrides, composed, choices)
        return axes

    def _row(
        self,
        axes: Collection[str],
        point: Point,
        overrides: Sequence[Setting],
        composed: Json,
        choices: Mapping[str, object],
    ) -> Point:
        """Return the value of each axis that a table shows, with the name of the user's own model."""
        row = {axis: self.label(axis, point, composed, choices) for axis in axes}
        keys = self._keys_below("model", tuple(setting.key for setting in overrides), choices)
        named = _builders_named(keys)
        with suppress(Unsupported):  # then the row has the name of the model that the backend does not run
            builder, _ = chosen_builder(composed["backend"], composed["model"])
            named = [builder] if builder in named else []
        if named:
            row["model"] = str(composed["model"][named[0]]["_target_"]).rpartition(".")[2]
        return row

    def _made(
        self, point: Point, overrides: Sequence[Setting], composed: Json, choices: Mapping[str, object]
    ) -> Combination:
        node = composed["backend"]
        fitted_key = (str(choices.get("backend")), id(node))
        if fitted_key not in self._fitted_nodes:
            self._fitted_nodes[fitted_key] = node, fitted(node, fitted_key[0], lambda: self.targets)
            self.problems += self._fitted_nodes[fitted_key][1].problems
        backend = self._fitted_nodes[fitted_key][1]
        config = {key: composed[key] for key in IDENTITY}
        config["backend"] = backend.node
        if node.get("framework") == "command":
            config["backend"], problems = filled(backend.node, composed)
            self.problems += problems
        elif composed["args"] and not any(target.endswith(".CommandBackend") for target in self.targets):
            self.problems.append(Problem("args", dict(composed["args"]), "has an effect with backend=command only."))
        for key, part in config.items():
            if (key, id(part)) not in self._checked:
                self._checked[key, id(part)] = part
                self.problems += list(open_problems(key, part)) or part_problems(key, part)
            if id(part) not in self._stored:
                self._stored[id(part)] = part, storable(part)
            config[key] = self._stored[id(part)][1]
        keys = self._keys_below("model", tuple(setting.key for setting in overrides), choices)
        self._check_frameworks(keys, builders_of(node), overrides)
        unsupported = self._without_builder(node, composed["model"]) or backend.unsupported
        device = str(composed["device"]["type"])
        unsupported = unsupported or uncompilable_reason(backend.node, device)
        unsupported = unsupported or unsupported_device_reason(backend.node.get("precision"), device, backend.devices)
        row = self._row(self.axes, point, overrides, composed, choices)
        command = self._command(overrides, backend.dropped)
        return Combination(identity(config), row, config, command, unsupported)

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
            elif isinstance(found, Mapping):
                found = found.get(word)
            else:
                found = None
        # Hydra merges a mapping into the config's own: the table then shows what the axis gives.
        if axis in point and _contains(found, point[axis]):
            found = point[axis]
        return axis_value(found)

    @cached_property
    def targets(self) -> set[str]:
        """The targets of the backends that its combinations choose."""
        points: list[Point] = [] if "backend" in self.keys else [{}]
        for key, values in self.keys.items():
            if key in self.groups and (key == "backend" or key not in GROUPS):
                points += [{key: value} for value in values if value in self.groups.options(key)]
        found = set()
        for point in points:
            with suppress(HydraException, OmegaConfBaseException):  # reported with the combination
                found.add(str(self.resolver.chosen(self._overrides(point))["backend"].get("_target_")))
        return found

    def backend_problems(self) -> Iterator[Problem]:
        """Settings of a backend, wherever they are given, that no backend of the run has."""
        node = as_written(self.config, "backend")
        given: Axes = {}
        for name, value in given_arguments(node).items():
            if not is_setting(f"backend.{name}", [node["_target_"]]):
                given[f"backend.{name}"] = [value]
        for key, override in self.arguments.fixed.items():
            given[key] = [override.value()]
        given |= self.keys
        for key, values in given.items():
            if key.startswith("backend.") and not is_setting(key, self.targets):
                yield unknown_setting(key, ",".join(map(str, values)), self.targets)

    def _check_frameworks(self, keys: Sequence[str], builders: Sequence[object], overrides: Sequence[Setting]) -> None:
        """Look for keys below ``model`` that name an unknown framework, once for the same keys, builders and choices."""
        choices = tuple(setting for setting in overrides if setting.is_choice)
        checked = ("frameworks", tuple(keys), tuple(builders), tuple(setting.line for setting in choices))
        if checked in self._checked_builders:
            return
        self._checked_builders.add(checked)
        names = {key: key.split(".")[1] for key in keys}
        if not set(names.values()) - {*FRAMEWORKS}:
            return
        # The keys of a model's own file that are neither builders nor descriptions are settings of its source.
        settings = []
        for name, node in self.resolver.chosen(choices)["model"].items():
            if not (isinstance(node, Mapping) and "_target_" in node):
                settings.append(name)
        known = [str(name) for name in {*FRAMEWORKS, *builders}]
        for key, name in names.items():
            if name in settings or name in NOT_BUILDERS or name in known:
                continue
            if name == "args":  # the builders' arguments are beside their _target_
                message = "is not a framework: arguments are below the one whose builder gets them."
                given = key.partition("args.")[2] or "NAME"
                self.problems.append(
                    Problem(key, name, message, f"model.{builders[0] if builders else 'torch'}.{given}")
                )
            elif settings and not key.endswith("._target_"):
                self.problems.append(choice_problem("model", name, "setting of this model", settings))
            else:
                self.problems.append(choice_problem(key.rpartition(".")[0], name, "framework", known))

    def _without_builder(self, backend: Mapping[str, object], model: Mapping[str, object]) -> str | None:
        """Return why the backend cannot run the model; None if it can. The builder's framework must be installed."""
        try:
            builder, _ = chosen_builder(backend, model)
        except Unsupported as error:
            return str(error)
        checked = ("builder", builder, backend.get("framework"))
        if checked not in self._checked_builders:
            self._checked_builders.add(checked)
            if problem := builder_problem(builder, str(backend.get("framework"))):
                self.problems.append(problem)
        return None

    def _keys_below(self, part: str, keys: tuple[str, ...], choices: Mapping[str, object]) -> list[str]:
        """Return the keys below ``model`` or ``dataset`` that are given beside the choice from that config group.

        The command line gives them, the point, sweep files, and configs of the user's own groups.
        """
        own = []
        for group, name in choices.items():
            if name and group not in (*GROUPS, SWEEP_GROUP, "sweep") and not str(group).startswith("hydra/"):
                own.append((str(group), str(name)))
        known = (part, keys, tuple(own))
        if known not in self._given_keys:
            folders = source_folders(self.config)
            paths = [*self.sweep_files.values()]
            for group, name in own:
                if path := config_file(folders, group.partition("@")[0], name):
                    paths.append(path)
            given = dict.fromkeys(keys)
            for path in paths:
                given.update(dict.fromkeys(_keys_of_file(path)))
            self._given_keys[known] = [key for key in given if key.startswith(f"{part}.")]
        return self._given_keys[known]

    def _own_model(self, model: Json, keys: tuple[str, ...], choices: Mapping[str, object]) -> Json:
        """The model without the builders and arguments of the default one: who names another builder has another model."""
        given = self._keys_below("model", keys, choices)
        named = _builders_named(given)
        if not named or self._is_chosen("model", choices):
            return model
        kept: Json = {}
        for framework, node in model.items():
            if not isinstance(node, dict):
                kept[framework] = node
            elif framework in named:
                own = {key.split(".")[2] for key in given if key.startswith(f"model.{framework}.")}
                kept[framework] = {key: value for key, value in node.items() if key in own}
        return kept

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
        if given is None:
            return []
        named = given.value()
        if not isinstance(named, list):
            named = [named]
        return [str(name) for name in named if name is not None]

    @cached_property
    def sweep_files(self) -> dict[str, Path]:
        """The sweep files that the command line names, by their names."""
        folders = source_folders(self.config)
        found = {}
        for name in self.sweep_names:
            if path := config_file(folders, "sweep", name):
                found[name] = path
        return found

    def _command(self, overrides: Sequence[Setting], dropped: Collection[str]) -> str:
        """The sweep's own command with every key of a point set to one value, without settings that its backend lacks."""
        without = {f"backend.{name}" for name in dropped}
        words = [] if self.shape.is_product else ["single_combination=true"]
        for setting in overrides:
            is_repeated = re.split(r"[./]", setting.key)[0] not in NOT_REPEATED
            if setting.key not in without and (is_repeated or not setting.is_fixed):
                words.append(as_typed(setting.line))
        return shlex.join([*self.program, *words])


def _builders_named(keys: Sequence[str]) -> list[str]:
    """Return the frameworks for which ``keys`` give a builder, such as ``model.torch._target_``."""
    named = []
    for key in keys:
        words = key.split(".")
        if len(words) == 3 and words[2] == "_target_" and words[1] not in NOT_BUILDERS:
            named.append(words[1])
    return named


def _contains(found: object, given: object) -> bool:
    """True if a value of a config is what an override gives, or a mapping that has it."""
    if isinstance(given, Mapping):
        return isinstance(found, Mapping) and all(key in found and _contains(found[key], v) for key, v in given.items())
    return frozen(found) == frozen(given)


def _keys_of_file(path: Path) -> Iterator[str]:
    """Return the keys below ``model`` and ``dataset`` that a config file sets, whatever its package."""
    text = path.read_text(encoding="utf-8")
    content = yaml.safe_load(text)
    package = re.search(r"^# *@package +([\w.]+)", text, re.MULTILINE)
    if package and package[1] not in ("_global_", "_group_"):
        content = _with(None, package[1].split("."), content)
    if isinstance(content, Mapping):
        for part in ("model", "dataset"):
            if part in content:
                yield from _leaf_keys(part, content[part])


def _leaf_keys(key: str, node: object) -> Iterator[str]:
    """Return the keys of a mapping's values, including those of mappings within it: ``model.torch.width``."""
    if not isinstance(node, Mapping):
        yield key
        return
    for name, value in node.items():
        yield from _leaf_keys(f"{key}.{name}", value)


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


def _within_budget(protocol: Json, *_: object) -> Json:
    """Return the protocol of a sweep with a budget: rounds until its comparisons are decided, or until the time is used up."""
    if protocol.get("decide") is not None:
        return protocol
    return {**protocol, "decide": "baseline", "rounds": MOST_SEQUENTIAL_ROUNDS}


# ----------------------------------------------------------------------------------------------------------------------
# The keys of a config that list combinations, as their files have them


def plain_node(config: DictConfig, key: str) -> Any:
    """The value at a key as plain data."""
    return _as_data(OmegaConf.select(config, key), resolve=True)


def axis_value(value: object) -> object:
    """Return a value as tables and records have it; as text, such as ``nan``, if JSON cannot express it."""
    return value if storable(value) is value else spelled(value)


def as_written(config: DictConfig, key: str) -> Any:
    """The value at a key as plain data, with its interpolations, which combinations may have different values for."""
    node = config._get_node(key, validate_access=False)
    if node is None or OmegaConf.is_config(node):
        return _as_data(node)
    return node._value()


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
    if isinstance(shape["grids"], list):
        for place, node in enumerate(config["grids"]):
            if isinstance(node, DictConfig):
                grid = {name: _written(node, name, _LEVELS.get(str(name), 0), swept) for name in node}
                if "exclude" in grid:
                    grid["exclude"] = plain_node(node, "exclude")
                shape["grids"][place] = grid
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
        return _as_data(found)
    if isinstance(found, DictConfig):
        return {name: _written(found, name, levels - 1, swept) for name in found}
    if isinstance(found, ListConfig):
        return [_written(found, place, levels - 1, swept) for place in range(len(found))]
    return found


def _listed(entries: object) -> list[Json]:
    """Return the mappings of a list; what is no list, or no mapping, is reported when the shape is read."""
    return [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []


def _keys_of_axes(config: DictConfig) -> set[str]:
    """Return the names below which a config lists values of axes."""
    parts: list[Any] = [config]
    if isinstance(config.get("grids"), ListConfig):
        parts.extend(config.grids)  # `+=` would copy the whole config into a list of OmegaConf
    keys: set[str] = set()
    for part in parts:
        if not isinstance(part, DictConfig):
            continue
        points = [part.get("axes")]
        for name in ("zip", "include"):
            if isinstance(part.get(name), ListConfig):
                points.extend(part[name])
        for point in points:
            if isinstance(point, DictConfig):
                keys.update(map(str, point))
    return keys
