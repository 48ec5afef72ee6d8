"""Configs of many points from few compositions: Hydra composes choices of groups, values go into plain data.

Equal parts of configs are the same objects, so that each is checked, hashed and written only once.
OmegaConf resolves again only for values that an interpolation of the config may read.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hydra.core.config_loader import ConfigLoader
from hydra.plugins.config_source import ConfigResult
from omegaconf import DictConfig, OmegaConf, open_dict

from sweeprof.config.schema import is_open
from sweeprof.plan.shape import frozen
from sweeprof.results.record import Json

Items = tuple[tuple[str, object], ...]
"""Config keys and their values."""


_ABSENT = object()
WHOLE = 12
"""Choices of groups that Hydra composes as they are; of further ones, those that only put together what was composed, are not."""


def read_once(loader: ConfigLoader) -> None:
    """Have Hydra's loader parse each config file once, however often it composes; the quickstart is planned in 0.85 of the time."""
    repository = getattr(loader, "repository", None)
    for source in getattr(repository, "sources", ()):
        if source.scheme() == "file" and "load_config" not in vars(source):
            source.load_config = _kept(source.load_config)


def _kept(load: Callable[[str], ConfigResult]) -> Callable[[str], ConfigResult]:
    """Return the function with a copy of the first result for each path; a composition changes what it gets."""
    known: dict[str, ConfigResult] = {}

    def load_config(config_path: str) -> ConfigResult:
        if config_path not in known:
            known[config_path] = load(config_path)
        return copy.deepcopy(known[config_path])

    return load_config


@dataclass(slots=True)
class _Composition:
    """One choice of config groups."""

    config: DictConfig | None
    """As Hydra composed it; None where it was put together."""
    raw: Json
    """With its interpolations."""
    choices: Mapping[str, object]
    read: frozenset[str]
    """Words of the config's interpolations: a key that has one of them may change another key's value."""
    bases: dict[object, Json] = field(default_factory=dict)
    """The resolved config by the values of keys that are read."""
    parts: dict[object, object] = field(default_factory=dict)
    """Top-level parts with values set, by base, part and values."""


