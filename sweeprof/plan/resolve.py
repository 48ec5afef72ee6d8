"""The config of each point of a sweep, exactly as Hydra composes it from the point's overrides.

Hydra composes every choice of config groups, and every value whose effect only Hydra can tell. Values that replace one leaf of a
config are set on a copy instead, which takes microseconds instead of 50 ms: 10,000 combinations are planned in seconds.
Equal parts of configs are the same objects, so that each is checked, hashed and written only once.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from sweeprof.config.override_syntax import frozen
from sweeprof.config.schema import IDENTITY
from sweeprof.results.record import Json


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
