"""The config groups that Hydra finds, including the user's, and Hydra's errors when it composes them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import hydra
import yaml
from hydra.core.config_loader import ConfigLoader
from hydra.core.config_store import ConfigStore
from hydra.core.object_type import ObjectType
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from sweeprof.config.schema import default_config
from sweeprof.paths import conf_folder

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
    cause = error.__cause__ if isinstance(error.__cause__, OmegaConfBaseException) else None
    parts = [str(error), *([str(cause)] if cause else [])]
    return " ".join(line.strip() for part in parts for line in part.splitlines() if line.strip())


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
    files = conf_folder().rglob("*.yaml")
    return frozenset(t for file in files for t in re.findall(r"_target_: (\S+)", file.read_text(encoding="utf-8")))


@cache
def default_choices() -> dict[str, str]:
    """The choices from config groups in the defaults list of ``conf/config.yaml``."""
    entries = yaml.safe_load((conf_folder() / "config.yaml").read_text(encoding="utf-8"))["defaults"]
    return {group: name for entry in entries if isinstance(entry, dict) for group, name in entry.items()}


def source_folders(config: DictConfig) -> list[Path]:
    """The folders that a composed config comes from, the user's first."""
    sources = [source for source in config.hydra.runtime.config_sources if source.schema == "file"]
    folders = [Path(str(source.path)) for source in sources]
    return sorted(folders, key=lambda folder: folder == conf_folder())


def config_file(folders: Sequence[Path], group: str, name: str) -> Path | None:
    """The file of a member of a config group; None if there is none."""
    paths = [folder / group / f"{name.removesuffix('.yaml')}.yaml" for folder in folders]
    return next((path for path in paths if path.is_file()), None)