@dataclass(slots=True)
class Resolver:
    """Resolved configs of points.

    Attributes:
        finish: what is still to be done to a part, such as ``model``, given the keys that a point sets; by the names of the parts.
        compositions: how often Hydra composed.
        resolutions: how often OmegaConf resolved.
    """

    loader: ConfigLoader
    master: DictConfig
    fixed: Sequence[str]
    """Overrides that hold for every point."""
    finish: Mapping[str, Callable[[Json, tuple[str, ...]], Json]]
    compositions: int = 0
    resolutions: int = 0
    _composed: dict[tuple[str, ...], _Composition] = field(default_factory=dict)
    _independent: bool | None = None

    def resolved(self, groups: tuple[str, ...], settings: Items) -> Json:
        """The config with these choices of groups, as overrides, and then these values.

        Raises:
            HydraException: the groups cannot be composed.
            OmegaConfBaseException: a value does not fit.
        """
        composition = self._composition(groups)
        words = composition.read.union(*(_words_read(value) for _, value in settings))
        read = tuple(item for item in settings if _is_read(item, words))
        key = tuple((name, frozen(value)) for name, value in read)
        if key not in composition.bases:
            composition.bases[key] = self._resolved(composition.config or self._loaded(groups), read)
        base = composition.bases[key]
        config = dict(base)
        for top in dict.fromkeys([name.partition(".")[0] for name, _ in settings] + list(self.finish)):
            mine = tuple(item for item in settings if item[0].partition(".")[0] == top)
            known = (key, top, tuple((name, frozen(value)) for name, value in mine))
            if known not in composition.parts:
                part = _updated(base, [item for item in mine if item not in read])[top]
                if top in self.finish and isinstance(part, Mapping):
                    part = self.finish[top](dict(part), tuple(name for name, _ in mine))
                composition.parts[known] = part
            config[top] = composition.parts[known]
        return config

    def choice(self, groups: tuple[str, ...], group: str) -> object:
        """Return the choice from a group where ``groups`` are; None where nothing is."""
        return self._composition(groups).choices.get(group)

    def _composition(self, groups: tuple[str, ...]) -> _Composition:
        if groups not in self._composed:
            together = self._together(groups) if len(groups) > 1 and len(self._composed) >= WHOLE else None
            self._composed[groups] = together or self._whole(groups)
        return self._composed[groups]

    def _whole(self, groups: tuple[str, ...]) -> _Composition:
        config = self._loaded(groups)
        choices = dict(config.hydra.runtime.choices)
        with open_dict(config):
            del config["hydra"]
        raw: Json = OmegaConf.to_container(config)  # type: ignore[assignment]
        return _Composition(config, raw, choices, frozenset(_words_read(raw)))

    def _loaded(self, groups: tuple[str, ...]) -> DictConfig:
        self.compositions += 1
        return self.loader.load_sweep_config(self.master, [*self.fixed, *groups])

    def _together(self, groups: tuple[str, ...]) -> _Composition | None:
        """The composition put together of those of each group alone; None where they meet in a part, and only Hydra can tell."""
        if self._independent is None:
            self._independent = not _choose_by_others(self.master)
        if not self._independent:
            return None
        bare, *single = [self._composition(()), *(self._composition((group,)) for group in groups)]
        raw, choices, resolved = dict(bare.raw), dict(bare.choices), dict(self._base(()))
        changed: set[str] = set()
        for group, one in zip(groups, single, strict=True):
            own = {f"choice of {key}" for key, value in one.choices.items() if bare.choices.get(key, _ABSENT) != value}
            own |= {key for key in {*one.raw, *bare.raw} if one.raw.get(key, _ABSENT) != bare.raw.get(key, _ABSENT)}
            if own & changed or own & bare.read or not set(one.raw) >= set(bare.raw) or one.read != bare.read:
                return None
            changed |= own
            raw.update({key: one.raw[key] for key in own & set(one.raw)})
            resolved.update({key: self._base((group,))[key] for key in own & set(one.raw)})
            choices.update({key: value for key, value in one.choices.items() if f"choice of {key}" in own})
        return _Composition(None, raw, choices, bare.read, bases={(): resolved})

    def _base(self, groups: tuple[str, ...]) -> Json:
        """The resolved config with a choice of groups and no values."""
        composition = self._composition(groups)
        if () not in composition.bases:
            composition.bases[()] = self._resolved(composition.config or self._loaded(groups), ())
        return composition.bases[()]

    def _resolved(self, composed: DictConfig, settings: Items) -> Json:
        self.resolutions += 1
        config = composed.copy()
        with open_dict(config):
            config.pop("hydra", None)
        for key, value in settings:
            OmegaConf.update(config, key, value, force_add=is_open(key))
        resolved: Json = OmegaConf.to_container(config, resolve=True)  # type: ignore[assignment]
        return resolved


def _is_read(item: tuple[str, object], words: frozenset[str]) -> bool:
    """True if a value needs OmegaConf: for others that read it, or for what it holds itself."""
    key, value = item
    return isinstance(value, Mapping) or "${" in str(value) or not words.isdisjoint(key.split("."))


def _words_read(node: object) -> Iterator[str]:
    """The words of every interpolation of a config."""
    if isinstance(node, str):
        yield from re.findall(r"\w+", node) if "${" in node else ()
    elif isinstance(node, Mapping | list):
        for child in node.values() if isinstance(node, Mapping) else node:
            yield from _words_read(child)


def _choose_by_others(master: DictConfig) -> bool:
    """True if a config file may choose from a group by the choice from another, as ``- db: ${server}`` does."""
    sources = [source for source in master.hydra.runtime.config_sources if source.schema in ("file", "pkg")]
    folders = [Path(str(source.path)) for source in sources]
    files = (file for folder in folders if folder.is_dir() for file in folder.rglob("*.yaml"))
    return any(
        re.search(r"^\s*-\s.*\$\{", file.read_text(encoding="utf-8", errors="replace"), re.MULTILINE) for file in files
    )


def _updated(config: Json, settings: Iterable[tuple[str, object]]) -> Json:
    """``config`` with values set, sharing with it whatever stays as it is."""
    for key, value in settings:
        config = _with(config, key.split("."), value)
    return config


def _with(node: object, path: Sequence[str], value: object) -> Json:
    inner = (
        value if len(path) == 1 else _with(node.get(path[0]) if isinstance(node, Mapping) else None, path[1:], value)
    )
    return {**(node if isinstance(node, Mapping) else {}), path[0]: inner}
