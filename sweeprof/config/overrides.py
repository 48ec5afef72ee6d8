"""Overrides, taken apart into axes and single values, and the config groups and files that they choose from.

:class:`Arguments` are the overrides of the command line, :class:`Expander` reads values in Hydra's grammar in sweep files.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from pathlib import Path

import hydra
import yaml
from hydra.core.config_loader import ConfigLoader
from hydra.core.config_store import ConfigStore
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override, RangeSweep
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from sweeprof.config.override_syntax import doubled, spelled
from sweeprof.config.schema import default_config
from sweeprof.errors import Problem, UserError
from sweeprof.paths import conf_folder

MAX_VALUES = 100_000
"""Of one axis."""
_CALL = re.compile(r"(range|choice|glob|interval|sort|shuffle|tag)\s*\(.*\)", re.DOTALL)
_HALF = re.compile(r"(range|choice|glob|interval|sort|shuffle|tag|doubling)\s*\([^)]*")
"""The part that YAML leaves of a call in ``[choice(1,2), 4]``, where it takes each comma for one of the list."""


@dataclass(frozen=True, slots=True)
class Arguments:
    """The command line, taken apart."""

    axes: dict[str, list[object]]
    """Swept keys, with the values as they would be composed."""
    fixed: dict[str, Override]
    """Keys with one value."""
    ordered: tuple[tuple[str, Override], ...] = ()
    """Every override with its key, in the order in which Hydra applies them."""

    @classmethod
    def parsed(cls, loader: ConfigLoader, arguments: Sequence[str], params: DictConfig | None) -> Arguments:
        """The overrides of the command line, after those of ``hydra.sweeper.params``; the last one for a key counts.

        Raises:
            UserError: values that cannot be listed.
        """
        parser = OverridesParser.create(config_loader=loader)
        axes: dict[str, list[object]] = {}
        fixed: dict[str, Override] = {}
        ordered: list[tuple[str, Override]] = []
        problems: list[Problem] = []
        # A YAML list in ``hydra.sweeper.params`` sweeps over its elements, as one would expect.
        lines = []
        for name, value in (params or {}).items():
            text = ",".join(map(spelled, value)) if OmegaConf.is_list(value) else str(value)
            lines.append(f"{name!s}={text}")
        for override in parser.parse_overrides([*lines, *arguments]):
            spelt = override.get_key_element().lstrip("+~")
            key = spelt.removeprefix("axes.")
            ordered.append((key, override))
            if override.is_sweep_override():
                if any(isinstance(value, dict) for value in axes.get(key, [])):
                    message = "is swept twice, and Hydra would merge the mappings; give its values once."
                    problems.append(Problem(key, override.get_value_string(), message))
                fixed.pop(key, None)
                try:
                    axes[key] = _swept(parser, key, override)
                except ValueError as error:
                    problems.append(Problem(key, override.get_value_string(), str(error)))
            elif spelt != key:
                value = override.value()
                axes[key] = value if isinstance(value, list) else [value]
            else:
                axes.pop(key, None)
                fixed[key] = override
        if problems:
            raise UserError(problems)
        return cls(axes, fixed, tuple(ordered))


class Expander:
    """Lists the values that a sweep file gives an axis, as text in Hydra's grammar or as they are."""

    def __init__(self, loader: ConfigLoader) -> None:
        self._parser = OverridesParser.create(config_loader=loader)

    def __call__(self, key: str, given: object) -> list[object]:
        """The values of the axis ``key``; ``range(1,4)``, ``doubling(1,8)``, ``choice(a,b)`` and ``glob(*)`` stand for
        several.

        Raises:
            ValueError: they cannot be listed.
        """
        values: list[object] = []
        for one in given if isinstance(given, list) else [given]:
            values += self._several(key, one)
        if float("inf") in values or float("-inf") in values:
            raise ValueError("has an infinite number; quote a string that looks like a number, such as '9e51464034'.")
        return values

    def _several(self, key: str, value: object) -> list[object]:
        if not isinstance(value, str):
            return [value]
        if _HALF.fullmatch(value):
            raise ValueError(f"has only a part of '{value}…)'; quote a call within a list.")
        numbers = doubled(value)
        if numbers is not None:
            return list(numbers)
        if not _CALL.fullmatch(value.strip()):
            return [value]
        try:
            (override,) = self._parser.parse_overrides([f"{key}={value.strip()}"])
        except HydraException as error:
            raise ValueError(f"cannot be read: {' '.join(str(error).split())}") from None
        if override.is_sweep_override():
            return _swept(self._parser, key, override)
        return [override.value()]


