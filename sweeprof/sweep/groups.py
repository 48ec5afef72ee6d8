"""The config groups that Hydra finds, the user's among them, and what went wrong where it composes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import hydra
from hydra.core.config_loader import ConfigLoader
from omegaconf.errors import OmegaConfBaseException

VERSION_BASE: dict[str, Any] = {} if hydra.__version__ >= "1.4" else {"version_base": "1.3"}
"""Hydra 1.3 wants to be told which defaults to have, and 1.4 not to be."""
NOUNS = {"metrics": "metric set"}
"""What a config group's member is called, where it is not the group's name."""


@dataclass(slots=True)
class Groups:
    """Config groups by the keys that choose from them, as ``model``, ``db/kind`` or ``optimizer@training.optimizer``."""

    loader: ConfigLoader
    chosen: Mapping[str, Any]
    """What the sweep's config chooses of each group; a group that it does not name has to be added."""
    _options: dict[str, list[str]] = field(default_factory=dict)
    _known: dict[str, bool] = field(default_factory=dict)

    def __contains__(self, key: object) -> bool:
        name = str(key)
        if name not in self._known:
            parent, _, leaf = name.partition("@")[0].rpartition("/")
            self._known[name] = leaf in self.loader.list_groups(parent)
        return self._known[name]

    def names(self) -> set[str]:
        """The groups at the top."""
        return set(self.loader.list_groups(""))

    def options(self, key: str) -> list[str]:
        """What can be chosen."""
        if key not in self._options:
            self._options[key] = self.loader.get_group_options(key.partition("@")[0])
        return self._options[key]

    def key(self, name: str) -> str:
        """How the group is named in an override."""
        return name if name in self.chosen else f"+{name}"


def plain_message(error: Exception) -> str:
    """What Hydra or OmegaConf says, without Hydra's advice for its own developers."""
    cause = error.__cause__ if isinstance(error.__cause__, OmegaConfBaseException) else None
    parts = [str(error), *([str(cause)] if cause else [])]
    return " ".join(line.strip() for part in parts for line in part.splitlines() if line.strip())