def _swept(parser: OverridesParser, key: str, override: Override) -> list[object]:
    """The values of a sweep; raises ``ValueError`` where they cannot be listed."""
    if not override.is_discrete_sweep():
        raise ValueError("has no discrete values; write range(start,stop,step), doubling(first,last) or choice(a,b).")
    numbers = override.value()
    if isinstance(numbers, RangeSweep):
        ends = (numbers.start, numbers.stop, numbers.step)
        if not numbers.step or not all(end is not None and math.isfinite(end) for end in ends):
            raise ValueError("has no end.")
        start, stop, step = map(Fraction, ends)  # type: ignore[arg-type]
        count = max(0, math.ceil((stop - start) / step))
        if count > MAX_VALUES:
            raise ValueError(f"has {count:,} values, but an axis can have at most {MAX_VALUES:,}.")
        if not count:
            raise ValueError("has no values: range(start,stop) ends before stop, such as range(1,9).")
        return list(override.sweep_iterator())
    try:
        texts = list(itertools.islice(override.sweep_string_iterator(), MAX_VALUES + 1))
    except HydraException as error:
        raise ValueError(f"cannot be listed: {' '.join(str(error).split())}") from None
    if len(texts) > MAX_VALUES:
        raise ValueError(f"has more than {MAX_VALUES:,} values.")
    if isinstance(override.value(), Glob):
        if not texts:
            raise ValueError("matches no config of that group.")
        return list(texts)  # names of files, which may have characters that the grammar of overrides lacks
    return [parser.parse_override(f"{key}={text}").value() for text in texts]


# ----------------------------------------------------------------------------------------------------------------------
# The config groups that Hydra finds, including the user's, and Hydra's errors when it composes them

VERSION_BASE: dict[str, str] = {} if hydra.__version__ >= "1.4" else {"version_base": "1.3"}
"""Hydra 1.3 requires an argument for the defaults, and Hydra 1.4 does not have it."""
NOUNS = {"metrics": "metric set"}
"""The noun for a member of a config group, if it is not the group's name."""

# The main config in `conf/config.yaml` includes it.
ConfigStore.instance().store("sweeprof_keys", default_config())


@dataclass(slots=True)
class Groups:
    """Config groups by the keys that choose from them, as ``model``, ``db/kind`` or ``optimizer@training.optimizer``."""

    loader: ConfigLoader
    chosen: Mapping[str, object]
    """The choice of the sweep's config from each group; a group that it does not name has to be added."""
    _listed: dict[tuple[str, ObjectType], list[str]] = field(default_factory=dict)

    def __contains__(self, key: object) -> bool:
        parent, _, leaf = str(key).partition("@")[0].rpartition("/")
        return leaf in self.names(parent)

    def names(self, parent: str = "") -> list[str]:
        """The groups in a group; by default, those at the top."""
        return self._list(parent, ObjectType.GROUP)

    def options(self, key: str) -> list[str]:
        """Return the members that can be chosen."""
        return self._list(key.partition("@")[0], ObjectType.CONFIG)

    def _list(self, group: str, kind: ObjectType) -> list[str]:
        if (group, kind) not in self._listed:
            # Hydra's loader copies all structured configs for each call; its repository only lists folders.
            repository = getattr(self.loader, "repository", self.loader)
            self._listed[group, kind] = repository.get_group_options(group, kind)
        return self._listed[group, kind]

    def key(self, name: str) -> str:
        """Return the group's name in an override."""
        return name if name in self.chosen else f"+{name}"


def plain_message(error: Exception) -> str:
    """Return the message of Hydra or OmegaConf, without Hydra's advice for its own developers."""
    text = str(error)
    if isinstance(error.__cause__, OmegaConfBaseException):
        text += f"\n{error.__cause__}"
    return " ".join(line.strip() for line in text.splitlines() if line.strip())


def leaf_keys(config: DictConfig, prefix: str = "") -> list[str]:
    """Every dotted key of a config that a user may set."""
    keys: list[str] = []
    for name in config:
        key = prefix + str(name)
        if key in ("hydra", "job"):
            continue
        keys.append(key)
        node = config._get_node(name)
        if isinstance(node, DictConfig) and not node._is_none():
            keys += leaf_keys(node, f"{key}.")
    return keys


def packaged_targets() -> frozenset[str]:
    """The targets that sweeprof's own configs name; the suite tests them, so a run need not."""
    found: set[str] = set()
    for file in conf_folder().rglob("*.yaml"):
        found.update(re.findall(r"_target_: (\S+)", file.read_text(encoding="utf-8")))
    return frozenset(found)


@cache
def default_choices() -> dict[str, str]:
    """The choices from config groups in the defaults list of ``conf/config.yaml``."""
    entries = yaml.safe_load((conf_folder() / "config.yaml").read_text(encoding="utf-8"))["defaults"]
    choices: dict[str, str] = {}
    for entry in entries:
        if isinstance(entry, dict):
            choices |= entry
    return choices


def source_folders(config: DictConfig) -> list[Path]:
    """The folders that a composed config comes from, the user's first."""
    sources = [source for source in config.hydra.runtime.config_sources if source.schema == "file"]
    folders = [Path(str(source.path)) for source in sources]
    return sorted(folders, key=lambda folder: folder == conf_folder())


def config_file(folders: Sequence[Path], group: str, name: str) -> Path | None:
    """The file of a member of a config group; None if there is none."""
    for folder in folders:
        path = folder / group / f"{name.removesuffix('.yaml')}.yaml"
        if path.is_file():
            return path
    return None
